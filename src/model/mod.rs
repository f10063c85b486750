//! The vocabulary everybody shares: who exists, what was seen, what was decided.
//!
//! Plain data with checked constructors. Nothing here does I/O, reads a clock, locks, or decides anything; every
//! other module may use it and it uses none of them. Sources, the prober and the fleet meet only in these types.

mod addr;
mod catalog;
mod check;
mod client;
mod event;
mod hash;
mod id;
mod instance;
mod observation;
mod plan;
mod time;
mod units;

pub use addr::{Address, Locality};
pub use catalog::{Catalog, Phase, Target};
pub use check::{
    Check, CheckKind, Checks, Damping, HttpCheck, HttpProtocol, MinFailingTime, OpenAiCheck, StageBudgets,
    Warmup,
};
pub use client::{ClientEvent, ClientId};
pub use event::Event;
pub use hash::ContentHash;
pub use id::{ClusterName, IdError, InstanceId, InstanceKey, ListenerName};
pub use instance::{Chunk, ChunkKey, Instance, Lifetime, SourceView};
pub use observation::{Detail, Epoch, Observation, Outcome, Role, Stage, Timings};
pub use plan::{ClusterPlan, Drain, Entry, Plan, Reason, Serve, Standing};
pub use time::MonoTime;
pub use units::{Percent, Weight};
