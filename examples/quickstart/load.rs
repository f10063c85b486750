//! Users: a steady load of streaming requests, with an account of each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
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

/// One request begins each so often.
const EVERY: Duration = Duration::from_millis(100);
/// A user who has waited this long for the next bit gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// One request that has ended.
#[derive(Debug, Clone)]
pub struct Sent {
    pub start: MonoTime,
    pub end: MonoTime,
    pub failure: Option<String>,
}

impl Sent {
    /// The moment that decided how it ended: for one that waited in vain, when it began to wait.
    pub fn decided_at(&self) -> MonoTime {
        let waited = self.end.since(self.start) >= PATIENCE;
        if waited { self.start } else { self.end }
    }
}

/// A running load.
pub struct Load {
    sent: watch::Receiver<Vec<Sent>>,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

impl Load {
    pub fn start(target: SocketAddr, clock: Clock) -> Self {
        let account = Arc::new(watch::Sender::new(Vec::new()));
        let stop = watch::Sender::new(false);
        let (sent, mut stopped) = (account.subscribe(), stop.subscribe());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut requests = JoinSet::new();
            let mut pace = tokio::time::interval(EVERY);
            loop {
                tokio::select! {
                    _ = pace.tick() => {}
                    _ = stopped.wait_for(|stop| *stop) => break,
                }
                let account = account.clone();
                requests.spawn(async move {
                    let start = clock.now();
                    let failure = request(target).await.err().map(|error| format!("{error:#}"));
                    let end = clock.now();
                    account.send_modify(|all| all.push(Sent { start, end, failure }));
                });
                while requests.try_join_next().is_some() {}
            }
            while requests.join_next().await.is_some() {}
        });
        Self { sent, stop, task }
    }

    /// What has ended so far.
    pub fn so_far(&self) -> Vec<Sent> {
        self.sent.borrow().clone()
    }

    /// Begins nothing new, and waits for what is under way.
    pub async fn stop(mut self) -> Vec<Sent> {
        self.stop.send_replace(true);
        while self.task.join_next().await.is_some() {}
        self.so_far()
    }
}

async fn request(target: SocketAddr) -> anyhow::Result<()> {
    let socket = TcpStream::connect(target).await.context("no connection to Envoy")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let exchange = async move {
        let request = Request::post("/v1/completions").header("host", "quickstart").body(Full::new(
            Bytes::from_static(b"{\"model\":\"demo\",\"prompt\":\"hello\",\"stream\":true}"),
        ))?;
        let mut answer = tokio::time::timeout(PATIENCE, sender.send_request(request))
            .await
            .context("no answer in 5 s")??;
        ensure!(answer.status().is_success(), "status {}", answer.status().as_u16());
        let mut text = Vec::new();
        while let Some(frame) =
            tokio::time::timeout(PATIENCE, answer.body_mut().frame()).await.context("the stream stalled")?
        {
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
