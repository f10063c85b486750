//! Puts the rooms together: channels, tasks, sockets.
//!
//! The only place that knows all of them. [`start`] binds every port before anything runs, so that a start either
//! stands or fails as a whole; [`App::run`] keeps it running. It decides nothing about health. Called by `cli` and by
//! the test harness, which binds port 0 and reads the real addresses back.
//!
//! ```text
//! file ─► reload ─┬─ watch<Config> ──────────────────────────────┬─► publisher ─ watch<Snapshot> ─► xds server
//!                 └─ watch<SourceView> ─► fleet ─ watch<Plan> ───┘        └────────────────────────► health server
//!                        prober ◄─ watch<Catalog> ─┤ ▲
//!                           └──── mpsc<Observations> ┘ └─ broadcast<Event> ─► log, metrics
//! ```

mod reload;
mod supervisor;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use supervisor::{Supervisor, TaskFailure};

use crate::admin::{self, AdminCtx, ConfigStatus, HealthCtx};
use crate::clock::Clock;
use crate::config::{self, Config, ConfigErrors, Listen};
use crate::fleet::{self, FleetHandle, FleetInputs, FleetOutputs};
use crate::model::{Catalog, Plan, SourceView};
use crate::net::{self, BindError, Descriptors, Ports};
use crate::probe::{self, ProberCtx};
use crate::snapshot::Snapshot;
use crate::source::{self, FileProblem, FileState};
use crate::telemetry::{self, FleetMetrics};
use crate::xds::{self, Clients, Server, ServerCtx};

/// Batches of observations between the prober and the fleet. When it is full the next probe waits; no result is lost.
const OBSERVATION_BATCHES: usize = 1024;
/// Events kept for a follower that is slow. A whole fleet of ten thousand may move at once.
const EVENT_BACKLOG: usize = 16_384;

/// Why tidegate could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The config file says nothing.
    #[error("config file {path}: {problem}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// The config is wrong.
    #[error("config file {path} has errors", path = .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: Arc<str>,
        /// All that is wrong.
        errors: ConfigErrors,
    },
    /// A port could not be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A bound socket would not say its address.
    #[error("a bound socket has no address: {0}")]
    Address(#[from] std::io::Error),
}

/// A running tidegate.
#[derive(Debug)]
pub struct App {
    /// The addresses really bound.
    pub listen: Listen,
    /// The clock everything here runs by.
    pub clock: Clock,
    /// Who is connected.
    pub clients: Clients,
    /// What is decided.
    pub plan: watch::Receiver<Arc<Plan>>,
    /// What is served.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    tasks: Supervisor,
}

impl App {
    /// Runs until `stop` or a task's failure. On the way out nothing new is published: clients keep the last world.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), TaskFailure> {
        self.tasks.run(stop).await
    }
}

