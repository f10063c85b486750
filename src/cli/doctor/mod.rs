//! Does an Envoy's own config work against the verdicts?
//!
//! Takes what the Envoy's admin interface says and what tidegate tells, and returns findings: which field, what it does
//! to the verdicts, what to write instead. It never changes anything, and knows nothing of how the pages were fetched.
//! What Envoy does with each field was measured on Envoy 1.40.0. Called by `describe`.
//!
//! Pure: no I/O.

mod cluster;
mod hosts;
mod page;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::model::{Address, Serve};
use page::Version;

/// Where the whole way of bringing an Envoy over is written.
const PAGE: &str = "docs/existing-envoys.md";

/// What an Envoy's admin interface says, page by page.
#[derive(Debug, Clone, Default)]
pub(super) struct Pages {
    /// `/server_info`.
    pub(super) server_info: Value,
    /// `/config_dump?resource=static_clusters`.
    pub(super) fixed: Value,
    /// `/config_dump?resource=dynamic_active_clusters`.
    pub(super) active: Value,
    /// `/config_dump?resource=dynamic_warming_clusters`.
    pub(super) warming: Value,
    /// `/clusters?format=json`.
    pub(super) hosts: Value,
    /// `/runtime`; null if it is not given away.
    pub(super) runtime: Value,
    /// `/stats?format=json`, counters of clusters at least; null if it is not given away.
    pub(super) stats: Value,
}

/// What tidegate tells about one cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    /// Its name.
    pub(super) cluster: String,
    /// False while it is not known who may serve: then clients keep what they have, and nothing can be compared.
    pub(super) decided: bool,
    /// Its instances, also those that are left out.
    pub(super) hosts: BTreeMap<Address, Serve>,
    /// Node ids of the streams that ask for its endpoints.
    pub(super) asking: Vec<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Traffic does not follow the verdicts, or may cease to.
    Problem,
    /// Worth a change; the verdicts hold.
    Hint,
}

impl Severity {
    /// In words.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Hint => "hint",
        }
    }
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What it is about: the Envoy itself, a cluster or a host, as the Envoy names it.
    pub(super) about: String,
    /// The field, as in Envoy's config or on its admin page.
    pub(super) field: String,
    /// What it says.
    pub(super) value: String,
    /// What that does to the verdicts.
    pub(super) effect: String,
    /// What to write or do instead.
    pub(super) instead: String,
    /// True for what a push under way looks like too: it counts only if it stays.
    pub(super) fleeting: bool,
}

impl Finding {
    fn new(severity: Severity, about: &str, field: &str, value: impl Into<String>) -> Self {
        Self {
            severity,
            about: about.to_owned(),
            field: field.to_owned(),
            value: value.into(),
            effect: String::new(),
            instead: String::new(),
            fleeting: false,
        }
    }

    fn effect(mut self, text: impl Into<String>) -> Self {
        self.effect = text.into();
        self
    }

    fn instead(mut self, text: impl Into<String>) -> Self {
        self.instead = text.into();
        self
    }

    fn fleeting(mut self) -> Self {
        self.fleeting = true;
        self
    }

    /// True if `other` says the same of the same.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        (&self.about, &self.field, &self.value) == (&other.about, &other.field, &other.value)
    }

    /// For programs.
    pub(super) fn data(&self) -> Value {
        json!({
            "severity": self.severity.word(), "about": self.about, "field": self.field, "value": self.value,
            "effect": self.effect, "instead": self.instead,
        })
    }
}

/// The Envoy's node id and version, as it says.
pub(super) fn identity(pages: &Pages) -> (String, String) {
    let version = page::version(&pages.server_info).map(|v| v.to_string());
    (page::node(&pages.server_info).to_owned(), version.unwrap_or_else(|| "unknown".to_owned()))
}

/// Everything in which the Envoy and tidegate are at odds over one cluster; problems first.
pub(super) fn examine(pages: &Pages, told: &Told) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = page::version(&pages.server_info);
    findings.extend(old(version));
    findings.extend(unread(pages));
    let clusters = cluster::find(pages, &told.cluster);
    if clusters.is_empty() {
        findings.push(unknown(&told.cluster, cluster::is_warming(pages, &told.cluster)));
    }
    let comparable = clusters.iter().any(|cluster| cluster::is_eds(cluster));
    for cluster in clusters {
        findings.extend(cluster::examine(cluster, pages, told, version));
        if cluster::is_eds(cluster) && told.decided {
            findings.extend(hosts::examine(page::text(&cluster["name"]), &pages.hosts, &told.hosts));
        }
    }
    if comparable && !told.decided {
        findings.push(
            Finding::new(Severity::Hint, &told.cluster, "standing", "not decided")
                .effect("it is not known yet who may serve: the Envoy keeps what it has, and hosts are not compared")
                .instead("ask again once `tidegate get clusters` says decided"),
        );
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

fn old(version: Option<Version>) -> Option<Finding> {
    let shown = match version {
        Some(version) if version < Version::TESTED => version.to_string(),
        Some(_) => return None,
        None => "unreadable".to_owned(),
    };
    let finding = Finding::new(Severity::Hint, "Envoy", "version", shown)
        .effect("tidegate is tested with 1.40.0; before it, a change of health may wait for `update_merge_window`")
        .instead("Envoy 1.40.0 or later; until then `update_merge_window: 0s` in each cluster");
    Some(finding)
}

/// Pages without which something would be overlooked.
fn unread(pages: &Pages) -> Vec<Finding> {
    let blind = [
        (&pages.runtime, "/runtime", "an override of the panic threshold is not seen"),
        (&pages.stats, "/stats", "`endpoint_stale_after` is not seen"),
    ];
    let unread = blind.into_iter().filter(|(page, ..)| page.is_null());
    unread
        .map(|(_, path, effect)| {
            Finding::new(Severity::Hint, "Envoy", path, "cannot be read")
                .effect(effect)
                .instead("allow the page in the admin interface's `allow_paths`")
        })
        .collect()
}

fn unknown(name: &str, warming: bool) -> Finding {
    if warming {
        return Finding::new(
            Severity::Problem,
            &format!("cluster {name}"),
            "dynamic_warming_clusters",
            "listed",
        )
        .effect("the Envoy has the cluster and waits for its endpoints: it does not use it yet")
        .instead(
            "wait for its `initial_fetch_timeout`; `tidegate get clusters` says whether there is a verdict",
        )
        .fleeting();
    }
    Finding::new(Severity::Problem, &format!("cluster {name}"), "name", "absent")
        .effect(
            "no cluster of this Envoy has this name or asks for endpoints under it: no verdict reaches it",
        )
        .instead(format!("a cluster of this name with `type: EDS` ({PAGE}), or `cds_config` from tidegate"))
        .fleeting()
}
