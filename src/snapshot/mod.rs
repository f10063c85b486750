//! The plan as xDS resources: validated, canonical, encoded once.
//!
//! Decides how a cluster, its endpoints, a listener and its routes look on the wire (design §4). Pure: same config
//! and plan, same bytes and versions, in every process. It never lists a cluster without a verdict as empty: such an
//! assignment is *withheld*, and clients keep what they have. Called by the xDS publisher; read by every stream.

mod cds;
mod eds;
mod kind;
mod lds;
mod proto;
mod rds;
mod resource;
mod set;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use kind::{Door, Kind};
pub use proto::BOOTSTRAP_CLUSTER;
pub use resource::Resource;
pub(crate) use resource::put_bytes;
pub use set::ResourceSet;

use crate::config::{Cluster, Config, Listener};
use crate::model::{ClusterName, ClusterPlan, ListenerName, Plan, Serve, Standing};

/// Where an already built resource came from, so that the next build can take it over.
#[derive(Debug, Clone, Default)]
struct Origin {
    clusters: BTreeMap<ClusterName, (Arc<Cluster>, Arc<ClusterPlan>)>,
    listeners: BTreeMap<ListenerName, Arc<Listener>>,
}

/// Everything that clients may be told at one moment. Immutable; published whole.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The plan's generation.
    pub generation: u64,
    sets: [Arc<ResourceSet>; 4],
    /// Clusters of which it must be known who knows their present state: somebody in them drains.
    witnessed: BTreeSet<Arc<str>>,
    /// Clusters for those who take clusters alone: their endpoints come by another way than ADS.
    clusters_alone: Arc<ResourceSet>,
    origin: Arc<Origin>,
}

impl Snapshot {
    /// The resources of `kind`.
    pub fn set(&self, kind: Kind) -> &Arc<ResourceSet> {
        // The array has one place for each kind.
        let [clusters, endpoints, listeners, routes] = &self.sets;
        match kind {
            Kind::Cluster => clusters,
            Kind::Endpoints => endpoints,
            Kind::Listener => listeners,
            Kind::Route => routes,
        }
    }

    /// The resources of `kind` as they are served at `door`.
    pub fn set_at(&self, door: Door, kind: Kind) -> &Arc<ResourceSet> {
        match (door, kind) {
            (Door::Clusters, Kind::Cluster) => &self.clusters_alone,
            (Door::Aggregated | Door::Clusters | Door::Endpoints, _) => self.set(kind),
        }
    }

    /// Clusters of which it must be known who knows their present state. Empty in a steady fleet, so that watching
    /// costs nothing then.
    pub fn witnessed(&self) -> &BTreeSet<Arc<str>> {
        &self.witnessed
    }

    /// The snapshot after this one: what did not change is taken over, not encoded again.
    pub fn update(&self, config: &Config, plan: &Plan) -> Self {
        let mut next = Build {
            previous: self,
            sets: Default::default(),
            clusters_alone: ResourceSet::default(),
            origin: Origin::default(),
        };
        for (name, cluster) in &config.clusters {
            next.cluster(name, cluster, plan.clusters.get(name));
        }
        for (name, listener) in &config.listeners {
            next.listener(name, listener);
        }
        let [clusters, endpoints, listeners, routes] = next.sets;
        let drains = |plan: &ClusterPlan| plan.entries.iter().any(|entry| entry.serve == Serve::Draining);
        let witnessed = plan.clusters.iter().filter(|(_, of_cluster)| drains(of_cluster));
        Self {
            generation: plan.generation,
            witnessed: witnessed.map(|(name, _)| name.as_str().into()).collect(),
            sets: [
                clusters.after(self.set(Kind::Cluster)),
                endpoints.after(self.set(Kind::Endpoints)),
                listeners.after(self.set(Kind::Listener)),
                routes.after(self.set(Kind::Route)),
            ],
            clusters_alone: next.clusters_alone.after(&self.clusters_alone),
            origin: Arc::new(next.origin),
        }
    }
}

struct Build<'a> {
    previous: &'a Snapshot,
    sets: [ResourceSet; 4],
    clusters_alone: ResourceSet,
    origin: Origin,
}

