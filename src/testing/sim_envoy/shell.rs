//! The machine on a real gRPC stream.
//!
//! One task: connect, converse, and when the stream ends connect again, as an Envoy does. The machine itself sits in
//! a `watch`, so that a test can look at it, or wait for it to change, at any time.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::{Asks, Assignment, Entry, Kind, Machine, Node, RefuseRule, Request, Response, Wire};
use crate::pb::envoy::service::cluster::v3::cluster_discovery_service_client::ClusterDiscoveryServiceClient as Cds;
use crate::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient as Ads;
use crate::pb::envoy::service::endpoint::v3::endpoint_discovery_service_client::EndpointDiscoveryServiceClient as Eds;
use crate::testing::eventually::patience;

/// Requests written and not yet taken by the connection. Envoy has no bound; a server that does not read shows here.
const QUEUE: usize = 256;

/// Which gRPC service the stream is opened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// `AggregatedDiscoveryService`.
    Ads,
    /// `ClusterDiscoveryService`.
    Cds,
    /// `EndpointDiscoveryService`.
    Eds,
}

/// How to simulate.
#[derive(Clone)]
pub struct SimOptions {
    /// The control plane.
    pub target: SocketAddr,
    /// The protocol.
    pub wire: Wire,
    /// The service.
    pub door: Door,
    /// Who it says it is.
    pub node: Node,
    /// What it asks for.
    pub asks: Asks,
    /// Resources to refuse besides what Envoy itself refuses.
    pub refuse: Vec<RefuseRule>,
    /// Pause before it connects again. Envoy's is jittered and grows; a test wants it short.
    pub reconnect_after: Duration,
    /// Note violations, but do not fail for them: for tests of bad servers.
    pub forgiving: bool,
}

impl SimOptions {
    /// An Envoy that takes everything from `target` over ADS.
    pub fn new(target: SocketAddr, wire: Wire) -> Self {
        Self {
            target,
            wire,
            door: Door::Ads,
            node: Node { id: "sim".to_owned(), cluster: "test".to_owned() },
            asks: Asks::everything(),
            refuse: Vec::new(),
            reconnect_after: Duration::from_millis(20),
            forgiving: false,
        }
    }
}

/// What the test does to the line.
#[derive(Debug, Clone, Copy)]
struct Gates {
    online: bool,
    hold_answers: bool,
    delay_answers: Duration,
}

/// A simulated Envoy on the line. Dropping it hangs up, and fails the test if the server broke the protocol.
pub struct SimEnvoy {
    machine: watch::Sender<Machine>,
    gates: watch::Sender<Gates>,
    forgiving: bool,
    _tasks: JoinSet<()>,
}

impl SimEnvoy {
    /// Begins to connect. Use [`SimEnvoy::wait_until`] to see it get somewhere.
    pub fn start(options: SimOptions) -> Self {
        let SimOptions { wire, node, asks, refuse, .. } = options.clone();
        let machine = watch::Sender::new(Machine::new(wire, node, asks, refuse));
        let gates = Gates { online: true, hold_answers: false, delay_answers: Duration::ZERO };
        let gates = watch::Sender::new(gates);
        let forgiving = options.forgiving;
        let line = Line { options, machine: machine.clone(), gates: gates.subscribe() };
        let mut tasks = JoinSet::new();
        tasks.spawn(line.run());
        Self { machine, gates, forgiving, _tasks: tasks }
    }

