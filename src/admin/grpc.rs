//! `tidegate.admin.v1` over gRPC: thin. What is published is read, commands go to the fleet.

use std::collections::HashMap;
use std::sync::Arc;

use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::client_config::MAX_ANSWER_BYTES;
use super::convert::{self, BadName};
use super::csds::Csds;
use super::debt::{Debt, Over};
use crate::clock::Clock;
use crate::fleet::{CommandError, FleetHandle};
use crate::model::{InstanceKey, Plan};
use crate::net::{self, Port};
use crate::pb::admin::admin_server::{Admin, AdminServer};
use crate::pb::admin::{self as pb};
use crate::pb::envoy::service::status::v3::client_status_discovery_service_server::ClientStatusDiscoveryServiceServer;
use crate::snapshot::Snapshot;
use crate::xds::Clients;

/// Messages of a followed drain that its reader has not taken yet: the newest state is what counts.
const FOLLOW_BACKLOG: usize = 1;

/// What the admin API needs from the process.
#[derive(Debug, Clone)]
pub struct AdminCtx {
    /// The clock.
    pub clock: Clock,
    /// Takes commands.
    pub fleet: FleetHandle,
    /// What is decided.
    pub plan: watch::Receiver<Arc<Plan>>,
    /// What is served.
    pub snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Who is connected.
    pub clients: Clients,
    /// Ends the server.
    pub shutdown: CancellationToken,
}

/// Serves the admin API, its reflection, `grpc.health.v1` and CSDS until shut down.
pub async fn serve_admin(listener: TcpListener, port: Port, ctx: AdminCtx) {
    let (clock, shutdown) = (ctx.clock, ctx.shutdown.clone());
    let routes = routes(ctx).await;
    let serve = |socket: TcpStream| {
        let (service, shutdown) = (TowerToHyperService::new(routes.clone()), shutdown.clone());
        async move {
            if net::begins_with_http2(&socket, &shutdown).await {
                net::serve_http2(socket, service, shutdown.cancelled()).await;
            }
        }
    };
    net::accept(listener, port, clock, shutdown.clone(), serve).await;
}

async fn routes(ctx: AdminCtx) -> Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<AdminServer<Service>>().await;
    let csds = Csds { snapshots: ctx.snapshots.clone(), clients: ctx.clients.clone() };
    reporter.set_serving::<ClientStatusDiscoveryServiceServer<Csds>>().await;
    let routes = Routes::new(health)
        .add_service(AdminServer::new(Service { ctx, debts: Arc::default() }))
        .add_service(ClientStatusDiscoveryServiceServer::new(csds));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
        .build_v1();
    match reflection {
        Ok(reflection) => routes.add_service(reflection),
        Err(error) => {
            tracing::warn!(%error, "the admin API has no reflection");
            routes
        }
    }
    .prepare()
}

#[derive(Debug, Clone)]
struct Service {
    ctx: AdminCtx,
    /// Who owes an acknowledgement, for each drain that somebody has looked at.
    debts: Arc<watch::Sender<HashMap<InstanceKey, Debt>>>,
}

impl Service {
    fn plan(&self) -> Arc<Plan> {
        self.ctx.plan.borrow().clone()
    }

    fn instance(&self, key: &InstanceKey) -> Result<pb::Instance, Status> {
        let plan = self.plan();
        let entry = convert::find(&plan, key)
            .ok_or_else(|| Status::not_found(format!("there is no instance {key}")))?;
        Ok(convert::instance(&key.cluster, entry))
    }

    /// Looks at the debt for the drain of `key`. It is one, whoever asks and how often: what was owed to one who has
    /// gone away is owed to the next.
    fn look(&self, key: &InstanceKey) -> Result<pb::DrainStatus, Over> {
        let mut status = Err(Over::Gone(key.clone()));
        // Inside, so that no look is older than the one before it. Nobody is told: each follower looks by itself.
        self.debts.send_if_modified(|debts| {
            let snapshot = self.ctx.snapshots.borrow().clone();
            let debt = debts.entry(key.clone()).or_insert_with(|| Debt::new(key.clone()));
            status = debt.look(&self.plan(), snapshot.as_deref(), &self.ctx.clients.list());
            if status.is_err() {
                debts.remove(key);
            }
            false
        });
        status
    }
}

impl From<BadName> for Status {
    fn from(bad: BadName) -> Self {
        Self::invalid_argument(bad.to_string())
    }
}

impl From<Over> for Status {
    fn from(over: Over) -> Self {
        match over {
            Over::NotDrained(_) => Self::failed_precondition(over.to_string()),
            Over::Gone(_) => Self::not_found(over.to_string()),
        }
    }
}

