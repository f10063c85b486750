//! CSDS over gRPC: thin. `client_config` has the answers.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use super::client_config::{self, Answer, Refused};
use crate::pb::envoy::service::status::v3::client_status_discovery_service_server::ClientStatusDiscoveryService;
use crate::pb::envoy::service::status::v3::{ClientStatusRequest, ClientStatusResponse};
use crate::snapshot::Snapshot;
use crate::xds::Clients;

/// What CSDS needs from the process.
#[derive(Debug, Clone)]
pub(super) struct Csds {
    /// What there is.
    pub(super) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Who is connected.
    pub(super) clients: Clients,
}

impl Csds {
    async fn answer(self, request: ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
        let clients = client_config::meant(&request, self.clients.list())?;
        let snapshot = self.snapshots.borrow().clone().unwrap_or_default();
        let mut answer = Answer::default();
        for (id, status) in &clients {
            tokio::task::yield_now().await; // a fleet takes a while: nobody else waits for that
            let Some(holdings) = self.clients.holdings(*id, &snapshot) else { continue }; // it has gone
            answer.tell(status, &holdings)?;
        }
        Ok(answer.end())
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Matcher(_) => Self::invalid_argument(refused.to_string()),
            Refused::TooLarge => Self::resource_exhausted(refused.to_string()),
        }
    }
}

#[tonic::async_trait]
impl ClientStatusDiscoveryService for Csds {
    type StreamClientStatusStream = Pin<Box<dyn Stream<Item = Result<ClientStatusResponse, Status>> + Send>>;

    async fn stream_client_status(
        &self,
        request: Request<Streaming<ClientStatusRequest>>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        let csds = self.clone();
        let answer = move |request: Result<_, Status>| {
            let csds = csds.clone();
            async move { csds.answer(request?).await }
        };
        let answers = request.into_inner().then(answer);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        self.clone().answer(request.into_inner()).await.map(Response::new)
    }
}
