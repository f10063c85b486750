//! A client of each variant, on one stream after another.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::super::{DeltaStream, Protocol, Response, SotwStream};
use super::super::{delta, refusal, sotw};
use super::holding::{Holding, Names};
use crate::snapshot::{Door, Kind, Snapshot};
use crate::xds::stream::Holding as ServerSays;
use crate::xds::wire::{DeltaRequest, SotwRequest};

pub(super) trait Client {
    const DELTA: bool;

    fn new(holding: Holding) -> Self;
    fn holding(&mut self) -> &mut Holding;
    fn held(&self) -> &Holding;
    /// Begins a new stream with what it holds.
    fn connect(&mut self);
    /// Takes the next response in its inbox, or refuses it.
    fn settle(&mut self, refuse: bool);
    /// What it asks for of this type has changed.
    fn ask(&mut self, kind: Kind);
    /// Asks for what it asks for again, as if it had heard nothing.
    fn start_over(&mut self, kind: Kind);
    fn pull(&mut self, snapshot: &Snapshot) -> Option<Response>;
    /// What the server says of it.
    fn account(&self, snapshot: &Snapshot) -> Vec<ServerSays>;

    fn deliver(&mut self, snapshot: &Snapshot) -> bool {
        let response = self.pull(snapshot);
        response.map(|r| self.holding().receive(r)).is_some()
    }
}

pub(super) struct DeltaClient {
    stream: DeltaStream,
    holding: Holding,
}

impl DeltaClient {
    fn say(&mut self, request: &DeltaRequest) {
        self.stream.on_request(request).unwrap();
    }
}

impl Client for DeltaClient {
    const DELTA: bool = true;

    fn new(holding: Holding) -> Self {
        Self { stream: DeltaStream::new(Door::Aggregated), holding }
    }

    fn holding(&mut self) -> &mut Holding {
        &mut self.holding
    }

    fn held(&self) -> &Holding {
        &self.holding
    }

    fn connect(&mut self) {
        self.stream = DeltaStream::new(Door::Aggregated);
        self.stream.render(self.holding.rendering);
        self.holding.begin(false);
        for kind in Kind::ALL.into_iter().filter(|kind| self.holding.asks_at_first(*kind)).collect::<Vec<_>>()
        {
            self.ask(kind);
        }
    }

    fn settle(&mut self, refuse: bool) {
        let Some(response) = self.holding.inbox.pop_front() else { return };
        self.holding.apply(&response, refuse);
        let error_detail = refuse.then(refusal).flatten();
        self.say(&DeltaRequest { error_detail, ..delta(response.kind, &[], &response.nonce) });
        if self.holding.chosen.is_none() {
            self.ask(Kind::Endpoints);
            self.ask(Kind::Route);
        }
    }

    fn ask(&mut self, kind: Kind) {
        let wanted = self.holding.wanted(kind);
        let first = !self.holding.asked.contains_key(&kind);
        let known = self.holding.asked.get(&kind).cloned().unwrap_or_default();
        let add: Vec<_> = wanted.difference(&known).cloned().collect();
        let drop: Vec<_> = known.difference(&wanted).map(ToString::to_string).collect();
        if add.is_empty() && drop.is_empty() && !(first && self.holding.asks_at_first(kind)) {
            return;
        }
        let mut initial_resource_versions = BTreeMap::new();
        if first {
            self.holding.owed.insert(kind);
            let held = self.holding.versions.get(&kind).cloned().unwrap_or_default();
            let named = held.iter().map(|(name, version)| (name.to_string(), version.to_string()));
            initial_resource_versions = named.collect();
            self.holding.claims(kind, held);
        }
        // With its first request the client says what it holds: being asked for makes none of that news.
        let claimed = self.holding.versions.get(&kind).filter(|_| first).cloned().unwrap_or_default();
        let again: Vec<_> = add.iter().filter(|name| !claimed.contains_key(*name)).cloned().collect();
        self.holding.asks(kind, wanted, again);
        self.say(&DeltaRequest {
            type_url: kind.type_url().into(),
            resource_names_subscribe: add.iter().map(ToString::to_string).collect(),
            resource_names_unsubscribe: drop,
            initial_resource_versions,
            ..Default::default()
        });
    }

