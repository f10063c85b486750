//! The client side of xDS as Envoy 1.40 speaks it: messages in, messages out.
//!
//! Pure: no I/O.
//!
//! The order of requests is the one recorded from the real Envoy (`tests/it/transcript.rs` compares the two):
//! a new name is asked for before the message that brought it is acknowledged; at start CDS is acknowledged at once
//! and LDS waits until the first clusters have their endpoints; later the acknowledgement of CDS waits until each new
//! or changed cluster has its endpoints or has waited its `initial_fetch_timeout`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::referee::{Referee, Scope};
use super::transcript::{Entry, Kind};
use super::world::{self, Assignment, Decoded, Offer, Refusal, RefuseRule, World};
use super::{Asks, Node, Request, Response, Wire, delta, sotw};

/// What to say next; the wire format adds what it needs from the machine.
pub(super) enum Say {
    /// A changed subscription, or the first on a stream.
    Subscribe { kind: Kind, add: BTreeSet<String>, give_up: BTreeSet<String> },
    /// The same subscription again: SotW's hint that a cluster waits for endpoints.
    Hint { kind: Kind },
    /// Acceptance.
    Ack { kind: Kind, nonce: String },
    /// Refusal.
    Nack { kind: Kind, nonce: String, message: String },
}

/// A message in neutral form.
pub(super) struct Heard {
    pub(super) kind: Kind,
    pub(super) scope: Scope,
    pub(super) version: String,
    pub(super) nonce: String,
    pub(super) offers: Vec<Offer>,
    pub(super) removed: Vec<String>,
}

/// One subscribed type.
pub(super) struct Topic {
    pub(super) kind: Kind,
    pub(super) names: BTreeSet<String>,
    /// SotW: the version accepted last; outlives the stream.
    pub(super) version: String,
    /// Of the latest response on this stream.
    pub(super) nonce: String,
    /// Nothing was asked on this stream yet.
    pub(super) fresh: bool,
}

/// How far a starting Envoy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Static clusters wait for endpoints.
    Static,
    /// CDS was asked; nothing came yet.
    AwaitingClusters,
    /// The first clusters wait for endpoints.
    FirstClusters,
    /// Up.
    Live,
}

/// A simulated Envoy without sockets.
pub struct Machine {
    pub(super) wire: Wire,
    pub(super) node: Node,
    pub(super) node_due: bool,
    pub(super) world: World,
    asks: Asks,
    rules: Vec<RefuseRule>,
    topics: Vec<Topic>,
    stage: Stage,
    stream: u64,
    connected: bool,
    warming: BTreeSet<String>,
    withheld: Vec<Say>,
    referee: Referee,
    transcript: Vec<Entry>,
}

impl Machine {
    /// An Envoy that has never been connected.
    pub fn new(wire: Wire, node: Node, asks: Asks, rules: Vec<RefuseRule>) -> Self {
        Self {
            wire,
            node,
            node_due: true,
            world: World::default(),
            warming: asks.assignments.clone(),
            asks,
            rules,
            topics: Vec::new(),
            stage: Stage::Static,
            stream: 0,
            connected: false,
            withheld: Vec::new(),
            referee: Referee::default(),
            transcript: Vec::new(),
        }
    }

    /// A new stream: the requests to begin with.
    pub fn open(&mut self) -> Vec<Request> {
        self.stream += 1;
        self.connected = true;
        self.node_due = true;
        self.withheld.clear();
        self.referee.new_stream(self.stream);
        let mut says = Vec::new();
        for topic in &mut self.topics {
            topic.nonce.clear();
            topic.fresh = true;
            self.referee.asks(topic.kind, &topic.names, &BTreeSet::new());
            says.push(Say::Subscribe {
                kind: topic.kind,
                add: topic.names.clone(),
                give_up: BTreeSet::new(),
            });
        }
        if self.stream == 1 && !self.asks.assignments.is_empty() {
            says.extend(self.subscribe(Kind::Endpoint, self.asks.assignments.clone()));
        }
        says.extend(self.advance());
        self.encode(says)
    }

    /// The stream ended.
    pub fn closed(&mut self) {
        self.connected = false;
    }

