use std::sync::Arc;

use proptest::prelude::*;

use super::{Drains, Member, Members, decide};
use crate::config::Policy;
use crate::health::InstanceHealth;
use crate::model::{Drain, Epoch, Instance, Outcome, Percent, Reason, Role, Serve};
use crate::testing::model::{checks, damping, instance, key, observation, policy};

/// What a member of a scene is: serving, still starting, or ejected by an outcome in a given second.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Is {
    Serving,
    Slow,
    Starting,
    Out(Outcome, u64),
    /// Ejected for the second time in that second, and well again since.
    Recovering(u64),
}

fn members(scene: &[Is]) -> Members {
    let checks = checks(false);
    let member = |(n, is): (usize, &Is)| {
        let id = format!("i{n:03}");
        let mut health = InstanceHealth::new(&checks, true);
        let mut see = |outcome, from: u64, times: u64| {
            for i in 0..times {
                health.step(
                    &observation(&key("c", &id), Epoch(1), Role::Readiness, outcome, from + i * 1000, 1),
                    &checks,
                    damping(),
                );
            }
        };
        match *is {
            Is::Starting => {}
            Is::Serving => see(Outcome::Ok, 0, 1),
            Is::Slow => see(Outcome::Slow, 0, 4),
            Is::Out(outcome, second) => {
                see(Outcome::Ok, 0, 1);
                see(outcome, second * 1000, 3);
            }
            Is::Recovering(second) => {
                see(Outcome::Ok, 0, 1);
                see(Outcome::Unreachable, second * 1000, 3);
                see(Outcome::Ok, second * 1000 + 3_000, 2);
                see(Outcome::Unreachable, second * 1000 + 5_000, 3);
                see(Outcome::Ok, second * 1000 + 8_000, 3);
            }
        }
        let instance = instance(&id, 8000 + u16::try_from(n).unwrap());
        (instance.id.clone(), Member { instance: Arc::new(instance), epoch: Epoch(1), health })
    };
    scene.iter().enumerate().map(member).collect()
}

fn served(scene: &[Is], policy: &Policy) -> Vec<Serve> {
    decide(&members(scene), &Drains::new(), policy, &[]).iter().map(|e| e.serve).collect()
}

fn with(percent: u8, min_serving: usize) -> Policy {
    Policy { max_ejected_percent: Percent::new(percent).unwrap(), min_serving, ..policy() }
}

const DEAD: Is = Is::Out(Outcome::Unreachable, 10);

#[test]
fn one_that_is_well_again_is_the_first_to_be_needed() {
    use Serve::{Degraded, Healthy, Unhealthy};
    let scene = [Is::Recovering(40), DEAD, Is::Serving, Is::Serving];
    assert_eq!(served(&scene, &with(50, 1)), [Unhealthy, Unhealthy, Healthy, Healthy]);
    assert_eq!(served(&scene, &with(25, 1)), [Healthy, Unhealthy, Healthy, Healthy], "it answers well");
    assert_eq!(served(&scene, &with(0, 1)), [Healthy, Degraded, Healthy, Healthy]);
}

#[test]
fn the_guard_is_exact_for_one_to_five_instances() {
    // All dead, at most half out, at least one in: how many are really ejected.
    for (n, ejected) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)] {
        let plan = served(&vec![DEAD; n], &with(50, 1));
        assert_eq!(plan.iter().filter(|s| **s == Serve::Unhealthy).count(), ejected, "{n} instances");
        assert_eq!(plan.iter().filter(|s| **s == Serve::Degraded).count(), n - ejected, "{n} instances");
    }
    for (n, ejected) in [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)] {
        let plan = served(&vec![DEAD; n], &with(100, 2));
        assert_eq!(
            plan.iter().filter(|s| **s == Serve::Unhealthy).count(),
            ejected,
            "floor of 2, {n} instances"
        );
    }
    assert_eq!(served(&[DEAD, DEAD], &with(100, 0)), [Serve::Unhealthy, Serve::Unhealthy]);
    assert_eq!(served(&[DEAD, Is::Serving], &with(0, 0)), [Serve::Degraded, Serve::Healthy]);
}

