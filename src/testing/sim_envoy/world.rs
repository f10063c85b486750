//! What an Envoy holds, and when it refuses a resource.
//!
//! Pure: no I/O.
//!
//! The checks are those seen on Envoy 1.40: proto constraints spoil the whole message, semantic errors only their
//! resource. An injected rule can refuse anything else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use super::transcript::Kind;
use crate::pb::envoy::config::cluster::v3::{Cluster, cluster};
use crate::pb::envoy::config::core::v3::{Address, HealthStatus, address, socket_address};
use crate::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint, lb_endpoint};
use crate::pb::envoy::config::listener::v3::{Listener, filter};
use crate::pb::envoy::config::route::v3::RouteConfiguration;
use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use crate::pb::google::protobuf::Any;

/// What Envoy waits for a cluster's endpoints if the cluster does not say (`initial_fetch_timeout`).
const DEFAULT_FETCH_TIMEOUT: Duration = Duration::from_secs(15);

/// One endpoint as an Envoy was told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// EDS health.
    pub health: HealthStatus,
    /// Load-balancing weight; 1 if not given.
    pub weight: u32,
    /// Priority of its locality.
    pub priority: u32,
}

/// A cluster's endpoints. An address given twice is kept once, the first time, silently: as Envoy does.
pub type Assignment = BTreeMap<SocketAddr, Endpoint>;

/// Why a resource is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Envoy's words.
    pub message: String,
    /// True if the rest of the message is dropped with it (constraints), false if the rest is applied all the same.
    pub spoils_message: bool,
}

/// An injected reason to refuse: looks at type, name and body.
pub type RefuseRule = Arc<dyn Fn(Kind, &str, &Any) -> Option<Refusal> + Send + Sync>;

/// One resource in a message. A delta heartbeat has no body.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) body: Option<Any>,
}

impl Offer {
    /// Content, told apart by hash.
    pub(super) fn content(&self) -> u64 {
        self.body.as_ref().map_or(0, |body| xxh3_64(&body.value))
    }
}

/// An accepted resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) version: String,
    pub(super) content: u64,
}

/// A resource that was understood.
pub(super) enum Decoded {
    Cluster { eds: Option<EdsSource> },
    Endpoint(Assignment),
    Listener { routes: BTreeSet<String> },
    Route,
}

/// Where a cluster's endpoints come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EdsSource {
    pub(super) name: String,
    pub(super) fetch_timeout: Duration,
}

/// Everything an Envoy has accepted and serves by.
#[derive(Default)]
pub(super) struct World {
    pub(super) held: BTreeMap<Kind, BTreeMap<String, Held>>,
    pub(super) clusters: BTreeMap<String, Option<EdsSource>>,
    pub(super) assignments: BTreeMap<String, Assignment>,
    pub(super) listeners: BTreeMap<String, BTreeSet<String>>,
    pub(super) routes: BTreeSet<String>,
}

impl World {
    pub(super) fn held(&self, kind: Kind) -> Option<&BTreeMap<String, Held>> {
        self.held.get(&kind)
    }

    /// True if exactly this content is held under this name.
    pub(super) fn holds(&self, kind: Kind, offer: &Offer) -> bool {
        let held = self.held(kind).and_then(|held| held.get(&offer.name));
        offer.body.is_some() && held.is_some_and(|held| held.content == offer.content())
    }

    /// The names of all assignments that the clusters refer to.
    pub(super) fn wanted_assignments(&self) -> BTreeSet<String> {
        self.clusters.values().flatten().map(|eds| eds.name.clone()).collect()
    }

    pub(super) fn apply(&mut self, kind: Kind, name: &str, decoded: Decoded) {
        match decoded {
            Decoded::Cluster { eds } => {
                self.clusters.insert(name.to_owned(), eds);
            }
            Decoded::Endpoint(assignment) => {
                self.assignments.insert(name.to_owned(), assignment);
            }
            Decoded::Listener { routes } => {
                self.listeners.insert(name.to_owned(), routes);
            }
            Decoded::Route => {
                debug_assert_eq!(kind, Kind::Route);
                self.routes.insert(name.to_owned());
            }
        }
    }

    pub(super) fn hold(&mut self, kind: Kind, offer: &Offer) {
        let held = self.held.entry(kind).or_default();
        match held.get_mut(&offer.name) {
            Some(known) if offer.body.is_none() => known.version.clone_from(&offer.version),
            _ => {
                let now = Held { version: offer.version.clone(), content: offer.content() };
                held.insert(offer.name.clone(), now);
            }
        }
    }

    /// A removal. Envoy forgets the version of an assignment or route but serves on from the content; only clusters
    /// and listeners really go, and a cluster takes its endpoints along.
    pub(super) fn remove(&mut self, kind: Kind, name: &str) {
        if let Some(held) = self.held.get_mut(&kind) {
            held.remove(name);
        }
        match kind {
            Kind::Cluster => {
                if let Some(Some(eds)) = self.clusters.remove(name) {
                    self.assignments.remove(&eds.name);
                    self.remove(Kind::Endpoint, &eds.name);
                }
            }
            Kind::Listener => {
                self.listeners.remove(name);
            }
            Kind::Endpoint | Kind::Route => {}
        }
    }
}

/// Reads a resource and says its own name, which is how SotW names resources.
pub(super) fn name_of(kind: Kind, body: &Any) -> Option<String> {
    match kind {
        Kind::Cluster => Cluster::decode(&*body.value).ok().map(|m| m.name),
        Kind::Endpoint => ClusterLoadAssignment::decode(&*body.value).ok().map(|m| m.cluster_name),
        Kind::Listener => Listener::decode(&*body.value).ok().map(|m| m.name),
        Kind::Route => RouteConfiguration::decode(&*body.value).ok().map(|m| m.name),
    }
}

