//! The state-of-the-world variant.
//!
//! Pure: no I/O. A response with clusters or listeners carries all of them: leaving one out deletes it. Endpoints and
//! routes may be sent alone; what is left out is kept.

mod inspection;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::parked::Parked;
use super::subscription::Subscription;
use super::{
    Finding, Gone, Holding, Nonces, Protocol, Refusal, Response, Suspect, Verdict, WHOLE_SET, nack_text,
};
use crate::snapshot::{ByKind, Door, Kind, Rendering, Resource, ResourceSet, Snapshot};
use crate::xds::wire::SotwRequest;

type Resources = BTreeMap<Arc<str>, Arc<Resource>>;

/// Responses crossed by a changed subscription that are remembered.
const MAX_CROSSED: usize = 16;

/// A response that has not been acknowledged.
#[derive(Debug)]
struct Sent {
    nonce: String,
    /// In the order of their names.
    resources: Vec<Arc<Resource>>,
    /// What the client held before it: of all clusters or listeners, which are refused as a whole; else of what it
    /// carries.
    before: Resources,
}

impl Sent {
    fn resource(&self, name: &str) -> Option<&Arc<Resource>> {
        let at = self.resources.binary_search_by(|resource| (*resource.name).cmp(name)).ok()?;
        self.resources.get(at)
    }
}

#[derive(Debug, Default)]
struct TypeState {
    subscription: Subscription,
    /// A request without a nonce is always answered.
    owes_answer: bool,
    /// What the client holds, as far as it has been sent and not refused.
    held: Resources,
    /// What the client held before it refused something else, if it has taken nothing of the name since.
    kept: Resources,
    /// Endpoints, routes: sent again though the client holds them, since it has asked for them anew, or their cluster
    /// has changed.
    again: BTreeSet<Arc<str>>,
    /// What the client held when it came: it named a version with its first request.
    claimed: BTreeSet<Arc<str>>,
    /// The client may hold clusters or listeners that nobody here knows of: it came with a version, and has not
    /// acknowledged a list since.
    holds_unknown: bool,
    in_flight: Option<Sent>,
    /// Responses that a changed subscription crossed on the way, oldest first. Most clients acknowledge them all the
    /// same; one that does not has ignored them.
    crossed: VecDeque<Sent>,
    /// Endpoints, routes: by name. Clusters, listeners: the whole set under [`WHOLE_SET`], since a refusal names none
    /// of them, and leaving one out would delete it.
    parked: Parked,
    /// The set that was last found to need nothing. `None` after anything that may change that.
    quiet_for: Option<Arc<ResourceSet>>,
}

/// The protocol state of one state-of-the-world stream.
#[derive(Debug)]
pub struct SotwStream {
    door: Door,
    rendering: Rendering,
    types: ByKind<TypeState>,
    nonces: Nonces,
    /// Clusters taken away on this stream and not given again: their endpoints would come before them.
    gone: BTreeSet<Arc<str>>,
}

impl Protocol for SotwStream {
    type Request = SotwRequest;

    fn node(request: &mut SotwRequest) -> Bytes {
        std::mem::take(&mut request.node)
    }

    fn nonce(request: &SotwRequest) -> &str {
        &request.response_nonce
    }

    fn changes_endpoints(request: &SotwRequest) -> bool {
        request.type_url == Kind::Endpoints.type_url()
    }

    fn render(&mut self, rendering: Rendering) {
        self.rendering = rendering;
    }

    fn on_request(&mut self, request: &SotwRequest) -> Result<Verdict, Refusal> {
        let kind = Kind::from_type_url(&request.type_url).filter(|kind| self.door.kinds().contains(kind));
        let Some(kind) = kind else { return Ok(Verdict::None) };
        let verdict = self.state(kind).on_request(kind, request)?;
        if kind == Kind::Cluster {
            self.forget_given_up();
        }
        Ok(verdict)
    }

