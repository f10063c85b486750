//! Backends, and two Envoys that send users to them: one told by tidegate, one alone with its own checks.
//!
//! Both use the same backends, so a fault strikes both in the same moment, and what differs is who notices when.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::StatusCode;
use tidegate::clock::Clock;
use tidegate::model::{ClientEvent, MonoTime, Plan, Serve};
use tidegate::testing::app::TestApp;
use tidegate::testing::envoy::{Bootstrap, access_log};
use tidegate::testing::eventually::patience;
use tidegate::testing::instance::{FakeInstance, Mode};
use tidegate::testing::setup::{Setup, free_address};
use tokio::sync::broadcast;

use super::POOL;
use super::side::{Cost, Side};

/// Both ask as often; each has a path of its own, so that a backend can tell who asked.
const INTERVAL: Duration = Duration::from_secs(1);
const ASKED_BY_TIDEGATE: &str = "/health?tidegate";
const ASKED_BY_ENVOY: &str = "/health?envoy";
/// Requests after both know, in which one more might still go to the dead backend.
const AFTERWARDS: usize = 30;
/// From a recovery to the next fault. An Envoy holds a change of its own health checks or outlier detection back if it
/// made another in the last second (`update_merge_window`; tidegate serves 0), and would look slower than it is. Only
/// outlier detection is that quick.
const REST: Duration = Duration::from_millis(1100);
/// Requests in each half of a storm: one backend answers 503, then all do.
const STORM: usize = 100;

/// Who notices besides the active checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Help {
    /// Nobody.
    None,
    /// Envoy's outlier detection: tidegate's bridge, and for Envoy alone what its users would configure.
    Outlier,
}

/// One fault, both sides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) tidegate: Cost,
    pub(crate) envoy: Cost,
    /// How far into the interval the fault came, since the last probe of either.
    pub(crate) phases: [f64; 2],
    /// Where tidegate's time went, in milliseconds: to its next probe, from there to the verdict, to Envoy's ACK.
    pub(crate) stages: [f64; 3],
}

/// What a storm of 503s did: ejections by the outlier detection of either Envoy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Storm {
    pub(crate) tidegate: u64,
    pub(crate) envoy: u64,
}

pub(crate) struct Arena {
    clock: Clock,
    backends: Vec<FakeInstance>,
    /// A moment at which tidegate asked each of them; it asks again after each interval, to the millisecond.
    asked: Vec<MonoTime>,
    rest: Duration,
    /// No fault before.
    rested: MonoTime,
    app: TestApp,
    tidegate: Side,
    envoy: Side,
}

