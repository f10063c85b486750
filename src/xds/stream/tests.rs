//! Both variants against small clients written from the protocol's specification.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::{DeltaStream, Response, SotwStream, Verdict};
use crate::model::Serve;
use crate::snapshot::{Kind, Snapshot};
use crate::testing::world::{Pool, World, Worlds};
use crate::xds::wire::{DeltaRequest, RpcStatus, SotwRequest};

fn world(clusters: &[(&'static str, Pool)]) -> World {
    clusters.iter().map(|(name, pool)| (*name, (pool.clone(), false))).collect()
}

fn up(n: usize) -> Pool {
    Pool::Decided(vec![Serve::Healthy; n])
}

fn names(response: &Response) -> Vec<&str> {
    response.resources.iter().map(|r| &*r.name).collect()
}

fn delta(kind: Kind, subscribe: &[&str], nonce: &str) -> DeltaRequest {
    DeltaRequest {
        type_url: kind.type_url().into(),
        resource_names_subscribe: subscribe.iter().map(|n| (*n).to_owned()).collect(),
        response_nonce: nonce.into(),
        ..Default::default()
    }
}

fn sotw(kind: Kind, names: &[&str], nonce: &str) -> SotwRequest {
    SotwRequest {
        type_url: kind.type_url().into(),
        resource_names: names.iter().map(|n| (*n).to_owned()).collect(),
        response_nonce: nonce.into(),
        ..Default::default()
    }
}

fn refusal() -> Option<RpcStatus> {
    Some(RpcStatus { code: 13, message: "no".into() })
}

/// A delta stream with CDS and the EDS of `c` acknowledged.
fn settled_delta(snapshot: &Snapshot) -> DeltaStream {
    let mut stream = DeltaStream::new(&Kind::ALL);
    stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    let cds = stream.next(snapshot).unwrap();
    assert_eq!(cds.kind, Kind::Cluster);
    stream.on_request(&delta(Kind::Cluster, &[], &cds.nonce)).unwrap();
    stream.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    let eds = stream.next(snapshot).unwrap();
    assert_eq!(names(&eds), ["c"]);
    stream.on_request(&delta(Kind::Endpoints, &[], &eds.nonce)).unwrap();
    assert_eq!(stream.next(snapshot), None);
    stream
}

fn settled_sotw(snapshot: &Snapshot) -> (SotwStream, String, String) {
    let mut stream = SotwStream::new(&Kind::ALL);
    stream.on_request(&sotw(Kind::Cluster, &[], "")).unwrap();
    let cds = stream.next(snapshot).unwrap();
    stream.on_request(&sotw(Kind::Cluster, &[], &cds.nonce)).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c"], "")).unwrap();
    let eds = stream.next(snapshot).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c"], &eds.nonce)).unwrap();
    assert_eq!(stream.next(snapshot), None);
    (stream, cds.nonce, eds.nonce)
}

#[test]
fn a_cluster_without_a_verdict_is_left_unanswered() {
    let mut worlds = Worlds::default();
    let before = worlds.publish(&world(&[("c", Pool::Undecided)]));
    let mut d = DeltaStream::new(&Kind::ALL);
    d.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    assert_eq!(d.next(&before), None);
    let mut s = SotwStream::new(&Kind::ALL);
    s.on_request(&sotw(Kind::Endpoints, &["c"], "")).unwrap();
    assert_eq!(s.next(&before), None);
    let after = worlds.publish(&world(&[("c", up(1))]));
    assert_eq!(names(&d.next(&after).unwrap()), ["c"]);
    assert_eq!(names(&s.next(&after).unwrap()), ["c"]);
}

#[test]
fn a_restart_with_the_same_world_sends_one_empty_delta_answer_and_no_resource() {
    let mut worlds = Worlds::default();
    let snapshot = worlds.publish(&world(&[("c", up(2))]));
    let held = |kind: Kind| {
        let set = snapshot.set(kind);
        set.resources.values().map(|r| (r.name.to_string(), r.version.to_string())).collect()
    };
    let mut stream = DeltaStream::new(&Kind::ALL);
    for (kind, subscribe) in [(Kind::Cluster, &[][..]), (Kind::Endpoints, &["c"][..])] {
        let request = DeltaRequest { initial_resource_versions: held(kind), ..delta(kind, subscribe, "") };
        stream.on_request(&request).unwrap();
        let answer = stream.next(&snapshot).unwrap();
        assert_eq!((answer.kind, answer.resources.len(), answer.removed.len()), (kind, 0, 0));
        assert_eq!(stream.next(&snapshot), None);
    }
}

#[test]
fn what_was_removed_during_an_outage_is_removed_on_reconnect() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(2))]));
    let mut stream = DeltaStream::new(&Kind::ALL);
    let held = [("gone".to_owned(), "1".to_owned())].into();
    stream
        .on_request(&DeltaRequest { initial_resource_versions: held, ..delta(Kind::Cluster, &[], "") })
        .unwrap();
    let first = stream.next(&snapshot).unwrap();
    assert_eq!(names(&first), ["c"]);
    let second = stream.next(&snapshot).unwrap();
    assert_eq!(second.removed, ["gone".into()]);
}

