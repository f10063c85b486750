//! Generated protobuf types. `envoy` is the only door to `envoy-types`.

pub use envoy_types::pb::envoy;
pub use envoy_types::pb::google;

/// `tidegate.admin.v1`.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    missing_docs,
    reason = "generated"
)]
pub mod admin {
    tonic::include_proto!("tidegate.admin.v1");

    /// The descriptors, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/admin.bin"));
}
