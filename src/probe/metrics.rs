//! The prober's own numbers.
//!
//! No instance label: a fleet of ten thousand would make ten thousand of each. Written by the scheduler, read at
//! scrape through the registry.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::ask::Answer;
use crate::model::{CheckKind, HttpProtocol, Role};

/// Counters and histograms of the prober. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    results: Family<ResultLabels, Counter>,
    seconds: Family<KindLabels, Histogram, fn() -> Histogram>,
    first_token_seconds: Family<RoleLabels, Histogram, fn() -> Histogram>,
    late_seconds: Histogram,
    in_flight: Gauge,
    retries: Family<RetryLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    role: &'static str,
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabels {
    role: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RetryLabels {
    outcome: &'static str,
}

impl Metrics {
    /// Registers the prober's metrics, `probe_…`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "probe_results",
            "Probes that ended, by the check's role and kind and by outcome",
            metrics.results.clone(),
        );
        registry.register(
            "probe_seconds",
            "Time from the start of a probe to its end, by the check's kind",
            metrics.seconds.clone(),
        );
        registry.register(
            "probe_first_token_seconds",
            "Time from the start of a completion's probe to its first token, by the check's role",
            metrics.first_token_seconds.clone(),
        );
        registry.register(
            "probe_start_late_seconds",
            "How long after its moment in the timetable a probe began",
            metrics.late_seconds.clone(),
        );
        registry.register("probe_in_flight", "Probes begun and not ended", metrics.in_flight.clone());
        registry.register(
            "probe_stale_connections",
            "Kept connections found dead while asking, by the outcome of the second try on a fresh one",
            metrics.retries.clone(),
        );
        metrics
    }

    /// A probe begins, `late` after its moment.
    pub(super) fn started(&self, late: Duration) {
        self.late_seconds.observe(late.as_secs_f64());
    }

    /// A probe ended.
    pub(super) fn ended(&self, role: Role, kind: &CheckKind, answer: &Answer) {
        let kind = name(kind);
        let outcome = answer.outcome.as_str();
        self.results.get_or_create(&ResultLabels { role: role.as_str(), kind, outcome }).inc();
        self.seconds.get_or_create(&KindLabels { kind }).observe(answer.timings.total.as_secs_f64());
        if let Some(first) = answer.timings.first_token {
            self.first_token_seconds
                .get_or_create(&RoleLabels { role: role.as_str() })
                .observe(first.as_secs_f64());
        }
        if answer.retried {
            self.retries.get_or_create(&RetryLabels { outcome }).inc();
        }
    }

    /// So many probes are in flight now.
    pub(super) fn in_flight(&self, probes: usize) {
        self.in_flight.set(i64::try_from(probes).unwrap_or(i64::MAX));
    }
}

impl Default for Metrics {
    /// Metrics that nobody reads.
    fn default() -> Self {
        Self {
            results: Family::default(),
            // 0.2 ms to 13 s.
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0002, 2.0, 17))),
            // 5 ms to 41 s.
            first_token_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.005, 2.0, 14))
            }),
            // 1 ms to 4 s.
            late_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 13)),
            in_flight: Gauge::default(),
            retries: Family::default(),
        }
    }
}

fn name(kind: &CheckKind) -> &'static str {
    match kind {
        CheckKind::Tcp => "tcp",
        CheckKind::Http(check) => match check.protocol {
            HttpProtocol::Http1 => "http1",
            HttpProtocol::H2c => "h2c",
        },
        CheckKind::OpenAi(_) => "openai",
    }
}
