//! Clients that speak no xDS, or stop in the middle of it.

use std::net::SocketAddr;

use tidegate::testing::app::TestApp;
use tidegate::testing::eventually::eventually;
use tidegate::testing::fetch;
use tidegate::testing::setup::Setup;
use tidegate::testing::sim_envoy::{Machine, SimEnvoy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{BOTH, addresses, fakes};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What one of them sends before it goes.
fn utterance(number: usize) -> Vec<u8> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    match number % 8 {
        0 => Vec::new(),
        1 => b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        2 => vec![0xff; 4096],
        3 => PREFACE[..10].to_vec(),
        4 => [PREFACE, &settings].concat(),
        // A header block of 16 MiB is announced, and begins.
        5 => [PREFACE, &settings, &[0xff, 0xff, 0xff, 1, 4, 0, 0, 0, 1], &[b'x'; 2000]].concat(),
        // Header blocks that never end.
        6 => {
            let mut flood = [PREFACE, &settings, &[0, 64, 0, 1, 0, 0, 0, 0, 1]].concat();
            flood.extend([b'h'; 64 * 256]);
            for _ in 0..32 {
                flood.extend([0, 64, 0, 9, 0, 0, 0, 0, 1]);
                flood.extend([b'h'; 64 * 256]);
            }
            flood
        }
        // Data for a stream that was never opened.
        _ => [PREFACE, &settings, &[0, 0, 4, 0, 1, 0, 0, 0, 7], b"data"].concat(),
    }
}

async fn rude(to: SocketAddr, number: usize) {
    let mut socket = TcpStream::connect(to).await.unwrap();
    // The peer may have hung up already.
    let _ = socket.write_all(&utterance(number)).await;
    if number.is_multiple_of(3) {
        let _ = socket.read(&mut [0; 64]).await;
    }
    if number.is_multiple_of(2) {
        socket.set_zero_linger().unwrap(); // RST instead of FIN
    }
}

#[tokio::test]
async fn two_hundred_abrupt_clients_leave_nothing_behind() {
    let fakes = fakes(1).await;
    let app = TestApp::start(&Setup::new().cluster("llm", addresses(&fakes))).await.unwrap();
    let mut visitors = tokio::task::JoinSet::new();
    let mut quiet = Vec::new();
    for number in 0..200 {
        if number % 10 == 9 {
            // A polite one, dropped in the middle of its conversation.
            let sim = app.sim(BOTH[number % 2]);
            sim.hold_answers(number % 20 == 9);
            let begun = |m: &Machine| if m.streams() > 0 { Ok(()) } else { Err("no stream".to_owned()) };
            sim.wait_until("a stream", begun).await.unwrap();
            quiet.push(sim);
        } else {
            visitors.spawn(rude(app.xds(), number));
        }
    }
    while let Some(gone) = visitors.join_next().await {
        gone.unwrap();
    }
    drop(quiet);
    eventually("nobody is left", async || {
        let metrics = app.metrics().await.map_err(|e| format!("{e:#}"))?;
        let zero = ["tidegate_xds_streams 0", "tidegate_xds_connections 0"];
        if zero.iter().all(|line| metrics.lines().any(|l| l == *line)) && app.clients.list().is_empty() {
            Ok(())
        } else {
            Err(metrics.lines().filter(|l| l.starts_with("tidegate_xds")).collect::<Vec<_>>().join("\n"))
        }
    })
    .await
    .unwrap();
    assert!(fetch::get(app.health(), "/livez").await.unwrap().status.is_success());
    let sim: SimEnvoy = app.sim(BOTH[0]);
    let served = |m: &Machine| m.assignment("llm").map(|_| ()).ok_or_else(|| "nothing yet".to_owned());
    sim.wait_until("served as ever", served).await.unwrap();
    drop(sim);
    app.stop().await.unwrap();
}
