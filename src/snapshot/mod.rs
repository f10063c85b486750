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
mod rendering;
mod resource;
mod set;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use kind::{ByKind, Door, Kind};
pub use rendering::Rendering;
pub use resource::Resource;
pub(crate) use resource::put_bytes;
pub use set::ResourceSet;

use crate::config::{Cluster, Config, Listener};
use crate::model::{ClusterName, ClusterPlan, ListenerName, Plan, Reason, Standing};

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
    sets: Sets<Arc<ResourceSet>>,
    /// Clusters of which it must be known who knows their present state: somebody in them drains.
    witnessed: BTreeSet<Arc<str>>,
    /// Clusters for those who take clusters alone: their endpoints come by another way than ADS.
    clusters_alone: Arc<ResourceSet>,
    origin: Arc<Origin>,
}

impl Snapshot {
    /// The resources of `kind`, for Envoys.
    pub fn set(&self, kind: Kind) -> &Arc<ResourceSet> {
        self.sets.of(Rendering::Envoy, kind)
    }

    /// The resources of `kind` as they are served at `door` to clients of a kind.
    pub fn set_for(&self, door: Door, rendering: Rendering, kind: Kind) -> &Arc<ResourceSet> {
        match (door, rendering, kind) {
            (Door::Clusters, Rendering::Envoy, Kind::Cluster) => &self.clusters_alone,
            (Door::Aggregated | Door::Clusters | Door::Endpoints, ..) => self.sets.of(rendering, kind),
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
            config,
            sets: Sets::default(),
            clusters_alone: ResourceSet::default(),
            origin: Origin::default(),
        };
        for (name, cluster) in &config.clusters {
            next.cluster(name, cluster, plan.clusters.get(name));
        }
        for (name, listener) in &config.listeners {
            next.listener(name, listener);
        }
        let drains =
            |plan: &ClusterPlan| plan.entries.iter().any(|entry| matches!(entry.reason, Reason::Drained(_)));
        let witnessed = plan.clusters.iter().filter(|(_, of_cluster)| drains(of_cluster));
        Self {
            generation: plan.generation,
            witnessed: witnessed.map(|(name, _)| name.as_str().into()).collect(),
            sets: next.sets.after(&self.sets),
            clusters_alone: next.clusters_alone.after(&self.clusters_alone),
            origin: Arc::new(next.origin),
        }
    }
}

/// One set for each rendering and kind.
#[derive(Debug, Clone, Default)]
struct Sets<S>([ByKind<S>; 2]);

impl<S> Sets<S> {
    const fn of(&self, rendering: Rendering, kind: Kind) -> &S {
        let [envoy, grpc] = &self.0;
        match rendering {
            Rendering::Envoy => envoy.of(kind),
            Rendering::Grpc => grpc.of(kind),
        }
    }

    const fn of_mut(&mut self, rendering: Rendering, kind: Kind) -> &mut S {
        let [envoy, grpc] = &mut self.0;
        match rendering {
            Rendering::Envoy => envoy.of_mut(kind),
            Rendering::Grpc => grpc.of_mut(kind),
        }
    }
}

impl Sets<ResourceSet> {
    /// These sets, as those that follow `old`.
    fn after(mut self, old: &Sets<Arc<ResourceSet>>) -> Sets<Arc<ResourceSet>> {
        let mut sets = old.clone();
        for (rendering, kind) in Rendering::ALL.into_iter().flat_map(|r| Kind::ALL.map(|kind| (r, kind))) {
            let set = std::mem::take(self.of_mut(rendering, kind));
            let place = sets.of_mut(rendering, kind);
            *place = set.after(place);
        }
        sets
    }
}

struct Build<'a> {
    previous: &'a Snapshot,
    config: &'a Config,
    sets: Sets<ResourceSet>,
    clusters_alone: ResourceSet,
    origin: Origin,
}

