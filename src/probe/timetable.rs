//! Who is asked next, and when.
//!
//! Pure: no I/O.
//!
//! One entry for each (instance, role) that its phase lets ask. Every entry has a *grid*: moments one interval apart,
//! shifted by a hash of its name, so that any number of targets added at once is spread over the interval from the
//! first round on, and no cadence drifts. After a sign of death of a serving target the next probes follow at
//! `confirm_interval` instead, until an answer comes or the phase says otherwise; an `inference` is confirmed upon any
//! failure. A `warmup` has no grid: one prompt follows the end of another. What is late because of our own
//! limits starts as soon as they allow, oldest first; what is late because this process stood still waits for its
//! next moment. An entry in flight is never started a second time. When a serving target ends a connection that was
//! kept for it, it may have died, and is asked at once; if it had not, its hanging up is not believed again.
//!
//! It opens no connection and knows no deadline of a probe in flight. Called by the scheduler, and by tests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::rate::StartRate;
use crate::config::Prober;
use crate::model::{Catalog, Check, InstanceKey, MonoTime, Outcome, Phase, Role, Target};

/// An instance that waits to be admitted is asked for its first completion within this time, though the interval may
/// be longer: until it has answered, it does not serve.
const FIRST_INFERENCE_WITHIN: Duration = Duration::from_secs(2);

/// Shorter intervals are read as this: a config cannot have them, and a grid needs a width.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// One (instance, role) under one registration. Never reused: what was started for a removed slot finds nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u64);

/// A probe that begins now.
#[derive(Debug, Clone)]
pub struct Start {
    /// Whose it is; [`Timetable::finish`] wants it back.
    pub slot: SlotId,
    /// Whom to ask.
    pub target: Arc<Target>,
    /// Which of its checks.
    pub role: Role,
    /// When it should have begun.
    pub due: MonoTime,
    /// Its deadline, from its beginning.
    pub timeout: Duration,
    /// It confirms a failure: on a fresh connection.
    pub confirm: bool,
}

/// The order of all probes to come.
#[derive(Debug)]
pub struct Timetable {
    seed: u64,
    max_in_flight: usize,
    rate: StartRate,
    catalog: Arc<Catalog>,
    slots: BTreeMap<(InstanceKey, Role), SlotId>,
    entries: HashMap<SlotId, Entry>,
    queue: BTreeSet<(MonoTime, SlotId)>,
    in_flight: usize,
    next_slot: u64,
    /// True while something due waits for one of our own limits.
    behind: bool,
    /// When nothing due was waiting for our limits for the last time.
    level_at: MonoTime,
}

#[derive(Debug)]
struct Entry {
    target: Arc<Target>,
    role: Role,
    /// Place on the grid, as a fraction of the interval in 2⁻⁶⁴.
    place: u64,
    turn: Turn,
    /// The end of the last probe, if that was a sign of death. It outlives every change of phase, because the
    /// phase may have been decided before it was known.
    failed_at: Option<MonoTime>,
    /// A turn was passed over; the next one will not be.
    skipped: bool,
    hangup: Hangup,
}

/// What is made of a peer that ends a connection which was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// It may be a sign of death.
    Believed,
    /// It was, and the probe that finds out is under way.
    Tried,
    /// It was none: this peer does not keep connections as long as we do.
    Ignored,
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Waiting { due: MonoTime },
    InFlight { started: MonoTime },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// On the grid of `recover_interval`.
    Recover,
    /// On the grid of `interval`.
    Steady,
    /// `confirm_interval` after the end of the last one.
    Confirm,
    /// `interval` after the end of the last one; after one without a good answer, `recover_interval`.
    Follow,
}

impl Timetable {
    /// An empty timetable. `seed` shifts all grids: two probers of the same fleet take different ones.
    pub fn new(seed: u64, limits: Prober) -> Self {
        Self {
            seed,
            max_in_flight: limits.max_in_flight.max(1),
            rate: StartRate::new(limits.max_starts_per_second),
            catalog: Arc::default(),
            slots: BTreeMap::new(),
            entries: HashMap::new(),
            queue: BTreeSet::new(),
            in_flight: 0,
            next_slot: 0,
            behind: false,
            level_at: MonoTime::ZERO,
        }
    }

