//! The way from the command line to a running tidegate.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tonic::transport::{Channel, Endpoint};

use crate::pb::admin::admin_client::AdminClient;

/// Longest answer read: a list of a hundred thousand instances.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// How long a tidegate may take to answer the door.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Where the running tidegate is.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// The admin API of the running tidegate
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_SERVER", default_value = "127.0.0.1:18001")]
    server: String,
}

/// Connects and runs `talk` on a small runtime of its own.
pub(super) fn with_client<T>(
    args: &ServerArgs,
    talk: impl AsyncFnOnce(AdminClient<Channel>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let address = format!("http://{}", args.server);
        let endpoint = Endpoint::from_shared(address)
            .with_context(|| format!("--server {:?} is not HOST:PORT", args.server))?
            .connect_timeout(CONNECT_TIMEOUT);
        let channel = endpoint.connect().await.with_context(|| {
            format!("no tidegate answers at {}; is it running, and is this its `listen.admin`?", args.server)
        })?;
        talk(AdminClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES)).await
    })
}

/// `CLUSTER/INSTANCE` as the API names it.
pub(super) fn instance_name(text: &str) -> anyhow::Result<String> {
    match text.split_once('/') {
        Some((cluster, id)) if !cluster.is_empty() && !id.is_empty() && !id.contains('/') => {
            Ok(format!("clusters/{cluster}/instances/{id}"))
        }
        _ => bail!("{text:?} is not CLUSTER/INSTANCE; `tidegate get instances` lists them"),
    }
}

/// The API's word for a failure, without its wrapping.
pub(super) fn plain(status: &tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}", status.message())
}
