//! What the fleet can afford: one cluster's verdicts in, what clients are told out.
//!
//! Decides for each member of a cluster whether it is served, with which weight, and why; holds back ejections that
//! would break the cluster's floor or cap. Pure: no I/O, no clock, and the order in which members are given does not
//! matter. It must never eject more than the cap allows, counted on the set *after* the change, and never leave an
//! entry without a reason. Called by the fleet engine for each cluster that changed.

mod guard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::Policy;
use crate::health::{InstanceHealth, State};
use crate::model::{Drain, Entry, Epoch, Instance, InstanceId, Reason, Serve};

/// One member of a cluster: its registration and its health.
#[derive(Debug, Clone)]
pub struct Member {
    /// What its source says.
    pub instance: Arc<Instance>,
    /// Names this registration; observations of another one do not count.
    pub epoch: Epoch,
    /// What its answers say.
    pub health: InstanceHealth,
}

/// All members of one cluster.
pub type Members = BTreeMap<InstanceId, Member>;

/// Whom an operator wants out.
pub type Drains = BTreeMap<InstanceId, Drain>;

/// Decides a whole cluster; entries come sorted by id.
pub fn decide(members: &Members, drains: &Drains, policy: &Policy) -> Vec<Arc<Entry>> {
    let held = guard::held_back(members, drains, policy);
    let decide = |member: &Member| {
        let id = &member.instance.id;
        Arc::new(entry(member, drains.get(id), held.contains(id), policy))
    };
    members.values().map(decide).collect()
}

fn entry(member: &Member, drain: Option<&Drain>, held: bool, policy: &Policy) -> Entry {
    let Member { instance, health, .. } = member;
    let drained = drain.cloned().map(Reason::Drained);
    let (serve, reason) = match (health.state(), drained.unwrap_or_else(|| health.reason())) {
        // One that was never served needs no draining: it is just not admitted.
        (State::Starting | State::Warming, reason @ Reason::Drained(_)) => (Serve::Absent, reason),
        (State::Serving | State::Ejected { .. }, reason @ Reason::Drained(_)) => (Serve::Draining, reason),
        (State::Starting | State::Warming, reason) => (Serve::Absent, reason),
        (State::Serving, reason) => (Serve::Healthy, reason),
        (State::Ejected { .. }, Reason::Failing(role, outcome, detail)) if held => {
            (Serve::Degraded, Reason::Held(role, outcome, detail))
        }
        // It answers well, so being needed is enough.
        (State::Ejected { .. }, reason @ Reason::Recovering { .. }) if held => (Serve::Healthy, reason),
        (State::Ejected { .. }, reason) if held => (Serve::Degraded, reason),
        (State::Ejected { .. }, reason) => (Serve::Unhealthy, reason),
    };
    let weight = if health.is_slow() { instance.weight.scaled(policy.slow_weight) } else { instance.weight };
    Entry {
        id: instance.id.clone(),
        address: instance.address,
        locality: instance.locality.clone(),
        weight,
        serve,
        reason,
    }
}
