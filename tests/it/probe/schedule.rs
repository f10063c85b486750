//! The prober as a whole: under paused time with scripted answers, and once over real sockets. Case 31.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tidegate::clock::Clock;
use tidegate::config::Prober;
use tidegate::health::{InstanceHealth, State};
use tidegate::model::{
    Address, Catalog, Check, CheckKind, Checks, Detail, HttpProtocol, MonoTime, Observation, Outcome, Phase,
    Role, Target, Timings,
};
use tidegate::probe::{Answer, Ask, Metrics, ProberCtx, run, run_with};
use tidegate::testing::model::damping;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::fakes::{Fake, Step, nobody, ok};
use super::{MS, PATIENCE, catalog, check, http, target};

const LIMITS: Prober = Prober { max_in_flight: 1_000, max_starts_per_second: 5_000 };

/// Answers after `delay`, or never; counts those being answered.
#[derive(Debug, Clone)]
struct Script {
    clock: Clock,
    asked: Arc<AtomicUsize>,
    flying: Arc<AtomicUsize>,
}

struct Flying(Arc<AtomicUsize>);

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ask for Script {
    type Kept = u32;

    async fn ask(
        &self,
        target: &Target,
        _: Role,
        timeout: Duration,
        kept: Option<u32>,
    ) -> (Answer, Option<u32>) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.flying.fetch_add(1, Ordering::SeqCst);
        let _flying = Flying(Arc::clone(&self.flying));
        let started = self.clock.now();
        let stuck = target.key.id.as_str().starts_with("hole");
        let broken = target.key.id.as_str().starts_with("broken");
        tokio::time::sleep(if stuck { timeout } else { MS(3) }).await;
        let ended = self.clock.now();
        let answer = Answer {
            started,
            ended,
            outcome: match (stuck, broken) {
                (true, _) => Outcome::Timeout,
                (false, true) => Outcome::Unhealthy,
                (false, false) => Outcome::Ok,
            },
            detail: Detail::None,
            timings: Timings { total: ended.since(started), ..Timings::default() },
            fresh: kept.is_none(),
            retried: false,
        };
        (answer, (!stuck).then_some(kept.unwrap_or(0) + 1))
    }

    async fn ended(_: &mut u32) {
        std::future::pending().await
    }
}

struct Running {
    clock: Clock,
    catalog: watch::Sender<Arc<Catalog>>,
    _limits: watch::Sender<Prober>,
    out: mpsc::Receiver<Vec<Observation>>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
    registry: Registry,
    asked: Arc<AtomicUsize>,
    flying: Arc<AtomicUsize>,
}

impl Running {
    fn start(first: Arc<Catalog>, limits: Prober, room: usize) -> Self {
        Self::start_with(first, limits, room, |script, ctx, catalog, limits, out, cancel| {
            tokio::spawn(run_with(script, ctx, catalog, limits, out, cancel))
        })
    }

    fn start_with(
        first: Arc<Catalog>,
        limits: Prober,
        room: usize,
        spawn: impl FnOnce(
            Script,
            ProberCtx,
            watch::Receiver<Arc<Catalog>>,
            watch::Receiver<Prober>,
            mpsc::Sender<Vec<Observation>>,
            CancellationToken,
        ) -> JoinHandle<()>,
    ) -> Self {
        let clock = Clock::start();
        let mut registry = Registry::default();
        let ctx =
            ProberCtx { clock, seed: 1, metrics: Metrics::register(&mut registry), max_sockets: 10_000 };
        let (catalog, catalogs) = watch::channel(first);
        let (limits_in, limits) = watch::channel(limits);
        let (results, out) = mpsc::channel(room);
        let cancel = CancellationToken::new();
        let script = Script { clock, asked: Arc::default(), flying: Arc::default() };
        let (asked, flying) = (Arc::clone(&script.asked), Arc::clone(&script.flying));
        let task = spawn(script, ctx, catalogs, limits, results, cancel.clone());
        Self { clock, catalog, _limits: limits_in, out, cancel, task, registry, asked, flying }
    }

