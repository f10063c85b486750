//! The fleet: who is registered, how each one is, what clients shall be told.
//!
//! [`Engine`] decides, purely: views, configs and observations in, catalog, plan and events out. [`run`] is the task
//! around it, the sole owner of health: it moves data and decides nothing. It never talks to a source, a probe or a
//! stream; they meet in `model` types and in channels that `app` makes. It must never empty a cluster because
//! somebody is silent: an unsynced view is ignored, and a cluster nobody can speak for stays undecided.

mod actor;
mod command;
mod engine;
#[cfg(test)]
mod tests;

pub use actor::{FleetInputs, FleetOutputs, run};
pub use command::{CommandError, Commands, FleetHandle};
pub use engine::{Effects, Engine, NoSuchInstance};
