//! What no xDS server may do, checked on every message received.
//!
//! Pure: no I/O.
//!
//! Knows one stream at a time. It is strict only where a race cannot explain what was seen: a name that was given up
//! may still arrive for a while, because responses may have been under way.

use std::collections::{BTreeMap, BTreeSet};

use super::transcript::Kind;
use super::world::{Offer, World};

/// Responses that may have been under way when a name was given up.
const IN_FLIGHT: u32 = 64;

/// How a message is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// SotW: for CDS and LDS the whole truth, for EDS and RDS as much as the server likes.
    Sotw,
    /// Delta: each resource for itself.
    Delta,
}

/// The rules' memory of one stream, and the complaints about all streams.
#[derive(Default)]
pub(super) struct Referee {
    stream: u64,
    nonces: BTreeSet<String>,
    topics: BTreeMap<Kind, Topic>,
    violations: Vec<String>,
}

#[derive(Default)]
struct Topic {
    wildcard: bool,
    asked: BTreeSet<String>,
    /// Given up, with the number of responses that may still bring it.
    leaving: BTreeMap<String, u32>,
    /// Asked for and not answered yet.
    owed: BTreeSet<String>,
    /// May be sent again though nothing changed, since its cluster changed or it was refused.
    excused: BTreeSet<String>,
    /// May come once more, since a second request from scratch may have crossed the answer to the first.
    crossed: BTreeSet<String>,
    /// SotW: one response without news is excused, since a name was given up.
    excused_once: bool,
    /// SotW: so is one while names newly asked for are not answered.
    unanswered: bool,
    seen: BTreeSet<String>,
    refused: BTreeSet<Vec<(String, u64)>>,
}

impl Referee {
    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }

    pub(super) fn new_stream(&mut self, stream: u64) {
        self.stream = stream;
        self.nonces.clear();
        self.topics.clear();
    }

    /// The client asks: on a wildcard type for everything, else for `add`.
    pub(super) fn asks(&mut self, kind: Kind, add: &BTreeSet<String>, give_up: &BTreeSet<String>) {
        let topic = self.topics.entry(kind).or_default();
        topic.wildcard |= kind.is_wildcard();
        topic.unanswered = true;
        topic.excused_once |= !give_up.is_empty();
        for name in add {
            topic.asked.insert(name.clone());
            topic.leaving.remove(name);
            topic.owed.insert(name.clone());
        }
        for name in give_up {
            topic.asked.remove(name);
            topic.owed.remove(name);
            topic.leaving.insert(name.clone(), IN_FLIGHT);
        }
    }

    /// From now on `names` may come again without news.
    pub(super) fn excuse(&mut self, kind: Kind, names: impl IntoIterator<Item = String>) {
        let topic = self.topics.entry(kind).or_default();
        topic.excused.extend(names);
    }

    /// The client has asked for `names` from scratch, and not for the first time.
    pub(super) fn asks_again(&mut self, kind: Kind, names: impl IntoIterator<Item = String>) {
        self.topics.entry(kind).or_default().crossed.extend(names);
    }

    /// The client refused this message.
    pub(super) fn refused(&mut self, kind: Kind, scope: Scope, offers: &[Offer]) {
        let topic = self.topics.entry(kind).or_default();
        let contents = offers.iter().map(|o| (o.name.clone(), o.content()));
        match scope {
            Scope::Sotw => topic.refused.extend([contents.collect::<Vec<_>>()]),
            Scope::Delta => topic.refused.extend(contents.map(|one| vec![one])),
        }
    }

    /// Judges a message before the client looks into it.
    pub(super) fn judge(&mut self, kind: Kind, scope: Scope, nonce: &str, offers: &[Offer], world: &World) {
        let mut found = Vec::new();
        if nonce.is_empty() {
            found.push("a response without a nonce".to_owned());
        } else if !self.nonces.insert(nonce.to_owned()) {
            found.push(format!("nonce {nonce} was used before on this stream"));
        }
        match self.topics.get_mut(&kind) {
            None => found.push("nobody subscribed to this type".to_owned()),
            Some(topic) => {
                topic.judge_names(offers, &mut found);
                topic.judge_refused(scope, offers, &mut found);
                topic.judge_news(kind, scope, offers, world, &mut found);
            }
        }
        let stream = self.stream;
        self.violations.extend(found.into_iter().map(|text| format!("stream {stream}, {kind:?}: {text}")));
    }

    pub(super) fn complain(&mut self, text: String) {
        self.violations.push(format!("stream {}: {text}", self.stream));
    }
}

impl Topic {
    fn judge_names(&mut self, offers: &[Offer], found: &mut Vec<String>) {
        for offer in offers.iter().filter(|offer| !self.wildcard && !self.asked.contains(&offer.name)) {
            if !self.leaving.contains_key(&offer.name) {
                found.push(format!("{} is outside the subscription", offer.name));
            }
        }
        self.leaving.retain(|_, left| {
            *left -= 1;
            *left > 0
        });
        let unique: BTreeSet<_> = offers.iter().map(|offer| &offer.name).collect();
        if unique.len() < offers.len() {
            found.push("one name twice in a message".to_owned());
        }
    }

    fn judge_refused(&self, scope: Scope, offers: &[Offer], found: &mut Vec<String>) {
        let contents: Vec<_> = offers.iter().map(|o| (o.name.clone(), o.content())).collect();
        let again = match scope {
            Scope::Sotw => self.refused.contains(&contents),
            Scope::Delta => contents.into_iter().any(|one| self.refused.contains(&vec![one])),
        };
        if again && !offers.is_empty() {
            let names: Vec<_> = offers.iter().map(|o| o.name.as_str()).collect();
            found.push(format!("{} was refused on this stream and came again unchanged", names.join(", ")));
        }
    }

    fn judge_news(
        &mut self,
        kind: Kind,
        scope: Scope,
        offers: &[Offer],
        world: &World,
        found: &mut Vec<String>,
    ) {
        let mut stale = Vec::new();
        for offer in offers {
            let asked = self.owed.remove(&offer.name) | self.seen.insert(offer.name.clone());
            let excused = self.excused.remove(&offer.name);
            if !asked && world.holds(kind, offer) && !excused && !self.crossed.remove(&offer.name) {
                stale.push(offer.name.as_str());
            }
        }
        match scope {
            Scope::Delta => {
                found.extend(stale.iter().map(|name| format!("{name} came again without a change")));
            }
            Scope::Sotw => {
                let held = world.held(kind).map_or(0, |held| held.len());
                let removes = kind.is_wildcard() && held != offers.len();
                let no_news = stale.len() == offers.len() && !removes;
                if no_news && !self.unanswered && !std::mem::take(&mut self.excused_once) {
                    found.push(format!("a response that changes nothing: [{}]", stale.join(", ")));
                }
                self.unanswered &= !self.owed.is_empty();
            }
        }
    }
}