    fn next(&mut self, snapshot: &Snapshot) -> Option<Response> {
        let kinds = self.door.kinds();
        if let Some(response) = kinds.iter().find_map(|kind| self.next_of(*kind, snapshot, false)) {
            return Some(response);
        }
        let referring = [Kind::Listener, Kind::Route];
        if referring.iter().any(|kind| self.state(*kind).in_flight.is_some()) {
            return None;
        }
        kinds.contains(&Kind::Cluster).then(|| self.next_of(Kind::Cluster, snapshot, true)).flatten()
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
        state.held.get(name).is_some_and(|held| held.version == resource.version)
            && !state.again.contains(name)
            && !state.under_way().any(|sent| sent.resource(name).is_some())
    }

    fn suspect(&self, nonce: &str) -> Option<Suspect> {
        let of = |(kind, state): (Kind, &TypeState)| {
            let sent = state.under_way().find(|sent| sent.nonce == nonce)?;
            if kind.has_wildcard() {
                let version = ResourceSet::version_of(&sent.resources).to_string().into();
                return Some(Suspect { kind, name: WHOLE_SET.into(), version });
            }
            let resource = sent.resources.first()?;
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
        state.quiet_for = None;
    }

    fn holdings(&self, snapshot: &Snapshot) -> Vec<Holding> {
        self.all_holdings(snapshot)
    }

    fn audit(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        self.full_look(snapshot)
    }
}

impl SotwStream {
    /// A stream that came in by `door`.
    pub fn new(door: Door) -> Self {
        Self {
            door,
            rendering: Rendering::default(),
            types: ByKind::default(),
            nonces: Nonces::default(),
            gone: BTreeSet::new(),
        }
    }

    fn state(&mut self, kind: Kind) -> &mut TypeState {
        self.types.of_mut(kind)
    }

    /// Endpoints do not wait for a cluster that the client no longer asks for, or that it has refused to give up.
    fn forget_given_up(&mut self) {
        let [clusters, endpoints, ..] = &mut self.types.0;
        let before = self.gone.len();
        self.gone.retain(|name| clusters.subscription.wants(name) && !clusters.held.contains_key(name));
        if self.gone.len() < before {
            endpoints.quiet_for = None;
        }
    }

    /// Nor do they wait for one that is there again in a list that the client has refused: it is not given.
    fn forget_refused(&mut self, set: &ResourceSet) {
        let [clusters, endpoints, ..] = &mut self.types.0;
        if !self.gone.is_empty() && clusters.has_parked(&clusters.whole(set, false)) {
            self.gone.retain(|name| !set.resources.contains_key(name));
            endpoints.quiet_for = None;
        }
    }

    /// `exact` leaves removed clusters out; otherwise they linger until nothing can refer to them.
    fn next_of(&mut self, kind: Kind, snapshot: &Snapshot, exact: bool) -> Option<Response> {
        let set = snapshot.set_for(self.door, self.rendering, kind);
        let unsettled = kind.refers_to_clusters() && self.clusters_are_unsettled(snapshot);
        if unsettled && !(self.state(kind).owes_answer && self.has_sent_all_clusters(snapshot)) {
            return None; // the clusters they lead to may not be there yet: Envoy acknowledges them when they are warm
        }
        let state = self.state(kind);
        let quiet = state.quiet_for.as_ref().is_some_and(|quiet| Arc::ptr_eq(quiet, set));
        if quiet || !state.subscription.asked || state.in_flight.is_some() {
            return None;
        }
        let linger = kind == Kind::Cluster && !exact;
        let mut due = self.due(kind, set, linger);
        if let (Some(due), false) = (&mut due, kind.has_wildcard()) {
            due.truncate(1); // one resource per message: a refusal, which names none, isolates itself
        }
        let state = self.state(kind);
        let Some(resources) = due else {
            state.quiet_for = (!linger).then(|| set.clone());
            if kind == Kind::Cluster {
                self.forget_refused(set);
            }
            return None;
        };
        if kind == Kind::Cluster {
            self.resend_endpoints(&resources);
        }
        Some(self.send(kind, resources))
    }

