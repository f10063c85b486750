//! Refusals without words: versions after which the streams of a node ended.
//!
//! Pure: no I/O. A client that cannot take a resource may end its stream instead of refusing it (a message larger than
//! it accepts, a crash in its decoder), and comes back for all it wants: sent again each time, that one resource would
//! keep it from everything else. So a stream that ends right after a response counts against what was in it. Once is no
//! sign, clients end for many reasons; from the second time on the version is held back from the node, for longer each
//! time, while it is sent all else. Another version is tried at once. An ACK clears the name.
//!
//! Nodes are told apart by their ids alone: one without an id is not remembered.

use std::fmt;
use std::time::Duration;

use super::stream::Suspect;
use crate::model::MonoTime;
use crate::snapshot::Kind;

/// A stream that ends within this time after a response without an answer may have ended over it.
pub(super) const REACTION: Duration = Duration::from_secs(2);

/// How long the second strike holds a version back. Each further one doubles it.
const FIRST_HOLD: Duration = Duration::from_secs(1);

const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// A strike is forgotten after so long without another.
const MEMORY: Duration = Duration::from_secs(600);

/// Names remembered of a node.
const MAX_NAMES: usize = 64;

/// One that is kept from a node for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldBack {
    pub(super) suspect: Suspect,
    /// How many streams in a row ended over it.
    pub(super) strikes: u32,
    pub(super) until: MonoTime,
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suspect, strikes, .. } = self;
        let (name, version) = (suspect.title(), &suspect.version);
        write!(
            f,
            "{strikes} streams in a row ended right after {name} was sent: version {version} is held back"
        )
    }
}

#[derive(Debug)]
struct Strike {
    /// With the version that was sent last.
    suspect: Suspect,
    count: u32,
    last: MonoTime,
}

impl Strike {
    fn is_of(&self, kind: Kind, name: &str) -> bool {
        self.suspect.kind == kind && *self.suspect.name == *name
    }

    fn is_forgotten(&self, now: MonoTime) -> bool {
        now.since(self.last) >= MEMORY
    }

    fn hold(&self) -> Duration {
        let doublings = self.count.checked_sub(2);
        let factor = |n| 1u32.checked_shl(n).unwrap_or(u32::MAX);
        doublings.map_or(Duration::ZERO, |n| FIRST_HOLD.saturating_mul(factor(n)).min(LONGEST_HOLD))
    }
}

/// What is remembered of one node.
#[derive(Debug, Default)]
pub(super) struct Strikes(Vec<Strike>);

impl Strikes {
    /// A stream of the node ended over `suspect`; returns how many in a row did.
    pub(super) fn strike(&mut self, suspect: Suspect, now: MonoTime) -> u32 {
        self.0.retain(|strike| !strike.is_forgotten(now));
        if let Some(known) = self.0.iter_mut().find(|s| s.is_of(suspect.kind, &suspect.name)) {
            *known = Strike { suspect, count: known.count.saturating_add(1), last: now };
            return known.count;
        }
        if self.0.len() < MAX_NAMES {
            self.0.push(Strike { suspect, count: 1, last: now });
        }
        1
    }

    /// What is kept from the node for now.
    pub(super) fn held_back(&self, now: MonoTime) -> Vec<HeldBack> {
        let held = self.0.iter().map(|strike| HeldBack {
            suspect: strike.suspect.clone(),
            strikes: strike.count,
            until: strike.last + strike.hold(),
        });
        held.filter(|held| held.until > now).collect()
    }

    /// The node has taken something of this name.
    pub(super) fn clear(&mut self, kind: Kind, name: &str) {
        self.0.retain(|strike| !strike.is_of(kind, name));
    }

    /// True if nothing is left that counts.
    pub(super) fn is_over(&self, now: MonoTime) -> bool {
        self.0.iter().all(|strike| strike.is_forgotten(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model::{at, ms};

    fn suspect(name: &str, version: &str) -> Suspect {
        Suspect { kind: Kind::Endpoints, name: name.into(), version: version.into() }
    }

    fn held(strikes: &Strikes, now: u64) -> Vec<(String, u128)> {
        let held = strikes.held_back(at(now));
        held.iter().map(|h| (h.suspect.name.to_string(), h.until.since(at(now)).as_millis())).collect()
    }

    #[test]
    fn once_is_no_sign_and_from_then_on_each_time_holds_for_longer() {
        let mut strikes = Strikes::default();
        assert_eq!(strikes.strike(suspect("x", "1"), at(0)), 1);
        assert_eq!(held(&strikes, 0), []);
        let holds = (2..12).map(|n| {
            assert_eq!(strikes.strike(suspect("x", "1"), at(n)), u32::try_from(n).unwrap());
            held(&strikes, n)[0].1
        });
        let expected: Vec<u128> = [1, 2, 4, 8, 16, 32, 60, 60, 60, 60].map(|s| s * 1000).into();
        assert_eq!(holds.collect::<Vec<_>>(), expected);
        assert_eq!(held(&strikes, 61_000), [], "it is tried again");
    }

    #[test]
    fn an_answer_clears_the_name_and_only_that() {
        let mut strikes = Strikes::default();
        for name in ["x", "y", "x", "y"] {
            strikes.strike(suspect(name, "1"), at(0));
        }
        strikes.clear(Kind::Endpoints, "x");
        strikes.clear(Kind::Cluster, "y");
        assert_eq!(held(&strikes, 0), [("y".to_owned(), 1000)]);
        strikes.clear(Kind::Endpoints, "y");
        assert!(strikes.is_over(at(0)));
    }

    #[test]
    fn the_version_that_was_sent_last_is_held_back_and_the_count_goes_on() {
        let mut strikes = Strikes::default();
        for version in ["1", "1", "2"] {
            strikes.strike(suspect("x", version), at(0));
        }
        let held = strikes.held_back(at(0));
        assert_eq!(held, [HeldBack { suspect: suspect("x", "2"), strikes: 3, until: at(0) + ms(2000) }]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_does_not_last() {
        let mut strikes = Strikes::default();
        for n in 0..MAX_NAMES + 10 {
            strikes.strike(suspect(&n.to_string(), "1"), at(0));
        }
        assert_eq!(strikes.0.len(), MAX_NAMES);
        let later = at(MEMORY.as_millis().try_into().unwrap());
        assert!(strikes.is_over(later));
        assert_eq!(strikes.strike(suspect("0", "1"), later), 1, "it counts anew");
        assert_eq!(strikes.0.len(), 1);
    }
}
