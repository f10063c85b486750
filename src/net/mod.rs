//! Sockets that tidegate listens on.
//!
//! Binds them, with patience and with errors that say what to do; accepts on all of them by the same rules; speaks
//! HTTP/2 where that is wanted; and shares out the descriptors, so that no user of them starves another. Never
//! decides what is served there, and never takes another port than the one it was told. Called by `app`, `xds` and
//! `admin`.

mod accept;
mod descriptors;
mod http2;
mod listen;
mod pace;
mod port;

pub use accept::accept;
pub use descriptors::Descriptors;
pub use http2::{begins_with_http2, serve_http2};
pub use listen::{BindError, bind};
pub use port::{Counted, Port, Ports};
