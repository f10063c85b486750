//! One xDS stream as an HTTP/2 response body.
//!
//! The body is polled only when the client has room for more. It then reads requests, asks the stream machine for the
//! next response against the newest snapshot, and yields its frames. So there is no task, no channel and no queue per
//! client, and a slow client gets the newest state, not the ones between.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use prost::Message;
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::clients::Clients;
use super::machine::Machine;
use super::metrics::{Metrics, USUAL_LIMIT};
use super::probation::{Probation, Record};
use super::requests::{Requests, Room};
use super::stream::{Protocol, Response, Verdict};
use super::strikes::{HeldBack, REACTION};
use super::wire::{self, Frames, NodeHead, Piece};
use crate::clock::Clock;
use crate::model::{ClientId, MonoTime};
use crate::snapshot::{Kind, Rendering, Snapshot};

/// Requests read in a row before the body looks for something to send. A client that floods us only delays itself.
const REQUESTS_PER_POLL: usize = 64;

/// Room kept for times of sending.
const KEPT: usize = 2;

/// Responses are made ahead up to about so many bytes.
const TOGETHER: usize = 8 * 1024;

/// Longest node id and agent kept, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// What every stream shares.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) clients: Clients,
    pub(super) metrics: Metrics,
    pub(super) record: Record,
    pub(super) room: Room,
}

/// Removes the stream from the table and the gauge however it ends.
struct Registration {
    id: ClientId,
    shared: Shared,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.clients.close(self.id);
        self.shared.metrics.streams.dec();
        tracing::info!(client = %self.id, "xds stream closed");
    }
}

pub(super) struct XdsBody<P: Protocol> {
    machine: Machine<P>,
    requests: Requests<P::Request>,
    snapshots: WatchStream<Option<Arc<Snapshot>>>,
    /// The connection is to end, and its streams with it.
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
    snapshot: Option<Arc<Snapshot>>,
    frames: Frames,
    /// When each unacknowledged response was sent.
    sent_at: VecDeque<(String, Kind, MonoTime)>,
    /// Who the client says it is: in its first message.
    node: Option<Arc<str>>,
    /// Earlier streams of the node ended over something.
    probation: Option<Box<Probation>>,
    /// How the stream ends, once what waits is sent.
    farewell: Option<Status>,
    ended: bool,
    registration: Registration,
}

impl<P: Protocol> XdsBody<P> {
    pub(super) fn new(
        protocol: P,
        requests: Requests<P::Request>,
        snapshots: WatchStream<Option<Arc<Snapshot>>>,
        leave: WaitForCancellationFutureOwned,
        method: &'static str,
        shared: Shared,
    ) -> Self {
        let machine = Machine::new(protocol);
        let id = shared.clients.open(method, shared.clock.now(), machine.inspect());
        shared.metrics.streams.inc();
        Self {
            machine,
            requests,
            snapshots,
            leave: Box::pin(leave),
            snapshot: None,
            frames: Frames::default(),
            sent_at: VecDeque::new(),
            node: None,
            probation: None,
            farewell: None,
            ended: false,
            registration: Registration { id, shared },
        }
    }

    fn take(&mut self, mut request: P::Request) -> Result<(), Status> {
        let now = self.registration.shared.clock.now();
        let node = P::node(&mut request);
        if self.node.is_none() {
            self.introduce(node);
        }
        let verdict = self
            .machine
            .with(|protocol| protocol.on_request(&request))
            .map_err(|refusal| Status::resource_exhausted(refusal.to_string()))?;
        self.account(P::nonce(&request), &verdict, now);
        if P::changes_endpoints(&request) {
            let clients = &self.registration.shared.clients;
            let client = self.registration.id;
            self.machine.with(|protocol| clients.asks_for(client, protocol.endpoints_asked_for()));
        }
        self.bear_witness();
        Ok(())
    }

