//! When a new plan becomes a snapshot: bad news at once, good news in company.
//!
//! [`Lanes`] decides, purely, cluster by cluster; [`run`] is the task around it. Neither lane waits behind the other:
//! a cluster with bad news goes out alone and takes its own good news along, the others keep their time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Metrics;
use crate::clock::Clock;
use crate::config::Config;
use crate::model::{ClusterName, ClusterPlan, Entry, MonoTime, Plan};
use crate::snapshot::Snapshot;

/// What has been published, and what waits.
#[derive(Debug, Default)]
pub struct Lanes {
    published: BTreeMap<ClusterName, Arc<ClusterPlan>>,
    latest: Arc<Plan>,
    /// When the good news that waits goes out.
    due: Option<MonoTime>,
}

impl Lanes {
    /// Takes a new plan. True if something in it must go out now.
    pub fn offer(&mut self, plan: Arc<Plan>, now: MonoTime, merge_window: Duration) -> bool {
        self.latest = plan;
        let mut urgent = false;
        let mut waiting = false;
        for (name, next) in &self.latest.clusters {
            match self.published.get(name) {
                Some(old) if Arc::ptr_eq(old, next) => {}
                Some(old) if old.standing == next.standing && !is_worse(old, next) => waiting = true,
                _ => {
                    self.published.insert(name.clone(), next.clone());
                    urgent = true;
                }
            }
        }
        let before = self.published.len();
        self.published.retain(|name, _| self.latest.clusters.contains_key(name));
        urgent |= self.published.len() != before;
        self.due = if waiting { self.due.or(Some(now + merge_window)) } else { None };
        urgent
    }

    /// When the good news that waits goes out.
    pub const fn due(&self) -> Option<MonoTime> {
        self.due
    }

    /// The waiting time is over: everything goes out.
    pub fn release(&mut self) {
        self.published = self.latest.clusters.clone();
        self.due = None;
    }

    /// The plan to publish now.
    pub fn plan(&self) -> Plan {
        Plan { clusters: self.published.clone(), ..*self.latest }
    }
}

/// True if somebody whom clients may use today must not be used, or is to be left alone: ejected, draining, degraded,
/// or gone. Entries are sorted by id.
fn is_worse(old: &ClusterPlan, next: &ClusterPlan) -> bool {
    let mut next = next.entries.iter().peekable();
    old.entries.iter().any(|was| {
        while next.next_if(|now| now.id < was.id).is_some() {}
        let now = next.peek().filter(|now| now.id == was.id);
        let worse = |now: &&Arc<Entry>| {
            now.serve > was.serve || !now.serve.takes_traffic() || now.address != was.address
        };
        was.serve.takes_traffic() && now.is_none_or(worse)
    })
}

/// Publishes snapshots until cancelled, or until the config or the plan has lost its sender. On that way out nothing
/// is published: the last world stays as it is. Every arm of the `select!` is cancel-safe.
pub async fn run(
    clock: Clock,
    mut config: watch::Receiver<Arc<Config>>,
    mut plans: watch::Receiver<Arc<Plan>>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let mut lanes = Lanes::default();
    let mut snapshot = Snapshot::default();
    let mut first = true;
    loop {
        let due = lanes.due();
        let publish = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            changed = config.changed(), if !first => {
                if changed.is_err() { return }
                true
            }
            changed = plans.changed(), if !first => {
                if changed.is_err() { return }
                let window = config.borrow().xds.merge_window;
                lanes.offer(plans.borrow_and_update().clone(), clock.now(), window)
            }
            () = clock.sleep_until(due.unwrap_or_default()), if due.is_some() => {
                lanes.release();
                true
            }
            () = std::future::ready(()), if first => {
                first = false;
                lanes.offer(plans.borrow_and_update().clone(), clock.now(), Duration::ZERO);
                true
            }
        };
        if publish {
            let config = config.borrow_and_update().clone();
            snapshot = snapshot.update(&config, &lanes.plan());
            snapshots.send_replace(Some(Arc::new(snapshot.clone())));
            metrics.snapshots.inc();
        }
    }
}