    /// All observations until `end`.
    async fn until(&mut self, end: MonoTime) -> Vec<Observation> {
        let mut all = Vec::new();
        let clock = self.clock;
        loop {
            tokio::select! {
                biased;
                Some(turn) = self.out.recv() => {
                    assert!(!turn.is_empty());
                    all.extend(turn);
                }
                () = clock.sleep_until(end) => return all,
            }
        }
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

fn at(ms: u64) -> MonoTime {
    MonoTime::from_millis(ms)
}

fn pool(names: impl IntoIterator<Item = String>, phase: Phase) -> Arc<Catalog> {
    let address: Address = "127.0.0.1:9".parse().unwrap();
    catalog(names.into_iter().map(|name| target(&name, address, phase, check(CheckKind::Tcp))))
}

fn starts(seen: &[Observation]) -> BTreeMap<String, Vec<MonoTime>> {
    let mut by_name: BTreeMap<String, Vec<MonoTime>> = BTreeMap::new();
    for observation in seen {
        by_name.entry(observation.key.id.to_string()).or_default().push(observation.started);
    }
    by_name
}

#[tokio::test(start_paused = true)]
async fn case_31_a_black_hole_does_not_delay_the_others() {
    let good = || (0..99).map(|n| format!("gpu-{n}"));
    let mut alone = Running::start(pool(good(), Phase::Serving), LIMITS, 64);
    let expected = starts(&alone.until(at(30_500)).await);
    let mut beside = Running::start(pool(good().chain(["hole".to_owned()]), Phase::Serving), LIMITS, 64);
    let mut seen = starts(&beside.until(at(30_500)).await);

    let hole = seen.remove("hole").unwrap();
    assert!(hole.len() > 50, "confirmed every 450 + 100 ms: {}", hole.len());
    assert_eq!(seen.len(), 99);
    for (name, times) in &seen {
        assert_eq!(times, &expected[name], "{name} was moved");
        for pair in times.windows(2) {
            let gap = pair[1].since(pair[0]);
            assert!(gap >= MS(998) && gap <= MS(1_002), "{name}: {gap:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connections_are_kept_for_their_own_target_and_given_up_to_confirm() {
    let names = ["gpu-1".to_owned(), "hole".to_owned()];
    let mut prober = Running::start(pool(names, Phase::Serving), LIMITS, 64);
    let seen = prober.until(at(10_500)).await;
    let fresh =
        |name: &str| seen.iter().filter(|o| o.key.id.as_str() == name).map(|o| o.fresh).collect::<Vec<_>>();
    assert_eq!(fresh("gpu-1").iter().filter(|fresh| **fresh).count(), 1);
    assert!(fresh("hole").iter().all(|fresh| *fresh));
    let confirms: Vec<&Observation> = seen.iter().filter(|o| o.key.id.as_str() == "hole").skip(1).collect();
    assert!(confirms.iter().all(|o| o.timings.total == MS(450)));
    assert!(confirms.windows(2).all(|w| w[1].started.since(w[0].ended) == MS(100)));
}

#[tokio::test(start_paused = true)]
async fn a_full_channel_stops_probes_and_drops_no_result() {
    let mut prober = Running::start(pool((0..50).map(|n| format!("gpu-{n}")), Phase::Serving), LIMITS, 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = prober.asked.load(Ordering::SeqCst);
    assert!(asked < 100, "{asked} probes though nobody takes their results");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(prober.asked.load(Ordering::SeqCst), asked);

    let seen = prober.until(at(125_000)).await;
    let flying = prober.flying.load(Ordering::SeqCst);
    assert_eq!(seen.len() + flying, prober.asked.load(Ordering::SeqCst), "every result arrived");
    assert!(seen.len() > 200 && starts(&seen).len() == 50);
}

#[tokio::test(start_paused = true)]
async fn removing_a_target_cancels_its_probe_and_reports_nothing() {
    let mut prober = Running::start(pool(["hole".to_owned()], Phase::Out), LIMITS, 64);
    while prober.flying.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(MS(1)).await;
    }
    prober.catalog.send_replace(Arc::default());
    tokio::time::sleep(MS(1)).await;
    assert_eq!(prober.flying.load(Ordering::SeqCst), 0);
    let end = prober.clock.now() + MS(5_000);
    assert_eq!(prober.until(end).await, []);
    assert!(prober.metrics().contains("probe_in_flight 0"));
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_cancelled_and_when_nobody_listens() {
    let names = || (0..10).map(|n| format!("hole-{n}"));
    let prober = Running::start(pool(names(), Phase::Serving), LIMITS, 64);
    tokio::time::sleep(MS(1_500)).await;
    prober.cancel.cancel();
    prober.task.await.unwrap();
    assert_eq!(prober.flying.load(Ordering::SeqCst), 0);

    let prober = Running::start(pool(names(), Phase::Serving), LIMITS, 64);
    drop(prober.out);
    prober.task.await.unwrap();

    let prober = Running::start(pool(names(), Phase::Serving), LIMITS, 64);
    drop(prober.catalog);
    prober.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_more_probes_are_in_flight_than_allowed() {
    let limits = Prober { max_in_flight: 7, max_starts_per_second: 5_000 };
    let mut prober = Running::start(pool((0..40).map(|n| format!("hole-{n}")), Phase::Out), limits, 64);
    for ms in 1..200 {
        prober.until(at(ms * 50)).await;
        assert!(prober.flying.load(Ordering::SeqCst) <= 7);
    }
    assert!(prober.asked.load(Ordering::SeqCst) >= 70, "7 at a time, 900 ms each");
}

#[tokio::test(start_paused = true)]
async fn what_it_does_can_be_read_from_its_metrics() {
    let mut prober = Running::start(pool(["gpu-1".to_owned()], Phase::Serving), LIMITS, 64);
    let seen = prober.until(at(5_500)).await.len();
    let text = prober.metrics();
    let line = format!("probe_results_total{{role=\"readiness\",kind=\"tcp\",outcome=\"ok\"}} {seen}\n");
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("probe_seconds_bucket{le="), "{text}");
    assert!(
        text.contains(&format!("probe_start_late_seconds_count {}", prober.asked.load(Ordering::SeqCst)))
    );
}

#[tokio::test]
async fn over_real_sockets_the_dead_are_told_from_the_living() {
    let good = Fake::always(vec![ok()]).await;
    let silent = Fake::always(vec![Step::Hang]).await;
    let (dead, _held) = nobody().await;
    let mut question = check(CheckKind::Http(http(HttpProtocol::Http1)));
    question.interval = MS(200);
    question.timeout = MS(150);
    question.confirm_timeout = MS(75);
    let fleet = catalog([
        target("good", good.address, Phase::Serving, question.clone()),
        target("silent", silent.address, Phase::Serving, question.clone()),
        target("dead", dead, Phase::Serving, question.clone()),
    ]);
    let mut prober = Running::start_with(fleet, LIMITS, 64, |_, ctx, catalog, limits, out, cancel| {
        tokio::spawn(run(ctx, catalog, limits, out, cancel))
    });
    let mut seen: BTreeMap<String, Vec<Observation>> = BTreeMap::new();
    let complete = |seen: &BTreeMap<String, Vec<Observation>>| {
        seen.len() == 3 && seen.values().all(|of_one| of_one.len() >= 5)
    };
    tokio::time::timeout(PATIENCE, async {
        while !complete(&seen) {
            for observation in prober.out.recv().await.unwrap() {
                seen.entry(observation.key.id.to_string()).or_default().push(observation);
            }
        }
    })
    .await
    .unwrap();
    for (name, outcome) in
        [("good", Outcome::Ok), ("silent", Outcome::Timeout), ("dead", Outcome::Unreachable)]
    {
        assert!(seen[name].iter().all(|o| o.outcome == outcome), "{name}: {:?}", seen[name]);
        assert!(seen[name].windows(2).all(|w| w[0].ended <= w[1].started), "{name} overlaps itself");
    }
    assert_eq!(seen["good"].iter().filter(|o| o.fresh).count(), 1);
    assert!(seen["silent"].iter().all(|o| o.fresh));
    assert_eq!(good.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_fails_at_once_is_out_before_one_that_fails_late() {
    // Case 10: what answers an error in no time draws more users than any other.
    let inference = Check {
        role: Role::Inference,
        interval: MS(30_000),
        timeout: MS(10_000),
        unhealthy_threshold: 2.try_into().unwrap(),
        confirm_interval: MS(5_000),
        confirm_timeout: MS(10_000),
        ..check(CheckKind::Tcp)
    };
    let checks = Arc::new(Checks {
        startup: None,
        warmup: None,
        readiness: check(CheckKind::Tcp),
        inference: Some(inference),
    });
    let address = "127.0.0.1:9".parse().unwrap();
    let targets = ["broken", "hole"].map(|name| Target {
        checks: Arc::clone(&checks),
        ..target(name, address, Phase::Serving, check(CheckKind::Tcp))
    });
    let mut prober = Running::start(catalog(targets), LIMITS, 1_000);
    let seen = prober.until(at(120_000)).await;
    let ejected_after = |name: &str| {
        let mut mine =
            seen.iter().filter(|o| o.key.id.as_str() == name && o.role == Role::Inference).peekable();
        let began = mine.peek().unwrap().started;
        let mut health = InstanceHealth::new(&checks, true);
        for role in [Role::Readiness, Role::Inference] {
            health.step(&Observation { role, outcome: Outcome::Ok, ..seen[0].clone() }, &checks, damping());
        }
        assert_eq!(health.state(), &State::Serving);
        mine.find_map(|o| {
            health.step(o, &checks, damping());
            matches!(health.state(), State::Ejected { .. }).then(|| o.ended.since(began))
        })
        .unwrap()
    };
    assert_eq!(ejected_after("broken"), MS(5_006));
    assert_eq!(ejected_after("hole"), MS(25_000));
    prober.cancel.cancel();
}
