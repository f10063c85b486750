//! The incremental variant.
//!
//! Pure: no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::parked::Parked;
use super::subscription::{Subscription, check};
use super::{Nonces, Refusal, Response, Verdict, nack_text};
use crate::snapshot::{Door, Kind, Rendering, Resource, ResourceSet, Snapshot};
use crate::xds::wire::DeltaRequest;

/// What the client holds of one name, as far as we know.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Held {
    Version(Arc<str>),
    /// It has been told that there is none.
    Nothing,
}

/// A response that has not been acknowledged.
#[derive(Debug)]
struct Sent {
    resources: Vec<Arc<Resource>>,
    removed: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct TypeState {
    subscription: Subscription,
    /// The first request of a stream is always answered, be it with nothing.
    owes_answer: bool,
    held: BTreeMap<Arc<str>, Held>,
    /// What the client said it holds from an earlier stream, until it is sent on this one.
    claimed: BTreeSet<Arc<str>>,
    in_flight: BTreeMap<String, Sent>,
    /// Names in `in_flight`.
    busy: BTreeSet<Arc<str>>,
    parked: Parked,
    /// The set that was last found to need nothing. `None` after anything that may change that.
    quiet_for: Option<Arc<ResourceSet>>,
}

/// What one type needs to be sent.
#[derive(Debug, Default)]
struct Due {
    resources: Vec<Arc<Resource>>,
    removed: Vec<Arc<str>>,
    /// A subscribed name of which nothing can be said yet.
    withheld: bool,
}

/// The protocol state of one incremental stream.
#[derive(Debug)]
pub struct DeltaStream {
    door: Door,
    rendering: Rendering,
    types: [TypeState; 4],
    nonces: Nonces,
    /// Clusters taken away on this stream and not given again: their endpoints would come before them.
    gone: BTreeSet<Arc<str>>,
}

impl DeltaStream {
    /// A stream that came in by `door`.
    pub fn new(door: Door) -> Self {
        Self {
            door,
            rendering: Rendering::default(),
            types: Default::default(),
            nonces: Nonces::default(),
            gone: BTreeSet::new(),
        }
    }

    /// The client is of this kind: said once, before its first request.
    pub fn render(&mut self, rendering: Rendering) {
        self.rendering = rendering;
    }

