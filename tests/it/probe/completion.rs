//! Completions, good ones and the many ways in which a status of 200 is none.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::{Address, CheckKind, Detail, OpenAiCheck, Outcome, Role, Stage, StageBudgets};
use tidegate::probe::{self, Answer, Question};

use super::{MS, PATIENCE, check};
use crate::completions::{Completions, Mode, Step, after, delta, done, event, finish, token, usage, well};

pub(super) fn question(path: &str, budgets: StageBudgets) -> OpenAiCheck {
    OpenAiCheck {
        path: Arc::from(path),
        model: Arc::from("tiny"),
        prompt: Arc::from("Count."),
        max_tokens: NonZeroU32::new(8).unwrap(),
        host: None,
        headers: Vec::new(),
        budgets,
    }
}

pub(super) async fn ask(at: &Completions, openai: OpenAiCheck, timeout: Duration, salt: u64) -> Answer {
    let mut check = check(CheckKind::OpenAi(openai));
    check.role = Role::Inference;
    let question = Question { check: &check, address: Address::new(at.address), timeout, salt };
    probe::ask(Clock::start(), question, None).await.0
}

async fn ask_within(mode: Mode, timeout: Duration) -> Answer {
    let fake = Completions::start(mode).await;
    ask(&fake, question("/v1/completions", StageBudgets::default()), timeout, 1).await
}

/// The outcome of a stream that is over, and its reason.
async fn said(steps: Vec<Step>) -> (Outcome, String) {
    let answer = ask_within(Mode::Stream(steps), PATIENCE).await;
    (answer.outcome, answer.detail.to_string())
}

/// What a stream that never ends was stuck in.
async fn stuck(mode: Mode) -> Stage {
    let answer = ask_within(mode, MS(800)).await;
    assert_eq!(answer.outcome, Outcome::Timeout, "{answer:?}");
    let Detail::Stuck(stage) = answer.detail else { panic!("{answer:?}") };
    stage
}

#[tokio::test]
async fn a_whole_completion_is_good_however_its_bytes_arrive() {
    for mode in [Mode::Stream(well()), Mode::Dribble(well()), Mode::CrLf(well())] {
        let answer = ask_within(mode.clone(), PATIENCE).await;
        assert_eq!(answer.outcome, Outcome::Ok, "{mode:?}: {}", answer.detail);
        assert!(answer.fresh && answer.timings.first_token.is_some() && answer.timings.largest_gap.is_some());
    }
    // As llama.cpp writes it: an empty line too many. No `[DONE]` at all, and no finish but `[DONE]`, are enough.
    let llama = vec![
        token(" a"),
        Step::Raw("\r\n"),
        finish(),
        Step::Raw("\r\n"),
        done(),
        Step::Raw("\r\n"),
        Step::End,
    ];
    for steps in [llama, vec![token(" a"), finish(), Step::End], vec![token(" a"), done(), Step::End]] {
        assert_eq!(said(steps).await.0, Outcome::Ok);
    }
}

#[tokio::test]
async fn a_request_is_a_probe_by_name_and_unlike_any_other() {
    let fake = Completions::start(Mode::Stream(well())).await;
    for salt in [1, 2] {
        ask(&fake, question("/v1/completions", StageBudgets::default()), PATIENCE, salt).await;
    }
    ask(&fake, question("/v1/chat/completions", StageBudgets::default()), PATIENCE, 3).await;
    let [first, second, chat] = &fake.asked()[..] else { panic!() };
    let head = first.head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/completions http/1.1\r\n"), "{head}");
    for header in ["user-agent: tidegate/", "x-tidegate-probe: inference\r\n", "x-request-id: tidegate-"] {
        assert!(head.contains(header), "{head}");
    }
    assert_eq!((&first.body["stream"], &first.body["max_tokens"]), (&true.into(), &8.into()));
    let prompt = |body: &serde_json::Value| body["prompt"].as_str().unwrap().to_owned();
    let (one, two) = (prompt(&first.body), prompt(&second.body));
    assert!(one.ends_with("\nCount.") && two.ends_with("\nCount."));
    assert_ne!(one.get(..8), two.get(..8));
    assert!(chat.body["messages"][0]["content"].as_str().unwrap().ends_with("\nCount."));
}

