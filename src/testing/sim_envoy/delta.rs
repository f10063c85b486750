//! Delta xDS, as Envoy writes and reads it.
//!
//! Pure: no I/O.
//!
//! A request says only what changes. The first of each type on a stream tells the versions already held; an
//! acceptance or refusal carries nothing but the nonce (and the error).

use super::machine::{Heard, Machine, Say};
use super::referee::Scope;
use super::sotw::INTERNAL;
use super::transcript::Kind;
use super::world::Offer;
use crate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use crate::pb::google::rpc::Status;

pub(super) fn say(machine: &mut Machine, say: Say) -> DeltaDiscoveryRequest {
    let node = std::mem::take(&mut machine.node_due).then(|| machine.node.to_proto());
    let mut request = DeltaDiscoveryRequest { node, ..Default::default() };
    let kind = match say {
        Say::Subscribe { kind, add, give_up } => {
            if machine.no_longer_fresh(kind) {
                let held = machine.world.held(kind).into_iter().flatten();
                let asked = held.filter(|(name, _)| kind.is_wildcard() || add.contains(*name));
                request.initial_resource_versions =
                    asked.map(|(name, held)| (name.clone(), held.version.clone())).collect();
            }
            request.resource_names_subscribe = add.into_iter().collect();
            request.resource_names_unsubscribe = give_up.into_iter().collect();
            kind
        }
        Say::Hint { kind } => kind,
        Say::Ack { kind, nonce } => {
            request.response_nonce = nonce;
            kind
        }
        Say::Nack { kind, nonce, message } => {
            request.response_nonce = nonce;
            request.error_detail = Some(Status { code: INTERNAL, message, details: Vec::new() });
            kind
        }
    };
    request.type_url = kind.type_url().to_owned();
    request
}

pub(super) fn hear(m: &DeltaDiscoveryResponse) -> Option<Heard> {
    let offers = m.resources.iter().map(|resource| Offer {
        name: resource.name.clone(),
        version: resource.version.clone(),
        body: resource.resource.clone(),
    });
    Some(Heard {
        kind: Kind::of(&m.type_url)?,
        scope: Scope::Delta,
        version: m.system_version_info.clone(),
        nonce: m.nonce.clone(),
        offers: offers.collect(),
        removed: m.removed_resources.clone(),
    })
}
