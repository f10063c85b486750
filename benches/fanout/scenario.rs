//! What is measured, and how: processes started, told what to do, and read.

use std::time::Duration;

use anyhow::ensure;
use tidegate::clock::Clock;
use tidegate::testing::model::ms;

use crate::process::Role;
use crate::protocol::Wire;

const WARM_UPS: usize = 2;
const FLIPS: usize = 30;
/// Between two flips, so that none meets the one before: at least this, and up to as much again.
const PAUSE_MS: u64 = 250;
const CONNECTS: usize = 3;
/// Clients of the idle run that may be connecting at the same time.
const AT_ONCE: usize = 250;
/// After which ACKs are in and freed memory is seen.
const SETTLE: Duration = ms(1500);
const SAMPLES: u32 = 20;

/// A fleet and what it is told.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub clients: usize,
    pub clusters: usize,
    pub endpoints: usize,
    pub wire: Wire,
}

/// Medians over all flips.
pub struct Figures {
    pub cpu_us: f64,
    pub last_ms: f64,
    pub peak_mb: f64,
}

/// A server and its clients.
struct Pair {
    server: Role,
    clients: Role,
}

impl Shape {
    async fn serve(self, role: &'static str) -> anyhow::Result<Role> {
        let size = [
            "--clusters".to_owned(),
            self.clusters.to_string(),
            "--endpoints".to_owned(),
            self.endpoints.to_string(),
        ];
        Role::start(role, &size)
    }

    /// Gives the seconds until all clients have everything, too.
    async fn connect(self, mut server: Role, at_once: Option<usize>) -> anyhow::Result<(Pair, f64)> {
        let wire = if self.wire == Wire::Delta { "delta" } else { "sotw" };
        let address = server.address().await?;
        let mut args = format!(
            "--clients {} --hear-of {} --wire {wire} --connect {address}",
            self.clients, self.clusters
        );
        if let Some(at_once) = at_once {
            args += &format!(" --at-once {at_once}");
        }
        let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let mut clients = Role::start("clients", &args)?;
        let seconds = clients.hear("connected", Duration::ZERO).await?.parse()?;
        Ok((Pair { server, clients }, seconds))
    }
}

impl Pair {
    async fn start(shape: Shape, role: &'static str) -> anyhow::Result<Self> {
        let server = shape.serve(role).await?;
        Ok(shape.connect(server, None).await?.0)
    }

    /// One flip. Gives the server's CPU time for it and the time until the last client had it.
    async fn flip(&mut self, clock: Clock, pause: Duration) -> anyhow::Result<(Duration, Duration)> {
        self.clients.tell("arm").await?;
        self.clients.hear("armed", Duration::ZERO).await?;
        let (cpu, start) = (self.server.cpu()?, clock.now());
        self.server.tell("flip").await?;
        self.clients.hear("arrived", Duration::ZERO).await?;
        let last = clock.now().since(start);
        tokio::time::sleep(pause).await; // the ACKs are part of the work
        Ok((self.server.cpu()?.saturating_sub(cpu), last))
    }
}

/// Figures of the server, and of the floor if wanted.
pub async fn flips(shape: Shape, with_floor: bool) -> anyhow::Result<Vec<Figures>> {
    let clock = Clock::start();
    let roles: &[&str] = if with_floor { &["server", "floor"] } else { &["server"] };
    let mut pairs = Vec::new();
    for role in roles {
        pairs.push((Pair::start(shape, role).await?, Vec::new(), Vec::new()));
    }
    tokio::time::sleep(SETTLE).await;
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..WARM_UPS + FLIPS {
        for (pair, cpu, last) in &mut pairs {
            let (used, took) = pair.flip(clock, ms(PAUSE_MS + random.u64(..PAUSE_MS))).await?;
            if round >= WARM_UPS {
                cpu.push(used.as_secs_f64() * 1e6 / shape.clients as f64);
                last.push(took.as_secs_f64() * 1e3);
            }
        }
    }
    let figures = pairs.into_iter().map(|(pair, mut cpu, mut last)| {
        let peak_mb = pair.server.memory("VmHWM")? / 1024.0;
        Ok(Figures { cpu_us: median(&mut cpu), last_ms: median(&mut last), peak_mb })
    });
    figures.collect()
}

/// Seconds until all clients that connect at once have everything, and the server's CPU seconds until it is quiet.
pub async fn connect(shape: Shape) -> anyhow::Result<(f64, f64)> {
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTS {
        let server = shape.serve("server").await?;
        let (pair, seconds) = shape.connect(server, None).await?;
        tokio::time::sleep(SETTLE).await;
        wall.push(seconds);
        cpu.push(pair.server.cpu()?.as_secs_f64());
    }
    Ok((median(&mut wall), median(&mut cpu)))
}

/// KiB of the server's memory for each client that is connected and has everything.
pub async fn idle(shape: Shape) -> anyhow::Result<f64> {
    let first = Pair::start(Shape { clients: 1, ..shape }, "server").await?;
    let empty = first.server.memory("VmRSS")?;
    drop(first);
    let server = shape.serve("server").await?;
    let (pair, _) = shape.connect(server, Some(AT_ONCE)).await?;
    tokio::time::sleep(SETTLE).await;
    Ok((pair.server.memory("VmRSS")? - empty) / shape.clients as f64)
}

/// Flips all the time; fails if a client does not hold the truth in the end.
pub async fn churn(shape: Shape, time: Duration) -> anyhow::Result<()> {
    let Pair { mut server, mut clients } = Pair::start(shape, "server").await?;
    let before = server.cpu()?;
    server.tell(&format!("churn {}", time.as_secs())).await?;
    let mut memory = Vec::new();
    for _ in 0..SAMPLES {
        tokio::time::sleep(time / SAMPLES).await;
        memory.push(server.memory("VmRSS")? / 1024.0);
    }
    let flips = server.hear("churned", time).await?;
    let cpu = server.cpu()?.saturating_sub(before).as_secs_f64() / time.as_secs_f64();
    server.tell("truth").await?;
    let truth = server.hear("truth", Duration::ZERO).await?;
    clients.tell(&format!("compare {truth}")).await?;
    let differ = clients.hear("differ", Duration::ZERO).await?;
    let (early, late) = memory.split_at(memory.len() / 2);
    let peak = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    println!("  {flips} flips, {:.0} % of a core; clients that differ from the truth: {differ}", cpu * 100.0);
    println!(
        "  server memory, MB: at most {:.1} in the first half, {:.1} in the second",
        peak(early),
        peak(late)
    );
    ensure!(differ == "0", "{differ} clients do not hold the truth");
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
