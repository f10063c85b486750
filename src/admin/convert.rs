//! The plan and the clients in the words of the admin API.
//!
//! Pure: no I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    ClientId, ClusterName, ClusterPlan, Entry, InstanceId, InstanceKey, MonoTime, Plan, Serve, Standing,
};
use crate::pb::admin as pb;
use crate::snapshot::Kind;
use crate::xds::stream::{Holding, Said, Standing as HoldingStanding, Truth};
use crate::xds::{ClientStatus, Convergence, KindStatus};

/// The open streams.
pub(super) type Table = BTreeMap<ClientId, ClientStatus>;

/// A name in a request that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} cannot be taken; write {pattern}")]
pub(super) struct BadName {
    given: String,
    pattern: &'static str,
}

/// `clusters/C/instances/I`.
pub(super) fn instance_key(name: &str) -> Result<InstanceKey, BadName> {
    let pattern = "clusters/CLUSTER/instances/INSTANCE";
    let bad = || BadName { given: name.chars().take(SHOWN).collect(), pattern };
    let rest = name.strip_prefix("clusters/").ok_or_else(bad)?;
    let (cluster, id) = rest.split_once("/instances/").ok_or_else(bad)?;
    let cluster = ClusterName::new(cluster).map_err(|_| bad())?;
    let id = InstanceId::new(id).map_err(|_| bad())?;
    Ok(InstanceKey { cluster, id })
}

/// `clusters/C`, or `None` for `clusters/-`, which is all of them.
pub(super) fn parent(name: &str) -> Result<Option<ClusterName>, BadName> {
    let bad = || BadName {
        given: name.chars().take(SHOWN).collect(),
        pattern: "clusters/CLUSTER, or clusters/- for all",
    };
    match name.strip_prefix("clusters/").ok_or_else(bad)? {
        "-" => Ok(None),
        cluster => ClusterName::new(cluster).map(Some).map_err(|_| bad()),
    }
}

/// `stream-7`.
pub(super) fn client_id(stream: &str) -> Result<ClientId, BadName> {
    let id = stream.strip_prefix("stream-").and_then(|id| id.parse().ok());
    let bad = || BadName { given: stream.chars().take(SHOWN).collect(), pattern: "stream-NUMBER" };
    id.map(ClientId).ok_or_else(bad)
}

/// So much is repeated of what cannot be taken.
const SHOWN: usize = 60;

/// Longest reason, in bytes.
const MAX_REASON: usize = 256;

/// A reason for people: one line of text.
pub(super) fn reason(text: &str) -> Result<&str, BadName> {
    if text.len() <= MAX_REASON && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    let given = text.chars().take(SHOWN).collect();
    Err(BadName { given, pattern: "a reason in one line of at most 256 bytes" })
}

const fn serve(serve: Serve) -> pb::Serve {
    match serve {
        Serve::Absent => pb::Serve::Absent,
        Serve::Healthy => pb::Serve::Healthy,
        Serve::Degraded => pb::Serve::Degraded,
        Serve::Unhealthy => pb::Serve::Unhealthy,
        Serve::Draining => pb::Serve::Draining,
    }
}

const fn standing(standing: Standing) -> pb::Standing {
    match standing {
        Standing::Unlisted => pb::Standing::Unlisted,
        Standing::Undecided => pb::Standing::Undecided,
        Standing::Loading => pb::Standing::Loading,
        Standing::Decided => pb::Standing::Decided,
    }
}

/// One cluster, with the number of streams that ask for it.
pub(super) fn cluster(name: &ClusterName, plan: &ClusterPlan, clients: &Table) -> pb::Cluster {
    let count = |wanted: Serve| counted(plan.entries.iter().filter(|entry| entry.serve == wanted).count());
    pb::Cluster {
        name: format!("clusters/{name}"),
        standing: standing(plan.standing).into(),
        generation: plan.generation,
        healthy: count(Serve::Healthy),
        degraded: count(Serve::Degraded),
        unhealthy: count(Serve::Unhealthy),
        draining: count(Serve::Draining),
        absent: count(Serve::Absent),
        clients: counted(clients.values().filter(|c| c.clusters.contains(name.as_str())).count()),
    }
}

