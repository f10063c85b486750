//! Completions as questions: `openai`, and the warm-up made of them.
//!
//! Pure: no I/O. Called by `check`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName};

use super::super::defaults::{
    MAX_TOKENS, PROMPT, STAGE_BUDGET, Setting, WARMUP_EXPECT_LATENCY, WARMUP_INTERVAL, WARMUP_LAST,
    WARMUP_PROMPTS, WARMUP_RECOVER_INTERVAL, WARMUP_TIMEOUT,
};
use super::super::path::Cursor;
use super::super::raw::{RawBudgets, RawDuration, RawOpenAi, RawWarmup};
use super::check::{at_most, headers, host, path, threshold};
use super::report::{Invalid, Report};
use crate::model::{Check, CheckKind, MinFailingTime, OpenAiCheck, Role, StageBudgets, Warmup};

/// Headers of every completion asked for, besides those of every probe.
const OWN_HEADERS: [HeaderName; 4] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-tidegate-probe"),
];

/// Longest name of a model, in bytes.
const MAX_MODEL: usize = 253;
/// Longest prompt, in bytes: it is sent again and again.
const MAX_PROMPT: usize = 4096;

/// The question at `at`.
pub(super) fn openai(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: &RawOpenAi,
) -> Result<OpenAiCheck, Invalid> {
    let path = completions_path(report, at, raw.path.as_ref());
    let model = match raw.model.as_ref() {
        Some(model) => text(report, &at.key("model"), model, MAX_MODEL),
        None => Err(report.missing(
            at,
            "model",
            "write the model's name as the instances know it, such as `model: llama`",
        )),
    };
    let prompt = match raw.prompt.as_ref() {
        Some(prompt) => text(report, &at.key("prompt"), prompt, MAX_PROMPT),
        None => Ok(Arc::from(PROMPT)),
    };
    let max_tokens = threshold(report, &at.key("max_tokens"), raw.max_tokens, &MAX_TOKENS);
    let host = host(report, &at.key("host"), raw.host.as_ref());
    let headers = headers(report, &at.key("headers"), raw.headers.as_ref(), &OWN_HEADERS);
    let budgets = budgets(report, &at.key("budgets"), raw.budgets.as_ref());
    Ok(OpenAiCheck {
        path: path?,
        model: model?,
        prompt: prompt?,
        max_tokens: max_tokens?,
        host: host?,
        headers: headers?,
        budgets: budgets?,
    })
}

/// The warm-up at `at`.
pub(super) fn warmup(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawWarmup) -> Result<Warmup, Invalid> {
    let question = match &raw.openai {
        Some(raw) => openai(report, &at.key("openai"), raw),
        None => Err(report.missing(
            at,
            "openai",
            "say what to ask for: `openai: { path: /v1/completions, model: NAME }`",
        )),
    };
    let prompts = threshold(report, &at.key("prompts"), raw.prompts, &WARMUP_PROMPTS);
    let most = prompts.map_or(*WARMUP_LAST.limits.end(), |prompts| u64::from(prompts.get()));
    let setting = Setting { default: WARMUP_LAST.default.min(most), ..WARMUP_LAST };
    let last = threshold(report, &at.key("last"), raw.last, &setting);
    if last.is_ok_and(|last| u64::from(last.get()) > most) {
        report.fail(
            &at.key("last"),
            format!("`last` is more than `prompts` ({most})"),
            format!("write at most {most}, or raise `prompts`"),
        );
    }
    let timeout = report.duration(&at.key("timeout"), raw.timeout.as_ref(), &WARMUP_TIMEOUT);
    let known = timeout.unwrap_or(*WARMUP_TIMEOUT.limits.end());
    let setting = Setting { default: WARMUP_EXPECT_LATENCY.default.min(known), ..WARMUP_EXPECT_LATENCY };
    let expected = report.duration(&at.key("expect_latency"), raw.expect_latency.as_ref(), &setting);
    let interval = report.duration(&at.key("interval"), raw.interval.as_ref(), &WARMUP_INTERVAL);
    let recover =
        report.duration(&at.key("recover_interval"), raw.recover_interval.as_ref(), &WARMUP_RECOVER_INTERVAL);
    let (timeout, interval) = (timeout?, interval?);
    at_most(report, at, ("expect_latency", expected.ok()), ("timeout", timeout))?;
    let kind = CheckKind::OpenAi(question?);
    budgets_within(report, at, &kind, timeout)?;
    Ok(Warmup {
        check: Check {
            role: Role::Warmup,
            kind,
            interval,
            timeout,
            budget: None,
            healthy_threshold: NonZeroU32::MIN,
            unhealthy_threshold: NonZeroU32::MIN,
            confirm_interval: interval,
            confirm_timeout: timeout,
            recover_interval: recover?,
            min_failing_time: MinFailingTime { unreachable: Duration::ZERO, timeout: Duration::ZERO },
        },
        prompts: prompts?,
        last: last?,
        expect_latency: expected?,
    })
}

