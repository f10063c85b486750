//! Every default and every limit, in one place. `docs/config.md` lists them for operators.
//!
//! Pure: no I/O. Read by [`super::validate`] alone.

use std::ops::RangeInclusive;
use std::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// A default and what is accepted instead.
#[derive(Debug, Clone)]
pub(super) struct Setting<T> {
    pub(super) default: T,
    pub(super) limits: RangeInclusive<T>,
}

const fn setting<T: Copy>(default: T, min: T, max: T) -> Setting<T> {
    Setting { default, limits: min..=max }
}

/// `listen.xds` and `listen.health`. Loopback: nobody is served who was not meant.
pub(super) const LISTEN_XDS: &str = "127.0.0.1:18000";
pub(super) const LISTEN_ADMIN: &str = "127.0.0.1:18001";
pub(super) const LISTEN_HEALTH: &str = "127.0.0.1:18003";

pub(super) const INTERVAL: Setting<Duration> = setting(s(1), ms(10), s(3600));
/// The default is lowered to `interval`.
pub(super) const TIMEOUT: Setting<Duration> = setting(ms(500), ms(1), s(300));
pub(super) const HEALTHY_THRESHOLD: Setting<u64> = setting(2, 1, 1000);
/// For `startup`: it is asked until it passes once.
pub(super) const STARTUP_HEALTHY_THRESHOLD: Setting<u64> = setting(1, 1, 1000);
pub(super) const UNHEALTHY_THRESHOLD: Setting<u64> = setting(3, 1, 1000);
/// The default is lowered to `interval`.
pub(super) const CONFIRM_INTERVAL: Setting<Duration> = setting(ms(100), ms(10), s(3600));
/// The least time that a failing run must span: zero is allowed, for those who want the count alone.
pub(super) const MIN_FAILING_UNREACHABLE: Setting<Duration> = setting(ms(200), ms(0), s(600));
pub(super) const MIN_FAILING_TIMEOUT: Setting<Duration> = setting(s(1), ms(0), s(600));

/// A completion costs what a user's request costs: rarely, patiently, and each failure asked again soon.
pub(super) const INFERENCE_INTERVAL: Setting<Duration> = setting(s(30), ms(10), s(3600));
/// The default is lowered to `interval`.
pub(super) const INFERENCE_TIMEOUT: Setting<Duration> = setting(s(10), ms(1), s(300));
pub(super) const INFERENCE_UNHEALTHY_THRESHOLD: Setting<u64> = setting(2, 1, 1000);
/// Each default is lowered to `interval`.
pub(super) const INFERENCE_CONFIRM_INTERVAL: Setting<Duration> = setting(s(5), ms(10), s(3600));
pub(super) const INFERENCE_RECOVER_INTERVAL: Setting<Duration> = setting(s(5), ms(10), s(3600));

pub(super) const WARMUP_PROMPTS: Setting<u64> = setting(3, 1, 1000);
/// The default is lowered to `prompts`.
pub(super) const WARMUP_LAST: Setting<u64> = setting(2, 1, 1000);
/// The default is lowered to `timeout`.
pub(super) const WARMUP_EXPECT_LATENCY: Setting<Duration> = setting(s(5), ms(1), s(300));
pub(super) const WARMUP_INTERVAL: Setting<Duration> = setting(ms(100), ms(0), s(3600));
pub(super) const WARMUP_RECOVER_INTERVAL: Setting<Duration> = setting(s(1), ms(10), s(3600));
pub(super) const WARMUP_TIMEOUT: Setting<Duration> = setting(s(30), ms(1), s(300));

pub(super) const PROMPT: &str = "Count from one to ten.";
pub(super) const MAX_TOKENS: Setting<u64> = setting(8, 1, 1024);
/// The default is never used: without the key there is no budget.
pub(super) const STAGE_BUDGET: Setting<Duration> = setting(s(2), ms(1), s(300));

pub(super) const MAX_EJECTED_PERCENT: Setting<u64> = setting(50, 0, 100);
pub(super) const MIN_SERVING: Setting<u64> = setting(1, 0, 100_000);
/// Not 0: a slow instance keeps some traffic, else it would be ejected without anybody deciding so.
pub(super) const SLOW_WEIGHT: Setting<u64> = setting(25, 1, 100);

pub(super) const RECOVERY_TIME: Setting<Duration> = setting(s(5), s(0), s(3600));
/// The default is raised to `recovery_time`.
pub(super) const MAX_RECOVERY_TIME: Setting<Duration> = setting(s(60), s(0), s(3600));

pub(super) const CONNECT_TIMEOUT: Setting<Duration> = setting(s(1), ms(1), s(60));
const BREAKER: Setting<u64> = setting(100_000, 1, u32::MAX as u64);
pub(super) const MAX_CONNECTIONS: Setting<u64> = BREAKER;
pub(super) const MAX_PENDING_REQUESTS: Setting<u64> = BREAKER;
pub(super) const MAX_REQUESTS: Setting<u64> = BREAKER;
pub(super) const MAX_RETRIES: Setting<u64> = setting(10_000, 0, u32::MAX as u64);

/// 0 is no limit: an answer of a model may take long.
pub(super) const ROUTE_TIMEOUT: Setting<Duration> = setting(s(0), s(0), s(86_400));
pub(super) const IDLE_TIMEOUT: Setting<Duration> = setting(s(300), s(0), s(86_400));
pub(super) const NUM_RETRIES: Setting<u64> = setting(2, 0, 100);

pub(super) const MAX_IN_FLIGHT: Setting<u64> = setting(4096, 1, 100_000);
pub(super) const MAX_STARTS_PER_SECOND: Setting<u64> = setting(20_000, 1, 1_000_000);

pub(super) const MERGE_WINDOW: Setting<Duration> = setting(ms(100), ms(0), s(10));
pub(super) const FIRST_VERDICT_WAIT: Setting<Duration> = setting(s(15), ms(0), s(600));
/// 0 is never: one tidegate alone has nobody to share its clients with.
pub(super) const MAX_CONNECTION_AGE: Setting<Duration> = setting(s(0), s(0), s(86_400));
