//! What operators and orchestrators ask tidegate about itself.
//!
//! Serves `/livez`, `/readyz` and `/metrics`. Reads published values only; decides nothing about instances and
//! changes nothing. Called by `app`.

mod convert;
mod grpc;
mod health;
mod report;

pub use grpc::{AdminCtx, serve_admin};
pub use health::{HealthCtx, serve};
pub use report::{ConfigStatus, Item, Report};
