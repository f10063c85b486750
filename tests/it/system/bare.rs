//! The xDS server alone, fed with worlds, and a client that says only what it is told to.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use prometheus_client::registry::Registry;
use prost::Message;
use tidegate::clock::Clock;
use tidegate::model::Serve;
use tidegate::pb::envoy::config::core::v3::Node;
use tidegate::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient as Ads;
use tidegate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use tidegate::pb::google::protobuf::Any;
use tidegate::snapshot::Snapshot;
use tidegate::testing::app::sample;
use tidegate::testing::eventually::patience;
use tidegate::testing::sim_envoy::{Kind, Wire};
use tidegate::testing::world::{Pool, World, Worlds};
use tidegate::xds::{self, Clients};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

/// An xDS server without anything behind it. It ends with the value.
pub(super) struct BareServer {
    pub(super) address: SocketAddr,
    pub(super) clients: Clients,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    worlds: Worlds,
    registry: Registry,
    _tasks: JoinSet<()>,
}

impl BareServer {
    pub(super) async fn start() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (snapshots, clients) = (watch::Sender::new(None), Clients::new());
        let mut registry = Registry::with_prefix("tidegate");
        let server = xds::Server::new(xds::ServerCtx {
            clock: Clock::start(),
            config: watch::channel(Arc::new(tidegate::testing::model::config([]))).1,
            snapshots: snapshots.subscribe(),
            clients: clients.clone(),
            metrics: xds::Metrics::register(&mut registry),
            port: tidegate::net::Ports::default().port("xds", usize::MAX),
            shutdown: CancellationToken::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(server.run(socket));
        Self { address, clients, snapshots, worlds: Worlds::default(), registry, _tasks: tasks }
    }

    pub(super) fn publish(&mut self, world: &World) -> Arc<Snapshot> {
        let snapshot = self.worlds.publish(world);
        self.snapshots.send_replace(Some(snapshot.clone()));
        snapshot
    }

    /// One sample of its metrics; zero if there is none yet.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        sample(&page, name).unwrap_or(0.0)
    }
}

enum Stream {
    Delta(mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>),
    Sotw(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>),
}

/// A client without a mind of its own, on an aggregated stream.
pub(super) struct RawClient {
    stream: Stream,
    /// Who it says it is, if it does.
    node: Option<Node>,
}

/// A response, in either variant.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) kind: Kind,
    pub(super) nonce: String,
    pub(super) resources: Vec<Any>,
    pub(super) removed: Vec<String>,
}

impl RawClient {
    pub(super) async fn connect(to: SocketAddr, wire: Wire) -> Self {
        let client = Ads::connect(format!("http://{to}")).await.unwrap();
        // What is removed may be as much as was claimed.
        let mut client = client.max_decoding_message_size(usize::MAX);
        let stream = match wire {
            Wire::Delta => {
                let (to, from) = mpsc::channel(16);
                let stream = client.delta_aggregated_resources(ReceiverStream::new(from)).await.unwrap();
                Stream::Delta(to, stream.into_inner())
            }
            Wire::Sotw => {
                let (to, from) = mpsc::channel(16);
                let stream = client.stream_aggregated_resources(ReceiverStream::new(from)).await.unwrap();
                Stream::Sotw(to, stream.into_inner())
            }
        };
        Self { stream, node: None }
    }

    pub(super) async fn connect_as(node: &str, to: SocketAddr, wire: Wire) -> Self {
        let node = Node { id: node.to_owned(), ..Default::default() };
        Self { node: Some(node), ..Self::connect(to, wire).await }
    }

    /// Asks for names, or takes the response of `nonce` and goes on asking for them.
    pub(super) async fn ask(&self, kind: Kind, names: &[&str], nonce: &str) {
        let (type_url, response_nonce) = (kind.type_url().to_owned(), nonce.to_owned());
        let node = self.node.clone();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        match &self.stream {
            Stream::Delta(to, _) => {
                // What has been asked for once is not asked for again.
                let resource_names_subscribe = if nonce.is_empty() { names } else { Vec::new() };
                let request = DeltaDiscoveryRequest {
                    type_url,
                    response_nonce,
                    resource_names_subscribe,
                    node,
                    ..Default::default()
                };
                to.send(request).await.unwrap();
            }
            Stream::Sotw(to, _) => {
                let request = DiscoveryRequest {
                    type_url,
                    response_nonce,
                    resource_names: names,
                    node,
                    ..Default::default()
                };
                to.send(request).await.unwrap();
            }
        }
    }

    /// Comes back with what it holds of wildcard `kind`. SotW can only ask for the names.
    pub(super) async fn come_back(&self, kind: Kind, held: &[String]) {
        let type_url = kind.type_url().to_owned();
        match &self.stream {
            Stream::Delta(to, _) => {
                let versions = held.iter().map(|name| (name.clone(), "0123456789abcdef".repeat(2)));
                let initial_resource_versions = versions.collect();
                let request =
                    DeltaDiscoveryRequest { type_url, initial_resource_versions, ..Default::default() };
                to.send(request).await.unwrap();
            }
            Stream::Sotw(to, _) => {
                let request =
                    DiscoveryRequest { type_url, resource_names: held.to_vec(), ..Default::default() };
                to.send(request).await.unwrap();
            }
        }
    }

    /// Reads the next message.
    pub(super) async fn read(&mut self) -> Heard {
        tokio::time::timeout(patience(), self.next()).await.expect("the server says something")
    }

    async fn next(&mut self) -> Heard {
        match &mut self.stream {
            Stream::Delta(_, from) => {
                let m = from.message().await.unwrap().unwrap();
                Heard {
                    kind: Kind::of(&m.type_url).unwrap(),
                    nonce: m.nonce,
                    resources: m.resources.into_iter().filter_map(|r| r.resource).collect(),
                    removed: m.removed_resources,
                }
            }
            Stream::Sotw(_, from) => {
                let m = from.message().await.unwrap().unwrap();
                Heard {
                    kind: Kind::of(&m.type_url).unwrap(),
                    nonce: m.nonce,
                    resources: m.resources,
                    removed: Vec::new(),
                }
            }
        }
    }
}

/// What opens a SotW stream over plain HTTP/2, and then asks for all clusters.
pub(super) fn question(to: SocketAddr) -> (http::Request<()>, Bytes) {
    let path = "envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    let request = http::Request::post(format!("http://{to}/{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let asks = DiscoveryRequest { type_url: Kind::Cluster.type_url().to_owned(), ..Default::default() };
    let asks = asks.encode_to_vec();
    let length = u32::try_from(asks.len()).unwrap().to_be_bytes();
    (request.body(()).unwrap(), Bytes::from([&[0], &length[..], &asks].concat()))
}

/// Which clusters there are, with which endpoints, routed or not.
pub(super) fn random_world(random: &mut fastrand::Rng) -> World {
    let mut world = World::new();
    for name in ["a", "b", "c", "d"] {
        if random.u8(0..4) > 0 {
            let serves = [Serve::Healthy, Serve::Unhealthy, Serve::Degraded, Serve::Draining, Serve::Absent];
            let serves = (0..random.usize(0..5)).map(|_| serves[random.usize(0..serves.len())]).collect();
            world.insert(name, (Pool::Decided(serves), random.bool()));
        }
    }
    world
}