impl Build<'_> {
    fn cluster(&mut self, name: &ClusterName, cluster: &Arc<Cluster>, plan: Option<&Arc<ClusterPlan>>) {
        let Some(plan) = plan.filter(|plan| plan.standing != Standing::Unlisted) else {
            return self.unlisted(name);
        };
        let (same_cluster, same_plan) = match self.previous.origin.clusters.get(name) {
            Some((old, old_plan)) => {
                let same_size = old_plan.entries.len() == plan.entries.len();
                (old.envoy == cluster.envoy && same_size, Arc::ptr_eq(old_plan, plan))
            }
            None => (false, false),
        };
        if !(same_cluster && self.take_over_cluster(name.as_str())) {
            self.put_cluster(name, cluster, plan.entries.len());
        }
        if plan.standing == Standing::Undecided {
            self.withhold(Kind::Endpoints, name.as_str());
        } else if !(same_plan && self.take_over(Kind::Endpoints, name.as_str())) {
            for rendering in Rendering::ALL {
                let assignment = eds::assignment(name, &plan.entries, rendering);
                self.put(
                    rendering,
                    Kind::Endpoints,
                    Resource::encoded(Kind::Endpoints, name.as_str(), plan.generation, &assignment),
                );
            }
        }
        if plan.standing == Standing::Loading {
            self.call_provisional(name);
        }
        self.put_target(name);
        self.origin.clusters.insert(name.clone(), (cluster.clone(), plan.clone()));
    }

    /// It exists, but not even its size is known, which the cluster's own resource depends on. If it went and came back
    /// within one step, it stays as it was.
    fn unlisted(&mut self, name: &ClusterName) {
        let old = self.previous.origin.clusters.get(name);
        match old.filter(|_| self.take_over_cluster(name.as_str())) {
            Some(old) => {
                if !self.take_over(Kind::Endpoints, name.as_str()) {
                    self.withhold(Kind::Endpoints, name.as_str());
                }
                if old.1.standing == Standing::Loading {
                    self.call_provisional(name);
                }
                self.put_target(name);
                self.origin.clusters.insert(name.clone(), old.clone());
            }
            None => {
                self.clusters_alone.withheld.insert(name.as_str().into());
                self.withhold(Kind::Cluster, name.as_str());
                self.withhold(Kind::Endpoints, name.as_str());
                self.withhold_target(name);
            }
        }
    }

    fn call_provisional(&mut self, name: &ClusterName) {
        for rendering in Rendering::ALL {
            let set = self.sets.of_mut(rendering, Kind::Endpoints);
            set.provisional.insert(name.as_str().into());
        }
    }

    fn put_cluster(&mut self, name: &ClusterName, cluster: &Cluster, registered: usize) {
        let message = cds::cluster(name, &cluster.envoy, registered, Door::Aggregated);
        self.put(Rendering::Envoy, Kind::Cluster, Resource::new(Kind::Cluster, name.as_str(), 0, &message));
        let message = cds::for_grpc(name, &cluster.envoy);
        self.put(Rendering::Grpc, Kind::Cluster, Resource::new(Kind::Cluster, name.as_str(), 0, &message));
        let message = cds::cluster(name, &cluster.envoy, registered, Door::Clusters);
        let alone = Resource::new(Kind::Cluster, name.as_str(), 0, &message);
        self.clusters_alone.resources.insert(alone.name.clone(), Arc::new(alone));
    }

    fn take_over_cluster(&mut self, name: &str) -> bool {
        let Some(alone) = self.previous.clusters_alone.resources.get(name).cloned() else { return false };
        self.clusters_alone.resources.insert(alone.name.clone(), alone);
        self.take_over(Kind::Cluster, name)
    }

    /// A cluster is a target of its own for gRPC: `xds:///CLUSTER`. A listener of that name in the config comes first.
    fn put_target(&mut self, name: &ClusterName) {
        if self.config.listeners.contains_key(name.as_str()) {
            return;
        }
        let was_listener = self.previous.origin.listeners.contains_key(name.as_str());
        let known = [Kind::Listener, Kind::Route].map(|kind| {
            let old = self.previous.sets.of(Rendering::Grpc, kind).resources.get(name.as_str());
            old.filter(|_| !was_listener).cloned()
        });
        let [listener, routes] = match known {
            [Some(listener), Some(routes)] => [listener, routes],
            _ => [
                Arc::new(Resource::new(Kind::Listener, name.as_str(), 0, &lds::for_grpc(name.as_str()))),
                Arc::new(Resource::new(Kind::Route, name.as_str(), 0, &rds::to_cluster(name))),
            ],
        };
        for (kind, resource) in [(Kind::Listener, listener), (Kind::Route, routes)] {
            let set = self.sets.of_mut(Rendering::Grpc, kind);
            set.resources.insert(resource.name.clone(), resource);
        }
    }

    fn withhold_target(&mut self, name: &ClusterName) {
        if self.config.listeners.contains_key(name.as_str()) {
            return;
        }
        for kind in [Kind::Listener, Kind::Route] {
            self.sets.of_mut(Rendering::Grpc, kind).withheld.insert(name.as_str().into());
        }
    }

    /// A listener that is to lead to a cluster of which nobody knows yet who may serve stays as it was, and what it
    /// led to stays with it: traffic moves when there is somewhere to move to. One that leads nowhere yet is told as
    /// soon as its clusters can be.
    fn listener(&mut self, name: &ListenerName, listener: &Arc<Listener>) {
        let old = self.previous.origin.listeners.get(name).cloned();
        let unheard = |kind: Kind, sets: &Sets<ResourceSet>| {
            let withheld = &sets.of(Rendering::Envoy, kind).withheld;
            listener.routes.iter().any(|route| withheld.contains(route.cluster.as_str()))
        };
        let (untold, undecided) = (unheard(Kind::Cluster, &self.sets), unheard(Kind::Endpoints, &self.sets));
        match old {
            Some(old) if undecided && old != *listener => self.keep_listener(name, &old),
            Some(old) if old == *listener && self.take_over_listener(name.as_str()) => {
                self.origin.listeners.insert(name.clone(), old);
            }
            None if untold => {
                self.withhold(Kind::Listener, name.as_str());
                self.withhold(Kind::Route, name.as_str());
            }
            Some(_) | None => self.put_listener(name, listener),
        }
    }

    fn put_listener(&mut self, name: &ListenerName, listener: &Arc<Listener>) {
        for rendering in Rendering::ALL {
            let lds = match rendering {
                Rendering::Envoy => lds::listener(name, listener),
                Rendering::Grpc => lds::for_grpc(name.as_str()),
            };
            let rds = rds::routes(name, listener, rendering);
            self.put(rendering, Kind::Listener, Resource::new(Kind::Listener, name.as_str(), 0, &lds));
            self.put(rendering, Kind::Route, Resource::new(Kind::Route, name.as_str(), 0, &rds));
        }
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

    fn withhold(&mut self, kind: Kind, name: &str) {
        for rendering in Rendering::ALL {
            self.sets.of_mut(rendering, kind).withheld.insert(name.into());
        }
    }

    fn put(&mut self, rendering: Rendering, kind: Kind, resource: Resource) {
        let set = self.sets.of_mut(rendering, kind);
        set.resources.insert(resource.name.clone(), Arc::new(resource));
    }

    /// Takes a resource over as it was, in all renderings; false if it was not there.
    fn take_over(&mut self, kind: Kind, name: &str) -> bool {
        let old = Rendering::ALL.map(|r| self.previous.sets.of(r, kind).resources.get(name).cloned());
        let [Some(envoy), Some(grpc)] = old else { return false };
        for (rendering, old) in [(Rendering::Envoy, envoy), (Rendering::Grpc, grpc)] {
            self.sets.of_mut(rendering, kind).resources.insert(old.name.clone(), old);
        }
        true
    }
}
