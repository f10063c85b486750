//! `tidegate describe cluster` looks into real Envoys: what works against the verdicts is named, and nothing else.

use serde_json::Value;
use tidegate::model::Serve;
use tidegate::pb::envoy::config::core::v3::HealthStatus;
use tidegate::testing::app::TestApp;
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess};
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::scripted_ads::{Say, ScriptedAds};
use tidegate::testing::setup::Setup;
use tidegate::testing::sim_envoy::Kind;
use tidegate::testing::xds_samples;

use super::admin::{ok, run};
use super::system::{BOTH, addresses, envoy, fakes, wait_hosts};

/// A check of Envoy's own that wants a status which nobody gives.
const FAILING_CHECK: &str = "health_checks: [{timeout: 1s, interval: 0.2s, unhealthy_threshold: 1, \
     healthy_threshold: 1, http_health_check: {path: /health, expected_statuses: [{start: 599, end: 600}]}}]";

/// What is found in one Envoy's config and state.
async fn examine(app: &TestApp, envoy: &EnvoyProcess) -> Vec<Value> {
    let admin = envoy.admin().address().to_string();
    let out = ok(app, &["describe", "cluster", "llm", "--envoy-admin", &admin, "-o", "json"]).await;
    let page: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&page["envoys"][0]["admin"], &page["envoys"][0]["error"]), (&admin.into(), &Value::Null));
    page["envoys"][0]["findings"].as_array().unwrap().clone()
}

/// Severity, what it is about, and the field.
fn brief(findings: &[Value]) -> Vec<(&str, &str, &str)> {
    findings.iter().map(|f| (str_of(&f["severity"]), str_of(&f["about"]), str_of(&f["field"]))).collect()
}

fn str_of(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[tokio::test]
async fn an_envoy_that_has_everything_from_tidegate_gives_no_cause_for_a_finding() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "HEALTHY")]).await;
        assert_eq!(examine(&app, &envoy).await, Vec::<Value>::new());
        ok(&app, &["drain", &format!("llm/{}", app.instance_of("llm", a)), "--wait"]).await;
        wait_hosts(envoy.admin(), "llm", &[(a, "DRAINING"), (b, "HEALTHY")]).await;
        assert_eq!(examine(&app, &envoy).await, Vec::<Value>::new());
        app.stop().await.unwrap();
    }
}

/// EDS says HEALTHY, Envoy's own check says no, and the worse one wins (envoyproxy/envoy#14137).
#[tokio::test]
async fn health_checks_of_envoys_own_that_fail_are_named_with_what_they_cost() {
    let fakes = fakes(1).await;
    let a = fakes[0].address();
    let app = TestApp::start(&Setup::new().cluster("llm", [a])).await.unwrap();
    app.wait_served("llm", &[(a, Serve::Healthy)]).await.unwrap();
    let bootstrap =
        Bootstrap { xds: Some(app.xds()), eds_clusters: vec!["llm".to_owned()], ..Bootstrap::default() };
    let yaml = bootstrap.yaml().replace("type: EDS,", &format!("type: EDS, {FAILING_CHECK},"));
    let envoy = EnvoyProcess::start(&yaml, &EnvoyOptions::default()).await.unwrap();
    eventually("Envoy's own check has failed", async || {
        let failed = envoy.admin().stat("cluster.llm.health_check.failure").await;
        if matches!(failed, Ok(Some(1..))) { Ok(()) } else { Err(format!("{failed:?}")) }
    })
    .await
    .unwrap();
    // What was pushed is there, and counts for nothing.
    wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY")]).await;
    let listener = envoy.listener("traffic").await.unwrap();
    let lost = fetch::request(http::Method::GET, listener, "/", &[("x-cluster", "llm")]).await.unwrap();
    assert_eq!(lost.status.as_u16(), 503);

    let findings = examine(&app, &envoy).await;
    let host = format!("host {a}");
    assert_eq!(
        brief(&findings),
        [
            ("problem", "cluster llm", "health_checks"),
            ("problem", "cluster llm", "ignore_health_on_host_removal"),
            ("problem", host.as_str(), "health_status.failed_active_health_check"),
        ]
    );
    assert_eq!(findings[0]["value"], "http_health_check /health");
    assert_eq!(findings[0]["instead"], "no `health_checks` in this cluster");
    let admin = envoy.admin().address().to_string();
    let text = ok(&app, &["describe", "cluster", "llm", "--envoy-admin", &admin]).await;
    assert!(text.contains("decided") && text.contains("These ask for its endpoints:"), "{text}");
    assert!(text.contains("1.40): 3 problems, 0 hints"), "{text}");
    assert!(text.contains("  problem: cluster llm: health_checks: http_health_check /health\n"), "{text}");
    app.stop().await.unwrap();
}

