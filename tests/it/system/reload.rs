//! A config file that changes under a running tidegate.

use std::os::unix::fs::symlink;

use tidegate::model::Serve;
use tidegate::testing::app::{TestApp, replace, sample};
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::process::TidegateProcess;
use tidegate::testing::setup::{Setup, free_address};
use tidegate::testing::sim_envoy::{Kind, Machine, SimEnvoy, Speaker};

use super::{BINARY, BOTH, addresses, assert_all_ok, envoy, fakes, traffic, wait_hosts, wait_more};

async fn wait_report(tidegate: &TidegateProcess, wanted: &str) -> String {
    eventually(&format!("the report says {wanted:?}"), async || {
        let page = fetch::get(tidegate.health(), "/readyz?verbose").await.map_err(|e| format!("{e:#}"))?;
        let text = page.text();
        if text.contains(wanted) && page.status.is_success() { Ok(text) } else { Err(text) }
    })
    .await
    .unwrap()
}

async fn metric(tidegate: &TidegateProcess, name: &str) -> Option<f64> {
    sample(&fetch::get(tidegate.health(), "/metrics").await.unwrap().text(), name)
}

#[tokio::test]
async fn a_file_changed_in_place_by_rename_or_by_symlink_is_applied() {
    // Case 130, through the real process: the watch begins where the process looks, not where a test does.
    let setup = Setup::new().fixed_ports();
    let mut tidegate = TidegateProcess::prepare(BINARY, &setup).unwrap();
    let path = tidegate.config_path();
    // A ConfigMap's shape: the file is a link through `..data`, which is a link to a directory.
    let (dir, path) = (tidegate.dir().to_owned(), path);
    for (version, name) in [("v1", "one"), ("v2", "two")] {
        std::fs::create_dir(dir.join(version)).unwrap();
        let text = setup.clone().cluster(name, []).yaml();
        std::fs::write(dir.join(version).join("tidegate.yaml"), text).unwrap();
    }
    symlink("v1", dir.join("..data")).unwrap();
    std::fs::remove_file(&path).unwrap();
    symlink("..data/tidegate.yaml", &path).unwrap();
    tidegate.run().unwrap();
    tidegate.wait_ready().await.unwrap();
    assert_eq!(metric(&tidegate, "tidegate_cluster_decided{cluster=\"one\"}").await, Some(1.0));

    symlink("v2", dir.join("..data.new")).unwrap();
    std::fs::rename(dir.join("..data.new"), dir.join("..data")).unwrap();
    std::fs::remove_dir_all(dir.join("v1")).unwrap();
    wait_report(&tidegate, "[+] config: in force, 1 reloads").await;
    assert_eq!(metric(&tidegate, "tidegate_cluster_decided{cluster=\"two\"}").await, Some(1.0));
    assert_eq!(metric(&tidegate, "tidegate_cluster_decided{cluster=\"one\"}").await, None);

    replace(&path, &setup.clone().cluster("three", []).yaml()).unwrap();
    wait_report(&tidegate, "[+] config: in force, 2 reloads").await;
    std::fs::write(&path, setup.clone().cluster("four", []).yaml()).unwrap();
    wait_report(&tidegate, "[+] config: in force, 3 reloads").await;
    assert_eq!(metric(&tidegate, "tidegate_cluster_decided{cluster=\"four\"}").await, Some(1.0));
    assert_eq!(tidegate.log().matches("config reloaded").count(), 3, "{}", tidegate.log());
}

#[tokio::test]
async fn a_bad_file_keeps_the_last_good_one_and_says_so_everywhere_until_it_is_good_again() {
    let setup = Setup::new().fixed_ports().cluster("one", []);
    let tidegate = TidegateProcess::start(BINARY, &setup).await.unwrap();
    let path = tidegate.config_path();
    for (bad, why) in [
        ("clusters: { one: { instances: { a: { address: nowhere } } } }", "line 1"),
        ("clusters: [", "line"),
        ("", "the file is empty"),
    ] {
        replace(&path, bad).unwrap();
        let report = wait_report(&tidegate, "[!] config: the last good one stays in force").await;
        assert!(report.contains(why), "{why}: {report}");
        assert_eq!(metric(&tidegate, "tidegate_config_in_force").await, Some(0.0));
        assert_eq!(metric(&tidegate, "tidegate_cluster_decided{cluster=\"one\"}").await, Some(1.0));
        replace(&path, &setup.yaml()).unwrap();
        wait_report(&tidegate, "[+] config: in force").await;
        assert_eq!(metric(&tidegate, "tidegate_config_in_force").await, Some(1.0));
    }
    std::fs::remove_file(&path).unwrap();
    wait_report(&tidegate, "the file does not exist").await;
    replace(&path, &setup.yaml()).unwrap();
    wait_report(&tidegate, "[+] config: in force").await;
    let log = tidegate.log();
    assert!(log.contains("config refused; the last good one stays in force"), "{log}");
    assert_eq!(metric(&tidegate, "tidegate_config_refused_total").await, Some(2.0));
}

