//! Checks: how an instance is asked, and how its answers count.
//!
//! Pure: no I/O. Called for each cluster by `cluster`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};

use super::super::defaults::{
    CONFIRM_INTERVAL, HEALTHY_THRESHOLD, INFERENCE_CONFIRM_INTERVAL, INFERENCE_INTERVAL,
    INFERENCE_RECOVER_INTERVAL, INFERENCE_TIMEOUT, INFERENCE_UNHEALTHY_THRESHOLD, INTERVAL,
    MIN_FAILING_TIMEOUT, MIN_FAILING_UNREACHABLE, STARTUP_HEALTHY_THRESHOLD, Setting, TIMEOUT,
    UNHEALTHY_THRESHOLD,
};
use super::super::path::Cursor;
use super::super::raw::{RawCheck, RawChecks, RawHttp, RawMinFailingTime, RawStatus};
use super::completion;
use super::duration::show;
use super::report::{Invalid, Report};
use crate::model::{Check, CheckKind, Checks, HttpCheck, HttpProtocol, MinFailingTime, Role};

/// Headers that the prober writes itself, or that would break the framing of the request.
const OWN_HEADERS: [HeaderName; 7] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
];

/// The checks of the cluster at `at`.
pub(super) fn checks(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&RawChecks>,
) -> Result<Arc<Checks>, Invalid> {
    const WRITE: &str = "add what decides whether an instance may serve, such as \
                         `checks: { readiness: { http: { path: /health } } }`";
    let Some(raw) = raw else { return Err(report.missing(at, "checks", WRITE)) };
    let at = at.key("checks");
    let startup =
        raw.startup.as_ref().map(|raw| check(report, &at.key("startup"), raw, Role::Startup)).transpose();
    let warmup =
        raw.warmup.as_ref().map(|raw| completion::warmup(report, &at.key("warmup"), raw)).transpose();
    let readiness = match &raw.readiness {
        Some(raw) => check(report, &at.key("readiness"), raw, Role::Readiness),
        None => Err(report.missing(
            &at,
            "readiness",
            "add what decides whether an instance may serve, such as `readiness: { http: { path: /health } }`",
        )),
    };
    let inference = raw
        .inference
        .as_ref()
        .map(|raw| check(report, &at.key("inference"), raw, Role::Inference))
        .transpose();
    Ok(Arc::new(Checks { startup: startup?, warmup: warmup?, readiness: readiness?, inference: inference? }))
}

fn check(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawCheck, role: Role) -> Result<Check, Invalid> {
    let kind = kind(report, at, raw, role);
    let pace = pace(report, at, raw, role);
    let healthy = match role {
        Role::Startup => STARTUP_HEALTHY_THRESHOLD,
        Role::Warmup | Role::Readiness | Role::Inference => HEALTHY_THRESHOLD,
    };
    let unhealthy = if role == Role::Inference { INFERENCE_UNHEALTHY_THRESHOLD } else { UNHEALTHY_THRESHOLD };
    let healthy = threshold(report, &at.key("healthy_threshold"), raw.healthy_threshold, &healthy);
    let unhealthy = threshold(report, &at.key("unhealthy_threshold"), raw.unhealthy_threshold, &unhealthy);
    let min_failing_time =
        min_failing_time(report, &at.key("min_failing_time"), raw.min_failing_time.as_ref());
    let (pace, kind) = (pace?, kind?);
    completion::budgets_within(report, at, &kind, pace.timeout)?;
    Ok(Check {
        role,
        kind,
        interval: pace.interval,
        timeout: pace.timeout,
        budget: pace.budget,
        healthy_threshold: healthy?,
        unhealthy_threshold: unhealthy?,
        confirm_interval: pace.confirm_interval,
        confirm_timeout: pace.confirm_timeout,
        recover_interval: pace.recover_interval,
        min_failing_time: min_failing_time?,
    })
}

