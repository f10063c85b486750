use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use prost::Message;

use super::{Door, Kind, Rendering, Resource, Snapshot};
use crate::config::{Config, Listener, Route};
use crate::model::{
    ClusterPlan, Detail, Entry, ListenerName, Locality, MonoTime, Outcome, Plan, Reason, Role, Serve,
    Standing, Weight,
};
use crate::pb::envoy::config::cluster::v3::Cluster;
use crate::pb::envoy::config::core::v3::HealthStatus;
use crate::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, lb_endpoint::HostIdentifier};
use crate::pb::envoy::config::listener::v3 as pb;
use crate::pb::envoy::config::route::v3::{RouteConfiguration, route};
use crate::testing::model::{cluster, cluster_name, config, instance, ms};

fn entry(id: &str, port: u16, serve: Serve) -> Arc<Entry> {
    let i = instance(id, port);
    let reason = Reason::Failing(Role::Readiness, Outcome::Timeout, Detail::None);
    Arc::new(Entry { id: i.id, address: i.address, locality: i.locality, weight: i.weight, serve, reason })
}

fn plan(generation: u64, standing: Standing, entries: Vec<Arc<Entry>>) -> Plan {
    let of_cluster = Arc::new(ClusterPlan { generation, standing, entries });
    Plan { generation, at: MonoTime::ZERO, clusters: [(cluster_name("c"), of_cluster)].into() }
}

fn of(ids: &[&str]) -> Config {
    config([("c", cluster(ids.iter().zip(9000..).map(|(id, port)| instance(id, port))))])
}

fn listener_to(cluster: &str) -> Listener {
    let route = Route {
        prefix: "/".into(),
        cluster: cluster_name(cluster),
        timeout: ms(0),
        idle_timeout: ms(300_000),
        num_retries: 2,
    };
    Listener { address: "127.0.0.1:8080".parse().unwrap(), routes: vec![route] }
}

fn decode<M: Message + Default>(resource: &Resource) -> M {
    let mut any = resource.sotw_parts()[1].clone();
    let any = crate::pb::google::protobuf::Any::decode(&mut any).unwrap();
    M::decode(&*any.value).unwrap()
}

fn endpoints(snapshot: &Snapshot) -> Vec<(u32, i32, u32)> {
    let cla: ClusterLoadAssignment = decode(&snapshot.set(Kind::Endpoints).resources["c"]);
    let of = |e: &crate::pb::envoy::config::endpoint::v3::LbEndpoint| {
        let Some(HostIdentifier::Endpoint(endpoint)) = &e.host_identifier else { panic!("{e:?}") };
        let Some(crate::pb::envoy::config::core::v3::address::Address::SocketAddress(socket)) =
            endpoint.address.as_ref().and_then(|a| a.address.as_ref())
        else {
            panic!("{e:?}")
        };
        let Some(crate::pb::envoy::config::core::v3::socket_address::PortSpecifier::PortValue(port)) =
            socket.port_specifier
        else {
            panic!("{e:?}")
        };
        (port, e.health_status, e.load_balancing_weight.unwrap().value)
    };
    cla.endpoints.iter().flat_map(|l| l.lb_endpoints.iter().map(of)).collect()
}

#[test]
fn each_state_is_told_as_the_design_says() {
    let entries = vec![
        entry("a", 1, Serve::Absent),
        entry("b", 2, Serve::Healthy),
        entry("c", 3, Serve::Degraded),
        entry("d", 4, Serve::Unhealthy),
        entry("e", 5, Serve::Draining),
    ];
    let snapshot = Snapshot::default().update(&of(&["a"]), &plan(1, Standing::Decided, entries));
    let expected = [
        (2, HealthStatus::Healthy as i32, 100),
        (3, HealthStatus::Degraded as i32, 100),
        (4, HealthStatus::Unhealthy as i32, 100),
        (5, HealthStatus::Draining as i32, 100),
    ];
    assert_eq!(endpoints(&snapshot), expected);
}

