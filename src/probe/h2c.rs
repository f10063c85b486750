//! HTTP/2 probes with prior knowledge.
//!
//! The `h2` crate frames; nothing is spawned. Called by `http`.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Reason, RecvStream};
use http::Request;

use super::dial::{Wire, WireState};
use super::exchange::{MAX_BODY_BYTES, MAX_HEAD_BYTES, drive, judge, nudge, rest};
use super::trace::{Failure, Trace, Verdict};
use crate::model::HttpCheck;

/// One connection.
pub(super) struct H2c {
    sender: SendRequest<Bytes>,
    line: Connection<Wire, Bytes>,
    wire: Arc<WireState>,
    /// The line has ended and must not be polled again.
    ended: bool,
    /// The head of the answer to the last question came.
    heard: bool,
    /// The last answer was not read to its end.
    cut: bool,
}

impl H2c {
    /// Speaks HTTP/2 on `wire`, without waiting for the peer's settings.
    pub(super) async fn open(wire: Wire) -> Result<Self, Failure> {
        let state = wire.state();
        let (sender, line) = Builder::new()
            .enable_push(false)
            .max_header_list_size(MAX_HEAD_BYTES)
            .handshake(wire)
            .await
            .map_err(failure)?;
        Ok(Self { sender, line, wire: state, ended: false, heard: false, cut: false })
    }

    /// False if the connection cannot carry another question.
    pub(super) async fn is_alive(&mut self) -> bool {
        nudge(&mut self.line, &mut self.ended).await;
        !self.ended && !self.cut
    }

    /// Waits for the peer's end of a connection that nobody uses.
    pub(super) async fn ended(&mut self) {
        rest(&mut self.line, &mut self.ended).await;
    }

    /// True if the answer to the last question had begun.
    pub(super) fn was_heard(&self) -> bool {
        self.heard
    }

    /// Puts the question and reads the answer.
    pub(super) async fn exchange(
        &mut self,
        request: Request<()>,
        check: &HttpCheck,
        trace: &mut Trace,
    ) -> Result<Verdict, Failure> {
        self.wire.asking();
        self.heard = false;
        self.cut = true;
        let mut sender = drive(&mut self.line, &mut self.ended, self.sender.clone().ready())
            .await
            .ok_or_else(Failure::closed)?
            .map_err(failure)?;
        let (answer, _) = sender.send_request(request, true).map_err(failure)?;
        let answer = drive(&mut self.line, &mut self.ended, answer)
            .await
            .ok_or_else(Failure::closed)?
            .map_err(failure)?;
        self.heard = true;
        let verdict = judge(&check.expected_statuses, &answer);
        trace.answered(&verdict);
        drive(&mut self.line, &mut self.ended, read_to_end(answer.into_body(), &mut self.cut))
            .await
            .ok_or_else(Failure::closed)??;
        if !self.cut {
            self.wire.answered();
        }
        Ok(verdict)
    }

    /// Says goodbye, as far as that needs no waiting.
    pub(super) async fn close(self) {
        let Self { sender, mut line, mut ended, .. } = self;
        drop(sender);
        nudge(&mut line, &mut ended).await;
    }
}

/// Reads and forgets `body`, up to the cap. `cut` becomes false if that was all of it.
async fn read_to_end(mut body: RecvStream, cut: &mut bool) -> Result<(), Failure> {
    let mut read = 0;
    while let Some(data) = body.data().await {
        let bytes = data.map_err(failure)?.len();
        read += bytes;
        if read > MAX_BODY_BYTES {
            return Ok(());
        }
        // Fails only for more than was received.
        let _ = body.flow_control().release_capacity(bytes);
    }
    *cut = false;
    Ok(())
}

fn failure(error: h2::Error) -> Failure {
    if error.is_io() {
        let io = error.into_io().unwrap_or_else(|| ErrorKind::UnexpectedEof.into());
        return match io.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidData => {
                Failure::Protocol(Arc::from(format!("HTTP/2: {io}")))
            }
            _ => Failure::Io(io),
        };
    }
    if error.reason().is_none() && !error.is_library() && !error.is_remote() {
        // A header or a target that HTTP/2 cannot carry.
        return Failure::Misconfigured(Arc::from(format!("HTTP/2: {error}")));
    }
    match error.reason() {
        // The peer is leaving, and has not looked at the question.
        Some(Reason::NO_ERROR | Reason::REFUSED_STREAM) if error.is_remote() => {
            Failure::Io(io::Error::new(ErrorKind::ConnectionReset, error.to_string()))
        }
        _ => Failure::Protocol(Arc::from(format!("HTTP/2: {error}"))),
    }
}
