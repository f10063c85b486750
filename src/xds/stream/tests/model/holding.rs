//! What a client holds, and what it may be told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::super::super::Response;
use crate::snapshot::{Kind, Rendering};

pub(super) type Names = BTreeSet<Arc<str>>;
pub(super) type Versions = BTreeMap<Arc<str>, Arc<str>>;

/// What a client of either variant holds, by the specification.
#[derive(Debug, Default)]
pub(super) struct Holding {
    pub(super) rendering: Rendering,
    pub(super) versions: BTreeMap<Kind, Versions>,
    /// What a client asks for that chooses by itself, as gRPC's does. One that does not asks for all clusters and
    /// listeners, and follows what they name.
    pub(super) chosen: Option<BTreeMap<Kind, Names>>,
    /// What it has asked for on this stream.
    pub(super) asked: BTreeMap<Kind, Names>,
    pub(super) nonce: BTreeMap<Kind, String>,
    /// Responses received and not yet acknowledged.
    pub(super) inbox: VecDeque<Response>,
    /// Something was refused on this stream, or it began with things the server cannot know of (SotW names nothing
    /// it holds), or the client chooses by itself: then the server cannot vouch for the order.
    pub(super) loose: bool,
    /// It began this stream with a version, which is no word about what it holds (SotW).
    pub(super) named_version: bool,
    /// Nonces whose acknowledgement the server does not wait for: the client has asked for something else since.
    pub(super) overtaken: BTreeSet<String>,
    /// Types of which the client is owed an answer, be it empty.
    pub(super) owed: BTreeSet<Kind>,
    /// (kind, name, version) it has refused.
    refused: BTreeSet<(Kind, Arc<str>, Arc<str>)>,
    /// What the server cannot know that it holds (SotW): it had it when it came.
    pub(super) unheard: BTreeSet<(Kind, Arc<str>)>,
    /// What it has refused to give up.
    pub(super) kept: BTreeSet<(Kind, Arc<str>)>,
    /// What it was told last on this stream and has not refused, or claimed when it came.
    told: BTreeMap<Kind, Versions>,
    /// The same, as it was before each response.
    told_before: BTreeMap<String, Versions>,
    /// What may come although it was told: newly asked for, or its cluster has changed.
    fresh: BTreeSet<(Kind, Arc<str>)>,
    last_nonce: u64,
}

impl Holding {
    /// Nothing.
    pub(super) fn new(rendering: Rendering, chooses: bool) -> Self {
        Self { rendering, chosen: chooses.then(BTreeMap::new), ..Self::default() }
    }

    /// A new stream.
    pub(super) fn begin(&mut self, loose: bool) {
        self.inbox.clear();
        self.asked.clear();
        self.nonce.clear();
        self.overtaken.clear();
        self.owed.clear();
        self.refused.clear();
        self.kept.clear();
        self.unheard.clear();
        self.told.clear();
        self.told_before.clear();
        self.fresh.clear();
        self.last_nonce = 0;
        self.loose = loose || self.chosen.is_some();
    }

    /// The client has said that it holds these.
    pub(super) fn claims(&mut self, kind: Kind, versions: Versions) {
        self.told.insert(kind, versions);
    }

    /// From now on these are asked for by name; `again` are those that were not, or are asked for anew.
    pub(super) fn asks(&mut self, kind: Kind, names: Names, again: impl IntoIterator<Item = Arc<str>>) {
        self.fresh.extend(again.into_iter().map(|name| (kind, name)));
        self.asked.insert(kind, names);
        let keep = |asks: &Self, name: &str| asks.asks_for(kind, name);
        let mut told = self.told.remove(&kind).unwrap_or_default();
        told.retain(|name, _| keep(self, name));
        self.told.insert(kind, told);
        let mut held = self.versions.remove(&kind).unwrap_or_default();
        held.retain(|name, _| keep(self, name));
        self.versions.insert(kind, held);
    }