#[tokio::test]
async fn another_listen_port_waits_for_a_restart_and_the_rest_applies() {
    let setup = Setup::new().fixed_ports().cluster("one", []);
    let tidegate = TidegateProcess::start(BINARY, &setup).await.unwrap();
    let moved = setup.clone().xds_at(free_address()).cluster("two", []);
    replace(&tidegate.config_path(), &moved.yaml()).unwrap();
    let report = wait_report(&tidegate, "[!] config: a restart is needed for listen.xds").await;
    assert!(report.contains("[+] config: in force"), "{report}");
    assert_eq!(metric(&tidegate, "tidegate_cluster_decided{cluster=\"two\"}").await, Some(1.0));
    assert!(tokio::net::TcpStream::connect(setup.xds).await.is_ok());
    replace(&tidegate.config_path(), &setup.yaml()).unwrap();
    let report = wait_report(&tidegate, "2 reloads").await;
    assert!(!report.contains("restart"), "{report}");
}

#[tokio::test]
async fn a_cluster_taken_out_and_put_back_gets_its_endpoints_again_on_the_same_stream() {
    // Cases 67 and 68: the content, and so the version, is what it was before.
    let fakes = fakes(2).await;
    let full = Setup::new().cluster("stays", addresses(&fakes[..1])).cluster("llm", addresses(&fakes));
    for wire in BOTH {
        let app = TestApp::start(&full).await.unwrap();
        let sim = app.sim(wire);
        let has = |wanted: usize| {
            move |m: &Machine| match m.assignment("llm") {
                Some(endpoints) if endpoints.len() == wanted => Ok(()),
                None if wanted == 0 && !m.clusters().contains("llm") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        sim.wait_until("two endpoints", has(2)).await.unwrap();
        let version = app.version(tidegate::snapshot::Kind::Endpoints, "llm");
        for _ in 0..2 {
            app.reload(&full.clone().without_cluster("llm")).await.unwrap();
            sim.wait_until("gone", has(0)).await.unwrap();
            app.reload(&full).await.unwrap();
            sim.wait_until("back", has(2)).await.unwrap();
            assert_eq!(app.version(tidegate::snapshot::Kind::Endpoints, "llm"), version);
        }
        assert_eq!(sim.look(Machine::streams), 1);
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn ten_clusters_taken_out_while_an_envoy_is_away_are_ten_removals_when_it_is_back() {
    // Case 77. SotW has no word for removal: what is missing from the list is gone.
    let fakes = fakes(1).await;
    let names: Vec<String> = (0..12).map(|n| format!("c{n:02}")).collect();
    let of = |names: &[String]| {
        names.iter().fold(Setup::new(), |setup, name| setup.cluster(name, addresses(&fakes)))
    };
    let app = TestApp::start(&of(&names)).await.unwrap();
    let sims = BOTH.map(|wire| app.sim(wire));
    let has = |names: &[String]| {
        let wanted: Vec<String> = names.to_vec();
        move |m: &Machine| {
            let all = m.clusters().into_iter().eq(wanted.iter().cloned());
            let served = wanted.iter().all(|name| m.assignment(name).is_some_and(|all| all.len() == 1));
            if all && served { Ok(()) } else { Err(format!("{:?}", m.clusters())) }
        }
    };
    for sim in &sims {
        sim.wait_until("twelve clusters", has(&names)).await.unwrap();
        sim.disconnect();
        let gone = |m: &Machine| if m.is_connected() { Err("connected".to_owned()) } else { Ok(()) };
        sim.wait_until("away", gone).await.unwrap();
    }
    app.reload(&of(&names[..2])).await.unwrap();
    app.wait_plan("two clusters", |plan| plan.clusters.len() == 2).await.unwrap();
    for sim in &sims {
        let said = sim.transcript().len();
        sim.connect();
        sim.wait_until("two clusters", has(&names[..2])).await.unwrap();
        let since = sim.transcript().split_off(said);
        let dropped: Vec<_> = since
            .iter()
            .filter(|e| e.speaker == Speaker::Server && e.kind == Some(Kind::Cluster))
            .flat_map(|e| e.dropped.clone())
            .collect();
        let delta = since.iter().any(|e| !e.dropped.is_empty());
        assert!(!delta || dropped == names[2..], "{dropped:?}");
        // What it had and still has is not sent again, where it could say that it had it.
        let said = since.iter().filter(|e| e.speaker == Speaker::Server);
        let sent_again = said.filter(|e| !e.versions.is_empty()).count();
        assert_eq!(sent_again, 0, "{since:?}");
    }
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_cluster_taken_out_and_put_back_carries_traffic_of_a_real_envoy_again() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let listener = free_address();
        let bare = Setup::new().cluster("stays", [a]);
        let full = bare.clone().cluster("llm", [a, b]).listener("ingress", listener, "llm");
        let app = TestApp::start(&full).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "HEALTHY")]).await;
        app.reload(&bare).await.unwrap();
        eventually("Envoy has let it go", async || match envoy.admin().clusters().await {
            Ok(clusters) if !clusters.contains_key("llm") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        app.reload(&full).await.unwrap();
        wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "HEALTHY")]).await;
        envoy.listener("ingress").await.unwrap();
        let mut traffic = traffic(listener);
        wait_more(&mut traffic, 20).await;
        assert_all_ok(&traffic.stop().await);
        let clients = app.clients.list();
        assert_eq!(clients.len(), 1);
        assert_eq!(envoy.admin().stat("cluster.llm.init_fetch_timeout").await.unwrap(), Some(0));
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn an_unchanged_file_written_again_says_nothing_to_anybody() {
    let fakes = fakes(1).await;
    let setup = Setup::new().cluster("llm", addresses(&fakes));
    let app = TestApp::start(&setup).await.unwrap();
    app.wait_served("llm", &[(fakes[0].address(), Serve::Healthy)]).await.unwrap();
    let sims: Vec<SimEnvoy> = BOTH.into_iter().map(|wire| app.sim(wire)).collect();
    for sim in &sims {
        let settled = |m: &Machine| match m.transcript().last() {
            Some(last) if last.is_ack() && last.kind == Some(Kind::Listener) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        sim.wait_until("all types are acknowledged", settled).await.unwrap();
    }
    let said: Vec<_> = sims.iter().map(|sim| sim.transcript().len()).collect();
    // A comment makes it another file with the same meaning.
    replace(&app.config_path(), &format!("# again\n{}", setup.yaml())).unwrap();
    eventually("the file is read again", async || {
        let reloads = app.metric("tidegate_config_reloads_total").await.unwrap_or(0.0);
        if reloads >= 1.0 { Ok(()) } else { Err(reloads) }
    })
    .await
    .unwrap();
    fakes[0].wait_until("asked on", |account| account.requests.len() > 10).await.unwrap();
    assert_eq!(sims.iter().map(|sim| sim.transcript().len()).collect::<Vec<_>>(), said);
    app.stop().await.unwrap();
}

#[tokio::test]
async fn instances_that_move_between_zones_lose_no_request() {
    // Case 62: a move is one push, and Envoy makes another host of it, on connections of its own.
    let fakes = fakes(10).await;
    let listener = free_address();
    let setup = Setup::new().cluster("llm", addresses(&fakes)).listener("ingress", listener, "llm");
    for wire in BOTH {
        let app = TestApp::start(&setup.clone().zones(&["a", "b"])).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        let healthy: Vec<_> = addresses(&fakes).into_iter().map(|at| (at, "HEALTHY")).collect();
        wait_hosts(envoy.admin(), "llm", &healthy).await;
        envoy.listener("ingress").await.unwrap();
        let mut traffic = traffic(listener);
        for zones in [&["b", "a"][..], &["a"], &["c", "b", "a"], &["a", "b"]] {
            let updates = async || envoy.admin().stat("cluster.llm.update_success").await.unwrap();
            let before = updates().await;
            app.reload(&setup.clone().zones(zones)).await.unwrap();
            eventually("Envoy has taken the move", async || match updates().await {
                now if now > before => Ok(()),
                now => Err(format!("{now:?} after {before:?}")),
            })
            .await
            .unwrap();
            wait_more(&mut traffic, 40).await;
        }
        assert_all_ok(&traffic.stop().await);
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_route_moved_to_a_new_cluster_loses_no_request() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let listener = free_address();
        let blue = Setup::new().cluster("blue", [a]).listener("ingress", listener, "blue");
        let green = Setup::new().cluster("green", [b]).listener("ingress", listener, "green");
        let app = TestApp::start(&blue).await.unwrap();
        app.wait_served("blue", &[(a, Serve::Healthy)]).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        wait_hosts(envoy.admin(), "blue", &[(a, "HEALTHY")]).await;
        envoy.listener("ingress").await.unwrap();
        let mut traffic = traffic(listener);
        wait_more(&mut traffic, 20).await;
        app.reload(&green).await.unwrap();
        super::wait_served_by(&mut traffic, fakes[1].name(), 0).await;
        wait_more(&mut traffic, 20).await;
        assert_all_ok(&traffic.stop().await);
        app.stop().await.unwrap();
    }
}
