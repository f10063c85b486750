//! Composes health and policy over all clusters.
//!
//! Pure: no I/O. `apply` takes what happened and the time, and returns what shall be published; `wake_at` says when
//! time alone will change something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Cluster, Config};
use crate::health::{InstanceHealth, State};
use crate::model::{
    Catalog, ClusterName, ClusterPlan, Drain, Entry, Epoch, Event, Instance, InstanceId, InstanceKey,
    MonoTime, Observation, Phase, Plan, Reason, Serve, SourceView, Standing, Target,
};
use crate::policy::{self, Drains, Member, Members};

/// What has to be published after an input. `None` where nothing changed.
#[derive(Debug, Default)]
pub struct Effects {
    /// Whom to probe.
    pub catalog: Option<Arc<Catalog>>,
    /// What to tell clients.
    pub plan: Option<Arc<Plan>>,
    /// What to tell people, in order.
    pub events: Vec<Event>,
}

/// A command named an instance that no source lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no instance {0}")]
pub struct NoSuchInstance(pub InstanceKey);

/// One configured cluster.
#[derive(Debug)]
struct Pool {
    config: Arc<Cluster>,
    members: Members,
    /// When a source first listed it; until then nobody has spoken for it.
    listed_at: Option<MonoTime>,
    /// True once `first_verdict_wait` is over: those who serve are enough then.
    waited: bool,
    /// Somebody has served since this process watches.
    has_served: bool,
    standing: Standing,
}

impl Pool {
    fn new(config: Arc<Cluster>) -> Self {
        Self {
            config,
            members: Members::new(),
            listed_at: None,
            waited: false,
            has_served: false,
            standing: Standing::Unlisted,
        }
    }
}

/// The fleet's state.
#[derive(Debug)]
pub struct Engine {
    first_verdict_wait: Duration,
    view: Arc<SourceView>,
    pools: BTreeMap<ClusterName, Pool>,
    /// They outlive their pools: a cluster that is taken out of the file and put back is drained as before.
    drains: BTreeMap<ClusterName, Drains>,
    catalog: Catalog,
    plan: Arc<Plan>,
    last_epoch: u64,
}

impl Engine {
    /// An engine that has heard from no source yet.
    pub fn new(config: &Config) -> Self {
        let mut engine = Self {
            first_verdict_wait: config.xds.first_verdict_wait,
            view: Arc::new(SourceView::default()),
            pools: BTreeMap::new(),
            drains: BTreeMap::new(),
            catalog: Catalog::default(),
            plan: Arc::new(Plan::default()),
            last_epoch: 0,
        };
        engine.apply_config(config, MonoTime::ZERO);
        engine
    }

    /// The plan as it stands.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Whom to probe, as it stands.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// The next moment at which time alone changes something.
    pub fn wake_at(&self) -> Option<MonoTime> {
        let waiting = self.pools.values().filter(|pool| pool.standing != Standing::Decided && !pool.waited);
        waiting.filter_map(|pool| Some(pool.listed_at? + self.first_verdict_wait)).min()
    }

    /// A new config is in force.
    pub fn apply_config(&mut self, config: &Config, now: MonoTime) -> Effects {
        let mut turn = Turn::default();
        let gone: Vec<_> =
            self.pools.keys().filter(|name| !config.clusters.contains_key(*name)).cloned().collect();
        for name in gone {
            self.drop_pool(&name, &mut turn);
        }
        for (name, cluster) in &config.clusters {
            self.set_cluster(name, cluster, &mut turn);
        }
        self.first_verdict_wait = config.xds.first_verdict_wait;
        self.relist(now, &mut turn);
        self.finish(turn, now)
    }

    /// A source published a view. An unsynced one says nothing about anybody and changes nothing.
    pub fn apply_view(&mut self, view: Arc<SourceView>, now: MonoTime) -> Effects {
        let mut turn = Turn::default();
        if view.synced {
            self.view = view;
            self.relist(now, &mut turn);
        }
        self.finish(turn, now)
    }

