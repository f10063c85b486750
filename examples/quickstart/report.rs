//! What the phases came to: counts by phase, moments from Envoy's own log, and whether that is good enough.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Map, Value, json};
use tidegate::model::MonoTime;
use tidegate::testing::envoy::access_log::Served;

use crate::load::Sent;

/// Streams that may be cut when an instance is killed under them.
const KILLED_MAY_FAIL: u64 = 3;
/// How long a hung instance may still be given requests.
const HUNG_MAY_GET_MS: u64 = 2_000;

/// A moment on both clocks: tidegate's and the users', and the wall clock by which Envoy stamps.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub at: MonoTime,
    pub wall_micros: u64,
}

/// One thing that happened to one instance.
#[derive(Debug, Clone)]
pub struct Phase {
    pub name: &'static str,
    pub instance: SocketAddr,
    pub from: Moment,
    pub to: Moment,
    /// When tidegate decided.
    pub seen: MonoTime,
    /// When Envoy acknowledged that.
    pub acked: MonoTime,
}

/// Its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub ok: u64,
    pub failed: u64,
    first_seen_ms: u64,
    acked_ms: u64,
    last_request_ms: Option<u64>,
    /// Why requests failed, and how many each time.
    reasons: BTreeMap<String, u64>,
}

/// Ok, failed and the reasons, of what was decided in `from..to`.
pub fn count(sent: &[Sent], from: MonoTime, to: MonoTime) -> (u64, u64, BTreeMap<String, u64>) {
    let (mut ok, mut reasons) = (0, BTreeMap::new());
    for one in sent.iter().filter(|one| (from..to).contains(&one.decided_at)) {
        match &one.failure {
            None => ok += 1,
            Some(why) => *reasons.entry(why.clone()).or_default() += 1,
        }
    }
    (ok, reasons.values().sum(), reasons)
}

impl Phase {
    /// The phase's numbers, when all requests have ended.
    pub fn row(&self, sent: &[Sent], served: &[Served]) -> Row {
        let (ok, failed, reasons) = count(sent, self.from.at, self.to.at);
        let since = |at: MonoTime| u64::try_from(at.since(self.from.at).as_millis()).unwrap_or(u64::MAX);
        // Whoever was added goes on serving; of the others, the last request ever is the point.
        let until = if self.name == "added" { self.to.wall_micros } else { u64::MAX };
        let mine = served.iter().filter(|one| one.upstream == Some(self.instance));
        let last =
            mine.map(|one| one.start_micros).filter(|at| (self.from.wall_micros..until).contains(at)).max();
        Row {
            ok,
            failed,
            first_seen_ms: since(self.seen),
            acked_ms: since(self.acked),
            last_request_ms: last.map(|at| (at - self.from.wall_micros) / 1_000),
            reasons,
        }
    }

    /// What is wrong with its numbers.
    pub fn complaint(&self, row: &Row) -> Option<String> {
        let allowed = match self.name {
            "added" | "drained" => 0,
            "killed" => KILLED_MAY_FAIL,
            _ => u64::MAX,
        };
        if row.failed > allowed {
            return Some(format!("{}: {} requests failed, at most {allowed} may", self.name, row.failed));
        }
        let last = row.last_request_ms.filter(|ms| self.name == "hung" && *ms > HUNG_MAY_GET_MS)?;
        Some(format!(
            "hung: it was given a request after {last} ms, at most {HUNG_MAY_GET_MS} ms are allowed"
        ))
    }
}

/// The table for people.
pub fn table(rows: &[(&Phase, Row)]) -> String {
    let mut out = format!(
        "{:<8} {:>5} {:>7} {:>15} {:>15} {:>17}\n",
        "phase", "ok", "failed", "seen after ms", "acked after ms", "last request ms"
    );
    for (phase, row) in rows {
        let last = row.last_request_ms.map_or("-".to_owned(), |ms| ms.to_string());
        out.push_str(&format!(
            "{:<8} {:>5} {:>7} {:>15} {:>15} {last:>17}\n",
            phase.name, row.ok, row.failed, row.first_seen_ms, row.acked_ms
        ));
        for (why, times) in &row.reasons {
            out.push_str(&format!("         {times} failed: {why}\n"));
        }
    }
    out
}

/// The same for programs.
pub fn json(rows: &[(&Phase, Row)]) -> Value {
    let row = |row: &Row| {
        json!({
            "ok": row.ok, "failed": row.failed, "first_seen_ms": row.first_seen_ms, "acked_ms": row.acked_ms,
            "last_request_ms": row.last_request_ms,
        })
    };
    let all = rows.iter().map(|(phase, numbers)| (phase.name.to_owned(), row(numbers)));
    Value::Object(all.collect::<Map<_, _>>())
}
