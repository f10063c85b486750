//! Instances whose `/health` says 200 whatever happens: what only a real completion can tell.

use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::{Plan, Serve};
use tidegate::testing::app::TestApp;
use tidegate::testing::eventually::eventually;
use tidegate::testing::load::{Load, Sent, Traffic};
use tidegate::testing::setup::{Setup, free_address};
use tidegate::testing::sim_envoy::Wire;

use super::{envoy, wait_hosts, wait_more};
use crate::completions::{Asked, Completions, Mode, Step, after, token, well};

const MS: fn(u64) -> Duration = Duration::from_millis;

const READY: &str = "readiness: { http: { path: /health }, interval: 100ms }";
const INFERENCE: &str = "inference: { openai: { path: /v1/completions, model: tiny }, interval: 150ms, \
     timeout: 500ms, confirm_interval: 50ms, recover_interval: 100ms, min_failing_time: { timeout: 0s } }";
const WARMUP: &str = "warmup: { openai: { path: /v1/completions, model: tiny }, prompts: 3, last: 2, \
     expect_latency: 400ms, timeout: 2s, interval: 20ms, recover_interval: 50ms }";

fn setup(fakes: &[&Completions], checks: &[&str]) -> Setup {
    let extra = format!("checks: {{ {} }}", checks.join(", "));
    Setup::new().cluster_with("llm", fakes.iter().map(|fake| fake.address), &extra)
}

fn reason(plan: &Plan, of: &Completions) -> String {
    let entries = plan.clusters.values().flat_map(|cluster| &cluster.entries);
    let entry = entries.into_iter().find(|entry| entry.address.socket() == of.address);
    entry.map_or_else(String::new, |entry| entry.reason.to_string())
}

fn roles(asked: &[Asked]) -> Vec<&'static str> {
    let role = |asked: &Asked| {
        let is = |role: &&str| asked.head.contains(&format!("x-tidegate-probe: {role}\r\n"));
        ["warmup", "inference"].into_iter().find(is).unwrap_or("user")
    };
    asked.iter().map(role).collect()
}

