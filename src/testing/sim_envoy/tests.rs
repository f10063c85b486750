//! The machine, driven by hand-made responses.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Asks, Kind, Machine, Node, Refusal, RefuseRule, Request, Response, Wire};
use crate::pb::envoy::config::core::v3::HealthStatus;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use crate::pb::google::protobuf::Any;
use crate::testing::xds_samples::{assignment, cluster};

const A: &str = "127.0.0.1:8001";

fn machine(wire: Wire, asks: Asks, rules: Vec<RefuseRule>) -> Machine {
    Machine::new(wire, Node { id: "n".to_owned(), cluster: String::new() }, asks, rules)
}

fn eds(name: &str, health: HealthStatus) -> (String, Any) {
    assignment(name, &[(A.parse().unwrap(), health, 100)])
}

fn delta(kind: Kind, nonce: &str, version: &str, resources: &[(String, Any)]) -> Response {
    let resource = |(name, body): &(String, Any)| Resource {
        name: name.clone(),
        version: version.to_owned(),
        resource: Some(body.clone()),
        ..Default::default()
    };
    Response::Delta(DeltaDiscoveryResponse {
        resources: resources.iter().map(resource).collect(),
        type_url: kind.type_url().to_owned(),
        nonce: nonce.to_owned(),
        ..Default::default()
    })
}

fn sotw(kind: Kind, nonce: &str, version: &str, resources: &[(String, Any)]) -> Response {
    Response::Sotw(DiscoveryResponse {
        version_info: version.to_owned(),
        resources: resources.iter().map(|(_, body)| body.clone()).collect(),
        type_url: kind.type_url().to_owned(),
        nonce: nonce.to_owned(),
        ..Default::default()
    })
}

fn as_sotw(requests: &[Request]) -> Vec<&DiscoveryRequest> {
    requests.iter().filter_map(|r| if let Request::Sotw(m) = r { Some(m) } else { None }).collect()
}

fn as_delta(requests: &[Request]) -> Vec<&DeltaDiscoveryRequest> {
    requests.iter().filter_map(|r| if let Request::Delta(m) = r { Some(m) } else { None }).collect()
}

/// A machine that has cluster `a` with one healthy endpoint.
fn live(wire: Wire, rules: Vec<RefuseRule>) -> Machine {
    let mut machine = machine(wire, Asks::clusters(), rules);
    machine.open();
    let say = if wire == Wire::Delta { delta } else { sotw };
    machine.on_response(&say(Kind::Cluster, "1", "v1", &[cluster("a", 1)]));
    machine.on_response(&say(Kind::Endpoint, "2", "v1", &[eds("a", HealthStatus::Healthy)]));
    assert!(machine.is_live());
    assert_eq!(machine.violations(), [""; 0]);
    machine
}

fn health(machine: &Machine) -> HealthStatus {
    machine.assignment("a").unwrap()[&A.parse::<SocketAddr>().unwrap()].health
}

#[test]
fn the_node_is_told_once_per_stream() {
    let mut machine = live(Wire::Delta, Vec::new());
    machine.closed();
    let requests = machine.open();
    let nodes: Vec<_> = as_delta(&requests).iter().map(|m| m.node.is_some()).collect();
    assert_eq!(nodes, [true, false]);
}

#[test]
fn a_sotw_refusal_says_the_old_version_the_new_nonce_and_all_names() {
    let mut machine = live(Wire::Sotw, Vec::new());
    let bad = assignment("a", &[(A.parse().unwrap(), HealthStatus::Healthy, 0)]);
    let requests = machine.on_response(&sotw(Kind::Endpoint, "3", "v2", &[bad]));
    let [nack] = as_sotw(&requests)[..] else { unreachable!("{requests:?}") };
    assert_eq!((nack.version_info.as_str(), nack.response_nonce.as_str()), ("v1", "3"));
    assert_eq!(nack.resource_names, ["a"]);
    assert!(nack.error_detail.as_ref().unwrap().message.contains("load_balancing_weight"));
    assert_eq!(machine.version(Kind::Endpoint, "a"), Some("v1"));
}