#[tokio::test]
async fn the_first_token_is_the_first_that_says_something() {
    // Case 142: the role at once, content later; the usage at the end is none. Case 143: reasoning and calls count.
    let role = delta(r#"{"role":"assistant","content":null}"#);
    let contents = [
        delta(r#"{"content":" hello"}"#),
        delta(r#"{"reasoning_content":"hm"}"#),
        delta(r#"{"reasoning":"hm"}"#),
        delta(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}"#),
    ];
    for content in contents {
        let comment = Step::Raw(": keep-alive\n\n");
        let steps = vec![
            role.clone(),
            comment,
            Step::Wait(MS(300)),
            content,
            finish(),
            Step::Wait(MS(300)),
            usage(),
            done(),
            Step::End,
        ];
        let fake = Completions::start(Mode::Stream(steps)).await;
        let answer = ask(&fake, question("/v1/chat/completions", StageBudgets::default()), PATIENCE, 1).await;
        assert_eq!(answer.outcome, Outcome::Ok, "{answer:?}");
        let first = answer.timings.first_token.unwrap();
        assert!(first >= MS(300) && first + MS(300) <= answer.timings.total, "{answer:?}");
        assert!(answer.timings.headers.unwrap() < first);
    }
}

#[tokio::test]
async fn an_answer_of_status_200_can_be_a_no() {
    let error = r#"{"error":{"message":"EngineCore encountered an issue.","type":"Internal Server Error","code":500}}"#;
    let no = |text: &str| (Outcome::Unhealthy, text.to_owned());
    // Case 139. vLLM when its engine dies: the error, `[DONE]`, and a proper end.
    let in_band = no("error in the stream: EngineCore encountered an issue.");
    assert_eq!(said(vec![event(error), done(), Step::End]).await, in_band);
    assert_eq!(said(vec![token(" a"), token(" b"), event(error), done(), Step::End]).await, in_band);
    let typed = Step::Raw("event: error\ndata: {\"message\":\"EngineCore encountered an issue.\"}\n\n");
    assert_eq!(said(vec![token(" a"), typed, done(), Step::End]).await, in_band);
    let plain = event(r#"{"error":"EngineCore encountered an issue."}"#);
    assert_eq!(said(vec![plain, Step::End]).await, in_band);
    // Case 140: an error where the stream should be.
    let body = Step::Raw(r#"{"error":{"message":"EngineCore encountered an issue.","code":null}}"#);
    assert_eq!(said(vec![body, Step::End]).await, in_band);
    let page = Step::Raw("<html>Bad Gateway</html>");
    assert_eq!(
        said(vec![page, Step::End]).await,
        no("the answer calls itself an event stream, and has no event: <html>Bad Gateway</html>")
    );
    assert_eq!(said(vec![Step::End]).await, no("the stream ended without a token"));
    assert_eq!(
        said(vec![finish(), usage(), done(), Step::End]).await,
        no("the stream ended without a token")
    );
    assert_eq!(said(vec![token(" a"), Step::End]).await, no("the stream ended before the completion did"));
    let foreign = event(r#"{"id":"cmpl-9","choices":[{"index":0,"text":" b"}]}"#);
    assert_eq!(
        said(vec![token(" a"), foreign, finish(), done(), Step::End]).await,
        no("the stream has answers of another request")
    );
    let (outcome, why) = said(vec![event("Internal Server Error"), Step::End]).await;
    assert_eq!(outcome, Outcome::Unhealthy);
    assert!(why.starts_with("an event of the stream is no completion chunk"), "{why}");
    // Cut off in the middle of a token.
    let (outcome, why) = said(vec![token(" a"), Step::Raw("data: {\"id\":")]).await;
    assert_eq!(outcome, Outcome::Unreachable);
    assert!(why.starts_with("gap between tokens: "), "{why}");
}

#[tokio::test]
async fn a_status_is_read_before_any_stream() {
    let refused = async |status, body| {
        let answer = ask_within(Mode::Refuse(status, body), PATIENCE).await;
        (answer.outcome, answer.detail)
    };
    let error = r#"{"error":{"message":"no"}}"#;
    assert_eq!(refused(503, error).await, (Outcome::Unhealthy, Detail::Status(503)));
    assert_eq!(refused(404, error).await, (Outcome::Unhealthy, Detail::Status(404)));
    assert_eq!(refused(429, error).await, (Outcome::Slow, Detail::Status(429)));
    assert_eq!(refused(401, error).await, (Outcome::Misconfigured, Detail::Status(401)));
    let whole = r#"{"id":"a","choices":[{"text":"x","finish_reason":"stop"}]}"#;
    let (outcome, detail) = refused(200, whole).await;
    assert_eq!(outcome, Outcome::Unhealthy);
    assert_eq!(detail.to_string(), "the answer is no event stream but \"application/json\"");
}

#[tokio::test]
async fn a_stalled_stream_names_the_stage() {
    // Case 2: a status of 200 and no byte ever.
    assert_eq!(stuck(Mode::Stream(vec![Step::Hang])).await, Stage::FirstToken);
    let comments = vec![Step::Raw(": ping\n\n"), delta(r#"{"role":"assistant"}"#), Step::Hang];
    assert_eq!(stuck(Mode::Stream(comments)).await, Stage::FirstToken, "alive is not generating");
    assert_eq!(stuck(Mode::Stream(vec![token(" a"), token(" b"), Step::Hang])).await, Stage::Gap);
    assert_eq!(stuck(Mode::Stream(vec![token(" a"), finish(), Step::Hang])).await, Stage::End);
    let endless = std::iter::repeat_n([token(" a"), Step::Wait(MS(20))], 200).flatten().collect();
    let fake = Completions::start(Mode::Stream(endless)).await;
    let budgets = StageBudgets { gap: Some(MS(500)), ..StageBudgets::default() };
    let answer = ask(&fake, question("/v1/completions", budgets), MS(800), 1).await;
    assert_eq!(answer.detail, Detail::Stuck(Stage::End), "tokens flow, but do not end");
    assert_eq!(stuck(Mode::Silent).await, Stage::Headers);
}

#[tokio::test]
async fn a_stage_over_its_budget_is_slow_if_the_stream_ends() {
    let late = async |steps, budgets| {
        let fake = Completions::start(Mode::Stream(steps)).await;
        let answer = ask(&fake, question("/v1/completions", budgets), PATIENCE, 1).await;
        (answer.outcome, answer.detail)
    };
    let none = StageBudgets::default();
    let slow = |stage| (Outcome::Slow, Detail::Late(stage));
    let first = StageBudgets { first_token: Some(MS(50)), end: Some(MS(60)), ..none };
    assert_eq!(late(after(MS(100)), first).await, slow(Stage::FirstToken), "the first of them is named");
    let gap = StageBudgets { gap: Some(MS(50)), ..none };
    let pause = vec![token(" a"), Step::Wait(MS(100)), token(" b"), finish(), done(), Step::End];
    assert_eq!(late(pause.clone(), gap).await, slow(Stage::Gap));
    assert_eq!(late(pause, StageBudgets { end: Some(MS(50)), ..none }).await, slow(Stage::End));
    let wide = StageBudgets {
        connect: Some(PATIENCE),
        headers: Some(PATIENCE),
        first_token: Some(PATIENCE),
        gap: Some(PATIENCE),
        end: Some(PATIENCE),
    };
    assert_eq!(late(well(), wide).await.0, Outcome::Ok);
}

#[tokio::test]
async fn a_stream_that_comes_in_one_piece_is_no_stream() {
    // Case 140: as from a proxy that buffers; the engine took its time for each token.
    let piece: String = ["a", "b", "c", "d", "e"]
        .map(|text| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n"))
        .concat();
    let piece: &'static str = Box::leak(format!("{piece}data: [DONE]\n\n").into_boxed_str());
    let buffered = vec![Step::Wait(MS(200)), Step::Raw(piece), Step::End];
    assert_eq!(ask_within(Mode::Stream(buffered), PATIENCE).await.detail, Detail::AtOnce);
    let paced = ["a", "b", "c", "d", "e"].into_iter().flat_map(|text| [token(text), Step::Wait(MS(20))]);
    let streamed =
        std::iter::once(Step::Wait(MS(200))).chain(paced).chain([finish(), done(), Step::End]).collect();
    assert_eq!(ask_within(Mode::Stream(streamed), PATIENCE).await.detail, Detail::Status(200));
    // Nobody waits for such an engine.
    assert_eq!(
        ask_within(Mode::Stream(vec![Step::Raw(piece), Step::End]), PATIENCE).await.outcome,
        Outcome::Ok
    );
}

#[tokio::test]
async fn a_stream_without_end_is_cut_off() {
    static FLOOD: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| "x".repeat(64 * 1024));
    let flood: &'static str = &FLOOD;
    let events = vec![Step::Raw(flood); 1_000];
    let (outcome, why) = said(events).await;
    assert_eq!(outcome, Outcome::Unhealthy);
    assert!(why.contains("an event of the stream has more than"), "{why}");
    let (outcome, why) = said(std::iter::repeat_n(token(flood), 1_000).collect()).await;
    assert_eq!(outcome, Outcome::Unhealthy);
    assert!(why.contains("the stream has more than"), "{why}");
}
