//! tidegate ends and comes back, politely or not, and Envoy's world stays as it is.

use std::net::SocketAddr;

use tidegate::clock::Clock;
use tidegate::testing::envoy::EnvoyProcess;
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::instance::{FakeInstance, Mode};
use tidegate::testing::process::TidegateProcess;
use tidegate::testing::setup::{Setup, free_address};
use tidegate::testing::sim_envoy::{SimEnvoy, SimOptions, Wire};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::{
    BINARY, BOTH, addresses, assert_all_ok, envoy, fakes, hosts, traffic, wait_hosts, wait_more, wait_stat,
};

/// A tidegate process, three fakes, an Envoy in between.
struct Site {
    fakes: Vec<FakeInstance>,
    listener: SocketAddr,
    tidegate: TidegateProcess,
    envoy: EnvoyProcess,
}

impl Site {
    async fn start(wire: Wire) -> Self {
        let fakes = fakes(3).await;
        let listener = free_address();
        let setup =
            Setup::new().fixed_ports().cluster("llm", addresses(&fakes)).listener("ingress", listener, "llm");
        let tidegate = TidegateProcess::start(BINARY, &setup).await.unwrap();
        let envoy = envoy(tidegate.xds(), wire).await;
        let site = Self { fakes, listener, tidegate, envoy };
        site.wait_all_healthy().await;
        site
    }

    async fn wait_all_healthy(&self) {
        let all: Vec<_> = self.fakes.iter().map(|fake| (fake.address(), "HEALTHY")).collect();
        wait_hosts(self.envoy.admin(), "llm", &all).await;
    }

    async fn wait_connected(&self, connected: u64) {
        wait_stat(self.envoy.admin(), "control_plane.connected_state", connected).await;
    }

    /// Counters that move when Envoy's world does.
    async fn world(&self) -> Vec<Option<u64>> {
        let names = [
            "cluster_manager.cluster_added",
            "cluster_manager.cluster_modified",
            "cluster_manager.cluster_removed",
            "cluster.llm.membership_change",
            "cluster.llm.membership_healthy",
            "listener_manager.listener_modified",
            "cluster.llm.update_empty",
        ];
        let mut world = Vec::new();
        for name in names {
            world.push(self.envoy.admin().stat(name).await.unwrap());
        }
        world
    }

