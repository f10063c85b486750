//! What operators and orchestrators ask tidegate about itself.
//!
//! Serves `/livez`, `/readyz` and `/metrics` over HTTP, and `tidegate.admin.v1` over gRPC. It reads published values;
//! what an operator wants changed it passes on to the fleet. It decides nothing about instances. Called by `app`.

mod convert;
mod debt;
mod grpc;
mod health;
mod report;

pub use grpc::{AdminCtx, serve_admin};
pub use health::{HealthCtx, serve};
pub use report::{ConfigStatus, Item, Report};