    /// The server is told nothing of what is held of this type.
    pub(super) fn hides(&mut self, kind: Kind) {
        let held = self.versions.get(&kind).into_iter().flat_map(Versions::keys);
        self.unheard.extend(held.map(|name| (kind, name.clone())));
    }

    /// The client begins from scratch with this type: it has no nonce to show. A list comes whole in any case.
    pub(super) fn forgets(&mut self, kind: Kind) {
        if !kind.has_wildcard() {
            self.told.remove(&kind);
        }
        self.owed.insert(kind);
    }

    /// It asks for something else of this type: the server does not wait for answers to what is under way.
    pub(super) fn overtakes(&mut self, kind: Kind) {
        let under_way = self.inbox.iter().filter(|r| r.kind == kind).map(|r| r.nonce.clone());
        self.overtaken.extend(under_way);
    }

    fn asks_for(&self, kind: Kind, name: &str) -> bool {
        let all = self.chosen.is_none() && kind.has_wildcard();
        all || self.asked.get(&kind).is_some_and(|names| names.contains(name))
    }

    /// What must hold for every response.
    pub(super) fn receive(&mut self, response: Response) {
        let (kind, nonce) = (response.kind, response.nonce.parse().unwrap());
        assert!(nonce > self.last_nonce, "nonces rise");
        self.last_nonce = nonce;
        let mut open = self.inbox.iter().filter(|open| !self.overtaken.contains(&open.nonce));
        assert!(!open.any(|open| open.kind == kind && overlaps(open, &response)), "one at a time");
        for resource in &response.resources {
            let refused = self.refused.contains(&(kind, resource.name.clone(), resource.version.clone()));
            assert!(!refused || (!response.delta && kind.has_wildcard()), "sent again: {resource:?}");
            assert!(self.asks_for(kind, &resource.name), "not asked for: {}", resource.name);
        }
        self.assert_order(&response);
        self.assert_news(&response);
        self.inbox.push_back(response);
    }

    /// Nothing comes before what it needs, or goes before what needs it.
    fn assert_order(&self, response: &Response) {
        if self.loose {
            return;
        }
        let clusters = self.known(Kind::Cluster);
        match response.kind {
            // Each route leads to the cluster of its own name.
            Kind::Endpoints | Kind::Route => {
                let led = response.resources.iter().all(|r| clusters.contains(&r.name));
                assert!(led, "{:?} before their cluster", response.kind);
            }
            Kind::Cluster => {
                let names = |kind| self.versions.get(&kind).into_iter().flat_map(Versions::keys);
                let listeners: BTreeSet<_> = names(Kind::Listener).collect();
                let gone = |name: &Arc<str>| {
                    if response.delta {
                        response.removed.contains(name)
                    } else {
                        !response.resources.iter().any(|r| r.name == *name)
                    }
                };
                let orphan = names(Kind::Route).find(|route| listeners.contains(route) && gone(route));
                assert_eq!(orphan, None, "a cluster gone before its route");
            }
            Kind::Listener => {}
        }
    }

    /// Nothing is said without a change, a new subscription or a first question.
    fn assert_news(&mut self, response: &Response) {
        let kind = response.kind;
        let owed = self.owed.remove(&kind);
        let before = self.told.remove(&kind).unwrap_or_default();
        let now = response.resources.iter().map(|r| (r.name.clone(), r.version.clone()));
        let changed: Names = response
            .resources
            .iter()
            .filter(|r| before.get(&r.name) != Some(&r.version))
            .map(|r| r.name.clone())
            .collect();
        let mut after: Versions = now.collect();
        if !response.delta && kind.has_wildcard() {
            assert!(owed || after != before, "the same {kind:?} again: {before:?}");
        } else {
            for name in after.keys().chain(&response.removed) {
                let fresh = self.fresh.remove(&(kind, name.clone()));
                let gone = response.removed.contains(name) && before.contains_key(name);
                assert!(fresh || gone || changed.contains(name), "{kind:?} {name} again, without a change");
            }
            assert!(owed || !after.is_empty() || !response.removed.is_empty(), "nothing, and nobody asked");
            for (name, version) in &before {
                after.entry(name.clone()).or_insert_with(|| version.clone());
            }
            after.retain(|name, _| !response.removed.contains(name));
        }
        if kind == Kind::Cluster {
            // Envoy waits for the endpoints of a cluster that has changed.
            self.fresh.extend(changed.into_iter().map(|name| (Kind::Endpoints, name)));
        }
        self.told.insert(kind, after);
        self.told_before.insert(response.nonce.clone(), before);
    }