/// Checks one resource as Envoy would.
pub(super) fn check(kind: Kind, name: &str, body: &Any) -> Result<Decoded, Refusal> {
    if body.type_url != kind.type_url() {
        return Err(spoiling(format!("{name}: {} in a message of {}", body.type_url, kind.type_url())));
    }
    let bytes = &*body.value;
    match kind {
        Kind::Cluster => Cluster::decode(bytes).map_err(spoiling).and_then(|m| check_cluster(&m)),
        Kind::Endpoint => ClusterLoadAssignment::decode(bytes).map_err(spoiling).and_then(check_assignment),
        Kind::Listener => Listener::decode(bytes).map_err(spoiling).and_then(|m| check_listener(&m)),
        Kind::Route => RouteConfiguration::decode(bytes).map_err(spoiling).map(|_| Decoded::Route),
    }
}

fn spoiling(message: impl fmt::Display) -> Refusal {
    Refusal { message: message.to_string(), spoils_message: true }
}

fn isolated(message: impl fmt::Display) -> Refusal {
    Refusal { message: message.to_string(), spoils_message: false }
}

fn check_cluster(m: &Cluster) -> Result<Decoded, Refusal> {
    if m.name.is_empty() {
        return Err(spoiling("cluster name: must be at least 1 character"));
    }
    let eds = cluster::ClusterDiscoveryType::Type(cluster::DiscoveryType::Eds.into());
    if m.cluster_discovery_type != Some(eds) {
        return Ok(Decoded::Cluster { eds: None });
    }
    let source = m.eds_cluster_config.as_ref().and_then(|c| Some((c, c.eds_config.as_ref()?)));
    let Some((config, source)) = source else {
        return Err(isolated(format!("cluster {}: no eds_config", m.name)));
    };
    let name = if config.service_name.is_empty() { &m.name } else { &config.service_name };
    let wait = source.initial_fetch_timeout.as_ref().map_or(DEFAULT_FETCH_TIMEOUT, |d| {
        Duration::new(d.seconds.try_into().unwrap_or(0), d.nanos.try_into().unwrap_or(0))
    });
    Ok(Decoded::Cluster { eds: Some(EdsSource { name: name.clone(), fetch_timeout: wait }) })
}

fn check_assignment(m: ClusterLoadAssignment) -> Result<Decoded, Refusal> {
    if m.cluster_name.is_empty() {
        return Err(spoiling("cluster_name: must be at least 1 character"));
    }
    if m.policy.and_then(|p| p.overprovisioning_factor).is_some_and(|factor| factor.value == 0) {
        return Err(spoiling("overprovisioning_factor: must be greater than 0"));
    }
    let mut assignment = Assignment::new();
    for locality in &m.endpoints {
        if locality.priority > 128 {
            return Err(spoiling(format!("priority: {} is more than 128", locality.priority)));
        }
        for endpoint in &locality.lb_endpoints {
            let (at, endpoint) = check_endpoint(endpoint, locality.priority)?;
            assignment.entry(at).or_insert(endpoint);
        }
    }
    Ok(Decoded::Endpoint(assignment))
}

fn check_endpoint(m: &LbEndpoint, priority: u32) -> Result<(SocketAddr, Endpoint), Refusal> {
    let weight = m.load_balancing_weight.as_ref().map_or(1, |weight| weight.value);
    if weight == 0 {
        return Err(spoiling("load_balancing_weight: must be at least 1"));
    }
    let Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) = &m.host_identifier else {
        return Err(isolated("endpoint without an address"));
    };
    let at = check_address(endpoint.address.as_ref())?;
    Ok((at, Endpoint { health: m.health_status(), weight, priority }))
}

fn check_address(m: Option<&Address>) -> Result<SocketAddr, Refusal> {
    let Some(address::Address::SocketAddress(socket)) = m.and_then(|m| m.address.as_ref()) else {
        return Err(isolated("endpoint without a socket address"));
    };
    let Some(socket_address::PortSpecifier::PortValue(port)) = socket.port_specifier else {
        return Err(spoiling("port_specifier: is required"));
    };
    let port = u16::try_from(port).map_err(|_| spoiling(format!("port_value: {port} is more than 65535")))?;
    let ip: IpAddr = socket.address.parse().map_err(|_| {
        isolated(format!("malformed IP address: {}. Consider setting resolver_name", socket.address))
    })?;
    Ok(SocketAddr::new(ip, port))
}

fn check_listener(m: &Listener) -> Result<Decoded, Refusal> {
    let chains = m.filter_chains.iter().chain(&m.default_filter_chain);
    let mut routes = BTreeSet::new();
    for filter in chains.flat_map(|chain| &chain.filters) {
        let Some(filter::ConfigType::TypedConfig(config)) = &filter.config_type else { continue };
        if !config.type_url.ends_with(".HttpConnectionManager") {
            continue;
        }
        let manager = hcm::HttpConnectionManager::decode(&*config.value).map_err(spoiling)?;
        if let Some(hcm::http_connection_manager::RouteSpecifier::Rds(rds)) = manager.route_specifier {
            routes.insert(rds.route_config_name);
        }
    }
    if routes.is_empty() && m.filter_chains.is_empty() && m.default_filter_chain.is_none() {
        return Err(isolated(format!("listener {}: no filter chains", m.name)));
    }
    Ok(Decoded::Listener { routes })
}