    /// Takes over other limits. Probes in flight above a lower one run to their end.
    pub fn set_limits(&mut self, limits: Prober) {
        self.max_in_flight = limits.max_in_flight.max(1);
        self.rate = self.rate.with_cap(limits.max_starts_per_second);
    }

    /// Entries, in flight or waiting.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nobody is to be asked.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes over a new catalog. Returns the slots that are no more: their probes in flight are void, and their
    /// connections of no use.
    pub fn reconcile(&mut self, catalog: &Arc<Catalog>, now: MonoTime) -> Vec<SlotId> {
        let mut gone = Vec::new();
        let old = mem::replace(&mut self.catalog, Arc::clone(catalog));
        if Arc::ptr_eq(&old, catalog) {
            return gone;
        }
        let mut before = old.targets.iter().peekable();
        for (key, target) in &catalog.targets {
            while let Some((removed, _)) = before.next_if(|(k, _)| *k < key) {
                self.remove_all(removed, &mut gone);
            }
            let same = before.next_if(|(k, _)| *k == key).is_some_and(|(_, t)| Arc::ptr_eq(t, target));
            if !same {
                self.update(key, target, now, &mut gone);
            }
        }
        for (removed, _) in before {
            self.remove_all(removed, &mut gone);
        }
        gone
    }

    /// The next probe to begin at `now`, if one is due and the limits allow it. Ask until it says `None`.
    pub fn start(&mut self, now: MonoTime) -> Option<Start> {
        if !self.behind {
            self.level_at = now;
        }
        loop {
            let due = self.queue.first().map(|(due, _)| *due).filter(|due| *due <= now);
            self.behind = due.is_some();
            if due.is_none() || self.in_flight >= self.max_in_flight || self.rate.allowed_at() > now {
                return None;
            }
            let (due, slot) = self.queue.pop_first()?;
            let Some(entry) = self.entries.get_mut(&slot) else { continue };
            if entry.was_missed(due, self.level_at) {
                let due = entry.grid_after(now);
                entry.skipped = true;
                entry.turn = Turn::Waiting { due };
                self.queue.insert((due, slot));
                continue;
            }
            self.rate.take(now);
            self.in_flight += 1;
            return entry.begin(slot, due, now);
        }
    }

    /// When [`Self::start`] has something to give again; `None` while only a probe's end or a new catalog helps.
    pub fn wake_at(&self) -> Option<MonoTime> {
        let (due, _) = self.queue.first()?;
        (self.in_flight < self.max_in_flight).then(|| self.rate.allowed_at().max(*due))
    }