    /// A response: the requests that follow.
    pub fn on_response(&mut self, response: &Response) -> Vec<Request> {
        let heard = match response {
            Response::Sotw(m) => sotw::hear(m),
            Response::Delta(m) => delta::hear(m),
        };
        let entry = match (response, &heard) {
            (Response::Delta(m), _) => Entry::delta_response(self.stream, m),
            (Response::Sotw(m), Some(heard)) => {
                Entry::sotw_response(self.stream, m, heard.offers.iter().map(|o| o.name.clone()).collect())
            }
            (Response::Sotw(m), None) => Entry::sotw_response(self.stream, m, BTreeSet::new()),
        };
        self.transcript.push(entry);
        let Some(heard) = heard else {
            self.referee.complain("a response of a type that nobody asked for".to_owned());
            return Vec::new();
        };
        self.referee.judge(heard.kind, heard.scope, &heard.nonce, &heard.offers, &self.world);
        let says = self.take(heard);
        self.encode(says)
    }

    /// How long the clusters that wait for endpoints wait, if any do.
    pub fn waits(&self) -> Option<Duration> {
        let sources = self.world.clusters.values().flatten();
        let waiting = sources.filter(|eds| self.warming.contains(&eds.name)).map(|eds| eds.fetch_timeout);
        let of_static = self.warming.iter().any(|name| self.asks.assignments.contains(name));
        waiting.chain(of_static.then_some(Duration::from_secs(1))).max()
    }

    /// That time is over: Envoy goes on with the endpoints it has.
    pub fn stop_waiting(&mut self) -> Vec<Request> {
        self.warming.clear();
        let says = self.warmed();
        self.encode(says)
    }

    /// `request` is on the wire.
    pub fn sent(&mut self, request: &Request) {
        self.transcript.push(match request {
            Request::Sotw(m) => Entry::sotw_request(self.stream, m),
            Request::Delta(m) => Entry::delta_request(self.stream, m),
        });
    }

    pub(super) fn topic(&self, kind: Kind) -> Option<&Topic> {
        self.topics.iter().find(|topic| topic.kind == kind)
    }

    pub(super) fn no_longer_fresh(&mut self, kind: Kind) -> bool {
        let topic = self.topics.iter_mut().find(|topic| topic.kind == kind);
        topic.is_some_and(|topic| std::mem::take(&mut topic.fresh))
    }

    /// Another request without a nonce: it may cross an answer to the one before, and then all of that comes again.
    pub(super) fn begins_again(&mut self, kind: Kind) {
        let names = self.topic(kind).map(|topic| topic.names.clone()).unwrap_or_default();
        self.referee.asks_again(kind, names);
    }

    fn encode(&mut self, says: Vec<Say>) -> Vec<Request> {
        let wire = self.wire;
        let encode = |say| match wire {
            Wire::Sotw => Request::Sotw(sotw::say(self, say)),
            Wire::Delta => Request::Delta(delta::say(self, say)),
        };
        says.into_iter().map(encode).collect()
    }

    fn subscribe(&mut self, kind: Kind, add: BTreeSet<String>) -> Option<Say> {
        let known = self.topics.iter_mut().find(|topic| topic.kind == kind);
        match known {
            Some(_) if add.is_empty() => return None,
            Some(topic) => topic.names.extend(add.iter().cloned()),
            None => {
                let (version, nonce) = (String::new(), String::new());
                self.topics.push(Topic { kind, names: add.clone(), version, nonce, fresh: true });
            }
        }
        self.referee.asks(kind, &add, &BTreeSet::new());
        Some(Say::Subscribe { kind, add, give_up: BTreeSet::new() })
    }

    fn take(&mut self, heard: Heard) -> Vec<Say> {
        let Heard { kind, scope, version, nonce, offers, mut removed } = heard;
        let Some(topic) = self.topics.iter_mut().find(|topic| topic.kind == kind) else {
            return Vec::new();
        };
        topic.nonce.clone_from(&nonce);
        let wanted = topic.names.clone();
        let mut good = Vec::new();
        let mut refusals = Vec::new();
        for offer in &offers {
            match self.check(kind, offer) {
                Ok(decoded) => good.push((offer, decoded)),
                Err(refusal) => refusals.push(refusal),
            }
        }
        if !refusals.is_empty() {
            return self.refuse(kind, scope, nonce, &offers, good, &refusals);
        }
        let topic = self.topics.iter_mut().find(|topic| topic.kind == kind);
        if let (Some(topic), Scope::Sotw) = (topic, scope) {
            topic.version = version;
        }
        if scope == Scope::Sotw && kind.is_wildcard() {
            let sent: BTreeSet<_> = offers.iter().map(|offer| &offer.name).collect();
            let held = self.world.held(kind).into_iter().flatten().map(|(name, _)| name);
            removed.extend(held.filter(|name| !sent.contains(name)).cloned());
        }
        let changed = self.changed(kind, &offers);
        for (offer, decoded) in good {
            if !kind.is_wildcard() && !wanted.contains(&offer.name) {
                continue; // Envoy ignores what it did not ask for.
            }
            if let Some(decoded) = decoded {
                self.world.apply(kind, &offer.name, decoded);
            }
            self.world.hold(kind, offer);
        }
        for name in &removed {
            self.world.remove(kind, name);
        }
        self.accepted(kind, nonce, &changed, &offers)
    }

