//! Who exists, as a source says it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Address, ClusterName, InstanceId, Locality, MonoTime, Weight};

/// One run of an instance's process, as an opaque token of its source (container id and restart count, process
/// start time, or a word in the file). A new token means a new process: it starts again and inherits no counters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime(Arc<str>);

impl Lifetime {
    /// Any text; only equality matters.
    pub fn new(token: &str) -> Self {
        Self(Arc::from(token))
    }
}

/// One backend process as registered. Registration says that it exists, never that it is healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Identity within the cluster.
    pub id: InstanceId,
    /// Where it listens.
    pub address: Address,
    /// Zone and region.
    pub locality: Locality,
    /// Load-balancing weight while healthy.
    pub weight: Weight,
    /// Free labels of the source (version, node, GPU).
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// The run of the process.
    pub lifetime: Lifetime,
}

/// Names one piece of a source's view that changes as a whole: an EndpointSlice, a Consul service, a cluster in
/// the file. One piece's change costs one piece.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey(pub Arc<str>);

/// The instances of one cluster that one piece of a source lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The cluster these instances belong to.
    pub cluster: ClusterName,
    /// The instances by identity.
    pub instances: BTreeMap<InstanceId, Arc<Instance>>,
}

/// A source's complete view and its freshness. A source that is lost keeps its last view.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceView {
    /// All pieces; diffed by pointer.
    pub chunks: BTreeMap<ChunkKey, Arc<Chunk>>,
    /// False until the first complete view: an unsynced view is no statement about anybody.
    pub synced: bool,
    /// When the source last confirmed this view.
    pub as_of: MonoTime,
    /// Why the view may be stale, if it may be.
    pub error: Option<Arc<str>>,
}
