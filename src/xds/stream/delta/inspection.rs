//! Looks at the state of an incremental stream from outside.
//!
//! Pure: no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{DeltaStream, Held, Need, Sent, TypeState};
use crate::snapshot::{Kind, ResourceSet, Snapshot};
use crate::xds::stream::holdings::{self, Account};
use crate::xds::stream::{Finding, Holding, Protocol as _, UnderWay};

impl DeltaStream {
    pub(super) fn all_holdings(&self, snapshot: &Snapshot) -> Vec<Holding> {
        let asked = Kind::ALL.into_iter().zip(&self.types).filter(|(_, state)| state.subscription.asked);
        asked.flat_map(|(kind, state)| holdings::of(kind, self.set_of(kind, snapshot), state)).collect()
    }

    pub(super) fn full_look(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (kind, state) in Kind::ALL.into_iter().zip(&mut self.types) {
            let overlooked = state.overlooked(snapshot.set_for(self.door, self.rendering, kind));
            state.open.extend(overlooked.iter().cloned());
            findings.extend(overlooked.into_iter().map(|name| Finding { kind, name }));
        }
        findings
    }
}

impl TypeState {
    /// Names that are not open, though something is to be said of them.
    fn overlooked(&self, set: &ResourceSet) -> BTreeSet<Arc<str>> {
        if !self.subscription.asked || self.seen != Some(set.state()) {
            return BTreeSet::new(); // it is about to look
        }
        let all = set.resources.keys().chain(&self.subscription.names).chain(self.held.keys());
        let closed = all.filter(|name| !self.open.contains(*name));
        closed.filter(|name| self.need(set, name) != Need::Nothing).cloned().collect()
    }
}

impl Account for TypeState {
    fn names(&self) -> BTreeSet<&Arc<str>> {
        self.held.keys().chain(&self.subscription.names).chain(&self.busy).collect()
    }

    fn wants(&self, name: &str) -> bool {
        self.subscription.wants(name)
    }

    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool {
        Self::is_spared(self, set, name)
    }

    fn held(&self, name: &str) -> Option<Arc<str>> {
        let is_of = |sent: &&Sent| sent.resources.iter().any(|r| *r.name == *name);
        match self.in_flight.iter().find(is_of) {
            Some(sent) => sent.before.clone(),
            None => self.held.get(name)?.version().cloned(),
        }
    }

    fn sent(&self, name: &str) -> Option<UnderWay> {
        self.in_flight.iter().rev().find_map(|sent| {
            let resource = sent.resources.iter().find(|r| *r.name == *name);
            let removal = || sent.removed.iter().any(|n| **n == *name).then_some(UnderWay::Removal);
            resource.map(|r| UnderWay::Version(r.version.clone())).or_else(removal)
        })
    }

    fn refused(&self, name: &str, truth: Option<&Arc<str>>) -> Option<Arc<str>> {
        let stands = matches!(self.held.get(name), Some(Held::Refused(_)));
        let parked = truth.filter(|version| self.parked.contains(name, version));
        parked.or_else(|| self.parked.latest(name).filter(|_| stands)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Door;
    use crate::testing::world::{Pool, Worlds};
    use crate::xds::wire::DeltaRequest;

    #[test]
    fn a_name_that_was_overlooked_is_found_and_sent() {
        let snapshot = Worlds::default().publish(&[("c", (Pool::Decided(Vec::new()), false))].into());
        let mut stream = DeltaStream::new(Door::Aggregated);
        let type_url = Kind::Cluster.type_url().to_owned();
        stream.on_request(&DeltaRequest { type_url, ..Default::default() }).unwrap();
        let [clusters, ..] = &mut stream.types;
        clusters.look_at(snapshot.set(Kind::Cluster));
        clusters.open.clear();
        clusters.owes_answer = false;
        assert_eq!(stream.next(&snapshot), None, "its account says that all is well");
        let finding = Finding { kind: Kind::Cluster, name: "c".into() };
        assert_eq!(stream.audit(&snapshot), [finding]);
        assert_eq!(stream.next(&snapshot).unwrap().resources.len(), 1);
        assert_eq!(stream.audit(&snapshot), []);
    }
}
