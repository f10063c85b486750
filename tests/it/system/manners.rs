//! How tidegate speaks: order, versions, refusals, lanes; and what it takes from clients that misbehave.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::model::{MonoTime, Serve};
use tidegate::pb::envoy::service::discovery::v3::DiscoveryRequest;
use tidegate::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tidegate::snapshot;
use tidegate::testing::app::TestApp;
use tidegate::testing::eventually::eventually;
use tidegate::testing::instance::Mode;
use tidegate::testing::setup::{Setup, free_address};
use tidegate::testing::sim_envoy::{Asks, Door, Kind, Machine, Refusal, SimEnvoy, SimOptions, Speaker, Wire};
use tokio_stream::wrappers::ReceiverStream;

use super::bare::{BareServer, random_world};
use super::{BOTH, addresses, fakes, hosts, wait_stat};

#[tokio::test]
async fn over_hundreds_of_random_worlds_what_is_referred_to_comes_first_and_goes_last() {
    // Case 73: 2 × 200 worlds over real sockets; in `World` a cluster, its listener and its routes share a name. The
    // pure machines are put through many more beside their code.
    const WORLDS: usize = 200;
    for wire in BOTH {
        let mut server = BareServer::start().await;
        let sim = SimEnvoy::start(SimOptions::new(server.address, wire));
        let mut random = fastrand::Rng::with_seed(73);
        for round in 0..WORLDS {
            let world = random_world(&mut random);
            server.publish(&world);
            // Most are overtaken by the next one; every tenth is waited for.
            if round % 10 == 9 {
                let names: BTreeSet<String> = world.keys().map(|name| (*name).to_owned()).collect();
                let there = |m: &Machine| {
                    let listed = m.listeners();
                    let routed = world.iter().filter(|(_, (_, routed))| *routed).count();
                    let settled = m.clusters() == names
                        && names.iter().all(|name| m.assignment(name).is_some())
                        && listed.len() == routed;
                    if settled { Ok(()) } else { Err(format!("{:?} {listed:?}", m.clusters())) }
                };
                sim.wait_until(&format!("world {round}"), there).await.unwrap();
            } else {
                tokio::task::yield_now().await;
            }
        }
        assert_order(&sim);
    }
}

/// Replays what the server said: no listener of a cluster that is not there, no cluster taken away from under its
/// listener, no endpoints or routes before what names them. (Endpoints may still follow a cluster that has gone, while
/// the client has not unsubscribed: the referee watches that.)
fn assert_order(sim: &SimEnvoy) {
    let (mut clusters, mut listeners) = (BTreeSet::new(), BTreeSet::new());
    let mut ever: BTreeSet<(Kind, String)> = BTreeSet::new();
    for entry in sim.transcript().iter().filter(|e| e.speaker == Speaker::Server) {
        let kind = entry.kind.unwrap();
        let there = match kind {
            Kind::Cluster => &mut clusters,
            Kind::Listener => &mut listeners,
            Kind::Endpoint | Kind::Route => {
                assert!(entry.names.is_subset(&clusters), "{entry} while {clusters:?}");
                continue;
            }
        };
        let delta = !entry.versions.is_empty() || !entry.dropped.is_empty();
        if !delta {
            there.clear();
        }
        there.extend(entry.names.iter().cloned());
        there.retain(|name| !entry.dropped.contains(name));
        ever.extend(entry.names.iter().map(|name| (kind, name.clone())));
        assert!(listeners.is_subset(&clusters), "{entry}: listeners {listeners:?}, clusters {clusters:?}");
    }
}

