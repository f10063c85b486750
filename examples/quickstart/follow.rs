//! A spectator of tidegate: writes what it decides, why, and when Envoy acknowledges that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::model::{ClientEvent, MonoTime, Plan, Serve};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use crate::screen::{Screen, Who};

/// How each instance is served, and why.
type Known = BTreeMap<String, (Serve, String)>;

/// A decision that Envoy has not acknowledged.
struct Owed {
    generation: u64,
    decided: MonoTime,
}

/// Follows until tidegate is gone. `head_start` is how much the screen's clock is ahead of tidegate's.
pub async fn follow(
    mut plans: watch::Receiver<Arc<Plan>>,
    mut clients: broadcast::Receiver<ClientEvent>,
    head_start: Duration,
    screen: Screen,
) {
    let (mut known, mut owed) = (Known::new(), None);
    loop {
        // Both may be dropped in favour of the other: neither takes anything before it is done.
        tokio::select! {
            // First, so that a decision is told before its acknowledgement.
            biased;
            changed = plans.changed() => {
                if changed.is_err() {
                    return;
                }
                let plan = plans.borrow_and_update().clone();
                owed = tell(&plan, &mut known, plan.at + head_start, &screen).await.or(owed);
            }
            event = clients.recv() => match (event, owed.take()) {
                (Ok(ClientEvent::Settled { generation, at, .. }), Some(debt)) if generation >= debt.generation => {
                    let took = (at + head_start).since(debt.decided).as_millis();
                    let text = format!("acknowledges that, {took} ms after the decision");
                    screen.say_at(at + head_start, Who::Envoy, text).await;
                }
                (Err(RecvError::Closed), _) => return,
                (_, debt) => owed = debt,
            },
        }
    }
}

/// Tells what is new in `plan`; what Envoy will have to acknowledge of it, if anything.
async fn tell(plan: &Plan, known: &mut Known, at: MonoTime, screen: &Screen) -> Option<Owed> {
    let mut owed = None;
    for cluster in plan.clusters.values() {
        for entry in &cluster.entries {
            let (name, now) = (entry.id.to_string(), (entry.serve, entry.reason.to_string()));
            let before = known.insert(name.clone(), now.clone());
            let moved = before.as_ref().is_none_or(|(serve, _)| *serve != entry.serve);
            // Why somebody is out may change with each probe; how far a start has come is worth a line.
            let progressed = entry.serve == Serve::Absent && before.as_ref() != Some(&now);
            if moved || progressed {
                screen.say_at(at, Who::Tidegate, format!("`{name}` {}: {}", word(entry.serve), now.1)).await;
            }
            if moved && (entry.serve != Serve::Absent || before.is_some()) {
                owed = Some(Owed { generation: cluster.generation, decided: at });
            }
        }
    }
    owed
}

fn word(serve: Serve) -> &'static str {
    match serve {
        Serve::Absent => "gets no traffic yet",
        Serve::Healthy => "serves",
        Serve::Degraded => "serves only if nobody else does",
        Serve::Unhealthy => "is ejected",
        Serve::Draining => "gets nothing new",
    }
}
