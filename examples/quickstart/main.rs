//! A whole small fleet on this machine, and five things that happen to it.
//!
//! `cargo run --release --example quickstart` gets a real Envoy, starts three inference stand-ins, tidegate and
//! Envoy, and sends a steady streaming load. Then one instance is added that loads for three seconds, one hangs, one is
//! drained and stopped, and one is killed. Each phase says what happened, what tidegate saw, when Envoy knew, and how
//! many requests were answered. `--keep` leaves everything running afterwards.
//!
//! The last line is JSON; the exit code is 0 only if no request failed that need not.

mod engine;
mod load;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tidegate::app;
use tidegate::clock::Clock;
use tidegate::model::{ClientEvent, MonoTime, Plan, Serve};
use tidegate::pb::admin::admin_client::AdminClient;
use tidegate::pb::admin::{DrainInstanceRequest, WatchDrainRequest};
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess};
use tidegate::testing::setup::free_address;
use tidegate::testing::sim_envoy::Wire;
use tidegate::xds::Clients;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use engine::Engine;
use load::{Load, Sent};

/// How long a phase goes on after its event has been dealt with.
const AFTER: Duration = Duration::from_secs(2);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything that runs.
struct Fleet {
    clock: Clock,
    /// The engines' clock began this much before tidegate's.
    head_start: Duration,
    config: std::path::PathBuf,
    ingress: std::net::SocketAddr,
    listed: Vec<(String, std::net::SocketAddr)>,
    plan: watch::Receiver<std::sync::Arc<Plan>>,
    acks: broadcast::Receiver<ClientEvent>,
}

impl Fleet {
    /// Writes the config with all instances listed so far.
    fn write_config(&self) -> anyhow::Result<()> {
        let mut yaml =
            String::from("listen: { xds: 127.0.0.1:0, admin: 127.0.0.1:0, health: 127.0.0.1:0 }\n");
        yaml.push_str("clusters:\n  demo:\n    instances:\n");
        for (name, address) in &self.listed {
            writeln!(yaml, "      {name}: {{ address: \"{address}\" }}")?;
        }
        yaml.push_str(
            "    checks:\n      readiness: { http: { path: /health }, interval: 1s, timeout: 500ms }\n    policy: { \
             max_ejected_percent: 75 }\n",
        );
        writeln!(
            yaml,
            "listeners:\n  ingress: {{ address: \"{}\", routes: [ {{ prefix: /, cluster: demo }} ] }}",
            self.ingress
        )?;
        let draft = self.config.with_extension("draft");
        std::fs::write(&draft, yaml)?;
        std::fs::rename(draft, &self.config)?;
        Ok(())
    }

    /// Waits until `name` is served as `serve` and Envoy has acknowledged that. Gives both moments.
    async fn known(&mut self, name: &str, serve: Serve) -> anyhow::Result<(MonoTime, MonoTime)> {
        let is_so = |plan: &Plan| {
            let mut entries = plan.clusters.values().flat_map(|c| &c.entries);
            entries.any(|e| e.id.as_str() == name && e.serve == serve)
        };
        let plan = tokio::time::timeout(PATIENCE, self.plan.wait_for(|plan| is_so(plan))).await;
        let plan = plan.with_context(|| format!("{name} was not {serve:?} in time"))??.clone();
        let wanted = plan.clusters.values().map(|c| c.generation).max().unwrap_or(0);
        let acked = async {
            loop {
                match self.acks.recv().await? {
                    ClientEvent::Settled { generation, at, .. } if generation >= wanted => {
                        return anyhow::Ok(at);
                    }
                    _ => {}
                }
            }
        };
        let acked =
            tokio::time::timeout(PATIENCE, acked).await.context("Envoy did not acknowledge in time")??;
        Ok((plan.at, acked))
    }

    fn say(&self, what: &str) {
        eprintln!("{:>7.2} s  {what}", self.clock.now().since_start().as_secs_f64());
    }
}

/// What one phase came to.
struct Phase {
    name: &'static str,
    from: MonoTime,
    to: MonoTime,
    seen: MonoTime,
    acked: MonoTime,
    last_request: Option<MonoTime>,
}

