mod roles;

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::model::{Address, CheckKind, Checks, ClusterName, Epoch, InstanceId, MinFailingTime};

const MS: fn(u64) -> Duration = Duration::from_millis;
const NO_LIMIT: Prober = Prober { max_in_flight: 1_000_000, max_starts_per_second: 1_000_000 };

fn at(ms: u64) -> MonoTime {
    MonoTime::from_millis(ms)
}

fn check(role: Role, interval: u64, timeout: u64) -> Check {
    Check {
        role,
        kind: CheckKind::Tcp,
        interval: MS(interval),
        timeout: MS(timeout),
        budget: None,
        healthy_threshold: NonZeroU32::MIN,
        unhealthy_threshold: NonZeroU32::MIN,
        confirm_interval: MS(100),
        confirm_timeout: MS(timeout / 2),
        recover_interval: MS(1_000),
        min_failing_time: MinFailingTime { unreachable: MS(200), timeout: MS(1_000) },
    }
}

fn checks(interval: u64, timeout: u64) -> Arc<Checks> {
    Arc::new(Checks {
        startup: None,
        warmup: None,
        readiness: check(Role::Readiness, interval, timeout),
        inference: None,
    })
}

fn target(n: usize, phase: Phase, checks: &Arc<Checks>) -> Arc<Target> {
    Arc::new(Target {
        key: InstanceKey {
            cluster: ClusterName::new("pool").unwrap(),
            id: InstanceId::new(&format!("gpu-{n}")).unwrap(),
        },
        epoch: Epoch(1),
        address: "127.0.0.1:9".parse::<Address>().unwrap(),
        phase,
        checks: Arc::clone(checks),
    })
}

fn catalog(targets: impl IntoIterator<Item = Arc<Target>>) -> Arc<Catalog> {
    Arc::new(Catalog { targets: targets.into_iter().map(|t| (t.key.clone(), t)).collect() })
}

fn one(phase: Phase, checks: &Arc<Checks>) -> Arc<Catalog> {
    catalog([target(0, phase, checks)])
}

/// What the scheduler would do: time moves to the next thing that happens; every probe lasts as long as `lasts` says
/// and ends as it says.
struct Run<F> {
    table: Timetable,
    now: MonoTime,
    flying: BTreeMap<(MonoTime, SlotId), Outcome>,
    lasts: F,
    starts: Vec<(MonoTime, Start)>,
}

impl<F: FnMut(&Start) -> (Duration, Outcome)> Run<F> {
    fn new(limits: Prober, catalog: &Arc<Catalog>, lasts: F) -> Self {
        let mut table = Timetable::new(7, limits);
        table.reconcile(catalog, MonoTime::ZERO);
        Self { table, now: MonoTime::ZERO, flying: BTreeMap::new(), lasts, starts: Vec::new() }
    }

    fn reconcile(&mut self, catalog: &Arc<Catalog>) {
        let gone = self.table.reconcile(catalog, self.now);
        self.flying.retain(|(_, slot), _| !gone.contains(slot));
    }

    fn until(&mut self, end: MonoTime) {
        loop {
            while let Some(entry) = self.flying.first_entry()
                && entry.key().0 <= self.now
            {
                let ((_, slot), outcome) = entry.remove_entry();
                self.table.finish(slot, self.now, outcome);
            }
            while let Some(start) = self.table.start(self.now) {
                let (lasts, outcome) = (self.lasts)(&start);
                self.flying.insert((self.now + lasts, start.slot), outcome);
                self.starts.push((self.now, start));
            }
            let ends = self.flying.keys().next().map(|(at, _)| *at);
            let Some(next) = ends.into_iter().chain(self.table.wake_at()).min() else { break };
            assert!(
                next > self.now,
                "the table asks to be woken at {next:?}, which is not after {:?}",
                self.now
            );
            if next > end {
                break;
            }
            self.now = next;
        }
        self.now = self.now.max(end);
    }

    fn times(&self, n: usize) -> Vec<MonoTime> {
        let id = format!("gpu-{n}");
        self.starts.iter().filter(|(_, s)| s.target.key.id.as_str() == id).map(|(at, _)| *at).collect()
    }
}

fn quick(_: &Start) -> (Duration, Outcome) {
    (MS(2), Outcome::Ok)
}

