//! What was decided: the one thing between the judges and the wire.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Address, ClusterName, Detail, InstanceId, Locality, MonoTime, Outcome, Role, Weight};

/// What clients are told about an instance (design §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serve {
    /// Not in EDS: starting, warming, drained. An UNHEALTHY entry would distort the client's own ratios.
    Absent,
    /// Takes traffic by weight.
    Healthy,
    /// Overflow only: the guard holds back its ejection.
    Degraded,
    /// Ejected.
    Unhealthy,
    /// Takes nothing new; listed until drained.
    Draining,
}

impl Serve {
    /// True if a client may send new requests there.
    pub const fn takes_traffic(self) -> bool {
        match self {
            Self::Healthy | Self::Degraded => true,
            Self::Absent | Self::Unhealthy | Self::Draining => false,
        }
    }
}

/// Why an entry is as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Registered, nothing heard yet.
    Unheard,
    /// What must pass before it serves for the first time has not yet; the last answer.
    NotReady(Role, Outcome, Detail),
    /// Ready, and being warmed up.
    Warming {
        /// Prompts answered.
        answered: u32,
        /// Of those, how many of the last ones in a row came within the expected latency.
        in_time: u32,
    },
    /// Ejected, and answers well again, but not for long enough.
    Recovering {
        /// Ejections without a calm time between them.
        ejections: u32,
        /// How long it must answer well before it serves.
        well_for: Duration,
    },
    /// All checks pass.
    Passing,
    /// Serving, all checks pass, and one of them has something to say all the same.
    Noted(Role, Detail),
    /// Answers, but over its budget.
    Slow(Role, Detail),
    /// A check is critical.
    Failing(Role, Outcome, Detail),
    /// A check is critical, but ejecting would break the cluster's floor or cap.
    Held(Role, Outcome, Detail),
    /// Another instance of the cluster has its address and stands for it: to a client they are one endpoint.
    AddressTaken(InstanceId),
    /// Somebody wants it out; their words, which may be empty.
    Drained(Drain),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence = |f: &mut fmt::Formatter<'_>, role: &Role, outcome: Outcome, detail: &Detail| {
            write!(f, "{role} {outcome}")?;
            if *detail != Detail::None { write!(f, ": {detail}") } else { Ok(()) }
        };
        match self {
            Self::Unheard => f.write_str("no verdict yet"),
            Self::NotReady(role, outcome, detail) => {
                f.write_str("not ready yet, ")?;
                evidence(f, role, *outcome, detail)
            }
            Self::Warming { answered, in_time } => {
                write!(f, "warming up, prompts answered: {answered}, the last {in_time} of them in time")
            }
            Self::Recovering { ejections, well_for } => write!(
                f,
                "all checks pass again; ejected {ejections} times in a row, so it must stay well for {} s",
                well_for.as_secs_f64()
            ),
            Self::Passing => f.write_str("all checks pass"),
            Self::Noted(role, detail) => write!(f, "all checks pass; {role}: {detail}"),
            Self::Slow(role, detail) => evidence(f, role, Outcome::Slow, detail),
            Self::Failing(role, outcome, detail) => evidence(f, role, *outcome, detail),
            Self::AddressTaken(by) => write!(f, "has the address of {by}, which stands for both"),
            Self::Drained(Drain { why, .. }) if why.is_empty() => f.write_str("drained by an operator"),
            Self::Drained(Drain { why, .. }) => write!(f, "drained by an operator: {why}"),
            Self::Held(role, outcome, detail) => {
                f.write_str("held back by the guard, ")?;
                evidence(f, role, *outcome, detail)
            }
        }
    }
}

/// An operator's word that an instance is to take nothing new. It sticks to the identity, whatever process is behind
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// For people.
    pub why: Arc<str>,
    /// The plan's generation in which it was published first: who knows this one or a later one knows of the drain.
    pub generation: u64,
}

/// One instance in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub id: InstanceId,
    /// Where.
    pub address: Address,
    /// In which zone.
    pub locality: Locality,
    /// With which weight.
    pub weight: Weight,
    /// What clients are told.
    pub serve: Serve,
    /// Why.
    pub reason: Reason,
}

/// How much can be said about a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// No source has spoken for it: not even its size is known.
    Unlisted,
    /// Its instances are known, but not who may serve. Such a cluster's endpoints are left unanswered, never sent
    /// empty: clients keep what they have.
    Undecided,
    /// All instances have a verdict, and nobody has served since this process watches. Clients that hold nothing
    /// are told so; from one that holds something, nothing is taken: it may date from before a restart.
    Loading,
    /// It is known who may serve. It goes back to undecided only when all its instances are replaced at once.
    Decided,
}

/// One cluster in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPlan {
    /// The plan's generation in which this cluster last changed.
    pub generation: u64,
    /// How much can be said about it.
    pub standing: Standing,
    /// All registered instances, sorted by id.
    pub entries: Vec<Arc<Entry>>,
}

/// Everything decided, immutable, published whole.
///
/// `generation` rises with every published plan and gives the order that content hashes cannot give.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Rises by one with every published plan.
    pub generation: u64,
    /// When it was decided.
    pub at: MonoTime,
    /// All configured clusters.
    pub clusters: BTreeMap<ClusterName, Arc<ClusterPlan>>,
}
