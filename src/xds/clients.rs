//! Who is connected, and what each one holds: the one concurrent map. Only copies leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use tokio::sync::{broadcast, watch};

use super::machine::Inspect;
use super::stream::{Gone, Holding, Suspect, Verdict};
use crate::model::{ClientEvent, ClientId, ClusterName, MonoTime};
use crate::snapshot::{Kind, Rendering, Snapshot};

/// Events kept for a spectator that is slow; beyond it loses some and is told how many.
const SPECTATOR_BACKLOG: usize = 4096;

/// Why a client refused a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The client's words, about the response that it came in.
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
    /// Resources that were refused, by name, or to do without them, until one of that name or its end is acknowledged.
    pub refused: BTreeMap<Arc<str>, Rejection>,
    /// When it acknowledged a response last.
    pub acked_at: Option<MonoTime>,
    /// Since when the oldest response without an answer waits for one.
    pub waiting_since: Option<MonoTime>,
}

/// How a client stands to one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convergence {
    /// It has acknowledged all that it was sent.
    Synced,
    /// A response is on its way.
    Pending,
    /// It has refused something, and acknowledged nothing of that name since.
    Nacked,
}

impl KindStatus {
    /// How the client stands to the type.
    pub fn convergence(&self) -> Convergence {
        match (self.refused.is_empty(), self.waiting_since) {
            (false, _) => Convergence::Nacked,
            (true, Some(_)) => Convergence::Pending,
            (true, None) => Convergence::Synced,
        }
    }

    /// The latest refusal that still stands.
    pub fn latest_rejection(&self) -> Option<&Rejection> {
        self.refused.values().max_by_key(|rejection| rejection.at)
    }
}

/// One xDS stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatus {
    /// The node id it gave; may be empty.
    pub node: Arc<str>,
    /// `envoy`, `gRPC C-core`, …
    pub agent: Arc<str>,
    /// The agent's version, as it says it; may be empty.
    pub agent_version: Arc<str>,
    /// For what kind of client resources are written.
    pub rendering: Rendering,
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

#[derive(Debug)]
struct Row {
    status: ClientStatus,
    stream: Weak<dyn Inspect>,
}

