//! Completion probes: a real prompt, and every stage of the answer until its end.
//!
//! A status of 200 is only the beginning: what counts is tokens, and that the stream ends as a completion does. A
//! connection of its own for each question, closed after it: what a stalled stream has still to say is nobody's.
//! What the events mean is `completion`'s, how they are framed `sse`'s. Called by `ask`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::json;

use super::completion::{Completion, no_event};
use super::dial::dial;
use super::exchange::judge;
use super::http::AGENT;
use super::http1::Http1;
use super::sse::SseDecoder;
use super::trace::{Failure, Trace, Verdict};
use crate::model::{Address, Detail, OpenAiCheck, Outcome, Role, Stage, StageBudgets};

/// Longest stream read. The most tokens that a config may ask for have less than half of it.
const MAX_STREAM_BYTES: usize = 768 * 1024;

/// So much is looked at of an answer that has no event.
const OPENING_BYTES: usize = 1024;

/// Says what a request is for, so that servers and proxies can tell probes from users.
const PROBE: HeaderName = HeaderName::from_static("x-tidegate-probe");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What makes one request unlike all others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) role: Role,
    pub(super) address: Address,
    /// Never the same twice in a prober's life.
    pub(super) salt: u64,
}

/// Has a completion streamed, and judges it.
pub(super) async fn put(check: &OpenAiCheck, asked: Asked, trace: &mut Trace) -> Result<Verdict, Failure> {
    trace.gap_budget = check.budgets.gap;
    let wire = dial(asked.address, trace).await?;
    let mut line = Http1::open(wire).await?;
    let answer = line.send(request(check, asked)?).await?;
    let mut verdict = judge(&[200..=200], &answer);
    if verdict.0 == Outcome::Ok
        && let Some(other) = other_than_events(answer.headers())
    {
        verdict = (Outcome::Unhealthy, Detail::Protocol(other));
    }
    trace.answered(&verdict);
    let mut body = answer.into_body();
    if verdict.0 != Outcome::Ok {
        line.skip(body).await?;
        line.close().await;
        return Ok(verdict);
    }
    trace.stage = Stage::FirstToken;
    let heard = listen(&mut line, &mut body, trace).await?;
    drop(body);
    if heard.0 == Outcome::Ok {
        line.close().await;
        if let Some(stage) = over_budget(trace, &check.budgets) {
            return Ok((Outcome::Slow, Detail::Late(stage)));
        }
        if trace.came_at_once() {
            return Ok((Outcome::Ok, Detail::AtOnce));
        }
    }
    Ok(heard)
}

/// Reads the stream until it is over, or until no more of it matters.
async fn listen(line: &mut Http1, body: &mut Incoming, trace: &mut Trace) -> Result<Verdict, Failure> {
    let protocol = |what: String| Failure::Protocol(Arc::from(what));
    let (mut decoder, mut completion) = (SseDecoder::new(), Completion::default());
    let (mut items, mut read) = (Vec::new(), 0);
    // The first bytes, as long as there is no event: they may say what the answer is instead.
    let mut opening = Some(Vec::new());
    while let Some(data) = line.frame(body).await? {
        read += data.len();
        if read > MAX_STREAM_BYTES {
            return Err(protocol(format!("the stream has more than {MAX_STREAM_BYTES} bytes")));
        }
        if let Some(opening) = &mut opening {
            let room = OPENING_BYTES.saturating_sub(opening.len());
            opening.extend(data.iter().take(room));
        }
        decoder.feed(&data, &mut items).map_err(|error| protocol(error.to_string()))?;
        for item in items.drain(..) {
            opening = None;
            let heard = match completion.take(&item) {
                Ok(heard) => heard,
                Err(complaint) => return Ok(complaint.verdict()),
            };
            if heard.token {
                trace.token();
            }
            if heard.finished {
                trace.stage = Stage::End;
            }
            if heard.done {
                line.answered();
                return Ok((Outcome::Ok, Detail::Status(200)));
            }
        }
    }
    line.answered();
    Ok(match (opening, completion.end_of_body()) {
        (Some(opening), _) => no_event(&opening).verdict(),
        (None, Ok(())) => (Outcome::Ok, Detail::Status(200)),
        (None, Err(complaint)) => complaint.verdict(),
    })
}

/// The first stage that took longer than it may.
fn over_budget(trace: &Trace, budgets: &StageBudgets) -> Option<Stage> {
    let stages = [
        (Stage::Connect, trace.connect, budgets.connect),
        (Stage::Headers, trace.headers, budgets.headers),
        (Stage::FirstToken, trace.first_token, budgets.first_token),
        (Stage::Gap, trace.largest_gap, budgets.gap),
        (Stage::End, Some(trace.elapsed()), budgets.end),
    ];
    let over = |&(_, took, budget): &(Stage, Option<Duration>, Option<Duration>)| {
        took.zip(budget).is_some_and(|(took, budget)| took > budget)
    };
    stages.into_iter().find(over).map(|(stage, _, _)| stage)
}

/// What an answer calls itself, if that is not a stream of events.
fn other_than_events(headers: &HeaderMap) -> Option<Arc<str>> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().unwrap_or("?");
    let essence = kind.split(';').next().unwrap_or_default().trim();
    (!essence.eq_ignore_ascii_case("text/event-stream")).then(|| {
        Arc::from(format!("the answer is no event stream but {:?}", essence.get(..64).unwrap_or(essence)))
    })
}

