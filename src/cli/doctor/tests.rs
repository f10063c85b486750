//! Pages cut down from those of an Envoy 1.40.0, with one thing wrong at a time.

use super::*;

fn at(port: u16) -> Address {
    format!("127.0.0.1:{port}").parse().unwrap()
}

/// A cluster as docs/existing-envoys.md writes it. What is zero is left out of Envoy's JSON.
fn good() -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "llm", "type": "EDS",
        "eds_cluster_config": {"eds_config": {"ads": {}, "initial_fetch_timeout": "1s", "resource_api_version": "V3"}},
        "connect_timeout": "1s",
        "common_lb_config": {"healthy_panic_threshold": {}, "update_merge_window": "0s"},
    })
}

fn dump(cluster: Value) -> Value {
    json!({"configs": [{
        "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump.StaticCluster",
        "cluster": cluster, "last_updated": "2026-12-01T03:50:49.559Z",
    }]})
}

fn host(port: u16, health: Value) -> Value {
    json!({
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "stats": [{"name": "cx_total"}], "health_status": health, "weight": 1, "locality": {},
    })
}

fn healthy(port: u16) -> Value {
    host(port, json!({"eds_health_status": "HEALTHY"}))
}

fn pages(cluster: Value, hosts: &[Value]) -> Pages {
    Pages {
        server_info: json!({
            "version": "9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL",
            "node": {"id": "edge-1", "cluster": "test", "user_agent_name": "envoy"},
        }),
        fixed: dump(cluster),
        active: json!({}),
        warming: json!({}),
        hosts: json!({"cluster_statuses": [
            {"name": "xds", "host_statuses": [healthy(1)]},
            {"name": "llm", "host_statuses": hosts, "observability_name": "llm"},
        ]}),
        runtime: json!({"layers": [], "entries": {}}),
        stats: json!({"stats": [{"name": "cluster.llm.lb_healthy_panic", "value": 0}, {"histograms": {}}]}),
    }
}

fn told(hosts: &[(u16, Serve)]) -> Told {
    Told {
        cluster: "llm".to_owned(),
        decided: true,
        hosts: hosts.iter().map(|(port, serve)| (at(*port), *serve)).collect(),
        asking: vec!["other".to_owned(), "edge-1".to_owned()],
    }
}

/// With one healthy host on both sides.
fn of(cluster: Value) -> Vec<Finding> {
    examine(&pages(cluster, &[healthy(9001)]), &told(&[(9001, Serve::Healthy)]))
}

fn brief(findings: &[Finding]) -> Vec<(Severity, &str, &str)> {
    findings.iter().map(|f| (f.severity, f.field.as_str(), f.value.as_str())).collect()
}

/// The good cluster with `value` at `pointer`'s place, or without what is there.
fn with(path: &[&str], value: Option<Value>) -> Value {
    let mut cluster = good();
    let (last, parents) = path.split_last().unwrap();
    let parent = parents.iter().fold(&mut cluster, |at, key| &mut at[*key]);
    match value {
        Some(value) => parent[*last] = value,
        None => drop(parent.as_object_mut().unwrap().remove(*last)),
    }
    cluster
}

use Severity::{Hint, Problem};

#[test]
fn a_cluster_as_it_should_be_gives_no_finding_wherever_it_is_defined() {
    assert_eq!(of(good()), []);
    let mut pages = pages(good(), &[healthy(9001)]);
    pages.active = std::mem::take(&mut pages.fixed);
    assert_eq!(examine(&pages, &told(&[(9001, Serve::Healthy)])), []);
}

