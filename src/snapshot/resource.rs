//! One resource, encoded once.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::Kind;
use crate::model::ContentHash;

/// Field numbers of the xDS messages that a resource is framed into (`envoy/service/discovery/v3/discovery.proto`).
mod field {
    /// `DiscoveryResponse.resources` and `DeltaDiscoveryResponse.resources`.
    pub(super) const RESOURCES: u32 = 2;
    /// `Resource.version`.
    pub(super) const VERSION: u32 = 1;
    /// `Resource.resource`.
    pub(super) const RESOURCE: u32 = 2;
    /// `Resource.name`.
    pub(super) const NAME: u32 = 3;
    /// `Any.type_url`.
    pub(super) const TYPE_URL: u32 = 1;
    /// `Any.value`.
    pub(super) const VALUE: u32 = 2;
}

/// A resource in its wire form. The same bytes go to every client, in either protocol variant: only the small head
/// before them differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: Arc<str>,
    /// Its content's version.
    pub version: Arc<str>,
    /// The plan's generation that this content belongs to; 0 for what does not come from the plan.
    pub generation: u64,
    /// The encoded `google.protobuf.Any`.
    any: Bytes,
    sotw_head: Bytes,
    delta_head: Bytes,
}

impl Resource {
    /// Encodes `message` and derives its version from the bytes. The caller vouches for a canonical encoding: sorted
    /// lists, and no map with more than one entry (the generated maps have no order).
    pub fn new(kind: Kind, name: &str, generation: u64, message: &impl Message) -> Self {
        Self::encoded(kind, name, generation, &message.encode_to_vec())
    }

    /// The same of a message that is encoded already.
    pub(super) fn encoded(kind: Kind, name: &str, generation: u64, value: &[u8]) -> Self {
        let version: Arc<str> = ContentHash::of(value).to_string().into();
        let mut any = BytesMut::with_capacity(value.len() + kind.type_url().len() + 16);
        put_bytes(field::TYPE_URL, kind.type_url().as_bytes(), &mut any);
        put_bytes(field::VALUE, value, &mut any);
        let any = any.freeze();
        let mut sotw_head = BytesMut::new();
        put_len(field::RESOURCES, any.len(), &mut sotw_head);
        let mut inner = BytesMut::new();
        put_bytes(field::NAME, name.as_bytes(), &mut inner);
        put_bytes(field::VERSION, version.as_bytes(), &mut inner);
        put_len(field::RESOURCE, any.len(), &mut inner);
        let mut delta_head = BytesMut::new();
        put_len(field::RESOURCES, inner.len() + any.len(), &mut delta_head);
        delta_head.extend_from_slice(&inner);
        Self {
            name: name.into(),
            version,
            generation,
            any,
            sotw_head: sotw_head.freeze(),
            delta_head: delta_head.freeze(),
        }
    }

    /// Head and body of a `DiscoveryResponse.resources` entry.
    pub fn sotw_parts(&self) -> [&Bytes; 2] {
        [&self.sotw_head, &self.any]
    }

    /// Head and body of a `DeltaDiscoveryResponse.resources` entry.
    pub fn delta_parts(&self) -> [&Bytes; 2] {
        [&self.delta_head, &self.any]
    }
}

/// Appends a length-delimited field.
pub(crate) fn put_bytes(field: u32, value: &[u8], out: &mut impl BufMut) {
    put_len(field, value.len(), out);
    out.put_slice(value);
}

/// Appends the key and length of a length-delimited field whose value follows elsewhere.
pub(super) fn put_len(field: u32, len: usize, out: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(len as u64, out);
}
