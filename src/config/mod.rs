//! The config file: text in, a checked [`Config`] or *all* of its errors out.
//!
//! Pure: no I/O. [`parse`] reads no file and no clock. What leaves this module is complete and valid: every default is
//! filled in, every name resolves, every address is a literal, so nobody after it needs to check again. Only
//! `yaml` touches the YAML libraries. Called by `cli` (`tidegate check`) and by `app` at start and at each reload.
//!
//! ```text
//! text ─► outline (events: positions, duplicate keys) ─► yaml (typed, unknown keys) ─► validate ─► Config
//!                 └──────────────── ConfigErrors: path, line, column, what to write instead ◄────┘
//! ```

mod defaults;
mod error;
mod outline;
mod parse;
mod path;
mod raw;
mod scalar;
mod suggest;
mod syntax;
mod validate;
mod yaml;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Address, Checks, ClusterName, Damping, Instance, InstanceId, ListenerName, Percent};
pub use error::{ConfigError, ConfigErrors, MAX_ERRORS, Place};
pub use path::{Path, Step};
pub(crate) use yaml::to_yaml;

/// A larger file is refused unread. Ten thousand instances with labels need 2 MiB.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// A validated config.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where tidegate itself listens.
    pub listen: Listen,
    /// The pools.
    pub clusters: BTreeMap<ClusterName, Arc<Cluster>>,
    /// Listeners served to Envoys over LDS.
    pub listeners: BTreeMap<ListenerName, Arc<Listener>>,
    /// Limits of the prober.
    pub prober: Prober,
    /// Timing of what is pushed.
    pub xds: Xds,
}

/// tidegate's own sockets. Changing them needs a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// gRPC xDS.
    pub xds: SocketAddr,
    /// gRPC admin API.
    pub admin: SocketAddr,
    /// `/livez`, `/readyz`, `/metrics`.
    pub health: SocketAddr,
}

/// The name under which an Envoy's bootstrap knows tidegate. No cluster of the config can have it.
pub const BOOTSTRAP_CLUSTER: &str = "tidegate";

/// One pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Instances listed in the file itself.
    pub instances: BTreeMap<InstanceId, Arc<Instance>>,
    /// What they are asked.
    pub checks: Arc<Checks>,
    /// What follows from the answers.
    pub policy: Policy,
    /// What Envoy is told about the cluster besides its endpoints.
    pub envoy: EnvoyCluster,
}

/// What follows from verdicts in one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// At most this share of those who have ever served may get no traffic.
    pub max_ejected_percent: Percent,
    /// At least this many stay in rotation, healthy or not.
    pub min_serving: usize,
    /// Share of its weight that a slow instance keeps.
    pub slow_weight: Percent,
    /// What one that goes to and fro has to show.
    pub damping: Damping,
}

/// The part of Envoy's `Cluster` that is the operator's choice; the rest is fixed (design §4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyCluster {
    /// Time to connect to an instance.
    pub connect_timeout: Duration,
    /// How Envoy picks among the healthy.
    pub lb_policy: LbPolicy,
    /// Speak HTTP/2 to the instances.
    pub http2: bool,
    /// Circuit breakers, for the default priority.
    pub circuit_breakers: CircuitBreakers,
    /// Serve the outlier detection for connection failures that bridges the time until tidegate's verdict.
    pub bridge: bool,
}

/// Envoy's load-balancing policies that tidegate serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LbPolicy {
    /// Two random choices, the one with fewer requests.
    LeastRequest,
    /// In turn.
    RoundRobin,
    /// At random.
    Random,
}

/// Envoy's limits per cluster. Its own defaults (1024, 3 retries) cut inference fleets short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreakers {
    /// Connections.
    pub max_connections: u32,
    /// Requests waiting for a connection.
    pub max_pending_requests: u32,
    /// Requests in flight.
    pub max_requests: u32,
    /// Retries in flight.
    pub max_retries: u32,
}

/// One Envoy listener with its routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Where Envoy listens.
    pub address: Address,
    /// Tried in order.
    pub routes: Vec<Route>,
}

/// One route of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Path prefix, beginning with `/`.
    pub prefix: Arc<str>,
    /// Where it leads.
    pub cluster: ClusterName,
    /// Total time of a request; zero means none (answers of a model may take long).
    pub timeout: Duration,
    /// Longest silence on a stream before Envoy cuts it.
    pub idle_timeout: Duration,
    /// Retries of requests that never reached an instance.
    pub num_retries: u32,
}

/// Limits of the prober as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prober {
    /// Probes in flight at most.
    pub max_in_flight: usize,
    /// Probes started per second at most.
    pub max_starts_per_second: u32,
}

/// Timing of what is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xds {
    /// Good news (added, recovered, weights) may wait this long for company. Bad news never waits.
    pub merge_window: Duration,
    /// After this a cluster is published though some of its instances have no verdict yet. One of which nobody
    /// has a verdict stays unanswered all the same.
    pub first_verdict_wait: Duration,
    /// After this a client is asked to connect anew, give or take a tenth; zero is never.
    pub max_connection_age: Duration,
}

/// Reads a config from `text`; `Err` lists everything that is wrong with it.
pub fn parse(text: &str) -> Result<Config, ConfigErrors> {
    parse::text(text)
}

/// [`parse`] for bytes that may not even be text.
pub fn parse_bytes(bytes: &[u8]) -> Result<Config, ConfigErrors> {
    parse::bytes(bytes)
}
#[cfg(test)]
mod tests;
