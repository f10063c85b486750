//! From nothing but `tidegate bootstrap` to traffic, and from a dead backend to traffic that has moved.

use tidegate::model::Serve;
use tidegate::testing::app::TestApp;
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess};
use tidegate::testing::instance::Mode;
use tidegate::testing::load::{Load, Traffic, shares};
use tidegate::testing::setup::{Setup, free_address};
use tidegate::testing::sim_envoy::Wire;

use super::{BOTH, addresses, assert_all_ok, envoy, fakes, traffic, wait_hosts, wait_more, wait_served_by};

#[tokio::test]
async fn a_dead_backend_loses_its_traffic_and_gets_it_back() {
    for wire in BOTH {
        let fakes = fakes(3).await;
        let [a, b, c] = addresses(&fakes)[..] else { unreachable!("three") };
        let listener = free_address();
        let setup = Setup::new().cluster("llm", [a, b, c]).listener("ingress", listener, "llm");
        let app = TestApp::start(&setup).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        let admin = envoy.admin();
        wait_hosts(admin, "llm", &[(a, "HEALTHY"), (b, "HEALTHY"), (c, "HEALTHY")]).await;
        assert_eq!(envoy.listener("ingress").await.unwrap(), listener);
        // Case 59: Envoy ignores health that comes with a cluster of any other type.
        let dump = admin.json("/config_dump?resource=dynamic_active_clusters").await.unwrap();
        assert_eq!(dump["configs"][0]["cluster"]["type"], "EDS", "{dump}");

        let mut traffic = traffic(listener);
        for fake in &fakes {
            wait_served_by(&mut traffic, fake.name(), 0).await;
        }
        fakes[1].set(Mode::Refuse).await.unwrap();
        wait_hosts(admin, "llm", &[(a, "HEALTHY"), (b, "UNHEALTHY"), (c, "HEALTHY")]).await;
        let moved = traffic.so_far().len();
        wait_more(&mut traffic, 40).await;
        assert!(!shares(&traffic.so_far()[moved..]).contains_key(fakes[1].name()));

        fakes[1].set(Mode::Healthy).await.unwrap();
        wait_hosts(admin, "llm", &[(a, "HEALTHY"), (b, "HEALTHY"), (c, "HEALTHY")]).await;
        let back = traffic.so_far().len();
        wait_served_by(&mut traffic, fakes[1].name(), back).await;
        let sent = traffic.stop().await;
        assert_all_ok(&sent[moved..]);
        // Those on their way to it when it died: each of the four workers has one at most.
        let lost = sent[..moved].iter().filter(|sent| !sent.is_ok()).count();
        assert!(lost <= 4, "{lost}");
        assert_eq!(admin.stat("cluster.llm.lb_healthy_panic").await.unwrap(), Some(0));
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_backend_that_accepts_and_never_answers_is_ejected() {
    for wire in BOTH {
        let fakes = fakes(3).await;
        let [a, b, c] = addresses(&fakes)[..] else { unreachable!("three") };
        let listener = free_address();
        let setup = Setup::new().cluster("llm", [a, b, c]).listener("ingress", listener, "llm");
        let app = TestApp::start(&setup).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        fakes[0].set(Mode::Hang).await.unwrap();
        wait_hosts(envoy.admin(), "llm", &[(a, "UNHEALTHY"), (b, "HEALTHY"), (c, "HEALTHY")]).await;
        let mut traffic = traffic(listener);
        wait_more(&mut traffic, 40).await;
        let sent = traffic.stop().await;
        assert_all_ok(&sent);
        assert!(!shares(&sent).contains_key(fakes[0].name()));
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn endpoints_alone_move_the_traffic_of_an_envoy_whose_clusters_are_its_own() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
        let bootstrap = Bootstrap {
            xds: Some(app.xds()),
            wire,
            eds_clusters: vec!["llm".to_owned()],
            ..Bootstrap::default()
        };
        moves_away_from_b(&app, &bootstrap.yaml(), &fakes).await;
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn endpoints_come_over_a_stream_of_their_own_too() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let app = TestApp::start(&Setup::new().cluster("llm", addresses(&fakes))).await.unwrap();
        let bootstrap = Bootstrap {
            xds: Some(app.xds()),
            wire,
            eds_clusters: vec!["llm".to_owned()],
            ..Bootstrap::default()
        };
        let api = if wire == Wire::Delta { "DELTA_GRPC" } else { "GRPC" };
        let own = format!(
            "api_config_source: {{api_type: {api}, transport_api_version: V3, \
             grpc_services: [{{envoy_grpc: {{cluster_name: xds}}}}]}}"
        );
        // The cluster's `ads: {}` becomes a stream to EndpointDiscoveryService, and ADS goes.
        let yaml = bootstrap.yaml().replace("ads: {}", &own);
        assert!(yaml.contains(&own));
        let yaml: String = yaml
            .lines()
            .filter(|line| !line.contains("ads_config") && !line.contains("dynamic_resources"))
            .map(|line| format!("{line}\n"))
            .collect();
        moves_away_from_b(&app, &yaml, &fakes).await;
        let methods: Vec<_> = app.clients.list().values().map(|client| client.method).collect();
        let expected = if wire == Wire::Delta { "DeltaEndpoints" } else { "StreamEndpoints" };
        assert_eq!(methods, [expected]);
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn clusters_alone_bring_their_endpoints_on_a_stream_of_their_own() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let app = TestApp::start(&Setup::new().cluster("llm", addresses(&fakes))).await.unwrap();
        let bootstrap = Bootstrap { xds: Some(app.xds()), wire, cds: true, ..Bootstrap::default() };
        let api = if wire == Wire::Delta { "DELTA_GRPC" } else { "GRPC" };
        let own = format!(
            "api_config_source: {{api_type: {api}, transport_api_version: V3, \
             grpc_services: [{{envoy_grpc: {{cluster_name: tidegate}}}}]}}"
        );
        // No ADS; the cluster that leads to tidegate has the name of `tidegate bootstrap`.
        let yaml: String = bootstrap
            .yaml()
            .replace("ads: {}", &own)
            .replace("name: xds,", "name: tidegate,")
            .lines()
            .filter(|line| !line.contains("ads_config"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(yaml.contains(&own) && yaml.contains("name: tidegate,"), "{yaml}");
        moves_away_from_b(&app, &yaml, &fakes).await;
        let methods: std::collections::BTreeSet<_> =
            app.clients.list().values().map(|client| client.method).collect();
        let clusters = if wire == Wire::Delta { "DeltaClusters" } else { "StreamClusters" };
        assert_eq!(methods, [clusters, "DeltaEndpoints"].into());
        app.stop().await.unwrap();
    }
}

async fn moves_away_from_b(
    app: &TestApp,
    bootstrap: &str,
    fakes: &[tidegate::testing::instance::FakeInstance],
) {
    let [a, b] = addresses(fakes)[..] else { unreachable!("two") };
    let envoy = EnvoyProcess::start(bootstrap, &EnvoyOptions::default()).await.unwrap();
    wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "HEALTHY")]).await;
    fakes[1].set(Mode::Loading).await.unwrap();
    wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "UNHEALTHY")]).await;
    let load = Load::new(envoy.listener("traffic").await.unwrap()).cluster("llm");
    let mut traffic = Traffic::start(load, app.clock);
    wait_more(&mut traffic, 20).await;
    let sent = traffic.stop().await;
    assert_all_ok(&sent);
    assert_eq!(shares(&sent).into_keys().collect::<Vec<_>>(), [fakes[0].name()]);
}

