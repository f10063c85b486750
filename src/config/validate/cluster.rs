//! Clusters: their instances, their policy, and what Envoy is told about them.
//!
//! Pure: no I/O. Called by [`super::validate`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::defaults::{
    CONNECT_TIMEOUT, MAX_CONNECTIONS, MAX_EJECTED_PERCENT, MAX_PENDING_REQUESTS, MAX_RECOVERY_TIME,
    MAX_REQUESTS, MAX_RETRIES, MIN_SERVING, RECOVERY_TIME, SLOW_WEIGHT, Setting,
};
use super::super::path::Cursor;
use super::super::raw::{RawAddress, RawCluster, RawEnvoyCluster, RawInstance, RawPolicy};
use super::super::{BOOTSTRAP_CLUSTER, CircuitBreakers, Cluster, EnvoyCluster, LbPolicy, Policy};
use super::address;
use super::check::checks;
use super::duration::show;
use super::report::{Invalid, Report};
use crate::model::{
    Address, ClusterName, Damping, IdError, Instance, InstanceId, Lifetime, Locality, Percent, Weight,
};

/// Longest zone, region, label or lifetime, in bytes.
const MAX_TEXT: usize = 253;
const WEIGHT: Setting<u64> =
    Setting { default: Weight::BASE.get() as u64, limits: 1..=Weight::MAX.get() as u64 };

/// `clusters` of the file.
pub(super) fn clusters(
    report: &mut Report<'_>,
    root: &Cursor<'_>,
    raw: Option<&BTreeMap<String, RawCluster>>,
) -> Result<BTreeMap<ClusterName, Arc<Cluster>>, Invalid> {
    let Some(raw) = raw else {
        return Err(report.missing(
            root,
            "clusters",
            "add your pools, or `clusters: {}` if there are none yet",
        ));
    };
    let at = root.key("clusters");
    let mut clusters = BTreeMap::new();
    let mut invalid = false;
    for (name, raw) in raw {
        let at = at.key(name);
        let name = ClusterName::new(name).map_err(|error| bad_name(report, &at, &error));
        let name = name.and_then(|name| {
            if name.as_str() == BOOTSTRAP_CLUSTER { Err(reserved(report, &at)) } else { Ok(name) }
        });
        match (name, cluster(report, &at, raw)) {
            (Ok(name), Ok(cluster)) => {
                clusters.insert(name, Arc::new(cluster));
            }
            (Err(Invalid), _) | (_, Err(Invalid)) => invalid = true,
        }
    }
    if invalid { Err(Invalid) } else { Ok(clusters) }
}

/// An Envoy keeps the cluster of this name that its bootstrap has, and sends users to tidegate itself.
fn reserved(report: &mut Report<'_>, at: &Cursor<'_>) -> Invalid {
    report.fail_key(
        at,
        format!("`{BOOTSTRAP_CLUSTER}` is the name by which Envoys know tidegate itself"),
        "choose another name".into(),
    )
}

/// Reports the name that ends `at`.
pub(super) fn bad_name(report: &mut Report<'_>, at: &Cursor<'_>, error: &IdError) -> Invalid {
    report.fail_key(at, error.to_string(), "write a name such as `llama-70b`".into())
}

fn cluster(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawCluster) -> Result<Cluster, Invalid> {
    let instances = instances(report, &at.key("instances"), raw.instances.as_ref());
    let checks = checks(report, at, raw.checks.as_ref());
    let policy = policy(report, &at.key("policy"), raw.policy.as_ref());
    let envoy = envoy(report, &at.key("envoy"), raw.envoy.as_ref());
    Ok(Cluster { instances: instances?, checks: checks?, policy: policy?, envoy: envoy? })
}

fn instances(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&BTreeMap<String, RawInstance>>,
) -> Result<BTreeMap<InstanceId, Arc<Instance>>, Invalid> {
    let mut instances = BTreeMap::new();
    let mut used: BTreeMap<Address, &str> = BTreeMap::new();
    let mut invalid = false;
    for (name, raw) in raw.into_iter().flatten() {
        let at = at.key(name);
        let id = InstanceId::new(name).map_err(|error| bad_name(report, &at, &error));
        let address = instance_address(report, &at, raw);
        if let Ok(address) = address {
            match used.get(&address) {
                Some(other) => {
                    report.fail(
                        &at.key("address"),
                        format!("`{name}` and `{other}` have one address, {address}"),
                        "give each instance its own address: to a client they would be one endpoint".into(),
                    );
                    invalid = true;
                }
                None => {
                    used.insert(address, name);
                }
            }
        }
        match instance(report, &at, raw, id, address) {
            Ok(instance) => {
                instances.insert(instance.id.clone(), Arc::new(instance));
            }
            Err(Invalid) => invalid = true,
        }
    }
    if invalid { Err(Invalid) } else { Ok(instances) }
}

fn instance_address(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawInstance) -> Result<Address, Invalid> {
    let Some(RawAddress(text)) = &raw.address else {
        return Err(report.missing(
            at,
            "address",
            "write where it listens, such as `address: 10.0.0.1:8000`",
        ));
    };
    address::parse_peer(text)
        .map(Address::new)
        .map_err(|problem| report.fail(&at.key("address"), problem.message, problem.help))
}

