//! Real completions: before the first traffic, and instead of trusting a `/health` that says 200.

use std::num::NonZeroU32;

use super::*;
use crate::model::{Check, Reason, Stage, Warmup};
use crate::testing::model::check;

const fn n(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// Two failures in a row are enough for an inference; warm-ups want three prompts, the last two within a second.
pub(super) fn checks(startup: bool, warmup: bool, inference: bool) -> Checks {
    Checks {
        warmup: warmup.then(|| Warmup {
            check: check(Role::Warmup),
            prompts: n(3),
            last: n(2),
            expect_latency: ms(1_000),
        }),
        inference: inference.then(|| Check { unhealthy_threshold: n(2), ..check(Role::Inference) }),
        ..crate::testing::model::checks(startup)
    }
}

impl Run {
    fn infer(&mut self, outcome: Outcome) -> &State {
        self.see(Role::Inference, outcome, 5_000, 1)
    }

    fn prompt(&mut self, outcome: Outcome, took: u64) -> &State {
        self.see(Role::Warmup, outcome, 1, took)
    }

    fn inferring() -> Self {
        let mut run = Self::new(checks(false, false, true), true);
        run.ready(Outcome::Ok);
        assert_eq!(*run.infer(Outcome::Ok), State::Serving);
        run
    }

    fn warming() -> Self {
        let mut run = Self::new(checks(false, true, true), false);
        assert_eq!(run.health.phase(), Phase::Unready);
        run.ready(Outcome::Ok);
        run.ready(Outcome::Ok);
        assert_eq!(run.health.phase(), Phase::Warming);
        run
    }
}

#[test]
fn a_running_instance_is_taken_over_on_readiness_and_one_inference_without_a_warmup() {
    let mut run = Run::new(checks(false, true, true), true);
    assert_eq!(*run.ready(Outcome::Ok), State::Warming);
    assert_eq!(run.health.phase(), Phase::Out, "readiness alone admits nobody");
    assert!(!run.health.has_verdict());
    assert_eq!(*run.infer(Outcome::Ok), State::Serving);
    assert_eq!(run.health.reason(), Reason::Passing);
}

#[test]
fn a_running_instance_that_cannot_generate_is_ejected_and_not_warmed_up() {
    // Not absent: after a restart of ours in the worst of times, the guard must have a say in who is taken out.
    let mut run = Run::new(checks(false, true, true), true);
    run.ready(Outcome::Ok);
    run.infer(Outcome::Timeout);
    assert!(*run.health.state() == State::Warming && !run.health.has_verdict());
    assert!(matches!(run.infer(Outcome::Timeout), State::Ejected { role: Role::Inference, .. }));
    run.infer(Outcome::Ok);
    assert_eq!(*run.infer(Outcome::Ok), State::Serving);
}

#[test]
fn one_that_was_not_ready_at_first_sight_was_not_running_and_is_warmed_up() {
    let mut run = Run::new(checks(false, true, true), true);
    run.ready(Outcome::Unhealthy);
    run.ready(Outcome::Ok);
    run.ready(Outcome::Ok);
    assert_eq!(run.health.phase(), Phase::Warming);
}

#[test]
fn a_new_instance_serves_only_after_an_answered_inference() {
    // Case 41: `/health` says 200 a moment before the model answers.
    let mut run = Run::new(checks(false, false, true), false);
    for _ in 0..10 {
        run.ready(Outcome::Ok);
        assert_eq!(*run.infer(Outcome::Unhealthy), State::Warming);
    }
    assert!(matches!(run.health.reason(), Reason::NotReady(Role::Inference, Outcome::Unhealthy, _)));
    run.infer(Outcome::Ok);
    assert_eq!(*run.infer(Outcome::Ok), State::Serving);
}

#[test]
fn a_warmup_ends_when_the_last_prompts_were_in_time() {
    // Case 43: 30 s, 10 s, 2 s, 0.2 s, 0.2 s.
    let mut run = Run::warming();
    for slow in [30_000, 10_000, 2_000] {
        assert_eq!(*run.prompt(Outcome::Ok, slow), State::Warming);
    }
    assert_eq!(*run.prompt(Outcome::Ok, 200), State::Warming);
    assert_eq!(run.health.reason(), Reason::Warming { answered: 4, in_time: 1 });
    assert_eq!(*run.prompt(Outcome::Ok, 200), State::Serving);
    assert_eq!(run.health.phase(), Phase::Serving);
}

#[test]
fn quick_answers_alone_do_not_shorten_a_warmup() {
    let mut run = Run::warming();
    run.prompt(Outcome::Ok, 10);
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Warming, "three prompts at least");
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Serving);
}

