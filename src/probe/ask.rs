//! One question to one address, from the first packet to the verdict on the answer.
//!
//! It keeps the deadline and the stage timings, and turns every way a probe can end into an outcome with its
//! evidence. It does not know when to ask or whether to ask again: the scheduler does. Called by the scheduler
//! through [`Ask`], and directly by commands that put a single question.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout_at;

use super::http::{self, Kept};
use super::openai::{self, Asked};
use super::tcp;
use super::trace::{Failure, Trace, Verdict};
use crate::clock::Clock;
use crate::model::{Address, Check, CheckKind, Detail, MonoTime, Outcome, Role, Stage, Target, Timings};

/// A deadline noticed this much too late says that this process stood still, not that the peer did.
const STALLED: Duration = Duration::from_millis(500);

/// One question.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// What to ask and how to read the answer. Its own deadlines are not looked at.
    pub check: &'a Check,
    /// Whom.
    pub address: Address,
    /// The deadline, connect to end.
    pub timeout: Duration,
    /// Makes the prompt of a completion unlike any other: never the same twice.
    pub salt: u64,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// When the probe began.
    pub started: MonoTime,
    /// When it ended.
    pub ended: MonoTime,
    /// How it ended.
    pub outcome: Outcome,
    /// Why.
    pub detail: Detail,
    /// Stage timings.
    pub timings: Timings,
    /// True if it was made on a connection of its own.
    pub fresh: bool,
    /// True if a kept connection turned out dead before any byte of the answer, and the question was put once more
    /// on a fresh one.
    pub retried: bool,
}

/// The way a scheduler has its questions answered. Tests put a script here.
pub trait Ask: Clone + Send + 'static {
    /// What is kept between two questions to one target.
    type Kept: Send + 'static;

    /// Puts `role`'s question to `target`, by `timeout`. Dropping the future must undo everything.
    fn ask(
        &self,
        target: &Target,
        role: Role,
        timeout: Duration,
        kept: Option<Self::Kept>,
    ) -> impl Future<Output = (Answer, Option<Self::Kept>)> + Send;

    /// Waits until the peer ends `kept`, which nobody uses meanwhile. Dropping the future changes nothing.
    fn ended(kept: &mut Self::Kept) -> impl Future<Output = ()> + Send;
}

/// Asks over real sockets.
#[derive(Debug, Clone)]
pub struct Sockets {
    clock: Clock,
    /// The salt of the next question; clones take from the same.
    salt: Arc<AtomicU64>,
}

impl Sockets {
    /// Takes the time from `clock` and makes its prompts from `seed`: another one, other prompts.
    pub fn new(clock: Clock, seed: u64) -> Self {
        Self { clock, salt: Arc::new(AtomicU64::new(seed)) }
    }
}

impl Ask for Sockets {
    type Kept = Kept;

    async fn ask(
        &self,
        target: &Target,
        role: Role,
        timeout: Duration,
        kept: Option<Kept>,
    ) -> (Answer, Option<Kept>) {
        // Only a configured role is ever asked; without a check, the question is ours to get right.
        let check = target.checks.get(role).unwrap_or(&target.checks.readiness);
        let salt = self.salt.fetch_add(1, Ordering::Relaxed);
        ask(self.clock, Question { check, address: target.address, timeout, salt }, kept).await
    }

    async fn ended(kept: &mut Kept) {
        kept.ended().await;
    }
}

