//! A probe that is given up leaves nothing behind: no socket, no task, not even a `TIME_WAIT` entry.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tidegate::model::{HttpProtocol, Outcome, StageBudgets};

use super::fakes::{Fake, Step, ok, say};
use super::{MS, PATIENCE, ask, ask_tcp, completion, http};
use crate::completions::{Completions, Mode, Step as Part, token};

/// Sockets of this process that lead to `port`, and entries of the kernel's table that do, whoever owns them.
fn sockets_to(port: u16) -> (usize, usize) {
    let own: HashSet<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let peer = format!(":{port:04X}");
    let to_port: Vec<&str> = table
        .lines()
        .filter(|line| line.split_whitespace().nth(2).is_some_and(|remote| remote.ends_with(&peer)))
        .collect();
    let owned =
        to_port.iter().filter(|line| line.split_whitespace().nth(9).is_some_and(|inode| own.contains(inode)));
    (owned.count(), to_port.len())
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
    for fake in &fakes {
        // At once, for our own descriptors: dropping the probe was all it took.
        assert_eq!(sockets_to(fake.address.port()).0, 0);
        eventually("an empty socket table", || sockets_to(fake.address.port()) == (0, 0)).await;
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
    // Case 2, and after some tokens: status 200, and then silence.
    let stalls = [
        Completions::start(Mode::Stream(vec![Part::Hang])).await,
        Completions::start(Mode::Stream(vec![token(" a"), Part::Raw("data: {\"id\""), Part::Hang])).await,
    ];
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
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
        for stall in &stalls {
            assert_eq!(sockets_to(stall.address.port()).0, 0, "dropping the probe was all it took");
            stall.set(stall.mode());
        }
        eventually("the fakes' tasks to end", || tasks() == before).await;
        settled.push((files(), resident()));
    }
    let ((files_early, memory_early), (files_late, memory_late)) = (settled[4], settled[19]);
    // Tests beside this one open files and take memory too.
    assert!(files_late <= files_early + 100, "{settled:?}");
    assert!(memory_late <= memory_early + 16 * 1024, "{settled:?}");
}

#[tokio::test]
async fn a_probe_dropped_in_flight_takes_its_socket_along() {
    let fake = Fake::always(vec![Step::Hang]).await;
    let port = fake.address.port();
    let mut probe = Box::pin(ask(fake.address, http(HttpProtocol::Http1), PATIENCE));
    while fake.requests.is_empty() {
        tokio::select! {
            _ = &mut probe => panic!("answered"),
            () = tokio::time::sleep(MS(1)) => {}
        }
    }
    assert_eq!(sockets_to(port).0, 1);
    drop(probe);
    assert_eq!(sockets_to(port).0, 0);
}

#[tokio::test]
async fn tcp_probes_do_not_pile_up_in_time_wait() {
    let fake = Fake::always(vec![ok()]).await;
    for _ in 0..100 {
        assert_eq!(ask_tcp(fake.address, PATIENCE).await.outcome, Outcome::Ok);
    }
    assert_eq!(sockets_to(fake.address.port()), (0, 0));
}
