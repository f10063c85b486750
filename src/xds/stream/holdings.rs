//! What a client holds of each resource, beside what there is.
//!
//! Pure: no I/O. Read from the state of a stream whenever somebody asks, so that there is no second account of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::snapshot::{Kind, ResourceSet};

/// One resource, as one client has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Its type.
    pub kind: Kind,
    /// Its name.
    pub name: Arc<str>,
    /// The version that the client has acknowledged on this stream, or named when it came.
    pub held: Option<Arc<str>>,
    /// What there is for it.
    pub truth: Truth,
    /// What has been sent and not answered.
    pub sent: Option<Said>,
    /// What it refused last, or what is kept from it as if it had, unless it has taken something since.
    pub refused: Option<Said>,
}

/// What there is of a resource for one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Truth {
    /// This version.
    Version(Arc<str>),
    /// It exists, and nothing is said of it: the client keeps what it has.
    Withheld,
    /// It does not exist, or the client does not ask for it.
    Nothing,
}

/// What a response says of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// It has this version.
    Version(Arc<str>),
    /// It is gone.
    Removal,
}

/// How a client stands to one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It holds what there is.
    Synced,
    /// It exists, and nothing is said of it.
    Withheld,
    /// There is none. (SotW has no word for that about endpoints and routes: what the client had, it keeps.)
    Absent,
    /// What there is has been sent, or is yet to be.
    Pending,
    /// It has refused what there is, or to do without: that is not sent again.
    Refused,
}

impl Holding {
    /// How the client stands to it.
    pub fn standing(&self) -> Standing {
        match &self.truth {
            Truth::Withheld => Standing::Withheld,
            Truth::Version(version) if self.has_refused(version) => Standing::Refused,
            _ if self.sent.is_some() => Standing::Pending,
            Truth::Version(version) if self.held.as_ref() == Some(version) => Standing::Synced,
            Truth::Version(_) => Standing::Pending,
            Truth::Nothing if self.refused == Some(Said::Removal) => Standing::Refused,
            Truth::Nothing => Standing::Absent,
        }
    }

    fn has_refused(&self, version: &Arc<str>) -> bool {
        matches!(&self.refused, Some(Said::Version(refused)) if refused == version)
    }
}

/// A resource of which a stream would have gone on saying nothing, though there was something to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its type.
    pub kind: Kind,
    /// Its name; [`WHOLE_SET`](super::WHOLE_SET) for a list.
    pub name: Arc<str>,
}

/// What one variant knows of one type.
pub(super) trait Account {
    /// The names that are of interest besides those of the set.
    fn names(&self) -> BTreeSet<&Arc<str>>;
    fn wants(&self, name: &str) -> bool;
    /// True if it keeps what it has although there is something else.
    fn is_spared(&self, set: &ResourceSet, name: &str) -> bool;
    fn held(&self, name: &str) -> Option<Arc<str>>;
    fn sent(&self, name: &str) -> Option<Said>;
    /// What was refused last; `truth` is what there is.
    fn refused(&self, name: &str, truth: Option<&Arc<str>>) -> Option<Said>;
}

/// All that `account` says beside `set`.
pub(super) fn of(kind: Kind, set: &ResourceSet, account: &impl Account) -> Vec<Holding> {
    let mut names = account.names();
    names.extend(set.resources.keys().chain(&set.withheld));
    names.retain(|name| account.wants(name));
    let holding = |name: &Arc<str>| {
        let version = set.resources.get(name).map(|r| &r.version);
        let withheld = set.withheld.contains(name) || account.is_spared(set, name);
        let truth = match version {
            _ if withheld => Truth::Withheld,
            Some(version) => Truth::Version(version.clone()),
            None => Truth::Nothing,
        };
        let (held, sent, refused) = (account.held(name), account.sent(name), account.refused(name, version));
        Holding { kind, name: name.clone(), held, truth, sent, refused }
    };
    names.into_iter().map(holding).collect()
}