#[test]
fn each_setting_that_works_against_the_verdicts_is_found_with_its_value() {
    let lb = |key| ["common_lb_config", key];
    let wait = ["eds_cluster_config", "eds_config", "initial_fetch_timeout"];
    let panic = "common_lb_config.healthy_panic_threshold";
    let fetch = "eds_cluster_config.eds_config.initial_fetch_timeout";
    let outliers = "enforcing_consecutive_5xx absent: 100, enforcing_success_rate absent: 100";
    let close = "close_connections_on_host_set_change";
    for (cluster, expected) in [
        (with(&lb("healthy_panic_threshold"), None), (Problem, panic, "absent: 50%")),
        (with(&lb("healthy_panic_threshold"), Some(json!({"value": 12.5}))), (Problem, panic, "12.5%")),
        (with(&["common_lb_config"], None), (Problem, panic, "absent: 50%")),
        (
            with(&lb(close), Some(true.into())),
            (Problem, "common_lb_config.close_connections_on_host_set_change", "true"),
        ),
        (with(&["outlier_detection"], Some(json!({}))), (Problem, "outlier_detection", outliers)),
        (with(&wait, None), (Hint, fetch, "absent: 15s")),
        (with(&wait, Some("0s".into())), (Hint, fetch, "0s")),
        (with(&wait, Some("5.500s".into())), (Hint, fetch, "5.500s")),
        (
            with(&["eds_cluster_config", "service_name"], Some("llama".into())),
            (Problem, "eds_cluster_config.service_name", "llama"),
        ),
        (
            with(
                &["eds_cluster_config", "eds_config"],
                Some(json!({"path_config_source": {"path": "/e"}, "initial_fetch_timeout": "1s"})),
            ),
            (Problem, "eds_cluster_config.eds_config.path_config_source", "/e"),
        ),
    ] {
        assert_eq!(brief(&of(cluster)), [expected]);
    }
}

#[test]
fn what_tidegate_itself_writes_is_no_finding() {
    let bridge = json!({
        "consecutive_local_origin_failure": 3, "split_external_local_origin_errors": true,
        "enforcing_consecutive_5xx": 0, "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0, "enforcing_local_origin_success_rate": 0,
    });
    assert_eq!(of(with(&["outlier_detection"], Some(bridge))), []);
    // Removal without checks of Envoy's own needs nothing.
    assert_eq!(of(with(&["ignore_health_on_host_removal"], Some(true.into()))), []);
    // On 1.40 changes of health pass the window by.
    assert_eq!(of(with(&["common_lb_config", "update_merge_window"], None)), []);
}

#[test]
fn health_checks_are_two_findings_unless_removal_ignores_them() {
    let checks =
        json!([{"timeout": "1s", "http_health_check": {"path": "/health"}}, {"tcp_health_check": {}}]);
    let mut cluster = with(&["health_checks"], Some(checks));
    let own = (Problem, "health_checks", "http_health_check /health, tcp_health_check");
    let findings = of(cluster.clone());
    assert_eq!(brief(&findings), [own, (Problem, "ignore_health_on_host_removal", "absent")]);
    cluster["ignore_health_on_host_removal"] = true.into();
    assert_eq!(brief(&of(cluster)), [own]);
}

#[test]
fn an_old_envoy_is_a_hint_and_makes_the_merge_window_count() {
    let window = "common_lb_config.update_merge_window";
    let mut pages = pages(with(&["common_lb_config", "update_merge_window"], None), &[healthy(9001)]);
    let told = told(&[(9001, Serve::Healthy)]);
    for (version, shown, severity) in [
        ("a/1.39.2/Clean/RELEASE/x", "1.39", Problem),
        ("dev", "unreadable", Hint),
        ("a/x.y/b", "unreadable", Hint),
    ] {
        pages.server_info["version"] = version.into();
        let mut expected = [(Hint, "version", shown), (severity, window, "absent: 1s")];
        expected.sort_by_key(|(severity, ..)| *severity);
        assert_eq!(brief(&examine(&pages, &told)), expected);
    }
    for version in ["a/1.40.0-dev/Clean/RELEASE/x", "a/1.41.1/x", "a/2.0.0/x"] {
        pages.server_info["version"] = version.into();
        assert_eq!(examine(&pages, &told), []);
    }
    pages.runtime["entries"] =
        json!({"envoy.reloadable_features.enable_batch_aware_update": {"final_value": "false"}});
    assert_eq!(brief(&examine(&pages, &told)), [(Problem, window, "absent: 1s")]);
}