    fn introduce(&mut self, node: Bytes) {
        // A node that does not parse names nobody; the protocol does not need it.
        let head = NodeHead::decode(node).unwrap_or_default();
        let version = head.version();
        let names = [&head.id, &head.user_agent_name, &version].map(|name| Arc::from(clipped(name)));
        let [node, agent, _]: &[Arc<str>; 3] = &names;
        let Shared { clients, record, clock, .. } = &self.registration.shared;
        let client = self.registration.id;
        tracing::info!(%client, %node, %agent, "xds stream opened");
        self.machine.with(|protocol| protocol.render(Rendering::of_agent(agent)));
        self.node = Some(node.clone());
        clients.name(client, names.clone());
        self.probation = Probation::of(record, node, *clock);
        let now = clock.now();
        for held in self.probation.iter().flat_map(|probation| probation.held()) {
            self.machine.with(|protocol| protocol.hold_back(&held.suspect));
            clients.held_back(client, &held.suspect, &held.to_string(), now);
        }
    }

    /// What has been kept from the client for long enough is sent to it again.
    fn poll_probation(&mut self, cx: &mut Context<'_>) {
        let Some(probation) = &mut self.probation else { return };
        let Shared { clients, clock, .. } = &self.registration.shared;
        for HeldBack { suspect, .. } in probation.poll(*clock, cx) {
            self.machine.with(|protocol| protocol.try_again(&suspect));
            clients.tried_again(self.registration.id, &suspect);
        }
    }

    fn account(&mut self, nonce: &str, verdict: &Verdict, now: MonoTime) {
        let Shared { metrics, clients, .. } = &self.registration.shared;
        let client = self.registration.id;
        let sent = self.sent_at.iter().position(|(sent, ..)| sent == nonce);
        if let Some((_, kind, sent)) = sent.and_then(|at| self.sent_at.remove(at)) {
            metrics.of(kind).ack_seconds.observe(now.since(sent).as_secs_f64());
            if self.sent_at.is_empty() {
                self.sent_at.shrink_to(KEPT); // a burst leaves nothing behind
            }
        }
        match verdict {
            Verdict::None => {}
            Verdict::Acked(kind, ..) => {
                metrics.of(*kind).acks.inc();
            }
            Verdict::Nacked(kind, resources, gone, message) => {
                metrics.of(*kind).nacks.inc();
                let names: Vec<&str> = resources.iter().map(|r| &*r.name).collect();
                tracing::warn!(%client, r#type = kind.as_str(), ?names, ?gone, %message, "xds response refused");
            }
        }
        if let Some(probation) = &self.probation {
            probation.hear(verdict, now);
        }
        clients.record(client, verdict, now, |kind| self.waiting_since(kind));
    }

    /// When the oldest response of `kind` that has no answer was sent.
    fn waiting_since(&self, kind: Kind) -> Option<MonoTime> {
        self.sent_at.iter().find(|(_, of, _)| *of == kind).map(|(.., at)| *at)
    }

    /// Records what the client knows of clusters in which somebody drains.
    fn bear_witness(&self) {
        let Some(snapshot) = self.snapshot.as_ref().filter(|snapshot| !snapshot.witnessed().is_empty())
        else {
            return;
        };
        let Registration { id, shared } = &self.registration;
        self.machine.with(|protocol| {
            let endpoints = protocol.set_of(Kind::Endpoints, snapshot);
            for name in snapshot.witnessed().intersection(protocol.endpoints_asked_for()) {
                let Some(resource) = endpoints.resources.get(name) else { continue };
                if protocol.has_settled(name, resource) {
                    shared.clients.settled(*id, name, resource.generation);
                }
            }
        });
    }

    fn queue(&mut self, response: &Response) {
        let Shared { metrics, clock, .. } = &self.registration.shared;
        let size = wire::put(response, &mut self.frames);
        if metrics.of(response.kind).sent(size) {
            tracing::warn!(
                client = %self.registration.id, r#type = response.kind.as_str(), bytes = size, limit = USUAL_LIMIT,
                "xds response close to the largest message that gRPC libraries accept by default, or beyond it"
            );
        }
        // A response that the machine took for lost is never acknowledged: one per type is the most that is useful.
        if !response.delta {
            self.sent_at.retain(|(_, kind, _)| *kind != response.kind);
        }
        let now = clock.now();
        self.sent_at.push_back((response.nonce.clone(), response.kind, now));
        let oldest = self.waiting_since(response.kind).unwrap_or(now);
        self.registration.shared.clients.sent(self.registration.id, response.kind, oldest);
        tracing::debug!(
            client = %self.registration.id, r#type = response.kind.as_str(), nonce = response.nonce,
            resources = response.resources.len(), removed = response.removed.len(), "xds response"
        );
    }

    fn end(&mut self, status: &Status) -> Frame<Piece> {
        self.ended = true;
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", http::HeaderValue::from_static("13"));
        }
        Frame::trailers(trailers)
    }

