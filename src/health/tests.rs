mod inference;

use proptest::prelude::*;

use super::{InstanceHealth, State};
use crate::model::{Checks, Detail, Epoch, Outcome, Phase, Role};
use crate::testing::model::{at, checks, damping, key, ms, observation};

/// Drives one lifetime: each step starts `gap` ms after the last one ended.
struct Run {
    health: InstanceHealth,
    checks: Checks,
    clock: u64,
}

impl Run {
    fn new(checks: Checks, adoptable: bool) -> Self {
        Self { health: InstanceHealth::new(&checks, adoptable), checks, clock: 0 }
    }

    fn see(&mut self, role: Role, outcome: Outcome, gap: u64, took: u64) -> &State {
        self.see_with(role, outcome, Detail::None, gap, took)
    }

    fn see_with(&mut self, role: Role, outcome: Outcome, detail: Detail, gap: u64, took: u64) -> &State {
        let started = self.clock + gap;
        let mut seen = observation(&key("c", "i"), Epoch(1), role, outcome, started, took);
        // Who is slow has generated something, but for "too many requests".
        seen.timings.first_token = (detail != Detail::Status(429)).then_some(seen.timings.total);
        seen.detail = detail;
        self.clock = started + took;
        self.health.step(&seen, &self.checks, damping());
        self.health.state()
    }

    fn ready(&mut self, outcome: Outcome) -> &State {
        self.see(Role::Readiness, outcome, 1000, 1)
    }

    fn serving() -> Self {
        let mut run = Self::new(checks(false), true);
        assert_eq!(*run.ready(Outcome::Ok), State::Serving);
        run
    }
}

