//! The admin API and the commands that use it, on a running tidegate.

use std::process::Output;
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::model::Serve;
use tidegate::pb::admin::admin_client::AdminClient;
use tidegate::pb::admin::{self as pb, DrainInstanceRequest, WatchDrainRequest};
use tidegate::testing::app::TestApp;
use tidegate::testing::eventually::eventually;
use tidegate::testing::setup::Setup;
use tidegate::testing::sim_envoy::{Asks, Kind, Machine, Node, Refusal, RefuseRule, SimEnvoy, SimOptions};
use tokio::process::Command;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::system::{BOTH, addresses, envoy, fakes, wait_hosts};

/// The program, told where the running tidegate is.
fn tidegate(app: &TestApp, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env("TIDEGATE_SERVER", app.admin().to_string()).kill_on_drop(true);
    command
}

async fn channel(app: &TestApp) -> Channel {
    Endpoint::from_shared(format!("http://{}", app.admin())).unwrap().connect().await.unwrap()
}

pub(crate) async fn run(app: &TestApp, args: &[&str]) -> (Output, String, String) {
    let output = tidegate(app, args).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

pub(crate) async fn ok(app: &TestApp, args: &[&str]) -> String {
    let (output, out, err) = run(app, args).await;
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out
}

#[tokio::test]
async fn a_drain_waits_for_the_acknowledgement_of_every_stream_and_can_be_taken_back() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
        app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
        let options = SimOptions { asks: Asks::clusters(), ..SimOptions::new(app.xds(), wire) };
        let named = |id: &str| {
            let node = Node { id: id.to_owned(), ..options.node.clone() };
            SimEnvoy::start(SimOptions { node, ..options.clone() })
        };
        let (quick, slow) = (named("quick"), named("slow"));
        let both = |m: &Machine| match m.assignment("llm") {
            Some(all) if all.len() == 2 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        for sim in [&quick, &slow] {
            sim.wait_until("both endpoints", both).await.unwrap();
        }
        let id = app.instance_of("llm", a);
        let name = format!("llm/{id}");
        let mut api = AdminClient::new(channel(&app).await);
        let watch = pb::WatchDrainRequest { name: format!("clusters/llm/instances/{id}") };
        let error = api.watch_drain(watch.clone()).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::FailedPrecondition, "nobody has asked for a drain");
        slow.hold_answers(true);
        let mut drain =
            tidegate(&app, &["drain", &name, "--reason", "upgrade", "--wait", "--timeout", "60s"])
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
        app.wait_served("llm", &[(a, Serve::Draining), (b, Serve::Healthy)]).await.unwrap();
        let mut statuses = api.watch_drain(watch.clone()).await.unwrap().into_inner();
        let mut half = statuses.message().await.unwrap().unwrap();
        while half.settled.is_empty() {
            half = statuses.message().await.unwrap().unwrap();
        }
        assert_eq!((half.pending.len(), half.acknowledged), (1, false), "{half:?}");
        assert!(drain.try_wait().unwrap().is_none(), "the slow one has not acknowledged");
        // To be cut off is no acknowledgement.
        slow.disconnect();
        while half.lost.is_empty() {
            half = statuses.message().await.unwrap().unwrap();
            assert!(!half.acknowledged, "{half:?}");
        }
        slow.hold_answers(false);
        slow.connect();
        while !half.acknowledged {
            half = statuses.message().await.unwrap().unwrap();
        }
        assert!(half.lost.is_empty() && half.pending.is_empty() && half.settled.len() == 2, "{half:?}");
        let ended = drain.wait_with_output().await.unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert!(String::from_utf8_lossy(&ended.stderr).contains("every connected Envoy knows"));

        let listed = ok(&app, &["get", "instances"]).await;
        assert!(
            listed.contains("draining") && listed.contains("drained by an operator: upgrade"),
            "{listed}"
        );
        let json: serde_json::Value =
            serde_json::from_str(&ok(&app, &["describe", &name, "-o", "json"]).await).unwrap();
        assert_eq!(json["serve"], "DRAINING");
        // Known already: a second drain with --wait ends at once, and changes nothing.
        ok(&app, &["drain", &name, "--wait"]).await;
        slow.hold_answers(true);
        ok(&app, &["undrain", &name]).await;
        // Until that is out: taken back before it was told, the first drain would stand as it was.
        quick
            .wait_until("it is healthy again", |m| match m.assignment("llm").and_then(|all| all.get(&a)) {
                Some(told) if told.health.as_str_name() == "HEALTHY" => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
            .unwrap();
        ok(&app, &["drain", &name]).await;
        let mut statuses = api.watch_drain(watch).await.unwrap().into_inner();
        assert!(!statuses.message().await.unwrap().unwrap().acknowledged);
        ok(&app, &["undrain", &name]).await;
        let error = loop {
            match statuses.message().await {
                Ok(status) => assert!(!status.expect("it is not acknowledged").acknowledged),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), tonic::Code::FailedPrecondition, "{error}");
        slow.hold_answers(false);
        app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn fifty_other_changes_before_a_late_acknowledgement_neither_prove_a_drain_nor_hide_its_proof() {
    // Case 74. Beside the stream machines it is the table of clients that must not mistake one change for another.
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let setup = Setup::new().merge_window("0s").cluster("llm", [a, b]).cluster("other", [a, b]);
        let app = TestApp::start(&setup).await.unwrap();
        for cluster in ["llm", "other"] {
            app.wait_served(cluster, &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
        }
        let slow = SimEnvoy::start(SimOptions { asks: Asks::clusters(), ..SimOptions::new(app.xds(), wire) });
        let is = |cluster: &'static str, health: &'static str| {
            move |m: &Machine| match m.assignment(cluster).and_then(|all| all.get(&a)) {
                Some(endpoint) if endpoint.health.as_str_name() == health => Ok(()),
                other => Err(format!("{other:?}")),
            }
        };
        slow.wait_until("both clusters", |m| is("llm", "HEALTHY")(m).and(is("other", "HEALTHY")(m)))
            .await
            .unwrap();
        slow.hold_answers(true);
        let mut admin = AdminClient::new(app.admin_channel().await.unwrap());
        let name = |cluster: &str| format!("clusters/{cluster}/instances/{}", app.instance_of(cluster, a));
        let drain = |cluster: &str| pb::DrainInstanceRequest { name: name(cluster), ..Default::default() };
        let drained = admin.drain_instance(drain("llm")).await.unwrap().into_inner();
        slow.wait_until("the drain has arrived", is("llm", "DRAINING")).await.unwrap();
        let mut proof =
            admin.watch_drain(pb::WatchDrainRequest { name: name("llm") }).await.unwrap().into_inner();
        for _ in 0..25 {
            admin.drain_instance(drain("other")).await.unwrap();
            admin.undrain_instance(pb::UndrainInstanceRequest { name: name("other") }).await.unwrap();
        }
        let knows = || {
            let settled = |c: &tidegate::xds::ClientStatus| c.settled.get("llm").copied();
            app.clients.list().values().any(|client| settled(client) >= Some(drained.generation))
        };
        assert!(!knows() && !proof.message().await.unwrap().unwrap().acknowledged);
        slow.hold_answers(false);
        while let Some(status) = proof.message().await.unwrap() {
            assert_eq!(status.acknowledged, status.pending.is_empty(), "{status:?}");
            if status.acknowledged {
                break;
            }
        }
        assert!(knows());
        slow.wait_until("the other as it was", is("other", "HEALTHY")).await.unwrap();
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_drained_instance_of_a_real_envoy_gets_nothing_new() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
        let envoy = envoy(app.xds(), wire).await;
        wait_hosts(envoy.admin(), "llm", &[(a, "HEALTHY"), (b, "HEALTHY")]).await;
        let name = format!("llm/{}", app.instance_of("llm", a));
        ok(&app, &["drain", &name, "--wait"]).await;
        wait_hosts(envoy.admin(), "llm", &[(a, "DRAINING"), (b, "HEALTHY")]).await;
        let clusters = ok(&app, &["get", "clusters"]).await;
        assert!(clusters.contains("decided"), "{clusters}");
        let envoys = ok(&app, &["get", "envoys", "-o", "yaml"]).await;
        assert!(envoys.contains("agent: envoy"), "{envoys}");
        app.stop().await.unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_done_is_one_clear_error_on_stderr() {
    let app = TestApp::start(&Setup::new().cluster("llm", addresses(&fakes(1).await))).await.unwrap();
    for (args, says) in [
        (&["drain", "llm/nobody"][..], "there is no instance llm/nobody"),
        (&["drain", "llm"], "is not CLUSTER/INSTANCE"),
        (&["get", "instances", "--cluster", "nothing"], "there is no cluster nothing"),
        (&["get", "instances", "--server", "127.0.0.1:1"], "no tidegate answers at 127.0.0.1:1"),
    ] {
        let (output, out, err) = run(&app, args).await;
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(out.is_empty() && err.contains(says), "{args:?}: {err}");
    }
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_followed_drain_ends_with_the_process_and_does_not_delay_it() {
    let fakes = fakes(2).await;
    let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
    let app = TestApp::start(&Setup::new().cluster("llm", [a, b])).await.unwrap();
    app.wait_served("llm", &[(a, Serve::Healthy), (b, Serve::Healthy)]).await.unwrap();
    let sim = app.sim(BOTH[0]);
    let both = |m: &Machine| m.assignment("llm").map(|_| ()).ok_or_else(|| "nothing yet".to_owned());
    sim.wait_until("endpoints", both).await.unwrap();
    sim.hold_answers(true);
    let mut client = AdminClient::new(channel(&app).await);
    let name = format!("clusters/llm/instances/{}", app.instance_of("llm", a));
    let drain = DrainInstanceRequest { name: name.clone(), ..DrainInstanceRequest::default() };
    client.drain_instance(drain).await.unwrap();
    let watch = WatchDrainRequest { name };
    let mut followed = client.watch_drain(watch).await.unwrap().into_inner();
    assert!(!followed.message().await.unwrap().unwrap().acknowledged);
    let clock = Clock::start();
    let (stopped, rest) = tokio::join!(app.stop(), async {
        while followed.message().await?.is_some() {}
        Ok::<_, tonic::Status>(())
    });
    stopped.unwrap();
    rest.unwrap();
    // Nobody had to wait for the end of a grace.
    assert!(clock.now().since_start().as_millis() < 2_500, "{:?}", clock.now());
}

#[tokio::test]
async fn the_admin_port_says_what_it_offers_and_that_it_serves() {
    let app = TestApp::start(&Setup::new()).await.unwrap();
    let channel = channel(&app).await;
    let service = "tidegate.admin.v1.Admin".to_owned();
    let request = HealthCheckRequest { service: service.clone() };
    let health = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner();
    assert_eq!(health.status().as_str_name(), "SERVING");
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let asked = tokio_stream::iter([request]);
    let mut answers =
        ServerReflectionClient::new(channel).server_reflection_info(asked).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(listed) = answer else { panic!("{answer:?}") };
    assert!(listed.service.iter().any(|listed| listed.name == service), "{listed:?}");
    app.stop().await.unwrap();
}

#[tokio::test]
async fn who_owes_an_answer_and_who_refuses_is_told_by_client_and_type() {
    for wire in BOTH {
        let fakes = fakes(2).await;
        let [a, b] = addresses(&fakes)[..] else { unreachable!("two") };
        let setup = Setup::new().cluster("llm", [a, b]).cluster("other", [a]);
        let app = TestApp::start(&setup).await.unwrap();
        let rule: RefuseRule = Arc::new(|kind, name, _| {
            let refused = kind == Kind::Endpoint && name == "other";
            refused.then(|| Refusal { message: "not this one".into(), spoils_message: false })
        });
        let options =
            SimOptions { asks: Asks::clusters(), refuse: vec![rule], ..SimOptions::new(app.xds(), wire) };
        let sim = SimEnvoy::start(options);
        let told = async || {
            let json = ok(&app, &["get", "envoys", "-o", "json"]).await;
            let clients: serde_json::Value = serde_json::from_str(&json).unwrap();
            clients[0].clone()
        };
        let state = async |of: &str| {
            let client = told().await;
            let types = client["types"].as_array().cloned().unwrap_or_default();
            types
                .into_iter()
                .find(|t| t["type"] == of)
                .map_or(String::new(), |t| t["convergence"].as_str().unwrap().into())
        };
        eventually("it refuses the one and has the other", async || {
            let (cds, eds) = (state("cds").await, state("eds").await);
            if (cds.as_str(), eds.as_str()) == ("SYNCED", "NACKED") {
                Ok(())
            } else {
                Err(format!("{cds} {eds}"))
            }
        })
        .await
        .unwrap();
        let client = told().await;
        assert_eq!(
            (client["agent_version"].as_str(), client["rendering"].as_str()),
            (Some("1.40.0"), Some("envoy"))
        );
        let table = ok(&app, &["describe", "envoy", client["node"].as_str().unwrap()]).await;
        assert!(
            table.contains("refuses eds") && table.contains("other") && table.contains("not this one"),
            "{table}"
        );
        assert_eq!(app.metric("tidegate_xds_refusing_streams").await.unwrap(), 1.0);

        sim.hold_answers(true);
        fakes[1].set(tidegate::testing::instance::Mode::Loading).await.unwrap();
        eventually("it owes an answer", async || {
            let waiting = app.metric("tidegate_xds_unanswered_seconds").await.unwrap();
            if waiting > 0.0 { Ok(()) } else { Err(waiting) }
        })
        .await
        .unwrap();
        let error = run(&app, &["describe", "envoy", "nobody"]).await.2;
        assert!(error.contains("no connected client goes by"), "{error}");
        app.stop().await.unwrap();
    }
}
