//! What was said on xDS streams, in a form that two clients can be compared by.
//!
//! Pure: no I/O.
//!
//! A real Envoy (recorded by [`crate::testing::scripted_ads`]) and a simulated one write the same lines for the same
//! conversation: nonces appear only as present or absent, error texts not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};

/// The resource types, in the order that keeps references valid (CDS before EDS, LDS before RDS).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// CDS.
    Cluster,
    /// EDS.
    Endpoint,
    /// LDS.
    Listener,
    /// RDS.
    Route,
}

impl Kind {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Endpoint, Self::Listener, Self::Route];

    /// The type URL.
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoint => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// The kind of a type URL.
    pub fn of(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    /// True if a subscription that names nothing means all (legacy wildcard).
    pub const fn is_wildcard(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Cluster => "CDS",
            Self::Endpoint => "EDS",
            Self::Listener => "LDS",
            Self::Route => "RDS",
        }
    }
}

/// Who spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// The xDS client.
    Client,
    /// The control plane.
    Server,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Counts the client's streams from 1.
    pub stream: u64,
    /// Who sent it.
    pub speaker: Speaker,
    /// Its type; `None` for a type URL that is not ours.
    pub kind: Option<Kind>,
    /// Names asked for (SotW: all of them; delta: newly) or sent.
    pub names: BTreeSet<String>,
    /// Names unsubscribed from (delta) or removed.
    pub dropped: BTreeSet<String>,
    /// Versions by name: of resources sent (delta), or held already (delta, first request on a stream).
    pub versions: BTreeMap<String, String>,
    /// SotW: the version of the message, or the last one accepted. Delta: the system version.
    pub version_info: String,
    /// The nonce given or answered; empty if none.
    pub nonce: String,
    /// The refusal's text, if it is one.
    pub error: Option<String>,
    /// A client's message that carries its node.
    pub node: bool,
}

impl Entry {
    fn new(stream: u64, speaker: Speaker, type_url: &str) -> Self {
        Self {
            stream,
            speaker,
            kind: Kind::of(type_url),
            names: BTreeSet::new(),
            dropped: BTreeSet::new(),
            versions: BTreeMap::new(),
            version_info: String::new(),
            nonce: String::new(),
            error: None,
            node: false,
        }
    }

    /// A SotW client's message.
    pub fn sotw_request(stream: u64, m: &DiscoveryRequest) -> Self {
        Self {
            names: m.resource_names.iter().cloned().collect(),
            version_info: m.version_info.clone(),
            nonce: m.response_nonce.clone(),
            error: m.error_detail.as_ref().map(|e| e.message.clone()),
            node: m.node.is_some(),
            ..Self::new(stream, Speaker::Client, &m.type_url)
        }
    }

    /// A delta client's message.
    pub fn delta_request(stream: u64, m: &DeltaDiscoveryRequest) -> Self {
        Self {
            names: m.resource_names_subscribe.iter().cloned().collect(),
            dropped: m.resource_names_unsubscribe.iter().cloned().collect(),
            versions: m.initial_resource_versions.clone().into_iter().collect(),
            nonce: m.response_nonce.clone(),
            error: m.error_detail.as_ref().map(|e| e.message.clone()),
            node: m.node.is_some(),
            ..Self::new(stream, Speaker::Client, &m.type_url)
        }
    }

    /// A SotW server's message; `names` are those of its resources, which the wire does not say outside them.
    pub fn sotw_response(stream: u64, m: &DiscoveryResponse, names: BTreeSet<String>) -> Self {
        Self {
            names,
            version_info: m.version_info.clone(),
            nonce: m.nonce.clone(),
            ..Self::new(stream, Speaker::Server, &m.type_url)
        }
    }

    /// A delta server's message.
    pub fn delta_response(stream: u64, m: &DeltaDiscoveryResponse) -> Self {
        Self {
            names: m.resources.iter().map(|r| r.name.clone()).collect(),
            dropped: m.removed_resources.iter().cloned().collect(),
            versions: m.resources.iter().map(|r| (r.name.clone(), r.version.clone())).collect(),
            version_info: m.system_version_info.clone(),
            nonce: m.nonce.clone(),
            ..Self::new(stream, Speaker::Server, &m.type_url)
        }
    }

    /// True for a client's acceptance.
    pub fn is_ack(&self) -> bool {
        self.speaker == Speaker::Client && !self.nonce.is_empty() && self.error.is_none()
    }

    /// True for a client's refusal.
    pub fn is_nack(&self) -> bool {
        self.speaker == Speaker::Client && self.error.is_some()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.speaker {
            Speaker::Client => '>',
            Speaker::Server => '<',
        };
        write!(f, "{} {arrow} {}", self.stream, self.kind.map_or("?", Kind::short))?;
        let mut list = |label: &str, names: &BTreeSet<String>| {
            if names.is_empty() {
                return Ok(());
            }
            write!(f, " {label}={}", names.iter().map(String::as_str).collect::<Vec<_>>().join(","))
        };
        list("names", &self.names)?;
        list("dropped", &self.dropped)?;
        let versions = self.versions.iter().map(|(name, version)| format!("{name}@{version}")).collect();
        list("versions", &versions)?;
        if !self.version_info.is_empty() {
            write!(f, " version={}", self.version_info)?;
        }
        for (set, word) in
            [(!self.nonce.is_empty(), "nonce"), (self.error.is_some(), "error"), (self.node, "node")]
        {
            if set {
                write!(f, " {word}")?;
            }
        }
        Ok(())
    }
}