    /// Probes ended.
    pub fn apply_observations(&mut self, seen: &[Observation], now: MonoTime) -> Effects {
        let mut turn = Turn::default();
        for observation in seen {
            self.observe(observation, &mut turn);
        }
        self.finish(turn, now)
    }

    /// An operator wants `key` out, for this reason, or back in. The drain sticks to the identity, across lifetimes,
    /// until it is taken back; asking for what is so already changes nothing.
    pub fn apply_drain(
        &mut self,
        key: &InstanceKey,
        drain: Option<Arc<str>>,
        now: MonoTime,
    ) -> Result<Effects, NoSuchInstance> {
        let pool = self.pools.get(&key.cluster);
        let drains = self.drains.entry(key.cluster.clone()).or_default();
        let known =
            pool.is_some_and(|pool| pool.members.contains_key(&key.id)) || drains.contains_key(&key.id);
        match drain {
            _ if !known => {}
            Some(why) => {
                let generation = self.plan.generation + 1;
                drains.entry(key.id.clone()).or_insert(Drain { why, generation });
            }
            None => {
                drains.remove(&key.id);
            }
        }
        if drains.is_empty() {
            self.drains.remove(&key.cluster);
        }
        if !known {
            return Err(NoSuchInstance(key.clone()));
        }
        let mut turn = Turn::default();
        turn.touched.insert(key.cluster.clone());
        Ok(self.finish(turn, now))
    }

    /// Time passed.
    pub fn apply_tick(&mut self, now: MonoTime) -> Effects {
        let mut turn = Turn::default();
        let open = self.pools.iter().filter(|(_, pool)| pool.standing != Standing::Decided);
        turn.touched.extend(open.map(|(name, _)| name.clone()));
        self.finish(turn, now)
    }

    fn drop_pool(&mut self, name: &ClusterName, turn: &mut Turn) {
        let Some(pool) = self.pools.remove(name) else { return };
        turn.pools_changed = true;
        for id in pool.members.keys() {
            turn.deregister(name, id, &mut self.catalog);
        }
    }

    fn set_cluster(&mut self, name: &ClusterName, cluster: &Arc<Cluster>, turn: &mut Turn) {
        let Some(pool) = self.pools.get_mut(name) else {
            self.pools.insert(name.clone(), Pool::new(cluster.clone()));
            turn.pools_changed = true;
            turn.touched.insert(name.clone());
            return;
        };
        let asked_anew = pool.config.checks != cluster.checks;
        pool.config = cluster.clone();
        turn.touched.insert(name.clone());
        if asked_anew {
            for member in pool.members.values_mut() {
                self.last_epoch += 1;
                member.epoch = Epoch(self.last_epoch);
                member.health.reconfigured(&cluster.checks);
                turn.retarget(name, member, cluster, &mut self.catalog);
            }
        }
    }

    /// Brings the members of all pools in line with the view.
    fn relist(&mut self, now: MonoTime, turn: &mut Turn) {
        let view = self.view.clone();
        let mut listed: BTreeMap<&ClusterName, BTreeMap<&InstanceId, &Arc<Instance>>> = BTreeMap::new();
        for chunk in view.chunks.values() {
            let of_cluster = listed.entry(&chunk.cluster).or_default();
            for (id, instance) in &chunk.instances {
                of_cluster.entry(id).or_insert(instance); // the first chunk in order wins
            }
        }
        for (name, pool) in &mut self.pools {
            let Some(instances) = listed.get(name) else {
                continue; // nobody speaks for this cluster: keep what is known
            };
            pool.members.retain(|id, _| {
                let stays = instances.contains_key(id);
                if !stays {
                    turn.deregister(name, id, &mut self.catalog);
                }
                stays
            });
            // Where nobody known is left, the cluster is seen for the first time, or as if it were.
            let same =
                |m: &Member| instances.get(&m.instance.id).is_some_and(|i| same_lifetime(&m.instance, i));
            let anew = !instances.is_empty() && !pool.members.values().any(same);
            // Only who stood there before we looked can have been serving before us.
            let first_sight = pool.listed_at.is_none();
            if anew || first_sight {
                pool.listed_at = Some(now);
                pool.waited = false;
                turn.touched.insert(name.clone());
            }
            for instance in instances.values() {
                register(name, pool, instance, first_sight, &mut self.last_epoch, turn, &mut self.catalog);
            }
        }
    }

