//! What the fleet wants probed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Address, Checks, Epoch, InstanceKey};

/// Where an instance is, as far as asking it goes: which checks, at which pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// `startup` has not passed in this lifetime: only it is asked, at its `recover_interval`.
    Starting,
    /// `readiness` has not passed in this lifetime: only it is asked, at its `recover_interval`.
    Unready,
    /// Ready, and being warmed up: `readiness` at its `recover_interval`, and one `warmup` prompt after another.
    Warming,
    /// Not admitted yet for want of an `inference`, or not serving any more: `readiness` and `inference`, each at its
    /// `recover_interval`.
    Out,
    /// Serving: `readiness` and `inference`, each at its `interval`, and again after `confirm_interval` upon a sign
    /// of death (`inference`: upon any failure).
    Serving,
}

/// One instance to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whom.
    pub key: InstanceKey,
    /// The registration; observations carry it back.
    pub epoch: Epoch,
    /// Where.
    pub address: Address,
    /// Which checks and pace.
    pub phase: Phase,
    /// The questions.
    pub checks: Arc<Checks>,
}

/// All targets. Published whole; readers diff by pointer.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// By key, in order.
    pub targets: BTreeMap<InstanceKey, Arc<Target>>,
}