#[test]
fn grpc_is_told_what_it_can_read() {
    let mut entries = vec![
        entry("a", 1, Serve::Absent),
        entry("b", 2, Serve::Healthy),
        entry("c", 3, Serve::Degraded),
        entry("d", 4, Serve::Unhealthy),
        entry("e", 5, Serve::Draining),
    ];
    let far = Locality { region: "r".into(), zone: "z".into() };
    entries.extend([("f", 6, Serve::Healthy), ("g", 7, Serve::Healthy), ("h", 2, Serve::Healthy)].map(
        |(id, port, serve)| Arc::new(Entry { locality: far.clone(), ..(*entry(id, port, serve)).clone() }),
    ));
    let config = of(&["a"]);
    let snapshot = Snapshot::default().update(&config, &plan(1, Standing::Decided, entries));
    let set = |kind| snapshot.set_for(Door::Aggregated, Rendering::Grpc, kind);
    let cla: ClusterLoadAssignment = decode(&set(Kind::Endpoints).resources["c"]);
    let told = |l: &crate::pb::envoy::config::endpoint::v3::LocalityLbEndpoints| {
        let of = |e: &crate::pb::envoy::config::endpoint::v3::LbEndpoint| {
            (e.health_status, e.load_balancing_weight.unwrap().value)
        };
        (l.load_balancing_weight.unwrap().value, l.lb_endpoints.iter().map(of).collect::<Vec<_>>())
    };
    let (healthy, unhealthy, draining) =
        (HealthStatus::Healthy as i32, HealthStatus::Unhealthy as i32, HealthStatus::Draining as i32);
    // The held one is there with the least weight; a weight on each locality; `h` has the address of `b`.
    let near = vec![(healthy, 100), (healthy, 1), (unhealthy, 100), (draining, 100)];
    assert_eq!(
        cla.endpoints.iter().map(told).collect::<Vec<_>>(),
        [(101, near), (200, vec![(healthy, 100), (healthy, 100)]),]
    );
    assert!(cla.endpoints.iter().all(|l| l.locality.is_some() && l.priority == 0));

    let cds: Cluster = decode(&set(Kind::Cluster).resources["c"]);
    assert_eq!(cds.lb_policy, crate::pb::envoy::config::cluster::v3::cluster::LbPolicy::RoundRobin as i32);
    assert!(cds.outlier_detection.is_none());
    // The cluster is a target by its own name.
    let lds: pb::Listener = decode(&set(Kind::Listener).resources["c"]);
    assert!(lds.api_listener.is_some() && lds.address.is_none());
    let rds: RouteConfiguration = decode(&set(Kind::Route).resources["c"]);
    assert_eq!(rds.virtual_hosts[0].routes.len(), 1);
    assert!(snapshot.set(Kind::Listener).resources.is_empty(), "Envoys have no use for it");
}

#[test]
fn a_listener_comes_before_the_target_of_a_cluster_of_its_name() {
    let mut config = of(&["a"]);
    let decided = plan(1, Standing::Decided, vec![entry("a", 1, Serve::Healthy)]);
    let plain = Snapshot::default().update(&config, &decided);
    let routes = |s: &Snapshot| {
        let set = s.set_for(Door::Aggregated, Rendering::Grpc, Kind::Route);
        decode::<RouteConfiguration>(&set.resources["c"]).virtual_hosts[0].routes.len()
    };
    let mut listener = listener_to("c");
    let route = listener.routes[0].clone();
    listener.routes.push(route);
    config.listeners.insert(ListenerName::new("c").unwrap(), Arc::new(listener));
    let named = plain.update(&config, &decided);
    assert_eq!((routes(&plain), routes(&named)), (1, 2));
    config.listeners.clear();
    assert_eq!(routes(&named.update(&config, &decided)), 1);
    let withheld = Snapshot::default().update(&config, &plan(1, Standing::Unlisted, vec![]));
    assert!(withheld.set_for(Door::Aggregated, Rendering::Grpc, Kind::Listener).withheld.contains("c"));
}