#[test]
fn an_undecided_cluster_that_the_client_holds_is_not_called_removed() {
    let snapshot = Worlds::default().publish(&world(&[("c", Pool::Undecided)]));
    let mut stream = DeltaStream::new(&Kind::ALL);
    let held = [("c".to_owned(), "1".to_owned())].into();
    stream
        .on_request(&DeltaRequest { initial_resource_versions: held, ..delta(Kind::Endpoints, &["c"], "") })
        .unwrap();
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn a_first_request_without_a_nonce_is_always_answered_in_full() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(2))]));
    let mut stream = SotwStream::new(&Kind::ALL);
    let version =
        crate::snapshot::ResourceSet::version_of(snapshot.set(Kind::Cluster).resources.values()).to_string();
    stream
        .on_request(&SotwRequest { version_info: version.clone(), ..sotw(Kind::Cluster, &[], "") })
        .unwrap();
    let answer = stream.next(&snapshot).unwrap();
    assert_eq!((names(&answer), &answer.version), (vec!["c"], &version));
}

#[test]
fn several_requests_without_a_nonce_are_all_honoured() {
    let snapshot =
        Worlds::default().publish(&world(&[("r1", up(1)), ("r2", up(1)), ("r3", up(1)), ("r4", up(1))]));
    let mut stream = SotwStream::new(&Kind::ALL);
    stream.on_request(&sotw(Kind::Endpoints, &["r1"], "")).unwrap();
    assert_eq!(names(&stream.next(&snapshot).unwrap()), ["r1"]);
    stream.on_request(&sotw(Kind::Endpoints, &["r1", "r2", "r3", "r4"], "")).unwrap();
    assert_eq!(names(&stream.next(&snapshot).unwrap()), ["r1", "r2", "r3", "r4"]);
}

#[test]
fn endpoints_follow_their_cluster_when_it_changes_though_they_are_the_same() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(2))]));
    let second = worlds.publish(&world(&[("c", up(3))]));
    let mut stream = settled_delta(&first);
    // The same endpoints again, but another cluster resource: as a reload of `connect_timeout` does.
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&second)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints]);
    let (mut stream, cds, _) = settled_sotw(&first);
    let kinds: Vec<Kind> = std::iter::from_fn(|| stream.next(&second)).map(|r| r.kind).collect();
    assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints], "EDS does not wait for the ACK of CDS ({cds})");
}