    fn check(&self, kind: Kind, offer: &Offer) -> Result<Option<Decoded>, Refusal> {
        let Some(body) = &offer.body else { return Ok(None) };
        match self.rules.iter().find_map(|rule| rule(kind, &offer.name, body)) {
            Some(refusal) => Err(refusal),
            None => world::check(kind, &offer.name, body).map(Some),
        }
    }

    /// Names of resources that are new or have other content than held.
    fn changed(&self, kind: Kind, offers: &[Offer]) -> BTreeSet<String> {
        let changed = offers.iter().filter(|o| o.body.is_some() && !self.world.holds(kind, o));
        changed.map(|offer| offer.name.clone()).collect()
    }

    /// A refused message changes no version. What it held besides may be applied all the same.
    fn refuse(
        &mut self,
        kind: Kind,
        scope: Scope,
        nonce: String,
        offers: &[Offer],
        good: Vec<(&Offer, Option<Decoded>)>,
        refusals: &[Refusal],
    ) -> Vec<Say> {
        self.referee.refused(kind, scope, offers);
        self.referee.excuse(kind, offers.iter().map(|offer| offer.name.clone()));
        let mut says = Vec::new();
        if !refusals.iter().any(|refusal| refusal.spoils_message) {
            for (offer, decoded) in good {
                if let Some(decoded) = decoded {
                    self.world.apply(kind, &offer.name, decoded);
                }
            }
            says = self.follow(kind, &BTreeSet::new());
        }
        let message = refusals.iter().map(|r| r.message.as_str()).collect::<Vec<_>>().join("\n");
        says.push(Say::Nack { kind, nonce, message });
        says
    }

    fn accepted(
        &mut self,
        kind: Kind,
        nonce: String,
        changed: &BTreeSet<String>,
        offers: &[Offer],
    ) -> Vec<Say> {
        let mut says = self.follow(kind, changed);
        let ack = Say::Ack { kind, nonce };
        match kind {
            Kind::Cluster if self.stage == Stage::Live && !self.warming.is_empty() => {
                self.withheld.push(ack);
                return says;
            }
            Kind::Cluster => {
                says.push(ack);
                if self.stage == Stage::AwaitingClusters {
                    self.stage = Stage::FirstClusters;
                }
                says.extend(self.advance());
            }
            Kind::Endpoint => {
                for offer in offers {
                    self.warming.remove(&offer.name);
                }
                says.extend(self.warmed());
                says.push(ack);
            }
            Kind::Listener | Kind::Route => says.push(ack),
        }
        says
    }

    /// What a changed resource makes Envoy ask for or give up.
    fn follow(&mut self, kind: Kind, changed: &BTreeSet<String>) -> Vec<Say> {
        match kind {
            Kind::Cluster if self.asks.endpoints => self.follow_clusters(changed),
            Kind::Listener => {
                // Routes of a replaced listener stay subscribed while it drains, which takes ten minutes.
                let wanted = self.world.listeners.values().flatten().cloned();
                let known = self.topic(Kind::Route).map(|topic| topic.names.clone()).unwrap_or_default();
                let add: BTreeSet<_> = wanted.filter(|name| !known.contains(name)).collect();
                if add.is_empty() {
                    Vec::new()
                } else {
                    self.subscribe(Kind::Route, add).into_iter().collect()
                }
            }
            Kind::Cluster | Kind::Endpoint | Kind::Route => Vec::new(),
        }
    }

