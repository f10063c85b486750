//! The state machine of one lifetime of one instance.

use super::{CheckRecord, Status};
use crate::model::{Check, Checks, Detail, MonoTime, Observation, Outcome, Phase, Reason, Role};

/// Where an instance is in its lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its `startup` check has not passed yet.
    Starting,
    /// Up, but not admitted yet: `readiness` has not passed in this lifetime.
    Warming,
    /// Admitted.
    Serving,
    /// Was admitted; `readiness` has become critical.
    Ejected {
        /// When the verdict fell.
        since: MonoTime,
        /// The failure that tipped it. Kept, so that the ranking of the ejected does not jump about.
        outcome: Outcome,
        /// Its evidence.
        detail: Detail,
    },
}

/// One lifetime of one instance, as far as its health goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceHealth {
    state: State,
    /// It was there when its cluster was first seen, so it may have been serving before us.
    adoptable: bool,
    /// It has said something (yes, no, or slowly) in this lifetime.
    answered: bool,
    startup: CheckRecord,
    readiness: CheckRecord,
}

impl InstanceHealth {
    /// A lifetime of which nothing is known. `adoptable` says that the instance stood there when its cluster was
    /// first seen: if it is found ready at once, it was running already and is taken over on that one answer.
    pub const fn new(checks: &Checks, adoptable: bool) -> Self {
        let state = if checks.startup.is_some() { State::Starting } else { State::Warming };
        Self { state, adoptable, answered: false, startup: CheckRecord::new(), readiness: CheckRecord::new() }
    }

    /// The state.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// True once the instance has answered anything at all in this lifetime. Silence may be our own fault.
    pub const fn has_answered(&self) -> bool {
        self.answered
    }

    /// True once there is a verdict, good or bad.
    pub fn has_verdict(&self) -> bool {
        match self.state {
            State::Starting => self.startup.status() != Status::Unknown,
            State::Warming => self.readiness.status() != Status::Unknown,
            State::Serving | State::Ejected { .. } => true,
        }
    }

    /// How the prober should ask.
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::Starting => Phase::Starting,
            State::Warming | State::Ejected { .. } => Phase::Out,
            State::Serving => Phase::Serving,
        }
    }

    /// True if the instance serves, but over its budget.
    pub fn is_slow(&self) -> bool {
        self.state == State::Serving && self.readiness.status() == Status::Warning
    }

    /// Why the instance is where it is, without what the policy adds.
    pub fn reason(&self) -> Reason {
        match &self.state {
            State::Starting => not_ready(Role::Startup, &self.startup),
            State::Warming => not_ready(Role::Readiness, &self.readiness),
            State::Serving if self.is_slow() => Reason::Slow(Role::Readiness, Detail::None),
            State::Serving => Reason::Passing,
            State::Ejected { outcome, detail, .. } => {
                Reason::Failing(Role::Readiness, *outcome, detail.clone())
            }
        }
    }

    /// The checks were changed while the instance runs on. Its state stays; if a `startup` check was removed while
    /// it was awaited, nothing gates any more.
    pub fn reconfigured(&mut self, checks: &Checks) {
        self.startup.reconfigured();
        self.readiness.reconfigured();
        if self.state == State::Starting && checks.startup.is_none() {
            self.state = State::Warming;
        }
    }

    /// Counts one observation of this lifetime.
    pub fn step(&mut self, seen: &Observation, checks: &Checks) {
        let Some(check) = checks.get(seen.role) else { return };
        self.answered |= matches!(seen.outcome, Outcome::Ok | Outcome::Slow | Outcome::Unhealthy);
        match seen.role {
            Role::Startup => self.count_startup(seen, check),
            Role::Readiness => self.count_readiness(seen, check),
        }
    }

    fn count_startup(&mut self, seen: &Observation, check: &Check) {
        if self.state != State::Starting {
            return; // a late answer: once passed, startup is over for this lifetime
        }
        self.startup.count(seen, check, check.healthy_threshold.get());
        if matches!(self.startup.status(), Status::Passing | Status::Warning) {
            self.state = State::Warming;
        }
    }

    fn count_readiness(&mut self, seen: &Observation, check: &Check) {
        if self.state == State::Starting {
            return; // gated
        }
        let adopt = self.adoptable && self.state == State::Warming && !self.readiness.has_failed();
        let rise = if adopt { 1 } else { check.healthy_threshold.get() };
        self.readiness.count(seen, check, rise);
        let passes = match self.readiness.status() {
            Status::Passing | Status::Warning => true,
            Status::Unknown | Status::Critical => false,
        };
        self.state = match (std::mem::replace(&mut self.state, State::Serving), passes) {
            (State::Warming | State::Ejected { .. } | State::Serving, true) => State::Serving,
            (State::Serving, false) => {
                State::Ejected { since: seen.ended, outcome: seen.outcome, detail: seen.detail.clone() }
            }
            (out @ (State::Starting | State::Warming | State::Ejected { .. }), _) => out,
        };
    }
}

fn not_ready(role: Role, record: &CheckRecord) -> Reason {
    match record.last() {
        None => Reason::Unheard,
        Some((outcome, detail)) => Reason::NotReady(role, *outcome, detail.clone()),
    }
}
