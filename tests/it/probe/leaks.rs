//! A probe that is given up leaves nothing behind: no socket, no task, not even a `TIME_WAIT` entry.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tidegate::model::{HttpProtocol, Outcome, StageBudgets};

use super::fakes::{Fake, Step, ok, say};
use super::{MS, PATIENCE, ask, ask_tcp, completion, http};
use crate::alone::is_alone;
use crate::completions::{Completions, Mode, Step as Part, token};

/// The kernel's table of sockets that lead to one port.
struct Table {
    peer: String,
    /// Entries from before: somebody else may have called *from* this port, and their `TIME_WAIT` lasts a minute.
    before: HashSet<String>,
}

impl Table {
    fn of(port: u16) -> Self {
        let mut table = Self { peer: format!(":{port:04X}"), before: HashSet::new() };
        table.before = table.lines().into_iter().map(|(ends, _)| ends).collect();
        table
    }

    /// Both ends and the inode of each entry.
    fn lines(&self) -> Vec<(String, String)> {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields
            .filter(|f| f.len() > 9 && f[2].ends_with(&self.peer))
            .map(|f| (format!("{} {}", f[1], f[2]), f[9].to_owned()))
            .filter(|(ends, _)| !self.before.contains(ends))
            .collect()
    }

    /// Sockets of this process, and entries of the table, whoever owns them.
    fn count(&self) -> (usize, usize) {
        let own: HashSet<String> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
            .collect();
        let lines = self.lines();
        (lines.iter().filter(|(_, inode)| own.contains(inode)).count(), lines.len())
    }
}

/// Waits until `ready` holds: the kernel and the fakes' tasks need a moment to notice an end.
async fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if ready() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come true");
}

#[tokio::test]
async fn a_thousand_stalled_probes_leave_no_socket_and_no_task() {
    let partial = say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
    let fakes = [
        Fake::always(vec![Step::Hang]).await,
        Fake::always(vec![partial, Step::Hang]).await,
        Fake::always(vec![say("HTTP/1.1 200 OK\r\nx: "), Step::Drip(b'a', MS(5))]).await,
    ];
    let tables = fakes.each_ref().map(|fake| Table::of(fake.address.port()));
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let probes: FuturesUnordered<_> = (0..1_000)
        .map(|n| {
            let protocol = if n % 4 == 0 { HttpProtocol::H2c } else { HttpProtocol::Http1 };
            ask(fakes[n % 3].address, http(protocol), MS(300))
        })
        .collect();
    let outcomes: Vec<Outcome> = probes.map(|answer| answer.outcome).collect().await;
    assert_eq!(outcomes.len(), 1_000);
    assert!(!outcomes.contains(&Outcome::Ok));
    for table in &tables {
        // At once, for our own descriptors: dropping the probe was all it took.
        assert_eq!(table.count().0, 0);
        eventually("an empty socket table", || table.count() == (0, 0)).await;
    }
    eventually("the fakes' tasks to end", || tasks() == before).await;
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[tokio::test]
async fn ten_thousand_completions_that_stall_leave_nothing() {
    if !is_alone("probe::leaks::ten_thousand_completions_that_stall_leave_nothing") {
        return;
    }
    // Case 2, and after some tokens: status 200, and then silence.
    let stalls = [
        Completions::start(Mode::Stream(vec![Part::Hang])).await,
        Completions::start(Mode::Stream(vec![token(" a"), Part::Raw("data: {\"id\""), Part::Hang])).await,
    ];
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let tables = stalls.each_ref().map(|stall| Table::of(stall.address.port()));
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = tasks();
    let mut settled = Vec::new();
    for round in 0..20_u64 {
        let probes: FuturesUnordered<_> = (0..500)
            .map(|n| {
                let openai = completion::question("/v1/completions", StageBudgets::default());
                completion::ask(&stalls[(n % 2) as usize], openai, MS(200), round * 500 + n)
            })
            .collect();
        let outcomes: Vec<Outcome> = probes.map(|answer| answer.outcome).collect().await;
        // Unknown: this machine was too busy to notice a deadline in time.
        let stalled = |outcome: &Outcome| matches!(outcome, Outcome::Timeout | Outcome::Unknown);
        assert!(outcomes.iter().all(stalled), "{outcomes:?}");
        for (stall, table) in stalls.iter().zip(&tables) {
            assert_eq!(table.count().0, 0, "dropping the probe was all it took");
            stall.set(stall.mode());
        }
        eventually("the fakes' tasks to end", || tasks() == before).await;
        settled.push((files(), resident()));
    }
    let ((files_early, memory_early), (files_late, memory_late)) = (settled[4], settled[19]);
    assert!(files_late <= files_early + 20, "{settled:?}");
    assert!(memory_late <= memory_early + 16 * 1024, "{settled:?}");
}

#[tokio::test]
async fn a_probe_dropped_in_flight_takes_its_socket_along() {
    let fake = Fake::always(vec![Step::Hang]).await;
    let table = Table::of(fake.address.port());
    let mut probe = Box::pin(ask(fake.address, http(HttpProtocol::Http1), PATIENCE));
    while fake.requests.is_empty() {
        tokio::select! {
            _ = &mut probe => panic!("answered"),
            () = tokio::time::sleep(MS(1)) => {}
        }
    }
    assert_eq!(table.count().0, 1);
    drop(probe);
    assert_eq!(table.count().0, 0);
}

#[tokio::test]
async fn tcp_probes_do_not_pile_up_in_time_wait() {
    let fake = Fake::always(vec![ok()]).await;
    let table = Table::of(fake.address.port());
    for _ in 0..100 {
        assert_eq!(ask_tcp(fake.address, PATIENCE).await.outcome, Outcome::Ok);
    }
    assert_eq!(table.count(), (0, 0));
}