impl Arena {
    pub(crate) async fn start(hosts: usize, help: Help) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let mut backends = Vec::new();
        for _ in 0..hosts {
            // Not the system's choice: the port of a dead backend must not become anybody's source port.
            backends.push(FakeInstance::start_at(free_address(), Mode::Healthy, clock).await?);
        }
        let addresses: Vec<_> = backends.iter().map(FakeInstance::address).collect();
        let app = TestApp::start(&Setup::new().cluster_with(POOL, addresses.clone(), &keys(help))).await?;
        let told = Bootstrap { xds: Some(app.xds()), cds: true, ..Bootstrap::default() };
        let alone = Bootstrap { static_clusters: vec![alone(&addresses, help)], ..Bootstrap::default() };
        let tidegate = Side::start("tidegate", &told, hosts, clock).await?;
        let envoy = Side::start("Envoy alone", &alone, hosts, clock).await?;
        let mut asked = Vec::new();
        for backend in &backends {
            asked.push(steady_probe(backend).await?);
        }
        let rest = if help == Help::Outlier { REST } else { Duration::ZERO };
        let rested = clock.now() + rest;
        Ok(Self { clock, backends, asked, rest, rested, app, tidegate, envoy })
    }

    /// Strikes one backend with `fault` at `phase` of tidegate's interval, waits until both sides know, and heals it.
    pub(crate) async fn strike(&mut self, fault: Mode, victim: usize, phase: f64) -> anyhow::Result<Trial> {
        let (backend, asked) =
            self.backends.get(victim).zip(self.asked.get(victim)).context("no such backend")?;
        let address = backend.address();
        let moment = next(*asked + INTERVAL.mul_f64(phase), self.rested);
        let mut acks = self.app.clients.watch();
        self.clock.sleep_until(moment).await;

        let (micros, struck) = (access_log::wall_micros(), self.clock.now());
        backend.set(fault).await?;
        let next_probe = next(*asked, struck).since(struck).as_secs_f64() * 1e3;
        let phases = [ASKED_BY_TIDEGATE, ASKED_BY_ENVOY].map(|path| since_asked(backend, path, struck));
        let (decided, acked) = self.verdict(address, &mut acks).await?;
        let hosts = self.backends.len() - 1;
        tokio::try_join!(self.tidegate.healthy(hosts), self.envoy.healthy(hosts))?;
        tokio::try_join!(self.tidegate.more(AFTERWARDS), self.envoy.more(AFTERWARDS))?;
        self.heal(victim).await?;

        // tidegate's clock began at another moment than ours.
        let after = |at| (self.app.clock.instant(at) - self.clock.instant(struck)).as_secs_f64() * 1e3;
        let stages = [next_probe, after(decided) - next_probe, after(acked) - after(decided)];
        let (tidegate, envoy) =
            tokio::try_join!(self.tidegate.cost(address, micros), self.envoy.cost(address, micros))?;
        Ok(Trial { tidegate, envoy, phases, stages })
    }

    /// Waits for tidegate's verdict on `dead`, and for its Envoy's ACK.
    async fn verdict(
        &self,
        dead: SocketAddr,
        acks: &mut broadcast::Receiver<ClientEvent>,
    ) -> anyhow::Result<(MonoTime, MonoTime)> {
        let is_out = |plan: &Plan| {
            let entries = plan.clusters.values().flat_map(|pool| &pool.entries);
            entries.clone().any(|entry| entry.address.socket() == dead && entry.serve == Serve::Unhealthy)
        };
        self.app.wait_plan(&format!("{dead} is ejected"), is_out).await?;
        let (wanted, decided) = {
            let plan = self.app.plan.borrow();
            (generation(&plan), plan.at)
        };
        let acked = async {
            loop {
                match acks.recv().await.context("the server is gone")? {
                    ClientEvent::Settled { generation, at, .. } if Some(generation) >= wanted => {
                        return anyhow::Ok(at);
                    }
                    _ => {}
                }
            }
        };
        let acked = tokio::time::timeout(patience(), acked).await.context("no ACK in time")??;
        Ok((decided, acked))
    }

    /// Restarts the process of a backend, which ends what hangs on it, and waits until both sides use it again.
    async fn heal(&mut self, victim: usize) -> anyhow::Result<()> {
        let backend = self.backends.get(victim).context("no such backend")?;
        backend.set(Mode::Refuse).await?;
        let healed = self.clock.now();
        backend.set(Mode::Healthy).await?;
        let (hosts, name) = (self.backends.len(), backend.name());
        tokio::try_join!(self.tidegate.healthy(hosts), self.envoy.healthy(hosts))?;
        tokio::try_join!(self.tidegate.serves(name, healed), self.envoy.serves(name, healed))?;
        self.rested = self.clock.now() + self.rest;
        Ok(())
    }

    /// The application answers 503 to users, while its health path says 200; an error if that ejects anybody on
    /// tidegate's side. Afterwards the arena is of no more use.
    pub(crate) async fn storm(&mut self) -> anyhow::Result<Storm> {
        let plan = generation(&self.app.plan.borrow());
        let (tidegate, envoy) = (self.tidegate.ejections().await?, self.envoy.ejections().await?);
        let (first, others) = self.backends.split_at(1);
        for backends in [first, others] {
            for backend in backends {
                backend.set(Mode::Failing(StatusCode::SERVICE_UNAVAILABLE)).await?;
            }
            tokio::try_join!(self.tidegate.more(STORM), self.envoy.more(STORM))?;
        }
        ensure!(self.tidegate.answers(503), "users were to be answered 503 by all");
        ensure!(plan == generation(&self.app.plan.borrow()), "a storm of 503s made tidegate change its plan");
        let tidegate = self.tidegate.ejections().await? - tidegate;
        ensure!(tidegate == 0, "a storm of 503s made the bridge eject {tidegate}");
        self.tidegate.healthy(self.backends.len()).await?;
        Ok(Storm { tidegate, envoy: self.envoy.ejections().await? - envoy })
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let Self { tidegate, envoy, app, .. } = self;
        tidegate.stop().await?;
        envoy.stop().await?;
        app.stop().await
    }
}

