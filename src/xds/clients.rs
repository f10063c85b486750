//! Who is connected, and what each one holds: the one concurrent map. Only copies leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::{broadcast, watch};

use super::stream::Verdict;
use crate::model::{ClientEvent, ClientId, ClusterName, MonoTime};
use crate::snapshot::Kind;

/// Events kept for a spectator that is slow; beyond it loses some and is told how many.
const SPECTATOR_BACKLOG: usize = 4096;

/// A response that a client refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The resources in it.
    pub names: Vec<Arc<str>>,
    /// The client's words.
    pub message: Arc<str>,
    /// When.
    pub at: MonoTime,
}

/// One type on one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindStatus {
    /// Responses acknowledged.
    pub acks: u64,
    /// Responses refused.
    pub nacks: u64,
    /// The highest generation acknowledged, for endpoints.
    pub generation: u64,
    /// The latest refusal, until something is acknowledged.
    pub rejection: Option<Rejection>,
}

/// One xDS stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatus {
    /// The node id it gave; may be empty.
    pub node: Arc<str>,
    /// `envoy`, `gRPC C-core`, …
    pub agent: Arc<str>,
    /// The method it called.
    pub method: &'static str,
    /// Since when.
    pub since: MonoTime,
    /// What it said by type.
    pub kinds: BTreeMap<Kind, KindStatus>,
    /// Clusters whose endpoints it asks for by name.
    pub clusters: BTreeSet<Arc<str>>,
    /// The generation up to which it knows a cluster; kept only for clusters in which somebody drains or
    /// drained.
    pub settled: BTreeMap<Arc<str>, u64>,
}

/// The table of connected streams. Clones share it.
#[derive(Debug, Clone)]
pub struct Clients {
    table: Arc<DashMap<ClientId, ClientStatus>>,
    last_id: Arc<AtomicU64>,
    events: broadcast::Sender<ClientEvent>,
    changes: watch::Sender<()>,
}

impl Clients {
    /// An empty table.
    pub fn new() -> Self {
        let (events, _) = broadcast::channel(SPECTATOR_BACKLOG);
        Self { table: Arc::default(), last_id: Arc::default(), events, changes: watch::Sender::new(()) }
    }

    /// Wakes whenever somebody comes, goes, asks for other clusters, or settles a cluster in which somebody drains.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// What clients do from now on, for spectators: one that lags loses events, never a client.
    pub fn watch(&self) -> broadcast::Receiver<ClientEvent> {
        self.events.subscribe()
    }

    /// A copy of the table, by stream.
    pub fn list(&self) -> BTreeMap<ClientId, ClientStatus> {
        self.table.iter().map(|entry| (*entry.key(), entry.value().clone())).collect()
    }

    pub(super) fn open(&self, method: &'static str, now: MonoTime) -> ClientId {
        let client = ClientId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let empty: Arc<str> = Arc::from("");
        let status = ClientStatus {
            node: empty.clone(),
            agent: empty,
            method,
            since: now,
            kinds: BTreeMap::new(),
            clusters: BTreeSet::new(),
            settled: BTreeMap::new(),
        };
        self.table.insert(client, status);
        self.changes.send_replace(());
        client
    }

    pub(super) fn name(&self, client: ClientId, node: Arc<str>, agent: Arc<str>) {
        if let Some(mut status) = self.table.get_mut(&client) {
            status.node = node.clone();
            status.agent = agent;
        }
        self.tell(|| ClientEvent::Opened { client, node });
    }

    pub(super) fn asks_for(&self, client: ClientId, clusters: &BTreeSet<Arc<str>>) {
        let Some(mut status) = self.table.get_mut(&client) else { return };
        if status.clusters != *clusters {
            status.clusters.clone_from(clusters);
            status.settled.retain(|name, _| clusters.contains(name));
            drop(status);
            self.changes.send_replace(());
        }
    }

    pub(super) fn settled(&self, client: ClientId, cluster: &Arc<str>, generation: u64) {
        let Some(mut status) = self.table.get_mut(&client) else { return };
        if status.settled.insert(cluster.clone(), generation) != Some(generation) {
            drop(status);
            self.changes.send_replace(());
        }
    }

    pub(super) fn record(&self, client: ClientId, verdict: &Verdict, at: MonoTime) {
        match verdict {
            Verdict::None => {}
            Verdict::Acked(kind, resources) => {
                let generation = resources.iter().map(|r| r.generation).max().unwrap_or(0);
                self.update(client, *kind, |status| {
                    status.acks += 1;
                    status.generation = status.generation.max(generation);
                    status.rejection = None;
                });
                for resource in resources.iter().filter(|_| *kind == Kind::Endpoints) {
                    let Ok(cluster) = ClusterName::new(&resource.name) else { continue };
                    let generation = resource.generation;
                    self.tell(|| ClientEvent::Settled { client, cluster, generation, at });
                }
            }
            Verdict::Nacked(kind, resources, message) => {
                let names = resources.iter().map(|r| r.name.clone()).collect();
                self.update(client, *kind, |status| {
                    status.nacks += 1;
                    status.rejection = Some(Rejection { names, message: message.clone(), at });
                });
                let type_url = kind.type_url();
                self.tell(|| ClientEvent::Rejected { client, type_url, message: message.clone() });
            }
        }
    }

    pub(super) fn close(&self, client: ClientId) {
        self.table.remove(&client);
        self.changes.send_replace(());
        self.tell(|| ClientEvent::Closed { client });
    }

    fn update(&self, client: ClientId, kind: Kind, change: impl FnOnce(&mut KindStatus)) {
        if let Some(mut status) = self.table.get_mut(&client) {
            change(status.kinds.entry(kind).or_default());
        }
    }

    /// Costs nothing while nobody watches.
    fn tell(&self, event: impl FnOnce() -> ClientEvent) {
        if self.events.receiver_count() > 0 {
            let _ = self.events.send(event()); // the last spectator may just have left
        }
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self::new()
    }
}
