//! One of the two that are compared: an Envoy, the users' traffic through it, and Envoy's own account of that traffic.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tidegate::clock::Clock;
use tidegate::model::MonoTime;
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess, access_log};
use tidegate::testing::eventually::patience;
use tidegate::testing::load::{Load, Sent, Traffic};

use super::POOL;

const REQUESTS_PER_SECOND: f64 = 100.0;
/// As many requests may hang before the pace suffers: four times what one dead backend of two collects in 4 s.
const WORKERS: u32 = 800;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two questions to an Envoy's admin: its main thread also decides on health, so it is not to be kept busy.
const ADMIN_PAUSE: Duration = Duration::from_millis(100);
/// Envoy writes its log every 50 ms.
const LOG_PAUSE: Duration = Duration::from_millis(25);

/// What a fault cost the users of one Envoy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Start of the last request that Envoy sent to the dead backend, after the fault, in milliseconds.
    pub(crate) last_ms: f64,
    /// Requests that failed or hung.
    pub(crate) failed: usize,
}

/// An Envoy under load.
pub(crate) struct Side {
    name: &'static str,
    envoy: EnvoyProcess,
    traffic: Traffic,
    clock: Clock,
    started: MonoTime,
    log: PathBuf,
    /// How much of the log has been read: bytes, and requests.
    read: (u64, usize),
}

impl Side {
    pub(crate) async fn start(
        name: &'static str,
        bootstrap: &Bootstrap,
        hosts: usize,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        // One worker: there round robin is exact, and each of four backends gets every fourth request.
        let options = EnvoyOptions { concurrency: 1, ..EnvoyOptions::default() };
        let envoy = EnvoyProcess::start(&bootstrap.yaml(), &options).await?;
        healthy(name, &envoy, hosts).await?;
        let load = Load {
            workers: WORKERS,
            interval: Duration::from_secs_f64(1.0 / REQUESTS_PER_SECOND),
            at_most: Duration::from_secs(600),
            timeout: CLIENT_TIMEOUT,
            ..Load::new(envoy.listener("traffic").await?).cluster(POOL)
        };
        let log = envoy.scratch().join("access.log");
        let (started, traffic) = (clock.now(), Traffic::start_open(load, clock));
        Ok(Self { name, envoy, traffic, clock, started, log, read: (0, 0) })
    }

    /// Waits until this Envoy itself holds `hosts` of the pool for healthy.
    pub(crate) async fn healthy(&self, hosts: usize) -> anyhow::Result<()> {
        healthy(self.name, &self.envoy, hosts).await
    }

    /// Waits until so many more requests have ended.
    pub(crate) async fn more(&mut self, requests: usize) -> anyhow::Result<()> {
        let wanted = self.traffic.ended() + requests;
        self.wait("further requests end", |ended| ended.len() >= wanted).await
    }

    /// Waits until users get answers from `backend` to requests they sent after `since`.
    pub(crate) async fn serves(&mut self, backend: &str, since: MonoTime) -> anyhow::Result<()> {
        let seen = Cell::new(self.traffic.ended());
        self.wait(&format!("{backend} serves again"), |ended| {
            let new = ended.get(seen.replace(ended.len())..).unwrap_or_default();
            new.iter().any(|s| s.start >= since && s.is_ok() && s.served_by.as_deref() == Some(backend))
        })
        .await
    }

    /// True if the latest answers, ten at least, all had this status.
    pub(crate) fn answers(&self, status: u16) -> bool {
        let ended = self.traffic.so_far();
        ended.iter().rev().take(10).filter(|sent| sent.outcome == Ok(status)).count() == 10
    }

    async fn wait(&mut self, what: &str, check: impl Fn(&[Sent]) -> bool) -> anyhow::Result<()> {
        let waiting = tokio::time::timeout(patience(), self.traffic.wait_until(check));
        waiting.await.with_context(|| format!("{}: {what}: not in time", self.name))?
    }

    /// What has failed since the last call, by Envoy's own log. Called when nothing hangs any more: Envoy logs a
    /// request when it ends, stamped with its start.
    pub(crate) async fn cost(&mut self, dead: SocketAddr, fault_micros: u64) -> anyhow::Result<Cost> {
        let before = self.read.1;
        let ended = self.traffic.so_far();
        let mut served = Vec::new();
        let deadline = tokio::time::Instant::now() + patience();
        loop {
            served.extend(self.read_log()?);
            if self.read.1 >= ended.len() {
                break;
            }
            ensure!(tokio::time::Instant::now() < deadline, "{}: its access log lacks requests", self.name);
            tokio::time::sleep(LOG_PAUSE).await;
        }
        let failed: Vec<_> = served.iter().filter(|s| s.status != 200).collect();
        for request in &failed {
            ensure!(request.upstream == Some(dead), "{}: failed elsewhere: {request:?}", self.name);
        }
        let client = ended.iter().skip(before).filter(|s| !s.is_ok()).count();
        ensure!(client == failed.len(), "{}: {client} failures seen by clients, {failed:?}", self.name);
        let last = failed.iter().map(|s| s.start_micros).max().unwrap_or(fault_micros);
        let last_ms = last.saturating_sub(fault_micros) as f64 / 1e3;
        Ok(Cost { last_ms, failed: failed.len() })
    }

    fn read_log(&mut self) -> anyhow::Result<Vec<access_log::Served>> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.read.0))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        let served = access_log::parse(&text)?;
        self.read = (self.read.0 + text.len() as u64, self.read.1 + served.len());
        Ok(served)
    }

    /// Ejections by this Envoy's outlier detection so far.
    pub(crate) async fn ejections(&self) -> anyhow::Result<u64> {
        let stat = format!("cluster.{POOL}.outlier_detection.ejections_enforced_total");
        Ok(self.envoy.admin().stat(&stat).await?.unwrap_or(0))
    }

    /// Ends the traffic; an error if the promised pace was not kept.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let seconds = self.clock.now().since(self.started).as_secs_f64();
        let sent = self.traffic.stop().await.len();
        let pace = sent as f64 / seconds;
        let kept = (pace / REQUESTS_PER_SECOND - 1.0).abs() < 0.02;
        ensure!(kept, "{}: {pace:.1} requests per second, not {REQUESTS_PER_SECOND}", self.name);
        Ok(())
    }
}

async fn healthy(name: &str, envoy: &EnvoyProcess, hosts: usize) -> anyhow::Result<()> {
    let stat = format!("cluster.{POOL}.membership_healthy");
    let deadline = tokio::time::Instant::now() + patience();
    loop {
        let now = envoy.admin().stat(&stat).await?;
        if now == u64::try_from(hosts).ok() {
            return Ok(());
        }
        let late = tokio::time::Instant::now() >= deadline;
        ensure!(!late, "{name}: {now:?} hosts are healthy, not {hosts}. {}", envoy.log_tail());
        tokio::time::sleep(ADMIN_PAUSE).await;
    }
}
