//! gRPC's own xDS client as tidegate's client: real servers and a real channel, on grpcio.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;

use tidegate::model::{Plan, Serve};
use tidegate::testing::app::TestApp;
use tidegate::testing::eventually::{eventually, patience};
use tidegate::testing::parts;
use tidegate::testing::setup::{Setup, free_address};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::admin::ok;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/grpc/peer.py");

/// A Python process; killed when dropped.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// What a channel has seen since the last time it was asked.
#[derive(Debug, serde::Deserialize)]
struct Seen {
    by: BTreeMap<String, usize>,
    failed: BTreeMap<String, usize>,
}

impl Peer {
    fn start(args: &[&str], bootstrap: &str) -> Self {
        let mut child = Command::new("python3")
            .arg(SCRIPT)
            .args(args)
            .env("PYTHONPATH", parts::grpcio().unwrap())
            .env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::new(stdout).lines() }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(patience(), self.lines.next_line()).await;
        line.expect("the peer speaks").unwrap().expect("the peer runs")
    }

    async fn server(name: &str, at: SocketAddr) -> Self {
        let mut server = Self::start(&["server", name, &at.to_string()], "");
        assert_eq!(server.line().await, at.port().to_string());
        server
    }

    fn client(xds: SocketAddr, target: &str) -> Self {
        let bootstrap = serde_json::json!({
            "xds_servers": [{
                "server_uri": xds.to_string(),
                "channel_creds": [{ "type": "insecure" }],
                "server_features": ["xds_v3"],
            }],
            "node": { "id": "proxyless-1", "cluster": "test" },
        });
        Self::start(&["client", target], &bootstrap.to_string())
    }

    async fn seen(&mut self) -> Seen {
        self.stdin.write_all(b"\n").await.unwrap();
        serde_json::from_str(&self.line().await).unwrap()
    }

    /// Waits until these servers answer and no others, and nothing fails any more. Gives what failed meanwhile.
    async fn wait_served_by(&mut self, names: &[&str]) -> BTreeMap<String, usize> {
        let (mut failed, mut by) = (BTreeMap::new(), BTreeMap::<String, usize>::new());
        let what = format!("served by {names:?}");
        let only_these = eventually(&what, async || {
            let seen = self.seen().await;
            if !seen.failed.is_empty() || seen.by.keys().any(|name| !names.contains(&name.as_str())) {
                by.clear();
                failed.extend(seen.failed);
                return Err(format!("{:?}, {failed:?}", seen.by));
            }
            for (name, count) in seen.by {
                *by.entry(name).or_default() += count;
            }
            if by.len() == names.len() && by.values().sum::<usize>() >= 30 {
                Ok(())
            } else {
                Err(format!("{by:?}"))
            }
        });
        only_these.await.unwrap();
        failed
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn setup(servers: &[SocketAddr]) -> Setup {
    let checks = "checks: { readiness: { tcp: {}, interval: 200ms, timeout: 150ms, confirm_interval: 50ms, \
                  min_failing_time: { unreachable: 100ms } } }";
    Setup::new().cluster_with("llm", servers.iter().copied(), checks)
}

#[tokio::test]
async fn grpcs_own_client_follows_verdicts_and_loses_nothing_by_a_drain() {
    let at = [free_address(), free_address(), free_address()];
    let mut a = Peer::server("a", at[0]).await;
    let b = Peer::server("b", at[1]).await;
    let c = Peer::server("c", at[2]).await;
    let listener = free_address();
    let app = TestApp::start(&setup(&at).listener("front", listener, "llm")).await.unwrap();
    // The cluster by its own name, and through the routes of a listener.
    let mut channels = [Peer::client(app.xds(), "xds:///llm"), Peer::client(app.xds(), "xds:///front")];
    for channel in &mut channels {
        channel.wait_served_by(&["a", "b", "c"]).await;
    }
    let clients = app.clients.list();
    assert!(clients.values().all(|client| client.agent.starts_with("gRPC")), "{clients:?}");
    assert!(clients.values().all(|client| client.kinds.values().all(|kind| kind.nacks == 0)), "{clients:?}");

    for _ in 0..2 {
        a.kill().await;
        app.wait_plan("a is out", |plan| served(plan, at[0]) == Some(Serve::Unhealthy)).await.unwrap();
        for channel in &mut channels {
            channel.wait_served_by(&["b", "c"]).await;
        }
        a = Peer::server("a", at[0]).await;
        for channel in &mut channels {
            channel.wait_served_by(&["a", "b", "c"]).await;
        }
    }

    ok(&app, &["drain", &format!("llm/{}", app.instance_of("llm", at[1])), "--wait"]).await;
    for channel in &mut channels {
        let failed = channel.wait_served_by(&["a", "c"]).await;
        assert!(failed.is_empty(), "{failed:?}");
    }
    b.kill().await;
    for channel in &mut channels {
        let seen = channel.seen().await;
        assert!(seen.failed.is_empty(), "{seen:?}");
    }
    drop(c);
    app.stop().await.unwrap();
}

fn served(plan: &Plan, at: SocketAddr) -> Option<Serve> {
    let mut entries = plan.clusters.values().flat_map(|cluster| &cluster.entries);
    entries.find(|entry| entry.address.socket() == at).map(|entry| entry.serve)
}
