//! The xDS port: each connection is served until it ends, is old, or the process ends.
//!
//! Decides how old a connection may become, and ends its streams with it. How connections are accepted and how HTTP/2
//! is spoken is `net`'s part.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::auditor;
use super::body::Shared;
use super::probation::Record;
use super::requests::Room;
use super::service::Streams;
use super::sips::Sips;
use super::{Clients, Metrics};
use crate::clock::Clock;
use crate::config::Config;
use crate::net::{self, Counted, Port};
use crate::snapshot::Snapshot;

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
    /// How many may be connected.
    pub port: Port,
    /// Ends the server.
    pub shutdown: CancellationToken,
}

/// The xDS server.
#[derive(Debug)]
pub struct Server {
    connections: Connections,
    port: Port,
}

impl Server {
    /// A server that listens to nobody yet.
    pub fn new(ctx: ServerCtx) -> Self {
        let ServerCtx { clock, config, snapshots, clients, metrics, port, shutdown } = ctx;
        let shared = Shared {
            clock,
            clients,
            metrics: metrics.clone(),
            record: Record::default(),
            room: Room::default(),
        };
        Self { connections: Connections { clock, config, snapshots, shared, shutdown, metrics }, port }
    }

    /// Accepts until shut down; then sends GOAWAY, ends the streams as they stand, and returns within three seconds.
    pub async fn run(self, listener: TcpListener) {
        let Self { connections, port } = self;
        let (clock, shutdown) = (connections.clock, connections.shutdown.clone());
        let Shared { clients, metrics, .. } = connections.shared.clone();
        let auditor = auditor::run(clients, connections.snapshots.clone(), metrics, shutdown.clone());
        let accept = net::accept(listener, port, clock, shutdown, |socket| connections.serve(socket));
        tokio::join!(accept, auditor);
    }
}

/// What every connection is made of.
#[derive(Debug)]
struct Connections {
    clock: Clock,
    config: watch::Receiver<Arc<Config>>,
    snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    shared: Shared,
    shutdown: CancellationToken,
    metrics: Metrics,
}

impl Connections {
    fn serve(&self, socket: TcpStream) -> impl Future<Output = ()> + Send + 'static {
        let leave = self.shutdown.child_token();
        let (snapshots, shared) = (self.snapshots.clone(), self.shared.clone());
        let streams = Streams { snapshots, shared, leave: leave.clone() };
        let old = self.config.borrow().xds.max_connection_age;
        let old = (!old.is_zero()).then(|| self.clock.now() + jittered(old, fastrand::f64()));
        let (clock, shutdown, open) = (self.clock, self.shutdown.clone(), self.metrics.connections.clone());
        async move {
            if !net::begins_with_http2(&socket, &shutdown).await {
                tracing::debug!("a connection to the xds port did not begin with HTTP/2");
                return;
            }
            let _open = Counted::new(&open);
            let over = async {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = clock.sleep_until(old.unwrap_or_default()), if old.is_some() => {}
                }
                // Its streams end, or it would outlast any age.
                leave.cancel();
            };
            net::serve_http2(Sips::new(socket), streams, over).await;
        }
    }
}

/// `age`, give or take a tenth by `unit` in 0..1: clients that came together do not leave together.
fn jittered(age: Duration, unit: f64) -> Duration {
    age.mul_f64(0.2f64.mul_add(unit, 0.9))
}

#[cfg(test)]
mod tests {
    use super::*;

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
