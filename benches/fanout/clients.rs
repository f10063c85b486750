//! All clients of a run, in one process and on one runtime.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use tidegate::clock::Clock;
use tidegate::testing::model::ms;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use crate::client;
use crate::protocol::{Held, Wire};
use crate::role::{Commands, say};
use crate::world::name;

/// How long stragglers may take after the churn.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = ms(50);

/// Who connects, and how.
#[derive(Debug, Clone, clap::Args)]
pub struct Crowd {
    #[arg(long, default_value_t = 0)]
    pub clients: usize,
    /// How many may be on the way to completeness at the same time.
    #[arg(long, default_value_t = Semaphore::MAX_PERMITS)]
    pub at_once: usize,
    /// Clusters that each is to hear of.
    #[arg(long, default_value_t = 0)]
    pub hear_of: usize,
    #[arg(long, value_enum, default_value_t = Wire::Delta)]
    pub wire: Wire,
    #[arg(long, default_value = "127.0.0.1:1")]
    pub connect: SocketAddr,
}

/// How far all clients are.
pub struct Progress {
    hear_of: usize,
    starts: Semaphore,
    /// Clients that have heard of everything.
    complete: AtomicUsize,
    /// How often a flip came to a client, and the number that is waited for.
    arrivals: AtomicUsize,
    target: AtomicUsize,
    reached: Notify,
}

impl Progress {
    pub fn is_complete(&self, held: &Held) -> bool {
        held.clusters.len() == self.hear_of && held.endpoints.len() == self.hear_of
    }

    pub fn completed(&self) {
        self.starts.add_permits(1);
        self.complete.fetch_add(1, Ordering::AcqRel);
        self.reached.notify_one();
    }

    pub fn arrived(&self) {
        if self.arrivals.fetch_add(1, Ordering::AcqRel) + 1 == self.target.load(Ordering::Acquire) {
            self.reached.notify_one();
        }
    }

    async fn wait(&self, reached: impl Fn() -> bool) {
        while !reached() {
            self.reached.notified().await;
        }
    }
}

pub async fn run(crowd: Crowd) -> anyhow::Result<()> {
    let clock = Clock::start();
    let progress = Arc::new(Progress {
        hear_of: crowd.hear_of,
        starts: Semaphore::new(crowd.at_once),
        complete: AtomicUsize::new(0),
        arrivals: AtomicUsize::new(0),
        target: AtomicUsize::new(0),
        reached: Notify::new(),
    });
    let mut clients = JoinSet::new();
    let mut held = Vec::new();
    for id in 0..crowd.clients {
        progress.starts.acquire().await?.forget();
        let mine = watch::Sender::new(Held::default());
        held.push(mine.subscribe());
        let (crowd, progress) = (crowd.clone(), progress.clone());
        clients.spawn(async move { client::run(id, &crowd, mine, &progress).await });
    }
    let all = || progress.complete.load(Ordering::Acquire) == crowd.clients;
    tokio::select! {
        () = progress.wait(all) => say(&format!("connected {}", clock.now().since_start().as_secs_f64())),
        Some(ended) = clients.join_next() => return ended?,
    }
    let mut commands = Commands::new();
    loop {
        let command = tokio::select! {
            command = commands.next() => command,
            Some(ended) = clients.join_next() => return ended?,
        };
        let Some(command) = command else { return Ok(()) };
        match command.split_once(' ').unwrap_or((&command, "")) {
            ("arm", _) => {
                let target = progress.arrivals.load(Ordering::Acquire) + crowd.clients;
                progress.target.store(target, Ordering::Release);
                say("armed");
                progress.wait(|| progress.arrivals.load(Ordering::Acquire) >= target).await;
                say("arrived");
            }
            ("compare", truth) => {
                let truth: Vec<&str> = truth.split(' ').collect();
                say(&format!("differ {}", compare(&held, &truth, clock).await));
            }
            _ => bail!("what is {command:?}?"),
        }
    }
}

/// How many clients do not hold the truth, also after some patience.
async fn compare(clients: &[watch::Receiver<Held>], truth: &[&str], clock: Clock) -> usize {
    let until = clock.now() + PATIENCE;
    loop {
        let differ = clients.iter().filter(|held| !equal(&held.borrow(), truth)).count();
        if differ == 0 || clock.now() > until {
            return differ;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn equal(held: &Held, truth: &[&str]) -> bool {
    let version = |n| held.endpoints.get(&name(n)).map(String::as_str);
    held.endpoints.len() == truth.len() && truth.iter().enumerate().all(|(n, v)| version(n) == Some(*v))
}
