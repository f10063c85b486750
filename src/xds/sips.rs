//! A socket that is read in small sips.
//!
//! A client answers many responses with as many small frames at once. Whoever reads them all before the stream takes
//! the first one off keeps, for ever, a queue as long as the longest such burst: 16 KiB for each client, where a few
//! frames would do.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Most bytes read before the stream has a turn: about a dozen ACKs.
const SIP: usize = 1024;

/// Reads at most [`SIP`] bytes, and after as many lets others go first.
#[derive(Debug)]
pub(super) struct Sips {
    socket: TcpStream,
    full: bool,
}

impl Sips {
    pub(super) const fn new(socket: TcpStream) -> Self {
        Self { socket, full: false }
    }
}

impl AsyncRead for Sips {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.full) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut sip = [0; SIP];
        let mut sip = ReadBuf::new(sip.get_mut(..buffer.remaining().min(SIP)).unwrap_or_default());
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut sip))?;
        buffer.put_slice(sip.filled());
        self.full = sip.remaining() == 0;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sips {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
