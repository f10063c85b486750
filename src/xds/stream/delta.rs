//! The incremental variant.
//!
//! Pure: no I/O.

mod inspection;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::parked::Parked;
use super::subscription::{Subscription, check};
use super::{Finding, Gone, Holding, Nonces, Protocol, Refusal, Response, Suspect, Verdict, nack_text};
use crate::model::ContentHash;
use crate::snapshot::{ByKind, Door, Kind, Rendering, Resource, ResourceSet, Snapshot};
use crate::xds::wire::DeltaRequest;

/// Room kept for responses under way; between bursts there is hardly more than one.
const KEPT: usize = 2;

/// What the client holds of one name, as far as we know.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Held {
    Version(Arc<str>),
    /// It has refused another one; it had this one before, if any.
    Refused(Option<Arc<str>>),
    /// What there is follows, though it be the same: its cluster has changed, or it has been asked for again.
    Due(Option<Arc<str>>),
    /// It has refused to give it up.
    Kept(Option<Arc<str>>),
    /// It has been told that there is none.
    Nothing,
}

impl Held {
    fn version(&self) -> Option<&Arc<str>> {
        match self {
            Self::Version(version) => Some(version),
            Self::Refused(version) | Self::Due(version) | Self::Kept(version) => version.as_ref(),
            Self::Nothing => None,
        }
    }
}

/// A response that has not been acknowledged.
#[derive(Debug)]
struct Sent {
    nonce: String,
    resources: Vec<Arc<Resource>>,
    removed: Vec<Arc<str>>,
    /// The version that the client had of its resource before.
    before: Option<Arc<str>>,
    /// The versions that the client has of `removed`, in that order.
    given_up: Vec<Option<Arc<str>>>,
}

#[derive(Debug, Default)]
struct TypeState {
    subscription: Subscription,
    /// The first request of a stream is always answered, be it with nothing.
    owes_answer: bool,
    held: BTreeMap<Arc<str>, Held>,
    /// What the client said it holds from an earlier stream, until it is sent on this one.
    claimed: BTreeSet<Arc<str>>,
    in_flight: VecDeque<Sent>,
    /// Names in `in_flight`.
    busy: BTreeSet<Arc<str>>,
    parked: Parked,
    /// Endpoints: their cluster has been taken away on this stream and not given again. They would come before it.
    orphans: BTreeSet<Arc<str>>,
    /// Names to look at; all others need nothing. So a flip costs one look, however many names there are.
    open: BTreeSet<Arc<str>>,
    /// The state of the set that `open` takes into account; `None` calls for a look at every name.
    seen: Option<ContentHash>,
}

/// What is to be said of one name.
#[derive(Debug, PartialEq, Eq)]
enum Need<'a> {
    Nothing,
    Resource(&'a Arc<Resource>),
    Removal,
}

/// The protocol state of one incremental stream.
#[derive(Debug)]
pub struct DeltaStream {
    door: Door,
    rendering: Rendering,
    types: ByKind<TypeState>,
    nonces: Nonces,
}

impl Protocol for DeltaStream {
    type Request = DeltaRequest;

    fn node(request: &mut DeltaRequest) -> Bytes {
        std::mem::take(&mut request.node)
    }

    fn nonce(request: &DeltaRequest) -> &str {
        &request.response_nonce
    }

    fn changes_endpoints(request: &DeltaRequest) -> bool {
        let names = [&request.resource_names_subscribe, &request.resource_names_unsubscribe];
        names.iter().any(|names| !names.is_empty()) && request.type_url == Kind::Endpoints.type_url()
    }

    fn render(&mut self, rendering: Rendering) {
        self.rendering = rendering;
    }

    fn on_request(&mut self, request: &DeltaRequest) -> Result<Verdict, Refusal> {
        let kind = Kind::from_type_url(&request.type_url).filter(|kind| self.door.kinds().contains(kind));
        let Some(kind) = kind else { return Ok(Verdict::None) };
        let state = self.state(kind);
        let verdict = state.settle(kind, request);
        state.subscribe(kind, request)?;
        if kind == Kind::Cluster {
            self.forget_given_up();
        }
        Ok(verdict)
    }