    /// Looks at the machine. The machine cannot move meanwhile, so `look` should be short.
    pub fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.machine.borrow())
    }

    /// The names of the clusters it has.
    pub fn clusters(&self) -> BTreeSet<String> {
        self.look(Machine::clusters)
    }

    /// The endpoints of an assignment; `None` if none ever came.
    pub fn assignment(&self, name: &str) -> Option<Assignment> {
        self.look(|machine| machine.assignment(name).cloned())
    }

    /// What was said so far.
    pub fn transcript(&self) -> Vec<Entry> {
        self.look(|machine| machine.transcript().to_vec())
    }

    /// Waits until `check` says `Ok`; its last `Err` says what was missing when `patience` ran out. Fails at once on a
    /// violation. Wakes with every message: nothing is missed between two looks but what came and went within one.
    pub async fn wait_until<T>(
        &self,
        what: &str,
        mut check: impl FnMut(&Machine) -> Result<T, String>,
    ) -> anyhow::Result<T> {
        let mut changes = self.machine.subscribe();
        let deadline = Instant::now() + patience();
        loop {
            let missing = {
                let machine = changes.borrow_and_update();
                if let (false, [first, ..]) = (self.forgiving, machine.violations()) {
                    bail!("{what}: the server broke the protocol: {first}\n{}", printed(&machine));
                }
                match check(&machine) {
                    Ok(value) => return Ok(value),
                    Err(missing) => missing,
                }
            };
            match tokio::time::timeout_at(deadline, changes.changed()).await {
                Ok(changed) => changed.context("the simulated Envoy is gone")?,
                Err(_) => bail!("{what}: {missing}\n{}", self.look(printed)),
            }
        }
    }

    /// Waits until it holds `version` of a resource.
    pub async fn wait_version(&self, kind: Kind, name: &str, version: &str) -> anyhow::Result<()> {
        self.wait_until(&format!("{kind:?} {name} in version {version}"), |machine| {
            match machine.version(kind, name) {
                Some(held) if held == version => Ok(()),
                held => Err(format!("held is {held:?}")),
            }
        })
        .await
    }

    /// From now on answers stay unsent (true) or flow again, those held back first (false).
    pub fn hold_answers(&self, hold: bool) {
        self.gates.send_modify(|gates| gates.hold_answers = hold);
    }

    /// Each answer from now on is sent this much later.
    pub fn delay_answers(&self, delay: Duration) {
        self.gates.send_modify(|gates| gates.delay_answers = delay);
    }

    /// Cuts the line and stays away until [`SimEnvoy::connect`].
    pub fn disconnect(&self) {
        self.gates.send_modify(|gates| gates.online = false);
    }

    /// Connects again, with what it knows.
    pub fn connect(&self) {
        self.gates.send_modify(|gates| gates.online = true);
    }
}

impl Drop for SimEnvoy {
    fn drop(&mut self) {
        let machine = self.machine.borrow();
        let excused = self.forgiving || std::thread::panicking();
        assert!(
            excused || machine.violations().is_empty(),
            "the server broke the protocol:\n{}\n{}",
            machine.violations().join("\n"),
            printed(&machine)
        );
    }
}

fn printed(machine: &Machine) -> String {
    let lines: Vec<_> = machine.transcript().iter().map(ToString::to_string).collect();
    format!("transcript:\n{}", lines.join("\n"))
}

/// The task's side.
struct Line {
    options: SimOptions,
    machine: watch::Sender<Machine>,
    gates: watch::Receiver<Gates>,
}

impl Line {
    async fn run(mut self) {
        loop {
            if self.gates.wait_for(|gates| gates.online).await.is_err() {
                return;
            }
            if let Err(error) = self.one_stream().await {
                tracing::debug!(%error, "the stream ended");
            }
            self.machine.send_modify(Machine::closed);
            tokio::time::sleep(self.options.reconnect_after).await;
        }
    }

    async fn one_stream(&mut self) -> anyhow::Result<()> {
        let channel = Endpoint::from_shared(format!("http://{}", self.options.target))?.connect().await?;
        match self.options.wire {
            Wire::Sotw => {
                let (to, from) = mpsc::channel(QUEUE);
                let pen =
                    Pen { to, unwrap: |request| if let Request::Sotw(m) = request { Some(m) } else { None } };
                let call = open_sotw(self.options.door, channel, ReceiverStream::new(from));
                self.converse(call, pen, Response::Sotw).await
            }
            Wire::Delta => {
                let (to, from) = mpsc::channel(QUEUE);
                let pen = Pen {
                    to,
                    unwrap: |request| if let Request::Delta(m) = request { Some(m) } else { None },
                };
                let call = open_delta(self.options.door, channel, ReceiverStream::new(from));
                self.converse(call, pen, Response::Delta).await
            }
        }
    }