impl From<CommandError> for Status {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::NoSuchInstance(_) => Self::not_found(error.to_string()),
            CommandError::ShuttingDown => Self::unavailable(error.to_string()),
        }
    }
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Admin for Service {
    async fn list_clusters(&self, _: Request<pb::ListClustersRequest>) -> Reply<pb::ListClustersResponse> {
        let (plan, clients) = (self.plan(), self.ctx.clients.list());
        let clusters =
            plan.clusters.iter().map(|(name, of_cluster)| convert::cluster(name, of_cluster, &clients));
        Ok(Response::new(pb::ListClustersResponse { clusters: clusters.collect() }))
    }

    async fn list_instances(
        &self,
        request: Request<pb::ListInstancesRequest>,
    ) -> Reply<pb::ListInstancesResponse> {
        let plan = self.plan();
        let wanted = convert::parent(&request.into_inner().parent)?;
        if let Some(name) = wanted.as_ref().filter(|name| !plan.clusters.contains_key(*name)) {
            return Err(Status::not_found(format!("there is no cluster {name}")));
        }
        let clusters = plan.clusters.iter().filter(|(name, _)| wanted.as_ref().is_none_or(|w| w == *name));
        let instances = clusters.flat_map(|(name, of_cluster)| {
            of_cluster.entries.iter().map(move |e| convert::instance(name, e))
        });
        Ok(Response::new(pb::ListInstancesResponse { instances: instances.collect() }))
    }

    async fn get_instance(&self, request: Request<pb::GetInstanceRequest>) -> Reply<pb::Instance> {
        let key = convert::instance_key(&request.into_inner().name)?;
        self.instance(&key).map(Response::new)
    }

    async fn list_clients(&self, _: Request<pb::ListClientsRequest>) -> Reply<pb::ListClientsResponse> {
        let now = self.ctx.clock.now();
        let clients = self.ctx.clients.list();
        let clients = clients.iter().map(|(id, status)| convert::client(*id, status, now)).collect();
        Ok(Response::new(pb::ListClientsResponse { clients }))
    }

    async fn list_holdings(
        &self,
        request: Request<pb::ListHoldingsRequest>,
    ) -> Reply<pb::ListHoldingsResponse> {
        let stream = request.into_inner().stream;
        let snapshot = self.ctx.snapshots.borrow().clone().unwrap_or_default();
        let holdings = self.ctx.clients.holdings(convert::client_id(&stream)?, &snapshot);
        let gone = || {
            Status::not_found(format!("{stream} has ended; `ListClients` lists the streams that are open"))
        };
        let holdings = holdings.ok_or_else(gone)?.iter().map(convert::holding).collect();
        let answer = pb::ListHoldingsResponse { holdings };
        if answer.encoded_len() > MAX_ANSWER_BYTES {
            let too_large =
                format!("what {stream} asks for takes more than {MAX_ANSWER_BYTES} bytes to tell");
            return Err(Status::resource_exhausted(too_large));
        }
        Ok(Response::new(answer))
    }

    async fn drain_instance(&self, request: Request<pb::DrainInstanceRequest>) -> Reply<pb::DrainStatus> {
        let request = request.into_inner();
        let key = convert::instance_key(&request.name)?;
        let reason = convert::reason(&request.reason)?;
        self.ctx.fleet.drain(key.clone(), reason).await?;
        tracing::info!(cluster = %key.cluster, instance = %key.id, reason, "drain asked for");
        Ok(Response::new(self.look(&key)?))
    }

    async fn undrain_instance(&self, request: Request<pb::UndrainInstanceRequest>) -> Reply<pb::Instance> {
        let key = convert::instance_key(&request.into_inner().name)?;
        self.ctx.fleet.undrain(key.clone()).await?;
        tracing::info!(cluster = %key.cluster, instance = %key.id, "drain taken back");
        self.instance(&key).map(Response::new)
    }

    type WatchDrainStream = ReceiverStream<Result<pb::DrainStatus, Status>>;

    async fn watch_drain(&self, request: Request<pb::WatchDrainRequest>) -> Reply<Self::WatchDrainStream> {
        let key = convert::instance_key(&request.into_inner().name)?;
        self.look(&key)?;
        let (sender, receiver) = tokio::sync::mpsc::channel(FOLLOW_BACKLOG);
        let service = self.clone();
        let follow = async move {
            let mut clients = service.ctx.clients.changes();
            let mut snapshots = service.ctx.snapshots.clone();
            let mut last = None;
            loop {
                let status = service.look(&key);
                let done = status.as_ref().map_or(true, |status| status.acknowledged);
                if last.as_ref() != Some(&status) {
                    last = Some(status.clone());
                    if sender.send(status.map_err(Status::from)).await.is_err() {
                        return;
                    }
                }
                if done {
                    return;
                }
                tokio::select! {
                    () = service.ctx.shutdown.cancelled() => return,
                    () = sender.closed() => return,
                    changed = clients.changed() => if changed.is_err() { return },
                    changed = snapshots.changed() => if changed.is_err() { return },
                }
            }
        };
        follow_in_background(follow);
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A follower ends with its reader or with the process; it has nothing to say to a supervisor.
#[expect(
    clippy::disallowed_methods,
    reason = "ends with its reader; an early end is an answer, not a failure"
)]
fn follow_in_background(task: impl Future<Output = ()> + Send + 'static) {
    tokio::task::spawn(task);
}
