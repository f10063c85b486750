//! How far the warm-up of one lifetime has come.

use crate::model::{Observation, Outcome, Warmup};

/// Prompts answered so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Warmth {
    /// Prompts answered, in time or not.
    pub(super) answered: u32,
    /// Of those, the last ones in a row that came within the expected latency.
    pub(super) in_time: u32,
}

impl Warmth {
    /// Counts one prompt. A failure breaks the run of those in time; what was answered stays answered.
    pub(super) fn count(&mut self, seen: &Observation, warmup: &Warmup) {
        match seen.outcome {
            Outcome::Ok => {
                self.answered = self.answered.saturating_add(1);
                let in_time = seen.timings.total <= warmup.expect_latency;
                self.in_time = if in_time { self.in_time.saturating_add(1) } else { 0 };
            }
            Outcome::Slow => {
                // "Too many requests" is slow too, but generates nothing.
                self.answered = self.answered.saturating_add(u32::from(seen.timings.first_token.is_some()));
                self.in_time = 0;
            }
            Outcome::Timeout | Outcome::Unhealthy | Outcome::Unreachable => self.in_time = 0,
            Outcome::Misconfigured | Outcome::Unknown => {}
        }
    }

    /// True once the instance may serve.
    pub(super) fn is_enough(self, warmup: &Warmup) -> bool {
        self.answered >= warmup.prompts.get() && self.in_time >= warmup.last.get()
    }
}
