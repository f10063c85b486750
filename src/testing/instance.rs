//! A backend instance that behaves as the test says.
//!
//! It imitates an inference server's front, over HTTP/1.1 and h2c on one port: `/health` is for probes, every other
//! path is user traffic and answers with the instance's name; how, its [`Mode`] says. It runs no model. There are no sleeps but the one the test asks for ([`Mode::Slow`]): a hanging answer hangs until the mode
//! changes. Used by probe tests, system tests and benchmarks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::eventually::eventually;
use crate::clock::Clock;
use crate::model::MonoTime;

/// The path for probes.
pub const HEALTH: &str = "/health";
/// The header that says who answered.
pub const SERVED_BY: &str = "x-served-by";

const BACKLOG: u32 = 1024;

/// How the instance behaves from now on, also on connections that are open already (unless noted).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// 200 everywhere.
    Healthy,
    /// `/health` answers this status; user traffic is served.
    Status(StatusCode),
    /// User traffic is answered with this status; `/health` answers 200.
    Failing(StatusCode),
    /// `/health` answers 302 to this place.
    Redirect(String),
    /// 503 everywhere, as while a model loads.
    Loading,
    /// Requests are taken and never answered, until the mode changes; then they are answered as it says.
    Hang,
    /// Requests are answered as if healthy, this much later.
    Slow(Duration),
    /// Each connection is reset as soon as it is accepted; open ones at once.
    Reset,
    /// Nobody listens: connections are refused, open ones are closed.
    Refuse,
    /// Connections are not accepted, the backlog is full: a SYN gets no answer. Open connections hang.
    BlackHole,
}

/// One request, noted when its head was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// When, on the instance's clock.
    pub at: MonoTime,
    /// The path with query.
    pub path: String,
    /// `Host` or `:authority`.
    pub host: String,
    /// True over HTTP/2.
    pub http2: bool,
    /// Counts accepted connections from 1.
    pub connection: u64,
}

/// What the instance has seen so far.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// All requests in order.
    pub requests: Vec<Seen>,
}

impl Account {
    /// How often each path was asked for.
    pub fn by_path(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for seen in &self.requests {
            *counts.entry(seen.path.as_str()).or_default() += 1;
        }
        counts
    }
}

/// A running fake instance. It stops when dropped.
pub struct FakeInstance {
    address: SocketAddr,
    name: Arc<str>,
    mode: watch::Sender<Mode>,
    shared: Shared,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Shared {
    name: Arc<str>,
    clock: Clock,
    mode: watch::Receiver<Mode>,
    /// The mode that the listener has taken on.
    applied: watch::Sender<Mode>,
    account: watch::Sender<Account>,
}

impl FakeInstance {
    /// A healthy instance on an ephemeral loopback port, named after it.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), Mode::Healthy, Clock::start()).await
    }

    /// An instance on a given address (as after a restart of the process), in a given mode, with a shared clock.
    pub async fn start_at(address: SocketAddr, mode: Mode, clock: Clock) -> anyhow::Result<Self> {
        let listener = listen(address, BACKLOG)?;
        let address = listener.local_addr()?;
        let name: Arc<str> = Arc::from(address.to_string());
        let (mode_to, mode_from) = watch::channel(mode);
        let shared = Shared {
            name: name.clone(),
            clock,
            mode: mode_from,
            applied: watch::Sender::new(Mode::Healthy),
            account: watch::Sender::new(Account::default()),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(front(listener, address, shared.clone()));
        let instance = Self { address, name, mode: mode_to, shared, _tasks: tasks };
        let mode = instance.mode();
        instance.set(mode).await?;
        Ok(instance)
    }

    /// Where it listens (or would).
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it calls itself in [`SERVED_BY`] and in bodies.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The present mode.
    pub fn mode(&self) -> Mode {
        self.mode.borrow().clone()
    }

    /// Changes the mode and returns once the listener has taken it on: after `Refuse`, a connection is refused.
    pub async fn set(&self, mode: Mode) -> anyhow::Result<()> {
        self.mode.send_replace(mode.clone());
        let mut applied = self.shared.applied.subscribe();
        applied.wait_for(|now| *now == mode).await.context("the instance is gone")?;
        Ok(())
    }

    /// What it has seen so far.
    pub fn account(&self) -> Account {
        self.shared.account.borrow().clone()
    }

    /// Waits until `check` likes what it has seen.
    pub async fn wait_until(&self, what: &str, check: impl Fn(&Account) -> bool) -> anyhow::Result<Account> {
        eventually(what, async || {
            let account = self.account();
            if check(&account) { Ok(account) } else { Err(format!("{account:?}")) }
        })
        .await
    }
}

fn listen(address: SocketAddr, backlog: u32) -> anyhow::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address).with_context(|| format!("binding {address}"))?;
    Ok(socket.listen(backlog)?)
}