fn instance(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: &RawInstance,
    id: Result<InstanceId, Invalid>,
    address: Result<Address, Invalid>,
) -> Result<Instance, Invalid> {
    let weight =
        report.number(&at.key("weight"), raw.weight, &WEIGHT).and_then(|n| Weight::new(n).ok_or(Invalid));
    let region = text(report, &at.key("region"), raw.region.as_ref());
    let zone = text(report, &at.key("zone"), raw.zone.as_ref());
    let lifetime = text(report, &at.key("lifetime"), raw.lifetime.as_ref());
    let mut labels = BTreeMap::new();
    let labels_at = at.key("labels");
    for (key, value) in raw.labels.iter().flatten() {
        let at = labels_at.key(key);
        match (text(report, &at, Some(key)), text(report, &at, Some(value))) {
            (Ok(Some(key)), Ok(value)) => labels.insert(key, value.unwrap_or_default()),
            (Ok(None) | Err(Invalid), _) | (_, Err(Invalid)) => None,
        };
    }
    let address = address?;
    // Without a token of its own the address stands for the process: another address is another process.
    let lifetime = match lifetime? {
        Some(token) => Lifetime::new(&token),
        None => Lifetime::new(&address.to_string()),
    };
    Ok(Instance {
        id: id?,
        address,
        locality: Locality { region: region?.unwrap_or_default(), zone: zone?.unwrap_or_default() },
        weight: weight?,
        labels,
        lifetime,
    })
}

/// Free text of bounded length.
fn text(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&String>) -> Result<Option<Arc<str>>, Invalid> {
    let Some(text) = raw else { return Ok(None) };
    if text.len() > MAX_TEXT || text.chars().any(char::is_control) {
        return Err(report.fail(
            at,
            format!(
                "`{}` is longer than {MAX_TEXT} bytes or has control characters",
                at.name().escape_debug()
            ),
            "write one short line of text".into(),
        ));
    }
    Ok(Some(Arc::from(text.as_str())))
}

fn percent(number: u32) -> Result<Percent, Invalid> {
    u8::try_from(number).ok().and_then(Percent::new).ok_or(Invalid)
}

fn policy(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&RawPolicy>) -> Result<Policy, Invalid> {
    let mut number =
        |key: &str, given: Option<u64>, setting: &Setting<u64>| report.number(&at.key(key), given, setting);
    let ejected =
        number("max_ejected_percent", raw.and_then(|r| r.max_ejected_percent), &MAX_EJECTED_PERCENT);
    let serving = number("min_serving", raw.and_then(|r| r.min_serving), &MIN_SERVING);
    let slow = number("slow_weight", raw.and_then(|r| r.slow_weight), &SLOW_WEIGHT);
    let damping = damping(report, at, raw);
    Ok(Policy {
        max_ejected_percent: percent(ejected?)?,
        min_serving: serving? as usize,
        slow_weight: percent(slow?)?,
        damping: damping?,
    })
}

fn damping(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&RawPolicy>) -> Result<Damping, Invalid> {
    let (time, most) = (at.key("recovery_time"), at.key("max_recovery_time"));
    let recovery_time = report.duration(&time, raw.and_then(|r| r.recovery_time.as_ref()), &RECOVERY_TIME);
    let least = recovery_time.unwrap_or_default();
    let setting = Setting { default: MAX_RECOVERY_TIME.default.max(least), ..MAX_RECOVERY_TIME };
    let max_recovery_time =
        report.duration(&most, raw.and_then(|r| r.max_recovery_time.as_ref()), &setting)?;
    if max_recovery_time < least {
        return Err(report.fail(
            &most,
            format!(
                "`max_recovery_time` {} is below `recovery_time` {}",
                show(max_recovery_time),
                show(least)
            ),
            format!("write {} or more, or lower `recovery_time`", show(least)),
        ));
    }
    Ok(Damping { recovery_time: recovery_time?, max_recovery_time })
}

fn envoy(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&RawEnvoyCluster>,
) -> Result<EnvoyCluster, Invalid> {
    let connect_timeout = report.duration(
        &at.key("connect_timeout"),
        raw.and_then(|r| r.connect_timeout.as_ref()),
        &CONNECT_TIMEOUT,
    );
    let lb_policy = report.choice(
        &at.key("lb_policy"),
        raw.and_then(|r| r.lb_policy.as_ref()),
        LbPolicy::LeastRequest,
        &[
            ("least_request", LbPolicy::LeastRequest),
            ("round_robin", LbPolicy::RoundRobin),
            ("random", LbPolicy::Random),
        ],
    );
    let breakers = circuit_breakers(report, &at.key("circuit_breakers"), raw);
    Ok(EnvoyCluster {
        connect_timeout: connect_timeout?,
        lb_policy: lb_policy?,
        http2: raw.and_then(|r| r.http2).unwrap_or(false),
        circuit_breakers: breakers?,
        bridge: raw.and_then(|r| r.bridge).unwrap_or(true),
    })
}

fn circuit_breakers(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&RawEnvoyCluster>,
) -> Result<CircuitBreakers, Invalid> {
    let raw = raw.and_then(|r| r.circuit_breakers.as_ref());
    let mut number =
        |key: &str, given: Option<u64>, setting: &Setting<u64>| report.number(&at.key(key), given, setting);
    let connections = number("max_connections", raw.and_then(|r| r.max_connections), &MAX_CONNECTIONS);
    let pending =
        number("max_pending_requests", raw.and_then(|r| r.max_pending_requests), &MAX_PENDING_REQUESTS);
    let requests = number("max_requests", raw.and_then(|r| r.max_requests), &MAX_REQUESTS);
    let retries = number("max_retries", raw.and_then(|r| r.max_retries), &MAX_RETRIES);
    Ok(CircuitBreakers {
        max_connections: connections?,
        max_pending_requests: pending?,
        max_requests: requests?,
        max_retries: retries?,
    })
}
