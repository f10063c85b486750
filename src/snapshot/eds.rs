//! Entries as an encoded `ClusterLoadAssignment`.
//!
//! Written field by field: ten thousand endpoints as generated messages, of which each asks its parts for their length
//! again, take five times as long, and the first client waits for it.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use prost::Message as _;
use prost::encoding::{encoded_len_varint, uint32};

use super::Rendering;
use super::resource::{put_bytes, put_len};
use crate::model::{Address, ClusterName, Entry, Locality, Serve, Weight};
use crate::pb::envoy::config::core::v3::{self as core, HealthStatus};

/// Field numbers of `envoy/config/endpoint/v3` and of the address in `envoy/config/core/v3/address.proto`.
mod field {
    /// `ClusterLoadAssignment.cluster_name`.
    pub(super) const CLUSTER_NAME: u32 = 1;
    /// `ClusterLoadAssignment.endpoints`.
    pub(super) const LOCALITIES: u32 = 2;
    /// `LocalityLbEndpoints.locality`.
    pub(super) const LOCALITY: u32 = 1;
    /// `LocalityLbEndpoints.lb_endpoints`.
    pub(super) const LB_ENDPOINTS: u32 = 2;
    /// `LocalityLbEndpoints.load_balancing_weight`.
    pub(super) const LOCALITY_WEIGHT: u32 = 3;
    /// `LbEndpoint.endpoint`.
    pub(super) const ENDPOINT: u32 = 1;
    /// `LbEndpoint.health_status`.
    pub(super) const HEALTH_STATUS: u32 = 2;
    /// `LbEndpoint.load_balancing_weight`.
    pub(super) const WEIGHT: u32 = 4;
    /// `UInt32Value.value`.
    pub(super) const VALUE: u32 = 1;
    /// `Endpoint.address`.
    pub(super) const ADDRESS: u32 = 1;
    /// `Address.socket_address`.
    pub(super) const SOCKET_ADDRESS: u32 = 1;
    /// `SocketAddress.address`.
    pub(super) const IP: u32 = 2;
    /// `SocketAddress.port_value`.
    pub(super) const PORT: u32 = 3;
}

/// One locality in the making.
#[derive(Default)]
struct Group {
    lb_endpoints: Vec<u8>,
    /// Of those that take traffic.
    weight: u32,
}

/// The assignment of one cluster: localities and endpoints sorted, absent entries left out. Should two entries share
/// an address, the first by id is listed: Envoy would silently drop one of them, and not always the same; gRPC refuses
/// them all.
pub(super) fn assignment(cluster: &ClusterName, entries: &[Arc<Entry>], rendering: Rendering) -> Vec<u8> {
    let mut taken: HashSet<Address> = HashSet::with_capacity(entries.len());
    let mut localities: BTreeMap<&Locality, Group> = BTreeMap::new();
    let mut endpoint = Parts::default();
    for entry in entries {
        let Some((status, weight)) = told(entry, rendering) else { continue };
        if taken.insert(entry.address) {
            let group = localities.entry(&entry.locality).or_default();
            endpoint.put(entry.address, status, weight, &mut group.lb_endpoints);
            if entry.serve.takes_traffic() {
                group.weight = group.weight.saturating_add(weight.get());
            }
        }
    }
    let mut assignment = Vec::new();
    put_bytes(field::CLUSTER_NAME, cluster.as_str().as_bytes(), &mut assignment);
    for (locality, Group { lb_endpoints, weight }) in localities {
        let mut head = Vec::new();
        let mut tail = Vec::new();
        match rendering {
            Rendering::Envoy if *locality == Locality::default() => {}
            Rendering::Envoy => put_bytes(field::LOCALITY, &locality_of(locality), &mut head),
            // Without a locality it is refused, and without a weight the whole of it is passed over.
            Rendering::Grpc => {
                put_bytes(field::LOCALITY, &locality_of(locality), &mut head);
                let mut value = Vec::new();
                uint32::encode(field::VALUE, &weight.max(1), &mut value);
                put_bytes(field::LOCALITY_WEIGHT, &value, &mut tail);
            }
        }
        put_len(field::LOCALITIES, head.len() + lb_endpoints.len() + tail.len(), &mut assignment);
        assignment.extend(head);
        assignment.extend(lb_endpoints);
        assignment.extend(tail);
    }
    assignment
}