#[test]
fn a_delta_refusal_says_nothing_but_nonce_and_error() {
    let mut machine = live(Wire::Delta, Vec::new());
    let bad = assignment("a", &[(A.parse().unwrap(), HealthStatus::Healthy, 0)]);
    let requests = machine.on_response(&delta(Kind::Endpoint, "3", "v2", &[bad]));
    let [nack] = as_delta(&requests)[..] else { unreachable!("{requests:?}") };
    assert_eq!(nack.response_nonce, "3");
    assert!(nack.error_detail.is_some() && nack.resource_names_subscribe.is_empty());
    assert_eq!(health(&machine), HealthStatus::Healthy);
}

#[test]
fn an_injected_rule_can_leave_the_rest_of_the_message_alone() {
    let rule: RefuseRule = Arc::new(|_, name, _| {
        (name == "b").then(|| Refusal { message: "not b".to_owned(), spoils_message: false })
    });
    let mut machine = live(Wire::Delta, vec![rule]);
    let message = delta(Kind::Cluster, "3", "v2", &[cluster("b", 1), cluster("c", 1)]);
    let requests = machine.on_response(&message);
    assert_eq!(machine.clusters(), BTreeSet::from(["a".to_owned(), "c".to_owned()]));
    assert!(as_delta(&requests).last().unwrap().error_detail.is_some());
    assert_eq!(machine.version(Kind::Cluster, "c"), None, "a refused message changes no version");
}

#[test]
fn a_reconnecting_client_tells_what_it_holds() {
    let mut machine = live(Wire::Delta, Vec::new());
    machine.closed();
    let requests = machine.open();
    let [clusters, endpoints] = as_delta(&requests)[..] else { unreachable!("{requests:?}") };
    assert!(clusters.resource_names_subscribe.is_empty(), "legacy wildcard");
    assert_eq!(clusters.initial_resource_versions["a"], "v1");
    assert_eq!(endpoints.resource_names_subscribe, ["a"]);
    assert_eq!(endpoints.initial_resource_versions["a"], "v1");

    let mut machine = live(Wire::Sotw, Vec::new());
    machine.closed();
    let requests = machine.open();
    let told: Vec<_> = as_sotw(&requests).iter().map(|m| (&*m.version_info, &*m.response_nonce)).collect();
    assert_eq!(told, [("v1", ""), ("v1", "")]);
}

#[test]
fn a_changed_cluster_is_acknowledged_when_its_endpoints_came_or_time_is_over() {
    let mut machine = live(Wire::Delta, Vec::new());
    let requests = machine.on_response(&delta(Kind::Cluster, "3", "v2", &[cluster("a", 2)]));
    assert_eq!(requests, [], "delta asks for nothing, the acknowledgement waits");
    assert_eq!(machine.waits(), Some(Duration::from_secs(1)));
    let requests = machine.on_response(&delta(Kind::Endpoint, "4", "v1", &[eds("a", HealthStatus::Healthy)]));
    let nonces: Vec<_> = as_delta(&requests).iter().map(|m| m.response_nonce.as_str()).collect();
    assert_eq!(nonces, ["3", "4"]);

    let mut machine = live(Wire::Sotw, Vec::new());
    let requests = machine.on_response(&sotw(Kind::Cluster, "3", "v2", &[cluster("a", 2)]));
    assert_eq!(as_sotw(&requests)[0].type_url, Kind::Endpoint.type_url(), "SotW hints");
    assert_eq!(as_sotw(&machine.stop_waiting())[0].response_nonce, "3");
    assert_eq!(machine.violations(), [""; 0]);
}

#[test]
fn removed_clusters_go_and_removed_assignments_stay() {
    let removed = |kind: Kind, nonce: &str| {
        Response::Delta(DeltaDiscoveryResponse {
            type_url: kind.type_url().to_owned(),
            nonce: nonce.to_owned(),
            removed_resources: vec!["a".to_owned()],
            ..Default::default()
        })
    };
    let mut machine = live(Wire::Delta, Vec::new());
    machine.on_response(&removed(Kind::Endpoint, "3"));
    assert_eq!(health(&machine), HealthStatus::Healthy);
    let requests = machine.on_response(&removed(Kind::Cluster, "4"));
    assert_eq!(as_delta(&requests)[0].resource_names_unsubscribe, ["a"]);
    assert!(machine.clusters().is_empty() && machine.assignment("a").is_none());

    let mut machine = live(Wire::Sotw, Vec::new());
    machine.on_response(&sotw(Kind::Cluster, "3", "v2", &[]));
    assert!(machine.clusters().is_empty());
    assert_eq!(machine.violations(), [""; 0]);
}

