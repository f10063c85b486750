//! Events as log lines and counts.

use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;

use super::metrics::{FleetMetrics, MoveLabels, word};
use crate::model::{Event, Serve};

/// Logs and counts events until cancelled or until their sender is gone. A backlog that was lost is said and counted.
pub async fn follow(
    mut events: broadcast::Receiver<Event>,
    metrics: FleetMetrics,
    cancel: CancellationToken,
) {
    loop {
        let next = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            next = events.recv() => next,
        };
        match next {
            Ok(event) => tell(&event, &metrics),
            Err(RecvError::Lagged(lost)) => {
                metrics.lost_events.inc_by(lost);
                tracing::warn!(lost, "events were lost: more happened than could be logged");
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn tell(event: &Event, metrics: &FleetMetrics) {
    match event {
        Event::Registered { key, epoch } => {
            tracing::info!(cluster = %key.cluster, instance = %key.id, epoch = epoch.0, "instance registered");
        }
        Event::Deregistered { key } => {
            tracing::info!(cluster = %key.cluster, instance = %key.id, "instance deregistered");
        }
        Event::AddressTaken { key, address, by } => {
            let (cluster, instance) = (&key.cluster, &key.id);
            tracing::warn!(%cluster, %instance, %address, %by, "two instances have one address: one stands for both");
        }
        Event::Moved { key, from, to, reason } => {
            let labels = MoveLabels { cluster: key.cluster.to_string(), to: word(*to) };
            metrics.moves.get_or_create(&labels).inc();
            let (cluster, instance) = (&key.cluster, &key.id);
            let (from, to_word) = (word(*from), word(*to));
            if matches!(to, Serve::Unhealthy | Serve::Degraded) {
                tracing::warn!(%cluster, %instance, from, to = to_word, %reason, "instance moved");
            } else {
                tracing::info!(%cluster, %instance, from, to = to_word, %reason, "instance moved");
            }
        }
    }
}
