//! Small worlds for protocol tests: which clusters exist, how their endpoints are, which listeners lead to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{cluster, cluster_name, config, instance, ms};
use crate::config::{Config, Listener, Route};
use crate::model::{ClusterPlan, Entry, ListenerName, MonoTime, Plan, Reason, Serve, Standing};
use crate::snapshot::Snapshot;

/// How one cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pool {
    /// No source has spoken for it.
    Unlisted,
    /// Nobody can say who may serve.
    Undecided,
    /// So many instances, of which none has ever served.
    Loading(usize),
    /// Endpoints in order, on ports 9000 and up.
    Decided(Vec<Serve>),
}

/// Clusters by name; each has a listener and a route of the same name if its flag says so.
pub type World = BTreeMap<&'static str, (Pool, bool)>;

/// A sequence of snapshots, as the publisher would make them.
#[derive(Debug, Default)]
pub struct Worlds {
    snapshot: Snapshot,
    generation: u64,
}

impl Worlds {
    /// The snapshot of `world`, following the ones before.
    pub fn publish(&mut self, world: &World) -> Arc<Snapshot> {
        self.generation += 1;
        self.snapshot = self.snapshot.update(&config_of(world), &plan_of(world, self.generation));
        Arc::new(self.snapshot.clone())
    }
}

#[expect(clippy::unwrap_used, reason = "literals of this file")]
fn config_of(world: &World) -> Config {
    let mut config = config(world.iter().map(|(name, (pool, _))| {
        let size = match pool {
            Pool::Unlisted | Pool::Undecided => 0,
            Pool::Loading(size) => *size,
            Pool::Decided(entries) => entries.len(),
        };
        let mut cluster = cluster([]);
        // Something of the cluster itself that tests can change: its size class.
        cluster.envoy.connect_timeout = ms(1000 + 100 * size as u64);
        (*name, cluster)
    }));
    for (name, _) in world.iter().filter(|(_, (_, routed))| *routed) {
        let route = Route {
            prefix: "/".into(),
            cluster: cluster_name(name),
            timeout: ms(0),
            idle_timeout: ms(300_000),
            num_retries: 1,
        };
        let listener = Listener { address: "127.0.0.1:8080".parse().unwrap(), routes: vec![route] };
        config.listeners.insert(ListenerName::new(name).unwrap(), Arc::new(listener));
    }
    config
}

fn plan_of(world: &World, generation: u64) -> Plan {
    let clusters = world.iter().map(|(name, (pool, _))| {
        let plan = match pool {
            Pool::Unlisted => ClusterPlan { generation, standing: Standing::Unlisted, entries: Vec::new() },
            Pool::Undecided => ClusterPlan { generation, standing: Standing::Undecided, entries: Vec::new() },
            Pool::Loading(size) => {
                let entries = (9000..).take(*size).map(|port| entry(port, Serve::Absent));
                ClusterPlan { generation, standing: Standing::Loading, entries: entries.collect() }
            }
            Pool::Decided(serves) => {
                let entries = serves.iter().zip(9000..).map(|(serve, port)| entry(port, *serve));
                ClusterPlan { generation, standing: Standing::Decided, entries: entries.collect() }
            }
        };
        (cluster_name(name), Arc::new(plan))
    });
    Plan { generation, at: MonoTime::ZERO, clusters: clusters.collect() }
}

fn entry(port: u16, serve: Serve) -> Arc<Entry> {
    let i = instance(&format!("i{port}"), port);
    let reason = Reason::Passing;
    Arc::new(Entry { id: i.id, address: i.address, locality: i.locality, weight: i.weight, serve, reason })
}