    /// The resources of `kind` that this client is given.
    pub fn set_of<'a>(&self, kind: Kind, snapshot: &'a Snapshot) -> &'a ResourceSet {
        snapshot.set_for(self.door, self.rendering, kind)
    }

    fn state(&mut self, kind: Kind) -> &mut TypeState {
        let [clusters, endpoints, listeners, routes] = &mut self.types;
        match kind {
            Kind::Cluster => clusters,
            Kind::Endpoints => endpoints,
            Kind::Listener => listeners,
            Kind::Route => routes,
        }
    }

    /// Takes a request. A type that is not served is ignored: Envoys ask for more than they need.
    pub fn on_request(&mut self, request: &DeltaRequest) -> Result<Verdict, Refusal> {
        let kind = Kind::from_type_url(&request.type_url).filter(|kind| self.door.kinds().contains(kind));
        let Some(kind) = kind else { return Ok(Verdict::None) };
        let state = self.state(kind);
        let verdict = state.settle(kind, request);
        state.subscribe(kind, request)?;
        state.quiet_for = None;
        if kind == Kind::Cluster {
            self.forget_given_up();
        }
        Ok(verdict)
    }

    /// Endpoints do not wait for a cluster that the client no longer asks for.
    fn forget_given_up(&mut self) {
        let [clusters, endpoints, ..] = &mut self.types;
        let before = self.gone.len();
        self.gone.retain(|name| clusters.subscription.wants(name));
        if self.gone.len() < before {
            endpoints.quiet_for = None;
        }
    }

    /// The clusters whose endpoints the client asks for by name.
    pub fn endpoints_asked_for(&self) -> &BTreeSet<Arc<str>> {
        let [_, endpoints, ..] = &self.types;
        &endpoints.subscription.names
    }

    /// True if the client has acknowledged the endpoints of cluster `name` as `resource` says them.
    pub fn has_settled(&self, name: &str, resource: &Resource) -> bool {
        let [_, state, ..] = &self.types;
        matches!(state.held.get(name), Some(Held::Version(v)) if *v == resource.version)
            && !state.busy.contains(name)
    }

    /// The next response that `snapshot` calls for, if any.
    pub fn next(&mut self, snapshot: &Snapshot) -> Option<Response> {
        let kinds = self.door.kinds();
        kinds.iter().find_map(|kind| self.updates(*kind, snapshot)).or_else(|| {
            let order = [Kind::Listener, Kind::Route, Kind::Endpoints, Kind::Cluster];
            order
                .into_iter()
                .filter(|kind| kinds.contains(kind))
                .find_map(|kind| self.removals(kind, snapshot))
        })
    }

    /// New and changed resources of one type.
    fn updates(&mut self, kind: Kind, snapshot: &Snapshot) -> Option<Response> {
        let set = snapshot.set_for(self.door, self.rendering, kind);
        let unsettled = kind.refers_to_clusters() && !self.state(Kind::Cluster).in_flight.is_empty();
        if unsettled && !(self.state(kind).owes_answer && self.has_sent_all_clusters(snapshot)) {
            return None; // the clusters they lead to may not be there yet: Envoy acknowledges them when they are warm
        }
        let state = self.state(kind);
        if !state.subscription.asked || state.is_quiet(set) {
            return None;
        }
        let mut due = state.due(set);
        if kind == Kind::Endpoints {
            due.resources.retain(|endpoints| !self.gone.contains(&endpoints.name));
        }
        due.resources.truncate(1); // one resource per message: a refusal, which names none, isolates itself
        // A listener may take over the address of one that goes: Envoy removes first within a message.
        let together = kind == Kind::Listener && !due.resources.is_empty();
        let removed = if together { std::mem::take(&mut due.removed) } else { Vec::new() };
        let state = self.state(kind);
        // A client that comes back asks for all types at once, but they are read one by one: it gets an answer about
        // clusters before any is taken away, and its ACK comes after the rest of the questions.
        let nothing_else = due.removed.is_empty() || kind == Kind::Cluster;
        let answer = state.owes_answer && nothing_else && !due.withheld && state.in_flight.is_empty();
        if due.resources.is_empty() && !answer {
            if due.removed.is_empty() {
                state.quiet_for = Some(set.clone());
            }
            return None;
        }
        if kind == Kind::Cluster {
            self.resend_endpoints(&due.resources);
        }
        Some(self.send(kind, due.resources, removed, set))
    }

    /// True if no cluster is left that the client wants and has not been sent: a first question is answered then,
    /// warm or not.
    fn has_sent_all_clusters(&self, snapshot: &Snapshot) -> bool {
        let [clusters, ..] = &self.types;
        let sent = |name: &Arc<str>| matches!(clusters.held.get(name), Some(Held::Version(_)));
        let mut all = self.set_of(Kind::Cluster, snapshot).resources.keys();
        all.all(|name| sent(name) || !clusters.subscription.wants(name))
    }

    /// Envoy waits for a changed cluster's endpoints without asking for them: they follow although they are the same.
    fn resend_endpoints(&mut self, clusters: &[Arc<Resource>]) {
        let endpoints = self.state(Kind::Endpoints);
        for cluster in clusters {
            endpoints.held.remove(&cluster.name);
        }
        endpoints.quiet_for = None;
    }

    /// Resources of one type that are gone. Clusters and routes go only when no other type that may refer to them
    /// has anything under way, or held back by [`Self::updates`], or may not have been heard of yet.
    fn removals(&mut self, kind: Kind, snapshot: &Snapshot) -> Option<Response> {
        let referring: &[Kind] = match kind {
            Kind::Cluster => &[Kind::Listener, Kind::Route],
            Kind::Route => &[Kind::Listener],
            Kind::Endpoints | Kind::Listener => &[],
        };
        let of_clusters = kind == Kind::Cluster;
        let unsettled = !self.state(Kind::Cluster).in_flight.is_empty();
        let referred_to = referring.iter().any(|kind| {
            let state = self.state(*kind);
            !state.in_flight.is_empty() || unsettled && (of_clusters || state.subscription.asked)
        });
        let set = snapshot.set_for(self.door, self.rendering, kind);
        let state = self.state(kind);
        if referred_to || !state.subscription.asked || state.is_quiet(set) {
            return None;
        }
        let due = state.due(set);
        if due.removed.is_empty() {
            return None;
        }
        Some(self.send(kind, Vec::new(), due.removed, set))
    }

    fn send(
        &mut self,
        kind: Kind,
        resources: Vec<Arc<Resource>>,
        removed: Vec<Arc<str>>,
        set: &ResourceSet,
    ) -> Response {
        let nonce = self.nonces.next();
        if kind == Kind::Cluster {
            self.gone.extend(removed.iter().cloned());
            self.gone.retain(|name| !resources.iter().any(|cluster| cluster.name == *name));
        }
        let state = self.state(kind);
        state.owes_answer = false;
        state.quiet_for = None;
        for resource in &resources {
            state.held.insert(resource.name.clone(), Held::Version(resource.version.clone()));
            state.busy.insert(resource.name.clone());
            state.claimed.remove(&resource.name);
        }
        for name in &removed {
            state.claimed.remove(name);
            // Remember it only where the client still asks for the name; a wildcard has no memory of it.
            if state.subscription.names.contains(name) {
                state.held.insert(name.clone(), Held::Nothing);
            } else {
                state.held.remove(name);
            }
            state.busy.insert(name.clone());
        }
        let sent = Sent { resources: resources.clone(), removed: removed.clone() };
        state.in_flight.insert(nonce.clone(), sent);
        let version = ResourceSet::version_of(set.resources.values()).to_string();
        Response { kind, delta: true, nonce, version, resources, removed }
    }
}

