//! What is known of a port besides its socket: its name, how much it takes, and what is counted of it.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PortLabel {
    port: &'static str,
}

/// The metrics of all ports. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    open: Family<PortLabel, Gauge>,
    refused: Family<PortLabel, Counter>,
    failed: Family<PortLabel, Counter>,
}

impl Ports {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let ports = Self::default();
        let r = registry.sub_registry_with_prefix("listen");
        r.register("connections", "Connections open on one of tidegate's own ports", ports.open.clone());
        r.register("refused", "Connections closed at once: the port had all it takes", ports.refused.clone());
        r.register("failures", "Connections that could not be accepted", ports.failed.clone());
        ports
    }

    /// A port that takes `max_open` connections at once.
    pub fn port(&self, name: &'static str, max_open: usize) -> Port {
        let label = PortLabel { port: name };
        Port {
            name,
            max_open,
            open: self.open.get_or_create_owned(&label),
            refused: self.refused.get_or_create_owned(&label),
            failed: self.failed.get_or_create_owned(&label),
        }
    }
}

/// One port, as [`accept`](super::accept) needs it.
#[derive(Debug)]
pub struct Port {
    pub(super) name: &'static str,
    pub(super) max_open: usize,
    pub(super) open: Gauge,
    pub(super) refused: Counter,
    pub(super) failed: Counter,
}

/// One more in a gauge for as long as this lives: a panic cannot skip the way down.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    /// Counts.
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
