//! Two questions to one instance, and questions that follow one another.

use super::*;
use crate::model::Warmup;

/// Readiness as given, an inference every 30 s, and prompts 20 ms apart.
pub(super) fn all(interval: u64, timeout: u64) -> Arc<Checks> {
    Arc::new(Checks {
        startup: None,
        warmup: Some(Warmup {
            check: check(Role::Warmup, 20, timeout),
            prompts: NonZeroU32::MIN,
            last: NonZeroU32::MIN,
            expect_latency: MS(timeout),
        }),
        readiness: check(Role::Readiness, interval, timeout),
        inference: Some(Check {
            confirm_interval: MS(5_000),
            confirm_timeout: MS(10_000),
            recover_interval: MS(4_000),
            ..check(Role::Inference, 30_000, 10_000)
        }),
    })
}

impl<F> Run<F> {
    fn of(&self, role: Role) -> Vec<&(MonoTime, Start)> {
        self.starts.iter().filter(|(_, start)| start.role == role).collect()
    }
}

#[test]
fn each_phase_asks_its_own_questions() {
    let checks = all(1_000, 500);
    let asked = |phase| {
        let mut run = Run::new(NO_LIMIT, &one(phase, &checks), quick);
        run.until(at(60_000));
        let roles: std::collections::BTreeSet<Role> = run.starts.iter().map(|(_, s)| s.role).collect();
        roles.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(asked(Phase::Unready), [Role::Readiness]);
    assert_eq!(asked(Phase::Warming), [Role::Warmup, Role::Readiness]);
    assert_eq!(asked(Phase::Out), [Role::Readiness, Role::Inference]);
    assert_eq!(asked(Phase::Serving), [Role::Readiness, Role::Inference]);
}

#[test]
fn those_who_wait_to_be_admitted_are_asked_for_a_completion_soon_and_not_all_at_once() {
    let mut checks = Checks::clone(&all(1_000, 500));
    checks.inference.as_mut().unwrap().recover_interval = MS(600_000);
    let checks = Arc::new(checks);
    let fleet = catalog((0..1_000).map(|n| target(n, Phase::Out, &checks)));
    let mut run = Run::new(NO_LIMIT, &fleet, quick);
    run.until(at(2_000));
    let first = run.of(Role::Inference);
    let asked: std::collections::BTreeSet<_> = first.iter().map(|(_, s)| &s.target.key).collect();
    assert_eq!(asked.len(), 1_000);
    let share = first.iter().filter(|(moment, _)| *moment < at(200)).count();
    assert!((60..=140).contains(&share), "{share} of 1000 in the first tenth");
}

#[test]
fn a_slow_question_does_not_hold_up_the_quick_one() {
    let mut run = Run::new(NO_LIMIT, &one(Phase::Serving, &all(1_000, 500)), |start: &Start| {
        if start.role == Role::Inference { (MS(10_000), Outcome::Ok) } else { quick(start) }
    });
    run.until(at(120_000));
    let readiness = run.of(Role::Readiness);
    assert!((119..=120).contains(&readiness.len()));
    assert!(readiness.windows(2).all(|two| two[1].0.since(two[0].0) == MS(1_000)));
    assert_eq!(run.of(Role::Inference).len(), 4);
}

#[test]
fn a_failed_inference_is_asked_again_after_its_confirm_interval_whatever_the_failure() {
    for outcome in [Outcome::Unhealthy, Outcome::Timeout, Outcome::Unreachable] {
        let mut failed = false;
        let checks = all(1_000, 500);
        let mut run = Run::new(NO_LIMIT, &one(Phase::Serving, &checks), |start: &Start| {
            let first = start.role == Role::Inference && !std::mem::replace(&mut failed, true);
            (MS(100), if first { outcome } else { Outcome::Ok })
        });
        run.until(at(100_000));
        let inference = run.of(Role::Inference);
        let confirming: Vec<usize> =
            inference.iter().enumerate().filter(|(_, (_, s))| s.confirm).map(|(i, _)| i).collect();
        assert_eq!(confirming, [1], "{outcome}");
        assert_eq!(inference[1].0.since(inference[0].0), MS(5_100));
        assert_eq!(inference[2].0.since(inference[0].0), MS(30_000), "the cadence has not moved");
    }
}

#[test]
fn prompts_of_a_warmup_follow_one_another_and_never_overlap() {
    let mut prompts = 0;
    let mut run = Run::new(NO_LIMIT, &one(Phase::Warming, &all(1_000, 500)), |start: &Start| {
        if start.role != Role::Warmup {
            return quick(start);
        }
        prompts += 1;
        (MS(300), if prompts == 3 { Outcome::Timeout } else { Outcome::Ok })
    });
    run.until(at(3_000));
    let times: Vec<MonoTime> = run.of(Role::Warmup).iter().map(|(at, _)| *at).collect();
    assert_eq!(times[..5], [0, 320, 640, 1_940, 2_260].map(at), "at once; after a failure a longer pause");
}