/// The cluster's keys in tidegate's config: the pace of Envoy's own check, and tidegate's defaults otherwise, but for
/// the way back, which is not measured.
fn keys(help: Help) -> String {
    let bridge = help == Help::Outlier;
    format!(
        "checks: {{ readiness: {{ http: {{ path: \"{ASKED_BY_TIDEGATE}\" }}, interval: 1s, timeout: 500ms, \
         recover_interval: 250ms }} }}\n    envoy: {{ lb_policy: round_robin, bridge: {bridge} }}"
    )
}

/// What a user would configure without tidegate.
fn alone(backends: &[SocketAddr], help: Help) -> String {
    let endpoints: Vec<_> = backends
        .iter()
        .map(|at| {
            let (ip, port) = (at.ip(), at.port());
            format!("{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}")
        })
        .collect();
    let outlier = match help {
        Help::None => "",
        Help::Outlier => {
            "outlier_detection: {consecutive_5xx: 3, consecutive_gateway_failure: 3, \
             enforcing_consecutive_gateway_failure: 100, interval: 1s, base_ejection_time: 10s, \
             max_ejection_percent: 50}, "
        }
    };
    format!(
        "{{name: {POOL}, type: STATIC, connect_timeout: 1s, lb_policy: ROUND_ROBIN, {outlier}health_checks: [{{\
         timeout: 0.5s, interval: 1s, no_traffic_interval: 1s, unhealthy_threshold: 3, healthy_threshold: 1, \
         http_health_check: {{path: '{ASKED_BY_ENVOY}'}}}}], load_assignment: {{cluster_name: {POOL}, endpoints: \
         [{{lb_endpoints: [{}]}}]}}}}",
        endpoints.join(", ")
    )
}

/// When tidegate asked `backend` for the last time, once it does so at its steady interval.
async fn steady_probe(backend: &FakeInstance) -> anyhow::Result<MonoTime> {
    let seen = backend
        .wait_until("two probes one interval apart", |account| {
            let mut asked = account.requests.iter().rev().filter(|seen| seen.path == ASKED_BY_TIDEGATE);
            let (last, before) = (asked.next(), asked.next());
            last.zip(before).is_some_and(|(last, before)| last.at.since(before.at) >= INTERVAL.mul_f64(0.9))
        })
        .await?;
    let asked = seen.requests.iter().rev().find(|seen| seen.path == ASKED_BY_TIDEGATE);
    Ok(asked.context("nobody asked")?.at)
}

/// The first moment after `after` that is whole intervals from `start`.
fn next(start: MonoTime, after: MonoTime) -> MonoTime {
    let passed = after.since(start).as_micros() / INTERVAL.as_micros();
    start + INTERVAL * (u32::try_from(passed).unwrap_or(u32::MAX) + 1)
}

/// The share of the interval that had passed at `now` since `path` was last asked for.
fn since_asked(backend: &FakeInstance, path: &str, now: MonoTime) -> f64 {
    let account = backend.account();
    let asked = account.requests.iter().rev().find(|seen| seen.path == path && seen.at <= now);
    asked.map_or(f64::NAN, |seen| now.since(seen.at).as_secs_f64() / INTERVAL.as_secs_f64())
}

/// The generation in which the pool last changed.
fn generation(plan: &Plan) -> Option<u64> {
    plan.clusters.values().map(|pool| pool.generation).max()
}
