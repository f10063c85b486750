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
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use kind::Kind;
pub use resource::Resource;
pub(crate) use resource::put_bytes;

use crate::config::{Cluster, Config, Listener};
use crate::model::{ClusterName, ClusterPlan, ContentHash, ListenerName, Plan, Standing};

/// All resources of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceSet {
    /// By name, in order.
    pub resources: BTreeMap<Arc<str>, Arc<Resource>>,
    /// Names that exist, but of which nothing can be said yet. They are neither sent nor called removed.
    pub withheld: BTreeSet<Arc<str>>,
}

impl ResourceSet {
    /// A version of the given resources together: names and versions.
    pub fn version_of<'a>(resources: impl IntoIterator<Item = &'a Arc<Resource>>) -> ContentHash {
        ContentHash::of_parts(resources.into_iter().flat_map(|r| [r.name.as_bytes(), r.version.as_bytes()]))
    }
}

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

    /// The snapshot after this one: what did not change is taken over, not encoded again.
    pub fn update(&self, config: &Config, plan: &Plan) -> Self {
        let mut next = Build { previous: self, sets: Default::default(), origin: Origin::default() };
        for (name, cluster) in &config.clusters {
            next.cluster(name, cluster, plan.clusters.get(name));
        }
        for (name, listener) in &config.listeners {
            next.listener(name, listener);
        }
        let [clusters, endpoints, listeners, routes] = next.sets;
        Self {
            generation: plan.generation,
            sets: [
                self.reuse(Kind::Cluster, clusters),
                self.reuse(Kind::Endpoints, endpoints),
                self.reuse(Kind::Listener, listeners),
                self.reuse(Kind::Route, routes),
            ],
            origin: Arc::new(next.origin),
        }
    }

    /// Keeps the previous set if the new one equals it, so that readers can compare pointers.
    fn reuse(&self, kind: Kind, set: ResourceSet) -> Arc<ResourceSet> {
        let old = self.set(kind);
        if **old == set { old.clone() } else { Arc::new(set) }
    }
}

struct Build<'a> {
    previous: &'a Snapshot,
    sets: [ResourceSet; 4],
    origin: Origin,
}

impl Build<'_> {
    fn cluster(&mut self, name: &ClusterName, cluster: &Arc<Cluster>, plan: Option<&Arc<ClusterPlan>>) {
        let Some(plan) = plan.filter(|plan| plan.standing != Standing::Unlisted) else {
            // It exists, but not even its size is known, which the cluster's own resource depends on.
            self.set(Kind::Cluster).withheld.insert(name.as_str().into());
            self.set(Kind::Endpoints).withheld.insert(name.as_str().into());
            return;
        };
        let origin = self.previous.origin.clone();
        let (same_cluster, same_plan) = match origin.clusters.get(name) {
            Some((old, old_plan)) => {
                let same_size = old_plan.entries.len() == plan.entries.len();
                (Arc::ptr_eq(old, cluster) && same_size, Arc::ptr_eq(old_plan, plan))
            }
            None => (false, false),
        };
        if !(same_cluster && self.take_over(Kind::Cluster, name.as_str())) {
            self.put_cluster(name, cluster, plan.entries.len());
        }
        if plan.standing == Standing::Undecided {
            self.set(Kind::Endpoints).withheld.insert(name.as_str().into());
        } else if !(same_plan && self.take_over(Kind::Endpoints, name.as_str())) {
            let assignment = eds::assignment(name, &plan.entries);
            self.put(
                Kind::Endpoints,
                Resource::new(Kind::Endpoints, name.as_str(), plan.generation, &assignment),
            );
        }
        self.origin.clusters.insert(name.clone(), (cluster.clone(), plan.clone()));
    }

    fn put_cluster(&mut self, name: &ClusterName, cluster: &Cluster, registered: usize) {
        let message = cds::cluster(name, &cluster.envoy, registered);
        self.put(Kind::Cluster, Resource::new(Kind::Cluster, name.as_str(), 0, &message));
    }

    /// A listener that leads to a cluster which cannot be told yet stays as it was: its new routes would lead nowhere.
    fn listener(&mut self, name: &ListenerName, listener: &Arc<Listener>) {
        let untold = &self.set(Kind::Cluster).withheld;
        if listener.routes.iter().any(|route| untold.contains(route.cluster.as_str())) {
            for kind in [Kind::Listener, Kind::Route] {
                if !self.take_over(kind, name.as_str()) {
                    self.set(kind).withheld.insert(name.as_str().into());
                }
            }
            if let Some(old) = self.previous.origin.listeners.get(name) {
                self.origin.listeners.insert(name.clone(), old.clone());
            }
            return;
        }
        let same = self.previous.origin.listeners.get(name).is_some_and(|old| Arc::ptr_eq(old, listener));
        if !(same
            && self.take_over(Kind::Listener, name.as_str())
            && self.take_over(Kind::Route, name.as_str()))
        {
            let (lds, rds) = (lds::listener(name, listener), rds::routes(name, listener));
            self.put(Kind::Listener, Resource::new(Kind::Listener, name.as_str(), 0, &lds));
            self.put(Kind::Route, Resource::new(Kind::Route, name.as_str(), 0, &rds));
        }
        self.origin.listeners.insert(name.clone(), listener.clone());
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
