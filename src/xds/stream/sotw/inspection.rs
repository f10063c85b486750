//! Looks at the state of a state-of-the-world stream from outside.
//!
//! Pure: no I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Sent, SotwStream, TypeState};
use crate::snapshot::{Kind, ResourceSet, Snapshot};
use crate::xds::stream::holdings::{self, Account};
use crate::xds::stream::{Finding, Holding, Protocol as _, Said, WHOLE_SET};

impl SotwStream {
    pub(super) fn all_holdings(&self, snapshot: &Snapshot) -> Vec<Holding> {
        let asked = Kind::ALL.into_iter().zip(&self.types.0).filter(|(_, state)| state.subscription.asked);
        let of = |(kind, state): (Kind, &TypeState)| {
            let set = self.set_of(kind, snapshot);
            let list_is_parked = kind.has_wildcard() && state.has_parked(&state.whole(set, false));
            holdings::of(kind, set, &Typed { kind, state, list_is_parked })
        };
        asked.flat_map(of).collect()
    }

    pub(super) fn full_look(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        let mut findings = Vec::new();
        // Endpoints that wait for a cluster, though the client has it.
        let [clusters, endpoints, ..] = &mut self.types.0;
        self.gone.retain(|name| {
            let has = clusters.held.contains_key(name);
            if has {
                findings.push(Finding { kind: Kind::Endpoints, name: name.clone() });
                endpoints.quiet_for = None;
            }
            !has
        });
        for kind in Kind::ALL {
            let set = snapshot.set_for(self.door, self.rendering, kind);
            let is_quiet = self.state(kind).quiet_for.as_ref().is_some_and(|quiet| Arc::ptr_eq(quiet, set));
            let due = if is_quiet { self.due(kind, set, false) } else { None };
            if let Some(due) = due {
                let first = due.first().filter(|_| !kind.has_wildcard());
                let name = first.map_or_else(|| WHOLE_SET.into(), |resource| resource.name.clone());
                findings.push(Finding { kind, name });
                self.state(kind).quiet_for = None;
            }
        }
        findings
    }
}

/// The state of a type, and which it is.
struct Typed<'a> {
    kind: Kind,
    state: &'a TypeState,
    /// The list that there is has been refused.
    list_is_parked: bool,
}

impl Typed<'_> {
    /// True if the answer to `sent` decides over `name`.
    fn concerns(&self, sent: &Sent, name: &str) -> bool {
        self.kind.has_wildcard() || sent.resource(name).is_some()
    }
}

impl Account for Typed<'_> {
    fn names(&self) -> BTreeSet<&Arc<str>> {
        let TypeState { held, kept, claimed, subscription, .. } = self.state;
        let before = self.state.under_way().flat_map(|sent| sent.before.keys());
        held.keys().chain(kept.keys()).chain(claimed).chain(&subscription.names).chain(before).collect()
    }

    fn wants(&self, name: &str) -> bool {
        self.state.subscription.wants(name)
    }

    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool {
        self.state.is_spared(set, name)
    }

    fn held(&self, name: &str) -> Option<Arc<str>> {
        let TypeState { held, kept, .. } = self.state;
        let resource = match self.state.under_way().find(|sent| self.concerns(sent, name)) {
            Some(sent) => sent.before.get(name),
            None => held.get(name).or_else(|| kept.get(name)),
        };
        resource.map(|resource| resource.version.clone())
    }

    fn sent(&self, name: &str) -> Option<Said> {
        let sent = self.state.under_way().filter(|sent| self.concerns(sent, name)).last()?;
        let is_removed = || self.kind.has_wildcard() && sent.before.contains_key(name);
        let removal = || is_removed().then_some(Said::Removal);
        match sent.resource(name) {
            Some(resource) if self.held(name).as_ref() == Some(&resource.version) => None, // listed along
            Some(resource) => Some(Said::Version(resource.version.clone())),
            None => removal(),
        }
    }

    fn refused(&self, name: &str, truth: Option<&Arc<str>>) -> Option<Said> {
        let TypeState { parked, kept, .. } = self.state;
        if self.kind.has_wildcard() {
            // Of a list that was refused, whatever is other than before.
            let is_other = self.held(name).as_ref() != truth && self.sent(name).is_none();
            return (self.list_is_parked && is_other)
                .then(|| truth.cloned().map_or(Said::Removal, Said::Version));
        }
        let parked_truth = truth.filter(|version| parked.contains(name, version));
        let version = parked_truth.or_else(|| parked.latest(name).filter(|_| kept.contains_key(name)));
        version.cloned().map(Said::Version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Door;
    use crate::testing::world::{Pool, Worlds};
    use crate::xds::wire::SotwRequest;

    #[test]
    fn endpoints_that_wait_for_a_cluster_that_the_client_has_are_found_and_sent() {
        let snapshot = Worlds::default().publish(&[("c", (Pool::Decided(Vec::new()), false))].into());
        let mut stream = SotwStream::new(Door::Aggregated);
        for (kind, names) in [(Kind::Cluster, Vec::new()), (Kind::Endpoints, vec!["c".to_owned()])] {
            let type_url = kind.type_url().to_owned();
            let request = SotwRequest { type_url, resource_names: names, ..Default::default() };
            stream.on_request(&request).unwrap();
        }
        assert_eq!(stream.next(&snapshot).unwrap().kind, Kind::Cluster);
        let [_, endpoints, ..] = &mut stream.types.0;
        endpoints.owes_answer = false;
        stream.gone.insert("c".into());
        assert_eq!(stream.next(&snapshot), None, "its account says that all is well");
        let finding = Finding { kind: Kind::Endpoints, name: "c".into() };
        assert_eq!(stream.audit(&snapshot), [finding]);
        assert_eq!(stream.next(&snapshot).unwrap().kind, Kind::Endpoints);
        assert_eq!(stream.audit(&snapshot), []);
    }

    #[test]
    fn a_set_that_was_overlooked_is_found_and_sent() {
        let snapshot = Worlds::default().publish(&[("c", (Pool::Decided(Vec::new()), false))].into());
        let mut stream = SotwStream::new(Door::Aggregated);
        let type_url = Kind::Cluster.type_url().to_owned();
        stream.on_request(&SotwRequest { type_url, ..Default::default() }).unwrap();
        let [clusters, ..] = &mut stream.types.0;
        clusters.quiet_for = Some(snapshot.set(Kind::Cluster).clone());
        assert_eq!(stream.next(&snapshot), None, "its account says that all is well");
        let finding = Finding { kind: Kind::Cluster, name: WHOLE_SET.into() };
        assert_eq!(stream.audit(&snapshot), [finding]);
        assert_eq!(stream.next(&snapshot).unwrap().resources.len(), 1);
        assert_eq!(stream.audit(&snapshot), []);
    }
}
