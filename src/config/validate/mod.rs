//! From what is written to what is meant: [`RawConfig`] in, [`Config`] out, or every reason why not.
//!
//! Pure: no I/O. Fills in the defaults, checks every value against its limits and against what it belongs to, and
//! goes on after each error, so that an operator corrects a file once. What could not be read at all
//! ([`Seen::lost`]) is never called missing and takes part in no comparison. Called by [`super::parse`].

mod address;
mod check;
mod cluster;
mod completion;
mod duration;
mod listener;
mod report;

use super::defaults::{
    FIRST_VERDICT_WAIT, LISTEN_ADMIN, LISTEN_HEALTH, LISTEN_XDS, MAX_CONNECTION_AGE, MAX_IN_FLIGHT,
    MAX_STARTS_PER_SECOND, MERGE_WINDOW,
};
use super::error::ConfigError;
use super::path::Cursor;
use super::raw::{RawAddress, RawConfig, RawListen, RawProber, RawXds};
use super::{Config, Listen, Prober, Xds};
use address::Ports;
pub(super) use report::Seen;
use report::{Invalid, Report};

/// Checks `raw` as read from what was `seen`.
pub(super) fn validate(raw: &RawConfig, seen: Seen<'_>) -> Result<Config, Vec<ConfigError>> {
    let mut report = Report::new(seen);
    let config = config(&mut report, raw);
    report.finish(config)
}

fn config(report: &mut Report<'_>, raw: &RawConfig) -> Result<Config, Invalid> {
    let root = Cursor::ROOT;
    let listen = listen(report, &root.key("listen"), raw.listen.as_ref());
    let clusters = cluster::clusters(report, &root, raw.clusters.as_ref());
    let listeners = listener::listeners(report, &root, raw);
    let prober = prober(report, &root.key("prober"), raw.prober.as_ref());
    let xds = xds(report, &root.key("xds"), raw.xds.as_ref());
    Ok(Config { listen: listen?, clusters: clusters?, listeners: listeners?, prober: prober?, xds: xds? })
}

fn listen(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&RawListen>) -> Result<Listen, Invalid> {
    let mut socket = |key: &str, given: Option<&RawAddress>, default: &str| {
        let at = at.key(key);
        let text = given.map_or(default, |RawAddress(text)| text.as_str());
        match address::parse(text, Ports::OrEphemeral) {
            Ok(_) if given.is_none() && report.is_lost(&at) => Err(Invalid),
            Ok(socket) => Ok(socket),
            Err(problem) => Err(report.fail(&at, problem.message, problem.help)),
        }
    };
    let xds = socket("xds", raw.and_then(|r| r.xds.as_ref()), LISTEN_XDS);
    let admin = socket("admin", raw.and_then(|r| r.admin.as_ref()), LISTEN_ADMIN);
    let health = socket("health", raw.and_then(|r| r.health.as_ref()), LISTEN_HEALTH);
    let (xds, admin, health) = (xds?, admin?, health?);
    if !admin.ip().is_loopback() {
        return Err(report.fail(
            &at.key("admin"),
            format!(
                "`{admin}` can be reached from other machines, and the admin API asks for no credentials yet"
            ),
            format!("write `127.0.0.1:{}`", admin.port()),
        ));
    }
    let given = |key: &str| match key {
        "xds" => raw.is_some_and(|r| r.xds.is_some()),
        "admin" => raw.is_some_and(|r| r.admin.is_some()),
        _ => raw.is_some_and(|r| r.health.is_some()),
    };
    for ((one, a), (other, b)) in [
        (("xds", xds), ("health", health)),
        (("xds", xds), ("admin", admin)),
        (("admin", admin), ("health", health)),
    ] {
        if a == b && a.port() != 0 {
            let key = if given(other) { other } else { one };
            return Err(report.fail(
                &at.key(key),
                format!("`listen.{one}` and `listen.{other}` are both {a}"),
                "give each its own port".into(),
            ));
        }
    }
    Ok(Listen { xds, admin, health })
}

fn prober(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&RawProber>) -> Result<Prober, Invalid> {
    let in_flight =
        report.number(&at.key("max_in_flight"), raw.and_then(|r| r.max_in_flight), &MAX_IN_FLIGHT);
    let starts = report.number(
        &at.key("max_starts_per_second"),
        raw.and_then(|r| r.max_starts_per_second),
        &MAX_STARTS_PER_SECOND,
    );
    Ok(Prober { max_in_flight: in_flight? as usize, max_starts_per_second: starts? })
}

fn xds(report: &mut Report<'_>, at: &Cursor<'_>, raw: Option<&RawXds>) -> Result<Xds, Invalid> {
    let merge =
        report.duration(&at.key("merge_window"), raw.and_then(|r| r.merge_window.as_ref()), &MERGE_WINDOW);
    let wait = report.duration(
        &at.key("first_verdict_wait"),
        raw.and_then(|r| r.first_verdict_wait.as_ref()),
        &FIRST_VERDICT_WAIT,
    );
    let age = report.duration(
        &at.key("max_connection_age"),
        raw.and_then(|r| r.max_connection_age.as_ref()),
        &MAX_CONNECTION_AGE,
    );
    Ok(Xds { merge_window: merge?, first_verdict_wait: wait?, max_connection_age: age? })
}
