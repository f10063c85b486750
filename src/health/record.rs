//! What one check has heard from one instance in this lifetime: runs of equal answers, and the status they add up to.

use crate::model::{Check, Detail, MonoTime, Observation, Outcome};

/// A check's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// No conclusive evidence yet.
    Unknown,
    /// Answers as expected.
    Passing,
    /// Answers, but over budget.
    Warning,
    /// Fails, confirmed.
    Critical,
}

/// A run of failures without an answer between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FailingRun {
    count: u32,
    /// Start of the first failing probe: since then, nothing good was seen.
    since: MonoTime,
}

/// The record of one check of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRecord {
    status: Status,
    failing: Option<FailingRun>,
    /// Consecutive answers, slow or not.
    answered: u32,
    /// Consecutive slow answers.
    slow: u32,
    /// Consecutive answers within budget.
    fast: u32,
    /// True once the check has passed under its present config.
    has_passed: bool,
    /// True once the check was not passed in this lifetime, be it for a fault of the question.
    has_failed: bool,
    last: Option<(Outcome, Detail)>,
}

impl CheckRecord {
    /// A record that has heard nothing.
    pub const fn new() -> Self {
        Self {
            status: Status::Unknown,
            failing: None,
            answered: 0,
            slow: 0,
            fast: 0,
            has_passed: false,
            has_failed: false,
            last: None,
        }
    }

    /// The status the evidence adds up to.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// True once the check was not passed in this lifetime, be it for a fault of the question.
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// True if answers come, in time or not.
    pub const fn passes(&self) -> bool {
        matches!(self.status, Status::Passing | Status::Warning)
    }

    /// True if it passes and the latest answer was no failure.
    pub const fn is_well(&self) -> bool {
        self.passes() && self.failing.is_none()
    }

    /// True while failures are not yet outweighed by answers.
    pub const fn is_failing(&self) -> bool {
        self.failing.is_some() || matches!(self.status, Status::Critical)
    }

    /// True while the check is critical and nothing good has been heard since.
    pub const fn is_down(&self) -> bool {
        self.failing.is_some() && matches!(self.status, Status::Critical)
    }

    /// What it passed on is no longer to be relied on: it must pass anew. Failures stay counted.
    pub fn doubt(&mut self) {
        if self.passes() {
            self.status = Status::Unknown;
        }
        self.answered = 0;
        self.slow = 0;
        self.fast = 0;
    }

    /// Its failures are made up for by other evidence.
    pub fn forgive(&mut self) {
        self.failing = None;
        if matches!(self.status, Status::Critical) {
            self.status = Status::Unknown;
        }
    }

    /// The latest outcome as it was counted, with its evidence.
    pub const fn last(&self) -> Option<&(Outcome, Detail)> {
        self.last.as_ref()
    }

    /// The check itself was changed: what it said stays, but its failures must be believed anew. A first 4xx after
    /// that points at the change, not at the instance.
    pub fn reconfigured(&mut self) {
        self.failing = None;
        self.answered = 0;
        self.slow = 0;
        self.fast = 0;
        self.has_passed = false;
    }

    /// Counts one observation; `rise` answers in a row bring the check back.
    pub fn count(&mut self, seen: &Observation, check: &Check, rise: u32) {
        let outcome = self.classify(seen);
        self.last = Some((outcome, seen.detail.clone()));
        match outcome {
            Outcome::Ok => self.answer(false, check, rise),
            Outcome::Slow => self.answer(true, check, rise),
            Outcome::Unhealthy | Outcome::Unreachable | Outcome::Timeout => self.fail(outcome, seen, check),
            Outcome::Misconfigured => {
                // Whoever answers like this does not serve, whosever fault it is.
                self.has_failed |= seen.outcome == Outcome::Unhealthy;
            }
            Outcome::Unknown => {}
        }
    }

    /// A 3xx or 4xx that a check got before it ever passed is about the question (path, method, host), not about
    /// the instance (design §2). Later it is an explicit no.
    fn classify(&self, seen: &Observation) -> Outcome {
        let about_the_question = match seen.detail {
            Detail::Status(code) => (400..500).contains(&code),
            Detail::Redirect(_) => true,
            Detail::None
            | Detail::Stuck(_)
            | Detail::Late(_)
            | Detail::AtOnce
            | Detail::Io(..)
            | Detail::Protocol(_)
            | Detail::InBand(_) => false,
        };
        if seen.outcome == Outcome::Unhealthy && about_the_question && !self.has_passed {
            Outcome::Misconfigured
        } else {
            seen.outcome
        }
    }

    fn answer(&mut self, slow: bool, check: &Check, rise: u32) {
        self.failing = None;
        self.answered = self.answered.saturating_add(1);
        if slow {
            self.slow = self.slow.saturating_add(1);
            self.fast = 0;
        } else {
            self.fast = self.fast.saturating_add(1);
            self.slow = 0;
        }
        self.has_passed = true;
        self.status = match self.status {
            Status::Unknown | Status::Critical if self.answered < rise => self.status,
            Status::Unknown | Status::Critical if slow => Status::Warning,
            Status::Unknown | Status::Critical => Status::Passing,
            Status::Passing if self.slow >= check.unhealthy_threshold.get() => Status::Warning,
            Status::Warning if self.fast >= check.healthy_threshold.get() => Status::Passing,
            Status::Passing | Status::Warning => self.status,
        };
    }

    fn fail(&mut self, outcome: Outcome, seen: &Observation, check: &Check) {
        self.has_failed = true;
        self.answered = 0;
        self.slow = 0;
        self.fast = 0;
        let run = self.failing.get_or_insert(FailingRun { count: 0, since: seen.started });
        run.count = run.count.saturating_add(1);
        let spans = seen.ended.since(run.since) >= check.min_failing_time.of(outcome);
        if run.count >= check.unhealthy_threshold.get() && spans {
            self.status = Status::Critical;
        }
    }
}

impl Default for CheckRecord {
    fn default() -> Self {
        Self::new()
    }
}