#[test]
fn a_cluster_carries_what_the_measurements_demand() {
    let snapshot = Snapshot::default().update(
        &of(&["a", "b"]),
        &plan(1, Standing::Decided, vec![entry("a", 1, Serve::Healthy), entry("b", 2, Serve::Healthy)]),
    );
    let cds: Cluster = decode(&snapshot.set(Kind::Cluster).resources["c"]);
    let lb = cds.common_lb_config.unwrap();
    assert_eq!(lb.healthy_panic_threshold.unwrap().value, 0.0);
    assert_eq!(lb.update_merge_window.unwrap(), crate::pb::google::protobuf::Duration::default());
    assert!(cds.ignore_health_on_host_removal);
    assert_eq!(cds.connect_timeout.unwrap().seconds, 1);
    let eds = cds.eds_cluster_config.unwrap().eds_config.unwrap();
    assert_eq!(eds.initial_fetch_timeout.unwrap().seconds, 1);
    let bridge = cds.outlier_detection.unwrap();
    assert!(bridge.split_external_local_origin_errors);
    assert_eq!(bridge.consecutive_local_origin_failure.unwrap().value, 3);
    assert_eq!(bridge.max_ejection_percent.unwrap().value, 50);
    assert!(bridge.always_eject_one_host.unwrap().value);
    for off in [
        bridge.enforcing_consecutive_5xx,
        bridge.enforcing_consecutive_gateway_failure,
        bridge.enforcing_success_rate,
        bridge.enforcing_local_origin_success_rate,
    ] {
        assert_eq!(off.unwrap().value, 0);
    }
    assert_eq!(cds.circuit_breakers.unwrap().thresholds[0].max_retries.unwrap().value, 10_000);
}

#[test]
fn a_cluster_of_one_has_no_bridge() {
    let snapshot = Snapshot::default()
        .update(&of(&["a"]), &plan(1, Standing::Decided, vec![entry("a", 1, Serve::Healthy)]));
    assert!(decode::<Cluster>(&snapshot.set(Kind::Cluster).resources["c"]).outlier_detection.is_none());
}

#[test]
fn verdicts_never_change_a_byte_of_the_cluster() {
    let config = of(&["a", "b"]);
    let of_serve = |serve, standing| {
        let entries = vec![entry("a", 1, serve), entry("b", 2, Serve::Healthy)];
        let snapshot = Snapshot::default().update(&config, &plan(1, standing, entries));
        snapshot.set(Kind::Cluster).resources["c"].version.clone()
    };
    let version = of_serve(Serve::Healthy, Standing::Decided);
    for serve in [Serve::Absent, Serve::Degraded, Serve::Unhealthy, Serve::Draining] {
        assert_eq!(of_serve(serve, Standing::Decided), version);
    }
    assert_eq!(
        of_serve(Serve::Absent, Standing::Undecided),
        version,
        "nor does a restart before the first verdict"
    );
}

#[test]
fn flipping_health_alone_changes_the_version() {
    // Case 104.
    let of_serve = |serve| {
        let snapshot =
            Snapshot::default().update(&of(&["a"]), &plan(1, Standing::Decided, vec![entry("a", 1, serve)]));
        snapshot.set(Kind::Endpoints).resources["c"].version.clone()
    };
    assert_ne!(of_serve(Serve::Healthy), of_serve(Serve::Unhealthy));
    assert_ne!(of_serve(Serve::Unhealthy), of_serve(Serve::Draining));
}

