//! The protocol state of one stream, where others can look in.
//!
//! Its stream owns it and is alone in changing what the protocol says. From outside it is asked what the client holds,
//! whatever the client's connection is at: one that hangs is the one that people ask about. The lock is held for one
//! step of the protocol or one look, never over an await. Under it an entry of the table of clients may be taken, and
//! never the other way round.

#![expect(
    clippy::disallowed_types,
    reason = "looked into from other threads; no channel answers for a client that hangs"
)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};

use super::stream::{Finding, Holding, Protocol};
use crate::snapshot::Snapshot;

/// What can be asked of a stream from outside.
pub(super) trait Inspect: Send + Sync {
    /// What the client holds, of all that it asks for.
    fn holdings(&self, snapshot: &Snapshot) -> Vec<Holding>;

    /// Compares what the client holds with the truth, and sends what was found missing. Nothing ever should be.
    fn audit(&self, snapshot: &Snapshot) -> Vec<Finding>;
}

#[derive(Debug)]
struct Inner<P> {
    protocol: P,
    /// Wakes the stream.
    waker: Waker,
}

/// The protocol state of one stream.
#[derive(Debug)]
pub(super) struct Machine<P>(Arc<Mutex<Inner<P>>>);

impl<P: Protocol> Machine<P> {
    pub(super) fn new(protocol: P) -> Self {
        Self(Arc::new(Mutex::new(Inner { protocol, waker: Waker::noop().clone() })))
    }

    /// For a look from outside, as long as the stream is there.
    pub(super) fn inspect(&self) -> Weak<dyn Inspect> {
        let this: Weak<Mutex<Inner<P>>> = Arc::downgrade(&self.0);
        this
    }

    /// One step.
    pub(super) fn with<T>(&self, step: impl FnOnce(&mut P) -> T) -> T {
        step(&mut lock(&self.0).protocol)
    }

    /// The stream has nothing to do until this wakes it.
    pub(super) fn sleeps(&self, cx: &Context<'_>) {
        lock(&self.0).waker.clone_from(cx.waker());
    }
}

impl<P: Protocol> Inspect for Mutex<Inner<P>> {
    fn holdings(&self, snapshot: &Snapshot) -> Vec<Holding> {
        lock(self).protocol.holdings(snapshot)
    }

    fn audit(&self, snapshot: &Snapshot) -> Vec<Finding> {
        let (findings, waker) = {
            let mut inner = lock(self);
            (inner.protocol.audit(snapshot), inner.waker.clone())
        };
        if !findings.is_empty() {
            waker.wake();
        }
        findings
    }
}

/// A panic inside a step would leave the stream's own connection dead, and nobody else.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