    /// One stream from its first request to its end.
    async fn converse<Q, S>(
        &mut self,
        call: impl Future<Output = Result<Streaming<S>, Status>>,
        pen: Pen<Q>,
        wrap: fn(S) -> Response,
    ) -> anyhow::Result<()> {
        let mut outbox = Outbox::default();
        outbox.push(self.step(Machine::open), Duration::ZERO);
        outbox.flush(self, &pen).await?;
        let mut gates = self.gates.clone();
        let mut inbound = tokio::select! {
            opened = call => opened?,
            _ = gates.wait_for(|gates| !gates.online) => return Ok(()),
        };
        let mut give_up_at = None;
        loop {
            let waits = self.machine.borrow().waits();
            give_up_at = waits.map(|waits| give_up_at.unwrap_or_else(|| Instant::now() + waits));
            let due = outbox.due(&self.gates.borrow());
            // Every arm may be dropped: `message` and `changed` lose nothing, sleeping has no state.
            tokio::select! {
                biased;
                changed = gates.changed() => {
                    changed?;
                    if !gates.borrow_and_update().online {
                        return Ok(());
                    }
                }
                message = inbound.message() => {
                    let response = wrap(message?.context("the server ended the stream")?);
                    let delay = self.gates.borrow().delay_answers;
                    outbox.push(self.step(|machine| machine.on_response(&response)), delay);
                }
                () = sleep_until(due) => {}
                () = sleep_until(give_up_at) => {
                    outbox.push(self.step(Machine::stop_waiting), Duration::ZERO);
                }
            }
            outbox.flush(self, &pen).await?;
        }
    }

    fn step(&self, step: impl FnOnce(&mut Machine) -> Vec<Request>) -> Vec<Request> {
        let mut requests = Vec::new();
        self.machine.send_modify(|machine| requests = step(machine));
        requests
    }
}

/// The sending half of a stream that speaks `Q`.
struct Pen<Q> {
    to: mpsc::Sender<Q>,
    unwrap: fn(Request) -> Option<Q>,
}

impl<Q> Pen<Q> {
    async fn write(&self, request: Request) -> anyhow::Result<()> {
        let message = (self.unwrap)(request).context("a request of the other protocol")?;
        self.to.send(message).await.ok().context("the stream is closed")
    }
}

/// Requests not sent yet, in order: one that is held back holds back all after it.
#[derive(Default)]
struct Outbox {
    waiting: VecDeque<(Instant, Request)>,
}

impl Outbox {
    fn push(&mut self, requests: Vec<Request>, delay: Duration) {
        let due = |request: &Request| if request.answers() { Instant::now() + delay } else { Instant::now() };
        self.waiting.extend(requests.into_iter().map(|request| (due(&request), request)));
    }

    /// When the first is to be sent; `None` if there is none, or not before a gate opens.
    fn due(&self, gates: &Gates) -> Option<Instant> {
        let (due, request) = self.waiting.front()?;
        (!(gates.hold_answers && request.answers())).then_some(*due)
    }

    async fn flush<Q>(&mut self, line: &Line, pen: &Pen<Q>) -> anyhow::Result<()> {
        loop {
            let due = self.due(&line.gates.borrow());
            if due.is_none_or(|due| due > Instant::now()) {
                return Ok(());
            }
            let Some((_, request)) = self.waiting.pop_front() else { return Ok(()) };
            line.machine.send_modify(|machine| machine.sent(&request));
            pen.write(request).await?;
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

type SotwOut = ReceiverStream<crate::pb::envoy::service::discovery::v3::DiscoveryRequest>;
type SotwIn = Streaming<crate::pb::envoy::service::discovery::v3::DiscoveryResponse>;
type DeltaOut = ReceiverStream<crate::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest>;
type DeltaIn = Streaming<crate::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse>;

/// Envoy sets no limit on a message.
const NO_LIMIT: usize = usize::MAX;

async fn open_sotw(door: Door, channel: Channel, out: SotwOut) -> Result<SotwIn, Status> {
    let opened = match door {
        Door::Ads => {
            Ads::new(channel).max_decoding_message_size(NO_LIMIT).stream_aggregated_resources(out).await
        }
        Door::Cds => Cds::new(channel).max_decoding_message_size(NO_LIMIT).stream_clusters(out).await,
        Door::Eds => Eds::new(channel).max_decoding_message_size(NO_LIMIT).stream_endpoints(out).await,
    };
    opened.map(tonic::Response::into_inner)
}

async fn open_delta(door: Door, channel: Channel, out: DeltaOut) -> Result<DeltaIn, Status> {
    let opened = match door {
        Door::Ads => {
            Ads::new(channel).max_decoding_message_size(NO_LIMIT).delta_aggregated_resources(out).await
        }
        Door::Cds => Cds::new(channel).max_decoding_message_size(NO_LIMIT).delta_clusters(out).await,
        Door::Eds => Eds::new(channel).max_decoding_message_size(NO_LIMIT).delta_endpoints(out).await,
    };
    opened.map(tonic::Response::into_inner)
}
