//! One instance's health: evidence in, state out.
//!
//! Decides whether an instance is up, may serve, or must go, from consecutive observations alone. Pure: no I/O, no
//! clock, no other instance; what the fleet may afford is the policy's business. Called by the fleet engine for
//! every observation.
//!
//! ```text
//!             startup passes           readiness passes, then           a check critical
//!  Starting ────────────────► Warming ─ warmup or inference ─► Serving ──────────────────► Ejected
//!     ▲  (skipped without a startup check)                        ▲                           │
//!     │                                                           └─ readiness and inference ─┘
//!     └── a new lifetime, from any state; nothing is inherited        pass again
//! ```
//!
//! `warmup` and `inference` count where they are configured. A failing `inference` ejects like a failing `readiness`,
//! and neither outvotes the other. While starting or warming, a failure means "not yet" and condemns nobody; only an
//! instance that was ready when its cluster was first seen, and so may have been serving before us, can go from Warming
//! to Ejected, by its inference.
//!
//! One that was ejected again soon after its return has to answer well for longer each time (`flaps`).
//!
//! `misconfigured` and `unknown` outcomes are about us: they move nothing, break no run and admit nobody.

mod flaps;
mod machine;
mod record;
#[cfg(test)]
mod tests;
mod warmth;

pub use machine::{InstanceHealth, State};
pub use record::{CheckRecord, Status};
