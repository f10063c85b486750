//! From a backend's fault to the last request that an Envoy sends there: tidegate beside an Envoy with its own checks.
//!
//! Users send 100 requests a second at an open pace through each of two real Envoys (round robin, no retries). One
//! is told by tidegate, the other is alone with active health checks: every second, 0.5 s to answer, three failures.
//! Both use the same backends, so one fault is one trial of both.
//!
//! * `kill`: listener and connections are gone; `hang`: everything is accepted, nothing answered, `/health` included.
//!   Both on 4 hosts and by verdict alone: neither Envoy has outlier detection.
//! * `kill_bridged`: on 2, 4 and 12 hosts, with the outlier detection that tidegate serves (its bridge), and with
//!   the usual one at the Envoy alone. Then the application answers 503, and nobody may be ejected for it.
//!
//! The moment of a fault is random within the interval, but spread: of ten trials one falls into each tenth, so that
//! ten are enough for a median. `cargo bench --bench detection` prints tables, and as its last line medians:
//! `{"kill":{"tidegate_ms","envoy_ms","tidegate_failed","envoy_failed"},"hang":{…},"kill_bridged":{…}}`; those of
//! `kill_bridged` are each the worst of the three sizes. `DETECTION_SEED` repeats a run's phases.

mod arena;
mod report;
mod side;

use anyhow::Context as _;
use arena::{Arena, Help};
use report::{Medians, Series};
use tidegate::testing::envoy::access_log;
use tidegate::testing::instance::Mode;

const POOL: &str = "pool";
const TRIALS: usize = 10;

/// One place within the interval for each trial, in random order.
fn phases(random: &mut fastrand::Rng) -> Vec<f64> {
    let mut phases: Vec<f64> = (0..TRIALS).map(|n| (n as f64 + random.f64()) / TRIALS as f64).collect();
    random.shuffle(&mut phases);
    phases
}

async fn series(
    arena: &mut Arena,
    (fault, mode): (&'static str, Mode),
    hosts: usize,
    random: &mut fastrand::Rng,
) -> anyhow::Result<Series> {
    let mut trials = Vec::new();
    for (n, phase) in phases(random).into_iter().enumerate() {
        let trial = arena.strike(mode.clone(), n % hosts, phase).await;
        let trial = trial.with_context(|| format!("{fault} on {hosts} hosts, phase {phase:.3}"))?;
        eprintln!(
            "  {fault} on {hosts} hosts, {:>2} of {TRIALS}: tidegate {:>4.0} ms, {:>2} failed (phase {:.2}); \
             Envoy {:>4.0} ms, {:>3} failed (phase {:.2})",
            n + 1,
            trial.tidegate.last_ms,
            trial.tidegate.failed,
            trial.phases[0],
            trial.envoy.last_ms,
            trial.envoy.failed,
            trial.phases[1],
        );
        trials.push(trial);
    }
    Ok(Series { fault, hosts, trials, storm: None })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let seed = match std::env::var("DETECTION_SEED") {
        Ok(seed) => seed.parse().context("DETECTION_SEED is no number")?,
        Err(_) => access_log::wall_micros(),
    };
    println!("{TRIALS} trials of each fault, 100 requests per second through each Envoy, seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    let mut arena = Arena::start(4, Help::None).await?;
    let kill = series(&mut arena, ("kill", Mode::Refuse), 4, &mut random).await?;
    let hang = series(&mut arena, ("hang", Mode::Hang), 4, &mut random).await?;
    arena.stop().await?;
    let (killed, hung) = (kill.medians(), hang.medians());
    let mut all = vec![kill, hang];
    for hosts in [2, 4, 12] {
        let mut arena = Arena::start(hosts, Help::Outlier).await?;
        let mut bridged = series(&mut arena, ("kill_bridged", Mode::Refuse), hosts, &mut random).await?;
        bridged.storm = Some(arena.storm().await?);
        arena.stop().await?;
        all.push(bridged);
    }
    report::print(&all);
    let bridged = all.iter().skip(2).map(Series::medians).reduce(Medians::worse).context("no sizes")?;
    println!(r#"{{"kill":{},"hang":{},"kill_bridged":{}}}"#, killed.json(), hung.json(), bridged.json());
    Ok(())
}
