//! User traffic: a bounded load on one HTTP/1.1 port, with an account of each request.
//!
//! Workers send one request after another, each over its own kept-alive connection, or at a given pace. Times are the
//! client's. When *Envoy* started a request is another question, see [`super::envoy::access_log`]. Used by system
//! tests and by benchmarks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::instance::SERVED_BY;
use crate::clock::Clock;
use crate::model::MonoTime;

/// What to send, and how much of it.
#[derive(Debug, Clone)]
pub struct Load {
    /// Where to.
    pub target: SocketAddr,
    /// The path.
    pub path: String,
    /// Headers besides `host`, for example `x-cluster`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Connections in parallel.
    pub workers: u32,
    /// Pause between the starts of one worker's requests; zero means at once.
    pub interval: Duration,
    /// Each worker stops after so many.
    pub requests_per_worker: u64,
    /// All stop after this time.
    pub at_most: Duration,
    /// A request without a whole answer by then has failed.
    pub timeout: Duration,
}

impl Load {
    /// `GET /` to `target` by 4 workers, one request each 20 ms: 200 per second, for at most a minute.
    pub fn new(target: SocketAddr) -> Self {
        Self {
            target,
            path: "/".to_owned(),
            headers: Vec::new(),
            workers: 4,
            interval: Duration::from_millis(20),
            requests_per_worker: u64::MAX,
            at_most: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
        }
    }

    /// The same load for a cluster of [`super::envoy::Bootstrap`]'s listener.
    #[must_use]
    pub fn cluster(mut self, name: &str) -> Self {
        self.headers
            .extend(HeaderValue::from_str(name).map(|value| (HeaderName::from_static("x-cluster"), value)));
        self
    }
}

/// One request as the client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Before the request was written (and, where needed, connected).
    pub start: MonoTime,
    /// After the last byte of the answer.
    pub end: MonoTime,
    /// The answer's status, or why there was none.
    pub outcome: Result<u16, String>,
    /// Who served it, if the instance said so.
    pub served_by: Option<String>,
}

impl Sent {
    /// True for a 2xx.
    pub fn is_ok(&self) -> bool {
        matches!(self.outcome, Ok(200..=299))
    }
}

/// Traffic that is running. Dropping it stops it.
pub struct Traffic {
    account: watch::Receiver<Vec<Sent>>,
    stop: watch::Sender<bool>,
    workers: JoinSet<()>,
}

impl Traffic {
    /// Starts sending.
    pub fn start(load: Load, clock: Clock) -> Self {
        let account = watch::Sender::new(Vec::new());
        let stop = watch::Sender::new(false);
        let mut workers = JoinSet::new();
        let load = Arc::new(load);
        for _ in 0..load.workers {
            let (load, account, stopped) = (load.clone(), account.clone(), stop.subscribe());
            workers.spawn(async move {
                let deadline = tokio::time::Instant::now() + load.at_most;
                // Ends by itself (enough requests) or at the deadline; `stopped` is asked between requests.
                let work = Worker { load, clock, account, stopped, connection: None }.run();
                if tokio::time::timeout_at(deadline, work).await.is_err() {
                    tracing::debug!("a worker's time is over");
                }
            });
        }
        Self { account: account.subscribe(), stop, workers }
    }

    /// Starts sending at an open pace: one request each `interval` on the whole, however many still wait for their
    /// answers. Only when `workers` of them wait does the pace slacken.
    pub fn start_open(load: Load, clock: Clock) -> Self {
        let account = watch::Sender::new(Vec::new());
        let stop = watch::Sender::new(false);
        let mut workers = JoinSet::new();
        let (told, stopped) = (account.subscribe(), stop.subscribe());
        workers.spawn(pace(Arc::new(load), clock, account, stopped));
        Self { account: told, stop, workers }
    }

    /// How many requests have ended so far.
    pub fn ended(&self) -> usize {
        self.account.borrow().len()
    }

    /// What was sent and answered so far, in order of the answers.
    pub fn so_far(&self) -> Vec<Sent> {
        self.account.borrow().clone()
    }

    /// Waits until the account satisfies `check`; an error if the traffic ends before.
    pub async fn wait_until(&mut self, check: impl Fn(&[Sent]) -> bool) -> anyhow::Result<()> {
        self.account.wait_for(|sent| check(sent)).await?;
        Ok(())
    }

    /// Waits until all workers are through.
    pub async fn finish(mut self) -> Vec<Sent> {
        while self.workers.join_next().await.is_some() {}
        self.so_far()
    }

    /// Lets each worker end its request, then gives the account.
    pub async fn stop(self) -> Vec<Sent> {
        self.stop.send_replace(true);
        self.finish().await
    }
}

/// How many requests each instance served.
pub fn shares(sent: &[Sent]) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for name in sent.iter().filter_map(|sent| sent.served_by.clone()) {
        *shares.entry(name).or_default() += 1;
    }
    shares
}

type Connection = (http1::SendRequest<Empty<Bytes>>, JoinSet<()>);

struct Worker {
    load: Arc<Load>,
    clock: Clock,
    account: watch::Sender<Vec<Sent>>,
    stopped: watch::Receiver<bool>,
    /// With the task that drives it, which ends when this is dropped.
    connection: Option<Connection>,
}

