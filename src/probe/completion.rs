//! What the events of a completion's stream mean.
//!
//! Pure: no I/O. Reads the chunks of OpenAI's `/v1/completions` and `/v1/chat/completions` as vLLM, llama.cpp, SGLang
//! and others stream them. It looks at as little as possible: whose chunk it is, whether there is a token in it,
//! whether it ends the answer, and whether it is an error. Called by `openai`, and by a fuzz entry.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value;

use super::sse::Item;
use super::trace::Verdict;
use crate::model::{Detail, Outcome};

/// Longest text of a peer that is repeated, in characters.
const MAX_REPEATED: usize = 200;

/// The data of the event after which nothing comes.
const DONE: &str = "[DONE]";

/// What one event brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Heard {
    /// Something that a model generated.
    pub(crate) token: bool,
    /// Nothing more will be generated.
    pub(crate) finished: bool,
    /// The stream says that it is over.
    pub(crate) done: bool,
}

/// Why a stream is no good answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Complaint {
    #[error("error in the stream: {0}")]
    InBand(String),
    #[error("an event of the stream is no completion chunk: {0}")]
    NoChunk(String),
    #[error("the stream has answers of another request")]
    Foreign,
    #[error("the stream finished with {0}")]
    Aborted(String),
    #[error("the answer calls itself an event stream, and has no event: {0}")]
    NoEvent(String),
    #[error("the stream ended without a token")]
    NoToken,
    #[error("the stream ended before the completion did")]
    NoFinish,
}

impl Complaint {
    /// What it says about the instance: always an explicit no.
    pub(crate) fn verdict(self) -> Verdict {
        let detail = match self {
            Self::InBand(text) => Detail::InBand(Arc::from(text)),
            Self::NoChunk(_)
            | Self::NoEvent(_)
            | Self::Foreign
            | Self::Aborted(_)
            | Self::NoToken
            | Self::NoFinish => Detail::Protocol(Arc::from(self.to_string())),
        };
        (Outcome::Unhealthy, detail)
    }
}

/// One completion, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    /// The id that all chunks of a request share.
    id: Option<String>,
    has_token: bool,
    finished: bool,
}

impl Completion {
    /// Takes the next item of the stream. After a complaint the rest of it does not matter.
    pub(crate) fn take(&mut self, item: &Item) -> Result<Heard, Complaint> {
        let Item::Event { kind, data } = item else { return Ok(Heard::default()) };
        if kind == "error" {
            return Err(Complaint::InBand(words_of(data)));
        }
        if data.trim() == DONE {
            return self.end().map(|()| Heard { done: true, ..Heard::default() });
        }
        // serde_json refuses what nests deeper than 128.
        let chunk: Value =
            serde_json::from_str(data).map_err(|error| Complaint::NoChunk(bounded(&error.to_string())))?;
        if !chunk.is_object() {
            return Err(Complaint::NoChunk(bounded(data)));
        }
        if let Some(error) = error_of(&chunk) {
            return Err(Complaint::InBand(error));
        }
        self.claim(&chunk)?;
        let mut heard = Heard::default();
        for choice in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            heard.token |= has_token(choice);
            match choice.get("finish_reason").and_then(Value::as_str) {
                Some(reason @ ("error" | "abort")) => return Err(Complaint::Aborted(reason.to_owned())),
                reason => heard.finished |= reason.is_some(),
            }
        }
        self.has_token |= heard.token;
        self.finished |= heard.finished;
        Ok(heard)
    }

    /// The stream is over: was it a completion?
    pub(crate) fn end(&mut self) -> Result<(), Complaint> {
        if self.has_token { Ok(()) } else { Err(Complaint::NoToken) }
    }

    /// The connection's answer ended without the stream having said that it is over.
    pub(crate) fn end_of_body(&mut self) -> Result<(), Complaint> {
        self.end()?;
        if self.finished { Ok(()) } else { Err(Complaint::NoFinish) }
    }

    /// All chunks of a request have one id; a server that mixes up its streams shows it here.
    fn claim(&mut self, chunk: &Value) -> Result<(), Complaint> {
        let id = chunk.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
        match (&self.id, id) {
            (Some(ours), Some(id)) if ours != id => Err(Complaint::Foreign),
            (None, Some(id)) => {
                self.id = Some(id.to_owned());
                Ok(())
            }
            (Some(_) | None, _) => Ok(()),
        }
    }
}

