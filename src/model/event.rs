//! What happened and why, for log, metrics and people.

use super::{Address, Epoch, InstanceId, InstanceKey, Reason, Serve};

/// A change that somebody may want to know about. One event makes one log line and one metric, so they agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An instance was registered, or a new lifetime of it began.
    Registered {
        /// Who.
        key: InstanceKey,
        /// The registration.
        epoch: Epoch,
    },
    /// An instance left its source.
    Deregistered {
        /// Who.
        key: InstanceKey,
    },
    /// What clients are told about an instance changed.
    Moved {
        /// Who.
        key: InstanceKey,
        /// From.
        from: Serve,
        /// To.
        to: Serve,
        /// Why.
        reason: Reason,
    },
    /// An instance is listed at an address for which another one stands: clients are not told of it.
    AddressTaken {
        /// Who.
        key: InstanceKey,
        /// Where.
        address: Address,
        /// Who stands for the address.
        by: InstanceId,
    },
}
