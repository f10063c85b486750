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
    /// Pause before the next probe after `unreachable` or `timeout` of a serving instance; of an `inference` check
    /// after any failure.
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
    /// Has a completion streamed, in the way of OpenAI's API.
    OpenAi(OpenAiCheck),
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

/// A completion to be streamed. Every prompt begins with a prefix that no other has: a cached one would hide the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAiCheck {
    /// Origin-form target; ends in `/completions` or `/chat/completions`, and says by that which of them is asked.
    pub path: Arc<str>,
    /// The model's name.
    pub model: Arc<str>,
    /// What follows the prefix.
    pub prompt: Arc<str>,
    /// The most tokens that are asked for.
    pub max_tokens: NonZeroU32,
    /// Host header; the instance's address if absent.
    pub host: Option<Arc<str>>,
    /// Further request headers.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// How long each stage may take before the answer is `slow`.
    pub budgets: StageBudgets,
}

impl OpenAiCheck {
    /// True if messages are sent, not a bare prompt.
    pub fn is_chat(&self) -> bool {
        let path = self.path.split_once('?').map_or(&*self.path, |(path, _)| path);
        path.ends_with("/chat/completions")
    }
}

/// Budgets of a completion's stages, from the probe's start; the gap from token to token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageBudgets {
    /// Until the connection stands.
    pub connect: Option<Duration>,
    /// Until the answer's head.
    pub headers: Option<Duration>,
    /// Until the first token.
    pub first_token: Option<Duration>,
    /// Between two tokens.
    pub gap: Option<Duration>,
    /// Until the stream's end.
    pub end: Option<Duration>,
}

/// The prompts that an instance answers before it serves for the first time in its lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warmup {
    /// The question. Its `interval` is the pause between two prompts, from end to start, and its `recover_interval`
    /// the one after a prompt without a good answer.
    pub check: Check,
    /// So many prompts at least.
    pub prompts: NonZeroU32,
    /// So many of them, the last ones, within `expect_latency` each.
    pub last: NonZeroU32,
    /// From the start of a prompt to the end of its answer.
    pub expect_latency: Duration,
}

/// The checks of a cluster, at most one for each role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// Gates the others, if configured.
    pub startup: Option<Check>,
    /// Comes between the first `readiness` and serving, if configured.
    pub warmup: Option<Warmup>,
    /// Moves traffic.
    pub readiness: Check,
    /// Walks the user's path; moves traffic as `readiness` does, if configured.
    pub inference: Option<Check>,
}

impl Checks {
    /// The check of `role`, if configured.
    pub const fn get(&self, role: Role) -> Option<&Check> {
        match role {
            Role::Startup => self.startup.as_ref(),
            Role::Warmup => match &self.warmup {
                Some(warmup) => Some(&warmup.check),
                None => None,
            },
            Role::Readiness => Some(&self.readiness),
            Role::Inference => self.inference.as_ref(),
        }
    }
}

/// What an instance that was ejected again soon after its return has to show before it serves once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damping {
    /// How long it must answer well after a second ejection; twice as long after each further one.
    pub recovery_time: Duration,
    /// The longest that is asked for. Having served as long makes up for all ejections before.
    pub max_recovery_time: Duration,
}
