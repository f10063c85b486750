//! The state machine of one lifetime of one instance.

use super::flaps::Flaps;
use super::warmth::Warmth;
use super::{CheckRecord, Status};
use crate::model::{Check, Checks, Damping, Detail, MonoTime, Observation, Outcome, Phase, Reason, Role};

/// Where an instance is in its lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its `startup` check has not passed yet.
    Starting,
    /// Up, but not admitted yet: `readiness`, `warmup` or `inference` have not passed in this lifetime.
    Warming,
    /// Admitted.
    Serving,
    /// Was admitted; a check has become critical.
    Ejected {
        /// When the verdict fell.
        since: MonoTime,
        /// The check that tipped it.
        role: Role,
        /// The failure that did. Kept, so that the ranking of the ejected does not jump about.
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
    /// A `warmup` is configured.
    warms_up: bool,
    startup: CheckRecord,
    warmup: CheckRecord,
    warmth: Warmth,
    readiness: CheckRecord,
    inference: CheckRecord,
    flaps: Flaps,
}

impl InstanceHealth {
    /// A lifetime of which nothing is known. `adoptable` says that the instance stood there when its cluster was
    /// first seen: if it is found ready at once, it was running already and is taken over on one answer to each
    /// check, without a warm-up.
    pub fn new(checks: &Checks, adoptable: bool) -> Self {
        let state = if checks.startup.is_some() { State::Starting } else { State::Warming };
        Self {
            state,
            adoptable,
            answered: false,
            warms_up: checks.warmup.is_some(),
            startup: CheckRecord::new(),
            warmup: CheckRecord::new(),
            warmth: Warmth::default(),
            readiness: CheckRecord::new(),
            inference: CheckRecord::new(),
            flaps: Flaps::default(),
        }
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
            State::Warming => {
                let critical = |record: &CheckRecord| record.status() == Status::Critical;
                let being_warmed = self.phase() == Phase::Warming && self.warmup.last().is_some();
                critical(&self.readiness) || critical(&self.inference) || being_warmed
            }
            State::Serving | State::Ejected { .. } => true,
        }
    }

    /// How the prober should ask.
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::Starting => Phase::Starting,
            State::Warming if !self.readiness.passes() => Phase::Unready,
            State::Warming if self.needs_warmup() => Phase::Warming,
            State::Warming | State::Ejected { .. } => Phase::Out,
            State::Serving => Phase::Serving,
        }
    }

    /// True if the instance serves, but over its budget.
    pub fn is_slow(&self) -> bool {
        self.slow().is_some()
    }

    /// True if the instance is out, and answers well again.
    pub fn is_recovering(&self) -> bool {
        matches!(self.state, State::Ejected { .. }) && self.flaps.recovering().is_some()
    }

    fn slow(&self) -> Option<(Role, &CheckRecord)> {
        let checks = [(Role::Inference, &self.inference), (Role::Readiness, &self.readiness)];
        let mut slow = checks.into_iter().filter(|(_, record)| record.status() == Status::Warning);
        if self.state == State::Serving { slow.next() } else { None }
    }

    /// Why the instance is where it is, without what the policy adds.
    pub fn reason(&self) -> Reason {
        match &self.state {
            State::Starting => not_ready(Role::Startup, &self.startup),
            State::Warming => match self.phase() {
                Phase::Warming => self.warming(),
                Phase::Out => not_ready(Role::Inference, &self.inference),
                Phase::Starting | Phase::Unready | Phase::Serving => {
                    not_ready(Role::Readiness, &self.readiness)
                }
            },
            State::Serving => match self.slow() {
                Some((role, record)) => match record.last() {
                    Some((Outcome::Slow, detail)) => Reason::Slow(role, detail.clone()),
                    Some(_) | None => Reason::Slow(role, Detail::None),
                },
                None => match self.inference.last() {
                    Some((Outcome::Ok, detail @ Detail::AtOnce)) => {
                        Reason::Noted(Role::Inference, detail.clone())
                    }
                    Some(_) | None => Reason::Passing,
                },
            },
            State::Ejected { role, outcome, detail, .. } => match self.flaps.recovering() {
                Some((ejections, well_for)) => Reason::Recovering { ejections, well_for },
                None => Reason::Failing(*role, *outcome, detail.clone()),
            },
        }
    }

    fn warming(&self) -> Reason {
        match self.warmup.last() {
            Some((Outcome::Ok | Outcome::Slow, _)) | None => {
                let Warmth { answered, in_time } = self.warmth;
                Reason::Warming { answered, in_time }
            }
            Some(_) => not_ready(Role::Warmup, &self.warmup),
        }
    }

    /// The checks were changed while the instance runs on. Its state stays; if a `startup` check was removed while
    /// it was awaited, nothing gates any more.
    pub fn reconfigured(&mut self, checks: &Checks) {
        self.startup.reconfigured();
        self.warmup.reconfigured();
        self.readiness.reconfigured();
        self.inference.reconfigured();
        self.warms_up = checks.warmup.is_some();
        if checks.inference.is_none() {
            self.inference = CheckRecord::new();
        }
        if self.state == State::Starting && checks.startup.is_none() {
            self.state = State::Warming;
        }
    }

    /// Counts one observation of this lifetime.
    pub fn step(&mut self, seen: &Observation, checks: &Checks, damping: Damping) {
        let Some(check) = checks.get(seen.role) else { return };
        self.answered |= matches!(seen.outcome, Outcome::Ok | Outcome::Slow | Outcome::Unhealthy);
        let gated = self.state == State::Starting;
        match seen.role {
            // A late answer: once passed, startup is over for this lifetime.
            Role::Startup if !gated => return,
            Role::Startup => self.startup.count(seen, check, check.healthy_threshold.get()),
            Role::Warmup | Role::Readiness | Role::Inference if gated => return,
            Role::Warmup => self.count_warmup(seen, check, checks),
            Role::Readiness => self.count_readiness(seen, check),
            Role::Inference => self.count_inference(seen, check),
        }
        self.settle(seen, checks, damping);
    }

    fn count_warmup(&mut self, seen: &Observation, check: &Check, checks: &Checks) {
        if self.phase() != Phase::Warming {
            return; // late: it has been admitted meanwhile, or is not ready any more
        }
        self.warmup.count(seen, check, 1);
        if let Some(warmup) = &checks.warmup {
            self.warmth.count(seen, warmup);
        }
    }

    fn count_readiness(&mut self, seen: &Observation, check: &Check) {
        let adopt = self.state == State::Warming && self.is_adopted();
        let rise = if adopt { 1 } else { check.healthy_threshold.get() };
        self.readiness.count(seen, check, rise);
        if !self.readiness.passes() {
            self.warmth.in_time = 0;
        }
        if self.readiness.is_down() {
            // What was generated before is about the time before: nobody comes back on half the evidence.
            self.inference.doubt();
        }
    }

    /// One completion says as much as an instance can say: only failures must be made up for by several. "Too many
    /// requests" generates nothing: it may be slow who says so, but it is no way back, and makes up for no failure.
    fn count_inference(&mut self, seen: &Observation, check: &Check) {
        let generates = seen.outcome != Outcome::Slow || seen.timings.first_token.is_some();
        // One that was busy before we came to look may be so still.
        let may_count = match self.state {
            State::Serving => !self.inference.is_failing(),
            State::Warming => self.is_adopted() && self.readiness.passes() && !self.inference.is_failing(),
            State::Starting | State::Ejected { .. } => false,
        };
        if !generates && !may_count {
            return;
        }
        let rise = if self.inference.is_failing() { check.healthy_threshold.get() } else { 1 };
        self.inference.count(seen, check, rise);
    }

    /// Draws the consequence of what was just counted.
    fn settle(&mut self, seen: &Observation, checks: &Checks, damping: Damping) {
        let asked = checks.inference.is_some();
        let well = self.readiness.is_well() && (!asked || self.inference.is_well());
        match self.state {
            State::Starting if self.startup.passes() => self.state = State::Warming,
            State::Warming if self.is_admitted(well, checks) => {
                self.admit(seen.ended);
                // A warm-up has shown better than a failed inference before it.
                self.inference.forgive();
            }
            State::Ejected { .. } if self.flaps.recovers(well, seen.started, seen.ended) => {
                self.admit(seen.ended);
            }
            // It was running before us, so others may use it: out it goes, but under the guard like any that served.
            State::Warming
                if asked && self.is_adopted() && self.readiness.is_well() && self.inference.is_down() =>
            {
                self.eject(Role::Inference, seen.ended, damping);
            }
            State::Serving if self.record(seen.role).is_down() => self.eject(seen.role, seen.ended, damping),
            State::Starting | State::Warming | State::Serving | State::Ejected { .. } => {}
        }
    }

    fn admit(&mut self, at: MonoTime) {
        self.state = State::Serving;
        self.flaps.admit(at);
    }

    fn eject(&mut self, role: Role, since: MonoTime, damping: Damping) {
        self.flaps.eject(since, damping);
        let last = self.record(role).last().cloned();
        let (outcome, detail) = last.unwrap_or((Outcome::Unknown, Detail::None));
        self.state = State::Ejected { since, role, outcome, detail };
    }

    fn is_admitted(&self, well: bool, checks: &Checks) -> bool {
        match &checks.warmup {
            Some(warmup) if self.needs_warmup() => self.readiness.passes() && self.warmth.is_enough(warmup),
            Some(_) | None => well,
        }
    }

    const fn record(&self, role: Role) -> &CheckRecord {
        match role {
            Role::Startup => &self.startup,
            Role::Warmup => &self.warmup,
            Role::Readiness => &self.readiness,
            Role::Inference => &self.inference,
        }
    }

    /// True while everything says that it was running before us. A failing inference does not say otherwise: it may
    /// be why we are needed.
    const fn is_adopted(&self) -> bool {
        self.adoptable && !self.readiness.has_failed()
    }

    const fn needs_warmup(&self) -> bool {
        self.warms_up && !self.is_adopted()
    }
}

fn not_ready(role: Role, record: &CheckRecord) -> Reason {
    match record.last() {
        None => Reason::Unheard,
        Some((outcome, detail)) => Reason::NotReady(role, *outcome, detail.clone()),
    }
}
