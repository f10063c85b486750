//! xDS messages on the wire: requests decoded only as far as needed, responses framed around shared bytes.
//!
//! Pure: no I/O.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::stream::Response;
use crate::snapshot::put_bytes;

/// `envoy.service.discovery.v3.DiscoveryRequest`, with the node left undecoded: an Envoy's node is 61 KB.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SotwRequest {
    /// The version the client last accepted.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The encoded `Node`; empty after the first request of a stream.
    #[prost(bytes = "bytes", tag = "2")]
    pub node: Bytes,
    /// All names the client wants.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// The type asked for.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The response this acknowledges, if any.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Present if the client refused that response.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<RpcStatus>,
}

/// `envoy.service.discovery.v3.DeltaDiscoveryRequest`, likewise.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeltaRequest {
    /// The encoded `Node`; empty after the first request of a stream.
    #[prost(bytes = "bytes", tag = "1")]
    pub node: Bytes,
    /// The type asked for.
    #[prost(string, tag = "2")]
    pub type_url: String,
    /// Names wanted from now on.
    #[prost(string, repeated, tag = "3")]
    pub resource_names_subscribe: Vec<String>,
    /// Names no longer wanted.
    #[prost(string, repeated, tag = "4")]
    pub resource_names_unsubscribe: Vec<String>,
    /// What the client holds from an earlier stream, by version.
    #[prost(btree_map = "string, string", tag = "5")]
    pub initial_resource_versions: BTreeMap<String, String>,
    /// The response this acknowledges, if any.
    #[prost(string, tag = "6")]
    pub response_nonce: String,
    /// Present if the client refused that response.
    #[prost(message, optional, tag = "7")]
    pub error_detail: Option<RpcStatus>,
}

/// The part of `google.rpc.Status` that a NACK carries.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcStatus {
    /// A gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The client's words.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The part of `envoy.config.core.v3.Node` that names a client.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeHead {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) cluster: String,
    #[prost(string, tag = "6")]
    pub(super) user_agent_name: String,
}

/// Field numbers of `DiscoveryResponse` and `DeltaDiscoveryResponse`; where both have a field, it has one number.
mod field {
    /// `version_info`, `system_version_info`.
    pub(super) const VERSION: u32 = 1;
    pub(super) const TYPE_URL: u32 = 4;
    pub(super) const NONCE: u32 = 5;
    /// `DeltaDiscoveryResponse.removed_resources`.
    pub(super) const REMOVED: u32 = 6;
}

/// The gRPC message prefix: a flag (0, not compressed) and a 32-bit length.
const PREFIX_LEN: usize = 5;

/// A response as HTTP/2 payloads: small heads of its own, and the resources' shared bytes between them.
pub(crate) fn frames(response: &Response) -> Vec<Bytes> {
    let mut head = BytesMut::with_capacity(256);
    head.put_bytes(0, PREFIX_LEN);
    put_bytes(field::VERSION, response.version.as_bytes(), &mut head);
    put_bytes(field::TYPE_URL, response.kind.type_url().as_bytes(), &mut head);
    put_bytes(field::NONCE, response.nonce.as_bytes(), &mut head);
    for name in &response.removed {
        put_bytes(field::REMOVED, name.as_bytes(), &mut head);
    }
    let mut frames = Vec::with_capacity(1 + response.resources.len() * 2);
    for resource in &response.resources {
        let [resource_head, any] =
            if response.delta { resource.delta_parts() } else { resource.sotw_parts() };
        head.put_slice(resource_head);
        frames.push(head.split().freeze());
        frames.push(any.clone());
    }
    if !head.is_empty() {
        frames.push(head.freeze());
    }
    set_length(&mut frames);
    frames
}

/// Fills the length into the prefix, once the payload is complete.
fn set_length(frames: &mut [Bytes]) {
    let total: usize = frames.iter().map(Bytes::len).sum();
    let Some(first) = frames.first_mut() else { return };
    // A message above 4 GiB cannot be built from a config whose file is bounded.
    let length = u32::try_from(total.saturating_sub(PREFIX_LEN)).unwrap_or(u32::MAX);
    let mut head = BytesMut::with_capacity(first.len());
    head.put_u8(0);
    head.put_u32(length);
    head.put_slice(first.get(PREFIX_LEN..).unwrap_or_default());
    *first = head.freeze();
}