    fn next(&mut self, snapshot: &Snapshot) -> Option<Response> {
        let kinds = self.door.kinds();
        kinds.iter().find_map(|kind| self.updates(*kind, snapshot)).or_else(|| {
            let order = [Kind::Listener, Kind::Route, Kind::Endpoints, Kind::Cluster];
            order
                .into_iter()
                .filter(|kind| kinds.contains(kind))
                .find_map(|kind| self.removals(kind, snapshot))
        })
    }

    fn set_of<'a>(&self, kind: Kind, snapshot: &'a Snapshot) -> &'a ResourceSet {
        snapshot.set_for(self.door, self.rendering, kind)
    }

    fn endpoints_asked_for(&self) -> &BTreeSet<Arc<str>> {
        let [_, endpoints, ..] = &self.types.0;
        &endpoints.subscription.names
    }

    fn has_settled(&self, name: &str, resource: &Resource) -> bool {
        let [_, state, ..] = &self.types.0;
        matches!(state.held.get(name), Some(Held::Version(v)) if *v == resource.version)
            && !state.busy.contains(name)
    }

    fn suspect(&self, nonce: &str) -> Option<Suspect> {
        let of = |(kind, state): (Kind, &TypeState)| {
            let sent = state.in_flight.iter().find(|sent| sent.nonce == nonce)?;
            let resource = sent.resources.first()?; // one resource per message
            Some(Suspect { kind, name: resource.name.clone(), version: resource.version.clone() })
        };
        Kind::ALL.into_iter().zip(&self.types.0).find_map(of)
    }

    fn hold_back(&mut self, Suspect { kind, name, version }: &Suspect) {
        self.state(*kind).parked.insert(name.clone(), version.clone());
    }

    fn try_again(&mut self, Suspect { kind, name, version }: &Suspect) {
        let state = self.state(*kind);
        state.parked.remove(name, version);
        state.open.insert(name.clone());
    }

    fn holdings(&self, snapshot: &Snapshot) -> Vec<Holding> {
        self.all_holdings(snapshot)
    }

    fn audit(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        self.full_look(snapshot)
    }
}

impl DeltaStream {
    /// A stream that came in by `door`.
    pub fn new(door: Door) -> Self {
        Self { door, rendering: Rendering::default(), types: ByKind::default(), nonces: Nonces::default() }
    }

    fn state(&mut self, kind: Kind) -> &mut TypeState {
        self.types.of_mut(kind)
    }

    /// Endpoints do not wait for a cluster that the client no longer asks for, or that it has refused to give up.
    fn forget_given_up(&mut self) {
        let [clusters, endpoints, ..] = &mut self.types.0;
        let is_kept = |name: &Arc<str>| matches!(clusters.held.get(name), Some(Held::Kept(_)));
        let open = &mut endpoints.open;
        endpoints.orphans.retain(|name| {
            let waits = clusters.subscription.wants(name) && !is_kept(name);
            if !waits {
                open.insert(name.clone());
            }
            waits
        });
    }

    /// Nor do they wait for one that is there again and that the client has refused: it is not given.
    fn forget_refused(&mut self, set: &ResourceSet) {
        let [clusters, endpoints, ..] = &mut self.types.0;
        let open = &mut endpoints.open;
        endpoints.orphans.retain(|name| {
            let is_parked = |cluster: &Arc<Resource>| clusters.parked.contains(name, &cluster.version);
            let waits = clusters.busy.contains(name) || !set.resources.get(name).is_some_and(is_parked);
            if !waits {
                open.insert(name.clone());
            }
            waits
        });
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
        state.look_at(set);
        if kind == Kind::Cluster {
            self.forget_refused(set);
        }
        let state = self.state(kind);
        // One resource per message: a refusal, which names none, isolates itself.
        let resources: Vec<_> = state.take_first_due(set).into_iter().collect();
        if resources.is_empty() && !state.owes_empty_answer(kind, set) {
            return None;
        }
        // A listener may take over the address of one that goes: Envoy removes first within a message.
        let together = kind == Kind::Listener && !resources.is_empty();
        let removed = if together { state.removals(set) } else { Vec::new() };
        if kind == Kind::Cluster {
            self.resend_endpoints(&resources);
        }
        Some(self.send(kind, resources, removed, set))
    }

