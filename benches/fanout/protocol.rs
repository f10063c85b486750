//! What a client knows and says: enough of xDS to subscribe, acknowledge, and know which versions it holds. Resources
//! are not parsed beyond their names.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use tidegate::pb::envoy::config::core::v3::Node;
use tidegate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use tidegate::snapshot::Kind;

/// The protocol variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    Delta,
    Sotw,
}

impl Wire {
    pub const fn path(self) -> &'static str {
        match self {
            Self::Delta => "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
            Self::Sotw => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
        }
    }
}

/// A response of either variant: what they share has the same field numbers.
#[derive(Message)]
struct ResponseHead {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(string, repeated, tag = "6")]
    removed: Vec<String>,
}

#[derive(Message)]
struct DeltaResources {
    #[prost(message, repeated, tag = "2")]
    resources: Vec<DeltaResource>,
}

#[derive(Message)]
struct DeltaResource {
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "1")]
    version: String,
}

#[derive(Message)]
struct SotwResources {
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Any>,
}

#[derive(Message)]
struct Any {
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// A cluster and an assignment both have their name first.
#[derive(Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

/// What a client holds, by name.
#[derive(Debug, Default)]
pub struct Held {
    pub clusters: BTreeMap<String, String>,
    pub endpoints: BTreeMap<String, String>,
}

/// What came of a response.
pub struct Taken {
    /// To be sent: the ACK, and perhaps a subscription to endpoints.
    pub requests: Vec<Bytes>,
    /// Endpoints of these clusters came along.
    pub endpoints_of: Vec<String>,
}

impl Wire {
    /// The first request: all clusters.
    pub fn opening(self, id: usize) -> Bytes {
        let node = Some(Node { id: format!("n{id}"), ..Default::default() });
        let type_url = Kind::Cluster.type_url().to_owned();
        match self {
            Self::Delta => framed(&DeltaDiscoveryRequest { node, type_url, ..Default::default() }),
            Self::Sotw => framed(&DiscoveryRequest { node, type_url, ..Default::default() }),
        }
    }

    /// Takes a response and acknowledges it.
    pub fn take(self, held: &mut Held, message: Bytes) -> anyhow::Result<Taken> {
        let head = ResponseHead::decode(message.clone())?;
        let resources: Vec<(String, String)> = match self {
            Self::Delta => {
                let all = DeltaResources::decode(message)?.resources;
                all.into_iter().map(|resource| (resource.name, resource.version)).collect()
            }
            Self::Sotw => {
                let all = SotwResources::decode(message)?.resources;
                let named = all.into_iter().map(|any| Named::decode(any.value));
                named.map(|named| Ok((named?.name, head.version.clone()))).collect::<anyhow::Result<_>>()?
            }
        };
        let of_endpoints = head.type_url == Kind::Endpoints.type_url();
        let kind = if of_endpoints { &mut held.endpoints } else { &mut held.clusters };
        for name in &head.removed {
            kind.remove(name);
        }
        let names = || resources.iter().map(|(name, _)| name.clone());
        let new: Vec<String> = names().filter(|name| !kind.contains_key(name)).collect();
        let endpoints_of = if of_endpoints { names().collect() } else { Vec::new() };
        kind.extend(resources);
        let mut requests = vec![self.ack(head, held)];
        if !of_endpoints && !new.is_empty() {
            requests.push(self.subscribe(new, held));
        }
        Ok(Taken { requests, endpoints_of })
    }

    fn ack(self, head: ResponseHead, held: &Held) -> Bytes {
        let ResponseHead { version, type_url, nonce, .. } = head;
        match self {
            Self::Delta => {
                framed(&DeltaDiscoveryRequest { type_url, response_nonce: nonce, ..Default::default() })
            }
            Self::Sotw => {
                let by_name = type_url == Kind::Endpoints.type_url();
                framed(&DiscoveryRequest {
                    version_info: version,
                    resource_names: if by_name {
                        held.clusters.keys().cloned().collect()
                    } else {
                        Vec::new()
                    },
                    type_url,
                    response_nonce: nonce,
                    ..Default::default()
                })
            }
        }
    }

    /// Asks for the endpoints of clusters just heard of, as Envoy does.
    fn subscribe(self, new: Vec<String>, held: &Held) -> Bytes {
        let type_url = Kind::Endpoints.type_url().to_owned();
        match self {
            Self::Delta => framed(&DeltaDiscoveryRequest {
                type_url,
                resource_names_subscribe: new,
                ..Default::default()
            }),
            Self::Sotw => framed(&DiscoveryRequest {
                type_url,
                resource_names: held.clusters.keys().cloned().collect(),
                ..Default::default()
            }),
        }
    }
}

/// With gRPC's prefix.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}
