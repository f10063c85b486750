//! An ADS server that says what the test tells it to and writes down what it hears.
//!
//! It imitates no control plane: it has no state, answers nothing by itself and checks nothing. Its use is to hold
//! one and the same conversation with a real Envoy and with [`crate::testing::sim_envoy`], so that their transcripts
//! can be compared, which is what keeps the simulation honest.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::Pin;

use anyhow::{Context, ensure};
use futures_util::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use super::eventually::patience;
use super::sim_envoy::{Entry, Kind, Speaker};
use crate::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use crate::pb::google::protobuf::Any;

/// Messages waiting for a client that does not read; scripts are short.
const QUEUE: usize = 64;

type Outbound<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What to say: resources with their names and encoded bodies.
#[derive(Debug, Clone)]
pub struct Say {
    /// The type of everything in it.
    pub kind: Kind,
    /// SotW: the version of the message. Delta: the version of each resource.
    pub version: String,
    /// Name and body.
    pub resources: Vec<(String, Any)>,
    /// Delta only: names removed.
    pub removed: Vec<String>,
}

enum Mouth {
    Sotw(mpsc::Sender<Result<DiscoveryResponse, Status>>),
    Delta(mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>),
}

/// The latest stream and everything heard and said on all of them.
#[derive(Default)]
struct Room {
    streams: u64,
    said: u64,
    mouth: Option<Mouth>,
    transcript: Vec<Entry>,
}

/// The server. It stops when dropped.
pub struct ScriptedAds {
    address: SocketAddr,
    room: watch::Sender<Room>,
    _tasks: JoinSet<()>,
}

impl ScriptedAds {
    /// Listens on an ephemeral loopback port.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let room = watch::Sender::new(Room::default());
        let service = AggregatedDiscoveryServiceServer::new(Ear { room: room.clone() });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            if let Err(error) = server.serve_with_incoming(TcpListenerStream::new(listener)).await {
                tracing::error!(%error, "the scripted control plane stopped");
            }
        });
        Ok(Self { address, room, _tasks: tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says it on the latest stream.
    pub async fn say(&self, say: Say) -> anyhow::Result<()> {
        let mut waiting = None;
        self.room.send_modify(|room| waiting = room.prepare(say));
        waiting.context("no stream is open")?.await
    }

    /// Ends the latest stream, as a restart of the control plane would.
    pub fn hang_up(&self) {
        self.room.send_modify(|room| room.mouth = None);
    }

    /// Everything so far.
    pub fn transcript(&self) -> Vec<Entry> {
        self.room.borrow().transcript.clone()
    }

    /// Everything the client said, one line per message.
    pub fn heard(&self) -> Vec<String> {
        self.room.borrow().heard().map(Entry::to_string).collect()
    }

    /// Waits until the client has said `count` messages in all, and returns as soon as the last of them arrives.
    pub async fn wait_heard(&self, count: usize) -> anyhow::Result<()> {
        let mut changes = self.room.subscribe();
        let enough = changes.wait_for(|room| room.heard().count() >= count);
        let came = tokio::time::timeout(patience(), enough).await.is_ok();
        ensure!(came, "{count} messages from the client; heard so far:\n{}", self.heard().join("\n"));
        Ok(())
    }
}

type Waiting = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

impl Room {
    fn heard(&self) -> impl Iterator<Item = &Entry> {
        self.transcript.iter().filter(|entry| entry.speaker == Speaker::Client)
    }

    /// Writes `say` down and gives back the sending, which must not happen while the room is borrowed.
    fn prepare(&mut self, say: Say) -> Option<Waiting> {
        self.said += 1;
        let nonce = format!("n{}", self.said);
        let names: BTreeSet<String> = say.resources.iter().map(|(name, _)| name.clone()).collect();
        let type_url = say.kind.type_url().to_owned();
        match self.mouth.as_ref()? {
            Mouth::Sotw(to) => {
                let resources = say.resources.into_iter().map(|(_, body)| body).collect();
                let m = DiscoveryResponse {
                    version_info: say.version,
                    resources,
                    type_url,
                    nonce,
                    ..Default::default()
                };
                self.transcript.push(Entry::sotw_response(self.streams, &m, names));
                let to = to.clone();
                Some(Box::pin(async move { Ok(to.send(Ok(m)).await?) }))
            }
            Mouth::Delta(to) => {
                let resource = |(name, body)| Resource {
                    name,
                    version: say.version.clone(),
                    resource: Some(body),
                    ..Default::default()
                };
                let resources = say.resources.into_iter().map(resource).collect();
                let removed_resources = say.removed;
                let m = DeltaDiscoveryResponse {
                    resources,
                    type_url,
                    removed_resources,
                    nonce,
                    ..Default::default()
                };
                self.transcript.push(Entry::delta_response(self.streams, &m));
                let to = to.clone();
                Some(Box::pin(async move { Ok(to.send(Ok(m)).await?) }))
            }
        }
    }
}

/// The gRPC side.
struct Ear {
    room: watch::Sender<Room>,
}

impl Ear {
    /// One stream: what is heard goes to the room while the room's mouth is drained to the client.
    fn converse<Q, S>(
        &self,
        mut inbound: Streaming<Q>,
        mouth: impl FnOnce(mpsc::Sender<Result<S, Status>>) -> Mouth,
        note: fn(u64, &Q) -> Entry,
    ) -> Outbound<S>
    where
        Q: Send + 'static,
        S: Send + 'static,
    {
        let (to, from) = mpsc::channel(QUEUE);
        let room = self.room.clone();
        room.send_modify(|room| {
            room.streams += 1;
            room.mouth = Some(mouth(to));
        });
        let stream = room.borrow().streams;
        let listen = async move {
            while let Some(Ok(message)) = inbound.next().await {
                room.send_modify(|room| room.transcript.push(note(stream, &message)));
            }
        };
        // Listening is polled with the outbound stream: it ends with the call and needs no task.
        let listen = futures_util::stream::once(listen).filter_map(async |()| None::<Result<S, Status>>);
        let speak = ReceiverStream::new(from).map(Some).chain(futures_util::stream::once(async { None }));
        let both = futures_util::stream::select(listen.map(Some), speak);
        Box::pin(both.take_while(|item| std::future::ready(item.is_some())).filter_map(async |item| item))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ear {
    type StreamAggregatedResourcesStream = Outbound<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Outbound<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Ok(Response::new(self.converse(request.into_inner(), Mouth::Sotw, Entry::sotw_request)))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Ok(Response::new(self.converse(request.into_inner(), Mouth::Delta, Entry::delta_request)))
    }
}
