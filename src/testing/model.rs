//! Builders for model values, so that a test names only what matters to it.

#![expect(clippy::unwrap_used, reason = "a builder called with a bad literal is a bug of the test")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{CircuitBreakers, Cluster, Config, EnvoyCluster, LbPolicy, Listen, Policy, Prober, Xds};
use crate::model::{
    Address, Check, CheckKind, Checks, ClusterName, Damping, Detail, Epoch, Instance, InstanceId,
    InstanceKey, Lifetime, Locality, MinFailingTime, MonoTime, Observation, Outcome, Percent, Role, Timings,
    Weight,
};

/// `n` ms.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The moment `n` ms after the start.
pub const fn at(n: u64) -> MonoTime {
    MonoTime::from_millis(n)
}

/// A cluster's name.
pub fn cluster_name(name: &str) -> ClusterName {
    ClusterName::new(name).unwrap()
}

/// `cluster/id`.
pub fn key(cluster: &str, id: &str) -> InstanceKey {
    InstanceKey { cluster: cluster_name(cluster), id: InstanceId::new(id).unwrap() }
}

/// An instance on `127.0.0.1:port` of weight 100.
pub fn instance(id: &str, port: u16) -> Instance {
    Instance {
        id: InstanceId::new(id).unwrap(),
        address: Address::new(([127, 0, 0, 1], port).into()),
        locality: Locality::default(),
        weight: Weight::BASE,
        labels: BTreeMap::new(),
        lifetime: Lifetime::new(&port.to_string()),
    }
}

/// A tcp check with the documented defaults: 1 s interval, 500 ms timeout, thresholds 2 and 3.
pub fn check(role: Role) -> Check {
    Check {
        role,
        kind: CheckKind::Tcp,
        interval: ms(1000),
        timeout: ms(500),
        budget: None,
        healthy_threshold: NonZeroU32::new(if role == Role::Startup { 1 } else { 2 }).unwrap(),
        unhealthy_threshold: NonZeroU32::new(3).unwrap(),
        confirm_interval: ms(100),
        confirm_timeout: ms(250),
        recover_interval: ms(1000),
        min_failing_time: MinFailingTime { unreachable: ms(200), timeout: ms(1000) },
    }
}

/// Readiness only, or with a startup check before it.
pub fn checks(with_startup: bool) -> Checks {
    Checks {
        startup: with_startup.then(|| check(Role::Startup)),
        warmup: None,
        readiness: check(Role::Readiness),
        inference: None,
    }
}

/// The default policy: at most half out, at least one in.
pub fn policy() -> Policy {
    Policy {
        max_ejected_percent: Percent::new(50).unwrap(),
        min_serving: 1,
        slow_weight: Percent::new(25).unwrap(),
        damping: damping(),
    }
}

/// The default damping.
pub const fn damping() -> Damping {
    Damping { recovery_time: ms(5_000), max_recovery_time: ms(60_000) }
}

/// The default Envoy part of a cluster.
pub fn envoy_cluster() -> EnvoyCluster {
    EnvoyCluster {
        connect_timeout: ms(1000),
        lb_policy: LbPolicy::LeastRequest,
        http2: false,
        circuit_breakers: CircuitBreakers {
            max_connections: 100_000,
            max_pending_requests: 100_000,
            max_requests: 100_000,
            max_retries: 10_000,
        },
        bridge: true,
    }
}

/// A cluster of the given instances with readiness checks.
pub fn cluster(instances: impl IntoIterator<Item = Instance>) -> Cluster {
    Cluster {
        instances: instances.into_iter().map(|i| (i.id.clone(), Arc::new(i))).collect(),
        checks: Arc::new(checks(false)),
        policy: policy(),
        envoy: envoy_cluster(),
    }
}

/// A config of the given clusters, without listeners, on ephemeral ports.
pub fn config(clusters: impl IntoIterator<Item = (&'static str, Cluster)>) -> Config {
    Config {
        listen: Listen {
            xds: ([127, 0, 0, 1], 0).into(),
            admin: ([127, 0, 0, 1], 0).into(),
            health: ([127, 0, 0, 1], 0).into(),
        },
        clusters: clusters.into_iter().map(|(name, c)| (cluster_name(name), Arc::new(c))).collect(),
        listeners: BTreeMap::new(),
        prober: Prober { max_in_flight: 4096, max_starts_per_second: 20_000 },
        xds: Xds { merge_window: ms(100), first_verdict_wait: ms(15_000), max_connection_age: ms(0) },
    }
}

/// One observation of `key` that began at `started` and took `took` ms.
pub fn observation(
    key: &InstanceKey,
    epoch: Epoch,
    role: Role,
    outcome: Outcome,
    started: u64,
    took: u64,
) -> Observation {
    Observation {
        key: key.clone(),
        epoch,
        role,
        started: at(started),
        ended: at(started + took),
        outcome,
        detail: Detail::None,
        timings: Timings { total: ms(took), ..Timings::default() },
        fresh: false,
    }
}