/// The table of connected streams. Clones share it.
#[derive(Debug, Clone)]
pub struct Clients {
    table: Arc<DashMap<ClientId, Row>>,
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
        self.table.iter().map(|entry| (*entry.key(), entry.value().status.clone())).collect()
    }

    /// What a client holds of all that it asks for, beside what there is in `snapshot`; `None` if its stream has ended.
    pub fn holdings(&self, client: ClientId, snapshot: &Snapshot) -> Option<Vec<Holding>> {
        Some(self.stream(client)?.holdings(snapshot))
    }

    /// Where to ask about a stream. No entry of the table is held while it is asked.
    pub(super) fn stream(&self, client: ClientId) -> Option<Arc<dyn Inspect>> {
        self.table.get(&client)?.stream.upgrade()
    }

    /// The streams that are open.
    pub(super) fn ids(&self) -> Vec<ClientId> {
        self.table.iter().map(|entry| *entry.key()).collect()
    }

    pub(super) fn open(&self, method: &'static str, now: MonoTime, stream: Weak<dyn Inspect>) -> ClientId {
        let client = ClientId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let empty: Arc<str> = Arc::from("");
        let status = ClientStatus {
            node: empty.clone(),
            agent: empty.clone(),
            agent_version: empty,
            rendering: Rendering::default(),
            method,
            since: now,
            kinds: BTreeMap::new(),
            clusters: BTreeSet::new(),
            settled: BTreeMap::new(),
        };
        self.table.insert(client, Row { status, stream });
        self.changes.send_replace(());
        client
    }

    pub(super) fn name(&self, client: ClientId, [node, agent, agent_version]: [Arc<str>; 3]) {
        if let Some(status) = self.table.get_mut(&client).as_mut().map(|row| &mut row.status) {
            status.node = node.clone();
            status.rendering = Rendering::of_agent(&agent);
            status.agent = agent;
            status.agent_version = agent_version;
        }
        self.tell(|| ClientEvent::Opened { client, node });
    }

    pub(super) fn asks_for(&self, client: ClientId, clusters: &BTreeSet<Arc<str>>) {
        let Some(mut row) = self.table.get_mut(&client) else { return };
        let status = &mut row.status;
        if status.clusters != *clusters {
            status.clusters.clone_from(clusters);
            status.settled.retain(|name, _| clusters.contains(name));
            if let Some(endpoints) = status.kinds.get_mut(&Kind::Endpoints) {
                endpoints.refused.retain(|name, _| clusters.contains(name));
            }
            drop(row);
            self.changes.send_replace(());
        }
    }

    pub(super) fn settled(&self, client: ClientId, cluster: &Arc<str>, generation: u64) {
        let Some(mut row) = self.table.get_mut(&client) else { return };
        if row.status.settled.insert(cluster.clone(), generation) != Some(generation) {
            drop(row);
            self.changes.send_replace(());
        }
    }

    /// A response is sent; the oldest of its type that waits for an answer was sent at `waiting_since`.
    pub(super) fn sent(&self, client: ClientId, kind: Kind, waiting_since: MonoTime) {
        self.update(client, kind, |status| status.waiting_since = Some(waiting_since));
    }

    /// The client has answered; the oldest response of the type that still waits was sent at `waiting_since`.
    pub(super) fn record(
        &self,
        client: ClientId,
        verdict: &Verdict,
        at: MonoTime,
        waiting_since: impl Fn(Kind) -> Option<MonoTime>,
    ) {
        match verdict {
            Verdict::None => {}
            Verdict::Acked(kind, resources, gone) => {
                let generation = resources.iter().map(|r| r.generation).max().unwrap_or(0);
                self.update(client, *kind, |status| {
                    status.acks += 1;
                    status.acked_at = Some(at);
                    status.waiting_since = waiting_since(*kind);
                    status.generation = status.generation.max(generation);
                    for resource in resources {
                        status.refused.remove(&resource.name);
                    }
                    match gone {
                        Gone::Names(names) => names.iter().for_each(|name| drop(status.refused.remove(name))),
                        Gone::Others => status.refused.clear(),
                    }
                });
                for resource in resources.iter().filter(|_| *kind == Kind::Endpoints) {
                    let Ok(cluster) = ClusterName::new(&resource.name) else { continue };
                    let generation = resource.generation;
                    self.tell(|| ClientEvent::Settled { client, cluster, generation, at });
                }
            }
            Verdict::Nacked(kind, resources, gone, message) => {
                let rejection = Rejection { message: message.clone(), at };
                self.update(client, *kind, |status| {
                    status.nacks += 1;
                    status.waiting_since = waiting_since(*kind);
                    let gone = if let Gone::Names(names) = gone { &names[..] } else { &[] };
                    let names = resources.iter().map(|r| &r.name).chain(gone);
                    status.refused.extend(names.map(|name| (name.clone(), rejection.clone())));
                });
                let type_url = kind.type_url();
                self.tell(|| ClientEvent::Rejected { client, type_url, message: message.clone() });
            }
        }
    }

    /// Something is kept from the client for a while, which is as if it had refused it.
    pub(super) fn held_back(&self, client: ClientId, suspect: &Suspect, why: &str, at: MonoTime) {
        let rejection = Rejection { message: why.into(), at };
        self.update(client, suspect.kind, |status| {
            status.refused.insert(suspect.title().into(), rejection);
        });
    }

    /// It is kept from the client no longer.
    pub(super) fn tried_again(&self, client: ClientId, suspect: &Suspect) {
        self.update(client, suspect.kind, |status| {
            status.refused.remove(suspect.title());
        });
    }

    /// The stream is ending right after `name` was sent on it.
    pub(super) fn ended_over(&self, client: ClientId, kind: Kind, name: &str) {
        let message = || format!("the stream ended right after {name} was sent").into();
        self.tell(|| ClientEvent::Rejected { client, type_url: kind.type_url(), message: message() });
    }

    pub(super) fn close(&self, client: ClientId) {
        self.table.remove(&client);
        self.changes.send_replace(());
        self.tell(|| ClientEvent::Closed { client });
    }

    fn update(&self, client: ClientId, kind: Kind, change: impl FnOnce(&mut KindStatus)) {
        if let Some(mut row) = self.table.get_mut(&client) {
            change(row.status.kinds.entry(kind).or_default());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Door;
    use crate::testing::world::{Pool, Worlds};
    use crate::xds::machine::Machine;
    use crate::xds::stream::{DeltaStream, Protocol, SotwStream};
    use crate::xds::wire::{DeltaRequest, RpcStatus, SotwRequest};

    /// A client that refuses its first cluster, which then goes.
    fn refuses_and_is_rid_of_it<P: Protocol>(
        stream: P,
        request: fn(String, Option<RpcStatus>) -> P::Request,
    ) {
        let mut worlds = Worlds::default();
        let with = worlds.publish(&[("c", (Pool::Decided(Vec::new()), false))].into());
        let without = worlds.publish(&[("d", (Pool::Decided(Vec::new()), false))].into());
        let (clients, machine) = (Clients::new(), Machine::new(stream));
        let client = clients.open("test", MonoTime::ZERO, machine.inspect());
        let say = |nonce: String, refuses: bool| {
            let error = refuses.then(|| RpcStatus { code: 13, message: "no".into() });
            let verdict = machine.with(|protocol| protocol.on_request(&request(nonce, error))).unwrap();
            clients.record(client, &verdict, MonoTime::ZERO, |_| None);
        };
        let refused = || {
            let status = clients.list().remove(&client).unwrap();
            status.kinds.get(&Kind::Cluster).map(|kind| kind.refused.keys().cloned().collect::<Vec<_>>())
        };
        say(String::new(), false);
        let first = machine.with(|protocol| protocol.next(&with)).unwrap();
        say(first.nonce, true);
        assert_eq!(refused(), Some(vec!["c".into()]));
        while let Some(response) = machine.with(|protocol| protocol.next(&without)) {
            say(response.nonce, false);
        }
        assert_eq!(refused(), Some(Vec::new()), "there is nothing left to refuse");
        // It has taken the other, and refuses to give that up.
        let none = worlds.publish(&[].into());
        let gone = machine.with(|protocol| protocol.next(&none)).unwrap();
        say(gone.nonce, true);
        assert_eq!(refused(), Some(vec!["d".into()]));
    }

    #[test]
    fn what_a_client_refuses_is_told_until_it_is_acknowledged_or_gone() {
        refuses_and_is_rid_of_it(DeltaStream::new(Door::Aggregated), |response_nonce, error_detail| {
            let type_url = Kind::Cluster.type_url().into();
            DeltaRequest { type_url, response_nonce, error_detail, ..Default::default() }
        });
        refuses_and_is_rid_of_it(SotwStream::new(Door::Aggregated), |response_nonce, error_detail| {
            let type_url = Kind::Cluster.type_url().into();
            SotwRequest { type_url, response_nonce, error_detail, ..Default::default() }
        });
    }
}