#[test]
fn an_instance_that_runs_at_first_sight_is_adopted_on_one_answer() {
    let mut run = Run::new(checks(false), true);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

#[test]
fn a_new_instance_needs_the_healthy_threshold() {
    let mut run = Run::new(checks(false), false);
    assert_eq!(*run.ready(Outcome::Ok), State::Warming);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

#[test]
fn one_that_failed_at_first_sight_was_not_running_and_needs_the_threshold() {
    let mut run = Run::new(checks(false), true);
    run.ready(Outcome::Unhealthy);
    assert_eq!(*run.ready(Outcome::Ok), State::Warming);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

#[test]
fn startup_gates_readiness_and_is_over_once_passed() {
    let mut run = Run::new(checks(true), true);
    assert_eq!(run.health.phase(), Phase::Starting);
    assert_eq!(*run.ready(Outcome::Ok), State::Starting);
    for _ in 0..100 {
        run.see(Role::Startup, Outcome::Timeout, 1000, 500);
    }
    assert_eq!(*run.health.state(), State::Starting, "a timeout while starting means still loading");
    assert_eq!(*run.see(Role::Startup, Outcome::Ok, 1000, 1), State::Warming);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
    for _ in 0..10 {
        run.see(Role::Startup, Outcome::Unreachable, 1000, 1);
    }
    assert_eq!(*run.health.state(), State::Serving, "a late startup answer changes nothing");
}

#[test]
fn three_explicit_noes_in_a_row_eject_and_two_yeses_bring_back() {
    let mut run = Run::serving();
    run.ready(Outcome::Unhealthy);
    run.ready(Outcome::Unhealthy);
    run.ready(Outcome::Ok); // breaks the run
    run.ready(Outcome::Unhealthy);
    assert_eq!(*run.ready(Outcome::Unhealthy), State::Serving);
    assert!(matches!(run.ready(Outcome::Unhealthy), State::Ejected { outcome: Outcome::Unhealthy, .. }));
    run.ready(Outcome::Ok);
    assert!(
        matches!(run.ready(Outcome::Unhealthy), State::Ejected { .. }),
        "an interleaved no resets the way back"
    );
    run.ready(Outcome::Ok);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

#[test]
fn one_that_goes_to_and_fro_must_stay_well_for_longer_each_time() {
    let mut run = Run::serving();
    // Down, and up again: the number of good answers, a second apart, that each return took.
    let mut returns = |calm: usize| {
        for _ in 0..calm {
            run.ready(Outcome::Ok);
        }
        for _ in 0..3 {
            run.ready(Outcome::Unhealthy);
        }
        (1..100).find(|_| *run.ready(Outcome::Ok) == State::Serving).unwrap()
    };
    assert_eq!([0, 5, 5, 5, 5, 5, 5].map(&mut returns), [2, 7, 12, 22, 42, 62, 62]);
    assert_eq!([60, 5].map(&mut returns), [2, 7], "a calm minute makes up for everything");
}

#[test]
fn one_that_toggles_every_second_is_pushed_a_bounded_number_of_times() {
    // Case 92: for ten minutes, with an admission on every good answer and an ejection on every bad one.
    let mut checks = checks(false);
    checks.readiness.healthy_threshold = std::num::NonZeroU32::MIN;
    checks.readiness.unhealthy_threshold = std::num::NonZeroU32::MIN;
    let mut run = Run::new(checks, true);
    let mut moves = 0;
    for second in 0..600 {
        let before = run.health.state() == &State::Serving;
        let outcome = if second % 2 == 0 { Outcome::Ok } else { Outcome::Unhealthy };
        moves += usize::from((*run.ready(outcome) == State::Serving) != before);
    }
    assert!(moves <= 4, "{moves}");
    assert!(run.health.reason().to_string().contains("unhealthy"), "{}", run.health.reason());
}

#[test]
fn a_kill_is_confirmed_in_two_tenths_of_a_second() {
    let mut run = Run::serving();
    run.see(Role::Readiness, Outcome::Unreachable, 1000, 0);
    assert_eq!(*run.see(Role::Readiness, Outcome::Unreachable, 100, 0), State::Serving);
    let since = at(run.clock + 100);
    assert_eq!(
        *run.see(Role::Readiness, Outcome::Unreachable, 100, 0),
        State::Ejected { since, role: Role::Readiness, outcome: Outcome::Unreachable, detail: Detail::None }
    );
}

#[test]
fn many_refusals_within_the_minimum_time_eject_nobody() {
    let mut run = Run::serving();
    for _ in 0..19 {
        assert_eq!(*run.see(Role::Readiness, Outcome::Unreachable, 10, 0), State::Serving);
    }
    assert_eq!(*run.see(Role::Readiness, Outcome::Ok, 10, 1), State::Serving);
}

#[test]
fn a_pause_of_eight_tenths_of_a_second_ejects_nobody() {
    // The first probe hits the pause at once: 500 ms, then a confirming one of 250 ms; the third gets its answer.
    let mut run = Run::serving();
    run.see(Role::Readiness, Outcome::Timeout, 1000, 500);
    assert_eq!(*run.see(Role::Readiness, Outcome::Timeout, 100, 200), State::Serving);
    assert_eq!(*run.see(Role::Readiness, Outcome::Ok, 100, 1), State::Serving);
    // Quick timeouts do not add up to a verdict before a second has passed.
    for _ in 0..5 {
        assert_eq!(*run.see(Role::Readiness, Outcome::Timeout, 50, 50), State::Serving);
    }
    run.see(Role::Readiness, Outcome::Timeout, 50, 500);
    assert!(matches!(run.health.state(), State::Ejected { outcome: Outcome::Timeout, .. }));
}

#[test]
fn outcomes_about_the_prober_move_nothing_and_break_no_run() {
    let mut run = Run::serving();
    for about_us in [Outcome::Misconfigured, Outcome::Unknown] {
        for _ in 0..50 {
            assert_eq!(*run.ready(about_us), State::Serving);
        }
        let mut new = Run::new(checks(false), true);
        for _ in 0..50 {
            assert_eq!(*new.ready(about_us), State::Warming);
        }
        assert!(!new.health.has_verdict(), "nobody is admitted or condemned by it");
    }
    run.ready(Outcome::Unhealthy);
    run.ready(Outcome::Unknown);
    run.ready(Outcome::Unhealthy);
    run.ready(Outcome::Misconfigured);
    assert!(matches!(run.ready(Outcome::Unhealthy), State::Ejected { .. }));
}

#[test]
fn a_4xx_is_about_the_question_until_the_check_has_passed_once() {
    for detail in [Detail::Status(404), Detail::Redirect(302)] {
        let mut new = Run::new(checks(false), true);
        for _ in 0..10 {
            new.see_with(Role::Readiness, Outcome::Unhealthy, detail.clone(), 1000, 1);
        }
        assert!(!new.health.has_verdict(), "{detail}");
        let mut run = Run::serving();
        for _ in 0..3 {
            run.see_with(Role::Readiness, Outcome::Unhealthy, detail.clone(), 1000, 1);
        }
        assert!(
            matches!(run.health.state(), State::Ejected { .. }),
            "a lost model is an explicit no: {detail}"
        );
    }
}

#[test]
fn a_changed_check_cannot_eject_by_its_own_mistake() {
    let mut run = Run::serving();
    run.ready(Outcome::Unhealthy);
    run.ready(Outcome::Unhealthy);
    run.health.reconfigured(&checks(false));
    assert_eq!(*run.ready(Outcome::Unhealthy), State::Serving, "old failures answered another question");
    for _ in 0..10 {
        run.see_with(Role::Readiness, Outcome::Unhealthy, Detail::Status(404), 1000, 1);
    }
    assert_eq!(*run.health.state(), State::Serving);
}

#[test]
fn a_startup_check_that_is_removed_gates_no_longer() {
    let mut run = Run::new(checks(true), true);
    run.checks = checks(false);
    run.health.reconfigured(&checks(false));
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

#[test]
fn slow_answers_lower_the_weight_and_never_eject() {
    let mut run = Run::serving();
    run.ready(Outcome::Slow);
    run.ready(Outcome::Slow);
    assert!(!run.health.is_slow());
    for _ in 0..100 {
        assert_eq!(*run.ready(Outcome::Slow), State::Serving);
    }
    assert!(run.health.is_slow());
    run.ready(Outcome::Ok);
    assert!(run.health.is_slow());
    run.ready(Outcome::Ok);
    assert!(!run.health.is_slow());
}

#[test]
fn an_ejected_instance_comes_back_on_any_answers() {
    let mut run = Run::serving();
    for _ in 0..3 {
        run.ready(Outcome::Unhealthy);
    }
    run.ready(Outcome::Slow);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Ok),
        1 => Just(Outcome::Slow),
        3 => Just(Outcome::Timeout),
        3 => Just(Outcome::Unhealthy),
        3 => Just(Outcome::Unreachable),
        1 => Just(Outcome::Misconfigured),
        1 => Just(Outcome::Unknown),
    ]
}

fn log() -> impl Strategy<Value = Vec<(Role, Outcome, u64, u64)>> {
    let role = prop_oneof![
        1 => Just(Role::Startup), 2 => Just(Role::Warmup), 4 => Just(Role::Readiness), 3 => Just(Role::Inference),
    ];
    proptest::collection::vec((role, outcomes(), 0..1500u64, 0..500u64), 1..80)
}

const fn goodness(state: &State) -> u8 {
    match state {
        State::Starting => 0,
        State::Warming | State::Ejected { .. } => 1,
        State::Serving => 2,
    }
}

proptest! {
    #[test]
    fn every_move_has_its_evidence(log in log(), startup: bool, adoptable: bool) {
        let mut run = Run::new(checks(startup), adoptable);
        let mut failures = 0;
        let mut answers = 0;
        for (role, outcome, gap, took) in log {
            let before = run.health.state().clone();
            let counts = role == Role::Readiness && before != State::Starting;
            match outcome {
                Outcome::Ok | Outcome::Slow if counts => { answers += 1; failures = 0; }
                Outcome::Timeout | Outcome::Unhealthy | Outcome::Unreachable if counts => { failures += 1; answers = 0; }
                _ => {}
            }
            let after = run.see(role, outcome, gap, took).clone();
            match (&before, &after) {
                (a, b) if a == b => {}
                (State::Starting, State::Warming) => prop_assert!(role == Role::Startup),
                (State::Serving, State::Ejected { .. }) => {
                    prop_assert!(role == Role::Readiness && failures >= 3);
                }
                (State::Ejected { .. }, State::Serving) => prop_assert!(answers >= 2),
                (State::Warming, State::Serving) => {
                    let needed = if adoptable { 1 } else { 2 };
                    prop_assert!(answers >= needed);
                }
                (a, b) => prop_assert!(false, "no such move: {a:?} to {b:?}"),
            }
        }
    }

    #[test]
    fn a_success_in_place_of_a_failure_never_ends_worse(
        log in log(), at in 0usize..80, startup: bool, inference: bool, warmup: bool, adoptable: bool,
    ) {
        // An earlier end of startup lets more failures count, and one that fails its first readiness is admitted by its
        // warm-up instead of by its inference.
        let warmup = warmup && !(adoptable && inference);
        let at = at % log.len();
        prop_assume!(log[at].0 != Role::Startup);
        let replay = |log: &[(Role, Outcome, u64, u64)]| {
            let mut run = Run::new(inference::checks(startup, warmup, inference), adoptable);
            log.iter().map(|&(role, outcome, gap, took)| goodness(run.see(role, outcome, gap, took))).last()
        };
        let mut better = log.clone();
        better[at].1 = Outcome::Ok;
        prop_assert!(replay(&better) >= replay(&log));
    }

    #[test]
    fn a_failing_run_shorter_than_the_minimum_ejects_nobody(took in proptest::collection::vec(0u64..30, 1..40)) {
        let mut run = Run::serving();
        let began = run.clock + 10;
        for took in took {
            run.see(Role::Readiness, Outcome::Unreachable, 10, took);
            let spans = ms(run.clock - began) >= ms(200);
            prop_assert!(spans || *run.health.state() == State::Serving);
        }
    }
}