#[test]
fn five_thousand_targets_added_at_once_are_spread_under_the_cap() {
    let checks = checks(1_000, 500);
    let fleet = catalog((0..5_000).map(|n| target(n, Phase::Out, &checks)));
    let limits = Prober { max_in_flight: 10_000, max_starts_per_second: 6_000 };
    let mut run = Run::new(limits, &fleet, quick);
    run.until(at(3_000));

    // First sweep: everybody once, and every twentieth of the interval has its twentieth of the fleet (±30%).
    let first_sweep: Vec<MonoTime> =
        run.starts.iter().map(|(at, _)| *at).take_while(|t| *t <= at(1_000)).collect();
    assert!((4_950..=5_000).contains(&first_sweep.len()), "{}", first_sweep.len());
    for part in 0..20 {
        let share = first_sweep.iter().filter(|t| **t > at(part * 50) && **t <= at((part + 1) * 50)).count();
        assert!((175..=325).contains(&share), "{share} of 250 in part {part}");
    }
    // The cap holds in any second.
    for (i, (first, _)) in run.starts.iter().enumerate() {
        if let Some((last, _)) = run.starts.get(i + 6_000) {
            assert!(last.since(*first) >= MS(1_000));
        }
    }
}

#[test]
fn under_a_cap_below_the_demand_everybody_is_asked_in_turn() {
    let checks = checks(1_000, 500);
    let fleet = catalog((0..500).map(|n| target(n, Phase::Serving, &checks)));
    let mut run = Run::new(Prober { max_in_flight: 1_000, max_starts_per_second: 100 }, &fleet, quick);
    run.until(at(20_000));
    for n in 0..500 {
        let times = run.times(n);
        assert!((3..=4).contains(&times.len()), "gpu-{n} was asked {} times", times.len());
    }
}

#[test]
fn black_holes_do_not_move_a_single_start_of_the_others() {
    let checks = checks(1_000, 900);
    let fleet = catalog((0..100).map(|n| target(n, Phase::Serving, &checks)));
    let starts_with = |hole: bool| {
        let mut run = Run::new(NO_LIMIT, &fleet, |start: &Start| {
            let stuck = hole && start.target.key.id.as_str() == "gpu-0";
            if stuck { (start.timeout, Outcome::Timeout) } else { quick(start) }
        });
        run.until(at(60_000));
        (1..100).map(|n| run.times(n)).collect::<Vec<_>>()
    };
    assert_eq!(starts_with(false), starts_with(true));
}

#[test]
fn a_serving_target_that_dies_is_confirmed_at_the_confirm_pace_until_it_leaves() {
    let checks = checks(5_000, 1_000);
    let mut run =
        Run::new(NO_LIMIT, &one(Phase::Serving, &checks), |_: &Start| (MS(1), Outcome::Unreachable));
    run.until(at(6_000));
    let (first, rest) = run.starts.split_first().unwrap();
    assert!(!first.1.confirm && first.1.timeout == MS(1_000));
    assert!(rest.len() > 8);
    let mut last = first.0;
    for (at, start) in rest {
        assert!(start.confirm && start.timeout == MS(500));
        assert_eq!(at.since(last), MS(101), "100 ms after the end of the last");
        last = *at;
    }
    // Ejected: back to the slow pace.
    run.starts.clear();
    run.reconcile(&one(Phase::Out, &checks));
    run.until(at(16_000));
    assert!((9..=11).contains(&run.starts.len()), "{}", run.starts.len());
    assert!(run.starts.iter().all(|(_, s)| !s.confirm && s.timeout == MS(1_000)));
}

#[test]
fn an_answer_ends_the_confirming_and_the_old_grid_goes_on() {
    let checks = checks(5_000, 1_000);
    let mut asked = 0;
    let mut run = Run::new(NO_LIMIT, &one(Phase::Serving, &checks), move |_: &Start| {
        asked += 1;
        (MS(1), if asked == 2 { Outcome::Timeout } else { Outcome::Ok })
    });
    run.until(at(21_000));
    let times = run.times(0);
    assert_eq!(times[1].since(times[0]), MS(5_000));
    assert_eq!(times[2].since(times[1]), MS(101));
    assert_eq!(times[3].since(times[1]), MS(5_000), "the cadence has not moved");
}

#[test]
fn our_own_fault_neither_starts_nor_ends_the_confirming() {
    let checks = checks(5_000, 1_000);
    let mut asked = 0;
    let mut run = Run::new(NO_LIMIT, &one(Phase::Serving, &checks), move |_: &Start| {
        asked += 1;
        let outcome = match asked {
            2 => Outcome::Unreachable,
            4 => Outcome::Ok,
            _ => Outcome::Unknown,
        };
        (MS(1), outcome)
    });
    run.until(at(12_000));
    let confirms: Vec<bool> = run.starts.iter().map(|(_, s)| s.confirm).collect();
    assert_eq!(confirms[..4], [false, false, true, true]);
    assert_eq!(run.starts[3].0.since(run.starts[2].0), MS(101), "no hot loop");
    assert!(!confirms[4..].contains(&true));
}

