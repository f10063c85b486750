//! The accept loop: HTTP/2 connections, each served until it ends or the process does.
//!
//! tonic's own server has no bound on what it buffers per stream and no way to end long streams politely, so the
//! connections are ours and tonic's routes sit on top.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::body::Shared;
use super::service::{Aggregated, Clusters as ClusterService, Endpoints, Leave, Streams};
use super::{Clients, Metrics};
use crate::clock::Clock;
use crate::config::Config;
use crate::model::MonoTime;
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
/// Connections accepted in a second, and at once: enough for any fleet to come back within seconds of a restart, few
/// enough that those which are there already are not kept waiting by handshakes.
const ACCEPTS_PER_SECOND: u32 = 2_000;
const ACCEPTS_AT_ONCE: u32 = 1_000;
/// Pause after a failed accept: the process is out of descriptors, and trying at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Of so many failures in a row one is logged: about one line in ten seconds.
const FAILURES_PER_LINE: u64 = 200;

/// What the server needs from the process.
#[derive(Debug)]
pub struct ServerCtx {
    /// The clock.
    pub clock: Clock,
    /// How long connections may last.
    pub config: watch::Receiver<Arc<Config>>,
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
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
    routes: Routes,
    http: http2::Builder<TokioExecutor>,
    shutdown: CancellationToken,
    metrics: Metrics,
}

impl Server {
    /// Builds the routes.
    pub fn new(ctx: ServerCtx) -> Self {
        let ServerCtx { clock, config, snapshots, clients, metrics, shutdown } = ctx;
        let shared = Shared { clock, clients, metrics: metrics.clone() };
        let streams = Streams { snapshots, shared };
        let routes = Routes::new(Aggregated(streams.clone()))
            .add_service(Endpoints(streams.clone()))
            .add_service(ClusterService(streams))
            .prepare();
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_send_buf_size(MAX_SEND_BUFFER)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        Self { clock, config, routes, http, shutdown, metrics }
    }

    /// Accepts until shut down; then sends GOAWAY, ends the streams as they stand, and returns within three seconds.
    pub async fn run(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let mut failures = 0u64;
        let mut pace = Pace::default();
        loop {
            let (now, next) = (self.clock.now(), pace.next);
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                () = self.clock.sleep_until(next), if next > now => {}
                accepted = listener.accept(), if next <= now => match accepted {
                    Ok((socket, _)) => {
                        pace.accepted(now);
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
        let routes = TowerToHyperService::new(self.routes.clone());
        let leave = Leave(self.shutdown.child_token());
        let old = self.config.borrow().xds.max_connection_age;
        let old = (!old.is_zero()).then(|| self.clock.now() + jittered(old, fastrand::f64()));
        let clock = self.clock;
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
            let its_own = leave.clone();
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(its_own.clone());
                routes.call(request)
            });
            let connection = http.serve_connection(TokioIo::new(socket), service);
            let mut connection = std::pin::pin!(connection);
            let result = tokio::select! {
                result = connection.as_mut() => Some(result),
                () = shutdown.cancelled() => None,
                () = clock.sleep_until(old.unwrap_or_default()), if old.is_some() => None,
            };
            let result = match result {
                Some(result) => Ok(result),
                None => {
                    // Its streams end, or it would outlast any age.
                    leave.0.cancel();
                    connection.as_mut().graceful_shutdown();
                    tokio::time::timeout(GRACE, connection).await
                }
            };
            if !matches!(result, Ok(Ok(()))) {
                tracing::debug!(?result, "xds connection ended");
            }
            connections.dec();
        }
    }
}

/// When the next connection may be accepted.
#[derive(Debug, Default)]
struct Pace {
    next: MonoTime,
}

impl Pace {
    fn accepted(&mut self, now: MonoTime) {
        let each = Duration::from_secs(1) / ACCEPTS_PER_SECOND;
        let earliest = MonoTime::from_start(now.since_start().saturating_sub(each * ACCEPTS_AT_ONCE));
        self.next = self.next.max(earliest) + each;
    }
}

/// `age`, give or take a tenth by `unit` in 0..1: clients that came together do not leave together.
fn jittered(age: Duration, unit: f64) -> Duration {
    age.mul_f64(0.2f64.mul_add(unit, 0.9))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_connections_is_taken_in_at_a_bounded_pace() {
        let mut pace = Pace::default();
        let mut now = MonoTime::from_millis(60_000);
        let begun = now;
        let mut at_once = 0;
        for _ in 0..5_000 {
            if pace.next > now {
                now = pace.next;
            } else if now == begun {
                at_once += 1;
            }
            pace.accepted(now);
        }
        assert_eq!(at_once, ACCEPTS_AT_ONCE + 1);
        assert_eq!(
            now.since(begun).as_millis(),
            u128::from((5_000 - ACCEPTS_AT_ONCE) * 1_000 / ACCEPTS_PER_SECOND) - 1
        );
        pace.accepted(now + Duration::from_secs(60));
        assert!(pace.next < now + Duration::from_secs(60), "a quiet time is not held against anybody");
    }

    #[test]
    fn clients_that_came_together_do_not_leave_together() {
        // Case 89.
        let age = Duration::from_secs(60);
        assert_eq!((jittered(age, 0.0).as_secs(), jittered(age, 0.5).as_secs()), (54, 60));
        assert!(jittered(age, 0.999) < Duration::from_secs(66));
        let mut leave: Vec<_> = (0..500).map(|_| jittered(age, fastrand::f64())).collect();
        leave.sort();
        assert!(leave[499] - leave[0] > Duration::from_secs(6));
    }
}
