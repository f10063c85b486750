//! A cluster as Envoy's `Cluster`. What is not the operator's choice is fixed here, with its reason (design §4;
//! measured on Envoy 1.40.0).

use std::time::Duration;

use super::{Door, proto};
use crate::config::{CircuitBreakers, EnvoyCluster, LbPolicy};
use crate::model::ClusterName;
use crate::pb::envoy::config::cluster::v3::{
    self as pb, Cluster, OutlierDetection, circuit_breakers::Thresholds, cluster,
};
use crate::pb::envoy::config::core::v3::Http2ProtocolOptions;
use crate::pb::envoy::extensions::upstreams::http::v3::{
    HttpProtocolOptions,
    http_protocol_options::{
        ExplicitHttpConfig, UpstreamProtocolOptions, explicit_http_config::ProtocolConfig,
    },
};
use crate::pb::envoy::r#type::v3::Percent;

/// How long Envoy holds a changed cluster back for its first assignment. Its default is 15 s, and one cluster
/// without an answer then keeps the whole Envoy from starting that long.
const EDS_WAIT: Duration = Duration::from_secs(1);

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// `registered` is the number of registered instances, whatever their health: it must not flap with verdicts, since
/// each changed byte here makes every Envoy rebuild its connection pools.
pub(super) fn cluster(name: &ClusterName, envoy: &EnvoyCluster, registered: usize, door: Door) -> Cluster {
    let eds_config = match door {
        Door::Aggregated | Door::Endpoints => proto::ads(Some(EDS_WAIT)),
        Door::Clusters => proto::alone(EDS_WAIT),
    };
    Cluster {
        name: name.as_str().to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(cluster::DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(cluster::EdsClusterConfig {
            eds_config: Some(eds_config),
            service_name: String::new(),
        }),
        connect_timeout: Some(proto::duration(envoy.connect_timeout)),
        lb_policy: lb_policy(envoy.lb_policy) as i32,
        circuit_breakers: Some(circuit_breakers(&envoy.circuit_breakers)),
        // One entry at most: the generated map has no order.
        typed_extension_protocol_options: envoy
            .http2
            .then(|| (HTTP_OPTIONS.to_owned(), proto::any(HTTP_OPTIONS, &http2())))
            .into_iter()
            .collect(),
        common_lb_config: Some(cluster::CommonLbConfig {
            // Panic would send traffic to those we know to be bad.
            healthy_panic_threshold: Some(Percent { value: 0.0 }),
            // Older Envoys hold a health flip back for up to a second otherwise.
            update_merge_window: Some(proto::duration(Duration::ZERO)),
            ..Default::default()
        }),
        // An endpoint we remove must go although Envoy's own health check still likes it.
        ignore_health_on_host_removal: true,
        outlier_detection: (envoy.bridge && registered > 1).then(bridge),
        ..Default::default()
    }
}

/// What gRPC's client reads of a cluster: where its endpoints are, and how many requests it may carry. Of the policies
/// that every implementation has, round robin alone is left; others are refused, and the cluster with them.
pub(super) fn for_grpc(name: &ClusterName, envoy: &EnvoyCluster) -> Cluster {
    Cluster {
        name: name.as_str().to_owned(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(cluster::DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(cluster::EdsClusterConfig {
            eds_config: Some(proto::ads(None)),
            service_name: String::new(),
        }),
        lb_policy: cluster::LbPolicy::RoundRobin as i32,
        circuit_breakers: Some(circuit_breakers(&envoy.circuit_breakers)),
        ..Default::default()
    }
}

const fn lb_policy(policy: LbPolicy) -> cluster::LbPolicy {
    match policy {
        LbPolicy::LeastRequest => cluster::LbPolicy::LeastRequest,
        LbPolicy::RoundRobin => cluster::LbPolicy::RoundRobin,
        LbPolicy::Random => cluster::LbPolicy::Random,
    }
}

fn circuit_breakers(limits: &CircuitBreakers) -> pb::CircuitBreakers {
    pb::CircuitBreakers {
        thresholds: vec![Thresholds {
            max_connections: proto::u32_value(limits.max_connections),
            max_pending_requests: proto::u32_value(limits.max_pending_requests),
            max_requests: proto::u32_value(limits.max_requests),
            max_retries: proto::u32_value(limits.max_retries),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn http2() -> HttpProtocolOptions {
    HttpProtocolOptions {
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default())),
        })),
        ..Default::default()
    }
}

/// Outlier detection for connection failures alone, from the failure until our verdict arrives. Never a second
/// judge: what an instance answers is not looked at. Of the default 10% nobody in a cluster of four would go.
fn bridge() -> OutlierDetection {
    OutlierDetection {
        split_external_local_origin_errors: true,
        consecutive_local_origin_failure: proto::u32_value(3),
        // Ejections end at a sweep only: with Envoy's default of 10 s, two seconds would be ten.
        interval: Some(proto::duration(Duration::from_secs(1))),
        base_ejection_time: Some(proto::duration(Duration::from_secs(2))),
        max_ejection_time: Some(proto::duration(Duration::from_secs(10))),
        max_ejection_percent: proto::u32_value(50),
        always_eject_one_host: proto::bool_value(true),
        enforcing_consecutive_5xx: proto::u32_value(0),
        enforcing_consecutive_gateway_failure: proto::u32_value(0),
        enforcing_success_rate: proto::u32_value(0),
        enforcing_local_origin_success_rate: proto::u32_value(0),
        ..Default::default()
    }
}
