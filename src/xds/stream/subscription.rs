//! What a client wants of one type.
//!
//! Pure: no I/O. The rules are the xDS protocol's ("How the client specifies what resources to return"): a first
//! request without names is a wildcard for clusters and listeners, `*` is one explicitly, and once a client has named
//! anything, an empty list means nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{MAX_NAMES, Refusal};
use crate::snapshot::Kind;

const WILDCARD: &str = "*";

/// Names and wildcard of one type on one stream.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    /// Everything there is.
    pub(super) wildcard: bool,
    /// Names asked for, besides.
    pub(super) names: BTreeSet<Arc<str>>,
    /// The client has asked for this type on this stream.
    pub(super) asked: bool,
    has_named: bool,
}

impl Subscription {
    /// True if the client wants `name`.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// SotW: the request carries all names. True if they are others than before; nearly always they are the same.
    pub(super) fn replace(&mut self, kind: Kind, names: &[String]) -> Result<bool, Refusal> {
        check(kind, names.len())?;
        let legacy = names.is_empty() && !self.has_named && kind.has_wildcard();
        let wildcard = legacy || names.iter().any(|n| is_wildcard(kind, n));
        let named: BTreeSet<&str> =
            names.iter().map(String::as_str).filter(|n| !is_wildcard(kind, n)).collect();
        let same = self.names.iter().map(|n| &**n).eq(named.iter().copied());
        let changed = wildcard != self.wildcard || !same;
        if !same {
            self.names = named.into_iter().map(Arc::from).collect();
        }
        self.wildcard = wildcard;
        self.has_named |= !names.is_empty();
        self.asked = true;
        Ok(changed)
    }

    /// Delta: the request carries what is added and what is dropped. Returns the names that were dropped.
    pub(super) fn change(
        &mut self,
        kind: Kind,
        add: &[String],
        drop: &[String],
    ) -> Result<Vec<Arc<str>>, Refusal> {
        if !self.asked && add.is_empty() && kind.has_wildcard() {
            self.wildcard = true;
        }
        self.asked = true;
        for name in add {
            if is_wildcard(kind, name) {
                self.wildcard = true;
            } else {
                self.names.insert(name.as_str().into());
            }
        }
        check(kind, self.names.len())?;
        let mut dropped = Vec::new();
        for name in drop {
            if is_wildcard(kind, name) {
                self.wildcard = false;
            } else {
                dropped.extend(self.names.take(name.as_str()));
            }
        }
        Ok(dropped)
    }
}

/// Endpoints and routes have no wildcard: there it is a name like any other, and nobody's.
fn is_wildcard(kind: Kind, name: &str) -> bool {
    kind.has_wildcard() && name == WILDCARD
}

/// Refuses more names than [`MAX_NAMES`].
pub(super) const fn check(kind: Kind, names: usize) -> Result<(), Refusal> {
    if names > MAX_NAMES { Err(Refusal::TooManyNames { kind, names, limit: MAX_NAMES }) } else { Ok(()) }
}
