//! tidegate's own ports, and those who take places on them and say nothing.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::net::Descriptors;
use tidegate::testing::app::{TestApp, replace, sample};
use tidegate::testing::eventually::{eventually, patience};
use tidegate::testing::fetch;
use tidegate::testing::instance::Mode;
use tidegate::testing::process::TidegateProcess;
use tidegate::testing::setup::Setup;
use tidegate::testing::sim_envoy::{Asks, Machine, SimEnvoy, SimOptions, Wire};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{BINARY, addresses, fakes};
use crate::admin::ok;

async fn silent(count: usize, at: SocketAddr) -> Vec<TcpStream> {
    let mut peers = Vec::new();
    for _ in 0..count {
        peers.push(TcpStream::connect(at).await.unwrap());
    }
    peers
}

/// Waits until nobody but these is connected: `xds`, `admin`, and the one that asks.
async fn wait_alone(health: SocketAddr, xds: f64) {
    eventually("all others are gone", async || {
        let page = fetch::get(health, "/metrics").await.map_err(|e| format!("{e:#}"))?.text();
        let open = |port| sample(&page, &format!("tidegate_listen_connections{{port=\"{port}\"}}"));
        let now = (open("xds"), open("admin"), open("health"));
        if now == (Some(xds), Some(0.0), Some(1.0)) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn whoever_says_nothing_or_half_a_word_is_let_go_on_every_port() {
    let app = TestApp::start(&Setup::new()).await.unwrap();
    let mut peers = Vec::new();
    for (to, half) in [
        (app.xds(), "PRI * HTTP/2"),
        (app.admin(), "PRI * HTTP/2"),
        (app.health(), "GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: "),
    ] {
        for text in ["", half] {
            let mut peer = TcpStream::connect(to).await.unwrap();
            peer.write_all(text.as_bytes()).await.unwrap();
            peers.push((to, text, peer));
        }
    }
    for (to, text, mut peer) in peers {
        let read = tokio::time::timeout(patience(), peer.read_to_end(&mut Vec::new())).await;
        assert!(read.is_ok(), "{to} waits for ever after {text:?}");
    }
    wait_alone(app.health(), 0.0).await;
    app.stop().await.unwrap();
}

#[tokio::test]
async fn over_the_cap_a_connection_is_refused_and_a_later_client_is_served() {
    let app = TestApp::start(&Setup::new()).await.unwrap();
    let Descriptors { admin, health, .. } = Descriptors::raise();
    for (port, at, cap) in [("admin", app.admin(), admin), ("health", app.health(), health)] {
        let crowd = silent(cap, at).await;
        let mut too_many = TcpStream::connect(at).await.unwrap();
        let read = tokio::time::timeout(patience(), too_many.read(&mut [0])).await.unwrap();
        assert!(!read.is_ok_and(|length| length > 0), "{port}");
        drop(crowd);
        wait_alone(app.health(), 0.0).await;
        let refused = format!("tidegate_listen_refused_total{{port=\"{port}\"}}");
        assert!(app.metric(&refused).await.unwrap() >= 1.0, "{port}");
    }
    ok(&app, &["get", "clusters"]).await;
    assert!(fetch::get(app.health(), "/livez").await.unwrap().status.is_success());
    app.stop().await.unwrap();
}

/// What clients are told about the instance at `at`.
fn told(at: SocketAddr, health: &'static str) -> impl Fn(&Machine) -> Result<(), String> {
    move |m| match m.assignment("llm").and_then(|all| all.get(&at)) {
        Some(endpoint) if endpoint.health.as_str_name() == health => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[tokio::test]
async fn silent_crowds_on_every_port_cost_no_core_and_leave_no_trace() {
    // With 64 descriptors the shares hold: verdicts go on, and the crowds are let go. With 24 there are not enough for
    // the shares: accepting fails, and nobody can be asked, until the crowds leave.
    for (limit, enough) in [(64, true), (24, false)] {
        let fakes = fakes(2).await;
        let at = fakes[0].address();
        let setup = Setup::new().fixed_ports().cluster("llm", addresses(&fakes));
        let mut tidegate = TidegateProcess::prepare(BINARY, &setup).unwrap();
        tidegate.limit_descriptors(limit);
        tidegate.run().unwrap();
        tidegate.wait_ready().await.unwrap();
        let asks = SimOptions { asks: Asks::clusters(), ..SimOptions::new(tidegate.xds(), Wire::Delta) };
        let sim = SimEnvoy::start(asks);
        sim.wait_until("healthy", told(at, "HEALTHY")).await.unwrap();

        let mut crowds = Vec::new();
        for at in [tidegate.xds(), tidegate.admin(), tidegate.health()] {
            crowds.push(silent(90, at).await);
        }
        let before = tidegate.cpu_ticks().unwrap();
        if enough {
            fakes[0].set(Mode::Refuse).await.unwrap();
            sim.wait_until("a verdict all the same", told(at, "UNHEALTHY")).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(4)).await;
        let ticks = tidegate.cpu_ticks().unwrap() - before;
        assert!(ticks < 100, "{ticks} ticks in four seconds: {}", tidegate.log());
        if !enough {
            crowds.clear();
        }
        wait_alone(tidegate.health(), 1.0).await;
        let log = tidegate.log();
        assert_eq!(log.contains("accepting a connection failed"), !enough, "{log}");
        assert!(log.lines().count() < 40, "{log}");

        assert!(fetch::get(tidegate.health(), "/readyz").await.unwrap().status.is_success());
        fakes[0].set(Mode::Healthy).await.unwrap();
        sim.wait_until("healthy again", told(at, "HEALTHY")).await.unwrap();
        fakes[0].set(Mode::Refuse).await.unwrap();
        sim.wait_until("unhealthy again", told(at, "UNHEALTHY")).await.unwrap();
        replace(&tidegate.config_path(), &setup.cluster("other", []).yaml()).unwrap();
        sim.wait_until("another cluster", |m| {
            if m.clusters().contains("other") { Ok(()) } else { Err(format!("{:?}", m.clusters())) }
        })
        .await
        .unwrap();
        drop(crowds);
        assert!(tidegate.terminate().await.unwrap().success(), "{}", tidegate.log());
    }
}
