//! A listener as Envoy's `Listener`: one HTTP connection manager whose routes come over RDS under the same name. For
//! gRPC's client it listens nowhere, and is what a channel's target leads to.

use super::proto;
use crate::config;
use crate::model::ListenerName;
use crate::pb::envoy::config::listener::v3::{ApiListener, Filter, FilterChain, Listener, filter};
use crate::pb::envoy::extensions::filters::http::router::v3::Router;
use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_connection_manager, http_filter,
};

const HCM: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";

fn manager(name: &str) -> HttpConnectionManager {
    HttpConnectionManager {
        stat_prefix: name.to_owned(),
        route_specifier: Some(http_connection_manager::RouteSpecifier::Rds(Rds {
            config_source: Some(proto::ads(None)),
            route_config_name: name.to_owned(),
        })),
        http_filters: vec![HttpFilter {
            name: "envoy.filters.http.router".to_owned(),
            config_type: Some(http_filter::ConfigType::TypedConfig(proto::any(ROUTER, &Router::default()))),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The target `xds:///NAME` of gRPC's client (gRFC A27).
pub(super) fn for_grpc(name: &str) -> Listener {
    Listener {
        name: name.to_owned(),
        api_listener: Some(ApiListener { api_listener: Some(proto::any(HCM, &manager(name))) }),
        ..Default::default()
    }
}

pub(super) fn listener(name: &ListenerName, listener: &config::Listener) -> Listener {
    Listener {
        name: name.as_str().to_owned(),
        address: Some(proto::address(listener.address)),
        filter_chains: vec![FilterChain {
            filters: vec![Filter {
                name: "envoy.filters.network.http_connection_manager".to_owned(),
                config_type: Some(filter::ConfigType::TypedConfig(proto::any(HCM, &manager(name.as_str())))),
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}