/// An answer that called itself an event stream and had no event in it, by its first bytes: some servers and proxies
/// put an error, as JSON or as a page, where the stream should be.
pub(crate) fn no_event(opening: &[u8]) -> Complaint {
    let text = String::from_utf8_lossy(opening);
    let error = serde_json::from_str(&text).ok().as_ref().and_then(error_of);
    match error {
        Some(error) => Complaint::InBand(error),
        None if text.trim().is_empty() => Complaint::NoToken,
        None => Complaint::NoEvent(bounded(&text)),
    }
}

/// What an event of type `error` says: JSON like any other error, or plain words.
fn words_of(data: &str) -> String {
    let error = serde_json::from_str::<Value>(data).ok();
    let message =
        error.as_ref().and_then(|e| error_of(e).or_else(|| Some(bounded(e.get("message")?.as_str()?))));
    message.unwrap_or_else(|| bounded(data))
}

/// The error that a chunk is, in words: `{"error": …}`, or vLLM's older `{"object": "error", "message": …}`.
fn error_of(chunk: &Value) -> Option<String> {
    let error = match chunk.get("error") {
        None | Some(Value::Null) if chunk.get("object").is_some_and(|object| object == "error") => chunk,
        None | Some(Value::Null) => return None,
        Some(error) => error,
    };
    let text = error.get("message").unwrap_or(error);
    Some(match text.as_str() {
        Some(text) => bounded(text),
        None => bounded(&text.to_string()),
    })
}

/// Whether anything in a choice was generated: text, reasoning, or a part of a call. The first chunk of a chat names
/// the role only, and the last ones carry nothing or the usage.
fn has_token(choice: &Value) -> bool {
    const OF_DELTA: [&str; 6] =
        ["content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal"];
    let says = |value: Option<&Value>| match value {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(parts)) => !parts.is_empty(),
        Some(Value::Object(parts)) => !parts.is_empty(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_)) | None => false,
    };
    let delta = choice.get("delta");
    says(choice.get("text")) || OF_DELTA.iter().any(|key| says(delta.and_then(|delta| delta.get(key))))
}