    fn observe(&mut self, seen: &Observation, turn: &mut Turn) {
        let Some(pool) = self.pools.get_mut(&seen.key.cluster) else { return };
        let Some(member) = pool.members.get_mut(&seen.key.id) else { return };
        if member.epoch != seen.epoch {
            return; // about a registration that is no more
        }
        let before = outward(&member.health);
        member.health.step(seen, &pool.config.checks, pool.config.policy.damping);
        let after = outward(&member.health);
        if after.phase != before.phase {
            turn.retarget(&seen.key.cluster, member, &pool.config, &mut self.catalog);
        }
        // Most answers of a standing fleet change nothing: they must not cost a decision about the whole cluster.
        if after != before || pool.standing != Standing::Decided {
            turn.touched.insert(seen.key.cluster.clone());
        }
    }

    /// Decides what was touched and gathers what has to be published.
    fn finish(&mut self, mut turn: Turn, now: MonoTime) -> Effects {
        let generation = self.plan.generation + 1;
        let nobody = Drains::new();
        let mut changed: BTreeMap<ClusterName, Arc<ClusterPlan>> = BTreeMap::new();
        for name in &turn.touched {
            let Some(pool) = self.pools.get_mut(name) else { continue };
            let before = self.plan.clusters.get(name);
            let waited = pool.listed_at.is_some_and(|at| now.since(at) >= self.first_verdict_wait);
            pool.waited = pool.waited || waited;
            pool.has_served |= is_admitted(pool);
            pool.standing = standing(pool);
            let drains = self.drains.get(name).unwrap_or(&nobody);
            let old = before.map_or(&[][..], |before| &before.entries);
            let entries = policy::decide(&pool.members, drains, &pool.config.policy, old);
            let next = ClusterPlan { generation, standing: pool.standing, entries };
            if before.is_some_and(|b| b.standing == next.standing && b.entries == next.entries) {
                continue;
            }
            moves(name, old, &next.entries, &mut turn.events);
            changed.insert(name.clone(), Arc::new(next));
        }
        let plan = (turn.pools_changed || !changed.is_empty()).then(|| {
            let mut clusters = self.plan.clusters.clone();
            clusters.retain(|name, _| self.pools.contains_key(name));
            clusters.extend(changed);
            self.plan = Arc::new(Plan { generation, at: now, clusters });
            self.plan.clone()
        });
        let catalog = turn.catalog_changed.then(|| Arc::new(self.catalog.clone()));
        Effects { catalog, plan, events: turn.events }
    }
}

/// What one input has touched so far.
#[derive(Debug, Default)]
struct Turn {
    touched: BTreeSet<ClusterName>,
    pools_changed: bool,
    catalog_changed: bool,
    events: Vec<Event>,
}

impl Turn {
    fn deregister(&mut self, name: &ClusterName, id: &InstanceId, catalog: &mut Catalog) {
        let key = InstanceKey { cluster: name.clone(), id: id.clone() };
        catalog.targets.remove(&key);
        self.catalog_changed = true;
        self.touched.insert(name.clone());
        self.events.push(Event::Deregistered { key });
    }

    /// Brings the catalog's entry of `member` in line with it.
    fn retarget(&mut self, name: &ClusterName, member: &Member, cluster: &Cluster, catalog: &mut Catalog) {
        let key = InstanceKey { cluster: name.clone(), id: member.instance.id.clone() };
        let target = Target {
            key: key.clone(),
            epoch: member.epoch,
            address: member.instance.address,
            phase: member.health.phase(),
            checks: cluster.checks.clone(),
        };
        catalog.targets.insert(key, Arc::new(target));
        self.catalog_changed = true;
    }
}