    /// True if no cluster is left that the client wants and has not been sent: a first question is answered then,
    /// warm or not.
    fn has_sent_all_clusters(&self, snapshot: &Snapshot) -> bool {
        let [clusters, ..] = &self.types.0;
        let sent = |name: &Arc<str>| matches!(clusters.held.get(name), Some(Held::Version(_)));
        let mut all = self.set_of(Kind::Cluster, snapshot).resources.keys();
        all.all(|name| sent(name) || !clusters.subscription.wants(name))
    }

    /// Envoy waits for a changed cluster's endpoints without asking for them: they follow although they are the same.
    fn resend_endpoints(&mut self, clusters: &[Arc<Resource>]) {
        let endpoints = self.state(Kind::Endpoints);
        for cluster in clusters {
            if let Some(held) = endpoints.held.get_mut(&cluster.name) {
                *held = Held::Due(held.version().cloned());
            }
            endpoints.orphans.remove(&cluster.name);
            endpoints.open.insert(cluster.name.clone());
        }
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
        state.look_at(set);
        let removed = state.removals(set);
        if removed.is_empty() {
            return None;
        }
        if kind == Kind::Cluster {
            self.state(Kind::Endpoints).orphans.extend(removed.iter().cloned());
        }
        Some(self.send(kind, Vec::new(), removed, set))
    }

    fn send(
        &mut self,
        kind: Kind,
        resources: Vec<Arc<Resource>>,
        removed: Vec<Arc<str>>,
        set: &ResourceSet,
    ) -> Response {
        let nonce = self.nonces.next();
        let state = self.state(kind);
        state.owes_answer = false;
        let given_up = removed.iter().map(|name| state.held.get(name)?.version().cloned()).collect();
        let mut before = None;
        for resource in &resources {
            let held = Held::Version(resource.version.clone());
            before = state.held.insert(resource.name.clone(), held).and_then(|held| held.version().cloned());
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
        let sent = Sent {
            nonce: nonce.clone(),
            resources: resources.clone(),
            removed: removed.clone(),
            before,
            given_up,
        };
        state.in_flight.push_back(sent);
        Response { kind, delta: true, nonce, version: set.version().clone(), resources, removed }
    }
}

impl TypeState {
    fn is_quiet(&self, set: &ResourceSet) -> bool {
        self.seen == Some(set.state()) && self.open.is_empty() && !self.owes_answer
    }

    /// Takes the ACK or NACK in a request. An unknown nonce settles nothing.
    fn settle(&mut self, kind: Kind, request: &DeltaRequest) -> Verdict {
        // Clients answer in order: it is the first.
        let sent = self.in_flight.iter().position(|sent| sent.nonce == request.response_nonce);
        let Some(sent) = sent.and_then(|at| self.in_flight.remove(at)) else { return Verdict::None };
        if self.in_flight.is_empty() {
            self.in_flight.shrink_to(KEPT); // a burst leaves nothing behind
        }
        for name in sent.resources.iter().map(|r| &r.name).chain(&sent.removed) {
            self.busy.remove(name);
            self.open.insert(name.clone()); // there may be something newer
        }
        let Some(error) = &request.error_detail else {
            for Resource { name, version, .. } in sent.resources.iter().map(|resource| &**resource) {
                if !self.held.contains_key(name) && self.subscription.wants(name) {
                    self.held.insert(name.clone(), Held::Due(Some(version.clone()))); // asked for again since
                }
            }
            return Verdict::Acked(kind, sent.resources, Gone::Names(sent.removed));
        };
        for resource in &sent.resources {
            self.parked.insert(resource.name.clone(), resource.version.clone());
            if self.subscription.wants(&resource.name) {
                self.held.insert(resource.name.clone(), Held::Refused(sent.before.clone()));
            }
        }
        for (name, version) in sent.removed.iter().zip(sent.given_up) {
            if self.subscription.wants(name) {
                self.held.insert(name.clone(), Held::Kept(version));
            }
        }
        Verdict::Nacked(kind, sent.resources, Gone::Names(sent.removed), nack_text(&error.message))
    }

