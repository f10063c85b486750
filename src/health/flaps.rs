//! How often an instance went to and fro, and what it has to show for it.
//!
//! Each return costs every client a push, and users the failures until the next ejection. So one that was ejected
//! again soon after it came back must answer well for a while before it serves, twice as long each time.

use std::time::Duration;

use crate::model::{Damping, MonoTime};

/// The to and fro of one lifetime.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Flaps {
    /// Ejections without a calm time between them.
    ejections: u32,
    /// When it was admitted for the last time.
    admitted_at: Option<MonoTime>,
    /// How long it must have answered well to come back.
    recovery: Duration,
    /// Since when it answers well.
    well_since: Option<MonoTime>,
}

impl Flaps {
    /// It serves from now on.
    pub(super) const fn admit(&mut self, at: MonoTime) {
        self.admitted_at = Some(at);
    }

    /// It was ejected. Having served for `max_recovery_time` makes up for everything before.
    pub(super) fn eject(&mut self, at: MonoTime, damping: Damping) {
        let calm = self.admitted_at.is_none_or(|since| at.since(since) >= damping.max_recovery_time);
        self.ejections = if calm { 1 } else { self.ejections.saturating_add(1) };
        self.well_since = None;
        self.recovery = match self.ejections.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
                damping.recovery_time.saturating_mul(factor).min(damping.max_recovery_time)
            }
        };
    }

    /// One observation of an ejected instance: is `well` said long enough?
    pub(super) fn recovers(&mut self, well: bool, started: MonoTime, ended: MonoTime) -> bool {
        if !well {
            self.well_since = None;
            return false;
        }
        let since = *self.well_since.get_or_insert(started);
        ended.since(since) >= self.recovery
    }

    /// Ejections in a row and the time it must answer well, while that time is running.
    pub(super) const fn recovering(&self) -> Option<(u32, Duration)> {
        if self.well_since.is_some() { Some((self.ejections, self.recovery)) } else { None }
    }
}
