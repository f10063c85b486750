//! Small hand-made resources for tests of xDS clients and servers.
//!
//! Written from Envoy's API, not by `crate::snapshot`, which is under test. Only as much in each as a real Envoy needs
//! to accept it.

use std::net::SocketAddr;

use prost::{Message, Name};

use crate::pb::envoy::config::cluster::v3 as cds;
use crate::pb::envoy::config::core::v3 as core;
use crate::pb::envoy::config::endpoint::v3 as eds;
use crate::pb::envoy::config::listener::v3 as lds;
use crate::pb::envoy::config::route::v3 as rds;
use crate::pb::envoy::extensions::filters::http::router::v3::Router;
use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use crate::pb::google::protobuf::{Any, Duration, UInt32Value};

/// Packs a message.
pub fn any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: format!("type.googleapis.com/{}", M::full_name()), value: message.encode_to_vec() }
}

fn ads() -> core::ConfigSource {
    core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        initial_fetch_timeout: Some(seconds(1)),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        ..Default::default()
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

fn socket(at: SocketAddr) -> core::Address {
    core::Address {
        address: Some(core::address::Address::SocketAddress(core::SocketAddress {
            address: at.ip().to_string(),
            port_specifier: Some(core::socket_address::PortSpecifier::PortValue(at.port().into())),
            ..Default::default()
        })),
    }
}

/// A cluster whose endpoints come over ADS. The timeout is there to make two versions of it.
pub fn cluster(name: &str, connect_timeout_seconds: i64) -> (String, Any) {
    let cluster = cds::Cluster {
        name: name.to_owned(),
        connect_timeout: Some(seconds(connect_timeout_seconds)),
        cluster_discovery_type: Some(cds::cluster::ClusterDiscoveryType::Type(
            cds::cluster::DiscoveryType::Eds.into(),
        )),
        eds_cluster_config: Some(cds::cluster::EdsClusterConfig {
            eds_config: Some(ads()),
            ..Default::default()
        }),
        ..Default::default()
    };
    (name.to_owned(), any(&cluster))
}

/// An assignment of `hosts` with EDS health and weight. Weight 0 makes Envoy refuse it.
pub fn assignment(name: &str, hosts: &[(SocketAddr, core::HealthStatus, u32)]) -> (String, Any) {
    let host = |(at, health, weight): &(SocketAddr, core::HealthStatus, u32)| eds::LbEndpoint {
        health_status: (*health).into(),
        load_balancing_weight: Some(UInt32Value { value: *weight }),
        host_identifier: Some(eds::lb_endpoint::HostIdentifier::Endpoint(eds::Endpoint {
            address: Some(socket(*at)),
            ..Default::default()
        })),
        ..Default::default()
    };
    let locality =
        eds::LocalityLbEndpoints { lb_endpoints: hosts.iter().map(host).collect(), ..Default::default() };
    let assignment = eds::ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: vec![locality],
        ..Default::default()
    };
    (name.to_owned(), any(&assignment))
}

/// A listener on `at` whose routes named `routes` come over ADS.
pub fn listener(name: &str, at: SocketAddr, routes: &str) -> (String, Any) {
    let manager = hcm::HttpConnectionManager {
        stat_prefix: name.to_owned(),
        route_specifier: Some(hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
            config_source: Some(ads()),
            route_config_name: routes.to_owned(),
        })),
        http_filters: vec![hcm::HttpFilter {
            name: "router".to_owned(),
            config_type: Some(hcm::http_filter::ConfigType::TypedConfig(any(&Router::default()))),
            ..Default::default()
        }],
        ..Default::default()
    };
    let filter = lds::Filter {
        name: "hcm".to_owned(),
        config_type: Some(lds::filter::ConfigType::TypedConfig(any(&manager))),
    };
    let listener = lds::Listener {
        name: name.to_owned(),
        address: Some(socket(at)),
        filter_chains: vec![lds::FilterChain { filters: vec![filter], ..Default::default() }],
        ..Default::default()
    };
    (name.to_owned(), any(&listener))
}

/// Routes that send everything to `cluster`.
pub fn routes(name: &str, cluster: &str) -> (String, Any) {
    let action = rds::RouteAction {
        cluster_specifier: Some(rds::route_action::ClusterSpecifier::Cluster(cluster.to_owned())),
        ..Default::default()
    };
    let everything = rds::RouteMatch {
        path_specifier: Some(rds::route_match::PathSpecifier::Prefix("/".to_owned())),
        ..Default::default()
    };
    let route = rds::Route {
        r#match: Some(everything),
        action: Some(rds::route::Action::Route(action)),
        ..Default::default()
    };
    let host = rds::VirtualHost {
        name: "all".to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![route],
        ..Default::default()
    };
    let config =
        rds::RouteConfiguration { name: name.to_owned(), virtual_hosts: vec![host], ..Default::default() };
    (name.to_owned(), any(&config))
}
