//! One process, one endpoint: who stands for an address that several instances share.
//!
//! To a client two endpoints with one address are one: Envoy drops either silently, gRPC refuses them all. Sources may
//! name one process twice all the same, each under an id of its own. One of them stands for it: who has been admitted,
//! then the first by id.

use std::collections::HashMap;

use super::{Drains, Member, Members};
use crate::model::{Address, Drain, InstanceId};

/// Who stands for each address.
pub(super) struct Addresses<'a> {
    stands: HashMap<Address, &'a Member>,
    drained: HashMap<Address, &'a Drain>,
}

impl<'a> Addresses<'a> {
    pub(super) fn of(members: &'a Members, drains: &'a Drains) -> Self {
        let mut stands: HashMap<Address, &Member> = HashMap::with_capacity(members.len());
        for member in members.values() {
            let stand = stands.entry(member.instance.address).or_insert(member);
            if member.is_admitted() && !stand.is_admitted() {
                *stand = member;
            }
        }
        let mut drained = HashMap::new();
        for (id, drain) in drains {
            if let Some(member) = members.get(id) {
                drained.entry(member.instance.address).or_insert(drain);
            }
        }
        Self { stands, drained }
    }

    /// The other instance that stands for the address of `member`, if one does.
    pub(super) fn taken_by(&self, member: &Member) -> Option<&'a InstanceId> {
        let stand = self.stands.get(&member.instance.address)?;
        (stand.instance.id != member.instance.id).then_some(&stand.instance.id)
    }

    /// The drain of the process behind `member`, by whatever id it was asked for: what is to be left alone is the
    /// process.
    pub(super) fn drain_of(&self, member: &Member) -> Option<&'a Drain> {
        self.drained.get(&member.instance.address).copied()
    }
}