    /// Waits until endpoints were answered on the new stream.
    async fn wait_answered(&self) {
        let health = self.tidegate.health();
        eventually("endpoints are acknowledged", async || {
            let page = fetch::get(health, "/metrics").await.map_err(|e| format!("{e:#}"))?.text();
            let line = "tidegate_xds_acks_total{type=\"eds\"}";
            page.lines()
                .any(|l| l.starts_with(line))
                .then_some(())
                .ok_or_else(|| "no ACK of endpoints".to_owned())
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn sigterm_under_traffic_and_a_restart_change_nothing_at_envoy() {
    for wire in BOTH {
        let mut site = Site::start(wire).await;
        let mut traffic = traffic(site.listener);
        wait_more(&mut traffic, 20).await;
        let before = site.world().await;
        let clock = Clock::start();
        assert!(site.tidegate.terminate().await.unwrap().success());
        // The promise is five seconds; the supervisor of a container kills after ten at the earliest.
        assert!(clock.now().since_start().as_secs() < 10, "{}", site.tidegate.log());
        site.wait_connected(0).await;
        wait_more(&mut traffic, 20).await;
        assert_eq!(site.world().await, before);
        site.tidegate.run().unwrap();
        site.tidegate.wait_ready().await.unwrap();
        site.wait_connected(1).await;
        site.wait_answered().await;
        wait_more(&mut traffic, 20).await;
        assert_eq!(site.world().await, before);
        assert_all_ok(&traffic.stop().await);
        site.fakes[2].set(Mode::Refuse).await.unwrap();
        let [a, b, c] = addresses(&site.fakes)[..] else { unreachable!("three") };
        wait_hosts(site.envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "HEALTHY"), (c, "UNHEALTHY")]).await;
    }
}

#[tokio::test]
async fn kill_9_and_a_restart_while_nobody_answers_empty_no_cluster() {
    for wire in BOTH {
        let mut site = Site::start(wire).await;
        let mut traffic = traffic(site.listener);
        wait_more(&mut traffic, 20).await;
        let before = site.world().await;
        site.tidegate.kill().await.unwrap();
        site.wait_connected(0).await;
        wait_more(&mut traffic, 20).await;
        assert_all_ok(&traffic.stop().await);

        for fake in &site.fakes {
            fake.set(Mode::Hang).await.unwrap();
        }
        site.tidegate.run().unwrap();
        site.tidegate.wait_ready().await.unwrap();
        site.wait_connected(1).await;
        let health = site.tidegate.health();
        eventually("everyone was asked twice, in vain", async || {
            let page = fetch::get(health, "/readyz?verbose").await.map_err(|e| format!("{e:#}"))?.text();
            let unheard = page.contains("[!] cluster llm: no verdict yet");
            let asked = site.fakes.iter().all(|f| f.account().by_path().get("/health") >= Some(&4));
            if unheard && asked { Ok(()) } else { Err(page) }
        })
        .await
        .unwrap();
        assert_eq!(site.world().await, before, "{}", site.tidegate.log());
        let known = hosts(site.envoy.admin(), "llm").await.unwrap();
        assert!(known.len() == 3 && known.iter().all(|(_, health)| health == "HEALTHY"), "{known:?}");

        for fake in &site.fakes {
            fake.set(Mode::Healthy).await.unwrap();
        }
        site.wait_answered().await;
        assert_eq!(site.world().await, before);
    }
}

#[tokio::test]
async fn tidegate_and_envoy_restarted_together_find_each_other_again() {
    // Case 70: the version is the same as before, and the stream that is new is answered all the same.
    for wire in BOTH {
        let mut site = Site::start(wire).await;
        let old = std::mem::replace(&mut site.envoy, envoy(site.tidegate.xds(), wire).await);
        old.terminate().await.unwrap();
        site.tidegate.kill().await.unwrap();
        site.tidegate.run().unwrap();
        site.envoy = envoy(site.tidegate.xds(), wire).await;
        site.wait_all_healthy().await;
        let mut traffic = traffic(site.listener);
        wait_more(&mut traffic, 10).await;
        assert_all_ok(&traffic.stop().await);
        wait_stat(site.envoy.admin(), "cluster_manager.warming_clusters", 0).await;
        wait_stat(site.envoy.admin(), "cluster.llm.init_fetch_timeout", 0).await;
    }
}

#[tokio::test]
async fn twenty_restarts_in_a_row_come_back_on_the_same_ports() {
    // Case 127: each process is ended with connections open, which then linger on its ports.
    let fakes = fakes(1).await;
    let setup = Setup::new().fixed_ports().cluster("llm", addresses(&fakes));
    let mut tidegate = TidegateProcess::prepare(BINARY, &setup).unwrap();
    for round in 0..20 {
        tidegate.run().unwrap();
        tidegate.wait_ready().await.unwrap();
        let scraped = fetch::get(tidegate.health(), "/metrics").await.unwrap();
        assert!(scraped.status.is_success(), "round {round}");
        let _idle = TcpStream::connect(tidegate.health()).await.unwrap();
        let sim = SimEnvoy::start(SimOptions::new(tidegate.xds(), Wire::Delta));
        sim.wait_until("connected", |m| m.is_connected().then_some(()).ok_or_else(String::new))
            .await
            .unwrap();
        let status = if round % 2 == 0 { tidegate.terminate().await } else { tidegate.kill().await };
        assert_eq!(status.unwrap().success(), round % 2 == 0, "{}", tidegate.log());
    }
}

#[tokio::test]
async fn a_taken_port_is_exit_code_1_and_a_message_that_names_it() {
    let setup = Setup::new().fixed_ports();
    let taken = TcpListener::bind(setup.xds).await.unwrap();
    let mut tidegate = TidegateProcess::prepare(BINARY, &setup).unwrap();
    tidegate.run().unwrap();
    assert_eq!(tidegate.wait_exit().await.unwrap().code(), Some(1));
    let log = tidegate.log();
    assert!(log.contains(&setup.xds.to_string()) && log.contains("`listen.xds`"), "{log}");
    assert!(log.contains("another process listens there"), "{log}");
    drop(taken);
}

#[tokio::test]
async fn peers_that_stop_in_the_middle_do_not_delay_the_end() {
    let fakes = fakes(1).await;
    let setup = Setup::new().fixed_ports().cluster("llm", addresses(&fakes));
    let mut tidegate = TidegateProcess::start(BINARY, &setup).await.unwrap();
    let mut half = Vec::new();
    // Connection and settings, and then not a word, not even to GOAWAY.
    let settled = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    for (to, text) in [
        (tidegate.health(), "GET /metrics HT"),
        (tidegate.health(), "GET /livez HTTP/1.1\r\ncontent-length: 9\r\n\r\n"),
        (tidegate.health(), ""),
        (tidegate.admin(), "PRI * HTTP/2"),
        (tidegate.admin(), settled),
        (tidegate.admin(), ""),
        (tidegate.xds(), "PRI * HTTP/2"),
        (tidegate.xds(), settled),
        (tidegate.xds(), ""),
    ] {
        let mut peer = TcpStream::connect(to).await.unwrap();
        peer.write_all(text.as_bytes()).await.unwrap();
        half.push(peer);
    }
    let served = fetch::get(tidegate.health(), "/livez").await.unwrap();
    assert!(served.status.is_success());
    let clock = Clock::start();
    assert!(tidegate.terminate().await.unwrap().success());
    assert!(clock.now().since_start().as_secs() < 10, "{}", tidegate.log());
    drop(half);
}