/// A peer's words, on one line and no longer than anybody reads.
fn bounded(text: &str) -> String {
    let mut out = String::new();
    for (at, c) in text.trim().chars().enumerate() {
        if at == MAX_REPEATED {
            out.push('…');
            break;
        }
        if c.is_control() {
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &str) -> Item {
        Item::Event { kind: "message".into(), data: data.into() }
    }

    /// What each chunk brought, until the first complaint.
    fn hear(chunks: &[&str]) -> Result<Vec<(bool, bool, bool)>, Complaint> {
        let mut completion = Completion::default();
        let heard = chunks.iter().map(|chunk| completion.take(&event(chunk)));
        heard.map(|heard| heard.map(|h| (h.token, h.finished, h.done))).collect()
    }

    const NOTHING: (bool, bool, bool) = (false, false, false);
    const TOKEN: (bool, bool, bool) = (true, false, false);

    #[test]
    fn the_first_token_is_the_first_that_says_something() {
        let chunks = [
            r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
            r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"id":"a","choices":[],"usage":{"completion_tokens":0}}"#,
            r#"{"id":"a","choices":[{"delta":{"tool_calls":[]}}]}"#,
            r#"{"id":"a","choices":[{"text":"","delta":null}]}"#,
            "{}",
        ];
        assert_eq!(hear(&chunks).unwrap(), [NOTHING; 6]);
        let tokens = [
            r#"{"choices":[{"delta":{"content":" do"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}"#,
            r#"{"choices":[{"text":" as","index":0,"logprobs":null,"finish_reason":null}]}"#,
        ];
        assert_eq!(hear(&tokens).unwrap(), [TOKEN; 5]);
    }

    #[test]
    fn a_completion_ends_by_its_finish_or_by_done_and_not_without_a_token() {
        let token = r#"{"id":"a","choices":[{"text":"x","finish_reason":null}]}"#;
        let finish = r#"{"id":"a","choices":[{"text":"","finish_reason":"length"}]}"#;
        let usage = r#"{"id":"a","choices":[],"usage":{"completion_tokens":1}}"#;
        let heard = hear(&[token, finish, usage, DONE]).unwrap();
        assert_eq!(heard, [TOKEN, (false, true, false), NOTHING, (false, false, true)]);
        assert_eq!(hear(&[finish, DONE]), Err(Complaint::NoToken));
        assert_eq!(hear(&[DONE]), Err(Complaint::NoToken));
        let mut open = Completion::default();
        open.take(&event(token)).unwrap();
        assert_eq!(open.end_of_body(), Err(Complaint::NoFinish));
        open.take(&event(finish)).unwrap();
        assert_eq!(open.end_of_body(), Ok(()));
        let aborted = r#"{"id":"a","choices":[{"text":"","finish_reason":"abort"}]}"#;
        assert_eq!(hear(&[token, aborted]), Err(Complaint::Aborted("abort".into())));
    }

    #[test]
    fn an_error_inside_the_stream_is_heard_in_every_spelling() {
        let said = |data: &str| hear(&[data]).unwrap_err();
        let died = Complaint::InBand("EngineCore died".into());
        assert_eq!(said(r#"{"error":{"message":"EngineCore died","code":500}}"#), died);
        assert_eq!(said(r#"{"error":"EngineCore died","error_type":"generation"}"#), died);
        assert_eq!(said(r#"{"object":"error","message":"EngineCore died","code":500}"#), died);
        assert_eq!(said(r#"{"error":{"code":500}}"#), Complaint::InBand(r#"{"code":500}"#.into()));
        assert_eq!(said(r#"{"error":{"message":"EngineCore died","code":null}}"#), died);
        assert!(hear(&[r#"{"error":null,"choices":[]}"#]).is_ok());
        for data in ["EngineCore died", r#"{"message":"EngineCore died"}"#, r#"{"error":"EngineCore died"}"#]
        {
            let typed = Item::Event { kind: "error".into(), data: data.into() };
            assert_eq!(Completion::default().take(&typed), Err(died.clone()), "{data}");
        }
        let typed = Item::Event { kind: "error".into(), data: "gone\n".into() };
        assert_eq!(Completion::default().take(&typed), Err(Complaint::InBand("gone".into())));
        let Complaint::InBand(long) = said(&format!(r#"{{"error":"{}\u0007"}}"#, "é".repeat(10_000))) else {
            panic!()
        };
        assert_eq!(long.chars().count(), MAX_REPEATED + 1);
    }

    #[test]
    fn an_answer_without_events_is_told_by_its_first_bytes() {
        let error = br#"{"error":{"message":"model not loaded","code":null}}"#;
        assert_eq!(no_event(error), Complaint::InBand("model not loaded".into()));
        let whole = r#"{"id":"a","choices":[{"text":"x","finish_reason":"stop"}]}"#;
        assert_eq!(no_event(whole.as_bytes()), Complaint::NoEvent(whole.into()));
        assert_eq!(no_event(b"<html>\xff"), Complaint::NoEvent("<html>\u{fffd}".into()));
        assert_eq!(no_event(b"\n\n"), Complaint::NoToken);
    }

    #[test]
    fn tokens_of_another_request_are_none() {
        let of = |id: &str| format!(r#"{{"id":"{id}","choices":[{{"text":"x"}}]}}"#);
        assert_eq!(hear(&[&of("a"), &of("a"), &of("b")]), Err(Complaint::Foreign));
        assert_eq!(hear(&[&of(""), &of("a"), &of("")]).unwrap(), [TOKEN; 3]);
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for data in ["", "5", "[]", "null", "{", "Internal Server Error", &"[".repeat(100_000)] {
            assert!(matches!(hear(&[data]), Err(Complaint::NoChunk(_))), "{data}");
        }
        for data in [r#"{"choices":5}"#, r#"{"choices":[5,null,{"delta":"x"}]}"#] {
            assert_eq!(hear(&[data]).unwrap(), [NOTHING], "{data}");
        }
    }
}