fn kind(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawCheck, role: Role) -> Result<CheckKind, Invalid> {
    const KINDS: [&str; 3] = ["tcp", "http", "openai"];
    let given: Vec<&str> = KINDS
        .into_iter()
        .zip([raw.tcp.is_some(), raw.http.is_some(), raw.openai.is_some()])
        .filter_map(|(kind, given)| given.then_some(kind))
        .collect();
    let is_lost = |kind: &&str| report.is_lost(&at.key(kind));
    match given[..] {
        [_] | [] if KINDS.iter().any(is_lost) => Err(Invalid),
        [kind @ ("tcp" | "http")] if role == Role::Inference => Err(report.fail_key(
            &at.key(kind),
            format!("`inference` has `{kind}`, which asks for no completion"),
            "write `openai: { path: /v1/completions, model: NAME }`, or move it to `readiness`".into(),
        )),
        [_] => match (&raw.http, &raw.openai) {
            (Some(raw), _) => http(report, &at.key("http"), raw).map(CheckKind::Http),
            (None, Some(raw)) => completion::openai(report, &at.key("openai"), raw).map(CheckKind::OpenAi),
            (None, None) => Ok(CheckKind::Tcp),
        },
        [first, .., last] => Err(report.fail_key(
            &at.key(first),
            format!("`{}` has both `{first}` and `{last}`", at.name()),
            format!("keep one: `{last}` connects too"),
        )),
        [] if role == Role::Inference => Err(report.missing(
            at,
            "openai",
            "say what to ask for: `openai: { path: /v1/completions, model: NAME }`",
        )),
        [] => Err(report.missing(
            at,
            "http",
            "say how to ask: `http: { path: /health }`, or `tcp: {}` if a connection is answer enough",
        )),
    }
}

/// The durations of a check that bound each other.
struct Pace {
    interval: Duration,
    timeout: Duration,
    budget: Option<Duration>,
    confirm_interval: Duration,
    confirm_timeout: Duration,
    recover_interval: Duration,
}

/// What the durations of a role are where they are not given.
struct Defaults {
    interval: Setting<Duration>,
    timeout: Setting<Duration>,
    confirm_interval: Setting<Duration>,
    /// `None`: like `interval`.
    recover_interval: Option<Setting<Duration>>,
    /// The part of `timeout` that `confirm_timeout` is.
    confirm_part: u32,
}

const fn defaults(role: Role) -> Defaults {
    match role {
        Role::Startup | Role::Warmup | Role::Readiness => Defaults {
            interval: INTERVAL,
            timeout: TIMEOUT,
            confirm_interval: CONFIRM_INTERVAL,
            recover_interval: None,
            confirm_part: 2,
        },
        Role::Inference => Defaults {
            interval: INFERENCE_INTERVAL,
            timeout: INFERENCE_TIMEOUT,
            confirm_interval: INFERENCE_CONFIRM_INTERVAL,
            recover_interval: Some(INFERENCE_RECOVER_INTERVAL),
            confirm_part: 1,
        },
    }
}

fn pace(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawCheck, role: Role) -> Result<Pace, Invalid> {
    let Defaults { interval, timeout, confirm_interval, recover_interval, confirm_part } = defaults(role);
    let lowered = |setting: Setting<Duration>, bound: Duration| Setting {
        default: setting.default.min(bound),
        ..setting
    };
    let interval = report.duration(&at.key("interval"), raw.interval.as_ref(), &interval);
    // Where one that bounds others is wrong, the others are compared with nothing.
    let known = interval.unwrap_or(*INTERVAL.limits.end());
    let timeout = report.duration(&at.key("timeout"), raw.timeout.as_ref(), &lowered(timeout, known));
    let setting = lowered(confirm_interval, known);
    let confirm_interval =
        report.duration(&at.key("confirm_interval"), raw.confirm_interval.as_ref(), &setting);
    let setting = match recover_interval {
        Some(setting) => lowered(setting, known),
        None => Setting { default: known, ..INTERVAL },
    };
    let recover_interval =
        report.duration(&at.key("recover_interval"), raw.recover_interval.as_ref(), &setting);
    let known = timeout.unwrap_or(*TIMEOUT.limits.end());
    let least = *TIMEOUT.limits.start();
    let setting = Setting { default: (known / confirm_part).max(least), ..TIMEOUT };
    let confirm_timeout = report.duration(&at.key("confirm_timeout"), raw.confirm_timeout.as_ref(), &setting);
    let budget = match &raw.budget {
        None if report.is_lost(&at.key("budget")) => Err(Invalid),
        None => Ok(None),
        Some(_) => report.duration(&at.key("budget"), raw.budget.as_ref(), &setting).map(Some),
    };
    let interval = interval?;
    let timeout = timeout?;
    let within = [
        at_most(report, at, ("budget", budget.ok().flatten()), ("timeout", timeout)),
        at_most(report, at, ("confirm_timeout", confirm_timeout.ok()), ("timeout", timeout)),
        at_most(report, at, ("confirm_interval", confirm_interval.ok()), ("interval", interval)),
    ];
    within.into_iter().collect::<Result<(), Invalid>>()?;
    Ok(Pace {
        interval,
        timeout,
        budget: budget?,
        confirm_interval: confirm_interval?,
        confirm_timeout: confirm_timeout?,
        recover_interval: recover_interval?,
    })
}

