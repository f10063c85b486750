//! tidegate whole: probes, verdicts, pushes, and what clients make of them.
//!
//! With the real Envoy where only it can answer, with simulated ones (whose referee watches every message) elsewhere.

mod bare;
mod crowd;
mod existing;
mod inference;
mod llama;
mod loading;
mod manners;
mod ports;
mod reload;
mod restart;
mod rude;
mod spine;
mod talk;
mod walkout;

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tidegate::clock::Clock;
use tidegate::testing::envoy::{Admin, EnvoyOptions, EnvoyProcess};
use tidegate::testing::eventually::eventually;
use tidegate::testing::instance::{FakeInstance, Mode};
use tidegate::testing::load::{Load, Sent, Traffic, shares};
use tidegate::testing::sim_envoy::Wire;

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
pub(crate) const BOTH: [Wire; 2] = [Wire::Delta, Wire::Sotw];

pub(crate) async fn fakes(count: usize) -> Vec<FakeInstance> {
    fakes_in(count, Mode::Healthy).await
}

async fn fakes_in(count: usize, mode: Mode) -> Vec<FakeInstance> {
    let mut fakes = Vec::new();
    for _ in 0..count {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        fakes.push(FakeInstance::start_at(any, mode.clone(), Clock::start()).await.unwrap());
    }
    fakes
}

pub(crate) fn addresses(fakes: &[FakeInstance]) -> Vec<SocketAddr> {
    fakes.iter().map(FakeInstance::address).collect()
}

/// What `tidegate bootstrap` prints.
fn bootstrap(xds: SocketAddr, wire: Wire) -> String {
    let protocol = match wire {
        Wire::Delta => "delta",
        Wire::Sotw => "sotw",
    };
    let output = Command::new(BINARY)
        .args(["bootstrap", "--node-id", "edge-1", "--xds", &xds.to_string(), "--protocol", protocol])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A real Envoy that is given nothing else.
pub(crate) async fn envoy(xds: SocketAddr, wire: Wire) -> EnvoyProcess {
    EnvoyProcess::start(&bootstrap(xds, wire), &EnvoyOptions::default()).await.unwrap()
}

/// EDS health by address, `None` while Envoy does not know the cluster.
async fn hosts(admin: &Admin, cluster: &str) -> Option<Vec<(SocketAddr, String)>> {
    let clusters = admin.clusters().await.unwrap();
    let hosts = clusters.get(cluster)?;
    Some(hosts.iter().map(|(at, host)| (*at, host.eds_health.clone())).collect())
}

pub(crate) async fn wait_hosts(admin: &Admin, cluster: &str, expected: &[(SocketAddr, &str)]) {
    let mut expected: Vec<_> = expected.iter().map(|(at, health)| (*at, (*health).to_owned())).collect();
    expected.sort();
    eventually(&format!("Envoy has {expected:?}"), async || {
        let now = hosts(admin, cluster).await;
        if now.as_ref() == Some(&expected) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap();
}

async fn wait_stat(admin: &Admin, name: &str, expected: u64) {
    eventually(&format!("{name} is {expected}"), async || match admin.stat(name).await {
        Ok(Some(now)) if now == expected => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
}

/// Traffic that runs until it is stopped.
fn traffic(listener: SocketAddr) -> Traffic {
    Traffic::start(Load::new(listener), Clock::start())
}

/// Waits for `count` further answers.
async fn wait_more(traffic: &mut Traffic, count: usize) {
    let seen = traffic.so_far().len();
    traffic.wait_until(|sent| sent.len() >= seen + count).await.unwrap();
}

/// Waits until `name` has served among the answers from `since` on.
async fn wait_served_by(traffic: &mut Traffic, name: &str, since: usize) {
    traffic.wait_until(|sent| shares(&sent[since.min(sent.len())..]).contains_key(name)).await.unwrap();
}

fn assert_all_ok(sent: &[Sent]) {
    let failed: Vec<_> = sent.iter().filter(|sent| !sent.is_ok()).collect();
    assert!(failed.is_empty(), "{} of {} failed, first: {:?}", failed.len(), sent.len(), failed[0]);
}
