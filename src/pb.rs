//! Generated protobuf types. `envoy` is the only door to `envoy-types`.

pub use envoy_types::pb::envoy;
pub use envoy_types::pb::google;