#[tokio::test]
async fn an_instance_whose_completions_stall_is_ejected_though_its_health_is_200() {
    // Cases 1, 2, 10 (fast failures) and 14, and vLLM's error in an answer of status 200.
    let error = Step::Event(r#"{"error":{"message":"EngineDeadError","code":500}}"#.into());
    let ways = [
        (Mode::Silent, "inference timeout: no end of headers by the deadline"),
        (Mode::Stream(vec![Step::Hang]), "inference timeout: no first token by the deadline"),
        (
            Mode::Stream(vec![token(" a"), token(" b"), Step::Hang]),
            "inference timeout: no further token by the deadline",
        ),
        (Mode::Refuse(500, "{}"), "inference unhealthy: status 500"),
        (Mode::Stream(vec![error, Step::End]), "inference unhealthy: error in the stream: EngineDeadError"),
    ];
    let bad = Completions::start(Mode::Stream(well())).await;
    let good = Completions::start(Mode::Stream(well())).await;
    let app = TestApp::start(&setup(&[&bad, &good], &[READY, INFERENCE])).await.unwrap();
    for (mode, why) in ways {
        app.wait_served("llm", &[(bad.address, Serve::Healthy), (good.address, Serve::Healthy)])
            .await
            .unwrap();
        bad.set(mode);
        app.wait_served("llm", &[(bad.address, Serve::Unhealthy), (good.address, Serve::Healthy)])
            .await
            .unwrap();
        app.wait_plan(why, |plan| reason(plan, &bad) == why).await.unwrap();
        bad.set(Mode::Stream(well()));
    }
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_new_instance_is_warmed_up_before_it_serves() {
    // Cases 41 and 43: `/health` is 200 at once, completions are 503 for a while, and the first ones are slow.
    let old = Completions::start(Mode::Stream(well())).await;
    let checks = [READY, INFERENCE, WARMUP];
    let app = TestApp::start(&setup(&[&old], &checks)).await.unwrap();
    app.wait_served("llm", &[(old.address, Serve::Healthy)]).await.unwrap();
    assert!(!roles(&old.asked()).contains(&"warmup"), "it was running before us");

    let loading = Mode::Refuse(503, r#"{"error":{"message":"Loading model","code":503}}"#);
    let slow = |ms| Mode::Stream(after(MS(ms)));
    let new = Completions::start(Mode::Each(vec![
        loading.clone(),
        loading,
        slow(1_200),
        slow(800),
        slow(600),
        slow(0),
        slow(700),
        slow(0),
    ]))
    .await;
    app.reload(&setup(&[&old, &new], &checks)).await.unwrap();
    let warming = |plan: &Plan| reason(plan, &new).starts_with("warming up, prompts answered: 2");
    app.wait_plan("a warm-up that can be read", warming).await.unwrap();
    app.wait_served("llm", &[(old.address, Serve::Healthy), (new.address, Serve::Healthy)]).await.unwrap();
    let asked = new.asked();
    let warmups = roles(&asked).into_iter().take_while(|role| *role == "warmup").count();
    assert!(warmups >= 9, "two refused, three slow, one quick, one slow, two quick: {:?}", roles(&asked));
    eventually("inferences instead of prompts", async || {
        let roles = roles(&new.asked()).into_iter().skip(warmups).collect::<Vec<_>>();
        if roles.len() > 1 && roles.iter().all(|role| *role == "inference") {
            Ok(())
        } else {
            Err(format!("{roles:?}"))
        }
    })
    .await
    .unwrap();
    app.stop().await.unwrap();
}

#[tokio::test]
async fn an_instance_that_generates_slowly_keeps_a_part_of_its_weight() {
    let slow = Completions::start(Mode::Stream(after(MS(100)))).await;
    let inference = "inference: { openai: { path: /v1/completions, model: tiny, budgets: { first_token: 50ms } }, \
                     interval: 150ms, timeout: 1s, recover_interval: 100ms, confirm_timeout: 1s }";
    let app = TestApp::start(&setup(&[&slow], &[READY, inference])).await.unwrap();
    app.wait_plan("a lower weight", |plan| {
        let mut entries = plan.clusters.values().flat_map(|cluster| &cluster.entries);
        entries.any(|entry| entry.serve == Serve::Healthy && entry.weight.get() == 25)
    })
    .await
    .unwrap();
    app.stop().await.unwrap();
}

#[tokio::test]
async fn an_instance_that_fails_in_no_time_draws_users_only_until_it_is_out() {
    // Case 10: to least-request, one that answers an error at once is the least busy.
    let mut fakes = Vec::new();
    for _ in 0..4 {
        fakes.push(Completions::start(Mode::Stream(after(MS(50)))).await);
    }
    let listener = free_address();
    let setup =
        setup(&fakes.iter().collect::<Vec<_>>(), &[READY, INFERENCE]).listener("ingress", listener, "llm");
    let app = TestApp::start(&setup).await.unwrap();
    let envoy = envoy(app.xds(), Wire::Delta).await;
    let hosts = |bad| {
        let health = move |n| if bad == Some(n) { "UNHEALTHY" } else { "HEALTHY" };
        fakes.iter().enumerate().map(|(n, fake)| (fake.address, health(n))).collect::<Vec<_>>()
    };
    wait_hosts(envoy.admin(), "llm", &hosts(None)).await;
    let load =
        Load { workers: 8, interval: Duration::ZERO, path: "/v1/completions".into(), ..Load::new(listener) };
    let mut traffic = Traffic::start(load, Clock::start());
    wait_more(&mut traffic, 40).await;
    let began = traffic.so_far().len();
    fakes[1].set(Mode::Refuse(500, "{}"));
    wait_hosts(envoy.admin(), "llm", &hosts(Some(1))).await;
    let out = traffic.so_far().len();
    // Envoy's admin shows it before all its workers know, and each request may have been under way.
    wait_more(&mut traffic, 40).await;
    let known = traffic.so_far().len();
    wait_more(&mut traffic, 80).await;
    let weight = |plan: &Plan| plan.clusters.values().flat_map(|c| &c.entries).map(|e| e.weight.get()).max();
    assert_eq!(weight(&app.plan.borrow().clone()), Some(100), "its quick answers earn it no weight");
    let sent = traffic.stop().await;
    // What it answers, that is, not what Envoy says for want of somebody else.
    let failed = |part: &[Sent]| part.iter().filter(|sent| sent.outcome == Ok(500)).count();
    let lost = failed(&sent[began..out]);
    assert!(lost > (out - began) / 4, "more than its share of {} requests, {lost}", out - began);
    assert_eq!(failed(&sent[known..]), 0);
    assert_eq!(failed(&sent[..began]), 0);
    app.stop().await.unwrap();
}

#[tokio::test]
async fn an_instance_that_runs_and_is_not_ready_never_sees_a_user() {
    // Case 50 as far as it is ours: it is registered, its process runs, it even says so, and that is not enough.
    // (What a source says of readiness is the sources' own test.)
    let good = Completions::start(Mode::Stream(well())).await;
    let unready = Completions::start(Mode::Refuse(503, r#"{"error":{"message":"Loading model"}}"#)).await;
    let garbled = Completions::start(Mode::Stream(vec![Step::Raw("<html>not yet</html>"), Step::End])).await;
    let listener = free_address();
    let setup = |fakes: &[_]| setup(fakes, &[READY, INFERENCE]).listener("ingress", listener, "llm");
    let app = TestApp::start(&setup(&[&good])).await.unwrap();
    let envoy = envoy(app.xds(), Wire::Delta).await;
    wait_hosts(envoy.admin(), "llm", &[(good.address, "HEALTHY")]).await;
    app.reload(&setup(&[&good, &unready, &garbled])).await.unwrap();
    wait_hosts(envoy.admin(), "llm", &[(good.address, "HEALTHY")]).await;
    let mut traffic = Traffic::start(Load::new(listener), Clock::start());
    eventually("many inferences", async || {
        let asked = [&unready, &garbled].map(|fake| fake.asked().len());
        if asked.iter().all(|asked| *asked > 8) { Ok(()) } else { Err(format!("{asked:?}")) }
    })
    .await
    .unwrap();
    wait_more(&mut traffic, 100).await;
    for sent in traffic.stop().await {
        assert!(sent.is_ok(), "{sent:?}");
    }
    for fake in [&unready, &garbled] {
        assert!(!roles(&fake.asked()).contains(&"user"), "{:?}", roles(&fake.asked()));
    }
    app.stop().await.unwrap();
}