/// Reports `key` if its value is larger than that of `bound`.
pub(super) fn at_most(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    (key, value): (&str, Option<Duration>),
    (bound_key, bound): (&str, Duration),
) -> Result<(), Invalid> {
    match value {
        Some(value) if value > bound => Err(report.fail(
            &at.key(key),
            format!("`{key}` is {}, longer than `{bound_key}` ({})", show(value), show(bound)),
            format!("write at most {}, or raise `{bound_key}`", show(bound)),
        )),
        Some(_) | None => Ok(()),
    }
}

pub(super) fn threshold(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<u64>,
    setting: &Setting<u64>,
) -> Result<NonZeroU32, Invalid> {
    // The limits begin at 1.
    report.number(at, raw, setting).and_then(|n| NonZeroU32::new(n).ok_or(Invalid))
}

fn min_failing_time(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&RawMinFailingTime>,
) -> Result<MinFailingTime, Invalid> {
    let unreachable = report.duration(
        &at.key("unreachable"),
        raw.and_then(|r| r.unreachable.as_ref()),
        &MIN_FAILING_UNREACHABLE,
    );
    let timeout =
        report.duration(&at.key("timeout"), raw.and_then(|r| r.timeout.as_ref()), &MIN_FAILING_TIMEOUT);
    Ok(MinFailingTime { unreachable: unreachable?, timeout: timeout? })
}

fn http(report: &mut Report<'_>, at: &Cursor<'_>, raw: &RawHttp) -> Result<HttpCheck, Invalid> {
    let path = path(report, at, raw.path.as_ref());
    let method = method(report, &at.key("method"), raw.method.as_ref());
    let host = host(report, &at.key("host"), raw.host.as_ref());
    let statuses = statuses(report, &at.key("expected_statuses"), raw.expected_statuses.as_deref());
    let protocol = report.choice(
        &at.key("protocol"),
        raw.protocol.as_ref(),
        HttpProtocol::Http1,
        &[("http1", HttpProtocol::Http1), ("h2c", HttpProtocol::H2c)],
    );
    let headers = headers(report, &at.key("headers"), raw.headers.as_ref(), &[]);
    let reuse_connection = raw.reuse_connection.unwrap_or(true);
    Ok(HttpCheck {
        path: path?,
        method: method?,
        host: host?,
        expected_statuses: statuses?,
        protocol: protocol?,
        reuse_connection,
        headers: headers?,
    })
}

pub(super) fn path(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&String>,
) -> Result<Arc<str>, Invalid> {
    let Some(text) = raw else {
        return Err(report.missing(at, "path", "write the path to ask for, such as `path: /health`"));
    };
    let at = at.key("path");
    if !text.starts_with('/') {
        let help = format!("write `/{}`", text.escape_debug());
        return Err(report.fail(&at, "`path` does not begin with `/`".into(), help));
    }
    match text.parse::<PathAndQuery>() {
        Ok(parsed) if parsed.as_str() == text => Ok(Arc::from(text.as_str())),
        Ok(_) | Err(_) => Err(report.fail(
            &at,
            "`path` has characters that no request line can carry".into(),
            "percent-encode them (a space is `%20`) and leave out `#` and what follows".into(),
        )),
    }
}