#[test]
fn a_cluster_removed_and_added_again_gets_its_endpoints_again() {
    // go-control-plane#583 and envoy#3355: the version is the same, and the client's nonce may be an old one.
    let mut worlds = Worlds::default();
    let with = world(&[("c", up(2))]);
    let first = worlds.publish(&with);
    let without = worlds.publish(&world(&[]));
    let again = worlds.publish(&with);

    let mut stream = settled_delta(&first);
    let removal = stream.next(&without).unwrap();
    assert_eq!((removal.kind, &removal.removed[..]), (Kind::Endpoints, &["c".into()][..]));
    let removal = stream.next(&without).unwrap();
    assert_eq!((removal.kind, &removal.removed[..]), (Kind::Cluster, &["c".into()][..]));
    stream.on_request(&delta(Kind::Cluster, &[], &removal.nonce)).unwrap();
    let unsubscribe =
        DeltaRequest { resource_names_unsubscribe: vec!["c".into()], ..delta(Kind::Endpoints, &[], "") };
    stream.on_request(&unsubscribe).unwrap();
    assert_eq!(stream.next(&without), None);
    let cds = stream.next(&again).unwrap();
    assert_eq!((cds.kind, names(&cds)), (Kind::Cluster, vec!["c"]));
    stream.on_request(&delta(Kind::Endpoints, &["c"], "")).unwrap();
    let eds = stream.next(&again);
    assert!(eds.is_none(), "the removal has not been acknowledged");
    stream.on_request(&delta(Kind::Endpoints, &[], "3")).unwrap(); // the ACK of the endpoints' removal
    assert_eq!(names(&stream.next(&again).unwrap()), ["c"]);

    for ancient in [true, false] {
        let (mut stream, _, eds) = settled_sotw(&first);
        let cds = stream.next(&without).unwrap();
        assert!(cds.resources.is_empty());
        stream.on_request(&sotw(Kind::Cluster, &[], &cds.nonce)).unwrap();
        stream.on_request(&sotw(Kind::Endpoints, &[], &eds)).unwrap();
        let cds = stream.next(&again).unwrap();
        stream.on_request(&sotw(Kind::Cluster, &[], &cds.nonce)).unwrap();
        let nonce = if ancient { "1" } else { &eds };
        stream.on_request(&sotw(Kind::Endpoints, &["c"], nonce)).unwrap();
        assert_eq!(names(&stream.next(&again).unwrap()), ["c"]);
    }
}

#[test]
fn a_response_that_a_client_ignored_does_not_swallow_its_next_subscription() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(1)), ("d", up(1))]));
    let (mut stream, _, old) = settled_sotw(&snapshot);
    stream.on_request(&sotw(Kind::Endpoints, &["c", "d"], &old)).unwrap();
    let ignored = stream.next(&snapshot).unwrap();
    assert_eq!(names(&ignored), ["d"]);
    // Never acknowledged; the client drops the name and asks for it again, still with its old nonce.
    stream.on_request(&sotw(Kind::Endpoints, &["c"], &old)).unwrap();
    stream.on_request(&sotw(Kind::Endpoints, &["c", "d"], &old)).unwrap();
    assert_eq!(names(&stream.next(&snapshot).unwrap()), ["d"]);
}

#[test]
fn a_refused_version_is_never_sent_again_and_a_changed_one_is() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(1))]));
    let bad = worlds.publish(&world(&[("c", up(2))]));
    let good = worlds.publish(&world(&[("c", up(3))]));

    let mut stream = settled_delta(&first);
    let mut sent = Vec::new();
    while let Some(response) = stream.next(&bad) {
        let request = DeltaRequest { error_detail: refusal(), ..delta(response.kind, &[], &response.nonce) };
        let verdict = stream.on_request(&request).unwrap();
        assert!(matches!(verdict, Verdict::Nacked(..)));
        sent.push(response.kind);
    }
    assert_eq!(sent, [Kind::Cluster, Kind::Endpoints]);
    assert_eq!(stream.next(&bad), None);
    assert_eq!(stream.next(&good).unwrap().kind, Kind::Cluster);

    let (mut stream, cds, eds) = settled_sotw(&first);
    let mut sent = Vec::new();
    while let Some(response) = stream.next(&bad) {
        let (names, old): (&[&str], _) =
            if response.kind == Kind::Cluster { (&[], &cds) } else { (&["c"], &eds) };
        let nack = SotwRequest {
            version_info: old.clone(),
            error_detail: refusal(),
            ..sotw(response.kind, names, &response.nonce)
        };
        stream.on_request(&nack).unwrap();
        sent.push(response.kind);
    }
    assert_eq!(sent, [Kind::Cluster, Kind::Endpoints]);
    assert_eq!(stream.next(&good).unwrap().kind, Kind::Cluster);
}

