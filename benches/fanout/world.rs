//! Who there is and who is well, by hand: what both servers tell their clients.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tidegate::config::Config;
use tidegate::model::{Address, ClusterPlan, Entry, Instance, MonoTime, Plan, Reason, Serve, Standing};
use tidegate::testing::model::{cluster, cluster_name, config, instance};

/// The cluster in which endpoints flip while it is measured.
pub const FLIPPING: &str = "c0";

/// The size of a world.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Size {
    #[arg(long, default_value_t = 0)]
    pub clusters: usize,
    #[arg(long, default_value_t = 0)]
    pub endpoints: usize,
}

/// All clusters and the health of their endpoints.
pub struct World {
    pub config: Arc<Config>,
    generation: u64,
    clusters: Vec<Arc<ClusterPlan>>,
}

impl World {
    /// Everybody is well.
    pub fn new(size: Size) -> Self {
        let instances: Vec<Instance> = (0..size.endpoints)
            .map(|n| Instance { address: short(n), ..instance(&format!("i{n:05}"), 1) })
            .collect();
        let of_cluster = cluster(instances.iter().cloned());
        let entries = instances.iter().map(|i| Arc::new(entry(i))).collect();
        let of_plan = Arc::new(ClusterPlan { generation: 1, standing: Standing::Decided, entries });
        let named = (0..size.clusters).map(|n| (cluster_name(&name(n)), Arc::new(of_cluster.clone())));
        let config = Config { clusters: named.collect(), ..config([]) };
        Self { config: Arc::new(config), generation: 1, clusters: vec![of_plan; size.clusters] }
    }

    /// Ejects an endpoint, or takes it back.
    pub fn flip(&mut self, cluster: usize, endpoint: usize) {
        self.generation += 1;
        let before = &self.clusters[cluster];
        let mut entries = before.entries.clone();
        let was = &before.entries[endpoint];
        let serve = if was.serve == Serve::Healthy { Serve::Unhealthy } else { Serve::Healthy };
        entries[endpoint] = Arc::new(Entry { serve, ..Entry::clone(was) });
        self.clusters[cluster] =
            Arc::new(ClusterPlan { generation: self.generation, standing: Standing::Decided, entries });
    }

    pub fn plan(&self, at: MonoTime) -> Arc<Plan> {
        let named = self.clusters.iter().enumerate().map(|(n, plan)| (cluster_name(&name(n)), plan.clone()));
        Arc::new(Plan { generation: self.generation, at, clusters: named.collect::<BTreeMap<_, _>>() })
    }
}

/// The name of the `n`th cluster.
pub fn name(n: usize) -> String {
    format!("c{n}")
}

fn entry(i: &Instance) -> Entry {
    Entry {
        id: i.id.clone(),
        address: i.address,
        locality: i.locality.clone(),
        weight: i.weight,
        serve: Serve::Healthy,
        reason: Reason::Passing,
    }
}

/// Addresses so short that an endpoint is 25 bytes on the wire, weight and all: the size the peers were measured with.
fn short(n: usize) -> Address {
    let digit = |place: usize| u8::try_from(n / place % 10).unwrap_or(0);
    let port = 80 + u16::from(digit(1000));
    Address::new((Ipv4Addr::new(1 + digit(10_000), digit(100), digit(10), digit(1)), port).into())
}
