//! Both variants against small clients written from the protocol's specification.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::{DeltaStream, Response, SotwStream};
use super::{delta, refusal, sotw, up, world};
use crate::model::Serve;
use crate::snapshot::{Door, Kind, Snapshot};
use crate::testing::world::{Pool, World, Worlds};
use crate::xds::wire::{DeltaRequest, SotwRequest};

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
        Self {
            stream: DeltaStream::new(Door::Aggregated),
            holding: Holding::default(),
            asked: BTreeMap::new(),
        }
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
        self.stream = DeltaStream::new(Door::Aggregated);
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
        let response = self.stream.next(snapshot);
        assert_eq!(self.stream.overlooked(snapshot), None, "a full look finds no more");
        response
    }
}

struct SotwClient {
    stream: SotwStream,
    holding: Holding,
    asked: BTreeMap<Kind, BTreeSet<Arc<str>>>,
}

impl Default for SotwClient {
    fn default() -> Self {
        Self {
            stream: SotwStream::new(Door::Aggregated),
            holding: Holding::default(),
            asked: BTreeMap::new(),
        }
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
        self.stream = SotwStream::new(Door::Aggregated);
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
        let (mut d, mut s) = (DeltaStream::new(Door::Aggregated), SotwStream::new(Door::Aggregated));
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
