//! The server under test: publisher and xDS server as in the program, and a world flipped by hand instead of a fleet.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tidegate::clock::Clock;
use tidegate::model::Plan;
use tidegate::snapshot::{Kind, Snapshot};
use tidegate::testing::model::ms;
use tidegate::xds::{self, Clients, Server, ServerCtx};
use tidegate::{net, telemetry};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::role::{Commands, listening, say};
use crate::world::{Size, World, name};

/// How often something flips during the churn.
const FLIP_EVERY: Duration = ms(10);

pub async fn run(size: Size) -> anyhow::Result<()> {
    let clock = Clock::start();
    let mut world = World::new(size);
    let config = watch::Sender::new(world.config.clone());
    let plan = watch::Sender::new(world.plan(clock.now()));
    let snapshots = watch::Sender::new(None);
    let seen = snapshots.subscribe();
    let metrics = xds::Metrics::register(&mut telemetry::registry());
    let listener = net::bind(clock, "listen.xds", ([127, 0, 0, 1], 0).into()).await?;
    let address = listener.local_addr()?;
    let server = Server::new(ServerCtx {
        clock,
        config: config.subscribe(),
        snapshots: snapshots.subscribe(),
        clients: Clients::new(),
        metrics: metrics.clone(),
        port: net::Ports::default().port("xds", usize::MAX),
        shutdown: CancellationToken::new(),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(listener));
    let (configs, plans, never) = (config.subscribe(), plan.subscribe(), CancellationToken::new());
    tasks.spawn(xds::publish(clock, configs, plans, snapshots, metrics, never));
    listening(address);
    let mut commands = Commands::new();
    let mut victims = 0..size.endpoints;
    while let Some(command) = commands.next().await {
        match command.split_once(' ').unwrap_or((&command, "")) {
            ("flip", _) => {
                world.flip(0, victims.next().context("all endpoints are ejected")?);
                plan.send_replace(world.plan(clock.now()));
            }
            ("churn", seconds) => {
                let flips =
                    churn(&mut world, size, &plan, clock, Duration::from_secs(seconds.parse()?)).await;
                // Good news waits for company: let it go out.
                tokio::time::sleep(world.config.xds.merge_window * 3).await;
                say(&format!("churned {flips}"));
            }
            ("truth", _) => say(&format!("truth {}", truth(&seen, size)?)),
            _ => anyhow::bail!("what is {command:?}?"),
        }
    }
    Ok(())
}

/// Flips random endpoints of all clusters at a steady pace.
async fn churn(
    world: &mut World,
    size: Size,
    plan: &watch::Sender<Arc<Plan>>,
    clock: Clock,
    time: Duration,
) -> usize {
    let mut random = fastrand::Rng::with_seed(1);
    let mut pace = tokio::time::interval(FLIP_EVERY);
    let end = clock.now() + time;
    let mut flips = 0;
    while clock.now() < end {
        pace.tick().await;
        world.flip(random.usize(..size.clusters), random.usize(..size.endpoints));
        plan.send_replace(world.plan(clock.now()));
        flips += 1;
    }
    flips
}

/// The version of each cluster's endpoints, in order.
fn truth(snapshots: &watch::Receiver<Option<Arc<Snapshot>>>, size: Size) -> anyhow::Result<String> {
    let snapshot = snapshots.borrow().clone().context("nothing was published")?;
    let endpoints = &snapshot.set(Kind::Endpoints).resources;
    let version =
        |n| endpoints.get(&*name(n)).map(|r| r.version.to_string()).context("a cluster has no endpoints");
    Ok((0..size.clusters).map(version).collect::<anyhow::Result<Vec<_>>>()?.join(" "))
}
