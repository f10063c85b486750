//! A stand-in for an inference server: it imitates the front of one (`/health`, and completions as a stream of
//! server-sent events) and runs no model. It loads, hangs and dies when told to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tokens of an answer, and the pause before each and before the end.
const TOKENS: usize = 6;
const TOKEN_EVERY: Duration = Duration::from_millis(40);

/// How the engine behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Loading,
    Ready,
    /// Connections and requests are taken, and nothing more is said, in streams under way neither.
    Hung,
}

/// A running engine. Dropping it is `kill -9`: the listener and every connection are gone at once.
pub struct StandIn {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl StandIn {
    /// Listens at once, and says 503 until it is ready.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mode = watch::Sender::new(Mode::Loading);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, mode.subscribe()));
        Ok(Self { address, mode, _tasks: tasks })
    }

    pub fn ready(&self) {
        self.mode.send_replace(Mode::Ready);
    }

    pub fn hang(&self) {
        self.mode.send_replace(Mode::Hung);
    }
}

async fn accept(listener: TcpListener, mode: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let mode = mode.clone();
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, mode.clone()));
            // Ends with the peer, or with the engine.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(
    request: Request<hyper::body::Incoming>,
    mut mode: watch::Receiver<Mode>,
) -> Result<Answer, Infallible> {
    let completion = request.uri().path() != "/health";
    let ready = awake(&mut mode).await == Some(Mode::Ready);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let (kind, body) = if completion && ready {
        ("text/event-stream", StreamBody::new(tokens(mode)).boxed())
    } else {
        ("application/json", Full::new(Bytes::from_static(b"{}\n")).boxed())
    };
    let response = Response::builder().status(status).header("content-type", kind).body(body);
    Ok(response.unwrap_or_default())
}

/// Waits as long as the engine hangs; `None` once it is gone.
async fn awake(mode: &mut watch::Receiver<Mode>) -> Option<Mode> {
    mode.wait_for(|mode| *mode != Mode::Hung).await.ok().map(|mode| *mode)
}

fn tokens(mode: watch::Receiver<Mode>) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::unfold((0, mode), |(n, mut mode)| async move {
        if n > TOKENS {
            return None;
        }
        tokio::time::sleep(TOKEN_EVERY).await;
        awake(&mut mode).await?;
        let event = if n < TOKENS {
            format!("data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"index\":0,\"text\":\"tok{n} \"}}]}}\n\n")
        } else {
            "data: [DONE]\n\n".to_owned()
        };
        Some((Ok(Frame::data(Bytes::from(event))), (n + 1, mode)))
    })
}
