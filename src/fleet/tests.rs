use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Effects, Engine};
use crate::config::Config;
use crate::model::{
    Checks, Chunk, ChunkKey, Detail, Event, Instance, MonoTime, Observation, Outcome, Plan, Role, Serve,
    SourceView, Standing,
};
use crate::testing::model::{at, check, cluster, cluster_name, config, instance, key, observation};

/// A view that lists what the config's clusters list.
fn view(config: &Config) -> Arc<SourceView> {
    let chunks = config.clusters.iter().map(|(name, c)| {
        let chunk = Chunk { cluster: name.clone(), instances: c.instances.clone() };
        (ChunkKey(name.as_str().into()), Arc::new(chunk))
    });
    Arc::new(SourceView { chunks: chunks.collect(), synced: true, as_of: MonoTime::ZERO, error: None })
}

/// An engine, a clock, and what it last published.
struct Fleet {
    engine: Engine,
    clock: u64,
    plan: Arc<Plan>,
    events: Vec<Event>,
}

impl Fleet {
    fn start(config: &Config) -> Self {
        let engine = Engine::new(config);
        let plan = engine.plan().clone();
        let mut fleet = Self { engine, clock: 0, plan, events: Vec::new() };
        let effects = fleet.engine.apply_view(view(config), at(0));
        fleet.take(effects);
        fleet
    }

    fn take(&mut self, effects: Effects) {
        if let Some(plan) = effects.plan {
            assert!(plan.generation > self.plan.generation, "generations rise");
            self.plan = plan;
        }
        self.events.extend(effects.events);
        assert!(self.engine.wake_at().is_none_or(|wake| wake > at(self.clock)), "no spin");
    }

    fn reload(&mut self, config: &Config) {
        let effects = self.engine.apply_config(config, at(self.clock));
        self.take(effects);
        let effects = self.engine.apply_view(view(config), at(self.clock));
        self.take(effects);
    }

    fn seen(&self, id: &str, outcome: Outcome) -> Observation {
        let key = key("c", id);
        let target = &self.engine.catalog().targets[&key];
        let role =
            if target.phase == crate::model::Phase::Starting { Role::Startup } else { Role::Readiness };
        observation(&key, target.epoch, role, outcome, self.clock, 1)
    }

    fn see(&mut self, id: &str, outcome: Outcome) {
        self.clock += 1000;
        let seen = self.seen(id, outcome);
        let effects = self.engine.apply_observations(&[seen], at(self.clock));
        self.take(effects);
    }

    fn served(&self) -> BTreeMap<String, Serve> {
        let plan = &self.plan.clusters[&cluster_name("c")];
        plan.entries.iter().map(|e| (e.id.to_string(), e.serve)).collect()
    }

    fn standing(&self) -> Standing {
        self.plan.clusters[&cluster_name("c")].standing
    }

    fn decided(&self) -> bool {
        self.standing() == Standing::Decided
    }
}

fn of(ids: &[&str]) -> Config {
    config([("c", cluster(ids.iter().zip(9000..).map(|(id, port)| instance(id, port))))])
}

#[test]
fn a_cluster_is_undecided_until_everyone_there_at_first_sight_has_a_verdict() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    assert!(!fleet.decided());
    fleet.see("a", Outcome::Ok);
    assert!(!fleet.decided(), "one of two would get the whole load");
    fleet.see("b", Outcome::Ok);
    assert!(fleet.decided());
    assert!(fleet.served().values().all(|s| *s == Serve::Healthy));
}

