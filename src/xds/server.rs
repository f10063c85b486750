//! The accept loop: HTTP/2 connections, each served until it ends or the process does.
//!
//! tonic's own server has no bound on what it buffers per stream and no way to end long streams politely, so the
//! connections are ours.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::body::Shared;
use super::service::Streams;
use super::sips::Sips;
use super::{Clients, Metrics};
use crate::clock::Clock;
use crate::snapshot::Snapshot;

/// Bytes buffered per stream before the body is no longer polled.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// A peer that does not answer a ping within [`PING_TIMEOUT`] is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that has connected says the first word within this time, or is let go.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How HTTP/2 with prior knowledge begins (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause between looks at a preface that is incomplete; hardly any peer sends it in pieces.
const PREFACE_LOOK: Duration = Duration::from_millis(10);
/// After this the process ends, whoever is still connected.
const GRACE: Duration = Duration::from_secs(3);
/// Pause after a failed accept: the process is out of descriptors, and trying at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Of so many failures in a row one is logged: about one line in ten seconds.
const FAILURES_PER_LINE: u64 = 200;

/// What the server needs from the process.
#[derive(Debug)]
pub struct ServerCtx {
    /// The clock.
    pub clock: Clock,
    /// What to serve; `None` until there is something to say.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    /// The table of clients to keep.
    pub clients: Clients,
    /// The metrics to keep.
    pub metrics: Metrics,
    /// Ends the server.
    pub shutdown: CancellationToken,
}

/// The xDS server.
#[derive(Debug)]
pub struct Server {
    streams: Streams,
    http: http2::Builder<TokioExecutor>,
    shutdown: CancellationToken,
    metrics: Metrics,
}

impl Server {
    /// Builds the routes.
    pub fn new(ctx: ServerCtx) -> Self {
        let ServerCtx { clock, snapshots, clients, metrics, shutdown } = ctx;
        let shared = Shared { clock, clients, metrics: metrics.clone() };
        let streams = Streams { snapshots, shared };
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_send_buf_size(MAX_SEND_BUFFER)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        Self { streams, http, shutdown, metrics }
    }

    /// Accepts until shut down; then sends GOAWAY, ends the streams as they stand, and returns within three seconds.
    pub async fn run(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut failures = 0u64;
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => {
                        connections.spawn(self.serve(socket));
                    }
                    Err(error) => {
                        if failures.is_multiple_of(FAILURES_PER_LINE) {
                            tracing::warn!(%error, failures, "accepting an xds connection failed");
                        }
                        failures += 1;
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop(listener);
        let all_gone = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all_gone).await.is_err() {
            tracing::warn!("some xds clients did not close in time");
        }
    }

    fn serve(&self, socket: TcpStream) -> impl Future<Output = ()> + Send + 'static {
        let service = self.streams.clone();
        let (http, shutdown, connections) =
            (self.http.clone(), self.shutdown.clone(), self.metrics.connections.clone());
        async move {
            // Small frames must not wait for the peer's delayed ACK.
            if let Err(error) = socket.set_nodelay(true) {
                tracing::debug!(%error, "xds connection was gone at once");
                return;
            }
            if tokio::time::timeout(PREFACE_TIMEOUT, speaks_http2(&socket)).await != Ok(true) {
                tracing::debug!("a connection to the xds port did not begin with HTTP/2");
                return;
            }
            connections.inc();
            let connection = http.serve_connection(TokioIo::new(Sips::new(socket)), service);
            let mut connection = std::pin::pin!(connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!(%error, "xds connection ended");
            }
            connections.dec();
        }
    }
}

/// Looks, without reading, until the preface is there or something else is.
async fn speaks_http2(socket: &TcpStream) -> bool {
    let mut seen = [0u8; PREFACE.len()];
    loop {
        let Ok(length) = socket.peek(&mut seen).await else { return false };
        let begun = seen.get(..length).unwrap_or_default();
        if length == 0 || !PREFACE.starts_with(begun) {
            return false;
        }
        if length == PREFACE.len() {
            return true;
        }
        tokio::time::sleep(PREFACE_LOOK).await;
    }
}