impl Build<'_> {
    fn cluster(&mut self, name: &ClusterName, cluster: &Arc<Cluster>, plan: Option<&Arc<ClusterPlan>>) {
        let Some(plan) = plan.filter(|plan| plan.standing != Standing::Unlisted) else {
            // It exists, but not even its size is known, which the cluster's own resource depends on.
            self.clusters_alone.withheld.insert(name.as_str().into());
            self.set(Kind::Cluster).withheld.insert(name.as_str().into());
            self.set(Kind::Endpoints).withheld.insert(name.as_str().into());
            return;
        };
        let (same_cluster, same_plan) = match self.previous.origin.clusters.get(name) {
            Some((old, old_plan)) => {
                let same_size = old_plan.entries.len() == plan.entries.len();
                (Arc::ptr_eq(old, cluster) && same_size, Arc::ptr_eq(old_plan, plan))
            }
            None => (false, false),
        };
        if !(same_cluster && self.take_over_cluster(name.as_str())) {
            self.put_cluster(name, cluster, plan.entries.len());
        }
        if plan.standing == Standing::Undecided {
            self.set(Kind::Endpoints).withheld.insert(name.as_str().into());
        } else if !(same_plan && self.take_over(Kind::Endpoints, name.as_str())) {
            let assignment = eds::assignment(name, &plan.entries);
            self.put(
                Kind::Endpoints,
                Resource::encoded(Kind::Endpoints, name.as_str(), plan.generation, &assignment),
            );
        }
        if plan.standing == Standing::Loading {
            self.set(Kind::Endpoints).provisional.insert(name.as_str().into());
        }
        self.origin.clusters.insert(name.clone(), (cluster.clone(), plan.clone()));
    }

    fn put_cluster(&mut self, name: &ClusterName, cluster: &Cluster, registered: usize) {
        let message = cds::cluster(name, &cluster.envoy, registered, Door::Aggregated);
        self.put(Kind::Cluster, Resource::new(Kind::Cluster, name.as_str(), 0, &message));
        let message = cds::cluster(name, &cluster.envoy, registered, Door::Clusters);
        let alone = Resource::new(Kind::Cluster, name.as_str(), 0, &message);
        self.clusters_alone.resources.insert(alone.name.clone(), Arc::new(alone));
    }

    fn take_over_cluster(&mut self, name: &str) -> bool {
        let Some(alone) = self.previous.clusters_alone.resources.get(name).cloned() else { return false };
        self.clusters_alone.resources.insert(alone.name.clone(), alone);
        self.take_over(Kind::Cluster, name)
    }

    /// A listener that is to lead to a cluster of which nobody knows yet who may serve stays as it was, and what it
    /// led to stays with it: traffic moves when there is somewhere to move to. One that leads nowhere yet is told as
    /// soon as its clusters can be.
    fn listener(&mut self, name: &ListenerName, listener: &Arc<Listener>) {
        let old = self.previous.origin.listeners.get(name).cloned();
        let unheard = |kind: Kind, sets: &[ResourceSet; 4]| {
            let [clusters, endpoints, ..] = sets;
            let withheld = if kind == Kind::Cluster { &clusters.withheld } else { &endpoints.withheld };
            listener.routes.iter().any(|route| withheld.contains(route.cluster.as_str()))
        };
        let (untold, undecided) = (unheard(Kind::Cluster, &self.sets), unheard(Kind::Endpoints, &self.sets));
        match old {
            Some(old) if undecided && old != *listener => self.keep_listener(name, &old),
            Some(old) if Arc::ptr_eq(&old, listener) && self.take_over_listener(name.as_str()) => {
                self.origin.listeners.insert(name.clone(), old);
            }
            None if untold => {
                self.set(Kind::Listener).withheld.insert(name.as_str().into());
                self.set(Kind::Route).withheld.insert(name.as_str().into());
            }
            Some(_) | None => self.put_listener(name, listener),
        }
    }

    fn put_listener(&mut self, name: &ListenerName, listener: &Arc<Listener>) {
        let (lds, rds) = (lds::listener(name, listener), rds::routes(name, listener));
        self.put(Kind::Listener, Resource::new(Kind::Listener, name.as_str(), 0, &lds));
        self.put(Kind::Route, Resource::new(Kind::Route, name.as_str(), 0, &rds));
        self.origin.listeners.insert(name.clone(), listener.clone());
    }

    fn take_over_listener(&mut self, name: &str) -> bool {
        self.take_over(Kind::Listener, name) && self.take_over(Kind::Route, name)
    }

    /// The listener as it was, and those of its clusters that the config no longer has, as they were last told.
    fn keep_listener(&mut self, name: &ListenerName, old: &Arc<Listener>) {
        self.take_over_listener(name.as_str());
        self.origin.listeners.insert(name.clone(), old.clone());
        for route in &old.routes {
            let cluster = route.cluster.as_str();
            if !self.origin.clusters.contains_key(cluster) && self.take_over_cluster(cluster) {
                self.take_over(Kind::Endpoints, cluster);
            }
        }
    }

    const fn set(&mut self, kind: Kind) -> &mut ResourceSet {
        let [clusters, endpoints, listeners, routes] = &mut self.sets;
        match kind {
            Kind::Cluster => clusters,
            Kind::Endpoints => endpoints,
            Kind::Listener => listeners,
            Kind::Route => routes,
        }
    }

    fn put(&mut self, kind: Kind, resource: Resource) {
        self.set(kind).resources.insert(resource.name.clone(), Arc::new(resource));
    }

    fn take_over(&mut self, kind: Kind, name: &str) -> bool {
        let Some(old) = self.previous.set(kind).resources.get(name).cloned() else { return false };
        self.set(kind).resources.insert(old.name.clone(), old);
        true
    }
}
