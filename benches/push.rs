//! From a decision to the ACK of a real Envoy, and what that ACK is worth under load.
//!
//! A plan is flipped by hand (the bench stands in for the fleet); publisher, xDS server and Envoy are real. After
//! each ACK of an ejection, Envoy's own access log tells whether a request was still started on the ejected instance.
//!
//! `cargo bench --bench push` prints a table, and as its last line
//! `{"push_to_ack_ms":{"p50","p99"},"after_ack":{"flips","late"}}` (delta ADS; the table has SotW too).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tidegate::clock::Clock;
use tidegate::config::Config;
use tidegate::model::{Address, ClientEvent, ClusterPlan, Entry, Instance, Plan, Reason, Serve, Standing};
use tidegate::net::Ports;
use tidegate::telemetry;
use tidegate::testing::envoy::{Bootstrap, EnvoyOptions, EnvoyProcess, access_log};
use tidegate::testing::eventually::eventually;
use tidegate::testing::instance::FakeInstance;
use tidegate::testing::load::{Load, Traffic};
use tidegate::testing::model::{cluster, cluster_name, config, instance, ms};
use tidegate::testing::sim_envoy::Wire;
use tidegate::xds::{self, Clients, Server, ServerCtx};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const FLIPS: usize = 200;
const INSTANCES: usize = 4;
const POOL: &str = "pool";
/// How long an instance stays ejected, and then serves again, before the next flip.
const EJECTED_FOR: Duration = ms(150);
const SERVING_FOR: Duration = ms(60);

/// One ejection: between these two wall times no request may start on `victim`.
struct Flip {
    victim: SocketAddr,
    acked: u64,
    until: u64,
}

/// What one protocol variant achieved.
struct Figures {
    push_to_ack: Vec<f64>,
    flips: usize,
    late: usize,
    /// The latest start on an ejected instance, in milliseconds after the ACK; negative is before it.
    latest: f64,
    requests: usize,
    failed: usize,
    seconds: f64,
}

/// The control plane without prober and fleet: a plan in, xDS out.
struct Bench {
    clock: Clock,
    generation: u64,
    instances: Vec<Instance>,
    plan: watch::Sender<Arc<Plan>>,
    settled: broadcast::Receiver<ClientEvent>,
    address: SocketAddr,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    _config: watch::Sender<Arc<Config>>,
}

