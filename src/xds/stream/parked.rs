//! Versions that a client has refused, or that are held back from it.
//!
//! Pure: no I/O.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Refused versions remembered per name. A resource that is refused in more different versions than this in a row
/// has a fault that no repetition makes worse.
const VERSIONS_PER_NAME: usize = 16;

/// What is not sent again to this client, unless its content changes.
#[derive(Debug, Default)]
pub(super) struct Parked(BTreeMap<Arc<str>, VecDeque<Arc<str>>>);

impl Parked {
    /// True if the client refused `version` of `name`.
    pub(super) fn contains(&self, name: &str, version: &str) -> bool {
        self.0.get(name).is_some_and(|versions| versions.iter().any(|v| **v == *version))
    }

    /// The client refused `version` of `name`.
    pub(super) fn insert(&mut self, name: Arc<str>, version: Arc<str>) {
        let versions = self.0.entry(name).or_default();
        if versions.len() == VERSIONS_PER_NAME {
            versions.pop_front();
        }
        versions.push_back(version);
    }

    /// The version of `name` that was refused last.
    pub(super) fn latest(&self, name: &str) -> Option<&Arc<str>> {
        self.0.get(name)?.back()
    }

    /// `version` of `name` may be sent again.
    pub(super) fn remove(&mut self, name: &str, version: &str) {
        if let Some(versions) = self.0.get_mut(name) {
            versions.retain(|v| **v != *version);
        }
    }
}