    /// What is to be sent of one type now.
    fn due(&self, kind: Kind, set: &ResourceSet, linger: bool) -> Option<Vec<Arc<Resource>>> {
        let state = self.types.of(kind);
        let mut due =
            if kind.has_wildcard() { state.due_whole(set, linger)? } else { state.due_parts(set)? };
        due.retain(|resource| kind != Kind::Endpoints || !self.gone.contains(&resource.name));
        (!due.is_empty() || state.owes_answer || kind.has_wildcard()).then_some(due)
    }

    /// True if the client has yet to take what it was sent about clusters, or to be sent its first list of them.
    fn clusters_are_unsettled(&self, snapshot: &Snapshot) -> bool {
        let [clusters, ..] = &self.types.0;
        clusters.in_flight.is_some() || clusters.must_wait(self.set_of(Kind::Cluster, snapshot))
    }

    /// True if no cluster is left that the client wants and has not been sent: a first question is answered then,
    /// warm or not.
    fn has_sent_all_clusters(&self, snapshot: &Snapshot) -> bool {
        let [clusters, ..] = &self.types.0;
        let mut all = self.set_of(Kind::Cluster, snapshot).resources.keys();
        all.all(|name| clusters.held.contains_key(name) || !clusters.subscription.wants(name))
    }

    /// Envoy waits for a changed cluster's endpoints: they follow although they are the same.
    fn resend_endpoints(&mut self, clusters: &[Arc<Resource>]) {
        let held = &self.state(Kind::Cluster).held;
        let same = |c: &&Arc<Resource>| held.get(&c.name).is_some_and(|h| h.version == c.version);
        let changed: Vec<_> = clusters.iter().filter(|c| !same(c)).map(|c| c.name.clone()).collect();
        let endpoints = self.state(Kind::Endpoints);
        endpoints.again.extend(changed.into_iter().filter(|name| endpoints.held.contains_key(name)));
        endpoints.quiet_for = None;
    }

    fn send(&mut self, kind: Kind, resources: Vec<Arc<Resource>>) -> Response {
        let nonce = self.nonces.next();
        if kind == Kind::Cluster {
            let given = |name: &Arc<str>| resources.iter().any(|cluster| cluster.name == *name);
            let taken: Vec<_> = self.state(kind).held.keys().filter(|name| !given(name)).cloned().collect();
            self.state(Kind::Endpoints).claimed.retain(|name| !taken.contains(name));
            self.gone.extend(taken);
            self.gone.retain(|name| !given(name));
        }
        let state = self.state(kind);
        for resource in &resources {
            state.claimed.remove(&resource.name);
            state.again.remove(&resource.name);
        }
        let before = if kind.has_wildcard() {
            std::mem::take(&mut state.held)
        } else {
            resources
                .iter()
                .filter_map(|r| state.held.get(&r.name).or_else(|| state.kept.get(&r.name)))
                .map(|held| (held.name.clone(), held.clone()))
                .collect()
        };
        state.held.extend(resources.iter().map(|r| (r.name.clone(), r.clone())));
        state.owes_answer = false;
        state.quiet_for = None;
        state.in_flight = Some(Sent { nonce: nonce.clone(), resources: resources.clone(), before });
        let version = ResourceSet::version_of(state.held.values()).to_string().into();
        Response { kind, delta: false, nonce, version, resources, removed: Vec::new() }
    }
}

impl TypeState {
    /// Responses without an answer.
    fn under_way(&self) -> impl Iterator<Item = &Sent> {
        self.crossed.iter().chain(&self.in_flight)
    }

    fn on_request(&mut self, kind: Kind, request: &SotwRequest) -> Result<Verdict, Refusal> {
        self.quiet_for = None;
        let mut verdict = Verdict::None;
        let answered = self.answered(kind, &request.response_nonce);
        let settles = answered.is_some();
        if let Some(sent) = answered {
            verdict = self.settle(kind, sent, request);
        }
        if !self.subscription.asked && !request.version_info.is_empty() {
            self.holds_unknown = true;
            self.claimed = request.resource_names.iter().map(|name| Arc::from(name.as_str())).collect();
        }
        let changed = self.subscription.replace(kind, &request.resource_names)?;
        if changed {
            self.forget_unwanted();
        }
        if request.response_nonce.is_empty() {
            // A (re)subscription from scratch: the client shows no sign of holding anything of this stream. (A list is
            // sent whole in any case, and takes nothing that it may hold before what leads there.)
            self.owes_answer = true;
            if !kind.has_wildcard() {
                self.again.extend(self.held.keys().cloned());
            }
            self.cross(kind);
        } else if changed && !settles {
            self.cross(kind);
        }
        Ok(verdict)
    }