#[test]
fn a_failure_breaks_the_row_and_condemns_nobody() {
    let mut run = Run::warming();
    for _ in 0..20 {
        run.prompt(Outcome::Ok, 10);
        for outcome in [Outcome::Timeout, Outcome::Unhealthy, Outcome::Unreachable] {
            assert_eq!(*run.prompt(outcome, 500), State::Warming);
        }
    }
    assert!(matches!(run.health.reason(), Reason::NotReady(Role::Warmup, Outcome::Unreachable, _)));
    run.prompt(Outcome::Ok, 10);
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Serving);
}

#[test]
fn too_many_requests_is_no_answered_prompt() {
    let mut run = Run::warming();
    for _ in 0..10 {
        run.see_with(Role::Warmup, Outcome::Slow, Detail::Status(429), 1, 1);
    }
    run.prompt(Outcome::Ok, 10);
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Warming);
}

#[test]
fn an_instance_that_is_no_longer_ready_is_not_warmed_up_further() {
    let mut run = Run::warming();
    run.prompt(Outcome::Ok, 10);
    run.prompt(Outcome::Ok, 10);
    for _ in 0..3 {
        run.ready(Outcome::Unhealthy);
    }
    assert_eq!(run.health.phase(), Phase::Unready);
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Warming, "a late answer");
    run.ready(Outcome::Ok);
    run.ready(Outcome::Ok);
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Warming, "the row begins anew");
    assert_eq!(*run.prompt(Outcome::Ok, 10), State::Serving);
}

#[test]
fn a_stalled_inference_ejects_though_health_says_200() {
    // Case 1.
    let mut run = Run::inferring();
    let stuck = Detail::Stuck(Stage::FirstToken);
    for _ in 0..2 {
        assert_eq!(*run.health.state(), State::Serving);
        for _ in 0..5 {
            run.ready(Outcome::Ok);
        }
        run.see_with(Role::Inference, Outcome::Timeout, stuck.clone(), 5_000, 10_000);
    }
    assert!(matches!(run.health.state(), State::Ejected { role: Role::Inference, .. }));
    assert_eq!(run.health.reason().to_string(), "inference timeout: no first token by the deadline");
    for _ in 0..100 {
        assert_ne!(*run.ready(Outcome::Ok), State::Serving, "never outvoted");
    }
    run.infer(Outcome::Ok);
    assert_eq!(*run.infer(Outcome::Ok), State::Serving);
}

#[test]
fn a_process_that_came_back_must_generate_again() {
    let mut run = Run::inferring();
    for _ in 0..3 {
        run.ready(Outcome::Unreachable);
    }
    assert_eq!(run.health.phase(), Phase::Out);
    run.ready(Outcome::Ok);
    run.ready(Outcome::Ok);
    assert!(matches!(run.health.state(), State::Ejected { role: Role::Readiness, .. }), "only ready");
    assert_eq!(*run.infer(Outcome::Ok), State::Serving);
}

#[test]
fn a_slow_inference_lowers_the_weight() {
    let mut run = Run::inferring();
    let late = Detail::Late(Stage::FirstToken);
    for _ in 0..2 {
        assert!(!run.health.is_slow());
        run.see_with(Role::Inference, Outcome::Slow, late.clone(), 5_000, 1);
    }
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
    assert!(run.health.is_slow());
    assert_eq!(run.health.reason().to_string(), "inference slow: first token over its budget");
}

