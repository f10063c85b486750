//! tidegate whole, in the test's own process.
//!
//! The real assembly (`app::start`) on a config file in a scratch directory, with ports of the system's choice.
//! Nothing is replaced: what a test sees here is what `tidegate serve` does, without the process around it (for that
//! see [`super::process`]). It ends with the value.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::eventually::{eventually, patience};
use super::fetch;
use super::setup::Setup;
use super::sim_envoy::{SimEnvoy, SimOptions, Wire};
use crate::app::{self, TaskFailure};
use crate::clock::Clock;
use crate::model::{ClusterName, Plan, Serve, Standing};
use crate::snapshot::{Kind, Snapshot};
use crate::xds::Clients;

/// A running tidegate.
pub struct TestApp {
    /// The clock it runs by.
    pub clock: Clock,
    /// Its connected clients.
    pub clients: Clients,
    /// What it has decided.
    pub plan: watch::Receiver<Arc<Plan>>,
    /// What it serves.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    xds: SocketAddr,
    admin: SocketAddr,
    health: SocketAddr,
    dir: TempDir,
    stop: CancellationToken,
    running: JoinSet<Result<(), TaskFailure>>,
}

impl TestApp {
    /// Starts with a config.
    pub async fn start(setup: &Setup) -> anyhow::Result<Self> {
        let dir = TempDir::with_prefix("tidegate-app-")?;
        let path = dir.path().join("tidegate.yaml");
        std::fs::write(&path, setup.yaml())?;
        let app = app::start(path).await?;
        let stop = CancellationToken::new();
        let (clock, clients) = (app.clock, app.clients.clone());
        let (plan, snapshots, listen) = (app.plan.clone(), app.snapshots.clone(), app.listen);
        let mut running = JoinSet::new();
        running.spawn(app.run(stop.clone().cancelled_owned()));
        let (xds, admin, health) = (listen.xds, listen.admin, listen.health);
        Ok(Self { clock, clients, plan, snapshots, xds, admin, health, dir, stop, running })
    }

    /// Where it serves xDS.
    pub fn xds(&self) -> SocketAddr {
        self.xds
    }

    /// Where it serves its own health and metrics.
    pub fn health(&self) -> SocketAddr {
        self.health
    }

    /// The config file.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("tidegate.yaml")
    }

    /// A simulated Envoy that takes everything from it.
    pub fn sim(&self, wire: Wire) -> SimEnvoy {
        SimEnvoy::start(SimOptions::new(self.xds, wire))
    }

    /// Puts other content in the config file's place, by rename, and waits until it has been read.
    pub async fn reload(&self, setup: &Setup) -> anyhow::Result<()> {
        // The ports are what they were bound as: naming them would ask for a restart.
        let before = self.metric("tidegate_config_reloads_total").await?;
        replace(&self.config_path(), &setup.yaml())?;
        eventually("the config is reloaded", async || {
            match self.metric("tidegate_config_reloads_total").await {
                Ok(now) if now > before => Ok(()),
                other => Err(format!("{before:?}, then {other:?}")),
            }
        })
        .await
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        Ok(fetch::get(self.health, "/metrics").await?.text())
    }

    /// One sample, by its full name with labels; zero if there is none (yet).
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        Ok(sample(&self.metrics().await?, name).unwrap_or(0.0))
    }

    /// Waits until clients are to be told exactly this about a cluster: whoever is not named is absent.
    pub async fn wait_served(&self, cluster: &str, expected: &[(SocketAddr, Serve)]) -> anyhow::Result<()> {
        let name = ClusterName::new(cluster).with_context(|| format!("{cluster:?} is a cluster name"))?;
        let mut wanted: Vec<_> = expected.iter().map(|(at, serve)| (at.to_string(), *serve)).collect();
        wanted.sort();
        self.wait_plan(&format!("{cluster} is served as {wanted:?}"), |plan| {
            let Some(cluster) = plan.clusters.get(&name) else { return false };
            let entries = cluster.entries.iter().filter(|e| e.serve != Serve::Absent);
            let mut now: Vec<_> = entries.map(|e| (e.address.to_string(), e.serve)).collect();
            now.sort();
            cluster.standing >= Standing::Loading && now == wanted
        })
        .await
    }

    /// Where the admin API listens.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A connection to the admin API.
    pub async fn admin_channel(&self) -> anyhow::Result<Channel> {
        Ok(Endpoint::from_shared(format!("http://{}", self.admin))?.connect().await?)
    }

    /// The id of the instance of `cluster` at `address`; empty if there is none.
    pub fn instance_of(&self, cluster: &str, address: SocketAddr) -> String {
        let plan = self.plan.borrow().clone();
        let entries =
            plan.clusters.iter().filter(|(name, _)| name.as_str() == cluster).flat_map(|(_, c)| &c.entries);
        let mut found = entries.filter(|entry| entry.address.socket() == address);
        found.next().map(|entry| entry.id.to_string()).unwrap_or_default()
    }

    /// Waits until the plan satisfies `check`.
    pub async fn wait_plan(&self, what: &str, check: impl Fn(&Plan) -> bool) -> anyhow::Result<()> {
        let mut plan = self.plan.clone();
        let last = self.plan.clone();
        match tokio::time::timeout(patience(), plan.wait_for(|plan| check(plan))).await {
            Ok(seen) => seen.map(|_| ()).with_context(|| format!("{what}: tidegate is gone")),
            Err(_) => anyhow::bail!("{what}: not in time: {:#?}", last.borrow().clone()),
        }
    }

    /// The version under which a resource is served now.
    pub fn version(&self, kind: Kind, name: &str) -> Option<String> {
        let snapshot = self.snapshots.borrow().clone()?;
        snapshot.set(kind).resources.get(name).map(|r| r.version.to_string())
    }

    /// Stops as SIGTERM does; an error if any of its tasks failed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        ensure!(self.running.try_join_next().is_none(), "tidegate had ended before it was told to");
        self.stop.cancel();
        let ended = tokio::time::timeout(patience(), self.running.join_next()).await;
        ended.context("tidegate does not stop")?.context("nothing was running")??.context("a task failed")
    }
}

/// Writes beside `path` and renames: nobody sees half of it.
pub fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text)?;
    std::fs::rename(beside, path)
}

/// One sample of a metrics page.
pub fn sample(page: &str, name: &str) -> Option<f64> {
    let rest = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    rest.split(' ').next()?.parse().ok()
}
