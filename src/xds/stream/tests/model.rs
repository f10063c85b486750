//! Both variants against small clients written from the protocol's specification, whatever happens in whatever order.

mod clients;
mod holding;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::{DeltaStream, Protocol, SotwStream, Standing};
use super::{refusal, up, world};
use crate::model::Serve;
use crate::snapshot::{Door, Kind, Rendering, Snapshot};
use crate::testing::world::{Pool, World, Worlds};
use crate::xds::wire::{DeltaRequest, SotwRequest};
use clients::{Client, DeltaClient, SotwClient};
use holding::Holding;

/// More rounds than anything here can need.
const ROUNDS: usize = 200;

#[derive(Debug, Clone)]
enum Op {
    Publish(World),
    /// The client reads what is there. One that is slow does so after many other things.
    Deliver,
    Ack,
    Nack,
    /// Only of a client that chooses by itself: another name from now on, or one less.
    Subscribe(Kind, &'static str),
    Unsubscribe(Kind, &'static str),
    /// Only SotW: it asks for a type again, without a nonce.
    StartOver(Kind),
    Reconnect,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let serve = prop_oneof![Just(Serve::Healthy), Just(Serve::Unhealthy), Just(Serve::Degraded)];
    let pool = prop_oneof![
        1 => Just(Pool::Unlisted),
        1 => Just(Pool::Undecided),
        1 => (0usize..3).prop_map(Pool::Loading),
        5 => proptest::collection::vec(serve, 0..3).prop_map(Pool::Decided),
    ];
    let name = prop_oneof![Just("a"), Just("b"), Just("c")];
    let world = proptest::collection::btree_map(name.clone(), (pool, any::<bool>()), 0..3);
    let kind = (0..Kind::ALL.len()).prop_map(|at| Kind::ALL[at]);
    let any_name = prop_oneof![3 => name, 1 => Just("nowhere")];
    let op = prop_oneof![
        3 => world.prop_map(Op::Publish),
        6 => Just(Op::Deliver),
        8 => Just(Op::Ack),
        1 => Just(Op::Nack),
        1 => kind.clone().prop_map(Op::StartOver),
        2 => (kind.clone(), any_name.clone()).prop_map(|(kind, name)| Op::Subscribe(kind, name)),
        1 => (kind, any_name).prop_map(|(kind, name)| Op::Unsubscribe(kind, name)),
        1 => Just(Op::Reconnect),
    ];
    proptest::collection::vec(op, 1..60)
}

/// Which client: for whom the resources are written, and whether it chooses by itself what to ask for.
fn kinds_of_client() -> impl Strategy<Value = (Rendering, bool)> {
    (renderings(), any::<bool>())
}

fn renderings() -> impl Strategy<Value = Rendering> {
    prop_oneof![Just(Rendering::Envoy), Just(Rendering::Grpc)]
}

/// Runs the log, then lets everything settle: the client must hold what there is of what it asks for.
fn converges<C: Client>((rendering, chooses): (Rendering, bool), ops: Vec<Op>) {
    let mut worlds = Worlds::default();
    let mut truth: World = BTreeMap::new();
    let mut snapshot = worlds.publish(&truth);
    let mut client = C::new(Holding::new(rendering, chooses));
    client.connect();
    let mut refused = false;
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
            Op::Nack => {
                client.settle(true);
                refused = true;
            }
            Op::Subscribe(kind, name) => choose(&mut client, kind, |names| names.insert(name.into())),
            Op::Unsubscribe(kind, name) => choose(&mut client, kind, |names| names.remove(name)),
            Op::StartOver(kind) => client.start_over(kind),
            Op::Reconnect => {
                client.connect();
                refused = false;
            }
        }
        accounts(&client, &snapshot);
    }
    // A SotW client that came with a version waits for its first list until something can be said of every cluster.
    let must_wait = client.holding().named_version && truth.values().any(|(pool, _)| *pool == Pool::Unlisted);
    if !must_wait {
        settles(&mut client, &snapshot, refused);
    }
    for (pool, _) in truth.values_mut().filter(|(pool, _)| *pool == Pool::Unlisted) {
        *pool = Pool::Undecided;
    }
    snapshot = worlds.publish(&truth);
    // A new stream forgets refusals: then nothing stands between the client and the truth.
    client.connect();
    settles(&mut client, &snapshot, false);
}