#[test]
fn a_check_that_is_taken_away_ejects_nobody_any_more() {
    let mut run = Run::inferring();
    run.infer(Outcome::Unhealthy);
    run.infer(Outcome::Unhealthy);
    assert!(matches!(run.health.state(), State::Ejected { .. }));
    run.checks = checks(false, false, false);
    run.health.reconfigured(&checks(false, false, false));
    run.infer(Outcome::Unhealthy);
    assert_eq!(*run.ready(Outcome::Ok), State::Serving);
}

proptest! {
    #[test]
    fn nobody_serves_without_what_was_asked_for(log in log(), startup: bool, warmup: bool, adoptable: bool) {
        let mut run = Run::new(checks(startup, warmup, true), adoptable);
        let (mut inferred, mut failures, mut most, mut prompts) = (false, 0, 0, 0);
        for (role, outcome, gap, took) in log {
            let before = run.health.state().clone();
            let phase = run.health.phase();
            let answer = matches!(outcome, Outcome::Ok | Outcome::Slow);
            let failure = matches!(outcome, Outcome::Timeout | Outcome::Unhealthy | Outcome::Unreachable);
            match role {
                Role::Inference if before != State::Starting => {
                    inferred |= answer;
                    failures = if failure { failures + 1 } else if answer { 0 } else { failures };
                    most = most.max(failures);
                }
                Role::Warmup if phase == Phase::Warming && outcome == Outcome::Ok => prompts += 1,
                _ => {}
            }
            let after = run.see(role, outcome, gap, took).clone();
            match (&before, &after) {
                (State::Warming, State::Serving) if warmup && prompts > 0 => prop_assert!(prompts >= 2),
                (State::Warming, State::Serving) => prop_assert!(inferred && (!warmup || adoptable)),
                (State::Warming, State::Ejected { role, .. }) => {
                    // Failures from before it was ready count too.
                    prop_assert!(adoptable && *role == Role::Inference && failures >= 1 && most >= 2);
                }
                (State::Serving, State::Ejected { role: Role::Inference, .. }) => prop_assert!(failures >= 2),
                (State::Ejected { .. }, State::Serving) => prop_assert!(inferred && failures == 0),
                _ => {}
            }
        }
    }
}

#[test]
fn one_that_stalled_does_not_come_back_on_too_many_requests() {
    let mut run = Run::inferring();
    for _ in 0..4 {
        run.see(Role::Inference, Outcome::Timeout, 5_000, 5_000);
    }
    assert!(matches!(run.health.state(), State::Ejected { .. }), "{:?}", run.health.state());
    // Its queue is full, because it stalls: it says 429 in no time, and has generated nothing.
    for _ in 0..10 {
        run.see_with(Role::Inference, Outcome::Slow, Detail::Status(429), 5_000, 2);
        run.ready(Outcome::Ok);
    }
    assert!(matches!(run.health.state(), State::Ejected { .. }), "{:?}", run.health.state());
}

#[test]
fn one_that_was_busy_before_we_looked_is_taken_over_busy() {
    // After a restart of ours: to leave it out would be to eject it past the guard.
    let mut run = Run::new(checks(false, false, true), true);
    run.ready(Outcome::Ok);
    let state = run.see_with(Role::Inference, Outcome::Slow, Detail::Status(429), 1_000, 2).clone();
    assert_eq!(state, State::Serving);
    // A new one has to generate first.
    let mut run = Run::new(checks(false, false, true), false);
    for _ in 0..5 {
        run.ready(Outcome::Ok);
        run.see_with(Role::Inference, Outcome::Slow, Detail::Status(429), 1_000, 2);
    }
    assert_eq!(*run.health.state(), State::Warming);
}
