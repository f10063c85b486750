//! Instances that are not ready yet, clusters of which nothing is known yet, and an Envoy that starts meanwhile.

use std::cell::Cell;
use std::time::Duration;

use tidegate::model::Serve;
use tidegate::pb::admin::admin_client::AdminClient;
use tidegate::pb::admin::{DrainInstanceRequest, UndrainInstanceRequest};
use tidegate::testing::app::TestApp;
use tidegate::testing::envoy::{EnvoyOptions, EnvoyProcess};
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::instance::Mode;
use tidegate::testing::setup::{Setup, free_address};
use tidegate::testing::sim_envoy::{Kind, Machine};

use super::{
    BOTH, addresses, assert_all_ok, bootstrap, envoy, fakes, fakes_in, hosts, traffic, wait_hosts, wait_more,
    wait_stat,
};

#[tokio::test]
async fn a_fleet_that_loads_is_ready_served_empty_and_keeps_no_envoy_from_starting() {
    // Case 40.
    for wire in BOTH {
        let fakes = fakes_in(3, Mode::Loading).await;
        let [a, b, c] = addresses(&fakes)[..] else { unreachable!("three") };
        let app = TestApp::start(&Setup::new().cluster("llm", [a, b, c])).await.unwrap();
        app.wait_served("llm", &[]).await.unwrap();
        assert!(fetch::get(app.health(), "/readyz").await.unwrap().status.is_success());
        let envoy = envoy(app.xds(), wire).await;
        wait_stat(envoy.admin(), "cluster.llm.update_success", 1).await;
        assert_eq!(hosts(envoy.admin(), "llm").await, Some(Vec::new()));
        assert_eq!(envoy.admin().stat("cluster.llm.init_fetch_timeout").await.unwrap(), Some(0));
        for fake in &fakes {
            let asked = |account: &tidegate::testing::instance::Account| account.requests.len() > 5;
            fake.wait_until("asked again and again", asked).await.unwrap();
        }
        assert_eq!(hosts(envoy.admin(), "llm").await, Some(Vec::new()));
        fakes[1].set(Mode::Healthy).await.unwrap();
        wait_hosts(envoy.admin(), "llm", &[(b, "HEALTHY")]).await;
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn instances_that_start_beside_five_that_serve_cause_no_panic_and_come_when_they_pass() {
    // Cases 49 and 53.
    for wire in BOTH {
        let (old, new) = (fakes(5).await, fakes_in(6, Mode::Loading).await);
        let listener = free_address();
        let setup = Setup::new().cluster("llm", addresses(&old)).listener("ingress", listener, "llm");
        let app = TestApp::start(&setup).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        wait_stat(envoy.admin(), "cluster.llm.membership_healthy", 5).await;
        let mut traffic = traffic(listener);
        let all: Vec<_> = addresses(&old).into_iter().chain(addresses(&new)).collect();
        app.reload(&setup.clone().cluster("llm", all)).await.unwrap();
        for fake in &new {
            let asked = |account: &tidegate::testing::instance::Account| account.requests.len() > 3;
            fake.wait_until("asked", asked).await.unwrap();
        }
        wait_more(&mut traffic, 20).await;
        let stat = async |name: &str| envoy.admin().stat(&format!("cluster.llm.{name}")).await.unwrap();
        assert_eq!(stat("membership_total").await, Some(5));
        assert_eq!(stat("lb_healthy_panic").await, Some(0));
        let listed = app.version(tidegate::snapshot::Kind::Endpoints, "llm");
        new[0].set(Mode::Healthy).await.unwrap();
        wait_stat(envoy.admin(), "cluster.llm.membership_total", 6).await;
        assert_ne!(listed, app.version(tidegate::snapshot::Kind::Endpoints, "llm"));
        assert!(new[1..].iter().all(|fake| fake.account().by_path().keys().all(|path| *path == "/health")));
        assert_all_ok(&traffic.stop().await);
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn endpoints_that_churn_while_envoy_starts_leave_no_cluster_warming() {
    // Case 56. Endpoints come and go with each reload, and meanwhile flip by the hundred, as fast as the fleet takes
    // it, while Envoy is between its first request and LIVE.
    for wire in BOTH {
        let fakes = fakes(4).await;
        let listener = free_address();
        let setup = Setup::new()
            .merge_window("0s")
            .cluster("llm", addresses(&fakes))
            .cluster("other", addresses(&fakes[..2]))
            .listener("ingress", listener, "llm");
        let app = TestApp::start(&setup).await.unwrap();
        app.wait_plan("decided", |plan| plan.generation > 2).await.unwrap();
        let churn = async {
            let mut round = 0;
            loop {
                let some = addresses(&fakes[..1 + round % 4]);
                let next = setup.clone().cluster("llm", some).cluster("other", addresses(&fakes[2..]));
                app.reload(&next).await.unwrap();
                for (at, fake) in fakes.iter().enumerate() {
                    let mode = if at == round % 4 { Mode::Loading } else { Mode::Healthy };
                    fake.set(mode).await.unwrap();
                }
                round += 1;
            }
        };
        let flips = Cell::new(0);
        let flip = async {
            let mut admin = AdminClient::new(app.admin_channel().await.unwrap());
            loop {
                // This one is in the cluster whatever else happens; between two flips Envoy may be anywhere.
                let id = app.instance_of("llm", fakes[0].address());
                let name = format!("clusters/llm/instances/{id}");
                let drain = DrainInstanceRequest { name: name.clone(), ..Default::default() };
                admin.drain_instance(drain).await.unwrap();
                admin.undrain_instance(UndrainInstanceRequest { name }).await.unwrap();
                flips.set(flips.get() + 2);
            }
        };
        let start = async {
            let bootstrap = bootstrap(app.xds(), wire);
            let mut starts = 0;
            while starts < 3 || flips.get() < 300 {
                starts += 1;
                let envoy = EnvoyProcess::start(&bootstrap, &EnvoyOptions::default()).await.unwrap();
                wait_stat(envoy.admin(), "cluster_manager.warming_clusters", 0).await;
                wait_stat(envoy.admin(), "control_plane.connected_state", 1).await;
            }
        };
        tokio::select! {
            () = churn => unreachable!("it never ends"),
            () = flip => unreachable!("nor does this"),
            () = start => {}
        }
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_cluster_without_a_verdict_stays_unanswered_beside_one_that_is_answered() {
    for wire in BOTH {
        let (good, dumb) = (fakes(1).await, fakes_in(2, Mode::Refuse).await);
        let setup = Setup::new()
            .first_verdict_wait("300ms")
            .cluster("good", addresses(&good))
            .cluster("dumb", addresses(&dumb));
        let app = TestApp::start(&setup).await.unwrap();
        let sim = app.sim(wire);
        let both = |m: &Machine| {
            let clusters = m.clusters();
            if m.assignment("good").is_some() && clusters.len() == 2 {
                Ok(())
            } else {
                Err(format!("{clusters:?}"))
            }
        };
        sim.wait_until("both clusters and one assignment", both).await.unwrap();
        // Well after the waiting time, and after many refusals, it is as it was.
        let waited = app.clock.now() + Duration::from_millis(900);
        eventually("the waiting time is long over", async || {
            if app.clock.now() > waited { Ok(()) } else { Err("not yet") }
        })
        .await
        .unwrap();
        assert_eq!(sim.assignment("dumb"), None);
        let report = fetch::get(app.health(), "/readyz?verbose").await.unwrap();
        assert!(report.status.is_success());
        assert!(report.text().contains("[!] cluster dumb: no verdict yet"), "{}", report.text());
        assert_eq!(app.metric("tidegate_cluster_decided{cluster=\"dumb\"}").await.unwrap(), 0.0);

        dumb[0].set(Mode::Healthy).await.unwrap();
        app.wait_served("dumb", &[(dumb[0].address(), Serve::Healthy)]).await.unwrap();
        let one = |m: &Machine| match m.assignment("dumb") {
            Some(endpoints) if endpoints.len() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        sim.wait_until("the one that answers", one).await.unwrap();
        let empty_ones = sim
            .transcript()
            .iter()
            .filter(|e| e.kind == Some(Kind::Endpoint) && e.dropped.contains("dumb"))
            .count();
        assert_eq!(empty_ones, 0);
        app.stop().await.unwrap();
    }
}