fn choose(client: &mut impl Client, kind: Kind, change: impl FnOnce(&mut holding::Names) -> bool) {
    let Some(chosen) = &mut client.holding().chosen else { return };
    if change(chosen.entry(kind).or_default()) {
        client.ask(kind);
    }
}

/// Whatever has happened, what the server says that the client holds is what it holds. (Of what a SotW client had when
/// it came, it says nothing.)
fn accounts<C: Client>(client: &C, snapshot: &Snapshot) {
    let (holding, account) = (client.held(), client.account(snapshot));
    for says in &account {
        let held = holding.versions.get(&says.kind).and_then(|held| held.get(&says.name));
        let unheard = says.held.is_none() && holding.unheard.contains(&(says.kind, says.name.clone()));
        assert!(unheard || says.held.as_ref() == held, "{says:?}, and it holds {held:?}");
    }
    for (kind, held) in &holding.versions {
        for name in held.keys().filter(|name| !holding.unheard.contains(&(*kind, (*name).clone()))) {
            let told = account.iter().any(|says| says.kind == *kind && says.name == *name);
            assert!(told, "{kind:?} {name}: it holds that");
        }
    }
}

/// One that has refused something ends without what is not there, if there is a word for that.
fn settles<C: Client>(client: &mut C, snapshot: &Snapshot, refused: bool) {
    for round in 0.. {
        assert!(round < ROUNDS, "no end of responses");
        let delivered = client.deliver(snapshot);
        if !delivered && client.holding().inbox.is_empty() {
            break;
        }
        client.settle(false);
    }
    accounts(client, snapshot);
    for says in client.account(snapshot) {
        let standing = says.standing();
        assert!(standing != Standing::Pending, "{says:?}, and nothing is under way");
        assert!(refused || standing != Standing::Refused, "{says:?}");
    }
    let holding = client.holding();
    for kind in Kind::ALL {
        let set = snapshot.set_for(Door::Aggregated, holding.rendering, kind);
        let mut held = holding.versions.get(&kind).cloned().unwrap_or_default();
        // Of these a client keeps what it has, if it has something.
        held.retain(|name, _| !set.withheld.contains(name) && !set.provisional.contains(name));
        let wanted = holding.wanted(kind);
        let by_name = holding.chosen.is_some();
        if by_name && !kind.has_wildcard() && !C::DELTA {
            held.retain(|name, _| set.resources.contains_key(name)); // SotW has no word for its absence
        }
        let mut there: holding::Versions =
            set.resources.iter().map(|(name, r)| (name.clone(), r.version.clone())).collect();
        there.retain(|name, _| !set.provisional.contains(name) && (!by_name || wanted.contains(name)));
        if refused {
            let kept = |name: &Arc<str>| holding.kept.contains(&(kind, name.clone()));
            let left = held.keys().filter(|name| C::DELTA && !there.contains_key(*name) && !kept(name));
            let left: Vec<_> = left.collect();
            assert!(left.is_empty(), "{kind:?}: {left:?} are still there");
        } else {
            assert_eq!(held, there, "{kind:?}");
        }
    }
}

proptest! {
    #[test]
    fn a_delta_client_ends_with_the_truth(kind in kinds_of_client(), ops in ops()) {
        converges::<DeltaClient>(kind, ops);
    }

    #[test]
    fn a_sotw_client_ends_with_the_truth(kind in kinds_of_client(), ops in ops()) {
        converges::<SotwClient>(kind, ops);
    }

    #[test]
    fn no_sequence_of_requests_panics_or_loops(
        rendering in renderings(),
        requests in proptest::collection::vec((0usize..5, proptest::collection::vec("[a-d*]{0,2}", 0..4), "[0-9]{0,2}", any::<bool>()), 0..60)
    ) {
        let mut worlds = Worlds::default();
        let snapshot = worlds.publish(&world(&[("a", up(1)), ("b", up(2)), ("c", Pool::Undecided)]));
        let (mut d, mut s) = (DeltaStream::new(Door::Aggregated), SotwStream::new(Door::Aggregated));
        d.render(rendering);
        s.render(rendering);
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