/// Puts one question, on `kept` if that is a living connection of the right kind, and gives back what to keep.
///
/// Ends at the deadline at the latest; dropped earlier, it leaves nothing behind.
pub async fn ask(clock: Clock, question: Question<'_>, kept: Option<Kept>) -> (Answer, Option<Kept>) {
    let mut trace = Trace::start(clock);
    let deadline = clock.instant(trace.started + question.timeout);
    let result = timeout_at(deadline, put(&question, kept, &mut trace)).await;
    let total = trace.elapsed();
    let (verdict, kept) = match result {
        Ok(Ok((verdict, kept))) => (verdict, kept),
        Ok(Err(failure)) => (trace.denied.take().unwrap_or_else(|| failure.verdict(trace.stage)), None),
        Err(_) => {
            let stuck = (Outcome::Timeout, Detail::Stuck(trace.stuck()));
            (trace.denied.take().unwrap_or(stuck), None)
        }
    };
    let verdict = weigh(verdict, question.check.budget, total);
    let (outcome, detail) = blame_ourselves_if_stalled(verdict, question.timeout, total, trace.stage);
    let Trace { started, fresh, retried, connect, headers, first_token, largest_gap, .. } = trace;
    let timings = Timings { connect, headers, first_token, largest_gap, total };
    (Answer { started, ended: started + total, outcome, detail, timings, fresh, retried }, kept)
}

async fn put(
    question: &Question<'_>,
    kept: Option<Kept>,
    trace: &mut Trace,
) -> Result<(Verdict, Option<Kept>), Failure> {
    match &question.check.kind {
        CheckKind::Tcp => tcp::put(question.address, trace).await.map(|verdict| (verdict, None)),
        CheckKind::Http(check) => http::put(check, question.address, kept, trace).await,
        CheckKind::OpenAi(check) => {
            let asked = Asked { role: question.check.role, address: question.address, salt: question.salt };
            openai::put(check, asked, trace).await.map(|verdict| (verdict, None))
        }
    }
}

/// An answer later than `budget` is slow.
fn weigh((outcome, detail): Verdict, budget: Option<Duration>, total: Duration) -> Verdict {
    let late = budget.is_some_and(|budget| total > budget);
    if outcome == Outcome::Ok && late { (Outcome::Slow, Detail::Late(Stage::End)) } else { (outcome, detail) }
}

/// Whatever rests on elapsed time is void if the deadline itself was noticed too late.
fn blame_ourselves_if_stalled(
    (outcome, detail): Verdict,
    timeout: Duration,
    total: Duration,
    stage: Stage,
) -> Verdict {
    let overrun = total.saturating_sub(timeout);
    match outcome {
        Outcome::Timeout | Outcome::Slow if overrun > STALLED => {
            let why = format!(
                "tidegate itself stood still: the deadline was noticed {} ms late",
                overrun.as_millis()
            );
            (Outcome::Unknown, Detail::Io(stage, Arc::from(why)))
        }
        Outcome::Ok
        | Outcome::Slow
        | Outcome::Timeout
        | Outcome::Unhealthy
        | Outcome::Unreachable
        | Outcome::Misconfigured
        | Outcome::Unknown => (outcome, detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn only_an_answer_can_be_over_budget() {
        let weighed = |outcome| weigh((outcome, Detail::None), Some(MS(300)), MS(400)).0;
        assert_eq!(weighed(Outcome::Ok), Outcome::Slow);
        assert_eq!(weighed(Outcome::Unhealthy), Outcome::Unhealthy);
        assert_eq!(weigh((Outcome::Ok, Detail::None), Some(MS(400)), MS(400)).0, Outcome::Ok);
        assert_eq!(weigh((Outcome::Ok, Detail::None), None, MS(400)).0, Outcome::Ok);
    }

    #[test]
    fn a_deadline_noticed_late_is_our_own_fault() {
        let judged = |outcome, total| {
            blame_ourselves_if_stalled((outcome, Detail::None), MS(1_000), MS(total), Stage::Headers).0
        };
        assert_eq!(judged(Outcome::Timeout, 1_020), Outcome::Timeout);
        assert_eq!(judged(Outcome::Timeout, 4_000), Outcome::Unknown);
        assert_eq!(judged(Outcome::Slow, 4_000), Outcome::Unknown);
        assert_eq!(judged(Outcome::Ok, 4_000), Outcome::Ok);
        assert_eq!(judged(Outcome::Unreachable, 4_000), Outcome::Unreachable);
    }
}