impl Worker {
    async fn run(mut self) {
        let mut next = self.clock.now();
        for _ in 0..self.load.requests_per_worker {
            tokio::select! {
                () = self.clock.sleep_until(next) => {}
                _ = self.stopped.wait_for(|stop| *stop) => return,
            }
            next = (next + self.load.interval).max(self.clock.now());
            let sent = send(&self.load, self.clock, &mut self.connection).await;
            self.account.send_modify(|account| account.push(sent));
            if *self.stopped.borrow() {
                return;
            }
        }
    }
}

/// One request each `interval`. Once it is stopped, or its time is over, it waits for the answers under way.
async fn pace(
    load: Arc<Load>,
    clock: Clock,
    account: watch::Sender<Vec<Sent>>,
    mut stopped: watch::Receiver<bool>,
) {
    let started = clock.now();
    let mut next = started;
    let mut idle = Vec::new();
    let mut waiting = JoinSet::new();
    let most = load.workers as usize;
    // All arms may be dropped: nothing is lost by it.
    while next.since(started) < load.at_most {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            Some(Ok((sent, connection))) = waiting.join_next() => {
                account.send_modify(|account| account.push(sent));
                idle.extend(connection);
            }
            () = clock.sleep_until(next), if waiting.len() < most => {
                // Start to start, and what is late is made up for: the pace is a promise.
                next = next + load.interval;
                let (load, mut connection) = (load.clone(), idle.pop());
                waiting.spawn(async move {
                    let sent = send(&load, clock, &mut connection).await;
                    (sent, connection)
                });
            }
        }
    }
    while let Some(ended) = waiting.join_next().await {
        let Ok((sent, _)) = ended else { continue };
        account.send_modify(|account| account.push(sent));
    }
}

/// One request, on `connection` if it is still good; what is left there is good for another.
async fn send(load: &Load, clock: Clock, connection: &mut Option<Connection>) -> Sent {
    let start = clock.now();
    let answer = match tokio::time::timeout(load.timeout, exchange(load, connection)).await {
        Ok(answer) => answer.map_err(|error| format!("{error:#}")),
        Err(_) => Err(format!("no answer in {:?}", load.timeout)),
    };
    let (outcome, served_by) = match answer {
        Ok((status, served_by)) => (Ok(status), served_by),
        Err(error) => (Err(error), None),
    };
    Sent { start, end: clock.now(), outcome, served_by }
}

/// Leaves a connection behind only after a whole answer.
async fn exchange(load: &Load, kept: &mut Option<Connection>) -> anyhow::Result<(u16, Option<String>)> {
    let mut request = Request::get(&load.path).header("host", load.target.to_string()).body(Empty::new())?;
    request.headers_mut().extend(load.headers.iter().cloned());
    let (mut sender, driver) = match kept.take() {
        Some((sender, driver)) if !sender.is_closed() => (sender, driver),
        _ => connect(load.target).await?,
    };
    sender.ready().await?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    body.collect().await?;
    *kept = Some((sender, driver));
    let served_by = head.headers.get(SERVED_BY).and_then(|name| name.to_str().ok());
    Ok((head.status.as_u16(), served_by.map(str::to_owned)))
}

async fn connect(target: SocketAddr) -> anyhow::Result<Connection> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection of the load broke");
        }
    });
    Ok((sender, driver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::instance::{FakeInstance, Mode};

    #[tokio::test]
    async fn traffic_is_bounded_and_says_who_served() {
        let instance = FakeInstance::start().await.unwrap();
        let mut load = Load::new(instance.address());
        (load.workers, load.interval, load.requests_per_worker) = (2, Duration::ZERO, 10);
        let sent = Traffic::start(load, Clock::start()).finish().await;
        assert!(sent.iter().all(|sent| sent.is_ok() && sent.start <= sent.end));
        assert_eq!(shares(&sent), BTreeMap::from([(instance.name().to_owned(), 20)]));
        assert_eq!(instance.account().accepted, 2, "connections are kept");
    }

    #[tokio::test]
    async fn hanging_requests_do_not_slow_an_open_pace() {
        let instance = FakeInstance::start().await.unwrap();
        instance.set(Mode::Hang).await.unwrap();
        let load = Load { interval: Duration::from_millis(1), workers: 50, ..Load::new(instance.address()) };
        let traffic = Traffic::start_open(load, Clock::start());
        instance.wait_until("50 requests hang", |seen| seen.requests.len() == 50).await.unwrap();
        assert_eq!(traffic.ended(), 0);
        instance.set(Mode::Healthy).await.unwrap();
        let sent = traffic.stop().await;
        assert!(sent.len() >= 50 && sent.iter().all(Sent::is_ok), "{sent:?}");
    }

    #[tokio::test]
    async fn a_request_that_hangs_too_long_has_failed() {
        let instance = FakeInstance::start().await.unwrap();
        instance.set(Mode::Hang).await.unwrap();
        let mut load = Load::new(instance.address());
        (load.workers, load.requests_per_worker, load.timeout) = (1, 1, Duration::from_millis(20));
        let sent = Traffic::start(load, Clock::start()).finish().await;
        assert!(sent[0].outcome.as_ref().is_err_and(|why| why.contains("no answer in 20ms")), "{sent:?}");
    }

    #[tokio::test]
    async fn errors_are_counted_and_traffic_stops_when_told() {
        let instance = FakeInstance::start().await.unwrap();
        instance.set(Mode::Refuse).await.unwrap();
        let mut traffic = Traffic::start(Load::new(instance.address()), Clock::start());
        traffic.wait_until(|sent| sent.len() >= 3).await.unwrap();
        let sent = traffic.stop().await;
        assert!(sent.iter().all(|sent| sent.outcome.is_err()), "{sent:?}");
    }
}