    /// Names held or in the inbox.
    fn known(&self, kind: Kind) -> Names {
        let held = self.versions.get(&kind).into_iter().flat_map(Versions::keys);
        let under_way = self.inbox.iter().filter(|r| r.kind == kind).flat_map(|r| &r.resources);
        held.chain(under_way.map(|r| &r.name)).cloned().collect()
    }

    pub(super) fn apply(&mut self, response: &Response, refuse: bool) {
        let kind = response.kind;
        self.nonce.insert(kind, response.nonce.clone());
        if refuse {
            let versions = response.resources.iter().map(|r| (kind, r.name.clone(), r.version.clone()));
            self.refused.extend(versions);
            self.kept.extend(response.removed.iter().map(|name| (kind, name.clone())));
            self.loose = true;
            let before = self.told_before.remove(&response.nonce).unwrap_or_default();
            if !response.delta && kind.has_wildcard() {
                // What came after it took its place all the same.
                match self.inbox.iter().find(|later| later.kind == kind) {
                    Some(later) => self.told_before.insert(later.nonce.clone(), before),
                    None => self.told.insert(kind, before),
                };
            } else {
                // It may be told anything else, and that there is none.
                let unknown = response.resources.iter().map(|r| (r.name.clone(), Arc::from("")));
                self.told.entry(kind).or_default().extend(unknown);
            }
            return;
        }
        let mut held = self.versions.remove(&kind).unwrap_or_default();
        if !response.delta && kind.has_wildcard() {
            held.clear();
            self.unheard.retain(|(of, _)| *of != kind);
        }
        for resource in &response.resources {
            self.unheard.remove(&(kind, resource.name.clone()));
        }
        let wanted = response.resources.iter().filter(|r| self.asks_for(kind, &r.name));
        let taken: Versions = wanted.map(|r| (r.name.clone(), r.version.clone())).collect();
        let is_latest = !self.inbox.iter().any(|later| later.kind == kind);
        if !response.delta && kind.has_wildcard() && is_latest {
            // It may have stopped asking for some, and begun again, while they were on their way.
            self.told.entry(kind).or_default().extend(taken.clone());
        }
        held.extend(taken);
        held.retain(|name, _| !response.removed.contains(name));
        self.versions.insert(kind, held);
    }

    /// What it asks for by name. Of itself it asks for the endpoints of every cluster, and the routes of every
    /// listener.
    pub(super) fn wanted(&self, kind: Kind) -> Names {
        if let Some(chosen) = &self.chosen {
            return chosen.get(&kind).cloned().unwrap_or_default();
        }
        let of = match kind {
            Kind::Endpoints => Kind::Cluster,
            Kind::Route => Kind::Listener,
            Kind::Cluster | Kind::Listener => return Names::new(),
        };
        self.versions.get(&of).map(|held| held.keys().cloned().collect()).unwrap_or_default()
    }

    /// True if it has something to say about this type when it connects.
    pub(super) fn asks_at_first(&self, kind: Kind) -> bool {
        (self.chosen.is_none() && kind.has_wildcard()) || !self.wanted(kind).is_empty()
    }
}

fn overlaps(a: &Response, b: &Response) -> bool {
    let named = |r: &Response| -> Names { r.resources.iter().map(|r| r.name.clone()).collect() };
    !a.delta || named(a).intersection(&named(b)).next().is_some()
}
