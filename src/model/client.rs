//! What xDS clients tell the fleet: the feedback edge from `xds` to `fleet`.

use std::fmt;
use std::sync::Arc;

use super::{ClusterName, MonoTime};

/// One xDS stream. Clients with the same or an empty node id are still told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream-{}", self.0)
    }
}

/// Something a client did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// A stream opened and named its node (possibly the empty name).
    Opened {
        /// The stream.
        client: ClientId,
        /// The node id it gave.
        node: Arc<str>,
    },
    /// The client holds this cluster's assignment of `generation` or content equal to it.
    Settled {
        /// The stream.
        client: ClientId,
        /// The assignment.
        cluster: ClusterName,
        /// Every debt up to this generation is paid.
        generation: u64,
        /// When its word arrived.
        at: MonoTime,
    },
    /// The client refused a response.
    Rejected {
        /// The stream.
        client: ClientId,
        /// The type refused.
        type_url: &'static str,
        /// The client's words.
        message: Arc<str>,
    },
    /// The stream ended. That pays no debt: the client serves on from its last config.
    Closed {
        /// The stream.
        client: ClientId,
    },
}
