//! A simulated Envoy: many fit in a test, each does as it is told, and each watches the server's manners.
//!
//! It imitates the xDS client of Envoy 1.40, written from the xDS specification and from what the real one was seen
//! to do; it never looks at tidegate's own xDS code. It balances no traffic and probes nobody. That it speaks like the
//! real Envoy is itself a test (`tests/it/transcript.rs`). Used by integration tests and benchmarks.
//!
//! * [`Machine`]: the client as a plain struct, messages in and out, no sockets
//! * [`SimEnvoy`]: the machine on a gRPC stream, with gates: answers held back or delayed, the line cut
//! * [`Entry`]: the transcript
//!
//! A server that breaks the protocol (a repeated nonce, a resource nobody asked for, a refused resource sent again, a
//! response without news) is noted as a violation. The next wait fails with it, and so does dropping the value.

mod delta;
mod machine;
mod referee;
mod shell;
mod sotw;
mod transcript;
mod world;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use machine::Machine;
pub use shell::{Door, SimEnvoy, SimOptions};
pub use transcript::{Entry, Kind, Speaker};
pub use world::{Assignment, Endpoint, Refusal, RefuseRule};

use crate::pb::envoy::config::core::v3 as core;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::pb::envoy::r#type::v3::SemanticVersion;

/// Which of the two protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Incremental.
    Delta,
    /// State of the world.
    Sotw,
}

/// What the Envoy says it is, once per stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// `node.id`.
    pub id: String,
    /// `node.cluster`.
    pub cluster: String,
}

impl Node {
    fn to_proto(&self) -> core::Node {
        let version = SemanticVersion { major_number: 1, minor_number: 40, patch: 0 };
        let build = core::BuildVersion { version: Some(version), metadata: None };
        core::Node {
            id: self.id.clone(),
            cluster: self.cluster.clone(),
            user_agent_name: "envoy".to_owned(),
            user_agent_version_type: Some(core::node::UserAgentVersionType::UserAgentBuildVersion(build)),
            ..Default::default()
        }
    }
}

/// What the bootstrap tells the Envoy to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asks {
    /// CDS.
    pub clusters: bool,
    /// EDS for the clusters that CDS brings.
    pub endpoints: bool,
    /// EDS for static clusters, by name. They come before CDS.
    pub assignments: BTreeSet<String>,
    /// LDS, and RDS as the listeners say. It comes once the first clusters are ready.
    pub listeners: bool,
}

impl Asks {
    /// Everything over CDS and LDS.
    pub fn everything() -> Self {
        Self { clusters: true, endpoints: true, assignments: BTreeSet::new(), listeners: true }
    }

    /// Clusters and their endpoints.
    pub fn clusters() -> Self {
        Self { listeners: false, ..Self::everything() }
    }

    /// Endpoints of static clusters alone.
    pub fn assignments(names: &[&str]) -> Self {
        let assignments = names.iter().map(|name| (*name).to_owned()).collect();
        Self { clusters: false, endpoints: false, assignments, listeners: false }
    }
}

/// A request of either protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// State of the world.
    Sotw(DiscoveryRequest),
    /// Incremental.
    Delta(DeltaDiscoveryRequest),
}

impl Request {
    /// True for an acceptance or refusal; false for a subscription. (SotW repeats the nonce in subscriptions too, so
    /// there it is true for every request but the first of a type.)
    pub fn answers(&self) -> bool {
        match self {
            Self::Sotw(m) => !m.response_nonce.is_empty(),
            Self::Delta(m) => !m.response_nonce.is_empty(),
        }
    }
}

/// A response of either protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    /// State of the world.
    Sotw(DiscoveryResponse),
    /// Incremental.
    Delta(DeltaDiscoveryResponse),
}