fn request(check: &OpenAiCheck, asked: Asked) -> Result<Request<Full<Bytes>>, Failure> {
    let wrong = |error: http::Error| Failure::Misconfigured(Arc::from(error.to_string()));
    let uri = Uri::try_from(&*check.path).map_err(|e| wrong(e.into()))?;
    let body = Full::new(Bytes::from(question(check, asked).to_string()));
    let mut request = Request::builder().method(Method::POST).uri(uri).body(body).map_err(wrong)?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, AGENT);
    for (name, value) in &check.headers {
        headers.insert(name.clone(), value.clone());
    }
    let host = check.host.as_deref().map_or_else(|| asked.address.to_string(), str::to_owned);
    let text = |text: String| HeaderValue::try_from(text).map_err(|e| wrong(e.into()));
    headers.insert(HOST, text(host)?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(PROBE, HeaderValue::from_static(asked.role.as_str()));
    headers.insert(REQUEST_ID, text(format!("tidegate-{:016x}", scatter(asked.salt)))?);
    Ok(request)
}

fn question(check: &OpenAiCheck, asked: Asked) -> serde_json::Value {
    let prompt = format!("{}{}", prefix(asked), check.prompt);
    let mut question = json!({
        "model": &*check.model,
        "max_tokens": check.max_tokens,
        "stream": true,
    });
    if check.is_chat() {
        question["messages"] = json!([{ "role": "user", "content": prompt }]);
    } else {
        question["prompt"] = json!(prompt);
    }
    question
}

/// Words that no prompt began with before: what a server has cached of another prompt is of no use for this one.
/// Those of a warm-up come in several lengths.
fn prefix(asked: Asked) -> String {
    const WARMUP_WORDS: [usize; 3] = [2, 16, 64];
    let words = match asked.role {
        Role::Warmup => WARMUP_WORDS.get((asked.salt % 3) as usize).copied().unwrap_or(2),
        Role::Startup | Role::Readiness | Role::Inference => 2,
    };
    let unique = scatter(asked.salt);
    let mut random = fastrand::Rng::with_seed(unique);
    let mut prefix = format!("{unique:016x}");
    for _ in 0..words {
        prefix.push(' ');
        prefix.extend((0..5).map(|_| random.lowercase()));
    }
    prefix.push('\n');
    prefix
}

/// One to one, and neighbours end up far apart (splitmix64).
const fn scatter(salt: u64) -> u64 {
    let mut z = salt.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::num::NonZeroU32;

    use super::*;

    fn check(path: &str) -> OpenAiCheck {
        OpenAiCheck {
            path: Arc::from(path),
            model: Arc::from("tiny"),
            prompt: Arc::from("Say hello."),
            max_tokens: NonZeroU32::new(8).unwrap(),
            host: None,
            headers: vec![(HeaderName::from_static("authorization"), HeaderValue::from_static("Bearer k"))],
            budgets: StageBudgets::default(),
        }
    }

    fn asked(role: Role, salt: u64) -> Asked {
        Asked { role, address: "127.0.0.1:8000".parse().unwrap(), salt }
    }

    #[test]
    fn a_request_says_that_it_is_a_probe_and_which_one() {
        let of = |salt| request(&check("/v1/completions"), asked(Role::Inference, salt)).unwrap();
        let headers = of(1).headers().clone();
        assert_eq!(headers[PROBE], "inference");
        assert_eq!(headers[HOST], "127.0.0.1:8000");
        assert_eq!(headers["authorization"], "Bearer k");
        assert!(headers[USER_AGENT].to_str().unwrap().starts_with("tidegate/"));
        assert_ne!(headers[REQUEST_ID], of(2).headers()[REQUEST_ID]);
    }

    #[test]
    fn the_path_says_how_the_prompt_is_put() {
        let plain = question(&check("/v1/completions"), asked(Role::Inference, 1));
        assert!(plain["prompt"].as_str().unwrap().ends_with("\nSay hello."));
        assert_eq!(
            (&plain["model"], &plain["max_tokens"], &plain["stream"]),
            (&json!("tiny"), &json!(8), &json!(true))
        );
        let chat = question(&check("/api/v1/chat/completions?x=1"), asked(Role::Inference, 1));
        assert!(chat["messages"][0]["content"].as_str().unwrap().ends_with("\nSay hello."));
        assert!(chat.get("prompt").is_none());
    }

    #[test]
    fn no_two_prompts_begin_alike() {
        let begins = |salt| prefix(asked(Role::Warmup, salt)).chars().take(16).collect::<String>();
        let all: HashSet<String> = (0..10_000).map(begins).collect();
        assert_eq!(all.len(), 10_000);
        let lengths: HashSet<usize> = (0..3).map(|salt| prefix(asked(Role::Warmup, salt)).len()).collect();
        assert_eq!(lengths.len(), 3, "of several lengths");
    }

    #[test]
    fn an_answer_that_is_no_event_stream_is_named() {
        let of = |kind: &'static str| {
            other_than_events(&[(CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect())
        };
        assert_eq!(of("text/event-stream; charset=utf-8"), None);
        assert_eq!(other_than_events(&HeaderMap::new()), None);
        assert!(of("application/json").unwrap().contains("application/json"));
    }
}
