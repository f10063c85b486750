//! How fast probes may start: a cap over every second, kept as a schedule of moments.
//!
//! Pure: no I/O.
//!
//! This is a token bucket in its clockless form (GCRA): one moment says everything, nothing is refilled by a timer.
//! Called by the timetable alone.

use std::time::Duration;

use crate::model::MonoTime;

/// A burst may hold this part of a second's starts (20 ms), so that timers with a grain of a millisecond still
/// reach the cap.
const BURST_PART: u32 = 50;

/// At most `per_second` starts in any half-open second.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartRate {
    /// From start to start at the steady rate.
    gap: Duration,
    /// How far ahead of the steady rate a burst may run.
    slack: Duration,
    /// When the next start would be due at the steady rate.
    next: MonoTime,
}

impl StartRate {
    /// A cap of `per_second`; 0 counts as 1.
    pub(super) fn new(per_second: u32) -> Self {
        let cap = per_second.max(1);
        let burst = (cap / BURST_PART).max(1);
        // A full burst and a second at the steady rate together make exactly the cap.
        let steady = cap - (burst - 1);
        let gap = Duration::from_nanos(1_000_000_000_u64.div_ceil(u64::from(steady)));
        Self { gap, slack: gap.saturating_mul(burst - 1), next: MonoTime::ZERO }
    }

    /// The same past under another cap.
    pub(super) fn with_cap(self, per_second: u32) -> Self {
        Self { next: self.next, ..Self::new(per_second) }
    }

    /// From when on one more start is allowed.
    pub(super) fn allowed_at(&self) -> MonoTime {
        self.next - self.slack
    }

    /// Counts a start at `now`, which must not be before [`Self::allowed_at`].
    pub(super) fn take(&mut self, now: MonoTime) {
        self.next = self.next.max(now) + self.gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_second_has_more_starts_than_the_cap(
            cap in 1_u32..20_000,
            steps in proptest::collection::vec(1_u64..400, 1..60),
        ) {
            let mut rate = StartRate::new(cap);
            let mut now = 5_000_000_u64; // µs
            let mut starts = Vec::new();
            for step in steps {
                now += step * 1_000;
                let at = MonoTime::from_start(Duration::from_micros(now));
                while rate.allowed_at() <= at {
                    rate.take(at);
                    starts.push(now);
                }
            }
            let mut first = 0;
            for (i, at) in starts.iter().enumerate() {
                while starts[first] + 1_000_000 <= *at {
                    first += 1;
                }
                prop_assert!(i + 1 - first <= cap as usize, "{} starts under a cap of {cap}", i + 1 - first);
            }
        }
    }

    #[test]
    fn the_cap_is_reached_on_a_timer_of_one_millisecond() {
        let mut rate = StartRate::new(5_000);
        let mut starts = 0;
        for ms in 0..10_000 {
            let now = MonoTime::from_millis(ms);
            while rate.allowed_at() <= now {
                rate.take(now);
                starts += 1;
            }
        }
        assert!((48_000..=50_000).contains(&starts), "{starts}");
    }
}
