//! What the fleet can afford: one cluster's verdicts in, what clients are told out.
//!
//! Decides for each member of a cluster whether it is served, with which weight, and why; which of those with one
//! address stands for it; holds back ejections that would break the cluster's floor or cap. Pure: no I/O, no clock, and the order in which members are given does not
//! matter. It must never eject more than the cap allows, counted on the set *after* the change, and never leave an
//! entry without a reason. Called by the fleet engine for each cluster that changed.

mod address;
mod guard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::address::Addresses;
use crate::config::Policy;
use crate::health::{InstanceHealth, State};
use crate::model::{Drain, Entry, Epoch, Instance, InstanceId, Reason, Serve, Weight};

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

impl Member {
    /// True if it has been admitted in its present lifetime.
    pub const fn is_admitted(&self) -> bool {
        match self.health.state() {
            State::Serving | State::Ejected { .. } => true,
            State::Starting | State::Warming => false,
        }
    }
}

/// All members of one cluster.
pub type Members = BTreeMap<InstanceId, Member>;

/// Whom an operator wants out.
pub type Drains = BTreeMap<InstanceId, Drain>;

/// Decides a whole cluster; entries come sorted by id. Those that are as they were `before` are taken over, so that who
/// reads them can compare pointers.
pub fn decide(members: &Members, drains: &Drains, policy: &Policy, before: &[Arc<Entry>]) -> Vec<Arc<Entry>> {
    let addresses = Addresses::of(members, drains);
    let held = guard::held_back(members, &addresses, policy);
    let mut before = before.iter().peekable();
    let decide = |member: &Member| {
        let id = &member.instance.id;
        let drain = addresses.drain_of(member);
        let next = match addresses.taken_by(member) {
            Some(by) => passed_over(member, drain, by),
            None => entry(member, drain, held.contains(id), policy),
        };
        while before.next_if(|old| old.id < *id).is_some() {}
        match before.next_if(|old| old.id == *id) {
            Some(old) if **old == next => old.clone(),
            _ => Arc::new(next),
        }
    };
    members.values().map(decide).collect()
}

/// One whose address is another's.
fn passed_over(member: &Member, drain: Option<&Drain>, by: &InstanceId) -> Entry {
    let reason =
        drain.map_or_else(|| Reason::AddressTaken(by.clone()), |drain| Reason::Drained(drain.clone()));
    entry_of(&member.instance, member.instance.weight, Serve::Absent, reason)
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
    entry_of(instance, weight, serve, reason)
}

fn entry_of(instance: &Instance, weight: Weight, serve: Serve, reason: Reason) -> Entry {
    let Instance { id, address, locality, .. } = instance;
    Entry { id: id.clone(), address: *address, locality: locality.clone(), weight, serve, reason }
}