impl Phase {
    fn report(&self, sent: &[Sent]) -> (u64, Value) {
        let mine = || sent.iter().filter(|s| (self.from..self.to).contains(&s.decided_at()));
        let failed = mine().filter(|s| s.failure.is_some()).count() as u64;
        let ok = mine().count() as u64 - failed;
        let since = |at: MonoTime| u64::try_from(at.since(self.from).as_millis()).unwrap_or(u64::MAX);
        let last = self.last_request.map(since);
        let row = json!({
            "ok": ok, "failed": failed, "first_seen_ms": since(self.seen), "acked_ms": since(self.acked),
            "last_request_ms": last,
        });
        let last = last.map_or("-".to_owned(), |ms| ms.to_string());
        println!(
            "{:<8} {ok:>5} {failed:>7} {:>12} {:>12} {last:>14}",
            self.name,
            since(self.seen),
            since(self.acked)
        );
        (failed, row)
    }
}

async fn run(keep: bool) -> anyhow::Result<bool> {
    eprintln!("getting Envoy (once; it is kept under target/parts) ...");
    let dir = tempfile::tempdir()?;
    let clock = Clock::start();
    let mut engines = Vec::new();
    for name in ["one", "two", "three"] {
        engines.push(Engine::start(name, Duration::ZERO, clock).await?);
    }
    let mut fleet = Fleet {
        clock,
        head_start: Duration::ZERO,
        config: dir.path().join("tidegate.yaml"),
        ingress: free_address(),
        listed: engines.iter().map(|e| (e.name.to_string(), e.address)).collect(),
        plan: watch::Sender::new(std::sync::Arc::default()).subscribe(),
        acks: Clients::new().watch(),
    };
    fleet.write_config()?;
    let app = app::start(fleet.config.clone()).await?;
    fleet.clock = app.clock;
    fleet.head_start = clock.now().since(app.clock.now());
    fleet.plan = app.plan.clone();
    fleet.acks = app.clients.watch();
    let (listen, stop) = (app.listen, CancellationToken::new());
    let mut running = tokio::task::JoinSet::new();
    running.spawn(app.run(stop.clone().cancelled_owned()));
    let bootstrap =
        Bootstrap { xds: Some(listen.xds), wire: Wire::Delta, cds: true, lds: true, ..Bootstrap::default() };
    let envoy = EnvoyProcess::start(&bootstrap.yaml(), &EnvoyOptions::default()).await?;
    envoy.listener("ingress").await?;
    fleet.say(&format!(
        "three instances, tidegate and Envoy run; users send streams to http://{}",
        fleet.ingress
    ));
    let load = Load::start(fleet.ingress, fleet.clock);
    tokio::time::sleep(AFTER).await;

    let phases = vec![
        added(&mut fleet, &mut engines, clock).await?,
        hung(&mut fleet, &engines).await?,
        drained(&mut fleet, &mut engines, listen.admin).await?,
        killed(&mut fleet, &mut engines).await?,
    ];
    let sent = load.stop().await;
    for (at, why) in sent.iter().filter_map(|s| s.failure.as_ref().map(|why| (s.decided_at(), why))) {
        eprintln!("{:>7.2} s  a request failed: {why}", at.since_start().as_secs_f64());
    }
    println!(
        "\n{:<8} {:>5} {:>7} {:>12} {:>12} {:>14}",
        "phase", "ok", "failed", "seen ms", "acked ms", "last req. ms"
    );
    let mut result = serde_json::Map::new();
    let mut fine = true;
    for phase in &phases {
        let (failed, row) = phase.report(&sent);
        fine &= match phase.name {
            "killed" => failed <= 3,
            "hung" => row["last_request_ms"].as_u64().is_none_or(|ms| ms <= 2000),
            _ => failed == 0,
        };
        result.insert(phase.name.to_owned(), row);
    }
    if keep {
        eprintln!(
            "kept running: users' port {}, admin {}, health {}, Envoy's admin {}; Ctrl-C ends it",
            fleet.ingress,
            listen.admin,
            listen.health,
            envoy.admin().address()
        );
        tokio::signal::ctrl_c().await?;
    }
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    println!("{}", Value::Object(result));
    Ok(fine)
}

