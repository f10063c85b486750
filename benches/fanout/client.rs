//! One client: a connection of its own, one ADS stream on it, windows as an Envoy's.

use anyhow::{Context as _, anyhow, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::header;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::clients::{Crowd, Progress};
use crate::protocol::{Held, Wire};
use crate::world::FLIPPING;

const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 24 << 20;
/// gRPC's prefix: a flag and a length.
const PREFIX: usize = 5;

/// Connects and follows until the server ends the stream.
pub async fn run(
    id: usize,
    crowd: &Crowd,
    held: watch::Sender<Held>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let socket = TcpStream::connect(crowd.connect).await.context("cannot connect")?;
    socket.set_nodelay(true)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let (send, connection) = builder.handshake::<_, Bytes>(socket).await?;
    tokio::select! {
        ended = follow(id, crowd.wire, send, &held, progress) => ended,
        ended = connection => ended.context("the connection broke").and(Err(anyhow!("the connection ended"))),
    }
}

async fn follow(
    id: usize,
    wire: Wire,
    send: SendRequest<Bytes>,
    held: &watch::Sender<Held>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let request = http::Request::post(format!("http://tidegate{}", wire.path()))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(())?;
    let (response, mut requests) = send.ready().await?.send_request(request, false)?;
    requests.send_data(wire.opening(id), false)?;
    let response = response.await?;
    ensure!(response.status() == http::StatusCode::OK, "refused: {response:?}");
    let mut body = response.into_body();
    let mut buffer = BytesMut::new();
    let mut complete = false;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        buffer.extend_from_slice(&chunk);
        while let Some(message) = whole_message(&mut buffer) {
            let mut taken = Err(anyhow!("not taken"));
            held.send_modify(|held| taken = wire.take(held, message));
            let taken = taken?;
            for request in taken.requests {
                requests.send_data(request, false)?;
            }
            if !complete && progress.is_complete(&held.borrow()) {
                complete = true;
                progress.completed();
            } else if complete && taken.endpoints_of.iter().any(|name| name == FLIPPING) {
                progress.arrived();
            }
        }
    }
    anyhow::bail!("the server ended the stream")
}

/// Takes the first message off the buffer, if it is complete. An empty buffer keeps no memory.
fn whole_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let mut length = buffer.get(1..PREFIX)?;
    let length = length.get_u32() as usize;
    if buffer.len() < PREFIX + length {
        buffer.reserve(PREFIX + length - buffer.len());
        return None;
    }
    buffer.advance(PREFIX);
    let message = buffer.split_to(length).freeze();
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
    Some(message)
}