#[test]
fn a_fleet_that_generates_nothing_when_it_is_first_seen_is_under_the_guard() {
    // tidegate restarts while all are ready and none generates: clients must not be left without anybody.
    let ids = ["a", "b", "c", "d"];
    let mut pool = cluster(ids.iter().zip(9000..).map(|(id, port)| instance(id, port)));
    let inference = Some(check(Role::Inference));
    pool.checks = Arc::new(Checks { inference, ..Checks::clone(&pool.checks) });
    let mut fleet = Fleet::start(&config([("c", pool)]));
    for id in ids {
        fleet.see(id, Outcome::Ok);
    }
    assert!(!fleet.decided(), "ready, and nobody has generated anything");
    for _ in 0..3 {
        for id in ids {
            fleet.clock += 1_000;
            let target = &fleet.engine.catalog().targets[&key("c", id)];
            let seen =
                observation(&target.key, target.epoch, Role::Inference, Outcome::Timeout, fleet.clock, 500);
            let effects = fleet.engine.apply_observations(&[seen], at(fleet.clock));
            fleet.take(effects);
        }
    }
    assert!(fleet.decided());
    let of = |serve| fleet.served().values().filter(|s| **s == serve).count();
    assert_eq!((of(Serve::Unhealthy), of(Serve::Degraded)), (2, 2));
}

#[test]
fn after_the_waiting_time_those_who_serve_are_enough() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    fleet.see("a", Outcome::Ok);
    fleet.clock = 15_000;
    assert_eq!(fleet.engine.wake_at(), Some(at(15_000)));
    let effects = fleet.engine.apply_tick(at(15_000));
    fleet.take(effects);
    assert!(fleet.decided());
    assert_eq!(fleet.served()["b"], Serve::Absent);
}

#[test]
fn a_cluster_of_which_nobody_has_a_verdict_stays_undecided_after_the_waiting_time() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    fleet.clock = 15_000;
    let effects = fleet.engine.apply_tick(at(15_000));
    fleet.take(effects);
    assert!(!fleet.decided());
    assert_eq!(fleet.engine.wake_at(), None);
}

#[test]
fn silence_of_all_is_no_reason_to_empty_a_cluster() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    for _ in 0..50 {
        fleet.see("a", Outcome::Unreachable);
        fleet.see("b", Outcome::Timeout);
    }
    assert!(!fleet.decided());
    fleet.see("a", Outcome::Unhealthy); // an answer: the network is there, the fleet is loading
    assert_eq!(fleet.standing(), Standing::Loading);
    assert!(fleet.served().values().all(|s| *s == Serve::Absent));
}

#[test]
fn a_fleet_that_loads_for_twenty_minutes_is_served_without_endpoints() {
    let mut fleet = Fleet::start(&of(&["a", "b", "c"]));
    for _ in 0..400 {
        for id in ["a", "b", "c"] {
            fleet.clock += 1000;
            let mut seen = fleet.seen(id, Outcome::Unhealthy);
            seen.detail = Detail::Status(503);
            let effects = fleet.engine.apply_observations(&[seen], at(fleet.clock));
            fleet.take(effects);
        }
    }
    assert_eq!(fleet.standing(), Standing::Loading);
    assert!(fleet.served().values().all(|s| *s == Serve::Absent));
    fleet.see("b", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    assert!(fleet.decided());
    assert_eq!(fleet.served()["b"], Serve::Healthy);
}

#[test]
fn a_listed_cluster_without_instances_is_decided_and_an_unlisted_one_is_not() {
    let empty = of(&[]);
    assert!(Fleet::start(&empty).decided());
    let mut engine = Engine::new(&empty);
    let unsynced = Arc::new(SourceView { synced: false, ..(*view(&empty)).clone() });
    assert!(engine.apply_view(unsynced, at(0)).plan.is_none());
    assert_eq!(engine.plan().clusters[&cluster_name("c")].standing, Standing::Unlisted);
}

#[test]
fn a_view_that_no_longer_speaks_for_a_cluster_keeps_it() {
    let both = of(&["a", "b"]);
    let mut fleet = Fleet::start(&both);
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    let silent = Arc::new(SourceView { synced: true, ..SourceView::default() });
    let effects = fleet.engine.apply_view(silent, at(fleet.clock));
    assert!(effects.plan.is_none());
    assert_eq!(fleet.served().len(), 2);
}

#[test]
fn an_instance_added_later_is_absent_until_it_has_passed_enough() {
    let mut fleet = Fleet::start(&of(&["a"]));
    fleet.see("a", Outcome::Ok);
    fleet.reload(&of(&["a", "b"]));
    assert_eq!(fleet.served()["b"], Serve::Absent);
    fleet.see("b", Outcome::Ok);
    assert_eq!(fleet.served()["b"], Serve::Absent);
    fleet.see("b", Outcome::Ok);
    assert_eq!(fleet.served()["b"], Serve::Healthy);
}

#[test]
fn a_changed_weight_keeps_the_health_and_a_changed_address_inherits_nothing() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    let with = |change: fn(&mut Instance)| {
        let mut a = instance("a", 9000);
        change(&mut a);
        config([("c", cluster([a, instance("b", 9001)]))])
    };
    fleet.reload(&with(|a| a.weight = crate::model::Weight::new(7).unwrap()));
    assert_eq!(fleet.served()["a"], Serve::Healthy);
    let stale = fleet.seen("a", Outcome::Ok);
    fleet.reload(&with(|a| *a = instance("a", 9100)));
    assert_eq!(fleet.served()["a"], Serve::Absent);
    let effects = fleet.engine.apply_observations(&[stale.clone(), stale], at(fleet.clock));
    fleet.take(effects);
    assert_eq!(fleet.served()["a"], Serve::Absent, "answers of the process before do not count");
    fleet.reload(&with(|a| {
        *a = instance("a", 9100);
        a.lifetime = crate::model::Lifetime::new("second run");
    }));
    assert_eq!(fleet.served()["a"], Serve::Absent);
}

