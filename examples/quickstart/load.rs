//! Users: a steady load of streaming requests, with an account of each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tidegate::clock::Clock;
use tidegate::model::MonoTime;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What users ask for.
pub const PATH: &str = "/v1/completions";
pub const BODY: &str = r#"{"model":"tiny","prompt":"Tell me a story.","stream":true,"max_tokens":200}"#;
/// One request begins each so often.
const EVERY: Duration = Duration::from_millis(125);
/// A user who has waited this long for the next bit gives up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Later than this after the last bit, the next one is late: longer than any engine here takes.
const LATE: Duration = Duration::from_millis(250);
/// The failure of a request that Envoy never saw.
const NO_ENVOY: &str = "no connection to Envoy";

/// One request that has ended.
#[derive(Debug, Clone)]
pub struct Sent {
    /// When it was decided how it ends. For one that waited in vain: when the wait became one, not when the user lost
    /// patience, which is seconds after the trouble.
    pub decided_at: MonoTime,
    pub failure: Option<String>,
}

/// All requests so far.
#[derive(Debug, Clone, Default)]
pub struct Account {
    pub started: usize,
    pub ended: Vec<Sent>,
}

impl Account {
    /// Requests that Envoy has read, as far as users can tell.
    pub fn reached_envoy(&self) -> usize {
        let missed = |sent: &&Sent| sent.failure.as_ref().is_some_and(|why| why.starts_with(NO_ENVOY));
        self.ended.len() - self.ended.iter().filter(missed).count()
    }

    /// Ok and failed.
    pub fn counts(&self) -> (usize, usize) {
        let failed = self.ended.iter().filter(|sent| sent.failure.is_some()).count();
        (self.ended.len() - failed, failed)
    }
}

/// A running load.
pub struct Load {
    account: Arc<watch::Sender<Account>>,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

impl Load {
    /// Sends to `target`, and keeps account in `account`.
    pub fn start(target: SocketAddr, clock: Clock, account: Arc<watch::Sender<Account>>) -> Self {
        let stop = watch::Sender::new(false);
        let mut task = JoinSet::new();
        task.spawn(send(target, clock, account.clone(), stop.subscribe()));
        Self { account, stop, task }
    }

    /// Begins nothing new, and waits for what is under way.
    pub async fn stop(mut self) -> Account {
        self.stop.send_replace(true);
        while self.task.join_next().await.is_some() {}
        self.account.borrow().clone()
    }
}

async fn send(
    target: SocketAddr,
    clock: Clock,
    account: Arc<watch::Sender<Account>>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut requests = JoinSet::new();
    let mut pace = tokio::time::interval(EVERY);
    // After a pause of the machine's, go on at the same pace: a burst would be another load.
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = pace.tick() => {}
            _ = stopped.wait_for(|stop| *stop) => break,
        }
        let account = account.clone();
        requests.spawn(async move {
            account.send_modify(|all| all.started += 1);
            let mut heard = clock.now();
            let failure = request(target, clock, &mut heard).await.err().map(|error| format!("{error:#}"));
            let now = clock.now();
            let waited = failure.is_some() && now.since(heard) >= PATIENCE;
            let decided_at = if waited { heard + LATE } else { now };
            account.send_modify(|all| all.ended.push(Sent { decided_at, failure }));
        });
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
}

/// One request on a connection of its own. `heard` is when something last came.
async fn request(target: SocketAddr, clock: Clock, heard: &mut MonoTime) -> anyhow::Result<()> {
    let socket = TcpStream::connect(target).await.context(NO_ENVOY)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let exchange = async move {
        let request = Request::post(PATH)
            .header("host", "quickstart")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from_static(BODY.as_bytes())))?;
        let mut answer = tokio::time::timeout(PATIENCE, sender.send_request(request))
            .await
            .map_err(|_| anyhow!("no answer in 5 s"))??;
        *heard = clock.now();
        ensure!(answer.status().is_success(), "status {}", answer.status().as_u16());
        let mut text = Vec::new();
        while let Some(frame) = tokio::time::timeout(PATIENCE, answer.body_mut().frame())
            .await
            .map_err(|_| anyhow!("the stream stalled"))?
        {
            *heard = clock.now();
            text.extend_from_slice(
                frame.context("the stream was cut")?.data_ref().map_or(&[][..], |data| data),
            );
        }
        ensure!(text.ends_with(b"data: [DONE]\n\n"), "the stream ended early");
        Ok(())
    };
    tokio::pin!(exchange);
    // The connection is driven here and nowhere else: it ends with the request.
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        done = &mut exchange => done,
        _ = connection.as_mut() => exchange.await,
    }
}