/// The parts of one endpoint; their memory is used for the next.
#[derive(Default)]
struct Parts {
    ip: String,
    socket: Vec<u8>,
    weight: Vec<u8>,
    tail: Vec<u8>,
}

impl Parts {
    fn put(&mut self, address: Address, status: HealthStatus, weighs: Weight, out: &mut Vec<u8>) {
        let Self { ip, socket, weight, tail } = self;
        ip.clear();
        let _ = write!(ip, "{}", address.ip()); // a string takes everything
        socket.clear();
        put_bytes(field::IP, ip.as_bytes(), socket);
        uint32::encode(field::PORT, &address.port().into(), socket);
        weight.clear();
        uint32::encode(field::VALUE, &weighs.get(), weight);
        tail.clear();
        uint32::encode(field::HEALTH_STATUS, &(status as u32), tail);
        put_bytes(field::WEIGHT, weight, tail);
        let in_endpoint = within(within(socket.len()));
        put_len(field::LB_ENDPOINTS, within(in_endpoint) + tail.len(), out);
        put_len(field::ENDPOINT, in_endpoint, out);
        put_len(field::ADDRESS, within(socket.len()), out);
        put_bytes(field::SOCKET_ADDRESS, socket, out);
        out.extend_from_slice(tail);
    }
}

/// The length of a field of `len` bytes with its key (one byte: all field numbers here are below 16) and its length.
const fn within(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
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

fn locality_of(locality: &Locality) -> Vec<u8> {
    let locality = core::Locality {
        region: locality.region.to_string(),
        zone: locality.zone.to_string(),
        sub_zone: String::new(),
    };
    locality.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Reason;
    use crate::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
    use crate::testing::model::{cluster_name, instance};

    #[test]
    fn what_is_written_by_hand_is_what_prost_would_write() {
        let addresses = ["10.0.0.1:80", "[2001:db8:1111:2222:3333:4444:5555:6666]:65535", "1.2.3.4:128"];
        let serves = [Serve::Healthy, Serve::Draining, Serve::Unhealthy];
        let zones = [Locality::default(), Locality { region: "eu".into(), zone: "z".repeat(200).into() }];
        let entries = (0..30).map(|n| {
            let i = instance(&format!("i{n:02}"), 1);
            let weight = if n % 2 == 0 {
                i.weight
            } else {
                i.weight.scaled(crate::testing::model::policy().slow_weight)
            };
            let mut address: std::net::SocketAddr = addresses[n % 3].parse().unwrap();
            address.set_port(address.port() - u16::try_from(n / 3).unwrap());
            let (serve, locality) = (serves[n / 3 % 3], zones[n % 2].clone());
            let address = Address::new(address);
            Arc::new(Entry { id: i.id, address, locality, weight, serve, reason: Reason::Passing })
        });
        let entries: Vec<_> = entries.collect();
        for rendering in Rendering::ALL {
            let bytes = assignment(&cluster_name("c"), &entries, rendering);
            let decoded = ClusterLoadAssignment::decode(&*bytes).unwrap();
            let endpoints: Vec<usize> = decoded.endpoints.iter().map(|l| l.lb_endpoints.len()).collect();
            assert_eq!((decoded.endpoints.len(), endpoints), (2, vec![15, 15]));
            assert!(decoded.endpoints[0].lb_endpoints[0].load_balancing_weight.unwrap().value > 0);
            assert_eq!(
                decoded.encode_to_vec(),
                bytes,
                "no field is lost, none is written twice, all are in order"
            );
        }
    }
}
