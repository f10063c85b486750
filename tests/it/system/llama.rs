//! A real llama.cpp server, with a model that generates: what no fake can vouch for.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::clock::Clock;
use tidegate::model::{
    Address, Check, CheckKind, MinFailingTime, OpenAiCheck, Outcome, Plan, Reason, Role, Serve, StageBudgets,
};
use tidegate::probe::{self, Question};
use tidegate::testing::app::TestApp;
use tidegate::testing::child::Signal;
use tidegate::testing::eventually::patience;
use tidegate::testing::llama::{self, LlamaServer};
use tidegate::testing::setup::{Setup, free_port};

/// Deadlines are long where none is meant to be reached, and short for what a frozen server is asked.
const CHECKS: &str = "checks: { readiness: { http: { path: /health }, interval: 200ms, timeout: 200ms, \
     unhealthy_threshold: 5, confirm_interval: 50ms, min_failing_time: { unreachable: 100ms, timeout: 1s } }, \
     inference: { openai: { path: /v1/chat/completions, model: tiny }, interval: 2s, timeout: 2s, \
     confirm_interval: 100ms, recover_interval: 200ms }, \
     warmup: { openai: { path: /v1/completions, model: tiny }, prompts: 3, last: 2, interval: 20ms, \
     recover_interval: 50ms } }";

async fn servers(dir: &TempDir, count: usize) -> Vec<LlamaServer> {
    let model = llama::write_model(dir.path()).unwrap();
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(LlamaServer::start(&model).await.unwrap());
    }
    servers
}

fn setup(instances: &[SocketAddr]) -> Setup {
    Setup::new().cluster_with("llm", instances.iter().copied(), CHECKS)
}

fn reason(plan: &Plan, of: SocketAddr) -> Option<Reason> {
    let mut entries = plan.clusters.values().flat_map(|cluster| &cluster.entries);
    Some(entries.find(|entry| entry.address.socket() == of)?.reason.clone())
}

#[tokio::test]
async fn llama_cpp_answers_completions_and_chats_token_by_token() {
    let dir = TempDir::new().unwrap();
    let server = servers(&dir, 1).await.remove(0);
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let openai = OpenAiCheck {
            path: Arc::from(path),
            model: Arc::from(llama::MODEL),
            prompt: Arc::from("Count from one to ten."),
            max_tokens: NonZeroU32::new(8).unwrap(),
            host: None,
            headers: Vec::new(),
            budgets: StageBudgets::default(),
        };
        let check = Check {
            role: Role::Inference,
            kind: CheckKind::OpenAi(openai),
            interval: patience(),
            timeout: patience(),
            budget: None,
            healthy_threshold: NonZeroU32::MIN,
            unhealthy_threshold: NonZeroU32::MIN,
            confirm_interval: patience(),
            confirm_timeout: patience(),
            recover_interval: patience(),
            min_failing_time: MinFailingTime { unreachable: Duration::ZERO, timeout: Duration::ZERO },
        };
        let address = Address::new(server.address());
        let question = Question { check: &check, address, timeout: patience(), salt: 1 };
        let (answer, kept) = probe::ask(Clock::start(), question, None).await;
        assert_eq!(answer.outcome, Outcome::Ok, "{path}: {}; {}", answer.detail, server.log_tail());
        let (first, gap) = (answer.timings.first_token, answer.timings.largest_gap);
        assert!(first.is_some() && gap.is_some(), "{path}: {answer:?}");
        assert!(kept.is_none(), "a completion has a connection of its own");
    }
}

#[tokio::test]
async fn a_llama_cpp_server_that_is_started_later_is_warmed_up_and_admitted() {
    let dir = TempDir::new().unwrap();
    let old = servers(&dir, 1).await.remove(0);
    let app = TestApp::start(&setup(&[old.address()])).await.unwrap();
    app.wait_served("llm", &[(old.address(), Serve::Healthy)]).await.unwrap();

    // Registered before its process exists, as an orchestrator does it.
    let port = free_port();
    let later = SocketAddr::from(([127, 0, 0, 1], port));
    app.reload(&setup(&[old.address(), later])).await.unwrap();
    let refused = |plan: &Plan| {
        matches!(reason(plan, later), Some(Reason::NotReady(Role::Readiness, Outcome::Unreachable, _)))
    };
    app.wait_plan("nobody listens yet", refused).await.unwrap();
    let new = LlamaServer::launch(&dir.path().join("tiny.gguf"), port).await.unwrap();
    let both = [(old.address(), Serve::Healthy), (new.address(), Serve::Healthy)];
    app.wait_served("llm", &both).await.unwrap_or_else(|error| panic!("{error:#}; {}", new.log_tail()));
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_llama_cpp_server_that_freezes_is_ejected_comes_back_and_is_missed_when_killed() {
    let dir = TempDir::new().unwrap();
    let mut servers = servers(&dir, 2).await;
    let (frozen, other) = (servers[0].address(), servers[1].address());
    let app = TestApp::start(&setup(&[frozen, other])).await.unwrap();
    let both = [(frozen, Serve::Healthy), (other, Serve::Healthy)];
    let without = [(frozen, Serve::Unhealthy), (other, Serve::Healthy)];
    app.wait_served("llm", &both).await.unwrap();

    servers[0].signal(Signal::Stop).unwrap();
    app.wait_served("llm", &without).await.unwrap();
    // The kernel still takes connections, so what is missing is the answer: the reason names that stage.
    let stuck = |plan: &Plan| {
        let why = reason(plan, frozen).map_or_else(String::new, |reason| reason.to_string());
        ["readiness timeout: no end of headers", "inference timeout: no"]
            .iter()
            .any(|says| why.starts_with(says))
    };
    app.wait_plan("the stage that is stuck", stuck).await.unwrap();

    servers[0].signal(Signal::Cont).unwrap();
    app.wait_served("llm", &both).await.unwrap();

    servers[0].kill().unwrap();
    app.wait_served("llm", &without).await.unwrap();
    let gone =
        |plan: &Plan| matches!(reason(plan, frozen), Some(Reason::Failing(_, Outcome::Unreachable, _)));
    app.wait_plan("nobody listens any more", gone).await.unwrap();
    let ended = servers[1].terminate().await.unwrap();
    assert!(!ended.success(), "SIGTERM ends it at once");
    app.stop().await.unwrap();
}
