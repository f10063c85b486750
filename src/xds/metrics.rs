//! Metrics of the xDS side.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::Clients;
use crate::clock::Clock;
use crate::snapshot::{ByKind, Kind};

/// The largest message, in bytes, that gRPC libraries accept unless told otherwise. (Envoy accepts any.)
pub(super) const USUAL_LIMIT: u64 = 4 * 1024 * 1024;

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
    pub(super) snapshots: Counter,
    /// Looked up once: each response and each ACK counts.
    by_kind: ByKind<KindMetrics>,
}

/// The counters of one type.
#[derive(Debug, Clone)]
pub(super) struct KindMetrics {
    responses: Counter,
    response_bytes: Counter,
    largest: Gauge<u64, AtomicU64>,
    pub(super) acks: Counter,
    pub(super) nacks: Counter,
    pub(super) strikes: Counter,
    pub(super) repairs: Counter,
    pub(super) ack_seconds: Histogram,
}

impl Metrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let [responses, response_bytes, acks, nacks, strikes, repairs]: [Family<KindLabel, Counter>; 6] =
            Default::default();
        // 0.25 ms to 8 s: a push is acknowledged in about a millisecond; a warming cluster takes a second.
        let ack_seconds = Family::<KindLabel, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
        });
        let largest: Family<KindLabel, Gauge<u64, AtomicU64>> = Family::default();
        let by_kind = ByKind(Kind::ALL.map(|kind| {
            let counter = |family: &Family<KindLabel, Counter>| family.get_or_create_owned(&kind.into());
            KindMetrics {
                responses: counter(&responses),
                response_bytes: counter(&response_bytes),
                largest: largest.get_or_create_owned(&kind.into()),
                acks: counter(&acks),
                nacks: counter(&nacks),
                strikes: counter(&strikes),
                repairs: counter(&repairs),
                ack_seconds: ack_seconds.get_or_create_owned(&kind.into()),
            }
        }));
        let metrics = Self {
            streams: Gauge::default(),
            connections: Gauge::default(),
            snapshots: Counter::default(),
            by_kind,
        };
        let r = registry.sub_registry_with_prefix("xds");
        r.register("streams", "xDS streams open", metrics.streams.clone());
        r.register("connections", "HTTP/2 connections open", metrics.connections.clone());
        r.register("responses", "xDS responses sent", responses);
        r.register_with_unit("response", "Bytes of xDS responses sent", Unit::Bytes, response_bytes);
        r.register_with_unit("largest_response", "Size of the largest xDS response", Unit::Bytes, largest);
        r.register("acks", "xDS responses acknowledged", acks);
        r.register("nacks", "xDS responses refused by a client", nacks);
        r.register("strikes", "xDS streams that a client ended right after a response", strikes);
        r.register("repairs", "Resources found missing at a client and sent: faults of tidegate", repairs);
        r.register_with_unit("ack", "From sending a response to its ACK", Unit::Seconds, ack_seconds);
        r.register("snapshots", "Snapshots published", metrics.snapshots.clone());
        metrics
    }

    pub(super) const fn of(&self, kind: Kind) -> &KindMetrics {
        self.by_kind.of(kind)
    }
}

impl KindMetrics {
    /// Counts a response. True if it comes nearer to [`USUAL_LIMIT`] than any before it, or goes further beyond, by a
    /// tenth of it: from eight tenths on.
    pub(super) fn sent(&self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        self.responses.inc();
        self.response_bytes.inc_by(bytes);
        let before = self.largest.inner().fetch_max(bytes, Ordering::Relaxed);
        let tenths = |bytes: u64| bytes.saturating_mul(10) / USUAL_LIMIT;
        tenths(bytes) > tenths(before).max(7)
    }
}

/// How far the clients are from what they were sent, read from the table at scrape.
#[derive(Debug)]
pub struct Lag {
    /// The table.
    pub clients: Clients,
    /// The clock.
    pub clock: Clock,
}

impl Collector for Lag {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = self.clock.now();
        let (mut oldest, mut refusing) = (0.0f64, 0i64);
        for status in self.clients.list().values() {
            let waiting = status.kinds.values().filter_map(|kind| kind.waiting_since);
            oldest = waiting.map(|since| now.since(since).as_secs_f64()).fold(oldest, f64::max);
            refusing += i64::from(status.kinds.values().any(|kind| !kind.refused.is_empty()));
        }
        let help = "Age of the oldest response that a client has not answered";
        let gauge = ConstGauge::new(oldest);
        gauge.encode(encoder.encode_descriptor(
            "xds_unanswered",
            help,
            Some(&Unit::Seconds),
            gauge.metric_type(),
        )?)?;
        let help = "Streams whose client has refused something and acknowledged nothing of that name since";
        let gauge = ConstGauge::new(refusing);
        gauge.encode(encoder.encode_descriptor("xds_refusing_streams", help, None, gauge.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_that_comes_near_what_clients_accept_is_told_of_once_for_each_tenth() {
        let metrics = Metrics::register(&mut Registry::default());
        let near = |percent: u64| {
            let bytes = usize::try_from(USUAL_LIMIT * percent / 100 + 1).unwrap();
            metrics.of(Kind::Cluster).sent(bytes)
        };
        let told = [10, 79, 80, 80, 89, 50, 90, 115, 101, 120].map(near);
        assert_eq!(told, [false, false, true, false, false, false, true, true, false, true]);
        assert!(metrics.of(Kind::Endpoints).sent(usize::MAX), "each type for itself");
    }
}