/// The values that flow between the rooms: the sending ends are handed out once, receivers as often as needed.
struct Levels {
    file: watch::Sender<FileState>,
    config: watch::Sender<Arc<Config>>,
    status: watch::Sender<ConfigStatus>,
    view: watch::Sender<Arc<SourceView>>,
    limits: watch::Sender<config::Prober>,
    catalog: watch::Sender<Arc<Catalog>>,
    plan: watch::Sender<Arc<Plan>>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Levels {
    fn new(file: FileState, config: Config, clock: Clock) -> Self {
        let view = source::view_of(&config, &SourceView::default(), clock.now());
        Self {
            file: watch::Sender::new(file),
            status: watch::Sender::new(ConfigStatus::default()),
            view: watch::Sender::new(Arc::new(view)),
            limits: watch::Sender::new(config.prober),
            config: watch::Sender::new(Arc::new(config)),
            catalog: watch::Sender::new(Arc::default()),
            plan: watch::Sender::new(Arc::default()),
            snapshots: watch::Sender::new(None),
        }
    }
}

/// Reads the config, binds all ports, starts all tasks.
pub async fn start(path: PathBuf) -> Result<App, StartError> {
    let clock = Clock::start();
    let content =
        source::read(&path).await.map_err(|problem| StartError::File { path: path.clone(), problem })?;
    let config = config::parse(&content.text).map_err(|errors| StartError::Config {
        path: path.clone(),
        text: content.text.clone(),
        errors,
    })?;
    let xds_socket = net::bind(clock, "listen.xds", config.listen.xds).await?;
    let admin_socket = net::bind(clock, "listen.admin", config.listen.admin).await?;
    let health_socket = net::bind(clock, "listen.health", config.listen.health).await?;
    let listen = Listen {
        xds: address(&xds_socket)?,
        admin: address(&admin_socket)?,
        health: address(&health_socket)?,
    };
    let sockets = Sockets { xds: xds_socket, admin: admin_socket, health: health_socket };
    let levels = Levels::new(FileState { content: Some(content), problem: None }, config, clock);
    let (plan, snapshots) = (levels.plan.subscribe(), levels.snapshots.subscribe());
    let clients = Clients::new();
    let tasks = spawn(levels, path, clock, clients.clone(), sockets);
    tracing::info!(xds = %listen.xds, admin = %listen.admin, health = %listen.health, "tidegate is listening");
    Ok(App { listen, clock, clients, plan, snapshots, tasks })
}

/// Bound, and not yet served.
struct Sockets {
    xds: TcpListener,
    admin: TcpListener,
    health: TcpListener,
}

fn address(socket: &TcpListener) -> Result<SocketAddr, StartError> {
    Ok(socket.local_addr()?)
}

fn spawn(levels: Levels, path: PathBuf, clock: Clock, clients: Clients, sockets: Sockets) -> Supervisor {
    let shutdown = CancellationToken::new();
    let mut tasks = Supervisor::new(shutdown.clone());
    let mut registry = telemetry::registry();
    let fleet_metrics = FleetMetrics::register(&mut registry, levels.plan.subscribe());
    let probe_metrics = probe::Metrics::register(&mut registry);
    let xds_metrics = xds::Metrics::register(&mut registry);
    registry.register_collector(Box::new(xds::Lag { clients: clients.clone(), clock }));
    let ports = Ports::register(&mut registry);
    let reload_metrics = reload::Metrics::register(&mut registry, levels.status.subscribe());
    let (events, followed) = broadcast::channel(EVENT_BACKLOG);
    let (seen, observations) = mpsc::channel(OBSERVATION_BATCHES);
    let descriptors = Descriptors::raise();

    let health = HealthCtx {
        clock,
        registry: Arc::new(registry),
        config: levels.status.subscribe(),
        view: levels.view.subscribe(),
        plan: levels.plan.subscribe(),
        snapshots: levels.snapshots.subscribe(),
    };
    let server = Server::new(ServerCtx {
        clock,
        config: levels.config.subscribe(),
        snapshots: levels.snapshots.subscribe(),
        clients: clients.clone(),
        metrics: xds_metrics.clone(),
        port: ports.port("xds", descriptors.xds),
        shutdown: shutdown.clone(),
    });
    let (fleet, commands) = FleetHandle::new();
    let admin = AdminCtx {
        clock,
        fleet,
        plan: levels.plan.subscribe(),
        snapshots: levels.snapshots.subscribe(),
        clients,
        shutdown: shutdown.clone(),
    };
    let inputs = FleetInputs {
        config: levels.config.subscribe(),
        view: levels.view.subscribe(),
        observations,
        commands,
    };
    let (seed, max_sockets) = (fastrand::u64(..), descriptors.probes);
    let prober = ProberCtx { clock, seed, metrics: probe_metrics, max_sockets };
    let health_port = ports.port("health", descriptors.health);
    let admin_port = ports.port("admin", descriptors.admin);

    tasks.spawn("health", admin::serve(sockets.health, health_port, health, shutdown.clone()));
    tasks.spawn("admin", admin::serve_admin(sockets.admin, admin_port, admin));
    tasks.spawn("xds", server.run(sockets.xds));
    tasks.spawn(
        "publisher",
        xds::publish(
            clock,
            levels.config.subscribe(),
            levels.plan.subscribe(),
            levels.snapshots,
            xds_metrics,
            shutdown.clone(),
        ),
    );
    let (catalog, limits) = (levels.catalog.subscribe(), levels.limits.subscribe());
    let outputs = FleetOutputs { catalog: levels.catalog, plan: levels.plan, events };
    tasks.spawn("prober", probe::run(prober, catalog, limits, seen, shutdown.clone()));
    tasks.spawn("fleet", fleet::run(clock, inputs, outputs, shutdown.clone()));
    tasks.spawn("events", telemetry::follow(followed, fleet_metrics, shutdown.clone()));
    let in_force = levels.file.borrow().content.as_ref().map(|content| content.hash);
    let reload = reload::Reload {
        clock,
        path: path.clone(),
        config: levels.config,
        view: levels.view,
        limits: levels.limits,
        status: levels.status,
        metrics: reload_metrics,
        in_force,
    };

    tasks.spawn("reload", reload.run(levels.file.subscribe(), shutdown.clone()));
    tasks.spawn("file", source::watch_file(path, clock, levels.file, shutdown));
    tasks
}
