//! Logs of one test, captured by the test runner and shown when the test fails.
//!
//! `RUST_LOG` chooses what is kept (`info` without it). Per test and thread: no global subscriber is set, so tests
//! that run side by side do not see each other. Used by tests on the current-thread runtime.

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;

/// Logs of this thread go to the test's output until the guard is dropped.
#[must_use = "logs stop when the guard is dropped"]
pub fn capture() -> DefaultGuard {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().finish();
    tracing::subscriber::set_default(subscriber)
}
