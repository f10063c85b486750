//! The settings of one cluster that decide whether verdicts count.
//!
//! Pure: no I/O.

use std::time::Duration;

use serde_json::Value;

use super::page::{self, Version};
use super::{Finding, PAGE, Pages, Severity, Told};

/// What Envoy does when `healthy_panic_threshold` is absent, in percent.
const DEFAULT_PANIC: f64 = 50.0;
/// A cluster that waits longer than this for its endpoints holds the start of its Envoy up for longer than it need.
const LONG_WAIT: Duration = Duration::from_secs(5);
/// Node ids are shown whole up to this length at least.
const KEPT_NODE: usize = 200;
/// Overrides every cluster's panic threshold.
const PANIC_KEY: &str = "upstream.healthy_panic_threshold";
/// Switched off, an Envoy 1.40 holds changes of health back as older ones do.
const BATCH_KEY: &str = "envoy.reloadable_features.enable_batch_aware_update";
/// Outlier detection that looks at answers: the field, and what it is when absent.
const JUDGES: [(&str, u64); 4] = [
    ("enforcing_consecutive_5xx", 100),
    ("enforcing_consecutive_gateway_failure", 0),
    ("enforcing_success_rate", 100),
    ("enforcing_failure_percentage", 0),
];

/// The clusters that are called `name`, or take their endpoints under it.
pub(super) fn find<'a>(pages: &'a Pages, name: &str) -> Vec<&'a Value> {
    let dumps = [&pages.fixed, &pages.active].into_iter().flat_map(|dump| page::list(&dump["configs"]));
    let clusters = dumps.map(|entry| &entry["cluster"]);
    clusters.filter(|cluster| cluster["name"] == name || service_name(cluster) == name).collect()
}

/// True if a cluster of that name waits for its first endpoints.
pub(super) fn is_warming(pages: &Pages, name: &str) -> bool {
    page::list(&pages.warming["configs"]).iter().any(|entry| entry["cluster"]["name"] == name)
}

/// True if its endpoints come over EDS.
pub(super) fn is_eds(cluster: &Value) -> bool {
    cluster["type"] == "EDS" || page::text(&cluster["cluster_type"]["name"]).ends_with(".eds")
}

fn service_name(cluster: &Value) -> &str {
    page::text(&cluster["eds_cluster_config"]["service_name"])
}

/// Everything in its settings that works against the verdicts.
pub(super) fn examine(cluster: &Value, pages: &Pages, told: &Told, version: Option<Version>) -> Vec<Finding> {
    let of = Of { about: format!("cluster {}", page::text(&cluster["name"])), cluster };
    if !is_eds(cluster) {
        return of.not_served();
    }
    let mut findings = Vec::from_iter(of.source(told, page::node(&pages.server_info)));
    findings.extend(of.own_checks());
    findings.extend(of.outliers());
    findings.extend(of.panic(pages));
    findings.extend(of.merging(version, &pages.runtime));
    findings.extend(of.closing());
    findings.extend(of.staleness(pages));
    findings.extend(of.waiting());
    findings
}

/// One cluster under examination.
struct Of<'a> {
    about: String,
    cluster: &'a Value,
}