#[test]
fn an_acknowledgement_of_an_unknown_nonce_settles_nothing() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(1))]));
    let mut stream = settled_delta(&snapshot);
    assert_eq!(stream.on_request(&delta(Kind::Endpoints, &[], "777")).unwrap(), Verdict::None);
    let (mut stream, _, _) = settled_sotw(&snapshot);
    assert_eq!(stream.on_request(&sotw(Kind::Endpoints, &["c"], "777")).unwrap(), Verdict::None);
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn the_last_cluster_can_be_removed() {
    let mut worlds = Worlds::default();
    let first = worlds.publish(&world(&[("c", up(1))]));
    let none = worlds.publish(&world(&[]));
    let (mut stream, ..) = settled_sotw(&first);
    let empty = stream.next(&none).unwrap();
    assert_eq!((empty.kind, empty.resources.len()), (Kind::Cluster, 0));
}

#[test]
fn a_type_that_is_not_served_is_ignored() {
    let snapshot = Worlds::default().publish(&world(&[("c", up(1))]));
    let mut stream = DeltaStream::new(&[Kind::Endpoints]);
    stream.on_request(&delta(Kind::Cluster, &[], "")).unwrap();
    assert_eq!(stream.next(&snapshot), None);
    let mut stream = SotwStream::new(&Kind::ALL);
    stream
        .on_request(&SotwRequest { type_url: "type.googleapis.com/x.Secret".into(), ..Default::default() })
        .unwrap();
    assert_eq!(stream.next(&snapshot), None);
}

#[test]
fn more_names_than_any_fleet_has_end_the_stream() {
    let many: Vec<String> = (0..=super::MAX_NAMES).map(|n| n.to_string()).collect();
    let request = DeltaRequest {
        type_url: Kind::Endpoints.type_url().into(),
        resource_names_subscribe: many.clone(),
        ..Default::default()
    };
    assert!(DeltaStream::new(&Kind::ALL).on_request(&request).is_err());
    let request = SotwRequest {
        type_url: Kind::Endpoints.type_url().into(),
        resource_names: many,
        ..Default::default()
    };
    assert!(SotwStream::new(&Kind::ALL).on_request(&request).is_err());
}

/// What a client of either variant holds, by the specification.
#[derive(Debug, Default)]
struct Holding {
    versions: BTreeMap<Kind, BTreeMap<Arc<str>, Arc<str>>>,
    /// (kind, name, version) it has refused.
    refused: BTreeSet<(Kind, Arc<str>, Arc<str>)>,
    nonce: BTreeMap<Kind, String>,
    subscribed: BTreeSet<Arc<str>>,
    /// Responses received and not yet acknowledged.
    inbox: VecDeque<Response>,
    last_nonce: u64,
    /// Something was refused on this stream, or it began with things the server cannot know of (SotW names nothing
    /// it holds): then the server cannot vouch for the order.
    loose: bool,
}

impl Holding {
    /// What must hold for every response.
    fn receive(&mut self, response: Response) {
        let nonce: u64 = response.nonce.parse().unwrap();
        assert!(nonce > self.last_nonce, "nonces rise");
        self.last_nonce = nonce;
        assert!(
            !self.inbox.iter().any(|open| open.kind == response.kind && overlaps(open, &response)),
            "one at a time"
        );
        for resource in &response.resources {
            let refused =
                self.refused.contains(&(response.kind, resource.name.clone(), resource.version.clone()));
            assert!(
                !refused || (!response.delta && response.kind.has_wildcard()),
                "sent again: {resource:?}"
            );
            if response.kind == Kind::Endpoints {
                assert!(self.subscribed.contains(&resource.name), "not asked for: {}", resource.name);
                let clusters = self.known(Kind::Cluster);
                assert!(self.loose || clusters.contains(&resource.name), "endpoints before their cluster");
            }
        }
        if response.kind == Kind::Route && !self.loose {
            // Each route leads to the cluster of its own name.
            let clusters = self.known(Kind::Cluster);
            assert!(
                response.resources.iter().all(|r| clusters.contains(&r.name)),
                "a route before its cluster"
            );
        }
        if response.kind == Kind::Cluster && !self.loose {
            let routes = self.versions.get(&Kind::Route).cloned().unwrap_or_default();
            let listeners = self.versions.get(&Kind::Listener).cloned().unwrap_or_default();
            let gone = |name: &Arc<str>| {
                if response.delta {
                    response.removed.contains(name)
                } else {
                    !response.resources.iter().any(|r| r.name == *name)
                }
            };
            assert!(
                !routes.keys().any(|r| listeners.contains_key(r) && gone(r)),
                "a cluster gone before its route"
            );
        }
        self.inbox.push_back(response);
    }

