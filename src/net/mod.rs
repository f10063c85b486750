//! Sockets that tidegate listens on.
//!
//! Binds them, with patience and with errors that say what to do. Never decides what is served there, and never
//! takes another port than the one it was told. Called by `app`.

mod descriptors;
mod listen;

pub use descriptors::descriptors_for_probes;
pub use listen::{BindError, bind};