    /// Reads requests until there are none, or enough to send. `Some` is the stream's end.
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Option<Status> {
        for _ in 0..REQUESTS_PER_POLL {
            match self.requests.poll_next(cx) {
                Poll::Pending => return None,
                Poll::Ready(None) => return Some(Status::ok("")),
                Poll::Ready(Some(Err(status))) => return Some(status),
                Poll::Ready(Some(Ok(request))) => {
                    if let Err(status) = self.take(request) {
                        return Some(status);
                    }
                    self.poll_response();
                    if self.frames.len() >= TOGETHER {
                        return None;
                    }
                }
            }
        }
        cx.waker().wake_by_ref();
        None
    }

    /// Small responses go out together: a frame each would cost more than what is in it.
    fn poll_response(&mut self) {
        let Some(snapshot) = self.snapshot.take() else { return };
        while self.frames.len() < TOGETHER
            && let Some(response) = self.machine.with(|protocol| protocol.next(&snapshot))
        {
            self.queue(&response);
        }
        self.snapshot = Some(snapshot);
    }
}

/// What a client is told whose stream we end.
fn goodbye() -> Status {
    Status::unavailable("tidegate ends this stream: connect again")
}

/// What is kept of a name that a peer gave.
fn clipped(name: &str) -> &str {
    name.get(..name.floor_char_boundary(MAX_NAME_BYTES)).unwrap_or_default()
}

impl<P: Protocol> XdsBody<P> {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(frame) = self.frames.pop() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        if self.leave.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Ok(self.end(&goodbye()))));
        }
        while let Poll::Ready(next) = Pin::new(&mut self.snapshots).poll_next(cx) {
            match next {
                Some(snapshot) => {
                    self.snapshot = snapshot;
                    // What is the same as before needs no push to be known.
                    self.bear_witness();
                }
                // The publisher is gone: the process is ending.
                None => {
                    return Poll::Ready(Some(Ok(self.end(&goodbye()))));
                }
            }
        }
        self.poll_probation(cx);
        self.poll_response();
        if self.frames.is_empty() && self.farewell.is_none() {
            self.farewell = self.poll_requests(cx);
        }
        if let Some(frame) = self.frames.pop() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        match self.farewell.take() {
            Some(status) => Poll::Ready(Some(Ok(self.end(&status)))),
            None => {
                self.machine.sleeps(cx);
                Poll::Pending
            }
        }
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }
}

/// A stream that nobody ended properly: if the client was sent something just before, it may have ended over that.
impl<P: Protocol> Drop for XdsBody<P> {
    fn drop(&mut self) {
        let Registration { id, shared: Shared { clock, clients, metrics, record, .. } } = &self.registration;
        let now = clock.now();
        let (Some(node), Some((nonce, kind, sent))) = (&self.node, self.sent_at.front()) else { return };
        if self.ended || self.farewell.is_some() || node.is_empty() || now.since(*sent) > REACTION {
            return;
        }
        let Some(suspect) = self.machine.with(|protocol| protocol.suspect(nonce)) else { return };
        let (name, version) = (suspect.title().to_owned(), suspect.version.clone());
        let strikes = record.strike(node, suspect, now);
        metrics.of(*kind).strikes.inc();
        clients.ended_over(*id, *kind, &name);
        tracing::warn!(
            client = %id, %node, r#type = kind.as_str(), name, %version, strikes,
            "xds stream ended right after this was sent"
        );
    }
}