fn method(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&String>) -> Result<http::Method, Invalid> {
    use http::Method;
    let choices: [(&str, Method); 6] = [
        ("GET", Method::GET),
        ("HEAD", Method::HEAD),
        ("POST", Method::POST),
        ("PUT", Method::PUT),
        ("OPTIONS", Method::OPTIONS),
        ("DELETE", Method::DELETE),
    ];
    let words = choices.each_ref().map(|(word, method)| (*word, method));
    report.choice(at, raw, &Method::GET, &words).cloned()
}

pub(super) fn host(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&String>,
) -> Result<Option<Arc<str>>, Invalid> {
    let Some(text) = raw else { return Ok(None) };
    match text.parse::<Authority>() {
        Ok(parsed) if parsed.as_str() == text && !text.contains('@') => Ok(Some(Arc::from(text.as_str()))),
        Ok(_) | Err(_) => Err(report.fail(
            at,
            format!("`{}` is not a host", text.escape_debug()),
            "write a name or an address, with a port if needed: `llama.example:8000`".into(),
        )),
    }
}

fn statuses(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&[Option<RawStatus>]>,
) -> Result<Vec<RangeInclusive<u16>>, Invalid> {
    let Some(raw) = raw else { return Ok(vec![200..=200]) };
    if raw.is_empty() {
        let help = "write at least one, such as `[200]`, or remove the key".into();
        return Err(report.fail(at, "`expected_statuses` is empty: nothing would be a yes".into(), help));
    }
    let mut ranges = Vec::with_capacity(raw.len());
    let mut invalid = false;
    for (index, text) in raw.iter().enumerate() {
        // What is absent was not a status at all, and reported.
        let Some(RawStatus(text)) = text else { continue };
        match status_range(text) {
            Some(range) => ranges.push(range),
            None => {
                let message =
                    format!("`{}` is not a status from 100 to 599, or a range of them", text.escape_debug());
                report.fail(&at.index(index), message, "write `200`, or a range such as `300-399`".into());
                invalid = true;
            }
        }
    }
    if invalid { Err(Invalid) } else { Ok(ranges) }
}

fn status_range(text: &str) -> Option<RangeInclusive<u16>> {
    let status = |text: &str| {
        let digits = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|status| digits && (100..=599).contains(status))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (status(first.trim())?, status(last.trim())?);
    (first <= last).then_some(first..=last)
}

pub(super) fn headers(
    report: &mut Report<'_>,
    at: &Cursor<'_>,
    raw: Option<&BTreeMap<String, String>>,
    own: &[HeaderName],
) -> Result<Vec<(HeaderName, HeaderValue)>, Invalid> {
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
    let mut invalid = false;
    for (name, value) in raw.into_iter().flatten() {
        let at = at.key(name);
        let result = match (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            (Ok(header), _) if OWN_HEADERS.contains(&header) || own.contains(&header) => {
                let help = if header == header::HOST { "use the key `host`" } else { "remove it" };
                Err((format!("the header `{header}` is the prober's own"), help))
            }
            (Ok(header), _) if headers.iter().any(|(known, _)| *known == header) => {
                Err((format!("the header `{header}` is given twice: capitals do not matter"), "keep one"))
            }
            (Ok(header), Ok(value)) => Ok((header, value)),
            (Err(_), _) => Err((
                format!("`{}` is not a header name", name.escape_debug()),
                "use letters, digits and `-`",
            )),
            (Ok(header), Err(_)) => {
                Err((format!("the value of `{header}` has control characters"), "write one line of text"))
            }
        };
        match result {
            Ok(header) => headers.push(header),
            Err((message, help)) => {
                report.fail_key(&at, message, help.to_owned());
                invalid = true;
            }
        }
    }
    if invalid { Err(Invalid) } else { Ok(headers) }
}