/// A stage that may take longer than the whole is a mistake.
pub(super) fn budgets_within(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    kind: &CheckKind,
    timeout: Duration,
) -> Result<(), Invalid> {
    let CheckKind::OpenAi(OpenAiCheck { budgets, .. }) = kind else { return Ok(()) };
    let StageBudgets { connect, headers, first_token, gap, end } = *budgets;
    let at = at.key("openai");
    let at = at.key("budgets");
    let stages = [
        ("connect", connect),
        ("headers", headers),
        ("first_token", first_token),
        ("gap", gap),
        ("end", end),
    ];
    let within = stages.map(|stage| at_most(report, &at, stage, ("timeout", timeout)));
    within.into_iter().collect()
}

fn completions_path(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&String>,
) -> Result<Arc<str>, Invalid> {
    let Some(raw) = raw else {
        return Err(report.missing(
            at,
            "path",
            "write `path: /v1/completions`, or `/v1/chat/completions` if the model chats only",
        ));
    };
    let path = path(report, at, Some(raw))?;
    if path.split_once('?').map_or(&*path, |(path, _)| path).ends_with("/completions") {
        return Ok(path);
    }
    Err(report.fail(
        &at.key("path"),
        "`path` does not end in `/completions`: nothing else is asked for".into(),
        "write `/v1/completions` or `/v1/chat/completions`, with what your servers put before it".into(),
    ))
}

fn text(report: &mut Report<'_>, at: &Cursor<'_>, raw: &str, most: usize) -> Result<Arc<str>, Invalid> {
    if raw.is_empty() {
        return Err(report.fail(at, format!("`{}` is empty", at.name()), "write some text".into()));
    }
    if raw.len() > most {
        let message = format!("`{}` has {} bytes", at.name(), raw.len());
        return Err(report.fail(at, message, format!("write at most {most}")));
    }
    Ok(Arc::from(raw))
}

fn budgets(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&RawBudgets>,
) -> Result<StageBudgets, Invalid> {
    let mut stage = |key: &str, given: Option<&RawDuration>| match given {
        None if report.is_lost(&at.key(key)) => Err(Invalid),
        None => Ok(None),
        Some(_) => report.duration(&at.key(key), given, &STAGE_BUDGET).map(Some),
    };
    let connect = stage("connect", raw.and_then(|r| r.connect.as_ref()));
    let headers = stage("headers", raw.and_then(|r| r.headers.as_ref()));
    let first_token = stage("first_token", raw.and_then(|r| r.first_token.as_ref()));
    let gap = stage("gap", raw.and_then(|r| r.gap.as_ref()));
    let end = stage("end", raw.and_then(|r| r.end.as_ref()));
    Ok(StageBudgets { connect: connect?, headers: headers?, first_token: first_token?, gap: gap?, end: end? })
}
