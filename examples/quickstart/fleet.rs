//! Everything that runs: tidegate in this process, a real Envoy, the instances' config, and the waits for both.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tidegate::app;
use tidegate::clock::Clock;
use tidegate::config::Listen;
use tidegate::model::{ClientEvent, MonoTime, Plan, Serve};
use tidegate::pb::admin::admin_client::AdminClient;
use tidegate::pb::admin::{DrainInstanceRequest, WatchDrainRequest};
use tidegate::testing::app::replace;
use tidegate::testing::envoy::access_log::{self, Served};
use tidegate::testing::envoy::{EnvoyOptions, EnvoyProcess};
use tidegate::testing::eventually::eventually;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, Kit};
use crate::follow::follow;
use crate::load;
use crate::report::Moment;
use crate::screen::Screen;

const CONFIG: &str = include_str!("tidegate.yaml");
const BOOTSTRAP: &str = include_str!("envoy.yaml");
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at Envoy's requests in flight.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The running fleet. Dropping it ends Envoy and all engines.
pub struct Fleet {
    pub clock: Clock,
    pub screen: Screen,
    pub kit: Kit,
    pub engines: BTreeMap<&'static str, Engine>,
    pub listen: Listen,
    /// Where users send their requests.
    pub ingress: SocketAddr,
    pub envoy: EnvoyProcess,
    /// The clock is this much ahead of tidegate's.
    head_start: Duration,
    listed: BTreeMap<&'static str, SocketAddr>,
    config: PathBuf,
    plan: watch::Receiver<std::sync::Arc<Plan>>,
    clients: broadcast::Receiver<ClientEvent>,
    stop: CancellationToken,
    tidegate: JoinSet<anyhow::Result<()>>,
    _spectators: JoinSet<()>,
    _dir: TempDir,
}