#[test]
fn a_fleet_that_is_replaced_at_once_is_not_taken_from_clients_before_somebody_new_serves() {
    // Other ids, other lifetimes, or other addresses (of which the last is a typo that nobody answers at).
    let replacements: [fn() -> Vec<Instance>; 3] = [
        || vec![instance("x", 9000), instance("y", 9001)],
        || {
            let again = |i: Instance| Instance { lifetime: crate::model::Lifetime::new("second"), ..i };
            vec![again(instance("a", 9000)), again(instance("b", 9001))]
        },
        || vec![instance("a", 7000), instance("b", 7001)],
    ];
    for replaced in replacements {
        let mut fleet = Fleet::start(&of(&["a", "b"]));
        fleet.see("a", Outcome::Ok);
        fleet.see("b", Outcome::Ok);
        fleet.reload(&config([("c", cluster(replaced()))]));
        assert_eq!(fleet.standing(), Standing::Undecided);
        let ids: Vec<String> = replaced().iter().map(|i| i.id.to_string()).collect();
        for _ in 0..50 {
            fleet.see(&ids[0], Outcome::Unreachable);
            fleet.see(&ids[1], Outcome::Unhealthy);
        }
        assert_eq!(fleet.standing(), Standing::Undecided, "a no from everybody takes nothing either");
        for id in &ids {
            fleet.see(id, Outcome::Ok);
            fleet.see(id, Outcome::Ok);
        }
        assert!(fleet.decided());
        assert!(fleet.served().values().all(|s| *s == Serve::Healthy));
        fleet.reload(&of(&[]));
        assert!(fleet.decided(), "an empty list is a source's word");
    }
}

#[test]
fn changed_checks_rearm_and_move_nobody() {
    let config = of(&["a"]);
    let mut fleet = Fleet::start(&config);
    fleet.see("a", Outcome::Ok);
    let old = fleet.seen("a", Outcome::Unreachable);
    let mut changed = (*config.clusters[&cluster_name("c")]).clone();
    changed.checks = Arc::new(crate::testing::model::checks(true));
    let config = Config { clusters: [(cluster_name("c"), Arc::new(changed))].into(), ..config };
    fleet.reload(&config);
    assert_eq!(fleet.served()["a"], Serve::Healthy);
    let generation = fleet.plan.generation;
    let effects = fleet.engine.apply_observations(&[old.clone(), old.clone(), old], at(fleet.clock));
    fleet.take(effects);
    assert_eq!(fleet.plan.generation, generation);
}

