//! What one stream keeps from its client for a while, since earlier streams of the node ended over it.
//!
//! [`strikes`](super::strikes) decides what and for how long; this is its place in a stream, and what all streams
//! remember.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dashmap::DashMap;
use tokio::time::Sleep;

use super::stream::{Suspect, Verdict, WHOLE_SET};
use super::strikes::{HeldBack, Strikes};
use crate::clock::Clock;
use crate::model::MonoTime;
use crate::snapshot::Kind;

/// Nodes remembered. If more have ended their streams, they have a fault in common that no memory cures.
const MAX_NODES: usize = 10_000;

/// What is remembered, by node id. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Record(Arc<DashMap<Arc<str>, Strikes>>);

impl Record {
    /// A stream of `node` ended over `suspect`; returns how many in a row did.
    pub(super) fn strike(&self, node: &Arc<str>, suspect: Suspect, now: MonoTime) -> u32 {
        if self.0.len() >= MAX_NODES {
            self.0.retain(|_, strikes| !strikes.is_over(now));
        }
        if self.0.len() >= MAX_NODES && !self.0.contains_key(node) {
            return 1;
        }
        self.0.entry(node.clone()).or_default().strike(suspect, now)
    }

    /// What is kept from `node`; `None` if nothing is remembered of it, as of nearly all.
    fn held_back(&self, node: &str, now: MonoTime) -> Option<Vec<HeldBack>> {
        Some(self.0.get(node)?.held_back(now))
    }

    /// `node` has taken something of these names.
    fn clear<'a>(&self, node: &str, kind: Kind, names: impl Iterator<Item = &'a str>, now: MonoTime) {
        if let Some(mut strikes) = self.0.get_mut(node) {
            names.for_each(|name| strikes.clear(kind, name));
        }
        self.0.remove_if(node, |_, strikes| strikes.is_over(now));
    }
}

/// A stream of a node of which something is remembered.
#[derive(Debug)]
pub(super) struct Probation {
    record: Record,
    node: Arc<str>,
    held: Vec<HeldBack>,
    /// Until the first of them may be sent.
    timer: Pin<Box<Sleep>>,
}

impl Probation {
    /// `None` for a node of which nothing is remembered, as nearly all are.
    pub(super) fn of(record: &Record, node: &Arc<str>, clock: Clock) -> Option<Box<Self>> {
        let now = clock.now();
        let held = record.held_back(node, now)?;
        let timer = Box::pin(tokio::time::sleep_until(clock.instant(first(&held).unwrap_or(now))));
        Some(Box::new(Self { record: record.clone(), node: node.clone(), held, timer }))
    }

    /// What is kept from the client.
    pub(super) fn held(&self) -> &[HeldBack] {
        &self.held
    }

    /// Those whose time is over.
    pub(super) fn poll(&mut self, clock: Clock, cx: &mut Context<'_>) -> Vec<HeldBack> {
        let mut over = Vec::new();
        while !self.held.is_empty() && self.timer.as_mut().poll(cx) == Poll::Ready(()) {
            let now = clock.now();
            over.extend(self.held.extract_if(.., |held| held.until <= now));
            if let Some(next) = first(&self.held) {
                self.timer.as_mut().reset(clock.instant(next));
            }
        }
        over
    }

    /// What the client has taken counts no longer.
    pub(super) fn hear(&self, verdict: &Verdict, now: MonoTime) {
        let Verdict::Acked(kind, resources, _) = verdict else { return };
        let names = resources.iter().map(|r| &*r.name).chain([WHOLE_SET]);
        self.record.clear(&self.node, *kind, names, now);
    }
}

fn first(held: &[HeldBack]) -> Option<MonoTime> {
    held.iter().map(|held| held.until).min()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn suspect(name: &str) -> Suspect {
        Suspect { kind: Kind::Endpoints, name: name.into(), version: "1".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_is_let_go_when_its_own_time_is_over() {
        let (clock, record, node) = (Clock::start(), Record::default(), Arc::from("n"));
        assert!(Probation::of(&record, &node, clock).is_none());
        for name in ["x", "x", "y", "y", "y"] {
            record.strike(&node, suspect(name), clock.now());
        }
        let mut probation = Probation::of(&record, &node, clock).unwrap();
        for (name, ms) in [("x", 1000), ("y", 2000)] {
            let over = std::future::poll_fn(|cx| match probation.poll(clock, cx) {
                over if over.is_empty() => Poll::Pending,
                over => Poll::Ready(over),
            });
            let over = over.await;
            assert_eq!(over.iter().map(|held| &held.suspect).collect::<Vec<_>>(), [&suspect(name)]);
            assert!(clock.now() >= MonoTime::from_millis(ms));
        }
        assert!(probation.held().is_empty());
        // Nothing is kept from it now, but one more time and it would be.
        assert!(Probation::of(&record, &node, clock).is_some_and(|probation| probation.held().is_empty()));
    }

    #[test]
    fn no_number_of_nodes_fills_the_memory() {
        let record = Record::default();
        let now = MonoTime::ZERO;
        for n in 0..MAX_NODES + 10 {
            record.strike(&n.to_string().into(), suspect("x"), now);
        }
        assert_eq!(record.0.len(), MAX_NODES);
        record.strike(&"late".into(), suspect("x"), now + Duration::from_secs(3600));
        assert_eq!(record.0.len(), 1);
        record.clear("late", Kind::Endpoints, ["x"].into_iter(), now);
        assert_eq!(record.0.len(), 0);
    }
}