    fn start_over(&mut self, _: Kind) {}

    fn account(&self, snapshot: &Snapshot) -> Vec<ServerSays> {
        self.stream.holdings(snapshot)
    }

    fn pull(&mut self, snapshot: &Snapshot) -> Option<Response> {
        let response = self.stream.next(snapshot);
        assert_eq!(self.stream.audit(snapshot), [], "a full look finds no more");
        response
    }
}

pub(super) struct SotwClient {
    stream: SotwStream,
    holding: Holding,
    /// The version accepted last, which outlives the stream.
    versions: BTreeMap<Kind, String>,
}

impl SotwClient {
    fn request(&mut self, kind: Kind, nonce: &str, refuse: bool) {
        let wanted = self.holding.wanted(kind);
        let known = self.holding.asked.get(&kind).cloned().unwrap_or_default();
        if nonce.is_empty() {
            self.holding.forgets(kind);
        }
        let names: Vec<&str> = wanted.iter().map(|name| &**name).collect();
        let request = SotwRequest {
            version_info: self.versions.get(&kind).cloned().unwrap_or_default(),
            error_detail: refuse.then(refusal).flatten(),
            ..sotw(kind, &names, nonce)
        };
        let again: Vec<Arc<str>> = wanted.difference(&known).cloned().collect();
        self.holding.asks(kind, wanted.clone(), again);
        self.stream.on_request(&request).unwrap();
    }
}

impl Client for SotwClient {
    const DELTA: bool = false;

    fn new(holding: Holding) -> Self {
        Self { stream: SotwStream::new(Door::Aggregated), holding, versions: BTreeMap::new() }
    }

    fn holding(&mut self) -> &mut Holding {
        &mut self.holding
    }

    fn held(&self) -> &Holding {
        &self.holding
    }

    fn connect(&mut self) {
        self.stream = SotwStream::new(Door::Aggregated);
        self.stream.render(self.holding.rendering);
        let holds_something = self.holding.versions.values().any(|held| !held.is_empty());
        self.holding.begin(holds_something);
        Kind::ALL.into_iter().for_each(|kind| self.holding.hides(kind));
        self.holding.named_version = !self.versions.is_empty();
        for kind in Kind::ALL.into_iter().filter(|kind| self.holding.asks_at_first(*kind)).collect::<Vec<_>>()
        {
            self.request(kind, "", false);
        }
    }

    fn settle(&mut self, refuse: bool) {
        let Some(response) = self.holding.inbox.pop_front() else { return };
        let kind = response.kind;
        self.holding.apply(&response, refuse);
        if !refuse {
            self.versions.insert(kind, response.version.to_string());
        }
        self.request(kind, &response.nonce, refuse);
        if self.holding.chosen.is_none() {
            self.ask(Kind::Endpoints);
            self.ask(Kind::Route);
        }
    }

    fn ask(&mut self, kind: Kind) {
        let known: Option<&Names> = self.holding.asked.get(&kind);
        let wanted = self.holding.wanted(kind);
        if known.map_or(wanted.is_empty(), |known| *known == wanted) {
            return;
        }
        // What is under way was asked for before: the client takes it all the same, but the server does not wait.
        self.holding.overtakes(kind);
        let nonce = self.holding.nonce.get(&kind).cloned().unwrap_or_default();
        self.request(kind, &nonce, false);
    }

    fn start_over(&mut self, kind: Kind) {
        if self.holding.asked.contains_key(&kind) {
            self.holding.overtakes(kind);
            self.request(kind, "", false);
        }
    }

    fn account(&self, snapshot: &Snapshot) -> Vec<ServerSays> {
        self.stream.holdings(snapshot)
    }

    fn pull(&mut self, snapshot: &Snapshot) -> Option<Response> {
        let response = self.stream.next(snapshot);
        assert_eq!(self.stream.audit(snapshot), [], "a full look finds no more");
        response
    }
}
