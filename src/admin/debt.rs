//! Who has still to learn of a drain.
//!
//! Pure: no I/O. A stream owes an acknowledgement of the drain's generation or of a later one. One that ends pays
//! nothing by that: its client serves on from what it had. It is cleared by a stream with the same node id that knows,
//! but node ids need not be unique: one that two streams had at a time clears nobody. Streams that were gone before
//! anybody looked are not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::convert::{self, Table};
use crate::model::{ClientId, InstanceKey, Plan, Reason};
use crate::pb::admin as pb;
use crate::snapshot::Snapshot;
use crate::xds::ClientStatus;

/// Why a drain can no longer be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Over {
    #[error("{0} is not drained: the drain was taken back, or never asked for")]
    NotDrained(InstanceKey),
    #[error("{0} is not listed any more")]
    Gone(InstanceKey),
}

/// The debt for one drain, as it was last looked at.
#[derive(Debug)]
pub(super) struct Debt {
    key: InstanceKey,
    /// The drain that they owe for; another one begins anew.
    generation: u64,
    /// Streams seen to owe, with their node.
    owing: BTreeMap<ClientId, Arc<str>>,
    /// Node ids that name nobody.
    shared: BTreeSet<Arc<str>>,
}

impl Debt {
    pub(super) fn new(key: InstanceKey) -> Self {
        Self { key, generation: 0, owing: BTreeMap::new(), shared: [Arc::from("")].into() }
    }

    /// How far it has come.
    pub(super) fn look(
        &mut self,
        plan: &Plan,
        snapshot: Option<&Snapshot>,
        clients: &Table,
    ) -> Result<pb::DrainStatus, Over> {
        let entry = convert::find(plan, &self.key).ok_or_else(|| Over::Gone(self.key.clone()))?;
        let Reason::Drained(drain) = &entry.reason else { return Err(Over::NotDrained(self.key.clone())) };
        let (cluster, generation) = (self.key.cluster.as_str(), drain.generation);
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.owing.clear();
        }
        let knows = |status: &ClientStatus| status.settled.get(cluster).is_some_and(|g| *g >= generation);
        let asking = || clients.iter().filter(|(_, status)| status.clusters.contains(cluster));
        let mut nodes = BTreeSet::new();
        let twice = asking().filter(|(_, status)| !nodes.insert(&status.node));
        self.shared.extend(twice.map(|(_, status)| status.node.clone()));
        let (mut settled, mut pending) = (Vec::new(), Vec::new());
        for (id, status) in asking() {
            if knows(status) {
                settled.push(named(*id, &status.node));
                let shared = &self.shared;
                let cleared = |node: &Arc<str>| *node == status.node && !shared.contains(node);
                self.owing.retain(|owing, node| owing != id && !cleared(node));
            } else {
                pending.push(named(*id, &status.node));
                self.owing.insert(*id, status.node.clone());
            }
        }
        // Who is still connected and asks no longer has let the cluster go.
        self.owing.retain(|id, _| clients.get(id).is_none_or(|status| status.clusters.contains(cluster)));
        let lost = self.owing.iter().filter(|(id, _)| !clients.contains_key(id));
        let lost: Vec<_> = lost.map(|(id, node)| named(*id, node)).collect();
        let published = snapshot.is_some_and(|snapshot| snapshot.generation >= generation);
        // Nobody at all is no proof: those who are not connected serve on from what they have.
        let acknowledged = published && pending.is_empty() && lost.is_empty() && !settled.is_empty();
        let instance = Some(convert::instance(&self.key.cluster, entry));
        Ok(pb::DrainStatus { instance, generation, settled, pending, acknowledged, lost })
    }
}