impl TypeState {
    fn is_quiet(&self, set: &Arc<ResourceSet>) -> bool {
        self.quiet_for.as_ref().is_some_and(|quiet| Arc::ptr_eq(quiet, set))
    }

    /// Takes the ACK or NACK in a request. An unknown nonce settles nothing.
    fn settle(&mut self, kind: Kind, request: &DeltaRequest) -> Verdict {
        let Some(sent) = self.in_flight.remove(&request.response_nonce) else { return Verdict::None };
        for name in sent.resources.iter().map(|r| &r.name).chain(&sent.removed) {
            self.busy.remove(name);
        }
        let Some(error) = &request.error_detail else {
            return Verdict::Acked(kind, sent.resources);
        };
        for resource in &sent.resources {
            // What the client holds now is unknown: Envoy may have taken a part of the message.
            self.held.remove(&resource.name);
            self.parked.insert(resource.name.clone(), resource.version.clone());
        }
        Verdict::Nacked(kind, sent.resources, nack_text(&error.message))
    }

    fn subscribe(&mut self, kind: Kind, request: &DeltaRequest) -> Result<(), Refusal> {
        let first = !self.subscription.asked;
        let (add, drop) = (&request.resource_names_subscribe, &request.resource_names_unsubscribe);
        let dropped = self.subscription.change(kind, add, drop)?;
        if first {
            self.owes_answer = true;
            check(kind, request.initial_resource_versions.len())?;
            for (name, version) in &request.initial_resource_versions {
                self.held.insert(name.as_str().into(), Held::Version(version.as_str().into()));
                self.claimed.insert(name.as_str().into());
            }
        } else {
            for name in add {
                self.held.remove(name.as_str()); // asked for again: the client has dropped it
            }
        }
        for name in dropped {
            if !self.subscription.wildcard {
                self.held.remove(&name);
                self.claimed.remove(&name);
            }
        }
        if !self.subscription.wildcard {
            let subscription = &self.subscription;
            self.held.retain(|name, _| subscription.wants(name));
        }
        Ok(())
    }

    /// Compares what the client holds with what it wants and there is.
    fn due(&self, set: &ResourceSet) -> Due {
        let mut due = Due::default();
        let wildcard = self.subscription.wildcard;
        let all = wildcard.then_some(set.resources.values()).into_iter().flatten();
        let named = (!wildcard).then_some(&self.subscription.names).into_iter().flatten();
        let named = named.filter_map(|name| set.resources.get(name));
        due.resources
            .extend(all.chain(named).filter(|r| self.needs(r) && !self.is_spared(set, &r.name)).cloned());
        for name in &self.subscription.names {
            if set.withheld.contains(name) || self.is_spared(set, name) {
                due.withheld = true;
            } else if !set.resources.contains_key(name)
                && self.held.get(name) != Some(&Held::Nothing)
                && !self.busy.contains(name)
            {
                due.removed.push(name.clone());
            }
        }
        for (name, held) in &self.held {
            let gone = !set.resources.contains_key(name) && !set.withheld.contains(name);
            let told = *held == Held::Nothing || self.busy.contains(name);
            if gone && !told && !self.subscription.names.contains(name) {
                due.removed.push(name.clone());
            }
        }
        due
    }

    /// True if the client holds something from before, and what there is now rests on nothing better.
    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool {
        set.provisional.contains(name) && self.claimed.contains(name)
    }

    fn needs(&self, resource: &Resource) -> bool {
        let name = &resource.name;
        let held = matches!(self.held.get(name), Some(Held::Version(v)) if *v == resource.version);
        let parked = self.parked.contains(name, &resource.version);
        !held && !parked && !self.busy.contains(name)
    }
}