    /// The peer ended the connection that was kept for `slot`: a process that dies does that at once, a hundred times
    /// sooner than a grid finds out.
    pub fn hung_up(&mut self, slot: SlotId, now: MonoTime) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        let Turn::Waiting { due } = entry.turn else { return };
        if entry.pace() != Pace::Steady || entry.hangup != Hangup::Believed || due <= now {
            return;
        }
        entry.hangup = Hangup::Tried;
        entry.turn = Turn::Waiting { due: now };
        self.queue.remove(&(due, slot));
        self.queue.insert((now, slot));
    }

    /// The probe of `slot` ended.
    pub fn finish(&mut self, slot: SlotId, ended: MonoTime, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        let Turn::InFlight { started } = entry.turn else { return };
        self.in_flight = self.in_flight.saturating_sub(1);
        match outcome {
            Outcome::Unreachable | Outcome::Timeout => entry.failed_at = Some(ended),
            // So costly a question has a long interval, and one failure of it is too much to wait that long.
            Outcome::Unhealthy if entry.role == Role::Inference => entry.failed_at = Some(ended),
            Outcome::Ok | Outcome::Slow | Outcome::Unhealthy | Outcome::Misconfigured => {
                entry.failed_at = None
            }
            // Says nothing about the peer, so it takes nothing back either.
            Outcome::Unknown => {}
        }
        entry.hangup = match (entry.hangup, entry.failed_at) {
            (_, Some(_)) => Hangup::Believed,
            (Hangup::Tried, None) => Hangup::Ignored,
            (other, None) => other,
        };
        let due = match entry.pace() {
            Pace::Confirm => ended + entry.confirm_interval(),
            Pace::Follow => ended + entry.pause_after(outcome),
            // Start to start; a probe that outlasted its interval is followed at once.
            Pace::Recover | Pace::Steady => entry.grid_after(started).max(ended),
        };
        entry.turn = Turn::Waiting { due };
        self.queue.insert((due, slot));
    }

    fn update(&mut self, key: &InstanceKey, target: &Arc<Target>, now: MonoTime, gone: &mut Vec<SlotId>) {
        for role in Role::ALL {
            let slot = self.slots.get(&(key.clone(), role)).copied();
            let asked = check_asked(target, role).is_some();
            if let Some(slot) = slot {
                if asked && self.repace(slot, target, now) {
                    continue;
                }
                self.remove(key, role, gone);
            }
            if asked {
                self.add(key, target, role, now);
            }
        }
    }

    /// Goes on with `slot` under `target`; false if that is another registration or another question.
    fn repace(&mut self, slot: SlotId, target: &Arc<Target>, now: MonoTime) -> bool {
        let Some(entry) = self.entries.get_mut(&slot).filter(|e| e.asks_the_same(target)) else {
            return false;
        };
        let before = entry.pace();
        entry.target = Arc::clone(target);
        let pace = entry.pace();
        if let Turn::Waiting { due } = entry.turn
            && pace != before
        {
            let next = match (pace, entry.failed_at) {
                (Pace::Confirm, Some(failed_at)) => failed_at + entry.confirm_interval(),
                (Pace::Confirm | Pace::Recover | Pace::Steady | Pace::Follow, _) => entry.grid_after(now),
            };
            entry.turn = Turn::Waiting { due: next };
            self.queue.remove(&(due, slot));
            self.queue.insert((next, slot));
        }
        true
    }

    fn add(&mut self, key: &InstanceKey, target: &Arc<Target>, role: Role, now: MonoTime) {
        let slot = SlotId(self.next_slot);
        self.next_slot += 1;
        let mut entry = Entry {
            target: Arc::clone(target),
            role,
            place: place(key, role, self.seed),
            turn: Turn::Waiting { due: now },
            failed_at: None,
            skipped: false,
            hangup: Hangup::Believed,
        };
        let due = match (role, target.phase) {
            (Role::Warmup, _) => now,
            (Role::Inference, Phase::Out) => {
                entry.grid_after(now).min(now + entry.part_of(FIRST_INFERENCE_WITHIN))
            }
            _ => entry.grid_after(now),
        };
        entry.turn = Turn::Waiting { due };
        self.queue.insert((due, slot));
        self.entries.insert(slot, entry);
        self.slots.insert((key.clone(), role), slot);
    }

    fn remove_all(&mut self, key: &InstanceKey, gone: &mut Vec<SlotId>) {
        for role in Role::ALL {
            self.remove(key, role, gone);
        }
    }

    fn remove(&mut self, key: &InstanceKey, role: Role, gone: &mut Vec<SlotId>) {
        let Some(slot) = self.slots.remove(&(key.clone(), role)) else { return };
        match self.entries.remove(&slot).map(|entry| entry.turn) {
            Some(Turn::Waiting { due }) => {
                self.queue.remove(&(due, slot));
            }
            Some(Turn::InFlight { .. }) => self.in_flight = self.in_flight.saturating_sub(1),
            None => {}
        }
        gone.push(slot);
    }
}

