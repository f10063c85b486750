//! HTTP/1.1 probes.
//!
//! hyper does the parsing; nothing is spawned. Called by `http` and `openai`.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::dial::{Wire, WireState};
use super::exchange::{MAX_BODY_BYTES, MAX_HEAD_BYTES, drive, judge, nudge, rest};
use super::trace::{Failure, Trace, Verdict};
use crate::model::HttpCheck;

/// Read buffer: a head of the longest kind, and what comes with it.
const MAX_BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES as usize;

/// One connection.
pub(super) struct Http1 {
    sender: SendRequest<Full<Bytes>>,
    line: Connection<TokioIo<Wire>, Full<Bytes>>,
    /// The line has ended and must not be polled again.
    ended: bool,
    wire: Arc<WireState>,
    /// The last answer was not read to its end.
    cut: bool,
}

impl Http1 {
    /// Speaks HTTP/1.1 on `wire`. Nothing is sent yet.
    pub(super) async fn open(wire: Wire) -> Result<Self, Failure> {
        let state = wire.state();
        let (sender, line) = Builder::new()
            .max_header_size(MAX_HEAD_BYTES as usize)
            .max_buf_size(MAX_BUFFER_BYTES)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|e| failure(&e))?;
        Ok(Self { sender, line, ended: false, wire: state, cut: false })
    }

    /// False if the connection cannot carry another question.
    pub(super) async fn is_alive(&mut self) -> bool {
        nudge(&mut self.line, &mut self.ended).await;
        !self.ended && !self.cut && self.sender.is_ready()
    }

    /// Waits for the peer's end of a connection that nobody uses.
    pub(super) async fn ended(&mut self) {
        rest(&mut self.line, &mut self.ended).await;
    }

    /// True if a byte came after the last question.
    pub(super) fn was_heard(&self) -> bool {
        self.wire.was_heard()
    }

    /// Puts the question and reads the answer.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        check: &HttpCheck,
        trace: &mut Trace,
    ) -> Result<Verdict, Failure> {
        let answer = self.send(request).await?;
        let verdict = judge(&check.expected_statuses, &answer);
        trace.answered(&verdict);
        self.skip(answer.into_body()).await?;
        Ok(verdict)
    }

    /// Puts the question and reads the answer's head. Its body is to be read by [`Self::frame`] or [`Self::skip`].
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Failure> {
        self.wire.asking();
        let answer = self.sender.send_request(request);
        drive(&mut self.line, &mut self.ended, answer)
            .await
            .ok_or_else(Failure::closed)?
            .map_err(|e| failure(&e))
    }

    /// The next piece of an answer, as it arrives; `None` after the last.
    pub(super) async fn frame(&mut self, body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        self.cut = true;
        loop {
            let frame =
                drive(&mut self.line, &mut self.ended, body.frame()).await.ok_or_else(Failure::closed)?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(failure(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                    // Trailers say nothing here.
                }
            }
        }
    }

    /// All that matters of the answer was read: the connection may end in order.
    pub(super) fn answered(&self) {
        self.wire.answered();
    }

    /// Reads over an answer's body, up to the cap.
    pub(super) async fn skip(&mut self, body: Incoming) -> Result<(), Failure> {
        self.cut = true;
        drive(&mut self.line, &mut self.ended, read_to_end(body, &mut self.cut))
            .await
            .ok_or_else(Failure::closed)??;
        if !self.cut {
            self.wire.answered();
        }
        Ok(())
    }

    /// Ends the connection properly, as far as that needs no waiting.
    pub(super) async fn close(self) {
        let Self { sender, mut line, mut ended, .. } = self;
        drop(sender);
        nudge(&mut line, &mut ended).await;
    }
}

/// Reads and forgets `body`, up to the cap. `cut` becomes false if that was all of it.
async fn read_to_end(mut body: Incoming, cut: &mut bool) -> Result<(), Failure> {
    let too_long = |bytes: u64| bytes > MAX_BODY_BYTES as u64;
    if too_long(body.size_hint().lower()) {
        return Ok(());
    }
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| failure(&e))?;
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if too_long(read) {
            return Ok(());
        }
    }
    *cut = false;
    Ok(())
}

fn failure(error: &hyper::Error) -> Failure {
    if error.is_user() {
        return Failure::Misconfigured(Arc::from(describe(error)));
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return Failure::closed();
    }
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match io.map(|io| (io, io.kind())) {
        // hyper's own words for an encoding of the body that is none.
        None | Some((_, ErrorKind::InvalidInput | ErrorKind::InvalidData)) => {
            Failure::Protocol(Arc::from(describe(error)))
        }
        Some((_, ErrorKind::UnexpectedEof)) => Failure::closed(),
        Some((io, kind)) => Failure::Io(match io.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(kind, io.to_string()),
        }),
    }
}

fn describe(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("HTTP/1.1: {error}: {source}"),
        None => format!("HTTP/1.1: {error}"),
    }
}
