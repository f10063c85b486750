//! xDS messages on the wire: requests decoded only as far as needed, responses framed around shared bytes.
//!
//! Pure: no I/O.

use std::collections::{BTreeMap, VecDeque};

use bytes::buf::Chain;
use bytes::{Buf, BufMut, Bytes, BytesMut};

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
    /// gRPC says its version so,
    #[prost(string, tag = "7")]
    pub(super) user_agent_version: String,
    /// and Envoy so.
    #[prost(message, optional, tag = "8")]
    pub(super) user_agent_build_version: Option<BuildVersion>,
}

/// The part of `envoy.config.core.v3.BuildVersion` that is looked at.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BuildVersion {
    #[prost(message, optional, tag = "1")]
    pub(super) version: Option<SemanticVersion>,
}

/// `envoy.type.v3.SemanticVersion`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SemanticVersion {
    #[prost(uint32, tag = "1")]
    pub(super) major_number: u32,
    #[prost(uint32, tag = "2")]
    pub(super) minor_number: u32,
    #[prost(uint32, tag = "3")]
    pub(super) patch: u32,
}

impl NodeHead {
    /// The agent's version in words.
    pub(super) fn version(&self) -> String {
        match self.user_agent_build_version.as_ref().and_then(|build| build.version.as_ref()) {
            Some(v) => format!("{}.{}.{}", v.major_number, v.minor_number, v.patch),
            None => self.user_agent_version.clone(),
        }
    }
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

/// Room for the head of a usual response, so that it is allocated once.
const HEAD_LEN: usize = 256;

/// Bytes of resources that are sent as they are, shared by all streams. Fewer are cheaper to copy than to give a frame
/// of their own.
const SHARED_FROM: usize = 2 * 1024;

/// One HTTP/2 payload: small parts put together, and shared bytes after them.
pub(crate) type Piece = Chain<Bytes, Bytes>;

/// HTTP/2 payloads that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    ready: VecDeque<Piece>,
    /// Small parts, put together.
    open: BytesMut,
    len: usize,
}

impl Frames {
    /// The next payload.
    pub(crate) fn pop(&mut self) -> Option<Piece> {
        if self.ready.is_empty() && !self.open.is_empty() {
            self.close(Bytes::new());
        }
        let piece = self.ready.pop_front()?;
        self.len -= piece.remaining();
        Some(piece)
    }

    /// Bytes that wait.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn close(&mut self, shared: Bytes) {
        self.ready.push_back(std::mem::take(&mut self.open).freeze().chain(shared));
    }

    fn put_part(&mut self, part: &Bytes) {
        if part.len() < SHARED_FROM {
            self.open.put_slice(part);
        } else {
            self.close(part.clone());
        }
    }
}

/// Appends a response: small heads of its own, and the resources' shared bytes between them. Returns its size.
pub(crate) fn put(response: &Response, frames: &mut Frames) -> usize {
    let parts = response
        .resources
        .iter()
        .flat_map(|resource| if response.delta { resource.delta_parts() } else { resource.sotw_parts() });
    let (begin, head) = (frames.open.len(), &mut frames.open);
    head.reserve(HEAD_LEN);
    head.put_bytes(0, PREFIX_LEN);
    put_bytes(field::VERSION, response.version.as_bytes(), head);
    put_bytes(field::TYPE_URL, response.kind.type_url().as_bytes(), head);
    put_bytes(field::NONCE, response.nonce.as_bytes(), head);
    for name in &response.removed {
        put_bytes(field::REMOVED, name.as_bytes(), head);
    }
    let size = head.len() - begin + parts.clone().map(Bytes::len).sum::<usize>();
    // A message above 4 GiB cannot be built from a config whose file is bounded.
    let length = u32::try_from(size - PREFIX_LEN).unwrap_or(u32::MAX);
    if let Some(place) = head.get_mut(begin + 1..begin + PREFIX_LEN) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    parts.for_each(|part| frames.put_part(part));
    frames.len += size;
    size
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
        let message = ClusterLoadAssignment { cluster_name: "c".repeat(3000), ..Default::default() };
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

    fn frames(response: &Response) -> Vec<Bytes> {
        let mut frames = Frames::default();
        let size = put(response, &mut frames);
        assert_eq!(frames.len(), size);
        let pieces: Vec<Piece> = std::iter::from_fn(|| frames.pop()).collect();
        let all: Vec<Bytes> =
            pieces.iter().flat_map(|p| [p.first_ref().clone(), p.last_ref().clone()]).collect();
        assert!(frames.is_empty() && all.iter().map(Bytes::len).sum::<usize>() == size);
        all
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
    fn small_responses_share_a_frame_and_each_has_its_length() {
        let small =
            |name: &str| Response { removed: vec![name.into()], resources: Vec::new(), ..response(true).0 };
        let mut together = Frames::default();
        let sizes = ["one", "three"].map(|name| put(&small(name), &mut together));
        let frame = together.pop().unwrap().into_inner().0;
        assert!(together.pop().is_none());
        let (one, three) = frame.split_at(sizes[0]);
        let names = |bytes: &[u8]| {
            let bytes = message(&[Bytes::copy_from_slice(bytes)]);
            pb::DeltaDiscoveryResponse::decode(&*bytes).unwrap().removed_resources
        };
        assert_eq!([names(one), names(three)], [["one"], ["three"]]);
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