/// Accepts as the mode says. Tasks of connections live in its set and end with it.
async fn front(first: TcpListener, address: SocketAddr, shared: Shared) {
    let mut modes = shared.mode.clone();
    let mut ears = Ears { open: Some(first), full: Vec::new() };
    let mut connections = JoinSet::new();
    loop {
        let mode = modes.borrow_and_update().clone();
        if matches!(mode, Mode::Refuse | Mode::Reset) {
            connections.shutdown().await;
            shared.account.send_modify(|account| account.open = 0);
        }
        if let Err(error) = ears.adapt(&mode, address).await {
            tracing::error!(%error, "a fake instance cannot listen");
            return;
        }
        shared.applied.send_replace(mode.clone());
        loop {
            // Both arms may be dropped: `accept` and `changed` lose nothing.
            tokio::select! {
                biased;
                changed = modes.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                accepted = ears.accept(&mode) => {
                    let mut number = 0;
                    shared.account.send_modify(|account| {
                        account.accepted += 1;
                        number = account.accepted;
                    });
                    if mode == Mode::Reset {
                        reset(&accepted);
                    } else {
                        shared.account.send_modify(|account| account.open += 1);
                        connections.spawn(serve(accepted, number, shared.clone()));
                    }
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// Closing with linger zero sends RST instead of FIN.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::error!(%error, "a fake instance cannot reset");
    }
}

/// The listening socket, and what keeps a black hole's backlog full.
struct Ears {
    open: Option<TcpListener>,
    full: Vec<TcpStream>,
}

impl Ears {
    async fn adapt(&mut self, mode: &Mode, address: SocketAddr) -> anyhow::Result<()> {
        let was_black = !self.full.is_empty();
        match mode {
            Mode::Refuse => *self = Self { open: None, full: Vec::new() },
            Mode::BlackHole if was_black => {}
            Mode::BlackHole => {
                self.open = None;
                let narrow = listen(address, 1)?;
                self.full = fill_backlog(address).await;
                self.open = Some(narrow);
            }
            _ if self.open.is_none() || was_black => {
                *self = Self { open: None, full: Vec::new() };
                self.open = Some(listen(address, BACKLOG)?);
            }
            _ => {}
        }
        Ok(())
    }

    async fn accept(&self, mode: &Mode) -> TcpStream {
        if let (Some(listener), false) = (&self.open, *mode == Mode::BlackHole) {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    return stream;
                }
            }
        }
        std::future::pending().await
    }
}

/// Connects until the kernel stops answering SYNs.
async fn fill_backlog(address: SocketAddr) -> Vec<TcpStream> {
    const SILENCE: Duration = Duration::from_millis(100);
    let mut full = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SILENCE, TcpStream::connect(address)).await {
        full.push(stream);
    }
    full
}

async fn serve(stream: TcpStream, number: u64, shared: Shared) {
    let respond = |request: Request<hyper::body::Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(shared.answer(&request, number).await) }
    };
    let served = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service_fn(respond))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of a fake instance broke");
    }
    shared.account.send_modify(|account| account.open = account.open.saturating_sub(1));
}