/// What is written into `load_assignment` is a constant (envoyproxy/envoy#5637).
#[tokio::test]
async fn a_static_cluster_of_the_same_name_is_said_to_be_out_of_reach() {
    let fakes = fakes(1).await;
    let a = fakes[0].address();
    let app = TestApp::start(&Setup::new().cluster("llm", [a])).await.unwrap();
    app.wait_served("llm", &[(a, Serve::Healthy)]).await.unwrap();
    let cluster = format!(
        "clusters: [{{name: llm, connect_timeout: 1s, load_assignment: {{cluster_name: llm, endpoints: [\
         {{lb_endpoints: [{{health_status: DRAINING, endpoint: {{address: {{socket_address: \
         {{address: '{}', port_value: {}}}}}}}}}]}}]}}}}]",
        a.ip(),
        a.port()
    );
    let yaml = Bootstrap::default().yaml().replace("clusters: []", &cluster);
    let envoy = EnvoyProcess::start(&yaml, &EnvoyOptions::default()).await.unwrap();
    let findings = examine(&app, &envoy).await;
    assert_eq!(
        brief(&findings),
        [
            ("problem", "cluster llm", "type"),
            ("problem", "cluster llm", "load_assignment.endpoints.lb_endpoints.health_status"),
        ]
    );
    assert_eq!(
        (&findings[0]["value"], &findings[1]["value"]),
        (&"absent: STATIC".into(), &"DRAINING".into())
    );

    // One without the cluster, and one that is not there: the others are described all the same.
    let other = EnvoyProcess::start(&Bootstrap::default().yaml(), &EnvoyOptions::default()).await.unwrap();
    assert_eq!(brief(&examine(&app, &other).await), [("problem", "cluster llm", "name")]);
    let there = envoy.admin().address().to_string();
    let args = ["describe", "cluster", "llm", "--envoy-admin", "127.0.0.1:1", "--envoy-admin", &there];
    let (output, out, err) = run(&app, &args).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("Envoy at 127.0.0.1:1: not read: ") && out.contains("2 problems, 0 hints"), "{out}");
    assert!(err.contains("127.0.0.1:1 (") && !err.contains(&there), "{err}");
    app.stop().await.unwrap();
}

#[tokio::test]
async fn endpoints_from_another_control_plane_are_noticed() {
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
    app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
    let ads = ScriptedAds::start().await.unwrap();
    let eds_clusters = vec!["llm".to_owned()];
    let bootstrap = Bootstrap { xds: Some(ads.address()), eds_clusters, ..Bootstrap::default() };
    let options = EnvoyOptions { wait_live: false, ..EnvoyOptions::default() };
    let mut envoy = EnvoyProcess::start(&bootstrap.yaml(), &options).await.unwrap();
    ads.wait_heard(1).await.unwrap();
    let resources = vec![xds_samples::assignment("llm", &[(a, HealthStatus::Unhealthy, 100)])];
    let say = Say { kind: Kind::Endpoint, version: "1".to_owned(), resources, removed: Vec::new() };
    ads.say(say).await.unwrap();
    envoy.wait_live().await.unwrap();
    wait_hosts(envoy.admin(), "llm", &[(a, "UNHEALTHY")]).await;
    let findings = examine(&app, &envoy).await;
    let (host_a, host_b) = (format!("host {a}"), format!("host {b}"));
    let mut expected = [
        ("problem", "cluster llm", "eds_cluster_config.eds_config"),
        ("problem", host_a.as_str(), "health_status.eds_health_status"),
        ("problem", host_b.as_str(), "host_statuses"),
    ];
    // Hosts come by address.
    expected[1..].sort_by_key(|(_, about, _)| if *about == host_a { a } else { b });
    assert_eq!(brief(&findings), expected);
    app.stop().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_described_is_one_clear_error() {
    let app = TestApp::start(&Setup::new().cluster("llm", addresses(&fakes(1).await))).await.unwrap();
    for (args, code, says) in [
        (&["describe", "cluster", "nothing"][..], 1, "there is no cluster nothing"),
        (&["describe", "cluster", "llm", "--envoy-admin", "host"], 1, "is not HOST:PORT"),
        (&["describe", "instance", "llm"], 1, "is not CLUSTER/INSTANCE"),
        (&["describe", "cluster"], 64, "Usage"),
        (&["describe"], 64, "Usage"),
    ] {
        let (output, out, err) = run(&app, args).await;
        assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
        assert!(out.is_empty() && err.contains(says), "{args:?}: {err}");
    }
    // An admin interface that is tidegate's own health page is no Envoy's.
    let health = app.health().to_string();
    let (output, out, err) = run(&app, &["describe", "cluster", "llm", "--envoy-admin", &health]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(out.contains("not read") && err.contains("GET /server_info: 404"), "{out}{err}");
    // The short form and the long one say the same.
    let name = format!("llm/{}", app.plan.borrow().clone().clusters.values().next().unwrap().entries[0].id);
    let long = ok(&app, &["describe", "instance", &name]).await;
    assert_eq!(long, ok(&app, &["describe", &name]).await);
    assert!(long.contains("address: "), "{long}");
    app.stop().await.unwrap();
}