#[test]
fn an_observation_that_changes_nothing_publishes_nothing() {
    let mut fleet = Fleet::start(&of(&["a"]));
    fleet.see("a", Outcome::Ok);
    let generation = fleet.plan.generation;
    for _ in 0..10 {
        fleet.see("a", Outcome::Ok);
    }
    assert_eq!(fleet.plan.generation, generation);
}

#[test]
fn every_move_is_an_event_with_its_reason() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    for _ in 0..3 {
        fleet.see("a", Outcome::Unreachable);
    }
    let last = fleet.events.last().unwrap();
    assert!(matches!(last, Event::Moved { from: Serve::Healthy, to: Serve::Unhealthy, .. }), "{last:?}");
    fleet.reload(&of(&["a"]));
    assert!(fleet.events.contains(&Event::Deregistered { key: key("c", "b") }));
    assert!(!fleet.served().contains_key("b"));
}

#[test]
fn a_drain_sticks_to_the_identity_until_it_is_taken_back() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    let drain = |fleet: &mut Fleet, why: Option<&str>| {
        let effects = fleet.engine.apply_drain(&key("c", "a"), why.map(Arc::from), at(fleet.clock)).unwrap();
        let published = effects.plan.is_some();
        fleet.take(effects);
        published
    };
    assert!(drain(&mut fleet, Some("upgrade")));
    assert_eq!(fleet.served()["a"], Serve::Draining);
    assert!(!drain(&mut fleet, Some("again")), "it is so already");
    let mut restarted = instance("a", 9000);
    restarted.lifetime = crate::model::Lifetime::new("second run");
    fleet.reload(&config([("c", cluster([restarted, instance("b", 9001)]))]));
    for _ in 0..3 {
        fleet.see("a", Outcome::Ok);
    }
    assert_eq!(fleet.served()["a"], Serve::Draining, "a new process of the same instance");
    assert!(drain(&mut fleet, None));
    assert_eq!(fleet.served()["a"], Serve::Healthy);
    let unknown = fleet.engine.apply_drain(&key("c", "zz"), Some("x".into()), at(fleet.clock));
    assert!(unknown.is_err());
}

#[test]
fn a_cluster_touched_alone_changes_alone() {
    let two = config([("c", cluster([instance("a", 1)])), ("d", cluster([instance("x", 2)]))]);
    let mut fleet = Fleet::start(&two);
    let d = fleet.plan.clusters[&cluster_name("d")].clone();
    fleet.see("a", Outcome::Ok);
    assert!(Arc::ptr_eq(&d, &fleet.plan.clusters[&cluster_name("d")]));
}

fn warmed(instances: Vec<Instance>) -> Config {
    let mut pool = cluster(instances);
    let warmup = crate::model::Warmup {
        check: check(Role::Warmup),
        prompts: std::num::NonZeroU32::new(3).unwrap(),
        last: std::num::NonZeroU32::new(1).unwrap(),
        expect_latency: std::time::Duration::from_secs(5),
    };
    pool.checks = Arc::new(Checks { warmup: Some(warmup), ..Checks::clone(&pool.checks) });
    config([("c", pool)])
}

#[test]
fn the_first_instance_of_a_cluster_that_was_empty_is_warmed_up() {
    let mut fleet = Fleet::start(&warmed(vec![]));
    assert!(fleet.decided());
    fleet.clock = 600_000;
    fleet.reload(&warmed(vec![instance("a", 9000)]));
    fleet.see("a", Outcome::Ok);
    assert_eq!(fleet.served()["a"], Serve::Absent, "it has answered no prompt");
}

#[test]
fn a_new_process_of_the_only_instance_is_warmed_up() {
    let mut fleet = Fleet::start(&warmed(vec![instance("a", 9000)]));
    fleet.see("a", Outcome::Ok);
    assert_eq!(fleet.served()["a"], Serve::Healthy);
    let mut again = instance("a", 9000);
    again.lifetime = crate::model::Lifetime::new("second run");
    fleet.reload(&warmed(vec![again]));
    fleet.see("a", Outcome::Ok);
    assert_eq!(fleet.served()["a"], Serve::Absent, "another process: it has answered no prompt");
}