impl Shared {
    async fn answer<B>(&self, request: &Request<B>, connection: u64) -> Response<Full<Bytes>> {
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let host = request.headers().get("host").and_then(|h| h.to_str().ok());
        let seen = Seen {
            at: self.clock.now(),
            path: path.to_owned(),
            host: host.or(request.uri().authority().map(|a| a.as_str())).unwrap_or_default().to_owned(),
            http2: request.version() == http::Version::HTTP_2,
            connection,
        };
        self.account.send_modify(|account| account.requests.push(seen));
        let is_probe = request.uri().path() == HEALTH;
        let mut modes = self.mode.clone();
        loop {
            let mode = modes.borrow_and_update().clone();
            match mode {
                Mode::Healthy => return self.plain(StatusCode::OK),
                Mode::Status(status) => {
                    return self.plain(if is_probe { status } else { StatusCode::OK });
                }
                Mode::Failing(status) => {
                    return self.plain(if is_probe { StatusCode::OK } else { status });
                }
                Mode::Redirect(to) if is_probe => return self.redirect(&to),
                Mode::Redirect(_) => return self.plain(StatusCode::OK),
                Mode::Loading => return self.plain(StatusCode::SERVICE_UNAVAILABLE),
                Mode::Slow(delay) => {
                    tokio::time::sleep(delay).await;
                    return self.plain(StatusCode::OK);
                }
                // Refuse and Reset end this connection from outside.
                Mode::Hang | Mode::BlackHole | Mode::Refuse | Mode::Reset => {
                    if modes.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            }
        }
    }

    fn plain(&self, status: StatusCode) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::copy_from_slice(self.name.as_bytes())));
        *response.status_mut() = status;
        if let Ok(name) = self.name.parse() {
            response.headers_mut().insert(SERVED_BY, name);
        }
        response
    }

    fn redirect(&self, to: &str) -> Response<Full<Bytes>> {
        let mut response = self.plain(StatusCode::FOUND);
        if let Ok(to) = to.parse() {
            response.headers_mut().insert(http::header::LOCATION, to);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fetch;

    #[tokio::test]
    async fn it_answers_probes_and_users_as_its_mode_says() {
        let instance = FakeInstance::start().await.unwrap();
        let at = instance.address();
        let status = async |path| fetch::get(at, path).await.unwrap().status.as_u16();
        assert_eq!((status(HEALTH).await, status("/v1").await), (200, 200));
        instance.set(Mode::Status(StatusCode::IM_A_TEAPOT)).await.unwrap();
        assert_eq!((status(HEALTH).await, status("/v1").await), (418, 200));
        instance.set(Mode::Redirect("/elsewhere".to_owned())).await.unwrap();
        assert_eq!((status(HEALTH).await, status("/v1").await), (302, 200));
        instance.set(Mode::Loading).await.unwrap();
        assert_eq!((status(HEALTH).await, status("/v1").await), (503, 503));
        instance.set(Mode::Failing(StatusCode::BAD_GATEWAY)).await.unwrap();
        assert_eq!((status(HEALTH).await, status("/v1").await), (200, 502));
        assert_eq!(instance.account().by_path(), BTreeMap::from([(HEALTH, 5), ("/v1", 5)]));
    }

    #[tokio::test]
    async fn a_hanging_request_is_answered_once_the_mode_changes() {
        let instance = FakeInstance::start().await.unwrap();
        instance.set(Mode::Hang).await.unwrap();
        let release = async {
            instance.wait_until("the request is there", |seen| seen.requests.len() == 1).await.unwrap();
            instance.set(Mode::Loading).await.unwrap();
        };
        let (answer, ()) = tokio::join!(fetch::get(instance.address(), HEALTH), release);
        assert_eq!(answer.unwrap().status.as_u16(), 503);
    }

    #[tokio::test]
    async fn refusing_resetting_and_black_holes_are_told_apart_and_undone() {
        let instance = FakeInstance::start().await.unwrap();
        let at = instance.address();
        instance.set(Mode::Refuse).await.unwrap();
        let refused = TcpStream::connect(at).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        instance.set(Mode::Reset).await.unwrap();
        assert!(fetch::get(at, HEALTH).await.is_err());
        instance.set(Mode::BlackHole).await.unwrap();
        let silence = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(at)).await;
        assert!(silence.is_err(), "{silence:?}");
        instance.set(Mode::Healthy).await.unwrap();
        assert_eq!(fetch::get(at, HEALTH).await.unwrap().status.as_u16(), 200);
    }

    #[tokio::test]
    async fn it_speaks_h2c_on_the_same_port() {
        let instance = FakeInstance::start().await.unwrap();
        let stream = TcpStream::connect(instance.address()).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let ask = async |mut sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>| {
            let uri = format!("http://{}/v1", instance.address());
            sender.send_request(Request::get(uri).body(Full::default()).unwrap()).await
        };
        let answer = tokio::select! {
            answer = ask(sender) => answer.unwrap(),
            ended = connection => unreachable!("{ended:?}"),
        };
        assert_eq!(answer.headers()[SERVED_BY], instance.name());
        assert!(instance.account().requests[0].http2);
    }
}