    /// Names held or in the inbox.
    fn known(&self, kind: Kind) -> BTreeSet<Arc<str>> {
        let mut known: BTreeSet<_> =
            self.versions.get(&kind).into_iter().flat_map(|v| v.keys().cloned()).collect();
        known.extend(
            self.inbox
                .iter()
                .filter(|r| r.kind == kind)
                .flat_map(|r| r.resources.iter().map(|r| r.name.clone())),
        );
        known
    }

    fn apply(&mut self, response: &Response, refuse: bool) {
        self.nonce.insert(response.kind, response.nonce.clone());
        if refuse {
            let refused =
                response.resources.iter().map(|r| (response.kind, r.name.clone(), r.version.clone()));
            self.refused.extend(refused);
            self.loose = true;
            return;
        }
        let held = self.versions.entry(response.kind).or_default();
        if !response.delta && response.kind.has_wildcard() {
            held.clear();
        }
        held.extend(response.resources.iter().map(|r| (r.name.clone(), r.version.clone())));
        for name in &response.removed {
            held.remove(name);
        }
    }

    /// Every cluster has its endpoints asked for, every listener its routes.
    fn wanted(&self, kind: Kind) -> BTreeSet<Arc<str>> {
        let of = match kind {
            Kind::Endpoints => Kind::Cluster,
            Kind::Route => Kind::Listener,
            Kind::Cluster | Kind::Listener => return BTreeSet::new(),
        };
        self.versions.get(&of).map(|held| held.keys().cloned().collect()).unwrap_or_default()
    }
}

fn overlaps(a: &Response, b: &Response) -> bool {
    let named = |r: &Response| -> BTreeSet<Arc<str>> { r.resources.iter().map(|r| r.name.clone()).collect() };
    !a.delta || named(a).intersection(&named(b)).next().is_some()
}

#[derive(Debug, Clone)]
enum Op {
    Publish(World),
    /// The client reads what is there.
    Deliver,
    Ack,
    Nack,
    Reconnect,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let serve = prop_oneof![Just(Serve::Healthy), Just(Serve::Unhealthy), Just(Serve::Degraded)];
    let pool = prop_oneof![
        1 => Just(Pool::Undecided),
        5 => proptest::collection::vec(serve, 0..3).prop_map(Pool::Decided),
    ];
    let name = prop_oneof![Just("a"), Just("b"), Just("c")];
    let world = proptest::collection::btree_map(name, (pool, any::<bool>()), 0..3);
    let op = prop_oneof![
        3 => world.prop_map(Op::Publish),
        6 => Just(Op::Deliver),
        8 => Just(Op::Ack),
        1 => Just(Op::Nack),
        1 => Just(Op::Reconnect),
    ];
    proptest::collection::vec(op, 1..60)
}

/// A client of one variant on one stream after another.
trait Client: Default {
    fn holding(&mut self) -> &mut Holding;
    fn connect(&mut self);
    fn settle(&mut self, refuse: bool);
    fn pull(&mut self, snapshot: &Snapshot) -> Option<Response>;

    fn deliver(&mut self, snapshot: &Snapshot) -> bool {
        let response = self.pull(snapshot);
        response.map(|r| self.holding().receive(r)).is_some()
    }
}

struct DeltaClient {
    stream: DeltaStream,
    holding: Holding,
    asked: BTreeMap<Kind, BTreeSet<Arc<str>>>,
}

impl Default for DeltaClient {
    fn default() -> Self {
        Self { stream: DeltaStream::new(&Kind::ALL), holding: Holding::default(), asked: BTreeMap::new() }
    }
}

