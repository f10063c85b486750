//! How fast connections are accepted, and how often trouble with that is logged.
//! Pure: no I/O.

use std::time::Duration;

use crate::model::MonoTime;

/// Connections accepted in a second, and at once: enough for any fleet to come back within seconds of a restart, few
/// enough that those which are there already are not kept waiting by handshakes.
const ACCEPTS_PER_SECOND: u32 = 2_000;
const ACCEPTS_AT_ONCE: u32 = 1_000;
/// Pause after a failed accept: the process is out of descriptors, and trying at once would only burn a core.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two lines about the same trouble.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// When the next connection may be accepted.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next: MonoTime,
}

impl Pace {
    pub(super) fn next(&self) -> MonoTime {
        self.next
    }

    pub(super) fn accepted(&mut self, now: MonoTime) {
        let each = Duration::from_secs(1) / ACCEPTS_PER_SECOND;
        let earliest = MonoTime::from_start(now.since_start().saturating_sub(each * ACCEPTS_AT_ONCE));
        self.next = self.next.max(earliest) + each;
    }

    pub(super) fn failed(&mut self, now: MonoTime) {
        self.next = self.next.max(now + PAUSE);
    }
}

/// Trouble that may come thousands of times in a second, and is worth a line now and then.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    next_line: MonoTime,
    unsaid: u64,
}

impl Trouble {
    /// It came once more. `Some` is how often since the last line, if there is to be another.
    pub(super) fn again(&mut self, now: MonoTime) -> Option<u64> {
        self.unsaid += 1;
        if now < self.next_line {
            return None;
        }
        self.next_line = now + LINE_EVERY;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_connections_is_taken_in_at_a_bounded_pace() {
        let mut pace = Pace::default();
        let mut now = MonoTime::from_millis(60_000);
        let begun = now;
        let mut at_once = 0;
        for _ in 0..5_000 {
            if pace.next > now {
                now = pace.next;
            } else if now == begun {
                at_once += 1;
            }
            pace.accepted(now);
        }
        assert_eq!(at_once, ACCEPTS_AT_ONCE + 1);
        assert_eq!(
            now.since(begun).as_millis(),
            u128::from((5_000 - ACCEPTS_AT_ONCE) * 1_000 / ACCEPTS_PER_SECOND) - 1
        );
        pace.accepted(now + Duration::from_secs(60));
        assert!(pace.next < now + Duration::from_secs(60), "a quiet time is not held against anybody");
    }

    #[test]
    fn a_failed_accept_is_followed_by_a_pause() {
        let mut pace = Pace::default();
        let now = MonoTime::from_millis(60_000);
        pace.failed(now);
        assert_eq!(pace.next(), now + PAUSE);
        pace.accepted(now + PAUSE);
        assert!(pace.next() > now + PAUSE, "no credit is gained by failing");
    }

    #[test]
    fn trouble_is_logged_at_once_and_then_every_ten_seconds_with_a_count() {
        let mut trouble = Trouble::default();
        let lines: Vec<_> = (0..250).filter_map(|n| trouble.again(MonoTime::from_millis(n * 100))).collect();
        assert_eq!(lines, [1, 100, 100]);
    }
}
