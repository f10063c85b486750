//! Opens connections, and says whose fault it is when that fails.
//!
//! It speaks no protocol. Called by `tcp` and `http`.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::trace::{Failure, Trace};
use crate::model::Address;

/// Most bytes read for one question, whatever they are: a protocol's own limits do not count what it skips over, such
/// as a storm of `100 Continue`, and one prober serves all instances.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Connects to `address`.
pub(super) async fn dial(address: Address, trace: &mut Trace) -> Result<Wire, Failure> {
    let stream = TcpStream::connect(address.socket()).await.map_err(Failure::Io)?;
    // A port of the ephemeral range where nobody listens can be given to this very socket: TCP's simultaneous
    // open then connects it to itself, which is no answer from anybody.
    if stream.local_addr().map_err(Failure::Io)? == address.socket() {
        return Err(Failure::Io(ErrorKind::ConnectionRefused.into()));
    }
    stream.set_nodelay(true).map_err(Failure::Io)?;
    trace.connected();
    Ok(Wire { stream, state: Arc::default() })
}

/// What is under way on a [`Wire`], told by who uses it and by the wire itself.
#[derive(Debug, Default)]
pub(super) struct WireState {
    heard: AtomicBool,
    idle: AtomicBool,
    /// Bytes read since the question was put.
    read: AtomicUsize,
}

impl WireState {
    /// A question is about to be put.
    pub(super) fn asking(&self) {
        self.heard.store(false, Ordering::Relaxed);
        self.idle.store(false, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    /// Its answer was read to the end.
    pub(super) fn answered(&self) {
        self.idle.store(true, Ordering::Relaxed);
    }

    /// True if a byte came after the question was put.
    pub(super) fn was_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }
}

/// A probe's socket.
///
/// One that is given up before an answer was read to its end (deadline, cancelled, a `tcp` check's) is reset rather
/// than closed: nothing that matters is under way on it, the peer learns at once that nobody waits, and the kernel
/// keeps neither a `TIME_WAIT` entry for a minute nor an orphan retransmitting into a black hole. Any other is closed
/// the ordinary way: peers log resets.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    state: Arc<WireState>,
}

impl Wire {
    /// Tells what is under way, also when the wire itself is in a protocol's hands.
    pub(super) fn state(&self) -> Arc<WireState> {
        Arc::clone(&self.state)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if !self.state.idle.load(Ordering::Relaxed) {
            // Refused only if the socket is past caring.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let read = buf.filled().len().saturating_sub(before);
        if matches!(polled, Poll::Ready(Ok(()))) && read > 0 {
            self.state.heard.store(true, Ordering::Relaxed);
            if self.state.read.fetch_add(read, Ordering::Relaxed) + read > MAX_ANSWER_BYTES {
                return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, "the answer has no end")));
            }
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