#[test]
fn a_partial_sotw_response_keeps_the_other_assignments() {
    let mut machine = machine(Wire::Sotw, Asks::assignments(&["a", "b"]), Vec::new());
    assert_eq!(as_sotw(&machine.open())[0].resource_names, ["a", "b"]);
    machine.on_response(&sotw(Kind::Endpoint, "1", "v1", &[eds("a", HealthStatus::Healthy)]));
    machine.on_response(&sotw(Kind::Endpoint, "2", "v2", &[eds("b", HealthStatus::Draining)]));
    assert_eq!(health(&machine), HealthStatus::Healthy);
    assert!(machine.assignment("b").is_some() && machine.is_live());
    assert_eq!(machine.violations(), [""; 0]);
}

/// What the referee says of one more response to a live machine.
fn complaint(wire: Wire, responses: &[Response]) -> String {
    let mut machine = live(wire, Vec::new());
    for response in responses {
        machine.on_response(response);
    }
    machine.violations().join("; ")
}

#[test]
fn a_repeated_or_missing_nonce_is_a_violation() {
    let draining = [eds("a", HealthStatus::Draining)];
    let found = complaint(Wire::Delta, &[delta(Kind::Endpoint, "2", "v2", &draining)]);
    assert!(found.contains("nonce 2 was used before"), "{found}");
    let found = complaint(Wire::Sotw, &[sotw(Kind::Endpoint, "", "v2", &draining)]);
    assert!(found.contains("without a nonce"), "{found}");
}

#[test]
fn a_resource_that_nobody_asked_for_is_a_violation() {
    for (wire, say) in [(Wire::Delta, delta as fn(_, &_, &_, &_) -> _), (Wire::Sotw, sotw)] {
        let found = complaint(wire, &[say(Kind::Endpoint, "3", "v2", &[eds("b", HealthStatus::Healthy)])]);
        assert!(found.contains("b is outside the subscription"), "{found}");
        let found = complaint(wire, &[say(Kind::Route, "3", "v2", &[])]);
        assert!(found.contains("nobody subscribed"), "{found}");
    }
}

#[test]
fn a_response_without_news_is_a_violation_unless_the_cluster_changed() {
    for (wire, say) in [(Wire::Delta, delta as fn(_, &_, &_, &_) -> _), (Wire::Sotw, sotw)] {
        let same = [eds("a", HealthStatus::Healthy)];
        let again = say(Kind::Endpoint, "4", "v2", &same);
        let once_more = say(Kind::Endpoint, "5", "v3", &same);
        let changed = say(Kind::Cluster, "3", "v2", &[cluster("a", 2)]);
        assert_eq!(complaint(wire, &[changed.clone(), again.clone()]), "");
        let found = complaint(wire, &[changed, again, once_more]);
        assert!(found.contains("without a change") || found.contains("changes nothing"), "{found}");
    }
}

#[test]
fn a_refused_resource_that_comes_again_is_a_violation() {
    let bad = [assignment("a", &[(A.parse().unwrap(), HealthStatus::Healthy, 0)])];
    for (wire, say) in [(Wire::Delta, delta as fn(_, &_, &_, &_) -> _), (Wire::Sotw, sotw)] {
        let found =
            complaint(wire, &[say(Kind::Endpoint, "3", "v2", &bad), say(Kind::Endpoint, "4", "v2", &bad)]);
        assert!(found.contains("refused on this stream and came again"), "{found}");
        let good = [eds("a", HealthStatus::Healthy)];
        let back = [say(Kind::Endpoint, "3", "v2", &bad), say(Kind::Endpoint, "4", "v1", &good)];
        assert_eq!(complaint(wire, &back), "", "taking it back is allowed");
    }
}