#[test]
fn a_reason_alone_changes_no_version() {
    let mut other = (*entry("a", 1, Serve::Healthy)).clone();
    other.reason = Reason::Passing;
    let first = Snapshot::default()
        .update(&of(&["a"]), &plan(1, Standing::Decided, vec![entry("a", 1, Serve::Healthy)]));
    let second = first.update(&of(&["a"]), &plan(2, Standing::Decided, vec![Arc::new(other)]));
    let version = |s: &Snapshot| s.set(Kind::Endpoints).resources["c"].version.clone();
    assert_eq!(version(&first), version(&second));
}

#[test]
fn an_undecided_cluster_is_withheld_and_an_empty_one_is_sent_empty() {
    let undecided = Snapshot::default()
        .update(&of(&["a"]), &plan(1, Standing::Undecided, vec![entry("a", 1, Serve::Absent)]));
    assert!(undecided.set(Kind::Endpoints).withheld.contains("c"));
    assert!(undecided.set(Kind::Endpoints).resources.is_empty());
    assert!(undecided.set(Kind::Cluster).resources.contains_key("c"));
    let empty = undecided.update(&of(&[]), &plan(2, Standing::Decided, vec![]));
    assert!(empty.set(Kind::Endpoints).withheld.is_empty());
    assert_eq!(endpoints(&empty), []);
}

#[test]
fn a_cluster_that_no_source_lists_is_neither_told_nor_called_gone() {
    let snapshot = Snapshot::default().update(&of(&["a"]), &plan(1, Standing::Unlisted, vec![]));
    for kind in [Kind::Cluster, Kind::Endpoints] {
        assert!(snapshot.set(kind).withheld.contains("c"));
        assert!(snapshot.set(kind).resources.is_empty());
    }
}

#[test]
fn localities_and_endpoints_are_sorted_and_an_address_is_listed_once() {
    let mut zoned = (*entry("a", 1, Serve::Healthy)).clone();
    zoned.locality = Locality { region: "eu".into(), zone: "b".into() };
    let entries = vec![Arc::new(zoned), entry("b", 2, Serve::Healthy), entry("c", 2, Serve::Unhealthy)];
    let snapshot = Snapshot::default().update(&of(&["a"]), &plan(1, Standing::Decided, entries));
    let ports: Vec<_> = endpoints(&snapshot).into_iter().map(|(port, health, _)| (port, health)).collect();
    assert_eq!(ports, [(2, HealthStatus::Healthy as i32), (1, HealthStatus::Healthy as i32)]);
}

#[test]
fn every_spelling_of_an_address_in_whatever_locality_is_one_endpoint() {
    // Case 83: the first by id who is listed at all.
    let spellings = [
        "[::1]:1",
        "[0:0:0:0:0:0:0:1]:1",
        "[0000::0001]:1",
        "10.0.0.1:2",
        "[::ffff:10.0.0.1]:2",
        "[::FFFF:0a00:0001]:2",
    ];
    let entries = spellings.into_iter().zip(["a", "b", "c", "d", "e", "f"]).enumerate();
    let entries: Vec<_> = entries
        .map(|(at, (spelling, id))| {
            let serve = if id == "a" { Serve::Absent } else { Serve::Healthy };
            Arc::new(Entry {
                address: spelling.parse().unwrap(),
                locality: Locality { region: "r".into(), zone: format!("z{}", at % 2).into() },
                weight: Weight::new(at as u32 + 1).unwrap(),
                ..(*entry(id, 9, serve)).clone()
            })
        })
        .collect();
    let snapshot = Snapshot::default().update(&of(&["a"]), &plan(1, Standing::Decided, entries));
    for rendering in Rendering::ALL {
        let set = snapshot.set_for(Door::Aggregated, rendering, Kind::Endpoints);
        let cla: ClusterLoadAssignment = decode(&set.resources["c"]);
        let listed = cla.endpoints.iter().flat_map(|l| &l.lb_endpoints);
        let weights: Vec<_> = listed.map(|e| e.load_balancing_weight.unwrap().value).collect();
        assert_eq!(weights, [2, 4], "`b` for IPv6, `d` for IPv4, to {}", rendering.as_str());
    }
}