fn counted(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// One instance.
pub(super) fn instance(cluster: &ClusterName, entry: &Entry) -> pb::Instance {
    pb::Instance {
        name: format!("clusters/{cluster}/instances/{}", entry.id),
        address: entry.address.to_string(),
        region: entry.locality.region.to_string(),
        zone: entry.locality.zone.to_string(),
        weight: entry.weight.get(),
        serve: serve(entry.serve).into(),
        reason: entry.reason.to_string(),
    }
}

/// The entry of `key`, if it is listed.
pub(super) fn find<'a>(plan: &'a Plan, key: &InstanceKey) -> Option<&'a Entry> {
    let entries = &plan.clusters.get(&key.cluster)?.entries;
    let at = entries.binary_search_by(|entry| entry.id.cmp(&key.id)).ok()?;
    entries.get(at).map(|entry| &**entry)
}

/// One open stream.
pub(super) fn client(id: ClientId, status: &ClientStatus, now: MonoTime) -> pb::Client {
    let rejections = status.kinds.values().filter_map(KindStatus::latest_rejection);
    let rejection = rejections.max_by_key(|rejection| rejection.at);
    pb::Client {
        stream: id.to_string(),
        node: status.node.to_string(),
        agent: status.agent.to_string(),
        method: status.method.to_owned(),
        age_seconds: now.since(status.since).as_secs(),
        clusters: status.clusters.iter().map(ToString::to_string).collect(),
        acks: status.kinds.values().map(|kind| kind.acks).sum(),
        nacks: status.kinds.values().map(|kind| kind.nacks).sum(),
        rejection: rejection.map(|r| r.message.to_string()).unwrap_or_default(),
        agent_version: status.agent_version.to_string(),
        rendering: status.rendering.as_str().to_owned(),
        types: status.kinds.iter().map(|(kind, of_kind)| client_type(*kind, of_kind, now)).collect(),
    }
}

fn client_type(kind: Kind, status: &KindStatus, now: MonoTime) -> pb::ClientType {
    let convergence = match status.convergence() {
        Convergence::Synced => pb::Convergence::Synced,
        Convergence::Pending => pb::Convergence::Pending,
        Convergence::Nacked => pb::Convergence::Nacked,
    };
    let waiting = status.waiting_since.map_or(0, |since| millis(now.since(since)));
    let rejection = status.latest_rejection();
    pb::ClientType {
        r#type: kind.as_str().to_owned(),
        convergence: convergence.into(),
        acks: status.acks,
        nacks: status.nacks,
        waiting_millis: waiting,
        refused: status.refused.keys().map(ToString::to_string).collect(),
        rejection: rejection.map(|r| r.message.to_string()).unwrap_or_default(),
        acked_millis: status.acked_at.map(|at| millis(now.since(at))),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One resource, as one client has it.
pub(super) fn holding(holding: &Holding) -> pb::Holding {
    use pb::holding::State;
    let text = |version: Option<&Arc<str>>| version.map(ToString::to_string).unwrap_or_default();
    let state = match holding.standing() {
        HoldingStanding::Synced => State::Synced,
        HoldingStanding::Pending => State::Pending,
        HoldingStanding::Refused => State::Refused,
        HoldingStanding::Withheld => State::Withheld,
        HoldingStanding::Absent => State::Absent,
    };
    let truth = match &holding.truth {
        Truth::Version(version) => Some(version),
        Truth::Withheld | Truth::Nothing => None,
    };
    let said = |said: &Option<Said>| match said {
        Some(Said::Version(version)) => version.to_string(),
        Some(Said::Removal) | None => String::new(),
    };
    pb::Holding {
        r#type: holding.kind.as_str().to_owned(),
        name: holding.name.to_string(),
        state: state.into(),
        held: text(holding.held.as_ref()),
        truth: text(truth),
        sent: said(&holding.sent),
        removal_sent: holding.sent == Some(Said::Removal),
        refused: said(&holding.refused),
        removal_refused: holding.refused == Some(Said::Removal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model::key;

    #[test]
    fn names_are_read_or_refused_with_the_pattern() {
        assert_eq!(instance_key("clusters/llama/instances/gpu-a"), Ok(key("llama", "gpu-a")));
        assert_eq!(parent("clusters/-"), Ok(None));
        assert_eq!(parent("clusters/llama"), Ok(Some(key("llama", "x").cluster)));
        for bad in ["", "llama/gpu-a", "clusters/llama", "clusters//instances/a", "clusters/a/instances/b/c"]
        {
            let error = instance_key(bad).unwrap_err().to_string();
            assert!(error.contains("clusters/CLUSTER/instances/INSTANCE"), "{error}");
        }
        assert!(parent("llama").is_err());
    }
}
