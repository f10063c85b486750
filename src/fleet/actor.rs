//! The task around the engine: one loop, no decisions.

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::command::{Command, Commands};
use super::engine::{Effects, Engine};
use crate::clock::Clock;
use crate::config::Config;
use crate::model::{Catalog, Event, Observation, Plan, SourceView};

/// Batches of observations taken in one turn before publishing: a burst makes one plan, not hundreds.
const BATCHES_PER_TURN: usize = 64;

/// Where the fleet hears from.
#[derive(Debug)]
pub struct FleetInputs {
    /// The config in force.
    pub config: watch::Receiver<Arc<Config>>,
    /// Who exists.
    pub view: watch::Receiver<Arc<SourceView>>,
    /// What the prober saw.
    pub observations: mpsc::Receiver<Vec<Observation>>,
    /// What operators want.
    pub commands: Commands,
}

/// Whom the fleet tells.
#[derive(Debug)]
pub struct FleetOutputs {
    /// Whom to probe.
    pub catalog: watch::Sender<Arc<Catalog>>,
    /// What to tell clients.
    pub plan: watch::Sender<Arc<Plan>>,
    /// What to tell people. Spectators only: one that lags loses events, never the fleet.
    pub events: broadcast::Sender<Event>,
}

impl FleetOutputs {
    fn publish(&self, effects: Effects) {
        if let Some(plan) = effects.plan {
            self.plan.send_replace(plan);
        }
        if let Some(catalog) = effects.catalog {
            self.catalog.send_replace(catalog);
        }
        for event in effects.events {
            let _ = self.events.send(event); // no spectators is fine
        }
    }
}

/// Runs until cancelled or until an input's other side is gone. Every arm of its `select!` is cancel-safe: `changed`
/// and `recv` lose nothing.
pub async fn run(clock: Clock, mut inputs: FleetInputs, outputs: FleetOutputs, cancel: CancellationToken) {
    let mut engine = Engine::new(&inputs.config.borrow_and_update());
    outputs.plan.send_replace(engine.plan().clone());
    let view = inputs.view.borrow_and_update().clone();
    outputs.publish(engine.apply_view(view, clock.now()));
    loop {
        let wake = engine.wake_at();
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            changed = inputs.config.changed() => {
                if changed.is_err() { return }
                let config = inputs.config.borrow_and_update().clone();
                outputs.publish(engine.apply_config(&config, clock.now()));
            }
            changed = inputs.view.changed() => {
                if changed.is_err() { return }
                let view = inputs.view.borrow_and_update().clone();
                outputs.publish(engine.apply_view(view, clock.now()));
            }
            command = inputs.commands.0.recv() => {
                let Some(Command { key, drain, reply }) = command else { return };
                let done = engine.apply_drain(&key, drain, clock.now()).map(|effects| outputs.publish(effects));
                let _ = reply.send(done); // whoever asked may have left
            }
            () = clock.sleep_until(wake.unwrap_or_default()), if wake.is_some() => {
                outputs.publish(engine.apply_tick(clock.now()));
            }
            batch = inputs.observations.recv() => {
                let Some(mut seen) = batch else { return };
                for _ in 1..BATCHES_PER_TURN {
                    let Ok(more) = inputs.observations.try_recv() else { break };
                    seen.extend(more);
                }
                outputs.publish(engine.apply_observations(&seen, clock.now()));
            }
        }
    }
}
