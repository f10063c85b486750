//! All resources of one kind, and what changed lately.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Resource;
use crate::model::ContentHash;

/// Changes remembered. A reader that missed more compares everything.
const STEPS: usize = 64;

/// All resources of one kind.
#[derive(Debug, Clone)]
pub struct ResourceSet {
    /// By name, in order.
    pub resources: BTreeMap<Arc<str>, Arc<Resource>>,
    /// Names that exist, but of which nothing can be said yet. They are neither sent nor called removed.
    pub withheld: BTreeSet<Arc<str>>,
    /// Resources that a client which holds nothing may have, and one that holds something must not: nobody has
    /// served since this process watches, and what the client holds may come from a time when somebody did.
    pub provisional: BTreeSet<Arc<str>>,
    state: ContentHash,
    version: Arc<str>,
    steps: Vec<Arc<Step>>,
}

/// What changed from one state of a set to the next.
#[derive(Debug)]
struct Step {
    from: ContentHash,
    names: Vec<Arc<str>>,
}

impl ResourceSet {
    /// A version of the given resources together: names and versions.
    pub fn version_of<'a>(resources: impl IntoIterator<Item = &'a Arc<Resource>>) -> ContentHash {
        ContentHash::of_parts(resources.into_iter().flat_map(|r| [r.name.as_bytes(), r.version.as_bytes()]))
    }

    /// The version of all its resources together.
    pub const fn version(&self) -> &Arc<str> {
        &self.version
    }

    /// Stands for all that a client could be told of this set: equal states, equal answers.
    pub const fn state(&self) -> ContentHash {
        self.state
    }

    /// The names of which something may have changed since the set was in state `seen`; `None` if that is too long ago
    /// to be known.
    pub fn changed_since(&self, seen: ContentHash) -> Option<impl Iterator<Item = &Arc<str>>> {
        let first = self.steps.iter().rposition(|step| step.from == seen)?;
        Some(self.steps.iter().skip(first).flat_map(|step| &step.names))
    }

    /// Completes a set that follows `old`; keeps `old` if they are equal, so that readers can compare pointers.
    pub(super) fn after(mut self, old: &Arc<Self>) -> Arc<Self> {
        if self == **old {
            return old.clone();
        }
        self.state = state_of(&self);
        self.version = Self::version_of(self.resources.values()).to_string().into();
        let forgotten = (old.steps.len() + 1).saturating_sub(STEPS);
        self.steps = old.steps.iter().skip(forgotten).cloned().collect();
        self.steps.push(Arc::new(Step { from: old.state, names: self.differences(old) }));
        Arc::new(self)
    }

    fn differences(&self, old: &Self) -> Vec<Arc<str>> {
        let all = [self, old].into_iter().flat_map(|set| {
            set.resources.keys().chain(&set.withheld) // what is provisional has a resource
        });
        let mut names: Vec<_> = all.filter(|name| self.said_of(name) != old.said_of(name)).cloned().collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn said_of(&self, name: &str) -> (Option<&Arc<str>>, bool, bool) {
        let version = self.resources.get(name).map(|resource| &resource.version);
        (version, self.withheld.contains(name), self.provisional.contains(name))
    }
}

/// The same content; how it came about does not matter.
impl PartialEq for ResourceSet {
    fn eq(&self, other: &Self) -> bool {
        self.resources == other.resources
            && self.withheld == other.withheld
            && self.provisional == other.provisional
    }
}

impl Default for ResourceSet {
    fn default() -> Self {
        let none = ContentHash::of(&[]);
        Self {
            resources: BTreeMap::new(),
            withheld: BTreeSet::new(),
            provisional: BTreeSet::new(),
            state: none,
            version: "".into(),
            steps: Vec::new(),
        }
    }
}

/// An empty name, which nothing has, separates the parts.
fn state_of(set: &ResourceSet) -> ContentHash {
    let told = set.resources.values().flat_map(|r| [r.name.as_bytes(), r.version.as_bytes()]);
    let withheld = set.withheld.iter().map(|name| name.as_bytes());
    let provisional = set.provisional.iter().map(|name| name.as_bytes());
    ContentHash::of_parts(told.chain([&b""[..]]).chain(withheld).chain([&b""[..]]).chain(provisional))
}