async fn added(fleet: &mut Fleet, engines: &mut Vec<Engine>, clock: Clock) -> anyhow::Result<Phase> {
    let from = fleet.clock.now();
    let engine = Engine::start("four", Duration::from_secs(3), clock).await?;
    fleet.listed.push((engine.name.to_string(), engine.address));
    engines.push(engine);
    fleet.write_config()?;
    fleet.say("`four` is added; it loads for 3 s");
    let (seen, acked) = fleet.known("four", Serve::Healthy).await?;
    fleet.say("tidegate found `four` ready, and Envoy has it");
    tokio::time::sleep(AFTER).await;
    Ok(Phase { name: "added", from, to: fleet.clock.now(), seen, acked, last_request: None })
}

async fn hung(fleet: &mut Fleet, engines: &[Engine]) -> anyhow::Result<Phase> {
    let engine = engines.iter().find(|e| &*e.name == "two").context("`two` runs")?;
    let from = fleet.clock.now();
    engine.hang();
    fleet.say("`two` hangs: it takes requests and never answers");
    let (seen, acked) = fleet.known("two", Serve::Unhealthy).await?;
    fleet.say("tidegate has ejected `two`, and Envoy knows");
    tokio::time::sleep(AFTER).await;
    let last = engine.account().last_request.map(|at| at - fleet.head_start);
    Ok(Phase { name: "hung", from, to: fleet.clock.now(), seen, acked, last_request: last })
}

async fn drained(
    fleet: &mut Fleet,
    engines: &mut Vec<Engine>,
    admin: std::net::SocketAddr,
) -> anyhow::Result<Phase> {
    let at = engines.iter().position(|e| &*e.name == "three").context("`three` runs")?;
    let mut engine = engines.remove(at);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{admin}"))?.connect().await?;
    let mut client = AdminClient::new(channel);
    let name = "clusters/demo/instances/three".to_owned();
    let from = fleet.clock.now();
    fleet.say("`three` is to be stopped: tidegate drain demo/three --wait");
    let reason = "quickstart".to_owned();
    client.drain_instance(DrainInstanceRequest { name: name.clone(), reason }).await?;
    let (seen, acked) = fleet.known("three", Serve::Draining).await?;
    let mut statuses = client.watch_drain(WatchDrainRequest { name }).await?.into_inner();
    let mut acknowledged = false;
    while let Some(status) = statuses.message().await? {
        acknowledged = status.acknowledged;
    }
    ensure!(acknowledged, "tidegate ended before Envoy had acknowledged");
    engine.idle().await?;
    let last = engine.account().last_request.map(|at| at - fleet.head_start);
    drop(engine);
    fleet.say("Envoy knows, the last stream on `three` has ended, and it is stopped");
    tokio::time::sleep(AFTER).await;
    Ok(Phase { name: "drained", from, to: fleet.clock.now(), seen, acked, last_request: last })
}

async fn killed(fleet: &mut Fleet, engines: &mut Vec<Engine>) -> anyhow::Result<Phase> {
    let at = engines.iter().position(|e| &*e.name == "one").context("`one` runs")?;
    let from = fleet.clock.now();
    let engine = engines.remove(at);
    let last = engine.account().last_request.map(|at| at - fleet.head_start);
    drop(engine);
    fleet.say("`one` is killed");
    let (seen, acked) = fleet.known("one", Serve::Unhealthy).await?;
    fleet.say("tidegate has ejected `one`, and Envoy knows; `four` serves alone");
    tokio::time::sleep(AFTER).await;
    Ok(Phase { name: "killed", from, to: fleet.clock.now(), seen, acked, last_request: last })
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let mut keep = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--keep" => keep = true,
            other => {
                eprintln!("{other:?} is not known; there is --keep");
                return Ok(ExitCode::from(64));
            }
        }
    }
    Ok(if run(keep).await? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
