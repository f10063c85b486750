//! The accept loop of every port.
//!
//! Decides whether a connection is taken and when. Never what is said on it, nor how long it may be silent: that is
//! for `serve`, which is given the socket. Whatever peers do, the loop costs a bounded share of a core, and the port
//! a bounded number of descriptors.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pace::{Pace, Trouble};
use super::port::{Counted, Port};
use crate::clock::Clock;

/// After this the connections are dropped, whatever is under way on them.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// Accepts until `shutdown` and runs `serve` for each connection, in a task of its own. Over the port's cap a new
/// connection is closed at once. `serve` has to see `shutdown` for itself: after it there are three seconds.
pub async fn accept<S: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    port: Port,
    clock: Clock,
    shutdown: CancellationToken,
    serve: impl Fn(TcpStream) -> S,
) {
    let Port { name, max_open, open, refused, failed } = port;
    let mut connections = JoinSet::new();
    let mut pace = Pace::default();
    let (mut refusals, mut failures) = (Trouble::default(), Trouble::default());
    loop {
        let (now, next) = (clock.now(), pace.next());
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            // Before the next one is looked at, so that the place of whoever left is free.
            Some(ended) = connections.join_next() => if let Err(error) = ended {
                tracing::error!(port = name, %error, "serving a connection failed");
            },
            () = clock.sleep_until(next), if next > now => {}
            accepted = listener.accept(), if next <= now => match accepted {
                Ok((socket, _)) if connections.len() < max_open => {
                    pace.accepted(now);
                    let (counted, serving) = (Counted::new(&open), serve(prompt(socket)));
                    connections.spawn(async move {
                        serving.await;
                        drop(counted);
                    });
                }
                Ok(_) => {
                    pace.accepted(now);
                    refused.inc();
                    if let Some(times) = refusals.again(now) {
                        tracing::warn!(port = name, max_open, times, "a connection too many was closed");
                    }
                }
                Err(error) => {
                    pace.failed(now);
                    failed.inc();
                    if let Some(times) = failures.again(now) {
                        tracing::warn!(port = name, %error, times, "accepting a connection failed");
                    }
                }
            },
        }
    }
    drop(listener);
    let all_gone = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, all_gone).await.is_err() {
        tracing::warn!(port = name, "some connections did not end in time and are dropped");
    }
}

/// Small answers must not wait for the peer's delayed ACK.
fn prompt(socket: TcpStream) -> TcpStream {
    if let Err(error) = socket.set_nodelay(true) {
        // Whoever serves it finds out, at the first byte.
        tracing::debug!(%error, "a connection was gone at once");
    }
    socket
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::port::Ports;
    use super::*;
    use crate::testing::eventually::eventually;

    /// A port that takes two, and greets each. After `!` the service panics, after anything else it never ends.
    struct TwoAtMost {
        at: std::net::SocketAddr,
        open: prometheus_client::metrics::gauge::Gauge,
        refused: prometheus_client::metrics::counter::Counter,
        shutdown: CancellationToken,
        tasks: JoinSet<()>,
    }

    impl TwoAtMost {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let port = Ports::default().port("test", 2);
            let (open, refused) = (port.open.clone(), port.refused.clone());
            let shutdown = CancellationToken::new();
            let serve = |mut socket: TcpStream| async move {
                let _ = socket.write_all(b"hello").await;
                let mut byte = [0];
                let read = socket.read(&mut byte).await;
                assert!(byte != [b'!'], "asked for");
                if read.is_ok_and(|length| length > 0) {
                    std::future::pending::<()>().await;
                }
            };
            let mut tasks = JoinSet::new();
            tasks.spawn(accept(listener, port, Clock::start(), shutdown.clone(), serve));
            Self { at, open, refused, shutdown, tasks }
        }

        /// A connection, and whether anybody greeted.
        async fn connect(&self) -> (TcpStream, bool) {
            let mut socket = TcpStream::connect(self.at).await.unwrap();
            let mut hello = [0; 5];
            let greeted = socket.read_exact(&mut hello).await.is_ok();
            (socket, greeted)
        }

        async fn wait_open(&self, open: i64) {
            eventually("connections", async || match self.open.get() {
                now if now == open => Ok(()),
                now => Err(now.to_string()),
            })
            .await
            .unwrap();
        }
    }

    #[tokio::test]
    async fn over_the_cap_a_connection_is_closed_at_once_and_a_later_one_is_served() {
        let port = TwoAtMost::start().await;
        let (first, second, third) = (port.connect().await, port.connect().await, port.connect().await);
        assert_eq!((first.1, second.1, third.1), (true, true, false));
        assert_eq!((port.open.get(), port.refused.get()), (2, 1));
        drop(first);
        port.wait_open(1).await;
        assert!(port.connect().await.1);
    }

    #[tokio::test]
    async fn a_panic_gives_its_place_back() {
        let port = TwoAtMost::start().await;
        for _ in 0..3 {
            let (mut socket, greeted) = port.connect().await;
            assert!(greeted);
            socket.write_all(b"!").await.unwrap();
            port.wait_open(0).await;
        }
    }

    #[tokio::test]
    async fn whoever_does_not_end_is_dropped_after_the_grace() {
        let mut port = TwoAtMost::start().await;
        let (mut deaf, _) = port.connect().await;
        deaf.write_all(b".").await.unwrap();
        tokio::time::pause();
        let clock = Clock::start();
        port.shutdown.cancel();
        port.tasks.join_next().await.unwrap().unwrap();
        assert!(clock.now().since_start() >= GRACE);
        assert!(!deaf.read(&mut [0]).await.is_ok_and(|length| length > 0));
        assert_eq!(port.open.get(), 0);
        assert!(TcpStream::connect(port.at).await.is_err());
    }
}
