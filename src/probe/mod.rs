//! The prober: asks every instance its configured questions and reports what it saw.
//!
//! It keeps to a [`timetable`] that it draws up from the [`Catalog`](crate::model::Catalog), and sends
//! [`Observation`](crate::model::Observation)s, one `Vec` per turn. It never judges an instance (that is `health`),
//! never counts or remembers outcomes beyond the pace of the next probe, never follows a redirect, and never blames
//! an instance for a fault of its own ([`Outcome::Unknown`](crate::model::Outcome::Unknown)). A probe is one future
//! that owns its socket and whatever drives it: dropping the future is all it takes to be rid of both.
//!
//! ```text
//! watch Catalog ─► timetable (pure) ─ Start ─► scheduler ─► ask ─┬─ tcp   ─┐
//!                      ▲                        │  ▲             ├─ h2c   ─┼─► dial
//!                      └── how it ended ────────┘  └─ Answer ────┼─ http1 ─┤
//!                                               │                └─ openai ┘ ◄─ completion, sse (pure)
//!                                               └─► mpsc Vec<Observation>
//! ```
//!
//! [`run`] is called by `app`; [`ask`] also by whoever wants a single question answered.

mod ask;
pub(crate) mod completion;
mod dial;
mod exchange;
mod h2c;
mod http;
mod http1;
mod metrics;
mod openai;
mod rate;
mod scheduler;
pub mod sse;
mod tcp;
pub mod timetable;
mod trace;

pub use ask::{Answer, Ask, Question, Sockets, ask};
pub use http::Kept;
pub use metrics::Metrics;
pub use scheduler::{ProberCtx, run, run_with};