#[test]
fn a_failure_seen_before_the_phase_arrives_is_confirmed_when_it_arrives() {
    let checks = checks(5_000, 1_000);
    let mut run = Run::new(NO_LIMIT, &one(Phase::Out, &checks), |_: &Start| (MS(1), Outcome::Unreachable));
    run.until(at(3_000));
    let failed = run.starts.last().unwrap().0 + MS(1);
    run.starts.clear();
    run.reconcile(&one(Phase::Serving, &checks));
    run.until(at(3_000) + MS(101));
    let (first, start) = &run.starts[0];
    assert!(start.confirm);
    assert_eq!(*first, (failed + MS(100)).max(at(3_000)));

    // And a catalog that changes nothing for it does not postpone what is due.
    let due = run.table.wake_at();
    run.reconcile(&one(Phase::Serving, &checks));
    assert_eq!(run.table.wake_at(), due);
}

#[test]
fn startup_gates_readiness() {
    let gated = Arc::new(Checks {
        startup: Some(check(Role::Startup, 10_000, 500)),
        warmup: None,
        inference: None,
        readiness: check(Role::Readiness, 500, 400),
    });
    let mut run =
        Run::new(NO_LIMIT, &one(Phase::Starting, &gated), |_: &Start| (MS(1), Outcome::Unreachable));
    run.until(at(5_000));
    assert_eq!(run.starts.len(), 5, "at the recover interval");
    assert!(run.starts.iter().all(|(_, s)| s.role == Role::Startup && !s.confirm));
    run.starts.clear();
    run.reconcile(&one(Phase::Out, &gated));
    run.until(at(7_000));
    assert!(run.starts.iter().all(|(_, s)| s.role == Role::Readiness));
    assert_eq!(run.starts.len(), 2);
    assert_eq!(run.table.len(), 1);

    let ungated = checks(1_000, 500);
    let mut run = Run::new(NO_LIMIT, &one(Phase::Starting, &ungated), quick);
    run.until(at(2_000));
    assert!(run.starts.len() == 2 && run.starts.iter().all(|(_, s)| s.role == Role::Readiness));
}

#[test]
fn after_a_pause_of_the_process_nothing_is_made_up_for() {
    let checks = checks(1_000, 500);
    let fleet = catalog((0..1_000).map(|n| target(n, Phase::Serving, &checks)));
    let mut run = Run::new(NO_LIMIT, &fleet, quick);
    run.until(at(3_000));
    run.starts.clear();
    let cut_off = run.flying.len();
    run.now = at(63_500);
    run.until(at(63_500));
    assert!(cut_off < 10);
    assert!(run.starts.len() <= cut_off, "{} probes at once, {cut_off} were in flight", run.starts.len());
    run.until(at(64_500));
    assert!(run.starts.len() - 1_000 <= cut_off);
    assert!(run.starts.iter().all(|(at, s)| *at == s.due));
}

#[test]
fn another_registration_or_question_replaces_the_probe_in_flight_and_another_phase_does_not() {
    let base = checks(1_000, 500);
    let mut table = Timetable::new(7, NO_LIMIT);
    table.reconcile(&one(Phase::Serving, &base), at(0));
    let slot = table.start(at(1_000)).unwrap().slot;
    assert!(table.start(at(5_000)).is_none(), "in flight: not again");
    assert!(table.reconcile(&one(Phase::Out, &base), at(1_000)).is_empty());
    assert!(table.reconcile(&one(Phase::Out, &checks(1_000, 500)), at(1_000)).is_empty(), "equal checks");
    assert_eq!(table.reconcile(&one(Phase::Out, &checks(1_000, 400)), at(1_000)), [slot]);
    assert_eq!(table.len(), 1);
    table.finish(slot, at(1_100), Outcome::Unreachable);
    let next = table.start(at(2_000)).unwrap().slot;
    assert_ne!(next, slot);
    let mut other = Target::clone(&target(0, Phase::Out, &checks(1_000, 400)));
    other.epoch = Epoch(2);
    assert_eq!(table.reconcile(&catalog([Arc::new(other)]), at(2_000)), [next]);
    assert_eq!(table.reconcile(&catalog([]), at(2_000)).len(), 1);
    assert!(table.is_empty() && table.wake_at().is_none() && table.in_flight == 0);
}

#[test]
fn the_same_name_has_the_same_place_under_the_same_seed_only() {
    let key = target(1, Phase::Out, &checks(1, 1)).key.clone();
    assert_eq!(place(&key, Role::Readiness, 1), place(&key, Role::Readiness, 1));
    assert_ne!(place(&key, Role::Readiness, 1), place(&key, Role::Readiness, 2));
    assert_ne!(place(&key, Role::Readiness, 1), place(&key, Role::Startup, 1));
}

