//! The only source of `now`.
//!
//! Shells ask it, pure code is told. It follows tokio's clock, so `start_paused` tests are deterministic.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::MonoTime;

/// A monotonic clock that starts at zero. Clones agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock that reads zero now.
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// The time since the start.
    pub fn now(&self) -> MonoTime {
        MonoTime::from_start(self.epoch.elapsed())
    }

    /// `at` as tokio's instant, for `sleep_until`. Moments more than ten years away are brought that near: tokio
    /// would otherwise panic on overflow.
    pub fn instant(&self, at: MonoTime) -> Instant {
        const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
        self.epoch + at.since_start().min(FAR)
    }

    /// Sleeps until `at`.
    pub async fn sleep_until(&self, at: MonoTime) {
        tokio::time::sleep_until(self.instant(at)).await;
    }
}