impl Entry {
    fn check(&self) -> Option<&Check> {
        self.target.checks.get(self.role)
    }

    fn asks_the_same(&self, target: &Target) -> bool {
        self.target.epoch == target.epoch
            && self.target.address == target.address
            && (Arc::ptr_eq(&self.target.checks, &target.checks)
                || self.check() == target.checks.get(self.role))
    }

    fn pace(&self) -> Pace {
        match (self.target.phase, self.failed_at) {
            _ if self.role == Role::Warmup => Pace::Follow,
            (Phase::Starting | Phase::Unready | Phase::Warming | Phase::Out, _) => Pace::Recover,
            (Phase::Serving, None) => Pace::Steady,
            (Phase::Serving, Some(_)) => Pace::Confirm,
        }
    }

    fn interval(&self) -> Duration {
        let interval = self.check().map_or(MIN_INTERVAL, |check| match self.pace() {
            Pace::Recover => check.recover_interval,
            Pace::Steady | Pace::Confirm | Pace::Follow => check.interval,
        });
        interval.max(MIN_INTERVAL)
    }

    fn confirm_interval(&self) -> Duration {
        self.check().map_or(MIN_INTERVAL, |check| check.confirm_interval).max(MIN_INTERVAL)
    }

    /// The pause before the next prompt of a warm-up.
    fn pause_after(&self, outcome: Outcome) -> Duration {
        let pause = self.check().map_or(MIN_INTERVAL, |check| match outcome {
            Outcome::Ok => check.interval,
            _ => check.recover_interval,
        });
        pause.max(MIN_INTERVAL)
    }

    /// The place, as a part of `width`.
    fn part_of(&self, width: Duration) -> Duration {
        let part = (u128::from(self.place) * width.as_nanos()) >> 64;
        Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// The first moment of the grid after `after`.
    fn grid_after(&self, after: MonoTime) -> MonoTime {
        let width = self.interval().as_nanos();
        let first = self.part_of(self.interval()).as_nanos();
        let after = after.since_start().as_nanos();
        let steps = after.checked_sub(first).map_or(0, |past| past / width + 1);
        let at = first + steps * width;
        MonoTime::from_start(Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX)))
    }

    /// True if a whole interval went by while nothing but this process' own pause was in the way.
    fn was_missed(&self, due: MonoTime, level_at: MonoTime) -> bool {
        match self.pace() {
            Pace::Confirm | Pace::Follow => false,
            Pace::Recover | Pace::Steady => !self.skipped && due + self.interval() <= level_at,
        }
    }

    fn begin(&mut self, slot: SlotId, due: MonoTime, now: MonoTime) -> Option<Start> {
        self.turn = Turn::InFlight { started: now };
        self.skipped = false;
        let confirm = self.pace() == Pace::Confirm;
        let check = self.check()?;
        let timeout = if confirm { check.confirm_timeout } else { check.timeout };
        Some(Start { slot, target: Arc::clone(&self.target), role: self.role, due, timeout, confirm })
    }
}

/// The check of `role`, if `target` is to be asked it in its phase.
fn check_asked(target: &Target, role: Role) -> Option<&Check> {
    let checks = &target.checks;
    let asked = match target.phase {
        // Where nothing gates it, it is unready, not starting.
        Phase::Starting if checks.startup.is_none() => role == Role::Readiness,
        Phase::Starting => role == Role::Startup,
        Phase::Unready => role == Role::Readiness,
        Phase::Warming => matches!(role, Role::Readiness | Role::Warmup),
        Phase::Out | Phase::Serving => matches!(role, Role::Readiness | Role::Inference),
    };
    checks.get(role).filter(|_| asked)
}

/// Where on its grid an entry is: the same in every process with the same seed, evenly spread over all names.
fn place(key: &InstanceKey, role: Role, seed: u64) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(seed);
    for part in [key.cluster.as_str(), key.id.as_str(), role.as_str()] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    hash.digest()
}

#[cfg(test)]
mod tests;
