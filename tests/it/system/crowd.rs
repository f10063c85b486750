//! Many clients at once: all are served, and all end with the same.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use prost::Message;
use tidegate::model::Serve;
use tidegate::net;
use tidegate::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use tidegate::snapshot;
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::instance::Mode;
use tidegate::testing::process::TidegateProcess;
use tidegate::testing::setup::Setup;
use tidegate::testing::sim_envoy::{Asks, Kind, Machine, SimEnvoy, SimOptions, Speaker, Wire};
use tidegate::testing::world::{Pool, World};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::bare::{BareServer, question, random_world};
use super::{BINARY, BOTH, addresses, fakes};

fn served(count: usize) -> impl Fn(&Machine) -> Result<(), String> {
    move |m| match m.assignment("llm") {
        Some(all) if all.len() == count => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[tokio::test]
async fn five_hundred_envoys_that_come_at_once_get_everything_and_nothing_piles_up_for_them() {
    // Case 91. What is said is counted: once for each, and of a hundred changes no more than each has room for.
    const ENVOYS: usize = 500;
    net::Descriptors::raise(); // as the process does: a thousand sockets are more than some systems allow
    let mut server = BareServer::start().await;
    let world = |count| -> World { [("llm", (Pool::Decided(vec![Serve::Healthy; count]), false))].into() };
    server.publish(&world(3));
    let envoys: Vec<_> = (0..ENVOYS)
        .map(|number| {
            let options = SimOptions::new(server.address, BOTH[number % 2]);
            SimEnvoy::start(SimOptions { asks: Asks::clusters(), ..options })
        })
        .collect();
    let settled = |count: usize| {
        move |m: &Machine| {
            let last = m.transcript().last().is_some_and(|last| last.is_ack());
            served(count)(m).and(if last { Ok(()) } else { Err("not acknowledged".to_owned()) })
        }
    };
    for envoy in &envoys {
        envoy.wait_until("clusters and endpoints", settled(3)).await.unwrap();
    }
    assert_eq!(server.clients.list().len(), ENVOYS);
    let said = |server: &BareServer| {
        ["cds", "eds"].map(|kind| server.metric(&format!("tidegate_xds_responses_total{{type=\"{kind}\"}}")))
    };
    let each = ENVOYS as f64;
    assert_eq!(said(&server), [each, each]);
    // They hear, but do not answer, while a hundred changes pass.
    for envoy in &envoys {
        envoy.hold_answers(true);
    }
    for round in 0..100 {
        server.publish(&world(1 + round % 2));
        tokio::task::yield_now().await;
    }
    server.publish(&world(4));
    for envoy in &envoys {
        envoy.hold_answers(false);
    }
    for envoy in &envoys {
        envoy.wait_until("the newest", served(4)).await.unwrap();
    }
    let [clusters, endpoints] = said(&server);
    // A cluster's endpoints follow it: at most one pair that is outdated, and the newest.
    assert!(clusters <= 3.0 * each && endpoints <= 4.0 * each, "{clusters} and {endpoints}");
}

#[tokio::test]
async fn envoys_that_lose_their_line_at_random_while_everything_changes_all_end_with_the_truth() {
    // Cases 95 and 103.
    let mut random = fastrand::Rng::with_seed(103);
    let mut server = BareServer::start().await;
    let envoys: Vec<_> =
        (0..10).map(|n| SimEnvoy::start(SimOptions::new(server.address, BOTH[n % 2]))).collect();
    for _ in 0..2 {
        for _ in 0..50 {
            server.publish(&random_world(&mut random));
            for _ in 0..3 {
                let envoy = &envoys[random.usize(0..envoys.len())];
                if random.bool() {
                    envoy.disconnect()
                } else {
                    envoy.connect()
                }
                envoy.hold_answers(random.u8(0..4) == 0);
                tokio::task::yield_now().await;
            }
        }
        let world = random_world(&mut random);
        let snapshot = server.publish(&world);
        for envoy in &envoys {
            envoy.hold_answers(false);
            envoy.connect();
        }
        let mut contents = BTreeSet::new();
        for envoy in &envoys {
            let truth = |m: &Machine| is_true(m, &world).map(|()| m.contents());
            contents.insert(envoy.wait_until("the truth", truth).await.unwrap());
        }
        assert_eq!(contents.len(), 1, "all hold the same");
        for name in world.keys() {
            let version = &*snapshot.set(snapshot::Kind::Endpoints).resources[*name].version;
            envoys[0].wait_version(Kind::Endpoint, name, version).await.unwrap();
        }
    }
}

/// Every cluster with its endpoints, every listener, and no more.
fn is_true(m: &Machine, world: &World) -> Result<(), String> {
    let names = |routed_only: bool| -> BTreeSet<String> {
        let chosen = world.iter().filter(|(_, (_, routed))| *routed || !routed_only);
        chosen.map(|(name, _)| (*name).to_owned()).collect()
    };
    if m.clusters() != names(false) || m.listeners() != names(true) {
        return Err(format!("{:?} and {:?}", m.clusters(), m.listeners()));
    }
    for (name, (pool, _)) in world {
        let Pool::Decided(serves) = pool else { continue };
        let told = serves.iter().filter(|serve| **serve != Serve::Absent);
        let told: Vec<_> = told.map(|serve| format!("{serve:?}").to_uppercase()).collect();
        let held = m.assignment(name).into_iter().flat_map(|all| all.values());
        let held: Vec<_> = held.map(|endpoint| endpoint.health.as_str_name().to_owned()).collect();
        if told != held {
            return Err(format!("{name}: {told:?}, but {held:?}"));
        }
    }
    Ok(())
}

/// Asks for clusters, takes the first bytes of the answer, and is gone.
async fn hangs_up_in_the_middle(to: SocketAddr, abruptly: bool) {
    let socket = TcpStream::connect(to).await.unwrap();
    if abruptly {
        socket.set_zero_linger().unwrap(); // RST instead of FIN
    }
    // The server can send so much and no more: the rest of the message waits for ever.
    let mut client = h2::client::Builder::new();
    let (mut requests, connection) =
        client.initial_window_size(64).handshake::<_, Bytes>(socket).await.unwrap();
    let mut line = JoinSet::new();
    line.spawn(connection);
    let (request, asks) = question(to);
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    body.send_data(asks, false).unwrap();
    let mut stream = answer.await.unwrap().into_body();
    assert_eq!(stream.data().await.unwrap().unwrap().len(), 64);
}

#[tokio::test]
async fn three_hundred_clients_cut_off_in_the_middle_of_a_message_leave_nothing_behind() {
    // Case 97.
    let mut random = fastrand::Rng::with_seed(97);
    let mut server = BareServer::start().await;
    let truth: World = [("llm", (Pool::Decided(vec![Serve::Healthy; 3]), true))].into();
    server.publish(&truth);
    let witness = SimEnvoy::start(SimOptions::new(server.address, Wire::Delta));
    for _ in 0..15 {
        let mut crowd = JoinSet::new();
        for number in 0..20 {
            crowd.spawn(hangs_up_in_the_middle(server.address, number % 2 == 0));
        }
        while let Some(gone) = crowd.join_next().await {
            gone.unwrap();
            let mut world = random_world(&mut random);
            world.insert("llm", (Pool::Decided(vec![Serve::Healthy; random.usize(1..4)]), false));
            server.publish(&world);
        }
    }
    server.publish(&truth);
    witness.wait_until("the truth", |m| is_true(m, &truth)).await.unwrap();
    for wire in BOTH {
        let late = SimEnvoy::start(SimOptions::new(server.address, wire));
        late.wait_until("the truth", |m| is_true(m, &truth)).await.unwrap();
    }
    drop(witness);
    eventually("nobody is left", async || {
        let open = ["tidegate_xds_streams", "tidegate_xds_connections"].map(|name| server.metric(name));
        let listed = server.clients.list().len();
        if open == [0.0, 0.0] && listed == 0 { Ok(()) } else { Err(format!("{open:?}, {listed} listed")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn kill_9_under_a_crowd_while_instances_are_silent_or_load_never_sends_an_empty_assignment() {
    // Case 71.
    const ENVOYS: usize = 60;
    let fakes = fakes(3).await;
    let setup = Setup::new().fixed_ports().cluster("llm", addresses(&fakes));
    let mut tidegate = TidegateProcess::start(BINARY, &setup).await.unwrap();
    let asked = || fakes.iter().map(|fake| fake.account().requests.len()).min().unwrap_or_default();
    let everybody_serves = async || {
        eventually("every instance was found well", async || {
            let page = fetch::get(setup.health, "/metrics").await.map_err(|e| format!("{e:#}"))?.text();
            let wanted = "serve=\"healthy\"} 3";
            if page.contains(wanted) { Ok(()) } else { Err(page) }
        })
        .await
        .unwrap();
    };
    everybody_serves().await;
    let empty = Arc::new(AtomicUsize::new(0));
    let envoys: Vec<_> = (0..ENVOYS)
        .map(|number| {
            let (options, empty) = (SimOptions::new(tidegate.xds(), BOTH[number % 2]), empty.clone());
            // It looks at everything and refuses nothing.
            let watch = move |kind: Kind, _: &str, body: &tidegate::pb::google::protobuf::Any| {
                let listed = ClusterLoadAssignment::decode(&*body.value)
                    .is_ok_and(|m| m.endpoints.iter().any(|l| !l.lb_endpoints.is_empty()));
                if kind == Kind::Endpoint && !listed {
                    empty.fetch_add(1, Ordering::Relaxed);
                }
                None
            };
            SimEnvoy::start(SimOptions { refuse: vec![Arc::new(watch)], ..options })
        })
        .collect();
    for envoy in &envoys {
        envoy.wait_until("three endpoints", served(3)).await.unwrap();
    }
    for mode in [Mode::Hang, Mode::Loading, Mode::Healthy] {
        let streams: Vec<_> = envoys.iter().map(|envoy| envoy.look(Machine::streams)).collect();
        tidegate.kill().await.unwrap();
        for fake in &fakes {
            fake.set(mode.clone()).await.unwrap();
        }
        let before = asked();
        tidegate.run().unwrap();
        tidegate.wait_ready().await.unwrap();
        for (envoy, streams) in envoys.iter().zip(streams) {
            let back = |m: &Machine| {
                if m.streams() > streams && m.is_connected() {
                    Ok(())
                } else {
                    Err(format!("{}", m.streams()))
                }
            };
            envoy.wait_until("back", back).await.unwrap();
        }
        eventually("every instance was asked again and again", async || {
            if asked() >= before + 3 { Ok(()) } else { Err(asked()) }
        })
        .await
        .unwrap();
        for envoy in &envoys {
            assert_eq!(envoy.look(served(3)), Ok(()), "{mode:?}: {}", tidegate.log());
        }
    }
    everybody_serves().await;
    for envoy in &envoys {
        let all = |m: &Machine| match m.assignment("llm") {
            Some(all) if all.values().all(|e| e.health.as_str_name() == "HEALTHY") && all.len() == 3 => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        };
        envoy.wait_until("as before", all).await.unwrap();
        let said = envoy.transcript();
        let dropped = said.iter().find(|e| e.speaker == Speaker::Server && !e.dropped.is_empty());
        assert!(dropped.is_none(), "{}", dropped.unwrap());
    }
    assert_eq!(empty.load(Ordering::Relaxed), 0);
}
