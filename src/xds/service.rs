//! The gRPC methods: which path serves which types in which variant.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, header};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstDecoder;
use tower_service::Service;

use super::body::{Protocol, Shared, XdsBody};
use super::stream::{DeltaStream, SotwStream};
use crate::snapshot::{Door, Snapshot};

/// Largest request accepted, in bytes. An Envoy with tens of thousands of resources lists them all on reconnect.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// Ends the streams of one connection; lies in the extensions of its requests.
#[derive(Debug, Clone)]
pub(super) struct Leave(pub(super) CancellationToken);

/// Everything a stream needs from the process.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    pub(super) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(super) shared: Shared,
}

impl Streams {
    fn open<P: Protocol>(&self, request: Request<Body>, protocol: P, method: &'static str) -> Response<Body> {
        let Some(Leave(leave)) = request.extensions().get().cloned() else {
            return Status::internal("a stream without a connection").into_http();
        };
        let encoding = request.headers().get("grpc-encoding");
        if encoding.is_some_and(|e| e != "identity") {
            return Status::new(Code::Unimplemented, "compressed requests are not supported").into_http();
        }
        let decoder = ProstDecoder::<P::Request>::default();
        let requests = Streaming::new_request(decoder, request.into_body(), None, Some(MAX_REQUEST_BYTES));
        let snapshots = WatchStream::new(self.snapshots.clone());
        let shutdown = leave.cancelled_owned();
        let body = XdsBody::new(protocol, requests, snapshots, shutdown, method, self.shared.clone());
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

/// Declares one xDS service: its full name, and its two methods with the types they serve.
macro_rules! xds_service {
    ($name:ident, $service:literal, $sotw:literal, $delta:literal, $door:expr) => {
        #[derive(Debug, Clone)]
        pub(super) struct $name(pub(super) Streams);

        impl NamedService for $name {
            const NAME: &'static str = $service;
        }

        impl Service<Request<Body>> for $name {
            type Response = Response<Body>;
            type Error = Infallible;
            type Future = Ready<Result<Response<Body>, Infallible>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: Request<Body>) -> Self::Future {
                ready(Ok(match request.uri().path() {
                    concat!("/", $service, "/", $sotw) => self.0.open(request, SotwStream::new($door), $sotw),
                    concat!("/", $service, "/", $delta) => {
                        self.0.open(request, DeltaStream::new($door), $delta)
                    }
                    _ => Status::unimplemented("no such xDS method").into_http(),
                }))
            }
        }
    };
}

xds_service!(
    Aggregated,
    "envoy.service.discovery.v3.AggregatedDiscoveryService",
    "StreamAggregatedResources",
    "DeltaAggregatedResources",
    Door::Aggregated
);
xds_service!(
    Endpoints,
    "envoy.service.endpoint.v3.EndpointDiscoveryService",
    "StreamEndpoints",
    "DeltaEndpoints",
    Door::Endpoints
);
xds_service!(
    Clusters,
    "envoy.service.cluster.v3.ClusterDiscoveryService",
    "StreamClusters",
    "DeltaClusters",
    Door::Clusters
);
