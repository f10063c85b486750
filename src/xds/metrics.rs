//! Metrics of the xDS side.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::snapshot::Kind;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct KindLabel {
    r#type: &'static str,
}

impl From<Kind> for KindLabel {
    fn from(kind: Kind) -> Self {
        Self { r#type: kind.as_str() }
    }
}

/// Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) streams: Gauge,
    pub(super) connections: Gauge,
    pub(super) responses: Family<KindLabel, Counter>,
    pub(super) response_bytes: Family<KindLabel, Counter>,
    pub(super) acks: Family<KindLabel, Counter>,
    pub(super) nacks: Family<KindLabel, Counter>,
    pub(super) ack_seconds: Family<KindLabel, Histogram>,
    pub(super) snapshots: Counter,
}

impl Metrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            streams: Gauge::default(),
            connections: Gauge::default(),
            responses: Family::default(),
            response_bytes: Family::default(),
            acks: Family::default(),
            nacks: Family::default(),
            // 0.25 ms to 8 s: a push is acknowledged in about a millisecond; a warming cluster takes a second.
            ack_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
            }),
            snapshots: Counter::default(),
        };
        let r = registry.sub_registry_with_prefix("xds");
        r.register("streams", "xDS streams open", metrics.streams.clone());
        r.register("connections", "HTTP/2 connections open", metrics.connections.clone());
        r.register("responses", "xDS responses sent", metrics.responses.clone());
        r.register_with_unit(
            "response",
            "Bytes of xDS responses sent",
            Unit::Bytes,
            metrics.response_bytes.clone(),
        );
        r.register("acks", "xDS responses acknowledged", metrics.acks.clone());
        r.register("nacks", "xDS responses refused by a client", metrics.nacks.clone());
        r.register_with_unit(
            "ack",
            "From sending a response to its ACK",
            Unit::Seconds,
            metrics.ack_seconds.clone(),
        );
        r.register("snapshots", "Snapshots published", metrics.snapshots.clone());
        metrics
    }
}