/// The size of a response on the wire, for metrics.
pub(super) fn size(frames: &[Bytes]) -> usize {
    frames.iter().map(Bytes::len).sum()
}

const _: () = assert!(PREFIX_LEN == 1 + size_of::<u32>());

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message;

    use super::*;
    use crate::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
    use crate::pb::envoy::service::discovery::v3 as pb;
    use crate::snapshot::{Kind, Resource};

    fn response(delta: bool) -> (Response, ClusterLoadAssignment) {
        let message = ClusterLoadAssignment { cluster_name: "c".repeat(300), ..Default::default() };
        let resources = ["one", "two"].map(|n| Arc::new(Resource::new(Kind::Endpoints, n, 7, &message)));
        let removed = if delta { vec!["gone".into(), "lost".into()] } else { Vec::new() };
        let response = Response {
            kind: Kind::Endpoints,
            delta,
            nonce: "12".into(),
            version: "v".into(),
            resources: resources.into(),
            removed,
        };
        (response, message)
    }

    fn message(frames: &[Bytes]) -> Vec<u8> {
        let all = frames.concat();
        let (prefix, body) = all.split_at(PREFIX_LEN);
        assert_eq!(prefix[0], 0);
        assert_eq!(u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize, body.len());
        body.to_vec()
    }

    #[test]
    fn sotw_frames_are_what_prost_would_decode() {
        let (response, cla) = response(false);
        let decoded = pb::DiscoveryResponse::decode(&*message(&frames(&response))).unwrap();
        assert_eq!((decoded.version_info.as_str(), decoded.nonce.as_str()), ("v", "12"));
        assert_eq!(decoded.type_url, Kind::Endpoints.type_url());
        assert_eq!(decoded.resources.len(), 2);
        assert_eq!(ClusterLoadAssignment::decode(&*decoded.resources[1].value).unwrap(), cla);
    }

    #[test]
    fn delta_frames_are_what_prost_would_decode() {
        let (response, cla) = response(true);
        let decoded = pb::DeltaDiscoveryResponse::decode(&*message(&frames(&response))).unwrap();
        assert_eq!(decoded.removed_resources, ["gone", "lost"]);
        assert_eq!(decoded.nonce, "12");
        let [one, two] = &decoded.resources[..] else { unreachable!() };
        assert_eq!((one.name.as_str(), two.name.as_str()), ("one", "two"));
        assert_eq!(one.version, *response.resources[0].version);
        let any = two.resource.as_ref().unwrap();
        assert_eq!(any.type_url, Kind::Endpoints.type_url());
        assert_eq!(ClusterLoadAssignment::decode(&*any.value).unwrap(), cla);
    }

    #[test]
    fn an_empty_response_is_a_message_too() {
        let (mut response, _) = response(true);
        response.resources.clear();
        response.removed.clear();
        let decoded = pb::DeltaDiscoveryResponse::decode(&*message(&frames(&response))).unwrap();
        assert!(decoded.resources.is_empty() && decoded.removed_resources.is_empty());
    }

    #[test]
    fn the_resource_bytes_are_shared_not_copied() {
        let (response, _) = response(true);
        let frames = frames(&response);
        let any = response.resources[0].delta_parts()[1];
        assert!(frames.iter().any(|f| f.as_ptr() == any.as_ptr()));
    }

    #[test]
    fn a_request_keeps_its_node_undecoded() {
        let full = pb::DeltaDiscoveryRequest {
            node: Some(crate::pb::envoy::config::core::v3::Node { id: "me".into(), ..Default::default() }),
            type_url: "t".into(),
            resource_names_subscribe: vec!["a".into()],
            initial_resource_versions: [("a".to_owned(), "1".to_owned())].into(),
            response_nonce: "n".into(),
            ..Default::default()
        };
        let lazy = DeltaRequest::decode(&*full.encode_to_vec()).unwrap();
        assert_eq!(NodeHead::decode(lazy.node).unwrap().id, "me");
        assert_eq!((lazy.type_url.as_str(), lazy.response_nonce.as_str()), ("t", "n"));
        assert_eq!(lazy.initial_resource_versions["a"], "1");
    }
}