#[tokio::test]
async fn a_backend_that_dies_is_noticed_by_its_connection_not_by_the_next_probe() {
    // The next probe of a serving instance would come in an hour.
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let checks = "checks: { readiness: { http: { path: /health }, interval: 1h, timeout: 500ms, confirm_interval: 50ms, \
                  recover_interval: 200ms } }";
    let app = TestApp::start(&Setup::new().cluster_with("llm", [a, b], checks)).await.unwrap();
    for _ in 0..2 {
        app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
        fakes[0].set(Mode::Refuse).await.unwrap();
        app.wait_served("llm", &[(a, Serve::Unhealthy), (b, Serve::Healthy)]).await.unwrap();
        fakes[0].set(Mode::Healthy).await.unwrap();
    }
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_backend_that_hung_and_was_restarted_serves_again() {
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let checks = "checks: { readiness: { http: { path: /health }, interval: 1s, timeout: 500ms, recover_interval: 250ms } }";
    let app = TestApp::start(&Setup::new().cluster_with("llm", [a, b], checks)).await.unwrap();
    for _ in 0..3 {
        app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
        fakes[0].set(Mode::Hang).await.unwrap();
        app.wait_served("llm", &[(a, Serve::Unhealthy), (b, Serve::Healthy)]).await.unwrap();
        let seen = fakes[0].account().requests.len();
        fakes[0].wait_until("asked for a while", |account| account.requests.len() > seen + 8).await.unwrap();
        fakes[0].set(Mode::Refuse).await.unwrap();
        fakes[0].set(Mode::Healthy).await.unwrap();
    }
    app.stop().await.unwrap();
}
