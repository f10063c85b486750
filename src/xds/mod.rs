//! xDS: what was decided, told to every client and only once.
//!
//! ```text
//! plan ─► publisher (bad news at once, good news merged) ─► snapshot ─► one body per stream ─► Envoy
//!                                                             stream machine ◄── ACK, NACK, subscriptions
//! ```
//!
//! [`stream`] is the protocol, pure: requests and snapshots in, responses out. `body` polls it from inside the HTTP/2
//! response, so that a slow client holds back nobody and nothing is queued for it. `server` accepts connections.
//! `probation` keeps from a node what its streams ended over;
//! `auditor` compares what every client holds with the truth. A NACKed version is never sent again to the client that refused it; a stream that stops never sends an emptier
//! world. No peer's bytes can make it panic. Called by `app`.

mod auditor;
mod body;
mod clients;
mod machine;
mod metrics;
mod probation;
mod publisher;
mod requests;
mod server;
mod service;
mod sips;
pub mod stream;
mod strikes;
pub(crate) mod wire;

pub use clients::{ClientStatus, Clients, Convergence, KindStatus, Rejection};
pub use metrics::{Lag, Metrics};
pub use publisher::{Lanes, run as publish};
pub use server::{Server, ServerCtx};