impl DeltaClient {
    /// Subscribes to what the holding calls for, and drops what it no longer does.
    fn resubscribe(&mut self, kind: Kind) {
        let (wanted, known) = (self.holding.wanted(kind), self.asked.entry(kind).or_default());
        let list = |names: &BTreeSet<Arc<str>>, other: &BTreeSet<Arc<str>>| {
            names.difference(other).map(ToString::to_string).collect::<Vec<_>>()
        };
        let (add, drop) = (list(&wanted, known), list(known, &wanted));
        if add.is_empty() && drop.is_empty() {
            return;
        }
        known.clone_from(&wanted);
        if kind == Kind::Endpoints {
            self.holding.subscribed.clone_from(&wanted);
        }
        let held = self.holding.versions.entry(kind).or_default();
        held.retain(|name, _| wanted.contains(name));
        self.holding.inbox.retain(|r| r.kind != kind || r.resources.iter().all(|r| wanted.contains(&r.name)));
        let request = DeltaRequest {
            type_url: kind.type_url().into(),
            resource_names_subscribe: add,
            resource_names_unsubscribe: drop,
            ..Default::default()
        };
        self.stream.on_request(&request).unwrap();
    }
}

impl Client for DeltaClient {
    fn holding(&mut self) -> &mut Holding {
        &mut self.holding
    }

    fn connect(&mut self) {
        self.stream = DeltaStream::new(&Kind::ALL);
        self.holding.inbox.clear();
        self.holding.last_nonce = 0;
        self.holding.refused.clear();
        self.holding.loose = false;
        for kind in Kind::ALL {
            let wanted = self.holding.wanted(kind);
            if !kind.has_wildcard() && wanted.is_empty() {
                self.asked.insert(kind, wanted);
                continue;
            }
            let held = self.holding.versions.entry(kind).or_default();
            let request = DeltaRequest {
                type_url: kind.type_url().into(),
                resource_names_subscribe: wanted.iter().map(ToString::to_string).collect(),
                initial_resource_versions: held.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
                ..Default::default()
            };
            self.asked.insert(kind, wanted);
            self.stream.on_request(&request).unwrap();
        }
    }

    fn settle(&mut self, refuse: bool) {
        let Some(response) = self.holding.inbox.pop_front() else { return };
        self.holding.apply(&response, refuse);
        let request = DeltaRequest {
            error_detail: refuse.then(refusal).flatten(),
            ..delta(response.kind, &[], &response.nonce)
        };
        self.stream.on_request(&request).unwrap();
        self.resubscribe(Kind::Endpoints);
        self.resubscribe(Kind::Route);
    }

    fn pull(&mut self, snapshot: &Snapshot) -> Option<Response> {
        self.stream.next(snapshot)
    }
}

struct SotwClient {
    stream: SotwStream,
    holding: Holding,
    asked: BTreeMap<Kind, BTreeSet<Arc<str>>>,
}

impl Default for SotwClient {
    fn default() -> Self {
        Self { stream: SotwStream::new(&Kind::ALL), holding: Holding::default(), asked: BTreeMap::new() }
    }
}

impl SotwClient {
    fn request(&mut self, kind: Kind, nonce: &str, refuse: bool) {
        let wanted = self.holding.wanted(kind);
        if kind == Kind::Endpoints {
            self.holding.subscribed.clone_from(&wanted);
        }
        let names: Vec<&str> = wanted.iter().map(|n| &**n).collect();
        let request =
            SotwRequest { error_detail: refuse.then(refusal).flatten(), ..sotw(kind, &names, nonce) };
        self.stream.on_request(&request).unwrap();
        if !kind.has_wildcard() {
            self.holding.versions.entry(kind).or_default().retain(|name, _| wanted.contains(name));
        }
        self.asked.insert(kind, wanted);
    }
}

impl Client for SotwClient {
    fn holding(&mut self) -> &mut Holding {
        &mut self.holding
    }

    fn connect(&mut self) {
        self.stream = SotwStream::new(&Kind::ALL);
        self.holding.inbox.clear();
        self.holding.nonce.clear();
        self.holding.last_nonce = 0;
        self.holding.refused.clear();
        self.holding.loose = self.holding.versions.values().any(|held| !held.is_empty());
        self.asked.clear();
        for kind in Kind::ALL {
            if kind.has_wildcard() || !self.holding.wanted(kind).is_empty() {
                self.request(kind, "", false);
            }
        }
    }

