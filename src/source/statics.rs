//! The config file's own instances, as a source.
//!
//! Pure: no I/O. Called by `app` for each config that is applied.

use std::sync::Arc;

use crate::config::{Cluster, Config};
use crate::model::{Chunk, ChunkKey, ClusterName, MonoTime, SourceView};

/// The view that `config` gives at `now`: one chunk for each cluster, also for those without instances. A chunk
/// equal to the one in `previous` is the same allocation, so that a diff by pointer costs what has changed.
pub fn view_of(config: &Config, previous: &SourceView, now: MonoTime) -> SourceView {
    let chunk = |(name, cluster): (&ClusterName, &Arc<Cluster>)| {
        let key = ChunkKey(Arc::from(format!("file/{name}")));
        let chunk = match previous.chunks.get(&key) {
            Some(old) if old.cluster == *name && old.instances == cluster.instances => Arc::clone(old),
            Some(_) | None => Arc::new(Chunk { cluster: name.clone(), instances: cluster.instances.clone() }),
        };
        (key, chunk)
    };
    SourceView { chunks: config.clusters.iter().map(chunk).collect(), synced: true, as_of: now, error: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn config(b_address: &str) -> Config {
        parse(&format!(
            "clusters:
  a: {{ instances: {{ i: {{ address: '10.0.0.1:1' }} }}, checks: {{ readiness: {{ tcp: {{}} }} }} }}
  b: {{ instances: {{ i: {{ address: '{b_address}' }} }}, checks: {{ readiness: {{ tcp: {{}} }} }} }}
  empty: {{ checks: {{ readiness: {{ tcp: {{}} }} }} }}
"
        ))
        .unwrap()
    }

    fn key(name: &str) -> ChunkKey {
        ChunkKey(Arc::from(format!("file/{name}")))
    }

    #[test]
    fn a_cluster_that_did_not_change_keeps_its_chunk() {
        let now = MonoTime::from_millis;
        let first = view_of(&config("10.0.0.2:1"), &SourceView::default(), now(1));
        assert!(first.synced && first.error.is_none());
        assert_eq!(first.chunks.len(), 3);
        assert!(first.chunks[&key("empty")].instances.is_empty());
        let second = view_of(&config("10.0.0.3:1"), &first, now(2));
        let same = |name| Arc::ptr_eq(&first.chunks[&key(name)], &second.chunks[&key(name)]);
        assert!(same("a") && same("empty") && !same("b"));
        assert_eq!(second.as_of, now(2));
    }

    #[test]
    fn a_cluster_that_left_the_file_leaves_the_view() {
        let first = view_of(&config("10.0.0.2:1"), &SourceView::default(), MonoTime::ZERO);
        let second = view_of(&parse("clusters: {}").unwrap(), &first, MonoTime::ZERO);
        assert!(second.chunks.is_empty() && second.synced);
    }
}
