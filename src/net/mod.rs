//! Sockets that tidegate listens on.
//!
//! Does the binding, with patience and clear errors; knows nothing about what is served there. Called by `app`.

mod listen;

pub use listen::{BindError, bind};
