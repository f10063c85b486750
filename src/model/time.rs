//! Time as a parameter.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on the monotonic clock: the time since this process started.
///
/// There is no clock in it. Pure code receives a `MonoTime`, shells ask [`crate::clock::Clock`] for one. All
/// arithmetic saturates: no clock reading can make it panic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonoTime(Duration);

impl MonoTime {
    /// The process start.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The moment `since_start` after the process start.
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// The moment `ms` milliseconds after the process start.
    pub const fn from_millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// Time since the process start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for MonoTime {
    type Output = Self;

    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d))
    }
}

impl Sub<Duration> for MonoTime {
    type Output = Self;

    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(d))
    }
}

impl fmt::Debug for MonoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}
