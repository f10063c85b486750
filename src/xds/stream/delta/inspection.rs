//! Looks at the state of an incremental stream from outside.
//!
//! Pure: no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{DeltaStream, Held, Need, Sent, TypeState};
use crate::snapshot::{Kind, Resource, ResourceSet, Snapshot};
use crate::xds::stream::holdings::{self, Account};
use crate::xds::stream::{Finding, Holding, Protocol as _, Said};

impl DeltaStream {
    pub(super) fn all_holdings(&self, snapshot: &Snapshot) -> Vec<Holding> {
        let asked = Kind::ALL.into_iter().zip(&self.types.0).filter(|(_, state)| state.subscription.asked);
        let of = |(kind, state)| holdings::of(kind, self.set_of(kind, snapshot), &Typed::new(state));
        asked.flat_map(of).collect()
    }

    pub(super) fn full_look(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        let mut findings = Vec::new();
        let without_reason = self.orphans_without_reason();
        for (kind, state) in Kind::ALL.into_iter().zip(&mut self.types.0) {
            let mut found = state.busy_without_reason();
            state.busy.retain(|name| !found.contains(name));
            if kind == Kind::Endpoints {
                state.orphans.retain(|name| !without_reason.contains(name));
                found.extend(without_reason.iter().cloned());
            }
            found.extend(state.overlooked(snapshot.set_for(self.door, self.rendering, kind)));
            state.open.extend(found.iter().cloned());
            findings.extend(found.into_iter().map(|name| Finding { kind, name }));
        }
        findings
    }

    /// Endpoints that wait for a cluster, though the client has it.
    fn orphans_without_reason(&self) -> BTreeSet<Arc<str>> {
        let [clusters, endpoints, ..] = &self.types.0;
        let has = |name: &&Arc<str>| clusters.held.get(*name).is_some_and(|held| held.version().is_some());
        endpoints.orphans.iter().filter(has).cloned().collect()
    }
}

impl TypeState {
    /// Names that wait for an answer, though no response with them is under way.
    fn busy_without_reason(&self) -> BTreeSet<Arc<str>> {
        let under_way = Typed::new(self).under_way;
        self.busy.iter().filter(|name| !under_way.contains_key(&***name)).cloned().collect()
    }

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

/// What a response without an answer says of one name, and which version the client had before.
struct UnderWay<'a> {
    said: Said,
    before: Option<&'a Arc<str>>,
}

/// The state of a type, and what is under way of each name: there may be a response for each.
struct Typed<'a> {
    state: &'a TypeState,
    under_way: BTreeMap<&'a str, UnderWay<'a>>,
}

impl<'a> Typed<'a> {
    fn new(state: &'a TypeState) -> Self {
        let mut under_way = BTreeMap::new();
        for Sent { resources, removed, before, given_up, .. } in &state.in_flight {
            for Resource { name, version, .. } in resources.iter().map(|resource| &**resource) {
                let said = Said::Version(version.clone());
                under_way.insert(&**name, UnderWay { said, before: before.as_ref() });
            }
            for (name, version) in removed.iter().zip(given_up) {
                under_way.insert(&**name, UnderWay { said: Said::Removal, before: version.as_ref() });
            }
        }
        Self { state, under_way }
    }
}

impl Account for Typed<'_> {
    fn names(&self) -> BTreeSet<&Arc<str>> {
        let TypeState { held, subscription, busy, .. } = self.state;
        held.keys().chain(&subscription.names).chain(busy).collect()
    }

    fn wants(&self, name: &str) -> bool {
        self.state.subscription.wants(name)
    }

    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool {
        self.state.is_spared(set, name)
    }

    fn held(&self, name: &str) -> Option<Arc<str>> {
        match self.under_way.get(name) {
            Some(under_way) => under_way.before.cloned(),
            None => self.state.held.get(name)?.version().cloned(),
        }
    }

    fn sent(&self, name: &str) -> Option<Said> {
        self.under_way.get(name).map(|under_way| under_way.said.clone())
    }

    fn refused(&self, name: &str, truth: Option<&Arc<str>>) -> Option<Said> {
        let TypeState { held, parked, .. } = self.state;
        let held = held.get(name);
        let stands = matches!(held, Some(Held::Refused(_)));
        let parked_truth = truth.filter(|version| parked.contains(name, version));
        let version = parked_truth.or_else(|| parked.latest(name).filter(|_| stands));
        let removal = matches!(held, Some(Held::Kept(_))).then_some(Said::Removal);
        version.cloned().map(Said::Version).or(removal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Door;
    use crate::testing::world::{Pool, Worlds};
    use crate::xds::wire::DeltaRequest;

    /// A stream that holds cluster `c`, and of whose endpoints nothing has been said yet.
    fn stream(snapshot: &Snapshot) -> DeltaStream {
        let mut stream = DeltaStream::new(Door::Aggregated);
        let request =
            |kind: Kind| DeltaRequest { type_url: kind.type_url().to_owned(), ..Default::default() };
        stream.on_request(&request(Kind::Cluster)).unwrap();
        let nonce = stream.next(snapshot).unwrap().nonce;
        stream.on_request(&DeltaRequest { response_nonce: nonce, ..request(Kind::Cluster) }).unwrap();
        let names = vec!["c".to_owned()];
        let endpoints = DeltaRequest { resource_names_subscribe: names, ..request(Kind::Endpoints) };
        stream.on_request(&endpoints).unwrap();
        let [_, endpoints, ..] = &mut stream.types.0;
        endpoints.owes_answer = false;
        endpoints.look_at(snapshot.set(Kind::Endpoints));
        assert!(stream.audit(snapshot).is_empty());
        stream
    }

    #[test]
    fn whatever_in_its_account_leaves_a_name_out_is_found_and_the_name_sent() {
        let snapshot = Worlds::default().publish(&[("c", (Pool::Decided(Vec::new()), false))].into());
        let faults: [fn(&mut TypeState); 3] = [
            |endpoints| endpoints.open.clear(),
            |endpoints| endpoints.busy.extend(std::mem::take(&mut endpoints.open)),
            |endpoints| endpoints.orphans.extend(std::mem::take(&mut endpoints.open)),
        ];
        for fault in faults {
            let mut stream = stream(&snapshot);
            let [_, endpoints, ..] = &mut stream.types.0;
            fault(endpoints);
            assert_eq!(stream.next(&snapshot), None, "its account says that all is well");
            let finding = Finding { kind: Kind::Endpoints, name: "c".into() };
            assert_eq!(stream.audit(&snapshot), [finding]);
            assert_eq!(stream.next(&snapshot).unwrap().resources.len(), 1);
            assert_eq!(stream.audit(&snapshot), []);
        }
    }
}
