//! An Envoy with a config of its own comes over to tidegate, and goes back: docs/existing-envoys.md, as it is written.

use std::net::SocketAddr;

use tidegate::testing::app::TestApp;
use tidegate::testing::envoy::{EnvoyOptions, EnvoyProcess};
use tidegate::testing::eventually::eventually;
use tidegate::testing::instance::Mode;
use tidegate::testing::load::shares;
use tidegate::testing::setup::{Setup, free_address};

use crate::admin::ok;

use super::{addresses, assert_all_ok, fakes, traffic, wait_hosts, wait_more};

const BEFORE: &str = include_str!("../../../envoy/existing.yaml");
const DOC: &str = include_str!("../../../docs/existing-envoys.md");

/// Applies the hunks of the page's diff to `text`.
fn patched(text: &str) -> String {
    let diff = DOC.split("```diff\n").nth(1).unwrap().split("```").next().unwrap();
    let mut text = text.to_owned();
    for hunk in diff.split("@@").skip(1) {
        let lines: Vec<&str> = hunk.lines().skip(1).collect();
        let side = |mark: char| -> String {
            let mine = lines.iter().filter(|line| line.starts_with([' ', mark]));
            mine.map(|line| format!("{}\n", &line[1..])).collect()
        };
        let (old, new) = (side('-'), side('+'));
        assert_eq!(text.matches(&old).count(), 1, "the page's diff does not fit:\n{old}");
        text = text.replace(&old, &new);
    }
    let new = diff.lines().filter(|line| line.starts_with('+') && *line != "+static_resources:").count();
    assert!(new <= 10, "{new} new lines");
    text
}

/// With this test's addresses in place of the page's.
fn at(text: &str, ingress: SocketAddr, xds: SocketAddr, backends: &[SocketAddr]) -> String {
    let port = |port: u16| format!("port_value: {port} }}");
    text.replace(&port(8080), &port(ingress.port()))
        .replace(&port(18000), &port(xds.port()))
        .replace(&port(9001), &port(backends[0].port()))
        .replace(&port(9002), &port(backends[1].port()))
}

#[tokio::test]
async fn an_envoy_with_a_config_of_its_own_comes_over_and_goes_back_without_a_failed_request() {
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let app = TestApp::start(&Setup::new().cluster("llama", [a, b])).await.unwrap();
    app.wait_plan("both serve", |plan| plan.clusters.values().all(|c| c.entries.len() == 2)).await.unwrap();
    let ingress = free_address();
    let own = at(BEFORE, ingress, app.xds(), &[a, b]);
    let over = at(&patched(BEFORE), ingress, app.xds(), &[a, b]);
    let base = std::process::id();
    let start = async |text: &str, epoch| {
        let options = EnvoyOptions { restart: Some((base, epoch)), ..EnvoyOptions::default() };
        EnvoyProcess::start(text, &options).await.unwrap()
    };
    let old = start(&own, 0).await;
    let mut traffic = traffic(ingress);
    wait_more(&mut traffic, 40).await;

    let moved = start(&over, 1).await;
    wait_hosts(moved.admin(), "llama", &[(a, "HEALTHY"), (b, "HEALTHY")]).await;
    gone(old).await;
    let admin = moved.admin().address().to_string();
    let described = ok(&app, &["describe", "cluster", "llama", "--envoy-admin", &admin]).await;
    assert!(described.contains("nothing works against the verdicts"), "{described}");
    wait_more(&mut traffic, 100).await;
    // It listens to verdicts now.
    fakes[0].set(Mode::Status(http::StatusCode::SERVICE_UNAVAILABLE)).await.unwrap();
    wait_hosts(moved.admin(), "llama", &[(a, "UNHEALTHY"), (b, "HEALTHY")]).await;
    wait_more(&mut traffic, 20).await;
    let sent = traffic.so_far().len();
    wait_more(&mut traffic, 40).await;
    assert!(!shares(&traffic.so_far()[sent..]).contains_key(fakes[0].name()));

    let back = start(&own, 2).await;
    gone(moved).await;
    wait_more(&mut traffic, 100).await;
    assert!(app.clients.list().is_empty(), "nobody asks tidegate any more");
    assert_all_ok(&traffic.stop().await);
    drop(back);
    app.stop().await.unwrap();
}

/// Waits until the process has handed over and ended by itself.
async fn gone(mut envoy: EnvoyProcess) {
    eventually("the old Envoy has ended", async || if envoy.has_ended() { Ok(()) } else { Err("it runs") })
        .await
        .unwrap();
}
