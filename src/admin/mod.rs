//! What operators and orchestrators ask tidegate about itself.
//!
//! Serves `/livez`, `/readyz` and `/metrics`. Reads published values only; decides nothing about instances and
//! changes nothing. Called by `app`.

mod health;
mod report;

pub use health::{HealthCtx, serve};
pub use report::{ConfigStatus, Item, Report};
