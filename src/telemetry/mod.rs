//! What tidegate says about itself: logs on stderr, and the root of the metrics.
//!
//! One [`Event`](crate::model::Event) makes one log line here and nowhere else; a move is counted with it, so that the
//! two agree.
//! Rooms with metrics of their own register them into the registry that `app` passes down. Called by `app`.

mod events;
mod logging;
mod metrics;

pub use events::follow;
pub use logging::{LogFormat, init_logging};
pub use metrics::{FleetMetrics, registry};
