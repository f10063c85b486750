//! What an operator tells the fleet.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::engine::NoSuchInstance;
use crate::model::InstanceKey;

/// Commands waiting. Each is answered in microseconds; more than this at once is a script gone wild, and waits.
const COMMANDS: usize = 64;

/// Why a command was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// It names nobody.
    #[error(transparent)]
    NoSuchInstance(#[from] NoSuchInstance),
    /// The process is ending.
    #[error("tidegate is shutting down")]
    ShuttingDown,
}

/// One command, with the way back.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) key: InstanceKey,
    /// Drain for this reason, or take the drain back.
    pub(super) drain: Option<Arc<str>>,
    /// It is published as commanded.
    pub(super) reply: oneshot::Sender<Result<(), NoSuchInstance>>,
}

/// The fleet's end of the line.
#[derive(Debug)]
pub struct Commands(pub(super) mpsc::Receiver<Command>);

/// Tells the fleet what to do. Clones speak to the same fleet.
#[derive(Debug, Clone)]
pub struct FleetHandle(mpsc::Sender<Command>);

impl FleetHandle {
    /// A line to a fleet.
    pub fn new() -> (Self, Commands) {
        let (sender, receiver) = mpsc::channel(COMMANDS);
        (Self(sender), Commands(receiver))
    }

    /// Takes `key` out of traffic. The plan that says so is published when this returns.
    pub async fn drain(&self, key: InstanceKey, why: &str) -> Result<(), CommandError> {
        self.tell(key, Some(why.into())).await
    }

    /// Takes a drain back; published likewise.
    pub async fn undrain(&self, key: InstanceKey) -> Result<(), CommandError> {
        self.tell(key, None).await
    }

    async fn tell(&self, key: InstanceKey, drain: Option<Arc<str>>) -> Result<(), CommandError> {
        let (reply, answer) = oneshot::channel();
        let command = Command { key, drain, reply };
        self.0.send(command).await.map_err(|_| CommandError::ShuttingDown)?;
        Ok(answer.await.map_err(|_| CommandError::ShuttingDown)??)
    }
}