proptest! {
    #[test]
    fn weights_and_priorities_are_such_as_no_client_refuses(
        entries in proptest::collection::vec((1u32..=10_000, 0usize..5, 0usize..3), 0..300),
        heaviest: bool,
    ) {
        // Case 85: no weight of zero, no gap in the priorities, a weight on each of gRPC's localities, and sums that
        // fit 32 bits.
        let serves = [Serve::Absent, Serve::Healthy, Serve::Degraded, Serve::Unhealthy, Serve::Draining];
        let entries = entries.into_iter().zip(1u16..).map(|((weight, serve, zone), port)| {
            let weight = if heaviest { Weight::MAX } else { Weight::new(weight).unwrap() };
            let locality = Locality { region: "r".into(), zone: format!("z{zone}").into() };
            Arc::new(Entry { weight, locality, ..(*entry("i", port, serves[serve])).clone() })
        });
        let plan = plan(1, Standing::Decided, entries.collect());
        let snapshot = Snapshot::default().update(&of(&["a"]), &plan);
        for rendering in Rendering::ALL {
            let set = snapshot.set_for(Door::Aggregated, rendering, Kind::Endpoints);
            let cla: ClusterLoadAssignment = decode(&set.resources["c"]);
            let mut of_localities = 0;
            for locality in &cla.endpoints {
                prop_assert_eq!(locality.priority, 0);
                prop_assert!(!locality.lb_endpoints.is_empty());
                let weights = locality.lb_endpoints.iter().map(|e| e.load_balancing_weight.unwrap().value);
                prop_assert!(weights.clone().all(|weight| weight >= 1));
                prop_assert!(u32::try_from(weights.map(u64::from).sum::<u64>()).is_ok());
                let of_locality = locality.load_balancing_weight.map(|weight| weight.value);
                prop_assert!(rendering == Rendering::Envoy || of_locality >= Some(1));
                of_localities += u64::from(of_locality.unwrap_or_default());
            }
            prop_assert!(u32::try_from(of_localities).is_ok());
        }
    }
}

#[test]
fn what_does_not_change_is_taken_over_not_encoded_again() {
    let config = of(&["a"]);
    let first =
        Snapshot::default().update(&config, &plan(1, Standing::Decided, vec![entry("a", 1, Serve::Healthy)]));
    let second = first.update(&config, &plan(2, Standing::Decided, vec![entry("a", 1, Serve::Unhealthy)]));
    assert!(Arc::ptr_eq(first.set(Kind::Cluster), second.set(Kind::Cluster)));
    assert!(!Arc::ptr_eq(first.set(Kind::Endpoints), second.set(Kind::Endpoints)));
}

#[test]
fn a_listener_waits_until_the_cluster_it_leads_to_can_be_told() {
    let with = |clusters: &[&'static str], leads_to: &str| Config {
        listeners: [(ListenerName::new("in").unwrap(), Arc::new(listener_to(leads_to)))].into(),
        ..config(clusters.iter().map(|name| (*name, cluster([]))))
    };
    let only_c = plan(1, Standing::Decided, vec![]);
    let fresh = Snapshot::default().update(&with(&["c", "d"], "d"), &only_c);
    assert!(fresh.set(Kind::Listener).withheld.contains("in"), "nothing has been told of `d` yet");
    let before = Snapshot::default().update(&with(&["c"], "c"), &only_c);
    let reloaded = before.update(&with(&["c", "d"], "d"), &only_c);
    let route = |s: &Snapshot| s.set(Kind::Route).resources["in"].version.clone();
    assert_eq!(route(&reloaded), route(&before), "traffic stays on `c`");
    let mut both = plan(2, Standing::Decided, vec![]);
    let d = both.clusters[&cluster_name("c")].clone();
    both.clusters.insert(cluster_name("d"), d);
    assert_ne!(route(&reloaded.update(&with(&["c", "d"], "d"), &both)), route(&before));
}