    /// What the client has stopped asking for, it has dropped.
    fn forget_unwanted(&mut self) {
        let Self { subscription, held, kept, again, claimed, crossed, in_flight, .. } = self;
        let before = crossed.iter_mut().chain(in_flight).map(|sent| &mut sent.before);
        for of_resources in [held, kept].into_iter().chain(before) {
            of_resources.retain(|name, _| subscription.wants(name));
        }
        for names in [again, claimed] {
            names.retain(|name| subscription.wants(name));
        }
    }

    /// Some clients never acknowledge a response they ignored: what they ask for now does not wait for it.
    fn cross(&mut self, kind: Kind) {
        self.crossed.extend(self.in_flight.take());
        if self.crossed.len() > MAX_CROSSED {
            self.ignored(kind);
        }
    }

    /// The response that a request with `nonce` answers. Those sent before it, and not answered before it, have been
    /// ignored.
    fn answered(&mut self, kind: Kind, nonce: &str) -> Option<Sent> {
        let of_crossed = self.crossed.iter().position(|sent| sent.nonce == nonce);
        let before = match (of_crossed, &self.in_flight) {
            (Some(at), _) => at,
            (None, Some(sent)) if sent.nonce == nonce => self.crossed.len(),
            (None, _) => return None,
        };
        for _ in 0..before {
            self.ignored(kind);
        }
        if of_crossed.is_some() { self.crossed.pop_front() } else { self.in_flight.take() }
    }

    /// The client has ignored the oldest of the crossed responses.
    fn ignored(&mut self, kind: Kind) {
        if let Some(sent) = self.crossed.pop_front() {
            self.unhold(kind, sent);
        }
    }

    /// An ACK and a NACK differ by `error_detail` alone.
    fn settle(&mut self, kind: Kind, sent: Sent, request: &SotwRequest) -> Verdict {
        if request.error_detail.is_none() {
            self.holds_unknown = false;
            self.taken(kind, &sent);
            let gone = if kind.has_wildcard() { Gone::Others } else { Gone::Names(Vec::new()) };
            return Verdict::Acked(kind, sent.resources, gone);
        }
        let verdict = self.refused(kind, &sent, request);
        self.unhold(kind, sent);
        verdict
    }

    /// The client does not hold what `sent` carried, as far as nothing newer has taken its place or will.
    fn unhold(&mut self, kind: Kind, mut sent: Sent) {
        if kind.has_wildcard() {
            match self.crossed.front_mut().or(self.in_flight.as_mut()) {
                Some(next) => next.before = sent.before,
                None => self.held = sent.before,
            }
            return;
        }
        for Resource { name, .. } in sent.resources.iter().map(|resource| &**resource) {
            let before = sent.before.remove_entry(name);
            if let Some(next) = self.under_way_with(name) {
                next.before.remove(name);
                next.before.extend(before);
            } else {
                self.held.remove(name);
                self.kept.extend(before);
            }
        }
    }

    /// The client has taken what `sent` carried, as far as it still asks for it.
    fn taken(&mut self, kind: Kind, sent: &Sent) {
        if kind.has_wildcard()
            && let Some(next) = self.crossed.front_mut().or(self.in_flight.as_mut())
        {
            let wanted = sent.resources.iter().filter(|resource| self.subscription.wants(&resource.name));
            next.before = wanted.map(|resource| (resource.name.clone(), resource.clone())).collect();
            return;
        }
        for resource in &sent.resources {
            let name = &resource.name;
            self.kept.remove(name);
            if !self.subscription.wants(name) {
                continue;
            }
            if let Some(next) = self.under_way_with(name) {
                next.before.insert(name.clone(), resource.clone());
            } else if !self.held.contains_key(name) {
                self.held.insert(name.clone(), resource.clone());
                if !kind.has_wildcard() {
                    self.again.insert(name.clone()); // it has been asked for again since
                }
            }
        }
    }