#[test]
fn runtime_overrides_the_panic_threshold_both_ways() {
    let key = "runtime upstream.healthy_panic_threshold";
    let set = |value: &str| json!({"entries": {"upstream.healthy_panic_threshold": {"final_value": value}}});
    let told = told(&[(9001, Serve::Healthy)]);
    let mut good = pages(good(), &[healthy(9001)]);
    good.runtime = set("50");
    assert_eq!(brief(&examine(&good, &told)), [(Problem, key, "50")]);
    let mut bad = pages(with(&["common_lb_config", "healthy_panic_threshold"], None), &[healthy(9001)]);
    bad.runtime = set("0");
    assert_eq!(examine(&bad, &told), []);
}

#[test]
fn panics_so_far_are_told_and_what_panic_does() {
    let mut pages = pages(with(&["common_lb_config", "healthy_panic_threshold"], None), &[healthy(9001)]);
    pages.stats["stats"][0]["value"] = 7.into();
    let effect = |pages: &Pages| examine(pages, &told(&[(9001, Serve::Healthy)]))[0].effect.clone();
    assert!(effect(&pages).ends_with("the ejected ones too; it has happened, for 7 picks so far"));
    pages.fixed["configs"][0]["cluster"]["common_lb_config"]["zone_aware_lb_config"] =
        json!({"fail_traffic_on_panic": true});
    assert!(effect(&pages).contains("fails every request"));
}

#[test]
fn assignments_that_grow_stale_are_known_by_their_counter() {
    let mut pages = pages(with(&["alt_stat_name"], Some("l:m".into())), &[healthy(9001)]);
    pages.stats = json!({"stats": [{"name": "cluster.l_m.assignment_timeout_received", "value": 2}]});
    let findings = examine(&pages, &told(&[(9001, Serve::Healthy)]));
    assert_eq!(brief(&findings), [(Problem, "endpoint_stale_after", "set in 2 of the assignments received")]);
}

#[test]
fn a_cluster_that_is_not_eds_gets_no_further_advice() {
    let endpoints =
        json!([{"lb_endpoints": [{"health_status": "UNHEALTHY"}, {}, {"health_status": "UNKNOWN"}]}]);
    let assigned = json!({"name": "llm", "load_assignment": {"endpoints": endpoints}});
    let written = "load_assignment.endpoints.lb_endpoints.health_status";
    let expected = [(Problem, "type", "absent: STATIC"), (Problem, written, "UNHEALTHY")];
    assert_eq!(brief(&of(assigned)), expected);
    let dns = json!({"name": "llm", "type": "STRICT_DNS", "health_checks": [{}]});
    assert_eq!(brief(&of(dns)), [(Problem, "type", "STRICT_DNS")]);
    let custom = json!({"name": "llm", "cluster_type": {"name": "envoy.clusters.aggregate"}});
    assert_eq!(brief(&of(custom)), [(Problem, "cluster_type.name", "envoy.clusters.aggregate")]);
}

#[test]
fn a_cluster_of_another_name_that_takes_these_endpoints_is_examined_too() {
    let mut cluster = with(&["eds_cluster_config", "service_name"], Some("llm".into()));
    cluster["name"] = "inner".into();
    let mut pages = pages(cluster, &[]);
    pages.hosts = json!({"cluster_statuses": [{"name": "inner", "host_statuses": [healthy(9002)]}]});
    let findings = examine(&pages, &told(&[(9002, Serve::Unhealthy)]));
    assert_eq!(brief(&findings), [(Problem, "health_status.eds_health_status", "HEALTHY")]);
    assert!(findings[0].fleeting);
}

#[test]
fn an_unknown_cluster_and_one_that_warms_are_told_apart() {
    let mut pages = pages(json!({"name": "other"}), &[]);
    assert_eq!(brief(&examine(&pages, &told(&[]))), [(Problem, "name", "absent")]);
    pages.warming = dump(good());
    assert_eq!(brief(&examine(&pages, &told(&[]))), [(Problem, "dynamic_warming_clusters", "listed")]);
}

