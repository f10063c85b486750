//! What each client holds, asked by a real client of CSDS and by the command.

use std::sync::Arc;

use serde_json::Value;
use tidegate::model::Serve;
use tidegate::testing::app::TestApp;
use tidegate::testing::eventually::eventually;
use tidegate::testing::instance::Mode;
use tidegate::testing::parts;
use tidegate::testing::setup::Setup;
use tidegate::testing::sim_envoy::{Asks, Kind, Node, Refusal, RefuseRule, SimEnvoy, SimOptions};
use tokio::process::Command;

use crate::admin::{ok, run};
use crate::system::{BOTH, addresses, fakes};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/csds/ask.py");

async fn ask(app: &TestApp, nodes: &[&str]) -> Value {
    let path = [parts::grpcio().unwrap(), parts::xds_protos().unwrap()];
    let output = Command::new("python3")
        .arg(SCRIPT)
        .arg(app.admin().to_string())
        .args(nodes)
        .env("PYTHONPATH", std::env::join_paths(path).unwrap())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The one of `resources` with this type and name.
fn find<'a>(resources: &'a Value, kind: &str, name: &str) -> Result<&'a Value, String> {
    let found = resources.as_array().into_iter().flatten().find(|r| r["type"] == kind && r["name"] == name);
    found.ok_or_else(|| format!("no {kind} {name} in {resources}"))
}

#[tokio::test]
async fn what_a_client_holds_is_told_resource_by_resource() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let setup = Setup::new().cluster("llm", [a, b]).cluster("other", [a]);
        let app = TestApp::start(&setup).await.unwrap();
        app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
        let rule: RefuseRule = Arc::new(|kind, name, _| {
            let refused = kind == Kind::Endpoint && name == "other";
            refused.then(|| Refusal { message: "not this one".into(), spoils_message: false })
        });
        let options = SimOptions { asks: Asks::clusters(), ..SimOptions::new(app.xds(), wire) };
        let named = |id: &str, refuse| {
            let node = Node { id: id.to_owned(), ..options.node.clone() };
            SimEnvoy::start(SimOptions { node, refuse, ..options.clone() })
        };
        let (picky, _easy) = (named("picky", vec![rule]), named("easy", Vec::new()));
        let holdings = async |node: &str| -> Value {
            let (_, out, _) = run(&app, &["describe", "envoy", node, "-o", "json"]).await;
            serde_json::from_str::<Value>(&out).map(|all| all[0]["holdings"].clone()).unwrap_or_default()
        };
        let wait = async |node: &str, kind: &str, name: &str, state: &str| -> Value {
            eventually(&format!("{node} has {kind} {name} {state}"), async || {
                let holdings = holdings(node).await;
                let found = find(&holdings, kind, name)?;
                if found["state"] == state { Ok(found.clone()) } else { Err(found.to_string()) }
            })
            .await
            .unwrap()
        };
        wait("easy", "eds", "other", "SYNCED").await;
        wait("picky", "cds", "other", "SYNCED").await;
        let llm = wait("picky", "eds", "llm", "SYNCED").await;
        assert!(llm["held"] == llm["truth"] && llm["held"] != "" && llm["sent"] == "", "{llm}");
        let other = wait("picky", "eds", "other", "REFUSED").await;
        assert!(other["refused"] == other["truth"] && other["held"] == "", "{other}");
        let table = ok(&app, &["describe", "envoy", "picky"]).await;
        assert!(table.contains("HELD") && table.contains("LAST ACK") && table.contains(" ago"), "{table}");

        let answer = ask(&app, &["picky"]).await;
        let [client] = &answer.as_array().unwrap()[..] else { panic!("one was asked for: {answer}") };
        assert_eq!((client["node"].as_str(), client["version"].as_str()), (Some("picky"), Some("1.40.0")));
        let of_llm = find(&client["resources"], "ClusterLoadAssignment", "llm").unwrap();
        assert_eq!((&of_llm["config"], &of_llm["client"]), (&"SYNCED".into(), &"ACKED".into()));
        assert_eq!(of_llm["version"], llm["held"]);
        let refused = find(&client["resources"], "ClusterLoadAssignment", "other").unwrap();
        assert_eq!((&refused["config"], &refused["client"]), (&"ERROR".into(), &"NACKED".into()));
        assert_eq!((&refused["refused"], &refused["words"]), (&other["refused"], &"not this one".into()));
        assert_eq!(ask(&app, &[]).await.as_array().unwrap().len(), 2, "everybody");
        assert_eq!(ask(&app, &["nobody"]).await, Value::Array(Vec::new()));

        // One that hangs is asked about like any other.
        picky.hold_answers(true);
        fakes[1].set(Mode::Loading).await.unwrap();
        let pending = wait("picky", "eds", "llm", "PENDING").await;
        assert!(pending["held"] == llm["held"] && pending["sent"] == pending["truth"], "{pending}");
        assert_ne!(pending["sent"], llm["held"]);
        let answer = ask(&app, &["picky"]).await;
        let of_llm = find(&answer[0]["resources"], "ClusterLoadAssignment", "llm").unwrap();
        assert_eq!((&of_llm["config"], &of_llm["version"]), (&"STALE".into(), &llm["held"]));
        assert_eq!(app.metric("tidegate_xds_repairs_total{type=\"eds\"}").await.unwrap_or(0.0), 0.0);
        app.stop().await.unwrap();
    }
}
