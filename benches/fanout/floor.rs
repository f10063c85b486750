//! The floor: what any tonic server costs that sends these bytes to these clients. It keeps no state: the first request
//! for a type is answered with everything, a flip with one message made beforehand, and ACKs are read and forgotten.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use tidegate::model::MonoTime;
use tidegate::net;
use tidegate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use tidegate::pb::google::protobuf::Any;
use tidegate::snapshot::{Kind, Snapshot};
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;

use crate::role::{Commands, listening};
use crate::world::{Size, World};

pub async fn run(size: Size) -> anyhow::Result<()> {
    let mut world = World::new(size);
    let well = Snapshot::default().update(&world.config, &world.plan(MonoTime::ZERO));
    world.flip(0, 0);
    let ill = well.update(&world.config, &world.plan(MonoTime::ZERO));
    let flips = [&ill, &well].map(|snapshot| message(snapshot, Kind::Endpoints, 1));
    let flip = watch::Sender::new(Bytes::new());
    let all = [Kind::Cluster, Kind::Endpoints].map(|kind| message(&well, kind, usize::MAX));
    let floor = Floor { all, flips: flip.subscribe() };
    let clock = tidegate::clock::Clock::start();
    let listener = net::bind(clock, "listen.xds", ([127, 0, 0, 1], 0).into()).await?;
    listening(listener.local_addr()?);
    let incoming = TcpListenerStream::new(listener).map(|socket| {
        let socket = socket?;
        socket.set_nodelay(true)?;
        std::io::Result::Ok(socket)
    });
    let mut server = tokio::task::JoinSet::new();
    server.spawn(tonic::transport::Server::builder().add_service(floor).serve_with_incoming(incoming));
    let mut commands = Commands::new();
    let mut turns = flips.iter().cycle();
    while commands.next().await.is_some() {
        flip.send_replace(turns.next().cloned().unwrap_or_default());
    }
    Ok(())
}

/// The first `count` resources of a kind as one response.
fn message(snapshot: &Snapshot, kind: Kind, count: usize) -> Bytes {
    let resources = snapshot.set(kind).resources.values().take(count).map(|resource| Resource {
        name: resource.name.to_string(),
        version: resource.version.to_string(),
        resource: Any::decode(&**resource.delta_parts()[1]).ok(),
        ..Default::default()
    });
    let response = DeltaDiscoveryResponse {
        resources: resources.collect(),
        type_url: kind.type_url().to_owned(),
        nonce: "1".to_owned(),
        ..Default::default()
    };
    response.encode_to_vec().into()
}

#[derive(Clone)]
struct Floor {
    /// All clusters, all endpoints.
    all: [Bytes; 2],
    flips: watch::Receiver<Bytes>,
}

impl NamedService for Floor {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl Service<http::Request<Body>> for Floor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let floor = self.clone();
        Box::pin(async move { Ok(Grpc::new(Raw).streaming(floor, request).await) })
    }
}

impl StreamingService<Bytes> for Floor {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let all = self.all.clone().map(Some);
        let flips = WatchStream::from_changes(self.flips.clone());
        ready(Ok(Response::new(Answers { requests: request.into_inner(), all, flips })))
    }
}

struct Answers {
    requests: Streaming<Bytes>,
    all: [Option<Bytes>; 2],
    flips: WatchStream<Bytes>,
}

impl Answers {
    /// The answer to a request, if it is the first for its type.
    fn answer(&mut self, request: Bytes) -> Option<Bytes> {
        let [clusters, endpoints] = &mut self.all;
        if clusters.is_none() && endpoints.is_none() {
            return None;
        }
        let request = DeltaDiscoveryRequest::decode(request).ok()?;
        let asked_for = if request.type_url == Kind::Cluster.type_url() { clusters } else { endpoints };
        asked_for.take()
    }
}

impl Stream for Answers {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Poll::Ready(flip) = Pin::new(&mut this.flips).poll_next(cx) {
            return Poll::Ready(flip.map(Ok));
        }
        while let Poll::Ready(request) = Pin::new(&mut this.requests).poll_next(cx) {
            let Some(Ok(request)) = request else { return Poll::Ready(None) };
            if let Some(answer) = this.answer(request) {
                return Poll::Ready(Some(Ok(answer)));
            }
        }
        Poll::Pending
    }
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
