//! Checks: the configured questions.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::{Outcome, Role};

/// One configured question and how its answers count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What it is asked for.
    pub role: Role,
    /// How it is asked.
    pub kind: CheckKind,
    /// From start to start while serving.
    pub interval: Duration,
    /// The deadline of one probe, connect to end.
    pub timeout: Duration,
    /// Answers later than this are `slow`; at most `timeout`.
    pub budget: Option<Duration>,
    /// Consecutive answers that bring an instance back.
    pub healthy_threshold: NonZeroU32,
    /// Consecutive failures that make the check critical.
    pub unhealthy_threshold: NonZeroU32,
    /// Pause before the next probe after `unreachable` or `timeout` of a serving instance.
    pub confirm_interval: Duration,
    /// The deadline of such a probe.
    pub confirm_timeout: Duration,
    /// From start to start while not serving.
    pub recover_interval: Duration,
    /// How long the evidence of a failing run must span, whatever the count: a short pause ejects nobody.
    pub min_failing_time: MinFailingTime,
}

/// See [`Check::min_failing_time`]. Measured from the first failing probe's start to the last one's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinFailingTime {
    /// While the latest failure is `unreachable`.
    pub unreachable: Duration,
    /// While the latest failure is `timeout`.
    pub timeout: Duration,
}

impl MinFailingTime {
    /// The span that a failing run ending in `outcome` must have. An explicit no has the interval's own pace.
    pub const fn of(&self, outcome: Outcome) -> Duration {
        match outcome {
            Outcome::Unreachable => self.unreachable,
            Outcome::Timeout => self.timeout,
            Outcome::Ok | Outcome::Slow | Outcome::Unhealthy | Outcome::Misconfigured | Outcome::Unknown => {
                Duration::ZERO
            }
        }
    }
}

/// The way a check asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckKind {
    /// Connects, and that is the answer.
    Tcp,
    /// Sends one HTTP request.
    Http(HttpCheck),
}

/// An HTTP question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCheck {
    /// Origin-form target, beginning with `/`.
    pub path: Arc<str>,
    /// `GET`, `HEAD`, …
    pub method: http::Method,
    /// Host header (HTTP/1.1) or authority (HTTP/2); the instance's address if absent.
    pub host: Option<Arc<str>>,
    /// Statuses that mean yes.
    pub expected_statuses: Vec<RangeInclusive<u16>>,
    /// Protocol spoken.
    pub protocol: HttpProtocol,
    /// Keep the connection for the next probe.
    pub reuse_connection: bool,
    /// Further request headers.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
}

/// The protocol of an [`HttpCheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpProtocol {
    /// HTTP/1.1 over TCP.
    Http1,
    /// HTTP/2 with prior knowledge over TCP.
    H2c,
}

/// The checks of a cluster, at most one for each role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// Gates the others, if configured.
    pub startup: Option<Check>,
    /// Moves traffic.
    pub readiness: Check,
}

impl Checks {
    /// The check of `role`, if configured.
    pub const fn get(&self, role: Role) -> Option<&Check> {
        match role {
            Role::Startup => self.startup.as_ref(),
            Role::Readiness => Some(&self.readiness),
        }
    }
}
