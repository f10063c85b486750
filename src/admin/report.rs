//! Is tidegate ready, and what is wrong with it?
//!
//! Pure: no I/O.

use std::fmt;
use std::sync::Arc;

use crate::model::{Plan, SourceView, Standing};
use crate::snapshot::Snapshot;

/// The config in force, and what became of the latest change to its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigStatus {
    /// Changes applied since the start.
    pub reloads: u64,
    /// Changes refused since the start.
    pub refused: u64,
    /// Why the file as it is now is not in force; `None` if it is.
    pub problem: Option<Arc<str>>,
    /// Keys whose change needs a restart.
    pub needs_restart: Vec<&'static str>,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// As it should be.
    Ok(String),
    /// Somebody should look, but traffic is served as well as it can be.
    Warn(String),
    /// Not ready because of this.
    Blocked(String),
}

/// What `/readyz?verbose` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In a fixed order.
    pub items: Vec<Item>,
}

impl Report {
    /// Judges the published values. A bad config file does not make tidegate unready, and neither does a fleet that
    /// is still loading: both are told, and clients keep being served.
    pub fn new(config: &ConfigStatus, view: &SourceView, plan: &Plan, snapshot: Option<&Snapshot>) -> Self {
        let mut items = Vec::new();
        items.push(match &config.problem {
            None => Item::Ok(format!("config: in force, {} reloads", config.reloads)),
            Some(problem) => Item::Warn(format!("config: the last good one stays in force: {problem}")),
        });
        if !config.needs_restart.is_empty() {
            items.push(Item::Warn(format!(
                "config: a restart is needed for {}",
                config.needs_restart.join(", ")
            )));
        }
        items.push(match &view.error {
            _ if !view.synced => Item::Blocked("source: not synced yet".to_owned()),
            None => Item::Ok("source: synced".to_owned()),
            Some(error) => Item::Warn(format!("source: the last view stays in force: {error}")),
        });
        items.push(match snapshot {
            None => Item::Blocked("xds: no snapshot yet".to_owned()),
            Some(snapshot) => Item::Ok(format!("xds: generation {}", snapshot.generation)),
        });
        for (name, cluster) in &plan.clusters {
            let unheard = "left unanswered, clients keep what they have";
            match cluster.standing {
                Standing::Decided => {}
                Standing::Loading => items.push(Item::Warn(format!("cluster {name}: nobody is ready yet"))),
                Standing::Undecided => {
                    items.push(Item::Warn(format!("cluster {name}: no verdict yet, {unheard}")))
                }
                Standing::Unlisted => {
                    items.push(Item::Warn(format!("cluster {name}: no source lists it, {unheard}")))
                }
            }
        }
        Self { items }
    }

    /// True if nothing blocks.
    pub fn is_ready(&self) -> bool {
        !self.items.iter().any(|item| matches!(item, Item::Blocked(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            match item {
                Item::Ok(text) => writeln!(f, "[+] {text}")?,
                Item::Warn(text) => writeln!(f, "[!] {text}")?,
                Item::Blocked(text) => writeln!(f, "[-] {text}")?,
            }
        }
        writeln!(f, "{}", if self.is_ready() { "ready" } else { "not ready" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_config_file_is_told_and_does_not_make_us_unready() {
        let status = ConfigStatus { problem: Some("line 3: no".into()), ..ConfigStatus::default() };
        let view = SourceView { synced: true, ..SourceView::default() };
        let report = Report::new(&status, &view, &Plan::default(), Some(&Snapshot::default()));
        assert!(report.is_ready());
        assert!(report.to_string().contains("[!] config: the last good one stays in force: line 3: no"));
    }

    #[test]
    fn an_unsynced_source_and_a_missing_snapshot_block() {
        let report = Report::new(&ConfigStatus::default(), &SourceView::default(), &Plan::default(), None);
        assert!(!report.is_ready());
        assert!(report.to_string().ends_with("not ready\n"));
    }
}
