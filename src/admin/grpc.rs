//! `tidegate.admin.v1` over gRPC: thin. What is published is read, commands go to the fleet.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::convert::{self, BadName};
use crate::clock::Clock;
use crate::fleet::{CommandError, FleetHandle};
use crate::model::{InstanceKey, Plan};
use crate::pb::admin::admin_server::{Admin, AdminServer};
use crate::pb::admin::{self as pb};
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

/// Serves the admin API, its reflection and `grpc.health.v1` until shut down.
pub async fn serve_admin(listener: TcpListener, ctx: AdminCtx) {
    let shutdown = ctx.shutdown.clone();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<AdminServer<Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
        .build_v1();
    let reflection = match reflection {
        Ok(reflection) => Some(reflection),
        Err(error) => {
            tracing::warn!(%error, "the admin API has no reflection");
            None
        }
    };
    // Small answers must not wait for the peer's delayed ACK.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let served = Server::builder()
        .add_service(health)
        .add_service(AdminServer::new(Service(ctx)))
        .add_optional_service(reflection)
        .serve_with_incoming_shutdown(incoming, shutdown.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the admin API ended");
    }
}

#[derive(Debug, Clone)]
struct Service(AdminCtx);

impl Service {
    fn plan(&self) -> Arc<Plan> {
        self.0.plan.borrow().clone()
    }

    fn instance(&self, key: &InstanceKey) -> Result<pb::Instance, Status> {
        let plan = self.plan();
        let entry = convert::find(&plan, key)
            .ok_or_else(|| Status::not_found(format!("there is no instance {key}")))?;
        Ok(convert::instance(&key.cluster, entry))
    }

    fn status(&self, key: &InstanceKey, generation: u64) -> pb::DrainStatus {
        let snapshot = self.0.snapshots.borrow().clone();
        convert::drain_status(key, generation, &self.plan(), snapshot.as_deref(), &self.0.clients.list())
    }
}

impl From<BadName> for Status {
    fn from(bad: BadName) -> Self {
        Self::invalid_argument(bad.to_string())
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
        let (plan, clients) = (self.plan(), self.0.clients.list());
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
        let now = self.0.clock.now();
        let clients = self.0.clients.list();
        let clients = clients.iter().map(|(id, status)| convert::client(*id, status, now)).collect();
        Ok(Response::new(pb::ListClientsResponse { clients }))
    }

    async fn drain_instance(&self, request: Request<pb::DrainInstanceRequest>) -> Reply<pb::DrainStatus> {
        let request = request.into_inner();
        let key = convert::instance_key(&request.name)?;
        let generation = self.0.fleet.drain(key.clone(), &request.reason).await?;
        tracing::info!(cluster = %key.cluster, instance = %key.id, reason = request.reason, "drain asked for");
        Ok(Response::new(self.status(&key, generation)))
    }

    async fn undrain_instance(&self, request: Request<pb::UndrainInstanceRequest>) -> Reply<pb::Instance> {
        let key = convert::instance_key(&request.into_inner().name)?;
        self.0.fleet.undrain(key.clone()).await?;
        tracing::info!(cluster = %key.cluster, instance = %key.id, "drain taken back");
        self.instance(&key).map(Response::new)
    }

    type WatchDrainStream = ReceiverStream<Result<pb::DrainStatus, Status>>;

    async fn watch_drain(&self, request: Request<pb::WatchDrainRequest>) -> Reply<Self::WatchDrainStream> {
        let key = convert::instance_key(&request.into_inner().name)?;
        self.instance(&key)?;
        let generation = self.plan().clusters.get(&key.cluster).map_or(0, |cluster| cluster.generation);
        let (sender, receiver) = tokio::sync::mpsc::channel(FOLLOW_BACKLOG);
        let service = self.clone();
        let follow = async move {
            let mut clients = service.0.clients.changes();
            let mut snapshots = service.0.snapshots.clone();
            let mut last = None;
            loop {
                let status = service.status(&key, generation);
                let done = status.acknowledged;
                if last.as_ref() != Some(&status) {
                    last = Some(status.clone());
                    if sender.send(Ok(status)).await.is_err() {
                        return;
                    }
                }
                if done {
                    return;
                }
                tokio::select! {
                    () = service.0.shutdown.cancelled() => return,
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
