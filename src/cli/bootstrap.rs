//! `tidegate bootstrap`.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};

use super::Exit;

/// Arguments of `tidegate bootstrap`.
#[derive(Debug, Args)]
pub(super) struct BootstrapArgs {
    /// The Envoy's node id; unique among all Envoys
    #[arg(long)]
    pub(super) node_id: String,
    /// The Envoy's own cluster name
    #[arg(long)]
    pub(super) node_cluster: Option<String>,
    /// Where tidegate serves xDS
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18000")]
    pub(super) xds: String,
    /// Where the Envoy's admin interface listens; none if absent
    #[arg(long, value_name = "IP:PORT")]
    pub(super) admin: Option<SocketAddr>,
    /// Which variant of the protocol the Envoy speaks
    #[arg(long, value_enum, default_value_t)]
    pub(super) protocol: Protocol,
}

/// The variants of ADS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Protocol {
    /// Incremental: only what changed is sent
    #[default]
    Delta,
    /// State of the world
    Sotw,
}

/// Prints the bootstrap.
pub(super) fn run(args: BootstrapArgs) -> anyhow::Result<Exit> {
    let BootstrapArgs { node_id: _, node_cluster: _, xds: _, admin: _, protocol } = args;
    let (Protocol::Delta | Protocol::Sotw) = protocol;
    anyhow::bail!("`tidegate bootstrap` is not built yet")
}
