//! Small builders for protobuf values that several resources need.

use std::time::Duration;

use prost::Message;

use crate::config::BOOTSTRAP_CLUSTER;
use crate::model::Address;
use crate::pb::envoy::config::core::v3 as core;
use crate::pb::google::protobuf;

pub(super) fn duration(d: Duration) -> protobuf::Duration {
    // A validated config's durations are far below these bounds.
    let seconds = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    let nanos = i32::try_from(d.subsec_nanos()).unwrap_or(0);
    protobuf::Duration { seconds, nanos }
}

pub(super) const fn u32_value(value: u32) -> Option<protobuf::UInt32Value> {
    Some(protobuf::UInt32Value { value })
}

pub(super) const fn bool_value(value: bool) -> Option<protobuf::BoolValue> {
    Some(protobuf::BoolValue { value })
}

/// `message` as an `Any` of type `full_name`.
pub(super) fn any(full_name: &str, message: &impl Message) -> protobuf::Any {
    protobuf::Any { type_url: format!("type.googleapis.com/{full_name}"), value: message.encode_to_vec() }
}

pub(super) fn address(address: Address) -> core::Address {
    let socket = core::SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(address.port().into())),
        ..Default::default()
    };
    core::Address { address: Some(core::address::Address::SocketAddress(socket)) }
}

/// "On a stream of its own, from [`BOOTSTRAP_CLUSTER`]", for Envoys without ADS.
pub(super) fn alone(initial_fetch_timeout: Duration) -> core::ConfigSource {
    let service =
        core::grpc_service::EnvoyGrpc { cluster_name: BOOTSTRAP_CLUSTER.to_owned(), ..Default::default() };
    let source = core::ApiConfigSource {
        api_type: core::api_config_source::ApiType::DeltaGrpc as i32,
        transport_api_version: core::ApiVersion::V3 as i32,
        grpc_services: vec![core::GrpcService {
            target_specifier: Some(core::grpc_service::TargetSpecifier::EnvoyGrpc(service)),
            ..Default::default()
        }],
        set_node_on_first_message_only: true,
        ..Default::default()
    };
    core::ConfigSource {
        resource_api_version: core::ApiVersion::V3 as i32,
        initial_fetch_timeout: Some(duration(initial_fetch_timeout)),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::ApiConfigSource(source)),
        ..Default::default()
    }
}

/// "Over the ADS stream you already have", and how long Envoy waits for the first answer.
pub(super) fn ads(initial_fetch_timeout: Option<Duration>) -> core::ConfigSource {
    core::ConfigSource {
        resource_api_version: core::ApiVersion::V3 as i32,
        initial_fetch_timeout: initial_fetch_timeout.map(duration),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource {},
        )),
        ..Default::default()
    }
}