#[test]
fn the_worst_go_first() {
    let scene = [
        Is::Out(Outcome::Unhealthy, 1),
        Is::Out(Outcome::Timeout, 5),
        Is::Out(Outcome::Unreachable, 9),
        Is::Serving,
    ];
    assert_eq!(
        served(&scene, &with(50, 1)),
        [Serve::Degraded, Serve::Unhealthy, Serve::Unhealthy, Serve::Healthy]
    );
    assert_eq!(
        served(&scene, &with(25, 1)),
        [Serve::Degraded, Serve::Degraded, Serve::Unhealthy, Serve::Healthy]
    );
}

#[test]
fn among_equals_the_longest_out_stays_out() {
    let scene = [Is::Out(Outcome::Timeout, 9), Is::Out(Outcome::Timeout, 3), Is::Serving];
    assert_eq!(served(&scene, &with(50, 1)), [Serve::Degraded, Serve::Unhealthy, Serve::Healthy]);
}

#[test]
fn those_still_starting_are_absent_and_do_not_count() {
    // Five serve and six start: the client's ratios must not see the six, and the cap is half of five.
    let mut scene = vec![Is::Serving; 3];
    scene.extend([DEAD, DEAD]);
    scene.extend([Is::Starting; 6]);
    let plan = served(&scene, &with(50, 1));
    assert_eq!(plan.iter().filter(|s| **s == Serve::Unhealthy).count(), 2);
    assert!(plan[5..].iter().all(|s| *s == Serve::Absent));
    assert_eq!(served(&[DEAD, Is::Starting, Is::Starting], &with(50, 1))[0], Serve::Degraded);
}

#[test]
fn a_drain_is_obeyed_and_uses_up_what_may_be_out() {
    let scene = [Is::Serving, DEAD, Is::Serving, DEAD, Is::Starting];
    let drain = Drain { why: "upgrade".into(), generation: 1 };
    let drains: Drains = ["i000", "i004"].map(|id| (instance(id, 1).id, drain.clone())).into();
    let plan = decide(&members(&scene), &drains, &with(50, 1), &[]);
    let served: Vec<Serve> = plan.iter().map(|e| e.serve).collect();
    assert_eq!(served, [Serve::Draining, Serve::Unhealthy, Serve::Healthy, Serve::Degraded, Serve::Absent]);
    assert_eq!(plan[0].reason, Reason::Drained(drain));
}

/// The members of a scene, of which these have the address of the first of the pair.
fn at_one_address(scene: &[Is], pairs: &[(&str, &str)]) -> Members {
    let mut members = members(scene);
    for (first, second) in pairs {
        let address = members[&instance(first, 1).id].instance.address;
        let member = members.get_mut(&instance(second, 1).id).unwrap();
        member.instance = Arc::new(Instance { address, ..Instance::clone(&member.instance) });
    }
    members
}

#[test]
fn of_instances_with_one_address_one_stands_for_all() {
    use Serve::{Absent, Degraded, Healthy, Unhealthy};
    let serves = |members: &Members, percent| {
        let plan = decide(members, &Drains::new(), &with(percent, 1), &[]);
        let taken = plan.iter().filter_map(|e| match &e.reason {
            Reason::AddressTaken(by) => Some((e.id.to_string(), by.to_string())),
            _ => None,
        });
        (plan.iter().map(|e| e.serve).collect::<Vec<_>>(), taken.collect::<Vec<_>>())
    };
    let taken = |id: &str, by: &str| vec![(id.to_owned(), by.to_owned())];
    let pair = [("i000", "i001")];
    let both_serve = at_one_address(&[Is::Serving, Is::Serving], &pair);
    assert_eq!(serves(&both_serve, 50), (vec![Healthy, Absent], taken("i001", "i000")));
    let first_starts = at_one_address(&[Is::Starting, Is::Serving], &pair);
    assert_eq!(
        serves(&first_starts, 50),
        (vec![Absent, Healthy], taken("i000", "i001")),
        "who is admitted stands"
    );
    // Two dead names of one process beside one that serves: it is half of the cluster, not two thirds.
    let dead = at_one_address(&[DEAD, DEAD, Is::Serving], &pair);
    assert_eq!(serves(&dead, 50), (vec![Unhealthy, Absent, Healthy], taken("i001", "i000")));
    assert_eq!(serves(&dead, 40), (vec![Degraded, Absent, Healthy], taken("i001", "i000")));
}

