//! The root registry, and the fleet's own metrics: counted from events, gauges read from the plan at scrape.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::model::{Plan, Serve, Standing};

/// The root registry: every name begins with `tidegate_`; build information is in it.
pub fn registry() -> Registry {
    let mut registry = Registry::with_prefix("tidegate");
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The running build", build);
    registry
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct MoveLabels {
    pub(super) cluster: String,
    pub(super) to: &'static str,
}

/// Counters that events drive. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FleetMetrics {
    pub(super) moves: Family<MoveLabels, Counter>,
    pub(super) lost_events: Counter,
}

impl FleetMetrics {
    /// Registers the counters, and gauges that are computed from `plan` at each scrape.
    pub fn register(registry: &mut Registry, plan: watch::Receiver<Arc<Plan>>) -> Self {
        let metrics = Self::default();
        registry.register(
            "instance_moves",
            "Changes of what clients are told about an instance",
            metrics.moves.clone(),
        );
        registry.register("lost_events", "Events that were not logged", metrics.lost_events.clone());
        registry.register_collector(Box::new(PlanGauges(plan)));
        metrics
    }
}

pub(super) const fn word(serve: Serve) -> &'static str {
    match serve {
        Serve::Absent => "absent",
        Serve::Healthy => "healthy",
        Serve::Degraded => "degraded",
        Serve::Unhealthy => "unhealthy",
        Serve::Draining => "draining",
    }
}

const SERVES: [Serve; 5] =
    [Serve::Absent, Serve::Healthy, Serve::Degraded, Serve::Unhealthy, Serve::Draining];

/// Gauges read from the published plan: they cannot drift.
#[derive(Debug)]
struct PlanGauges(watch::Receiver<Arc<Plan>>);

impl Collector for PlanGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let plan = self.0.borrow().clone();
        let generation = ConstGauge::new(i64::try_from(plan.generation).unwrap_or(i64::MAX));
        let described = encoder.encode_descriptor(
            "plan_generation",
            "Rises with every published plan",
            None,
            generation.metric_type(),
        )?;
        generation.encode(described)?;
        let kind = ConstGauge::new(0i64).metric_type();
        let mut instances = encoder.encode_descriptor(
            "instances",
            "Instances by what clients are told about them",
            None,
            kind,
        )?;
        for (name, cluster) in &plan.clusters {
            for serve in SERVES {
                let count = cluster.entries.iter().filter(|e| e.serve == serve).count();
                let labels = [("cluster", name.as_str()), ("serve", word(serve))];
                ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX))
                    .encode(instances.encode_family(&labels)?)?;
            }
        }
        let mut decided = encoder.encode_descriptor(
            "cluster_decided",
            "1 if it is known who of the cluster may serve; 0 if it is left unanswered",
            None,
            kind,
        )?;
        for (name, cluster) in &plan.clusters {
            let labels = [("cluster", name.as_str())];
            ConstGauge::new(i64::from(cluster.standing >= Standing::Loading))
                .encode(decided.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