/// Takes over what a source says about one instance: nothing new, new attributes, or a new process.
fn register(
    name: &ClusterName,
    pool: &mut Pool,
    instance: &Arc<Instance>,
    first_sight: bool,
    last_epoch: &mut u64,
    turn: &mut Turn,
    catalog: &mut Catalog,
) {
    let known = pool.members.get(&instance.id);
    if known.is_some_and(|m| m.instance == *instance) {
        return;
    }
    let member = match known.filter(|m| same_lifetime(&m.instance, instance)) {
        Some(same) => Member { instance: instance.clone(), ..same.clone() },
        None => {
            *last_epoch += 1;
            let epoch = Epoch(*last_epoch);
            let key = InstanceKey { cluster: name.clone(), id: instance.id.clone() };
            turn.events.push(Event::Registered { key, epoch });
            let health = InstanceHealth::new(&pool.config.checks, first_sight);
            Member { instance: instance.clone(), epoch, health }
        }
    };
    turn.retarget(name, &member, &pool.config, catalog);
    turn.touched.insert(name.clone());
    pool.members.insert(instance.id.clone(), member);
}

/// Weight, zone and labels are attributes; a new address or lifetime is a new process.
fn same_lifetime(a: &Instance, b: &Instance) -> bool {
    a.address == b.address && a.lifetime == b.lifetime
}

/// What of an instance's health others can see.
#[derive(Debug, PartialEq, Eq)]
struct Outward {
    phase: Phase,
    is_slow: bool,
    /// While serving, it follows from `is_slow`.
    reason: Option<Reason>,
}

fn outward(health: &InstanceHealth) -> Outward {
    let phase = health.phase();
    let reason = (phase != Phase::Serving).then(|| health.reason());
    Outward { phase, is_slow: health.is_slow(), reason }
}

/// True if any member has been admitted in its present lifetime.
fn is_admitted(pool: &Pool) -> bool {
    pool.members.values().any(Member::is_admitted)
}

/// How much can be said about a cluster.
///
/// Until all members seen at first sight have a verdict, publishing would throw the whole load on the first one
/// heard. After `first_verdict_wait` those that serve are enough. If nobody has answered anything, silence may be
/// our own fault, and an assignment that empties the cluster must not rest on it: it stays undecided, and clients
/// keep what they have. The same holds when all members are replaced at once (other ids, addresses or lifetimes): the
/// new ones are unknown, not dead, and what clients hold stays until somebody new may serve.
fn standing(pool: &Pool) -> Standing {
    if pool.standing == Standing::Decided && (pool.members.is_empty() || is_admitted(pool)) {
        return Standing::Decided;
    }
    if pool.listed_at.is_none() {
        return Standing::Unlisted;
    }
    let members = || pool.members.values().map(|m| &m.health);
    let nobody = members().next().is_none(); // listed without instances: empty, and that is the truth
    let all_judged =
        members().all(InstanceHealth::has_verdict) && members().any(InstanceHealth::has_answered);
    let some_serve = members().any(|h| *h.state() == State::Serving);
    let enough = pool.waited || pool.standing == Standing::Loading;
    if nobody || (all_judged && is_admitted(pool)) || (enough && some_serve) {
        Standing::Decided
    } else if !pool.has_served && (all_judged || pool.standing == Standing::Loading) {
        Standing::Loading
    } else {
        Standing::Undecided
    }
}

/// Both sides are sorted by id.
fn moves(cluster: &ClusterName, before: &[Arc<Entry>], after: &[Arc<Entry>], events: &mut Vec<Event>) {
    for entry in after {
        let old = before.binary_search_by(|b| b.id.cmp(&entry.id)).ok().and_then(|at| before.get(at));
        let from = old.map_or(Serve::Absent, |old| old.serve);
        if from != entry.serve {
            let key = InstanceKey { cluster: cluster.clone(), id: entry.id.clone() };
            events.push(Event::Moved { key, from, to: entry.serve, reason: entry.reason.clone() });
        }
        if let Reason::AddressTaken(by) = &entry.reason
            && old.is_none_or(|old| old.reason != entry.reason)
        {
            let key = InstanceKey { cluster: cluster.clone(), id: entry.id.clone() };
            events.push(Event::AddressTaken { key, address: entry.address, by: by.clone() });
        }
    }
}
