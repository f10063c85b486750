//! State of the world, as Envoy writes and reads it.
//!
//! Pure: no I/O.
//!
//! Every request repeats all names, the version accepted last and the nonce of the latest response on the stream; a
//! refusal differs only in its error.

use super::machine::{Heard, Machine, Say};
use super::referee::Scope;
use super::transcript::Kind;
use super::world::{Offer, name_of};
use crate::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::pb::google::rpc::Status;

/// gRPC's INTERNAL, with which Envoy refuses.
pub(super) const INTERNAL: i32 = 13;

pub(super) fn say(machine: &mut Machine, say: Say) -> DiscoveryRequest {
    let (kind, error) = match say {
        Say::Subscribe { kind, .. } | Say::Hint { kind } => (kind, None),
        Say::Ack { kind, nonce } => return answer(machine, kind, nonce, None),
        Say::Nack { kind, nonce, message } => return answer(machine, kind, nonce, Some(message)),
    };
    let nonce = machine.topic(kind).map(|topic| topic.nonce.clone()).unwrap_or_default();
    let first = machine.no_longer_fresh(kind);
    if nonce.is_empty() && !first {
        machine.begins_again(kind);
    }
    answer(machine, kind, nonce, error)
}

fn answer(machine: &mut Machine, kind: Kind, nonce: String, error: Option<String>) -> DiscoveryRequest {
    let node = std::mem::take(&mut machine.node_due).then(|| machine.node.to_proto());
    let topic = machine.topic(kind);
    DiscoveryRequest {
        version_info: topic.map(|topic| topic.version.clone()).unwrap_or_default(),
        node,
        resource_names: topic.map(|topic| topic.names.iter().cloned().collect()).unwrap_or_default(),
        type_url: kind.type_url().to_owned(),
        response_nonce: nonce,
        error_detail: error.map(|message| Status { code: INTERNAL, message, details: Vec::new() }),
        ..Default::default()
    }
}

pub(super) fn hear(m: &DiscoveryResponse) -> Option<Heard> {
    let kind = Kind::of(&m.type_url)?;
    let offer = |body: &crate::pb::google::protobuf::Any| Offer {
        name: name_of(kind, body).unwrap_or_default(),
        version: m.version_info.clone(),
        body: Some(body.clone()),
    };
    Some(Heard {
        kind,
        scope: Scope::Sotw,
        version: m.version_info.clone(),
        nonce: m.nonce.clone(),
        offers: m.resources.iter().map(offer).collect(),
        removed: Vec::new(),
    })
}
