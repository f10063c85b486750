//! How far one probe has come, and what its ways to fail say about the peer.
//!
//! Shared by everything that puts a question; it sends nothing itself.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::model::{Detail, MonoTime, Outcome, Stage};

/// Too many open files, in this process or this machine: the same numbers on every Unix.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];

/// `ENOBUFS`.
const NO_BUFFERS: i32 = if cfg!(target_os = "linux") { 105 } else { 55 };

/// So many tokens (fewer can come together by chance), so close together, after so long a wait: 5,000 in a second is
/// more than any model generates for one prompt that it has to be waited for.
const AT_ONCE_TOKENS: u32 = 4;
const AT_ONCE_PER_TOKEN: Duration = Duration::from_micros(200);
const AT_ONCE_WAIT: Duration = Duration::from_millis(50);

/// An outcome with its evidence.
pub(super) type Verdict = (Outcome, Detail);

/// Why there is no answer to judge.
#[derive(Debug)]
pub(super) enum Failure {
    /// The operating system's word, or a connection that ended too early.
    Io(io::Error),
    /// The peer broke its protocol, or said too much.
    Protocol(Arc<str>),
    /// The question cannot be put like this.
    Misconfigured(Arc<str>),
}

impl Failure {
    /// The connection ended before the answer did.
    pub(super) fn closed() -> Self {
        Self::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before the answer was complete"))
    }

    /// What it says about the peer, in `stage`.
    pub(super) fn verdict(self, stage: Stage) -> Verdict {
        match self {
            Self::Io(error) if is_local_fault(&error) => {
                (Outcome::Unknown, Detail::Io(stage, Arc::from(error.to_string())))
            }
            Self::Io(error) => (Outcome::Unreachable, Detail::Io(stage, Arc::from(error.to_string()))),
            Self::Protocol(what) => (Outcome::Unhealthy, Detail::Protocol(what)),
            Self::Misconfigured(what) => (Outcome::Misconfigured, Detail::Protocol(what)),
        }
    }
}

/// How far a probe has come. It outlives the probe's future, so a deadline can tell what was stuck.
#[derive(Debug)]
pub(super) struct Trace {
    clock: Clock,
    pub(super) started: MonoTime,
    pub(super) stage: Stage,
    pub(super) connect: Option<Duration>,
    pub(super) headers: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    pub(super) largest_gap: Option<Duration>,
    last_token: Option<Duration>,
    tokens: u32,
    /// The longest silence between two tokens that is no stall.
    pub(super) gap_budget: Option<Duration>,
    /// False while the question is on a kept connection.
    pub(super) fresh: bool,
    pub(super) retried: bool,
    /// A no that the answer's head has said already: its body can no longer turn it into something else.
    pub(super) denied: Option<Verdict>,
}

impl Trace {
    /// A probe begins.
    pub(super) fn start(clock: Clock) -> Self {
        Self {
            clock,
            started: clock.now(),
            stage: Stage::Connect,
            connect: None,
            headers: None,
            first_token: None,
            largest_gap: None,
            last_token: None,
            tokens: 0,
            gap_budget: None,
            fresh: true,
            retried: false,
            denied: None,
        }
    }

    /// Time since it began.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    /// The question goes over a kept connection.
    pub(super) fn reuses(&mut self) {
        self.fresh = false;
        self.stage = Stage::Headers;
    }

    /// The kept connection was dead; everything from the beginning on a fresh one.
    pub(super) fn starts_over(&mut self) {
        self.fresh = true;
        self.retried = true;
        self.stage = Stage::Connect;
    }

    /// The connection stands.
    pub(super) fn connected(&mut self) {
        self.connect = Some(self.elapsed());
        self.stage = Stage::Headers;
    }

    /// The answer's head is complete, and by itself means `verdict`.
    pub(super) fn answered(&mut self, verdict: &Verdict) {
        self.headers = Some(self.elapsed());
        self.stage = Stage::Body;
        if verdict.0 != Outcome::Ok {
            self.denied = Some(verdict.clone());
        }
    }

    /// A token came.
    pub(super) fn token(&mut self) {
        let now = self.elapsed();
        match self.last_token {
            None => self.first_token = Some(now),
            Some(last) => self.largest_gap = self.largest_gap.max(Some(now.saturating_sub(last))),
        }
        self.last_token = Some(now);
        self.tokens = self.tokens.saturating_add(1);
        self.stage = Stage::Gap;
    }

    /// True if all tokens came in one piece after a wait: something on the way collects the stream, and the time to
    /// the first token is the time to the last. Nobody generates a token in so short a time, and an engine whose
    /// whole answer takes no time is not waited for.
    pub(super) fn came_at_once(&self) -> bool {
        let (Some(first), Some(last)) = (self.first_token, self.last_token) else { return false };
        let took = last.saturating_sub(first);
        self.tokens >= AT_ONCE_TOKENS
            && took <= AT_ONCE_PER_TOKEN * (self.tokens - 1)
            && first >= AT_ONCE_WAIT
    }

    /// What keeps the probe from ending: its stage, but if tokens still flow, that they do not end.
    pub(super) fn stuck(&self) -> Stage {
        let silence = self.elapsed().saturating_sub(self.last_token.unwrap_or_default());
        let stall = self.gap_budget.or(self.largest_gap).unwrap_or_default();
        if self.stage == Stage::Gap && silence <= stall { Stage::End } else { self.stage }
    }
}

/// True if `error` tells about this machine and not about the peer: no descriptors, memory or ports, not allowed,
/// no route.
pub(super) fn is_local_fault(error: &io::Error) -> bool {
    let by_number =
        error.raw_os_error().is_some_and(|code| NO_DESCRIPTORS.contains(&code) || code == NO_BUFFERS);
    by_number
        || matches!(
            error.kind(),
            ErrorKind::OutOfMemory
                | ErrorKind::AddrNotAvailable
                | ErrorKind::PermissionDenied
                | ErrorKind::NetworkUnreachable
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_shortages_are_told_from_the_peers_refusals() {
        // Linux numbers: EPERM ENOMEM EACCES ENFILE EMFILE EADDRNOTAVAIL ENETUNREACH ENOBUFS.
        for code in [1, 12, 13, 23, 24, 99, 101, 105] {
            assert!(is_local_fault(&io::Error::from_raw_os_error(code)), "{code}");
        }
        // EPIPE ECONNABORTED ECONNRESET ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH.
        for code in [32, 103, 104, 110, 111, 112, 113] {
            assert!(!is_local_fault(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