impl Fleet {
    /// Starts engines named `names`, tidegate, and Envoy.
    pub async fn start(
        kit: Kit,
        dir: TempDir,
        names: &[&'static str],
        clock: Clock,
        screen: Screen,
    ) -> anyhow::Result<Self> {
        let (mut engines, mut listed) = (BTreeMap::new(), BTreeMap::new());
        for name in names {
            let mut engine = kit.place().await?;
            engine.come_up().await.with_context(|| format!("`{name}` does not start"))?;
            listed.insert(*name, engine.address());
            engines.insert(*name, engine);
        }
        let config = dir.path().join("tidegate.yaml");
        std::fs::write(&config, config_of(&listed))?;
        let app = app::start(config.clone()).await.context("tidegate does not start")?;
        let head_start = clock.now().since(app.clock.now());
        let (listen, plan, clients) = (app.listen, app.plan.clone(), app.clients.watch());
        let mut spectators = JoinSet::new();
        spectators.spawn(follow(app.plan.clone(), app.clients.watch(), head_start, screen.clone()));
        let (stop, mut tidegate) = (CancellationToken::new(), JoinSet::new());
        let stopped = stop.clone().cancelled_owned();
        tidegate.spawn(async move { Ok(app.run(stopped).await?) });
        let bootstrap = BOOTSTRAP
            .replace("$XDS_PORT", &listen.xds.port().to_string())
            .replace("$ACCESS_LOG", &access_log::yaml("$SCRATCH/access.log"));
        let envoy = EnvoyProcess::start(&bootstrap, &EnvoyOptions::default()).await?;
        let ingress = envoy.listener("users").await?;
        Ok(Self {
            clock,
            screen,
            kit,
            engines,
            listen,
            ingress,
            envoy,
            head_start,
            listed,
            config,
            plan,
            clients,
            stop,
            tidegate,
            _spectators: spectators,
            _dir: dir,
        })
    }

    /// Tells tidegate of another instance.
    pub fn register(&mut self, name: &'static str, address: SocketAddr) -> anyhow::Result<()> {
        self.listed.insert(name, address);
        Ok(replace(&self.config, &config_of(&self.listed))?)
    }

    /// The config file.
    pub fn config(&self) -> &std::path::Path {
        &self.config
    }

    /// Takes an engine away, to end it.
    pub fn take(&mut self, name: &str) -> anyhow::Result<Engine> {
        self.engines.remove(name).with_context(|| format!("`{name}` runs"))
    }

    /// Now, on both clocks.
    pub fn moment(&self) -> Moment {
        Moment { at: self.clock.now(), wall_micros: access_log::wall_micros() }
    }

    /// Waits until `name` is served as `serve` and Envoy has acknowledged that. Gives both moments.
    pub async fn known(&mut self, name: &str, serve: Serve) -> anyhow::Result<(MonoTime, MonoTime)> {
        let is_so = |plan: &Plan| {
            let mut entries = plan.clusters.values().flat_map(|c| &c.entries);
            entries.any(|e| e.id.as_str() == name && e.serve == serve)
        };
        let plan = tokio::time::timeout(PATIENCE, self.plan.wait_for(|plan| is_so(plan))).await;
        let plan = plan.with_context(|| format!("`{name}` was not {serve:?} within {PATIENCE:?}"))??.clone();
        let wanted = plan.clusters.values().map(|c| c.generation).max().unwrap_or(0);
        let acked = tokio::time::timeout(PATIENCE, self.acknowledged(wanted)).await;
        let acked = acked.with_context(|| format!("Envoy did not acknowledge within {PATIENCE:?}"))??;
        Ok((plan.at + self.head_start, acked + self.head_start))
    }

    async fn acknowledged(&mut self, wanted: u64) -> anyhow::Result<MonoTime> {
        loop {
            match self.clients.recv().await {
                Ok(ClientEvent::Settled { generation, at, .. }) if generation >= wanted => return Ok(at),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => anyhow::bail!("tidegate is gone"),
            }
        }
    }

    /// What `tidegate drain demo/NAME` does.
    pub async fn drain(&self, name: &str) -> anyhow::Result<()> {
        let name = format!("clusters/demo/instances/{name}");
        let request = DrainInstanceRequest { name, reason: "the quickstart stops it".to_owned() };
        self.admin().await?.drain_instance(request).await?;
        Ok(())
    }

    /// What `--wait` adds to it, and then until Envoy has no request in flight there.
    pub async fn drained(&self, name: &str) -> anyhow::Result<()> {
        let watched = WatchDrainRequest { name: format!("clusters/demo/instances/{name}") };
        let mut statuses = self.admin().await?.watch_drain(watched).await?.into_inner();
        let mut acknowledged = false;
        while let Some(status) = statuses.message().await? {
            acknowledged = status.acknowledged;
        }
        ensure!(acknowledged, "the wait for the drain ended before Envoy had acknowledged");
        let address = *self.listed.get(name).with_context(|| format!("`{name}` is listed"))?;
        // Twice in a row: a worker of Envoy's may pick the instance in the very moment of the acknowledgement.
        let mut idle = 0;
        let wait = async {
            while idle < 2 {
                let clusters = self.envoy.admin().clusters().await?;
                let host = clusters.get("demo").and_then(|hosts| hosts.get(&address));
                idle = if host.is_none_or(|host| host.active_requests == 0) { idle + 1 } else { 0 };
                tokio::time::sleep(LOOK_EVERY).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("`{name}` is never idle"))?
    }

    async fn admin(&self) -> anyhow::Result<AdminClient<tonic::transport::Channel>> {
        let at = format!("http://{}", self.listen.admin);
        Ok(AdminClient::new(tonic::transport::Endpoint::from_shared(at)?.connect().await?))
    }

    /// Envoy's own account of users' requests, once it has written `count` of them.
    pub async fn served(&self, count: usize) -> anyhow::Result<Vec<Served>> {
        let log = self.envoy.scratch().join("access.log");
        eventually("Envoy has logged all requests", async || {
            let mut served = access_log::read(&log).map_err(|error| format!("{error:#}"))?;
            served.retain(|one| one.path == load::PATH);
            if served.len() >= count { Ok(served) } else { Err(format!("{} of {count}", served.len())) }
        })
        .await
    }

    /// Ends tidegate in order, and the rest by dropping it.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.tidegate.join_next().await {
            ended??;
        }
        Ok(())
    }
}

fn config_of(listed: &BTreeMap<&'static str, SocketAddr>) -> String {
    let lines: Vec<_> =
        listed.iter().map(|(name, at)| format!("      {name}: {{ address: \"{at}\" }}")).collect();
    CONFIG.replace("$INSTANCES", &lines.join("\n"))
}