    /// The oldest response without an answer that carries `name`.
    fn under_way_with(&mut self, name: &str) -> Option<&mut Sent> {
        let mut under_way = self.crossed.iter_mut().chain(&mut self.in_flight);
        under_way.find(|sent| sent.resource(name).is_some())
    }

    fn refused(&mut self, kind: Kind, sent: &Sent, request: &SotwRequest) -> Verdict {
        if kind.has_wildcard() {
            let version = ResourceSet::version_of(&sent.resources).to_string();
            self.parked.insert(WHOLE_SET.into(), version.into());
        } else {
            for resource in &sent.resources {
                self.parked.insert(resource.name.clone(), resource.version.clone());
            }
        }
        let words =
            request.error_detail.as_ref().map_or_else(|| "".into(), |error| nack_text(&error.message));
        let is_gone = |name: &&Arc<str>| kind.has_wildcard() && sent.resource(name).is_none();
        let gone = Gone::Names(sent.before.keys().filter(is_gone).cloned().collect());
        Verdict::Nacked(kind, sent.resources.clone(), gone, words)
    }

    /// True if a list would leave something out that the client may hold, and so delete it: nothing can be said of it
    /// yet, and a client that comes back names a version, not what it holds.
    fn must_wait(&self, set: &ResourceSet) -> bool {
        self.holds_unknown && set.withheld.iter().any(|name| self.subscription.wants(name))
    }

    /// All resources, if they differ from what the client holds. What it holds and nothing can be said of stays
    /// listed; with `linger`, so does what was removed.
    fn due_whole(&self, set: &ResourceSet, linger: bool) -> Option<Vec<Arc<Resource>>> {
        if self.must_wait(set) {
            return None;
        }
        let wanted = self.whole(set, linger);
        let same = wanted.len() == self.held.len()
            && wanted.iter().all(|(name, r)| self.held.get(name).is_some_and(|h| h.version == r.version));
        if same && !self.owes_answer {
            return None;
        }
        (!self.has_parked(&wanted)).then(|| wanted.into_values().collect())
    }

    fn whole(&self, set: &ResourceSet, linger: bool) -> Resources {
        let wanted = set.resources.iter().filter(|(name, _)| self.subscription.wants(name));
        let mut wanted: Resources = wanted.map(|(name, resource)| (name.clone(), resource.clone())).collect();
        for (name, old) in self.held.iter().filter(|(name, _)| linger || set.withheld.contains(*name)) {
            wanted.entry(name.clone()).or_insert_with(|| old.clone());
        }
        wanted
    }

    fn has_parked(&self, whole: &Resources) -> bool {
        self.parked.contains(WHOLE_SET, &ResourceSet::version_of(whole.values()).to_string())
    }

    /// True if the client holds something from before, and what there is now rests on nothing better.
    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool {
        set.provisional.contains(name) && self.claimed.contains(name)
    }

    fn is_news(&self, resource: &Resource) -> bool {
        let held = self.held.get(&resource.name);
        held.is_none_or(|held| held.version != resource.version) || self.again.contains(&resource.name)
    }

    /// The resources that the client does not hold in their present version, or is to be sent again.
    fn due_parts(&self, set: &ResourceSet) -> Option<Vec<Arc<Resource>>> {
        let due: Vec<_> = self
            .subscription
            .names
            .iter()
            .filter_map(|name| set.resources.get(name))
            .filter(|r| self.is_news(r))
            .filter(|r| !self.is_spared(set, &r.name))
            .filter(|r| !self.parked.contains(&r.name, &r.version))
            .cloned()
            .collect();
        let names = &self.subscription.names;
        let waits = |name: &Arc<str>| set.withheld.contains(name) || self.is_spared(set, name);
        let answer = self.owes_answer && !names.is_empty() && !names.iter().any(waits);
        (!due.is_empty() || answer).then_some(due)
    }
}