#[test]
fn traffic_that_moves_to_a_new_cluster_in_one_reload_stays_until_somebody_there_can_serve() {
    let only = |name: &'static str| Config {
        listeners: [(ListenerName::new("in").unwrap(), Arc::new(listener_to(name)))].into(),
        ..config([(name, cluster([]))])
    };
    let plan_of = |name: &str, generation, standing| {
        let of_cluster =
            Arc::new(ClusterPlan { generation, standing, entries: vec![entry("a", 1, Serve::Healthy)] });
        Plan { generation, at: MonoTime::ZERO, clusters: [(cluster_name(name), of_cluster)].into() }
    };
    let blue = Snapshot::default().update(&only("blue"), &plan_of("blue", 1, Standing::Decided));
    let waiting = blue.update(&only("green"), &plan_of("green", 2, Standing::Undecided));
    let again = waiting.update(&only("green"), &plan_of("green", 2, Standing::Undecided));
    for snapshot in [&waiting, &again] {
        for kind in [Kind::Cluster, Kind::Endpoints] {
            assert!(snapshot.set(kind).resources.contains_key("blue"), "{kind:?}");
        }
        assert_eq!(snapshot.set(Kind::Route), blue.set(Kind::Route));
    }
    let moved = again.update(&only("green"), &plan_of("green", 3, Standing::Decided));
    assert!(!moved.set(Kind::Cluster).resources.contains_key("blue"));
    assert!(moved.set(Kind::Endpoints).resources.contains_key("green"));
    assert_ne!(moved.set(Kind::Route), blue.set(Kind::Route));
}

#[test]
fn a_route_has_no_total_timeout_and_retries_only_what_never_arrived() {
    let listeners: BTreeMap<_, _> = [(ListenerName::new("in").unwrap(), Arc::new(listener_to("c")))].into();
    let config = Config { listeners, ..of(&["a"]) };
    let snapshot =
        Snapshot::default().update(&config, &plan(1, Standing::Decided, vec![entry("a", 1, Serve::Healthy)]));
    let rds: RouteConfiguration = decode(&snapshot.set(Kind::Route).resources["in"]);
    let Some(route::Action::Route(action)) = &rds.virtual_hosts[0].routes[0].action else {
        panic!("{rds:?}")
    };
    assert_eq!(action.timeout, Some(crate::pb::google::protobuf::Duration::default()));
    assert_eq!(action.idle_timeout.unwrap().seconds, 300);
    assert_eq!(
        action.retry_policy.as_ref().unwrap().retry_on,
        "connect-failure,refused-stream,reset-before-request"
    );
    assert!(snapshot.set(Kind::Listener).resources.contains_key("in"));
}

#[test]
fn a_set_knows_what_changed_since_a_reader_looked() {
    let of_serve = |before: &Snapshot, generation, serve| {
        before.update(&of(&["a"]), &plan(generation, Standing::Decided, vec![entry("a", 1, serve)]))
    };
    let changed = |now: &Snapshot, then: &Snapshot| {
        let names = now.set(Kind::Endpoints).changed_since(then.set(Kind::Endpoints).state())?;
        Some(names.map(ToString::to_string).collect::<Vec<_>>())
    };
    let first = of_serve(&Snapshot::default(), 1, Serve::Healthy);
    let second = of_serve(&first, 2, Serve::Unhealthy);
    let third = of_serve(&second, 3, Serve::Draining);
    assert_eq!(changed(&second, &first).unwrap(), ["c"]);
    assert_eq!(changed(&third, &first).unwrap(), ["c", "c"]);
    assert_eq!(changed(&first, &third), None, "what it has never been it cannot compare with");
    let turns = [Serve::Healthy, Serve::Unhealthy];
    let later =
        (4..200).zip(turns.into_iter().cycle()).fold(third.clone(), |s, (n, serve)| of_serve(&s, n, serve));
    assert_eq!(changed(&later, &third), None, "too long ago");
}
