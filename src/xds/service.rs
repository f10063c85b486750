//! The gRPC methods: which path serves which types in which variant.
//!
//! A service of hyper, not of tonic: between a stream and its connection lies nothing but the body, which tonic would
//! wrap four times.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::body::{Shared, XdsBody};
use super::requests::{MAX_REQUEST_BYTES, Requests};
use super::stream::{DeltaStream, Protocol, SotwStream};
use super::wire::Piece;
use crate::snapshot::{Door, Snapshot};

/// Everything the streams of one connection need.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    pub(super) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(super) shared: Shared,
    /// Ends them.
    pub(super) leave: CancellationToken,
}

impl Streams {
    fn open<P: Protocol>(&self, request: Request<Incoming>, protocol: P, method: &'static str) -> XdsBody<P> {
        let requests = Requests::new(request.into_body(), MAX_REQUEST_BYTES, self.shared.room.clone());
        let snapshots = WatchStream::new(self.snapshots.clone());
        let leave = self.leave.clone().cancelled_owned();
        XdsBody::new(protocol, requests, snapshots, leave, method, self.shared.clone())
    }
}

impl Service<Request<Incoming>> for Streams {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Answer>, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let encoding = request.headers().get("grpc-encoding");
        if encoding.is_some_and(|e| e != "identity") {
            let status = Status::unimplemented("compressed requests are not supported");
            return ready(Ok(status.into_http()));
        }
        let Some((variant, door, method)) = method(request.uri().path()) else {
            return ready(Ok(Status::unimplemented("no such xDS method").into_http()));
        };
        let mut response = Response::new(match variant {
            Variant::Sotw => Answer::Sotw(Box::new(self.open(request, SotwStream::new(door), method))),
            Variant::Delta => Answer::Delta(Box::new(self.open(request, DeltaStream::new(door), method))),
        });
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        ready(Ok(response))
    }
}

enum Variant {
    Sotw,
    Delta,
}

fn method(path: &str) -> Option<(Variant, Door, &'static str)> {
    use Variant::{Delta, Sotw};
    Some(match path.strip_prefix("/envoy.service.")?.split_once('/')? {
        ("discovery.v3.AggregatedDiscoveryService", "StreamAggregatedResources") => {
            (Sotw, Door::Aggregated, "StreamAggregatedResources")
        }
        ("discovery.v3.AggregatedDiscoveryService", "DeltaAggregatedResources") => {
            (Delta, Door::Aggregated, "DeltaAggregatedResources")
        }
        ("endpoint.v3.EndpointDiscoveryService", "StreamEndpoints") => {
            (Sotw, Door::Endpoints, "StreamEndpoints")
        }
        ("endpoint.v3.EndpointDiscoveryService", "DeltaEndpoints") => {
            (Delta, Door::Endpoints, "DeltaEndpoints")
        }
        ("cluster.v3.ClusterDiscoveryService", "StreamClusters") => (Sotw, Door::Clusters, "StreamClusters"),
        ("cluster.v3.ClusterDiscoveryService", "DeltaClusters") => (Delta, Door::Clusters, "DeltaClusters"),
        _ => return None,
    })
}

/// What a call is answered with.
#[derive(Default)]
pub(super) enum Answer {
    /// The status in the headers says all.
    #[default]
    Nothing,
    Sotw(Box<XdsBody<SotwStream>>),
    Delta(Box<XdsBody<DeltaStream>>),
}

impl Body for Answer {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        match self.get_mut() {
            Self::Nothing => Poll::Ready(None),
            Self::Sotw(body) => body.poll_frame(cx),
            Self::Delta(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Sotw(body) => body.has_ended(),
            Self::Delta(body) => body.has_ended(),
        }
    }
}
