//! What a probe saw.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{InstanceKey, MonoTime};

/// What a check is asked for. Each role of a cluster has at most one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Has the process come up? Gates all other checks of a lifetime; once passed it is not asked again in it.
    Startup,
    /// Real prompts before it serves for the first time in its lifetime.
    Warmup,
    /// May it take work? Moves traffic, never restarts.
    Readiness,
    /// Does it do the work? The user's path, end to end.
    Inference,
}

impl Role {
    /// All roles, in order.
    pub const ALL: [Self; 4] = [Self::Startup, Self::Warmup, Self::Readiness, Self::Inference];

    /// The role's key in the config.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Warmup => "warmup",
            Self::Readiness => "readiness",
            Self::Inference => "inference",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identifies one registration of one lifetime of one instance under one set of checks. An observation made under
/// another epoch says nothing about the present one and is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One probe's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Answered as expected, within budget.
    Ok,
    /// Answered, but over budget or with "too many requests": less traffic, never ejected for it.
    Slow,
    /// No answer by the deadline.
    Timeout,
    /// An explicit no.
    Unhealthy,
    /// No connection, or it broke before an answer.
    Unreachable,
    /// Our own probe is wrong (credential, path, method). Never changes an instance's health, never admits one.
    Misconfigured,
    /// The prober itself is sick (no descriptors, no ports). Never changes an instance's health, never admits one.
    Unknown,
}

impl Outcome {
    /// The word used in logs, metrics and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Slow => "slow",
            Self::Timeout => "timeout",
            Self::Unhealthy => "unhealthy",
            Self::Unreachable => "unreachable",
            Self::Misconfigured => "misconfigured",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A stage of a probe, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Until the connection stands.
    Connect,
    /// Until the answer's head is complete.
    Headers,
    /// Until the answer's end.
    Body,
    /// Until the first token of a completion.
    FirstToken,
    /// Between two tokens of a completion.
    Gap,
    /// Until the end of a completion.
    End,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Headers => "headers",
            Self::Body => "body",
            Self::FirstToken => "first token",
            Self::Gap => "gap between tokens",
            Self::End => "stream",
        })
    }
}

/// The evidence behind an outcome, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detail {
    /// Nothing to add.
    None,
    /// The HTTP status received.
    Status(u16),
    /// A redirect, which is never followed: it hides the truth about the path asked.
    Redirect(u16),
    /// The stage that did not end in time.
    Stuck(Stage),
    /// The stage that ended in time, but over its own budget.
    Late(Stage),
    /// All tokens of a completion came in one piece: something on the way collects the stream, so that its stages
    /// say nothing.
    AtOnce,
    /// An operating-system error in a stage, in its own words.
    Io(Stage, Arc<str>),
    /// The peer's answer broke its protocol, or was too large.
    Protocol(Arc<str>),
    /// An error that the instance reported inside an answer of status 200, in its own words.
    InBand(Arc<str>),
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Status(code) => write!(f, "status {code}"),
            Self::Redirect(code) => write!(f, "redirect (status {code}, not followed)"),
            Self::Stuck(Stage::FirstToken) => f.write_str("no first token by the deadline"),
            Self::Stuck(Stage::Gap) => f.write_str("no further token by the deadline"),
            Self::Stuck(stage) => write!(f, "no end of {stage} by the deadline"),
            Self::Io(stage, error) => write!(f, "{stage}: {error}"),
            Self::Late(Stage::End) => f.write_str("the whole answer over its budget"),
            Self::Late(stage) => write!(f, "{stage} over its budget"),
            Self::AtOnce => {
                f.write_str("not streaming: all tokens came at once, something on the way collects them")
            }
            Self::Protocol(what) => f.write_str(what),
            Self::InBand(what) => write!(f, "error in the stream: {what}"),
        }
    }
}

/// How long each stage took, from the probe's start; `None` where the stage was not reached or not needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timings {
    /// Until connected; `None` on a reused connection.
    pub connect: Option<Duration>,
    /// Until the answer's head.
    pub headers: Option<Duration>,
    /// Until the first token of a completion.
    pub first_token: Option<Duration>,
    /// The largest gap between two tokens; `None` with fewer than two.
    pub largest_gap: Option<Duration>,
    /// Until the end of the probe, however it ended.
    pub total: Duration,
}

/// One probe of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Whom it is about.
    pub key: InstanceKey,
    /// The registration it was made under.
    pub epoch: Epoch,
    /// Which check asked.
    pub role: Role,
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
}