#[test]
fn a_drain_means_the_process_by_whatever_name() {
    let members = at_one_address(&[Is::Serving, Is::Serving, Is::Serving], &[("i000", "i001")]);
    let drain = Drain { why: "".into(), generation: 1 };
    let drains: Drains = [(instance("i001", 1).id, drain.clone())].into();
    let plan = decide(&members, &drains, &with(50, 1), &[]);
    let served: Vec<Serve> = plan.iter().map(|e| e.serve).collect();
    assert_eq!(served, [Serve::Draining, Serve::Absent, Serve::Healthy]);
    assert!(plan[..2].iter().all(|e| e.reason == Reason::Drained(drain.clone())));
}

#[test]
fn entries_that_are_as_before_are_taken_over() {
    let decide = |scene: &[Is], before: &[_]| decide(&members(scene), &Drains::new(), &with(50, 1), before);
    let before = decide(&[Is::Serving, Is::Serving, DEAD], &[]);
    let after = decide(&[Is::Serving, DEAD, Is::Serving, Is::Serving], &before);
    let same: Vec<bool> = after.iter().zip(&before).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false, false]);
    assert_eq!(after, decide(&[Is::Serving, DEAD, Is::Serving, Is::Serving], &[]));
    let fewer = decide(&[Is::Serving], &after);
    assert!(Arc::ptr_eq(&fewer[0], &after[0]));
}

#[test]
fn a_slow_instance_keeps_a_quarter_of_its_weight() {
    let plan = decide(&members(&[Is::Serving, Is::Slow]), &Drains::new(), &policy(), &[]);
    assert_eq!(
        plan.iter().map(|e| (e.serve, e.weight.get())).collect::<Vec<_>>(),
        [(Serve::Healthy, 100), (Serve::Healthy, 25)]
    );
    assert!(matches!(plan[1].reason, Reason::Slow(..)));
}

fn scenes() -> impl Strategy<Value = Vec<Is>> {
    let outcome = prop_oneof![Just(Outcome::Unreachable), Just(Outcome::Timeout), Just(Outcome::Unhealthy)];
    let is = prop_oneof![
        2 => Just(Is::Serving),
        1 => Just(Is::Slow),
        1 => Just(Is::Starting),
        4 => (outcome, 1u64..50).prop_map(|(o, s)| Is::Out(o, s)),
        1 => (1u64..50).prop_map(Is::Recovering),
    ];
    proptest::collection::vec(is, 1..50)
}

proptest! {
    #[test]
    fn the_cap_and_the_floor_hold_for_all_inputs(scene in scenes(), percent in 0u8..=100, floor in 0usize..60) {
        let policy = with(percent, floor);
        let plan = decide(&members(&scene), &Drains::new(), &policy, &[]);
        let count = |s: Serve| plan.iter().filter(|e| e.serve == s).count();
        let admitted = plan.len() - count(Serve::Absent);
        prop_assert!(count(Serve::Unhealthy) <= policy.max_ejected_percent.of(admitted));
        prop_assert!(admitted - count(Serve::Unhealthy) >= floor.min(admitted));
        let serve = scene.iter().filter(|is| matches!(is, Is::Serving | Is::Slow)).count();
        prop_assert!(count(Serve::Healthy) >= serve, "who serves is never touched");
        for entry in &plan {
            let explained = match entry.serve {
                Serve::Healthy => {
                    matches!(entry.reason, Reason::Passing | Reason::Slow(..) | Reason::Recovering { .. })
                }
                Serve::Degraded => matches!(entry.reason, Reason::Held(..)),
                Serve::Unhealthy => matches!(entry.reason, Reason::Failing(..) | Reason::Recovering { .. }),
                Serve::Absent => matches!(entry.reason, Reason::Unheard | Reason::NotReady(..)),
                Serve::Draining => false,
            };
            prop_assert!(explained, "{:?}", entry);
            prop_assert!(entry.weight.get() >= 1);
        }
    }

    #[test]
    fn raising_the_cap_never_ejects_fewer_and_keeps_who_was_out(scene in scenes(), low in 0u8..=100, more in 0u8..=100) {
        let high = low.saturating_add(more).min(100);
        let (low, high) = (served(&scene, &with(low, 0)), served(&scene, &with(high, 0)));
        for (low, high) in low.iter().zip(&high) {
            prop_assert!(*low != Serve::Unhealthy || *high == Serve::Unhealthy);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_plan(scene in scenes(), percent in 0u8..=100) {
        let plan = || decide(&members(&scene), &Drains::new(), &with(percent, 1), &[]);
        prop_assert_eq!(plan(), plan());
    }
}
