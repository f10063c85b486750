//! The brake: how many may be out at once, and who of those who should be is held back.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::address::Addresses;
use super::{Member, Members};
use crate::config::Policy;
use crate::health::State;
use crate::model::{InstanceId, MonoTime, Outcome};

/// The ejected members that must stay in rotation, so that the cap and the floor hold on the set after the change.
///
/// A drain is an operator's word and not held back, but it uses up what may be out.
///
/// Only members that have been admitted count, and of those with one address one: who is still starting is neither a
/// loss nor a help. Worst first
/// (dead, stuck, failing, well again but not trusted yet), then the longest out, then by id: raising the cap never
/// ejects fewer, and whoever is out stays out while nothing worse comes along.
pub(super) fn held_back(
    members: &Members,
    addresses: &Addresses<'_>,
    policy: &Policy,
) -> BTreeSet<InstanceId> {
    let processes = || members.values().filter(|member| addresses.taken_by(member).is_none());
    let is_drained = |member: &&Member| addresses.drain_of(member).is_some();
    let ranked = processes().filter(|m| !is_drained(m)).filter_map(rank);
    let mut out: Vec<(Reverse<u8>, MonoTime, &InstanceId)> = ranked.collect();
    let admitted = processes().filter(|m| m.is_admitted()).count();
    let drained = processes().filter(is_drained).filter(|m| m.is_admitted()).count();
    let allowed = policy.max_ejected_percent.of(admitted).min(admitted.saturating_sub(policy.min_serving));
    let allowed = allowed.saturating_sub(drained);
    if out.len() <= allowed {
        return BTreeSet::new();
    }
    out.sort();
    out.into_iter().skip(allowed).map(|(_, _, id)| id.clone()).collect()
}

fn rank(member: &Member) -> Option<(Reverse<u8>, MonoTime, &InstanceId)> {
    match member.health.state() {
        State::Ejected { since, outcome, .. } => {
            let severity = if member.health.is_recovering() { 0 } else { severity(*outcome) };
            Some((Reverse(severity), *since, &member.instance.id))
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