    fn settle(&mut self, refuse: bool) {
        let Some(response) = self.holding.inbox.pop_front() else { return };
        self.holding.apply(&response, refuse);
        self.request(response.kind, &response.nonce, refuse);
        for kind in [Kind::Endpoints, Kind::Route] {
            if self.asked.get(&kind).cloned().unwrap_or_default() != self.holding.wanted(kind) {
                let nonce = self.holding.nonce.get(&kind).cloned().unwrap_or_default();
                // What is under way was asked for before: the client still acknowledges it, but the server may not wait.
                self.holding.inbox.retain(|r| r.kind != kind);
                self.request(kind, &nonce, false);
            }
        }
    }

    fn pull(&mut self, snapshot: &Snapshot) -> Option<Response> {
        self.stream.next(snapshot)
    }
}

/// Runs the log, then lets everything settle; the client must hold what there is.
fn converges<C: Client>(ops: Vec<Op>) {
    let mut worlds = Worlds::default();
    let mut truth: World = BTreeMap::new();
    let mut snapshot = worlds.publish(&truth);
    let mut client = C::default();
    client.connect();
    for op in ops {
        match op {
            Op::Publish(world) => {
                truth = world;
                snapshot = worlds.publish(&truth);
            }
            Op::Deliver => {
                client.deliver(&snapshot);
            }
            Op::Ack => client.settle(false),
            Op::Nack => client.settle(true),
            Op::Reconnect => client.connect(),
        }
    }
    // A new stream forgets refusals: then nothing stands between the client and the truth.
    client.connect();
    for round in 0.. {
        assert!(round < 100, "no end of responses");
        let delivered = client.deliver(&snapshot);
        client.settle(false);
        if !delivered && client.holding().inbox.is_empty() {
            break;
        }
    }
    let versions = &client.holding().versions;
    for kind in Kind::ALL {
        let set = snapshot.set(kind);
        let mut held = versions.get(&kind).cloned().unwrap_or_default();
        held.retain(|name, _| !set.withheld.contains(name));
        let there = set.resources.iter().map(|(name, r)| (name.clone(), r.version.clone())).collect();
        assert_eq!(held, there, "{kind:?}");
    }
}

proptest! {
    #[test]
    fn a_delta_client_ends_with_the_truth(ops in ops()) {
        converges::<DeltaClient>(ops);
    }

    #[test]
    fn a_sotw_client_ends_with_the_truth(ops in ops()) {
        converges::<SotwClient>(ops);
    }

    #[test]
    fn no_sequence_of_requests_panics_or_loops(
        requests in proptest::collection::vec((0usize..5, proptest::collection::vec("[a-d*]{0,2}", 0..4), "[0-9]{0,2}", any::<bool>()), 0..60)
    ) {
        let mut worlds = Worlds::default();
        let snapshot = worlds.publish(&world(&[("a", up(1)), ("b", up(2)), ("c", Pool::Undecided)]));
        let (mut d, mut s) = (DeltaStream::new(&Kind::ALL), SotwStream::new(&Kind::ALL));
        for (kind, names, nonce, nack) in requests {
            let type_url = Kind::ALL.get(kind).map_or("other", |k| k.type_url()).to_owned();
            let error_detail = nack.then(refusal).flatten();
            let (add, drop) = names.split_at(names.len() / 2);
            let request = DeltaRequest {
                type_url: type_url.clone(), resource_names_subscribe: add.to_vec(),
                resource_names_unsubscribe: drop.to_vec(), response_nonce: nonce.clone(),
                error_detail: error_detail.clone(), ..Default::default()
            };
            d.on_request(&request).unwrap();
            s.on_request(&SotwRequest { type_url, resource_names: names, response_nonce: nonce, error_detail, ..Default::default() }).unwrap();
            for round in 0.. {
                prop_assert!(round < 30, "no end of responses");
                if d.next(&snapshot).is_none() & s.next(&snapshot).is_none() { break }
            }
        }
    }
}