#[test]
fn one_that_said_404_while_it_loaded_was_not_running_before_us() {
    let mut fleet = Fleet::start(&warmed(vec![instance("a", 9000)]));
    for _ in 0..20 {
        fleet.clock += 1000;
        let mut seen = fleet.seen("a", Outcome::Unhealthy);
        seen.detail = Detail::Status(404);
        let effects = fleet.engine.apply_observations(&[seen], at(fleet.clock));
        fleet.take(effects);
    }
    fleet.see("a", Outcome::Ok);
    assert_eq!(fleet.served()["a"], Serve::Absent, "it has answered no prompt");
}

#[test]
fn a_drain_outlives_the_moment_in_which_its_cluster_is_not_in_the_file() {
    let mut fleet = Fleet::start(&of(&["a", "b"]));
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    let effects = fleet.engine.apply_drain(&key("c", "a"), Some("x".into()), at(fleet.clock)).unwrap();
    fleet.take(effects);
    fleet.reload(&config([]));
    fleet.reload(&of(&["a", "b"]));
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    assert_eq!(fleet.served()["a"], Serve::Draining);
}

#[test]
fn who_drains_before_it_served_can_be_witnessed() {
    let conf = of(&["a", "b"]);
    let mut fleet = Fleet::start(&conf);
    fleet.see("a", Outcome::Ok);
    fleet.see("b", Outcome::Ok);
    let conf = of(&["a", "b", "n"]);
    fleet.reload(&conf);
    let effects = fleet.engine.apply_drain(&key("c", "n"), Some("x".into()), at(fleet.clock)).unwrap();
    fleet.take(effects);
    let snapshot = crate::snapshot::Snapshot::default().update(&conf, &fleet.plan);
    assert!(snapshot.witnessed().contains("c"), "a `drain --wait` waits for what nobody records");
}

proptest! {
    #[test]
    fn whatever_happens_nobody_serves_without_passing_and_the_cap_holds(
        log in proptest::collection::vec((0usize..5, 0usize..7, any::<bool>()), 1..120)
    ) {
        let ids = ["a", "b", "c", "d", "e"];
        let outcomes = [Outcome::Ok, Outcome::Slow, Outcome::Timeout, Outcome::Unhealthy, Outcome::Unreachable,
            Outcome::Misconfigured, Outcome::Unknown];
        let mut fleet = Fleet::start(&of(&ids));
        let mut heard = std::collections::BTreeSet::new();
        let mut listed = 5;
        for (who, what, relist) in log {
            if relist {
                listed = if listed == 5 { 4 } else { 5 };
                fleet.reload(&of(&ids[..listed]));
            }
            let (id, outcome) = (ids[who % listed], outcomes[what]);
            fleet.see(id, outcome);
            if matches!(outcome, Outcome::Ok | Outcome::Slow) {
                heard.insert(id);
            }
            let served = fleet.served();
            prop_assert_eq!(served.len(), listed);
            for (id, serve) in &served {
                prop_assert!(*serve == Serve::Absent || heard.contains(id.as_str()));
            }
            let admitted = served.values().filter(|s| **s != Serve::Absent).count();
            let out = served.values().filter(|s| **s == Serve::Unhealthy).count();
            prop_assert!(out <= admitted / 2);
        }
    }
}

#[test]
fn two_names_of_one_process_are_told_once() {
    // A file refuses it; two sources may say it all the same.
    let twice = cluster(["a", "b", "c"].iter().zip([9000, 9000, 9001]).map(|(id, port)| instance(id, port)));
    let mut fleet = Fleet::start(&config([("c", twice)]));
    for id in ["a", "b", "c", "a", "b"] {
        fleet.see(id, Outcome::Ok);
    }
    let served = fleet.served();
    assert_eq!(["a", "b", "c"].map(|id| served[id]), [Serve::Healthy, Serve::Absent, Serve::Healthy]);
    let told = fleet.events.iter().filter_map(|event| match event {
        Event::AddressTaken { key, by, .. } => Some((key.id.to_string(), by.to_string())),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [("b".to_owned(), "a".to_owned())]);
}