#[tokio::test]
async fn endpoints_and_clusters_are_served_at_doors_of_their_own() {
    // Case 80; `talk` asks in every way there is.
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let app = TestApp::start(&Setup::new().cluster("llm", [a, b]).cluster("other", [a])).await.unwrap();
    for wire in BOTH {
        let options = SimOptions::new(app.xds(), wire);
        let asks = Asks { endpoints: false, ..Asks::clusters() };
        let cds = SimEnvoy::start(SimOptions { door: Door::Cds, asks, ..options.clone() });
        let eds =
            SimEnvoy::start(SimOptions { door: Door::Eds, asks: Asks::assignments(&["llm"]), ..options });
        let two =
            |m: &Machine| if m.clusters().len() == 2 { Ok(()) } else { Err(format!("{:?}", m.clusters())) };
        cds.wait_until("two clusters", two).await.unwrap();
        let pair = |m: &Machine| match m.assignment("llm") {
            Some(endpoints) if endpoints.len() == 2 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eds.wait_until("two endpoints", pair).await.unwrap();
        assert!(cds.transcript().iter().all(|e| e.kind == Some(Kind::Cluster)));
        assert!(eds.transcript().iter().all(|e| e.kind == Some(Kind::Endpoint)));
    }
    app.stop().await.unwrap();
}

#[tokio::test]
async fn several_requests_without_nonce_are_all_answered_and_the_node_is_needed_once() {
    // Cases 76 and 79: what a client says that has lost its server once; nothing after the first has a node.
    let fakes = fakes(1).await;
    let setup = Setup::new().cluster("llm", addresses(&fakes)).cluster("other", addresses(&fakes)).listener(
        "ingress",
        free_address(),
        "llm",
    );
    let app = TestApp::start(&setup).await.unwrap();
    app.wait_served("llm", &[(fakes[0].address(), Serve::Healthy)]).await.unwrap();
    app.wait_served("other", &[(fakes[0].address(), Serve::Healthy)]).await.unwrap();
    let mut client =
        AggregatedDiscoveryServiceClient::connect(format!("http://{}", app.xds())).await.unwrap();
    let (to, from) = tokio::sync::mpsc::channel(16);
    let ask = |kind: Kind, names: &[&str]| DiscoveryRequest {
        type_url: kind.type_url().to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    };
    let mut first = ask(Kind::Endpoint, &["llm"]);
    let node = tidegate::pb::envoy::config::core::v3::Node { id: "once".to_owned(), ..Default::default() };
    first.node = Some(node);
    to.send(first).await.unwrap();
    for (kind, names) in [
        (Kind::Endpoint, &["llm", "other"][..]),
        (Kind::Cluster, &[]),
        (Kind::Listener, &[]),
        (Kind::Route, &["ingress"]),
    ] {
        to.send(ask(kind, names)).await.unwrap();
    }
    let mut inbound =
        client.stream_aggregated_resources(ReceiverStream::new(from)).await.unwrap().into_inner();
    let mut answered: BTreeSet<(String, String)> = BTreeSet::new();
    while answered.len() < 6 {
        let response = inbound.message().await.unwrap().unwrap();
        let acknowledge = DiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            resource_names: match Kind::of(&response.type_url).unwrap() {
                Kind::Endpoint => vec!["llm".to_owned(), "other".to_owned()],
                Kind::Route => vec!["ingress".to_owned()],
                Kind::Cluster | Kind::Listener => Vec::new(),
            },
            ..ask(Kind::of(&response.type_url).unwrap(), &[])
        };
        for any in &response.resources {
            // By content: each of the six has another.
            answered.insert((response.type_url.clone(), format!("{:?}", any.value)));
        }
        to.send(acknowledge).await.unwrap();
    }
    let clients = app.clients.list();
    assert_eq!(clients.values().map(|c| &*c.node).collect::<Vec<_>>(), ["once"]);
    drop((to, inbound));
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_health_flip_alone_changes_the_version_and_back_is_the_version_before() {
    // Case 104: through tidegate whole; `snapshot`'s tests have the same of the resources alone.
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
    let both = [(a, Serve::Healthy), (b, Serve::Healthy)];
    app.wait_served("llm", &both).await.unwrap();
    let sims: Vec<_> = BOTH.into_iter().map(|wire| app.sim(wire)).collect();
    let version = || app.version(snapshot::Kind::Endpoints, "llm");
    let wait_version = async |old: &Option<String>, same: bool| {
        eventually("the version follows", async || {
            let now = version();
            if now.is_some() && (now == *old) == same { Ok(now) } else { Err(format!("{now:?}")) }
        })
        .await
        .unwrap()
    };
    let healthy = wait_version(&None, false).await;
    fakes[1].set(Mode::Loading).await.unwrap();
    app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Unhealthy)]).await.unwrap();
    let ejected = wait_version(&healthy, false).await;
    for sim in &sims {
        let health = |m: &Machine| match m.assignment("llm").and_then(|all| all.get(&b)) {
            Some(endpoint) if endpoint.health.as_str_name() == "UNHEALTHY" => Ok(()),
            other => Err(format!("{other:?}")),
        };
        sim.wait_until("b is out", health).await.unwrap();
    }
    sims[0].wait_version(Kind::Endpoint, "llm", &ejected.unwrap()).await.unwrap();
    fakes[1].set(Mode::Healthy).await.unwrap();
    app.wait_served("llm", &both).await.unwrap();
    wait_version(&healthy, true).await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn what_a_client_refuses_is_seen_counted_and_not_sent_again_while_the_rest_goes_on() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let app = TestApp::start(&Setup::new().cluster("bad", [a, b]).cluster("good", [a, b])).await.unwrap();
        let mut options = SimOptions { asks: Asks::clusters(), ..SimOptions::new(app.xds(), wire) };
        options.refuse.push(Arc::new(|kind, name, _| {
            let refusal = Refusal { message: "not this one".to_owned(), spoils_message: false };
            (kind == Kind::Endpoint && name == "bad").then_some(refusal)
        }));
        let sim = SimEnvoy::start(options);
        let refused = |m: &Machine| {
            let refused = m.transcript().iter().any(|e| e.is_nack());
            if refused && m.assignment("good").is_some() { Ok(()) } else { Err(format!("{refused}")) }
        };
        sim.wait_until("one refused, one taken", refused).await.unwrap();
        eventually("the refusal is on record", async || {
            let clients = app.clients.list();
            let status =
                clients.values().next().and_then(|c| c.kinds.get(&snapshot::Kind::Endpoints)).cloned();
            match status {
                Some(s) if s.nacks == 1 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        assert_eq!(app.metric("tidegate_xds_nacks_total{type=\"eds\"}").await.unwrap(), 1.0);
        // Each flip changes both assignments: the refused one is a new one each time, and refused once each time.
        let flip = async |mode: Mode, serve: Serve, health: &str| {
            fakes[1].set(mode).await.unwrap();
            for cluster in ["good", "bad"] {
                app.wait_served(cluster, &[(a, Serve::Healthy), (b, serve)]).await.unwrap();
            }
            let moved = |m: &Machine| match m.assignment("good").and_then(|all| all.get(&b)) {
                Some(endpoint) if endpoint.health.as_str_name() == health => Ok(()),
                other => Err(format!("{other:?}")),
            };
            sim.wait_until("the other cluster moves on", moved).await.unwrap();
        };
        flip(Mode::Loading, Serve::Unhealthy, "UNHEALTHY").await;
        flip(Mode::Healthy, Serve::Healthy, "HEALTHY").await;
        flip(Mode::Loading, Serve::Unhealthy, "UNHEALTHY").await;
        // A bound that a loop of refusals would pass at once; the referee has watched for repetitions.
        let said = sim.transcript().iter().filter(|e| e.speaker == Speaker::Server).count();
        assert!(said < 30, "{said} responses");
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_listener_that_a_real_envoy_cannot_bind_is_refused_visibly_and_harms_nothing_else() {
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    // No machine has an address of the documentation's network.
    let unbindable: SocketAddr = "192.0.2.7:8080".parse().unwrap();
    let setup = Setup::new()
        .cluster("llm", [a, b])
        .listener("good", free_address(), "llm")
        .listener("stray", unbindable, "llm");
    for wire in BOTH {
        let app = TestApp::start(&setup).await.unwrap();
        let bootstrap = super::bootstrap(app.xds(), wire);
        let options = tidegate::testing::envoy::EnvoyOptions { wait_live: false, ..Default::default() };
        let envoy = tidegate::testing::envoy::EnvoyProcess::start(&bootstrap, &options).await.unwrap();
        envoy.listener("good").await.unwrap();
        eventually("the refusal is on record", async || {
            let clients = app.clients.list();
            let rejection = clients
                .values()
                .find_map(|c| c.kinds.get(&snapshot::Kind::Listener)?.latest_rejection().cloned())
                .ok_or_else(|| format!("{clients:?}"))?;
            if rejection.message.contains("192.0.2.7") { Ok(()) } else { Err(format!("{rejection:?}")) }
        })
        .await
        .unwrap();
        assert_eq!(app.metric("tidegate_xds_nacks_total{type=\"lds\"}").await.unwrap(), 1.0);
        fakes[1].set(Mode::Loading).await.unwrap();
        eventually("endpoints go on", async || match hosts(envoy.admin(), "llm").await {
            Some(hosts) if hosts.iter().any(|(at, health)| *at == b && health == "UNHEALTHY") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        wait_stat(envoy.admin(), "listener_manager.lds.update_rejected", 1).await;
        assert_eq!(app.metric("tidegate_xds_nacks_total{type=\"lds\"}").await.unwrap(), 1.0);
        fakes[1].set(Mode::Healthy).await.unwrap();
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn an_ejection_overtakes_the_good_news_that_waits() {
    // The window is far longer than a test may take to see an ejection: whatever passes it, passes it at once.
    let (first, second) = (fakes(2).await, fakes(2).await);
    let setup = Setup::new()
        .merge_window("10s")
        .cluster("first", addresses(&first))
        .cluster("second", addresses(&second));
    let app = TestApp::start(&setup).await.unwrap();
    let sim = app.sim(Wire::Delta);
    let wait = async |cluster: &'static str, at: SocketAddr, health: &'static str| {
        let is = |m: &Machine| match m.assignment(cluster).and_then(|all| all.get(&at)) {
            Some(endpoint) if endpoint.health.as_str_name() == health => Ok(()),
            other => Err(format!("{other:?}")),
        };
        sim.wait_until(&format!("{cluster}'s {at} is {health}"), is).await.unwrap();
    };
    let (a, x) = (first[0].address(), second[0].address());
    wait("first", a, "HEALTHY").await;
    wait("second", x, "HEALTHY").await;
    first[0].set(Mode::Loading).await.unwrap();
    wait("first", a, "UNHEALTHY").await;
    first[0].set(Mode::Healthy).await.unwrap();
    app.wait_served("first", &[(a, Serve::Healthy), (first[1].address(), Serve::Healthy)]).await.unwrap();
    let recovered: MonoTime = app.clock.now();
    second[0].set(Mode::Loading).await.unwrap();
    wait("second", x, "UNHEALTHY").await;
    let still = sim.assignment("first").unwrap()[&a].health.as_str_name();
    // Only a machine that stood still for the whole window could have seen both.
    assert!(still == "UNHEALTHY" || app.clock.now().since(recovered).as_secs() >= 9, "{still}");
    wait("first", a, "HEALTHY").await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_client_whose_connection_is_old_comes_anew_and_misses_nothing() {
    // Case 89: an aggregated stream never ends by itself, so it is ended.
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let setup = Setup::new().cluster("llm", [a, b]).max_connection_age("1s");
    let app = TestApp::start(&setup).await.unwrap();
    let sims: Vec<_> = (0..20).flat_map(|_| BOTH).map(|wire| app.sim(wire)).collect();
    for sim in &sims {
        sim.wait_until("a third stream", |m| {
            if m.streams() >= 3 { Ok(()) } else { Err(m.streams().to_string()) }
        })
        .await
        .unwrap();
    }
    fakes[0].set(Mode::Loading).await.unwrap();
    for sim in &sims {
        sim.wait_until("the verdict", |m| match m.assignment("llm") {
            Some(told) if told.values().any(|e| e.health.as_str_name() == "UNHEALTHY") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
    }
    app.reload(&Setup::new().cluster("llm", [a, b])).await.unwrap();
    app.stop().await.unwrap();
}
