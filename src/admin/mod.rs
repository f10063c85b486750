//! What operators and orchestrators ask tidegate about itself.
//!
//! Serves `/livez`, `/readyz` and `/metrics` over HTTP, and over gRPC `tidegate.admin.v1` and CSDS, which tells what each
//! client holds in xDS's own words. It reads published values; what an operator wants changed it passes on to the
//! fleet. It decides nothing about instances. Called by `app`.

mod client_config;
mod convert;
mod csds;
mod debt;
mod grpc;
mod health;
mod report;

pub use grpc::{AdminCtx, serve_admin};
pub use health::{HealthCtx, serve};
pub use report::{ConfigStatus, Item, Report};
