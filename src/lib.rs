//! tidegate: a sidecar-free health control plane for Envoy.
//!
//! It probes every backend instance the way a user would use it, decides who may serve, and pushes that over xDS.
//! Data flows one way:
//!
//! ```text
//! source ─► fleet ─► catalog ─► probe ─► observations ─► fleet (health ► policy) ─► plan ─► snapshot ─► xds ─► Envoy
//! ```
//!
//! * vocabulary: [`model`]
//! * pure decisions, no I/O and no clock: [`config`], [`health`], [`policy`], [`snapshot`]
//! * shells that move data: [`source`], [`probe`], [`fleet`], [`xds`], [`admin`], with [`clock`], [`net`], [`telemetry`]
//! * assembly: [`app`], [`cli`]
//!
//! The allowed directions between these rooms are a test: `tests/architecture.rs`.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::panic,
    clippy::todo,
    clippy::dbg_macro,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::await_holding_lock,
    clippy::await_holding_invalid_type,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::large_futures,
    unreachable_pub
)]
#![warn(missing_docs)]

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod fleet;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod health;
pub mod model;
pub mod net;
pub mod pb;
pub mod policy;
pub mod probe;
pub mod snapshot;
pub mod source;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod xds;
