//! The hosts that Envoy has, beside what tidegate tells.
//!
//! Pure: no I/O.

use std::collections::BTreeMap;

use serde_json::Value;

use super::page;
use super::{Finding, Severity};
use crate::model::{Address, Serve};

/// Envoy's own grounds to send a host nothing, and whose they are.
const OWN_GROUNDS: [(&str, &str); 5] = [
    ("failed_active_health_check", "its own health check fails"),
    ("pending_active_hc", "its own health check has not passed yet"),
    ("active_hc_timeout", "its own health check gets no answer"),
    ("excluded_via_immediate_hc_fail", "its own health check was told to fail at once"),
    ("failed_outlier_check", "its outlier detection has ejected it"),
];

/// Host by host. Only for a cluster whose endpoints come over EDS and are decided.
pub(super) fn examine(cluster: &str, clusters: &Value, told: &BTreeMap<Address, Serve>) -> Vec<Finding> {
    let status = page::list(&clusters["cluster_statuses"]).iter().find(|status| status["name"] == cluster);
    let listed = status.map_or(&[][..], |status| page::list(&status["host_statuses"]));
    let has: BTreeMap<Address, &Value> =
        listed.iter().filter_map(|host| Some((page::address(&host["address"])?, host))).collect();
    let mut findings = Vec::new();
    for (at, serve) in told {
        match (has.get(at), expected(*serve)) {
            (Some(host), Some(expected)) => findings.extend(compare(*at, host, *serve, expected)),
            (Some(host), None) => findings.push(extra(*at, host, "does not list it")),
            (None, Some(expected)) => findings.push(missing(*at, expected)),
            (None, None) => {}
        }
    }
    let strangers = has.iter().filter(|(at, _)| !told.contains_key(*at));
    findings.extend(strangers.map(|(at, host)| extra(*at, host, "does not know it")));
    findings
}

/// What Envoy calls it; `None` for who is not listed.
const fn expected(serve: Serve) -> Option<&'static str> {
    match serve {
        Serve::Absent => None,
        Serve::Healthy => Some("HEALTHY"),
        Serve::Degraded => Some("DEGRADED"),
        Serve::Unhealthy => Some("UNHEALTHY"),
        Serve::Draining => Some("DRAINING"),
    }
}

fn problem(at: Address, field: &str, value: impl Into<String>) -> Finding {
    Finding::new(Severity::Problem, &format!("host {at}"), field, value).fleeting()
}

fn compare(at: Address, host: &Value, serve: Serve, expected: &str) -> Vec<Finding> {
    let health = &host["health_status"];
    let mut findings = Vec::new();
    let now = page::text(&health["eds_health_status"]);
    if now != expected {
        findings.push(
            problem(at, "health_status.eds_health_status", now)
                .effect(format!(
                    "tidegate tells {expected}: this Envoy was told otherwise, or does not listen"
                ))
                .instead("see `tidegate get envoys -o wide` for a lost stream or a refusal"),
        );
    }
    if !serve.takes_traffic() {
        // Whatever Envoy finds besides, EDS alone keeps traffic away.
        return findings;
    }
    for (flag, why) in OWN_GROUNDS.iter().filter(|(flag, _)| health[*flag] == true) {
        let cause = if *flag == "failed_outlier_check" { "outlier_detection" } else { "health_checks" };
        findings.push(
            problem(at, &format!("health_status.{flag}"), "true")
                .effect(format!(
                    "tidegate tells {expected}, and this Envoy counts it as out all the same: {why}"
                ))
                .instead(format!(
                    "take `{cause}` out of the cluster, or find out why this Envoy alone fails there"
                )),
        );
    }
    if serve == Serve::Healthy && health["failed_active_degraded_check"] == true {
        findings.push(
            problem(at, "health_status.failed_active_degraded_check", "true")
                .effect("tidegate tells HEALTHY, and this Envoy counts it as degraded: its own check says so")
                .instead("take `health_checks` out of the cluster"),
        );
    }
    findings
}

fn extra(at: Address, host: &Value, how: &str) -> Finding {
    let health = &host["health_status"];
    if health["pending_dynamic_removal"] == true {
        return problem(at, "health_status.pending_dynamic_removal", "true")
            .effect(format!(
                "tidegate {how}, and it keeps its traffic as long as Envoy's own health check passes"
            ))
            .instead("`ignore_health_on_host_removal: true`, or the cluster without `health_checks`");
    }
    problem(at, "host_statuses", format!("listed, {}", page::text(&health["eds_health_status"])))
        .effect(format!("tidegate {how}: this Envoy has it from somebody else, or from earlier"))
        .instead("endpoints from tidegate alone; see `eds_cluster_config`, and `tidegate get envoys` for a lost stream")
}

fn missing(at: Address, expected: &str) -> Finding {
    problem(at, "host_statuses", "absent")
        .effect(format!("tidegate tells {expected}, and this Envoy has no such host: it was told otherwise"))
        .instead("see `tidegate get envoys -o wide` for a lost stream or a refusal")
}