fn named(id: ClientId, node: &str) -> String {
    if node.is_empty() { id.to_string() } else { format!("{node} ({id})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterPlan, Drain, Entry, MonoTime, Serve, Standing};
    use crate::testing::model::{instance, key};

    const DRAINED_AT: u64 = 10;

    fn plan(generation: u64, reason: Reason) -> Plan {
        let i = instance("a", 9000);
        let serve = if matches!(reason, Reason::Drained(_)) { Serve::Draining } else { Serve::Healthy };
        let entry =
            Entry { id: i.id, address: i.address, locality: i.locality, weight: i.weight, serve, reason };
        let of_cluster =
            ClusterPlan { generation, standing: Standing::Decided, entries: vec![Arc::new(entry)] };
        let clusters = [(key("c", "a").cluster, Arc::new(of_cluster))].into();
        Plan { generation, at: MonoTime::ZERO, clusters }
    }

    fn drained() -> Reason {
        Reason::Drained(Drain { why: "".into(), generation: DRAINED_AT })
    }

    fn client(node: &str, settled: Option<u64>) -> ClientStatus {
        let name: Arc<str> = "c".into();
        ClientStatus {
            node: node.into(),
            agent: "envoy".into(),
            agent_version: "1.40.0".into(),
            rendering: crate::snapshot::Rendering::Envoy,
            method: "DeltaAggregatedResources",
            since: MonoTime::ZERO,
            kinds: BTreeMap::new(),
            clusters: [name.clone()].into(),
            settled: settled.map(|generation| (name, generation)).into_iter().collect(),
        }
    }

    fn table<const N: usize>(clients: [(u64, ClientStatus); N]) -> Table {
        clients.map(|(id, status)| (ClientId(id), status)).into()
    }

    fn snapshot(generation: u64) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.generation = generation;
        snapshot
    }

    fn look(debt: &mut Debt, clients: &Table) -> pb::DrainStatus {
        debt.look(&plan(12, drained()), Some(&snapshot(12)), clients).unwrap()
    }

    #[test]
    fn an_ack_of_the_drains_generation_or_a_later_one_counts_and_an_older_one_does_not() {
        let mut debt = Debt::new(key("c", "a"));
        let status = look(&mut debt, &table([(1, client("e1", Some(9))), (2, client("e2", Some(10)))]));
        assert_eq!((status.acknowledged, status.pending.len(), status.settled.len()), (false, 1, 1));
        let status = look(&mut debt, &table([(1, client("e1", Some(12))), (2, client("e2", Some(10)))]));
        assert!(status.acknowledged);
        assert!(!debt.look(&plan(12, drained()), Some(&snapshot(9)), &table([])).unwrap().acknowledged);
    }

    #[test]
    fn a_stream_that_ends_pays_nothing_until_its_node_knows() {
        let mut debt = Debt::new(key("c", "a"));
        assert_eq!(
            look(&mut debt, &table([(1, client("e1", None)), (2, client("", None))])).pending.len(),
            2
        );
        let status = look(&mut debt, &table([]));
        assert_eq!(
            (status.acknowledged, status.lost),
            (false, vec!["e1 (stream-1)".to_owned(), "stream-2".to_owned()])
        );
        let status = look(&mut debt, &table([(3, client("e1", None)), (4, client("other", Some(12)))]));
        assert_eq!((status.pending.len(), status.lost.len()), (1, 2));
        let status = look(&mut debt, &table([(3, client("e1", Some(12)))]));
        assert_eq!(
            (status.acknowledged, status.lost),
            (false, vec!["stream-2".to_owned()]),
            "who has no name is lost"
        );
    }

    #[test]
    fn a_node_id_that_two_have_clears_neither() {
        let mut debt = Debt::new(key("c", "a"));
        look(&mut debt, &table([(1, client("e", None)), (2, client("e", Some(12)))]));
        assert_eq!(look(&mut debt, &table([(2, client("e", Some(12)))])).lost.len(), 1);
    }

    #[test]
    fn who_lets_the_cluster_go_owes_nothing() {
        let mut debt = Debt::new(key("c", "a"));
        look(&mut debt, &table([(1, client("e1", None))]));
        let mut elsewhere = client("e1", None);
        elsewhere.clusters.clear();
        let status = look(&mut debt, &table([(1, elsewhere.clone())]));
        assert!(status.lost.is_empty() && !status.acknowledged, "nobody is left who could prove anything");
        assert!(look(&mut debt, &table([(1, elsewhere), (2, client("e2", Some(12)))])).acknowledged);
    }

    #[test]
    fn what_is_not_drained_is_never_acknowledged() {
        let mut debt = Debt::new(key("c", "a"));
        let clients = table([(1, client("e1", Some(11)))]);
        let back = debt.look(&plan(11, Reason::Passing), Some(&snapshot(11)), &clients);
        assert_eq!(back, Err(Over::NotDrained(key("c", "a"))));
        let gone = Debt::new(key("c", "b")).look(&plan(11, Reason::Passing), None, &clients);
        assert_eq!(gone, Err(Over::Gone(key("c", "b"))));
    }
}
