//! Entries as a `ClusterLoadAssignment`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Rendering, proto};
use crate::model::{Address, ClusterName, Entry, Locality, Serve, Weight};
use crate::pb::envoy::config::core::v3::{self as core, HealthStatus};
use crate::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};

/// The assignment of one cluster: localities and endpoints sorted, absent entries left out. Should two entries share
/// an address, the first by id is listed: Envoy would silently drop one of them, and not always the same; gRPC refuses
/// them all.
pub(super) fn assignment(
    cluster: &ClusterName,
    entries: &[Arc<Entry>],
    rendering: Rendering,
) -> ClusterLoadAssignment {
    let mut taken: BTreeSet<Address> = BTreeSet::new();
    let mut localities: BTreeMap<&Locality, LocalityLbEndpoints> = BTreeMap::new();
    for entry in entries {
        let Some((status, weight)) = told(entry, rendering) else { continue };
        if !taken.insert(entry.address) {
            continue;
        }
        let locality = localities.entry(&entry.locality).or_insert_with(|| match rendering {
            Rendering::Envoy => {
                LocalityLbEndpoints { locality: locality_of(&entry.locality), ..Default::default() }
            }
            // Without a weight the whole locality is passed over.
            Rendering::Grpc => LocalityLbEndpoints {
                locality: Some(locality_of(&entry.locality).unwrap_or_default()),
                load_balancing_weight: proto::u32_value(1),
                ..Default::default()
            },
        });
        locality.lb_endpoints.push(endpoint(entry, status, weight));
        if let Some(sum) = locality.load_balancing_weight.as_mut().filter(|_| entry.serve.takes_traffic()) {
            sum.value = sum.value.saturating_add(weight.get());
        }
    }
    let endpoints = localities.into_values();
    ClusterLoadAssignment {
        cluster_name: cluster.as_str().to_owned(),
        endpoints: endpoints.collect(),
        ..Default::default()
    }
}

/// What clients are told of `entry`, if they are told of it.
fn told(entry: &Entry, rendering: Rendering) -> Option<(HealthStatus, Weight)> {
    let status = match (entry.serve, rendering) {
        (Serve::Absent, _) => return None,
        (Serve::Healthy, _) => HealthStatus::Healthy,
        (Serve::Degraded, Rendering::Envoy) => HealthStatus::Degraded,
        // DEGRADED is absent to gRPC, and somebody who is needed must not be.
        (Serve::Degraded, Rendering::Grpc) => return Some((HealthStatus::Healthy, Weight::LEAST)),
        (Serve::Unhealthy, _) => HealthStatus::Unhealthy,
        (Serve::Draining, _) => HealthStatus::Draining,
    };
    Some((status, entry.weight))
}

fn endpoint(entry: &Entry, status: HealthStatus, weight: Weight) -> LbEndpoint {
    LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(proto::address(entry.address)),
            ..Default::default()
        })),
        health_status: status as i32,
        load_balancing_weight: proto::u32_value(weight.get()),
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