#[test]
fn endpoints_from_elsewhere_are_known_by_who_asks_tidegate() {
    let pages = pages(good(), &[healthy(9001)]);
    let mut told = told(&[(9001, Serve::Healthy)]);
    told.asking = vec!["edge-10".to_owned()];
    let findings = examine(&pages, &told);
    assert_eq!(brief(&findings), [(Problem, "eds_cluster_config.eds_config", "ads")]);
    assert!(findings[0].effect.contains("\"edge-1\"") && findings[0].fleeting);
}

#[test]
fn hosts_are_compared_one_by_one() {
    let flag = |port, name: &str, eds| host(port, json!({name: true, "eds_health_status": eds}));
    let hosts = [
        healthy(9001),
        host(9002, json!({"eds_health_status": "DEGRADED"})),
        host(9003, json!({"eds_health_status": "UNHEALTHY"})),
        host(9004, json!({"eds_health_status": "DRAINING"})),
        flag(9005, "failed_active_health_check", "HEALTHY"),
        flag(9006, "failed_outlier_check", "DEGRADED"),
        // Out by both: no contradiction.
        flag(9007, "failed_active_health_check", "UNHEALTHY"),
        flag(9008, "pending_dynamic_removal", "HEALTHY"),
        healthy(9009),
        healthy(9011),
        json!({"address": {"pipe": {"path": "/s"}}}),
    ];
    let told = told(&[
        (9001, Serve::Healthy),
        (9002, Serve::Degraded),
        (9003, Serve::Unhealthy),
        (9004, Serve::Draining),
        (9005, Serve::Healthy),
        (9006, Serve::Degraded),
        (9007, Serve::Unhealthy),
        (9009, Serve::Absent),
        (9010, Serve::Healthy),
        (9012, Serve::Absent),
    ]);
    let findings = examine(&pages(good(), &hosts), &told);
    let found: Vec<_> = findings.iter().map(|f| (f.about.as_str(), f.field.as_str())).collect();
    assert_eq!(
        found,
        [
            ("host 127.0.0.1:9005", "health_status.failed_active_health_check"),
            ("host 127.0.0.1:9006", "health_status.failed_outlier_check"),
            ("host 127.0.0.1:9009", "host_statuses"),
            ("host 127.0.0.1:9010", "host_statuses"),
            ("host 127.0.0.1:9008", "health_status.pending_dynamic_removal"),
            ("host 127.0.0.1:9011", "host_statuses"),
        ]
    );
    assert!(findings.iter().all(|f| f.severity == Problem && f.fleeting));
}

#[test]
fn an_undecided_cluster_is_not_compared() {
    let mut told = told(&[(9002, Serve::Absent)]);
    told.decided = false;
    let findings = examine(&pages(good(), &[healthy(9001)]), &told);
    assert_eq!(brief(&findings), [(Hint, "standing", "not decided")]);
}

#[test]
fn pages_that_are_kept_back_are_named() {
    let mut pages = pages(good(), &[healthy(9001)]);
    (pages.runtime, pages.stats) = (Value::Null, Value::Null);
    let findings = examine(&pages, &told(&[(9001, Serve::Healthy)]));
    let expected = [(Hint, "/runtime", "cannot be read"), (Hint, "/stats", "cannot be read")];
    assert_eq!(brief(&findings), expected);
}

#[test]
fn nonsense_in_place_of_pages_is_survived() {
    for junk in [Value::Null, json!([]), json!("x"), json!({"configs": 5, "cluster_statuses": {"a": []}})] {
        let pages = Pages {
            server_info: junk.clone(),
            fixed: junk.clone(),
            active: junk.clone(),
            warming: junk.clone(),
            hosts: junk.clone(),
            runtime: junk.clone(),
            stats: junk,
        };
        assert!(examine(&pages, &told(&[(9001, Serve::Healthy)])).iter().any(|f| f.field == "name"));
        assert_eq!(identity(&pages), (String::new(), "unknown".to_owned()));
    }
    let odd = json!({"name": "llm", "type": "EDS", "eds_cluster_config": 1, "common_lb_config": "x",
        "health_checks": [5], "outlier_detection": [], "alt_stat_name": 7});
    assert!(!of(odd).is_empty());
}