fn phases() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Starting),
        Just(Phase::Unready),
        Just(Phase::Warming),
        Just(Phase::Out),
        Just(Phase::Serving),
    ]
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Ok),
        1 => Just(Outcome::Timeout),
        1 => Just(Outcome::Unreachable),
        1 => Just(Outcome::Unhealthy),
        1 => Just(Outcome::Unknown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is added, removed, re-phased and answered: never early, never twice at once, never above a limit,
    /// and everybody gets a turn.
    #[test]
    fn the_rules_hold_in_every_history(
        catalogs in proptest::collection::vec(proptest::collection::btree_map(0_usize..12, phases(), 1..12), 1..8),
        ends in proptest::collection::vec((1_u64..900, outcomes()), 1..50),
        cap in 20_u32..400,
        max_in_flight in 4_usize..20,
    ) {
        let checks = roles::all(700, 900);
        let limits = Prober { max_in_flight, max_starts_per_second: cap };
        let mut turn = 0;
        let mut run = Run::new(limits, &catalog([]), |start: &Start| {
            turn += 1;
            let (ms, outcome) = ends[turn % ends.len()];
            (MS(ms).min(start.timeout), outcome)
        });
        for phases in &catalogs {
            run.reconcile(&catalog(phases.iter().map(|(n, phase)| target(*n, *phase, &checks))));
            let from = run.now;
            let before = run.starts.len();
            run.until(from + MS(9_000));
            for n in phases.keys() {
                let id = format!("gpu-{n}");
                let turns = run.starts[before..].iter().filter(|(_, s)| s.target.key.id.as_str() == id).count();
                prop_assert!(turns >= 1, "{id} starved");
            }
            prop_assert!(run.flying.len() <= max_in_flight);
            prop_assert_eq!(run.table.in_flight, run.flying.len());
            let asked = |phase: &Phase| if matches!(phase, Phase::Starting | Phase::Unready) { 1 } else { 2 };
            prop_assert_eq!(run.table.len(), phases.values().map(asked).sum::<usize>());
        }
        let mut busy: HashMap<SlotId, MonoTime> = HashMap::new();
        let mut turn = 0;
        for (i, (now, start)) in run.starts.iter().enumerate() {
            turn += 1;
            let ended = *now + MS(ends[turn % ends.len()].0).min(start.timeout);
            prop_assert!(start.due <= *now, "early");
            if let Some(free) = busy.insert(start.slot, ended) {
                prop_assert!(free <= *now, "twice at once");
            }
            if let Some((last, _)) = run.starts.get(i + cap as usize) {
                prop_assert!(last.since(*now) >= MS(1_000), "above the cap");
            }
        }
    }
}

#[test]
fn a_serving_target_that_hangs_up_is_asked_at_once_until_that_has_meant_nothing() {
    let dead = std::cell::Cell::new(false);
    let says = |_: &Start| (MS(2), if dead.get() { Outcome::Unreachable } else { Outcome::Ok });
    let serving = one(Phase::Serving, &checks(10_000, 500));
    let mut run = Run::new(NO_LIMIT, &serving, says);
    run.until(at(30_000));
    let slot = run.starts[0].1.slot;
    let before = run.starts.len();
    run.table.hung_up(slot, run.now);
    run.until(at(30_001));
    assert_eq!(run.starts.len(), before + 1, "asked at once");
    run.until(at(30_010));
    for _ in 0..5 {
        run.table.hung_up(slot, run.now);
    }
    run.until(at(30_100));
    assert_eq!(run.starts.len(), before + 1, "it lives: it closes connections that nobody uses");
    dead.set(true);
    run.until(at(45_000));
    dead.set(false);
    run.until(at(46_000));
    let before = run.starts.len();
    run.table.hung_up(slot, run.now);
    run.until(at(46_001));
    assert_eq!(run.starts.len(), before + 1, "one that has been dead is believed again");
    // The grid is what it was.
    let places: Vec<_> = run.times(0).iter().map(|at| at.since_start().as_millis() % 10_000).collect();
    run.until(at(75_000));
    assert_eq!(run.times(0).last().unwrap().since_start().as_millis() % 10_000, places[0]);
}

#[test]
fn who_does_not_serve_hangs_up_as_it_likes() {
    let mut run = Run::new(NO_LIMIT, &one(Phase::Out, &checks(10_000, 500)), quick);
    run.until(at(2_500));
    let (slot, before) = (run.starts[0].1.slot, run.starts.len());
    run.table.hung_up(slot, run.now);
    run.until(at(2_501));
    assert_eq!(run.starts.len(), before);
    run.table.hung_up(SlotId(4_711), run.now);
}
