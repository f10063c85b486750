//! Entries as a `ClusterLoadAssignment`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::proto;
use crate::model::{Address, ClusterName, Entry, Locality, Serve};
use crate::pb::envoy::config::core::v3::{self as core, HealthStatus};
use crate::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};

/// The assignment of one cluster: localities and endpoints sorted, absent entries left out. Should two entries share
/// an address, the first by id is listed: Envoy would silently drop one of them, and not always the same.
pub(super) fn assignment(cluster: &ClusterName, entries: &[Arc<Entry>]) -> ClusterLoadAssignment {
    let mut taken: BTreeSet<Address> = BTreeSet::new();
    let mut localities: BTreeMap<&Locality, Vec<LbEndpoint>> = BTreeMap::new();
    for entry in entries {
        let Some(status) = health_status(entry.serve) else { continue };
        if taken.insert(entry.address) {
            localities.entry(&entry.locality).or_default().push(endpoint(entry, status));
        }
    }
    let endpoints = localities.into_iter().map(|(locality, lb_endpoints)| LocalityLbEndpoints {
        locality: locality_of(locality),
        lb_endpoints,
        ..Default::default()
    });
    ClusterLoadAssignment {
        cluster_name: cluster.as_str().to_owned(),
        endpoints: endpoints.collect(),
        ..Default::default()
    }
}

const fn health_status(serve: Serve) -> Option<HealthStatus> {
    match serve {
        Serve::Absent => None,
        Serve::Healthy => Some(HealthStatus::Healthy),
        Serve::Degraded => Some(HealthStatus::Degraded),
        Serve::Unhealthy => Some(HealthStatus::Unhealthy),
        Serve::Draining => Some(HealthStatus::Draining),
    }
}

fn endpoint(entry: &Entry, status: HealthStatus) -> LbEndpoint {
    LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(proto::address(entry.address)),
            ..Default::default()
        })),
        health_status: status as i32,
        load_balancing_weight: proto::u32_value(entry.weight.get()),
        ..Default::default()
    }
}

fn locality_of(locality: &Locality) -> Option<core::Locality> {
    (*locality != Locality::default()).then(|| core::Locality {
        region: locality.region.to_string(),
        zone: locality.zone.to_string(),
        sub_zone: String::new(),
    })
}
