//! A stand-in for an inference server: it imitates the front of one (`/health`, and completions as a stream of
//! server-sent events) and runs no model. It can load for a while, hang, and die.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
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
use tidegate::clock::Clock;
use tidegate::model::MonoTime;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tokens of an answer, and the pause before each.
const TOKENS: usize = 6;
const TOKEN_EVERY: Duration = Duration::from_millis(50);

/// The header that says who answered.
pub const SERVED_BY: &str = "x-served-by";

/// How the engine behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Loading,
    Ready,
    /// Requests are taken and never answered.
    Hung,
}

/// What the engine has seen of users' requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Account {
    /// When the latest one came.
    pub last_request: Option<MonoTime>,
    /// Streams that have not ended.
    pub in_flight: usize,
}

#[derive(Clone)]
struct Shared {
    name: Arc<str>,
    clock: Clock,
    mode: watch::Receiver<Mode>,
    account: Arc<watch::Sender<Account>>,
}

/// A running engine. Dropping it is `kill -9`: the listener and every connection are gone at once.
pub struct Engine {
    pub name: Arc<str>,
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    account: watch::Receiver<Account>,
    _tasks: JoinSet<()>,
}

impl Engine {
    /// Listens at once, and says 503 for `loads_for`.
    pub async fn start(name: &str, loads_for: Duration, clock: Clock) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mode = watch::Sender::new(if loads_for.is_zero() { Mode::Ready } else { Mode::Loading });
        let account = Arc::new(watch::Sender::new(Account::default()));
        let seen = account.subscribe();
        let shared = Shared { name: name.into(), clock, mode: mode.subscribe(), account };
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, shared));
        if !loads_for.is_zero() {
            let mode = mode.clone();
            tasks.spawn(async move {
                tokio::time::sleep(loads_for).await;
                mode.send_if_modified(|mode| std::mem::replace(mode, Mode::Ready) == Mode::Loading);
            });
        }
        Ok(Self { name: name.into(), address, mode, account: seen, _tasks: tasks })
    }

    /// From now on nothing is answered; connections stay open.
    pub fn hang(&self) {
        self.mode.send_replace(Mode::Hung);
    }

    pub fn account(&self) -> Account {
        *self.account.borrow()
    }

    /// Waits until no stream is open.
    pub async fn idle(&mut self) -> anyhow::Result<()> {
        self.account.wait_for(|account| account.in_flight == 0).await?;
        Ok(())
    }
}

async fn accept(listener: TcpListener, shared: Shared) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, shared.clone()));
            // Ends with the peer, or with the engine.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

/// Counts a stream as long as it lives.
struct InFlight(Arc<watch::Sender<Account>>);

impl InFlight {
    fn begin(shared: &Shared) -> Self {
        shared.account.send_modify(|account| {
            account.in_flight += 1;
            account.last_request = Some(shared.clock.now());
        });
        Self(shared.account.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|account| account.in_flight -= 1);
    }
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(request: Request<hyper::body::Incoming>, mut shared: Shared) -> Result<Answer, Infallible> {
    let stream = (request.uri().path() != "/health").then(|| InFlight::begin(&shared));
    // A hung engine takes the request and never comes back to it.
    let mode = shared.mode.wait_for(|mode| *mode != Mode::Hung).await.map(|mode| *mode);
    let status =
        if matches!(mode, Ok(Mode::Ready)) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = match stream {
        Some(stream) if status.is_success() => StreamBody::new(tokens(stream)).boxed(),
        Some(_) | None => Full::new(Bytes::from_static(b"{}\n")).boxed(),
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", "text/event-stream")
        .header(SERVED_BY, &*shared.name)
        .body(body);
    Ok(response.unwrap_or_default())
}

fn tokens(stream: InFlight) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    futures_util::stream::unfold((0, stream), |(n, stream)| async move {
        if n > TOKENS {
            return None;
        }
        tokio::time::sleep(TOKEN_EVERY).await;
        let event = if n < TOKENS {
            format!("data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"text\":\"tok{n} \"}}]}}\n\n")
        } else {
            "data: [DONE]\n\n".to_owned()
        };
        Some((Ok(Frame::data(Bytes::from(event))), (n + 1, stream)))
    })
}
