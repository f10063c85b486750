//! A listener's routes as Envoy's `RouteConfiguration`.

use super::{Rendering, proto};
use crate::config;
use crate::model::{ClusterName, ListenerName};
use crate::pb::envoy::config::route::v3::{
    RetryPolicy, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost,
    retry_policy::{RetryHostPredicate, retry_host_predicate},
    route, route_action, route_match,
};
use crate::pb::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;

/// Only what never reached an instance is tried again: no answer is paid for twice.
const RETRY_ON: &str = "connect-failure,refused-stream,reset-before-request";
const PREVIOUS_HOSTS: &str = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate";

pub(super) fn routes(
    name: &ListenerName,
    listener: &config::Listener,
    rendering: Rendering,
) -> RouteConfiguration {
    let route = match rendering {
        Rendering::Envoy => route,
        Rendering::Grpc => |route: &config::Route| plain(&route.prefix, &route.cluster),
    };
    whole(name.as_str(), listener.routes.iter().map(route).collect())
}

/// Everything to one cluster.
pub(super) fn to_cluster(name: &ClusterName) -> RouteConfiguration {
    whole(name.as_str(), vec![plain("", name)])
}

fn whole(name: &str, routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: name.to_owned(),
            domains: vec!["*".to_owned()],
            routes,
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// A route as gRPC's client reads it: deadlines are its callers', and it retries by itself what was never sent.
fn plain(prefix: &str, cluster: &ClusterName) -> Route {
    let action = RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(cluster.as_str().to_owned())),
        ..Default::default()
    };
    Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(route_match::PathSpecifier::Prefix(prefix.to_owned())),
            ..Default::default()
        }),
        action: Some(route::Action::Route(action)),
        ..Default::default()
    }
}

fn route(route: &config::Route) -> Route {
    let action = RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(route.cluster.as_str().to_owned())),
        // Envoy's default of 15 s cuts long answers.
        timeout: Some(proto::duration(route.timeout)),
        idle_timeout: Some(proto::duration(route.idle_timeout)),
        retry_policy: (route.num_retries > 0).then(|| retry(route.num_retries)),
        ..Default::default()
    };
    Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(route_match::PathSpecifier::Prefix(route.prefix.to_string())),
            ..Default::default()
        }),
        action: Some(route::Action::Route(action)),
        ..Default::default()
    }
}

fn retry(num_retries: u32) -> RetryPolicy {
    RetryPolicy {
        retry_on: RETRY_ON.to_owned(),
        num_retries: proto::u32_value(num_retries),
        retry_host_predicate: vec![RetryHostPredicate {
            name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
            config_type: Some(retry_host_predicate::ConfigType::TypedConfig(proto::any(
                PREVIOUS_HOSTS,
                &PreviousHostsPredicate::default(),
            ))),
        }],
        // To least-request a dead instance is the idlest of all, and is picked again: with 3 attempts 38 of 600
        // requests failed beside one dead instance, with 30 none.
        host_selection_retry_max_attempts: 30,
        ..Default::default()
    }
}