impl Of<'_> {
    fn problem(&self, field: &str, value: impl Into<String>) -> Finding {
        Finding::new(Severity::Problem, &self.about, field, value)
    }

    fn hint(&self, field: &str, value: impl Into<String>) -> Finding {
        Finding::new(Severity::Hint, &self.about, field, value)
    }

    /// Not EDS: nothing else matters.
    fn not_served(&self) -> Vec<Finding> {
        let (field, value) = match (page::text(&self.cluster["type"]), &self.cluster["cluster_type"]["name"])
        {
            ("", Value::String(name)) => ("cluster_type.name", name.clone()),
            ("", _) => ("type", "absent: STATIC".to_owned()),
            (given, _) => ("type", given.to_owned()),
        };
        let served = self
            .problem(field, value)
            .effect("its hosts come from Envoy's own config or from DNS: no verdict of tidegate reaches it")
            .instead(format!("`type: EDS` and `eds_cluster_config` in place of `load_assignment`: {PAGE}"));
        let localities = page::list(&self.cluster["load_assignment"]["endpoints"]);
        let endpoints = localities.iter().flat_map(|locality| page::list(&locality["lb_endpoints"]));
        let written: Vec<_> =
            endpoints.filter_map(|e| e["health_status"].as_str()).filter(|s| *s != "UNKNOWN").collect();
        let fixed = (!written.is_empty()).then(|| {
            self.problem("load_assignment.endpoints.lb_endpoints.health_status", written.join(", "))
                .effect("written there it is a constant (earlier Envoys ignored it): health comes over EDS or not at all")
                .instead("no `health_status` in `load_assignment`; the endpoints over EDS")
        });
        [Some(served), fixed].into_iter().flatten().collect()
    }

    /// Does what it is told come from tidegate?
    fn source(&self, told: &Told, node: &str) -> Option<Finding> {
        let eds = &self.cluster["eds_cluster_config"];
        let service = service_name(self.cluster);
        if !service.is_empty() && service != told.cluster {
            return Some(
                self.problem("eds_cluster_config.service_name", service)
                    .effect(format!("it asks for endpoints under that name, not for {}", told.cluster))
                    .instead(format!("no `service_name`, or `service_name: {}`", told.cluster)),
            );
        }
        let config = &eds["eds_config"];
        let file =
            [&config["path_config_source"]["path"], &config["path"]].into_iter().find_map(Value::as_str);
        if let Some(path) = file {
            return Some(
                self.problem("eds_cluster_config.eds_config.path_config_source", path)
                    .effect("its endpoints come from a file: no verdict of tidegate reaches it")
                    .instead(format!("`ads: {{}}` or an `api_config_source` that leads to tidegate: {PAGE}")),
            );
        }
        if told.asking.iter().any(|asking| is_node(asking, node)) {
            return None;
        }
        Some(
            self.problem("eds_cluster_config.eds_config", way(config))
                .effect(format!(
                    "no open stream of node {node:?} asks tidegate for {}: its endpoints come from another control \
                     plane, or it is cut off and keeps what it was told last",
                    told.cluster
                ))
                .instead(format!("make it lead to tidegate ({PAGE}), or look at the way between the two"))
                .fleeting(),
        )
    }

    fn own_checks(&self) -> Vec<Finding> {
        let checks = page::list(&self.cluster["health_checks"]);
        if checks.is_empty() {
            return Vec::new();
        }
        let shown: Vec<_> = checks.iter().map(kind_of_check).collect();
        let judge = self
            .problem("health_checks", shown.join(", "))
            .effect(
                "Envoy judges too, and the worse verdict wins: while its own check fails, an instance that tidegate \
                 calls HEALTHY gets nothing; and every such Envoy probes every instance",
            )
            .instead("no `health_checks` in this cluster");
        let lingers = (self.cluster["ignore_health_on_host_removal"] != true).then(|| {
            self.problem("ignore_health_on_host_removal", "absent")
                .effect(
                    "an instance that tidegate removes keeps its traffic as long as Envoy's own check passes",
                )
                .instead("`ignore_health_on_host_removal: true`, or no `health_checks`")
        });
        [Some(judge), lingers].into_iter().flatten().collect()
    }

    fn outliers(&self) -> Option<Finding> {
        let detection = self.cluster.get("outlier_detection")?;
        let shown = |(field, default): &(&str, u64)| match detection[*field].as_u64() {
            Some(0) => None,
            Some(percent) => Some(format!("{field}: {percent}")),
            None if *default == 0 => None,
            None => Some(format!("{field} absent: {default}")),
        };
        let judging: Vec<_> = JUDGES.iter().filter_map(shown).collect();
        if judging.is_empty() {
            return None;
        }
        let zeros: Vec<_> = JUDGES.iter().map(|(field, _)| format!("`{field}: 0`")).collect();
        Some(
            self.problem("outlier_detection", judging.join(", "))
                .effect(
                    "Envoy ejects by what an instance answers, though tidegate calls it HEALTHY, and only Envoy's own \
                     clock brings it back",
                )
                .instead(format!(
                    "{}; connection failures alone may stay, as in envoy/eds-only.yaml",
                    zeros.join(", ")
                )),
        )
    }

    fn panic(&self, pages: &Pages) -> Option<Finding> {
        let lb = &self.cluster["common_lb_config"];
        let written = lb.get("healthy_panic_threshold");
        // What is zero is left out of protobuf's JSON: a threshold of 0 is an empty object.
        let of_config = written.map_or(DEFAULT_PANIC, |percent| percent["value"].as_f64().unwrap_or(0.0));
        let of_runtime = page::runtime(&pages.runtime, PANIC_KEY)
            .and_then(|value| value.parse::<u32>().ok())
            .map(f64::from);
        let percent = of_runtime.unwrap_or(of_config);
        if percent <= 0.0 {
            return None;
        }
        let finding = match (of_runtime, written) {
            (Some(_), _) => self
                .problem(&format!("runtime {PANIC_KEY}"), percent.to_string())
                .instead(format!("no `{PANIC_KEY}` in runtime: it overrides every cluster's own setting")),
            (None, written) => {
                let shown = written.map_or_else(|| format!("absent: {percent}%"), |_| format!("{percent}%"));
                self.problem("common_lb_config.healthy_panic_threshold", shown)
                    .instead("`common_lb_config: { healthy_panic_threshold: { value: 0 } }`")
            }
        };
        let panics = match self.stat(pages, "lb_healthy_panic") {
            Some(n) if n > 0 => format!("; it has happened, for {n} picks so far"),
            _ => String::new(),
        };
        let effect = if lb["zone_aware_lb_config"]["fail_traffic_on_panic"] == true {
            "Envoy fails every request, though some could be served (`fail_traffic_on_panic`)"
        } else {
            "Envoy sends traffic to all instances, the ejected ones too"
        };
        Some(finding.effect(format!("once fewer than {percent}% are healthy, {effect}{panics}")))
    }

    fn merging(&self, version: Option<Version>, runtime: &Value) -> Option<Finding> {
        let window = &self.cluster["common_lb_config"]["update_merge_window"];
        if page::duration(window).is_some_and(|window| window.is_zero()) {
            return None;
        }
        let switched_off = page::runtime(runtime, BATCH_KEY) == Some("false");
        let shown = window.as_str().unwrap_or("absent: 1s");
        let field = "common_lb_config.update_merge_window";
        let finding = match version {
            Some(version) if version >= Version::TESTED && !switched_off => return None,
            None => self.hint(field, shown),
            Some(_) => self.problem(field, shown),
        };
        Some(
            finding
                .effect("a verdict that comes soon after another change of the cluster waits for the window's end")
                .instead("`common_lb_config: { update_merge_window: 0s }`"),
        )
    }

    fn closing(&self) -> Option<Finding> {
        let field = "close_connections_on_host_set_change";
        (self.cluster["common_lb_config"][field] == true).then(|| {
            self.problem(&format!("common_lb_config.{field}"), "true")
                .effect("each verdict on one instance closes the connections to all of them")
                .instead("leave it out: Envoy stops new requests to an ejected instance without it")
        })
    }

    /// Not part of any page that shows config: only a counter tells.
    fn staleness(&self, pages: &Pages) -> Option<Finding> {
        let received = self.stat(pages, "assignment_timeout_received").filter(|n| *n > 0)?;
        Some(
            self.problem("endpoint_stale_after", format!("set in {received} of the assignments received"))
                .effect("when their sender falls silent for so long, Envoy drops all hosts and answers 503")
                .instead("no `policy.endpoint_stale_after`; tidegate never sends it, so another sender does"),
        )
    }

    fn waiting(&self) -> Option<Finding> {
        let timeout = &self.cluster["eds_cluster_config"]["eds_config"]["initial_fetch_timeout"];
        let (shown, long) = match page::duration(timeout) {
            Some(wait) if wait.is_zero() => ("0s", "without end"),
            Some(wait) if wait <= LONG_WAIT => return None,
            Some(_) => (page::text(timeout), "that long"),
            None => ("absent: 15s", "15 s"),
        };
        Some(
            self.hint("eds_cluster_config.eds_config.initial_fetch_timeout", shown)
                .effect(format!(
                    "while tidegate has no verdict or is away, the start of the whole Envoy waits {long}"
                ))
                .instead("`initial_fetch_timeout: 1s`"),
        )
    }

    /// A counter of this cluster. Its name there may be another one.
    fn stat(&self, pages: &Pages, counter: &str) -> Option<u64> {
        let alternative = page::text(&self.cluster["alt_stat_name"]);
        let name = if alternative.is_empty() { page::text(&self.cluster["name"]) } else { alternative };
        page::stat(&pages.stats, &format!("cluster.{}.{counter}", name.replace(':', "_")))
    }
}

/// tidegate keeps the beginning of a very long node id.
fn is_node(kept: &str, node: &str) -> bool {
    kept == node || (kept.len() >= KEPT_NODE && node.starts_with(kept))
}

/// Where `eds_config` leads, as far as it says.
fn way(config: &Value) -> String {
    if config.get("ads").is_some() {
        return "ads".to_owned();
    }
    let services = page::list(&config["api_config_source"]["grpc_services"]);
    match services.iter().find_map(|service| service["envoy_grpc"]["cluster_name"].as_str()) {
        Some(cluster) => format!("api_config_source by cluster {cluster}"),
        None if config.is_null() => "absent".to_owned(),
        None => {
            config.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect::<Vec<_>>().join(", ")
        }
    }
}

fn kind_of_check(check: &Value) -> String {
    let keys = check.as_object().into_iter().flat_map(|map| map.iter());
    let kind = keys.into_iter().find(|(key, _)| key.ends_with("_health_check"));
    match kind {
        Some((key, inner)) => format!("{key} {}", page::text(&inner["path"])).trim_end().to_owned(),
        None => "of an unknown kind".to_owned(),
    }
}
