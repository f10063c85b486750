//! HTTP/2 without TLS on a socket of ours, from the first byte to GOAWAY.
//!
//! tonic's own server has no bound on what it buffers per stream, no way to end long streams politely, and waits for
//! ever for a peer that says nothing; so the connections are ours. Decides when a peer
//! is gone. Never looks at requests.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::accept::GRACE;

/// Bytes buffered per stream before the body is no longer polled.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// A peer that does not answer a ping within [`PING_TIMEOUT`] is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that has connected says the first word within this time, or is let go.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How HTTP/2 with prior knowledge begins (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause between looks at a preface that is incomplete, doubled each time: hardly any peer sends it in pieces, and
/// thousands that do must not keep us busy.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// Whether a connection begins with HTTP/2. `false` also if it says nothing in time, or until `shutdown`. Nothing is
/// taken from it.
pub async fn begins_with_http2(socket: &TcpStream, shutdown: &CancellationToken) -> bool {
    let in_time = tokio::time::timeout(PREFACE_TIMEOUT, preface(socket));
    shutdown.run_until_cancelled(in_time).await == Some(Ok(true))
}

/// Looks, without reading, until the preface is there or something else is.
async fn preface(socket: &TcpStream) -> bool {
    let mut seen = [0u8; PREFACE.len()];
    let mut pause = FIRST_LOOK;
    loop {
        let Ok(length) = socket.peek(&mut seen).await else { return false };
        let begun = seen.get(..length).unwrap_or_default();
        if length == 0 || !PREFACE.starts_with(begun) {
            return false;
        }
        if length == PREFACE.len() {
            return true;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// Serves HTTP/2 until the peer is gone, or until `until`: then GOAWAY is sent, and what is under way gets three
/// seconds to end.
pub async fn serve_http2<S, B>(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
    until: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Error = Status> + Send + 'static,
    B::Data: Send,
{
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(socket), service));
    let result = tokio::select! {
        result = connection.as_mut() => Ok(result),
        () = until => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await
        }
    };
    if !matches!(result, Ok(Ok(()))) {
        tracing::debug!(?result, "an HTTP/2 connection ended");
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tonic::service::Routes;

    use super::*;
    use crate::clock::Clock;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (peer, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_preface_may_come_in_pieces_and_is_left_for_the_reader() {
        let (mut peer, mut socket) = pair().await;
        let writes = async {
            for piece in PREFACE.chunks(10) {
                peer.write_all(piece).await.unwrap();
                tokio::time::sleep(FIRST_LOOK).await;
            }
        };
        let shutdown = CancellationToken::new();
        let (begins, ()) = tokio::join!(begins_with_http2(&socket, &shutdown), writes);
        assert!(begins);
        let mut read = [0; PREFACE.len()];
        socket.read_exact(&mut read).await.unwrap();
        assert_eq!(read, PREFACE);
    }

    #[tokio::test]
    async fn silence_half_a_preface_another_protocol_and_shutdown_are_no_beginning() {
        for (text, shut_down, patience) in [
            (&b""[..], false, PREFACE_TIMEOUT),
            (&PREFACE[..23], false, PREFACE_TIMEOUT),
            (b"GET / HTTP/1.1", false, Duration::ZERO),
            (b"", true, Duration::ZERO),
        ] {
            let (mut peer, socket) = pair().await;
            peer.write_all(text).await.unwrap();
            let shutdown = CancellationToken::new();
            if shut_down {
                shutdown.cancel();
            } else if !text.is_empty() {
                socket.readable().await.unwrap();
            }
            tokio::time::pause();
            let clock = Clock::start();
            assert!(!begins_with_http2(&socket, &shutdown).await);
            assert_eq!(clock.now().since_start().as_secs(), patience.as_secs(), "{text:?}");
            tokio::time::resume();
        }
    }

    #[tokio::test]
    async fn a_peer_that_falls_silent_after_its_first_word_is_let_go() {
        let (mut peer, socket) = pair().await;
        let mut tasks = JoinSet::new();
        let service = TowerToHyperService::new(Routes::default());
        tasks.spawn(serve_http2(socket, service, std::future::pending()));
        peer.write_all(&[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()).await.unwrap();
        peer.readable().await.unwrap();
        tokio::time::pause();
        let clock = Clock::start();
        tasks.join_next().await.unwrap().unwrap();
        assert!(clock.now().since_start() < 2 * (PING_EVERY + PING_TIMEOUT), "{:?}", clock.now());
    }
}