    fn follow_clusters(&mut self, changed: &BTreeSet<String>) -> Vec<Say> {
        let mut wanted = self.world.wanted_assignments();
        wanted.extend(self.asks.assignments.iter().cloned());
        let changed = changed.iter().filter_map(|name| self.world.clusters.get(name).cloned().flatten());
        let touched: BTreeSet<_> = changed.map(|eds| eds.name).collect();
        self.warming.retain(|name| wanted.contains(name));
        self.warming.extend(touched.iter().cloned());
        let known = self.topic(Kind::Endpoint).map(|topic| topic.names.clone());
        if known.is_none() && wanted.is_empty() {
            return Vec::new();
        }
        let known = known.unwrap_or_default();
        let add: BTreeSet<_> = wanted.difference(&known).cloned().collect();
        let give_up: BTreeSet<_> = known.difference(&wanted).cloned().collect();
        let say = if add.is_empty() && give_up.is_empty() {
            let hint = self.wire == Wire::Sotw && !touched.is_empty();
            hint.then_some(Say::Hint { kind: Kind::Endpoint })
        } else {
            self.subscribe(Kind::Endpoint, add.clone());
            if let Some(topic) = self.topics.iter_mut().find(|topic| topic.kind == Kind::Endpoint) {
                topic.names = wanted;
            }
            self.referee.asks(Kind::Endpoint, &BTreeSet::new(), &give_up);
            Some(Say::Subscribe { kind: Kind::Endpoint, add, give_up })
        };
        self.referee.excuse(Kind::Endpoint, touched);
        say.into_iter().collect()
    }

    /// Sends what waited for endpoints, if none are missing any more.
    fn warmed(&mut self) -> Vec<Say> {
        if !self.warming.is_empty() {
            return Vec::new();
        }
        let mut says = std::mem::take(&mut self.withheld);
        says.extend(self.advance());
        says
    }

    /// Takes the next steps of the start.
    fn advance(&mut self) -> Vec<Say> {
        let mut says = Vec::new();
        if self.stage == Stage::Static && self.warming.is_empty() {
            self.stage = if self.asks.clusters { Stage::AwaitingClusters } else { Stage::FirstClusters };
            if self.asks.clusters {
                says.extend(self.subscribe(Kind::Cluster, BTreeSet::new()));
            }
        }
        if self.stage == Stage::FirstClusters && self.warming.is_empty() {
            self.stage = Stage::Live;
            if self.asks.listeners {
                says.extend(self.subscribe(Kind::Listener, BTreeSet::new()));
            }
        }
        says
    }
}

/// What can be seen from outside.
impl Machine {
    /// The names of the clusters it has.
    pub fn clusters(&self) -> BTreeSet<String> {
        self.world.clusters.keys().cloned().collect()
    }

    /// The endpoints of an assignment; `None` if none ever came.
    pub fn assignment(&self, name: &str) -> Option<&Assignment> {
        self.world.assignments.get(name)
    }

    /// The names of the listeners it has.
    pub fn listeners(&self) -> BTreeSet<String> {
        self.world.listeners.keys().cloned().collect()
    }

    /// The names of the route tables it has.
    pub fn routes(&self) -> &BTreeSet<String> {
        &self.world.routes
    }

    /// The version it holds of a resource: delta its own, SotW that of the message that brought it.
    pub fn version(&self, kind: Kind, name: &str) -> Option<&str> {
        self.world.held(kind)?.get(name).map(|held| held.version.as_str())
    }

    /// A hash of each cluster, assignment and listener it holds: two Envoys that were told the same hold the same. (It
    /// never lets go of routes.)
    pub fn contents(&self) -> BTreeMap<(Kind, String), u64> {
        let held = self.world.held.iter().filter(|(kind, _)| **kind != Kind::Route);
        let all = held.flat_map(|(kind, held)| held.iter().map(|(name, held)| (*kind, name, held.content)));
        all.map(|(kind, name, content)| ((kind, name.clone()), content)).collect()
    }

    /// What was said so far.
    pub fn transcript(&self) -> &[Entry] {
        &self.transcript
    }

    /// What the server did wrong so far.
    pub fn violations(&self) -> &[String] {
        self.referee.violations()
    }

    /// How many streams there were.
    pub fn streams(&self) -> u64 {
        self.stream
    }

    /// True while a stream is open.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// True once the first clusters had their endpoints.
    pub fn is_live(&self) -> bool {
        self.stage == Stage::Live
    }
}