    fn subscribe(&mut self, kind: Kind, request: &DeltaRequest) -> Result<(), Refusal> {
        let first = !self.subscription.asked;
        let (add, drop) = (&request.resource_names_subscribe, &request.resource_names_unsubscribe);
        if !first && add.is_empty() && drop.is_empty() {
            return Ok(()); // an ACK and no more
        }
        let was_wildcard = self.subscription.wildcard;
        let dropped = self.subscription.change(kind, add, drop)?;
        if first {
            self.owes_answer = true;
            check(kind, request.initial_resource_versions.len())?;
            for (name, version) in &request.initial_resource_versions {
                self.held.insert(name.as_str().into(), Held::Version(version.as_str().into()));
                self.claimed.insert(name.as_str().into());
            }
        } else {
            let anew: BTreeSet<&str> = add.iter().map(String::as_str).collect();
            for name in &anew {
                self.held.remove(*name); // asked for again: the client has dropped it
                self.open.insert((*name).into());
            }
            for Sent { resources, removed, before, given_up, .. } in &mut self.in_flight {
                if resources.iter().any(|resource| anew.contains(&*resource.name)) {
                    *before = None;
                }
                for (name, version) in removed.iter().zip(given_up) {
                    *version = version.take().filter(|_| !anew.contains(&**name));
                }
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
        if self.subscription.wildcard != was_wildcard {
            self.seen = None;
        }
        Ok(())
    }

    /// Opens what has changed since the last look.
    fn look_at(&mut self, set: &ResourceSet) {
        if self.seen == Some(set.state()) {
            return;
        }
        let Self { subscription, held, open, .. } = self;
        if let Some(names) = self.seen.and_then(|seen| set.changed_since(seen)) {
            open.extend(names.filter(|name| subscription.wants(name) || held.contains_key(*name)).cloned());
        } else {
            let all = subscription.wildcard.then_some(set.resources.keys()).into_iter().flatten();
            open.extend(all.chain(&subscription.names).chain(held.keys()).cloned());
        }
        self.seen = Some(set.state());
    }

    /// The first resource that is to be sent. Open names before it that need nothing are closed, and so is its own: it
    /// is opened again when the client has answered.
    fn take_first_due(&mut self, set: &ResourceSet) -> Option<Arc<Resource>> {
        let mut removals = Vec::new();
        let mut due = None;
        while let Some(name) = self.open.pop_first() {
            match self.need(set, &name) {
                Need::Nothing => {}
                Need::Removal => removals.push(name),
                Need::Resource(resource) => {
                    due = Some(resource.clone());
                    break;
                }
            }
        }
        self.open.extend(removals);
        due
    }

    /// Open names that the client is to be told are gone.
    fn removals(&self, set: &ResourceSet) -> Vec<Arc<str>> {
        self.open.iter().filter(|name| self.need(set, name) == Need::Removal).cloned().collect()
    }

    /// True if the client waits for a first answer, and nothing that there is or will be gives it one.
    ///
    /// A client that comes back asks for all types at once, but they are read one by one: it gets an answer about
    /// clusters before any is taken away, and its ACK comes after the rest of the questions.
    fn owes_empty_answer(&self, kind: Kind, set: &ResourceSet) -> bool {
        let waits = |name: &Arc<str>| set.withheld.contains(name) || self.is_spared(set, name);
        self.owes_answer
            && self.in_flight.is_empty()
            && (kind == Kind::Cluster || self.removals(set).is_empty())
            && !self.subscription.names.iter().any(waits)
    }

    /// Compares what the client holds of `name` with what it wants and there is.
    fn need<'a>(&self, set: &'a ResourceSet, name: &Arc<str>) -> Need<'a> {
        if self.busy.contains(name) {
            return Need::Nothing;
        }
        if let Some(resource) = set.resources.get(name) {
            let held = matches!(self.held.get(name), Some(Held::Version(v)) if *v == resource.version);
            let due = !held
                && self.subscription.wants(name)
                && !self.parked.contains(name, &resource.version)
                && !self.orphans.contains(name)
                && !self.is_spared(set, name);
            return if due { Need::Resource(resource) } else { Need::Nothing };
        }
        match self.held.get(name) {
            _ if set.withheld.contains(name) => Need::Nothing,
            Some(Held::Nothing | Held::Kept(_)) => Need::Nothing,
            Some(Held::Version(_) | Held::Refused(_) | Held::Due(_)) => Need::Removal,
            None if self.subscription.names.contains(name) => Need::Removal,
            None => Need::Nothing,
        }
    }

    /// True if the client holds something from before, and what there is now rests on nothing better.
    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool {
        set.provisional.contains(name) && self.claimed.contains(name)
    }
}