impl Bench {
    async fn start(backends: &[FakeInstance]) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let instances: Vec<Instance> = backends
            .iter()
            .enumerate()
            .map(|(n, b)| Instance { address: Address::new(b.address()), ..instance(&format!("i{n}"), 1) })
            .collect();
        let config = watch::Sender::new(Arc::new(config([(POOL, cluster(instances.clone()))])));
        let plan = watch::Sender::new(Arc::new(Plan::default()));
        let snapshots = watch::Sender::new(None);
        let (clients, shutdown) = (Clients::new(), CancellationToken::new());
        let settled = clients.watch();
        let metrics = xds::Metrics::register(&mut telemetry::registry());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = Server::new(ServerCtx {
            clock,
            config: config.subscribe(),
            snapshots: snapshots.subscribe(),
            clients,
            metrics: metrics.clone(),
            port: Ports::default().port("xds", usize::MAX),
            shutdown: shutdown.clone(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(server.run(listener));
        tasks.spawn(xds::publish(
            clock,
            config.subscribe(),
            plan.subscribe(),
            snapshots,
            metrics,
            shutdown.clone(),
        ));
        Ok(Self { clock, generation: 0, instances, plan, settled, address, shutdown, tasks, _config: config })
    }

    /// Publishes that `victim` is ejected, or that all serve. Returns the generation to wait for.
    fn decide(&mut self, victim: Option<usize>) -> u64 {
        self.generation += 1;
        let entry = |(n, i): (usize, &Instance)| {
            let serve = if victim == Some(n) { Serve::Unhealthy } else { Serve::Healthy };
            let (id, locality) = (i.id.clone(), i.locality.clone());
            Arc::new(Entry {
                id,
                address: i.address,
                locality,
                weight: i.weight,
                serve,
                reason: Reason::Passing,
            })
        };
        let entries = self.instances.iter().enumerate().map(entry).collect();
        let generation = self.generation;
        let pool = Arc::new(ClusterPlan { generation, standing: Standing::Decided, entries });
        let clusters = [(cluster_name(POOL), pool)].into();
        self.plan.send_replace(Arc::new(Plan { generation, at: self.clock.now(), clusters }));
        generation
    }

    /// Waits for the ACK of `wanted`. Gives the milliseconds from the decision to it, and its wall time.
    async fn acked(&mut self, wanted: u64) -> anyhow::Result<(f64, u64)> {
        let decided = self.plan.borrow().at;
        let wait = async {
            loop {
                match self.settled.recv().await.context("the server is gone")? {
                    ClientEvent::Settled { generation, at, .. } if generation >= wanted => {
                        return anyhow::Ok(at);
                    }
                    _ => {}
                }
            }
        };
        let at = tokio::time::timeout(Duration::from_secs(10), wait).await.context("no ACK in 10 s")??;
        let ago = self.clock.now().since(at).as_micros();
        let wall = access_log::wall_micros() - u64::try_from(ago)?;
        Ok((at.since(decided).as_secs_f64() * 1e3, wall))
    }
}

async fn run(wire: Wire) -> anyhow::Result<Figures> {
    let mut backends = Vec::new();
    for _ in 0..INSTANCES {
        backends.push(FakeInstance::start().await?);
    }
    let mut bench = Bench::start(&backends).await?;
    let ready = bench.decide(None);
    let bootstrap = Bootstrap { xds: Some(bench.address), wire, cds: true, ..Bootstrap::default() };
    let options = EnvoyOptions { concurrency: 2, ..EnvoyOptions::default() };
    let envoy = EnvoyProcess::start(&bootstrap.yaml(), &options).await?;
    bench.acked(ready).await?;
    let load = Load {
        workers: 8,
        interval: ms(20), // 400 requests per second
        at_most: Duration::from_secs(300),
        ..Load::new(envoy.listener("traffic").await?).cluster(POOL)
    };
    let started = bench.clock.now();
    let mut traffic = Traffic::start(load, bench.clock);
    traffic.wait_until(|sent| sent.len() > 400).await?;
    let mut push_to_ack = Vec::new();
    let mut flips = Vec::new();
    for n in 0..FLIPS {
        let victim = n % INSTANCES;
        let ejection = bench.decide(Some(victim));
        let (took, acked) = bench.acked(ejection).await?;
        push_to_ack.push(took);
        tokio::time::sleep(EJECTED_FOR).await;
        let until = access_log::wall_micros();
        flips.push(Flip { victim: backends[victim].address(), acked, until });
        let recovery = bench.decide(None);
        bench.acked(recovery).await?;
        tokio::time::sleep(SERVING_FOR + ms(n as u64 % 7)).await;
        if n % 20 == 19 {
            eprintln!("  {wire:?}: {} of {FLIPS} flips", n + 1);
        }
    }
    let sent = traffic.stop().await;
    let seconds = bench.clock.now().since(started).as_secs_f64();
    let log = envoy.scratch().join("access.log");
    let served = eventually("Envoy's access log to be complete", async || {
        let served = access_log::read(&log).map_err(|e| e.to_string())?;
        if served.len() >= sent.len() {
            Ok(served)
        } else {
            Err(format!("{} of {}", served.len(), sent.len()))
        }
    })
    .await?;
    let after_ack: Vec<f64> = flips.iter().flat_map(|flip| starts_after_ack(flip, &served)).collect();
    let late = after_ack.iter().filter(|ms| **ms >= 0.0).count();
    let latest = after_ack.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    bench.shutdown.cancel();
    while bench.tasks.join_next().await.is_some() {}
    ensure!(flips.len() == FLIPS, "some flips were lost");
    let failed = sent.iter().filter(|s| !s.is_ok()).count();
    Ok(Figures { push_to_ack, flips: flips.len(), late, latest, requests: sent.len(), failed, seconds })
}

/// All starts on the victim before it was to serve again, in milliseconds after the ACK.
fn starts_after_ack(flip: &Flip, served: &[access_log::Served]) -> Vec<f64> {
    let on_victim = served.iter().filter(|s| s.upstream == Some(flip.victim) && s.start_micros < flip.until);
    on_victim.map(|s| (s.start_micros as f64 - flip.acked as f64) / 1e3).collect()
}

/// The value below which a share of `q` lies.
fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * q).round() as usize).copied().unwrap_or(f64::NAN)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("{INSTANCES} instances, 1 Envoy with 2 workers, {FLIPS} ejections under load");
    println!(
        "{:<6} {:>9} {:>9} {:>9} {:>9} {:>10} {:>8} {:>6} {:>10}",
        "ADS", "p50 ms", "p99 ms", "max ms", "requests", "per second", "failed", "late", "latest ms"
    );
    let mut delta = None;
    for wire in [Wire::Sotw, Wire::Delta] {
        let mut figures = run(wire).await?;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| quantile(&mut figures.push_to_ack, q));
        let rate = figures.requests as f64 / figures.seconds;
        println!(
            "{:<6} {p50:>9.2} {p99:>9.2} {max:>9.2} {:>9} {rate:>10.0} {:>8} {:>6} {:>10.2}",
            format!("{wire:?}"),
            figures.requests,
            figures.failed,
            figures.late,
            figures.latest
        );
        delta = Some((p50, p99, figures));
    }
    let (p50, p99, figures) = delta.context("nothing was measured")?;
    println!(
        r#"{{"push_to_ack_ms":{{"p50":{p50:.3},"p99":{p99:.3}}},"after_ack":{{"flips":{},"late":{}}}}}"#,
        figures.flips, figures.late
    );
    Ok(())
}
