//! The brake: how many may be out at once, and who of those who should be is held back.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Member, Members};
use crate::config::Policy;
use crate::health::State;
use crate::model::{InstanceId, MonoTime, Outcome};

/// The ejected members that must stay in rotation, so that the cap and the floor hold on the set after the change.
///
/// Only members that have been admitted count: one that is still starting is neither a loss nor a help. Worst first
/// (dead, stuck, failing), then the longest out, then by id: raising the cap never ejects fewer, and whoever is out
/// stays out while nothing worse comes along.
pub(super) fn held_back(members: &Members, policy: &Policy) -> BTreeSet<InstanceId> {
    let mut out: Vec<(Reverse<u8>, MonoTime, &InstanceId)> = members.values().filter_map(rank).collect();
    let serving = members.values().filter(|m| *m.health.state() == State::Serving).count();
    let admitted = serving + out.len();
    let allowed = policy.max_ejected_percent.of(admitted).min(admitted.saturating_sub(policy.min_serving));
    if out.len() <= allowed {
        return BTreeSet::new();
    }
    out.sort();
    out.into_iter().skip(allowed).map(|(_, _, id)| id.clone()).collect()
}

fn rank(member: &Member) -> Option<(Reverse<u8>, MonoTime, &InstanceId)> {
    match member.health.state() {
        State::Ejected { since, outcome, .. } => {
            Some((Reverse(severity(*outcome)), *since, &member.instance.id))
        }
        State::Starting | State::Warming | State::Serving => None,
    }
}

const fn severity(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Unreachable => 3,
        Outcome::Timeout => 2,
        Outcome::Unhealthy => 1,
        Outcome::Ok | Outcome::Slow | Outcome::Misconfigured | Outcome::Unknown => 0,
    }
}
