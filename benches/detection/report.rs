//! Figures of many trials, for people and for programs.

use super::arena::{Storm, Trial};
use super::side::Cost;

/// What was measured with one kind of fault on one pool.
pub(crate) struct Series {
    pub(crate) fault: &'static str,
    pub(crate) hosts: usize,
    pub(crate) trials: Vec<Trial>,
    pub(crate) storm: Option<Storm>,
}

/// Median, least and most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |n: usize| values.get(n).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last.div_ceil(2))), least: at(0), most: at(last) }
    }

    fn text(self) -> String {
        format!("{:.0} [{:.0}–{:.0}]", self.median, self.least, self.most)
    }
}

/// The medians of one kind of fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Medians {
    tidegate_ms: f64,
    envoy_ms: f64,
    tidegate_failed: f64,
    envoy_failed: f64,
}

impl Medians {
    /// The larger of each.
    pub(crate) fn worse(self, other: Self) -> Self {
        Self {
            tidegate_ms: self.tidegate_ms.max(other.tidegate_ms),
            envoy_ms: self.envoy_ms.max(other.envoy_ms),
            tidegate_failed: self.tidegate_failed.max(other.tidegate_failed),
            envoy_failed: self.envoy_failed.max(other.envoy_failed),
        }
    }

    pub(crate) fn json(self) -> String {
        format!(
            r#"{{"tidegate_ms":{:.1},"envoy_ms":{:.1},"tidegate_failed":{},"envoy_failed":{}}}"#,
            self.tidegate_ms, self.envoy_ms, self.tidegate_failed, self.envoy_failed
        )
    }
}

impl Series {
    fn spread(&self, value: impl Fn(&Trial) -> f64) -> Spread {
        Spread::of(self.trials.iter().map(value))
    }

    pub(crate) fn medians(&self) -> Medians {
        Medians {
            tidegate_ms: self.spread(|t| t.tidegate.last_ms).median,
            envoy_ms: self.spread(|t| t.envoy.last_ms).median,
            tidegate_failed: self.spread(|t| t.tidegate.failed as f64).median,
            envoy_failed: self.spread(|t| t.envoy.failed as f64).median,
        }
    }
}

/// Everything, as median and [least–most].
pub(crate) fn print(all: &[Series]) {
    println!(
        "last request to the dead backend (ms after the fault), and requests failed or hung: median [min–max]"
    );
    println!(
        "{:<13}{:>6}{:>8}{:>21}{:>14}{:>21}{:>14}",
        "fault", "hosts", "trials", "tidegate ms", "failed", "Envoy ms", "failed"
    );
    for series in all {
        let ms = |side: fn(&Trial) -> Cost| series.spread(|t| side(t).last_ms).text();
        let failed = |side: fn(&Trial) -> Cost| series.spread(|t| side(t).failed as f64).text();
        println!(
            "{:<13}{:>6}{:>8}{:>21}{:>14}{:>21}{:>14}",
            series.fault,
            series.hosts,
            series.trials.len(),
            ms(|t| t.tidegate),
            failed(|t| t.tidegate),
            ms(|t| t.envoy),
            failed(|t| t.envoy)
        );
    }
    println!("\nwhere tidegate's time goes, ms");
    println!(
        "{:<13}{:>6}{:>21}{:>21}{:>21}",
        "fault", "hosts", "to its next probe", "to the verdict", "to the ACK"
    );
    for series in all {
        let stage = |n: usize| series.spread(|t| t.stages[n]);
        let ack = stage(2);
        let ack = format!("{:.1} [{:.1}–{:.1}]", ack.median, ack.least, ack.most);
        let (wait, verdict) = (stage(0).text(), stage(1).text());
        println!("{:<13}{:>6}{wait:>21}{verdict:>21}{ack:>21}", series.fault, series.hosts);
    }
    println!("\na storm of 503s from the application: ejections by each Envoy's outlier detection");
    for (hosts, storm) in all.iter().filter_map(|series| Some((series.hosts, series.storm?))) {
        println!("{hosts:>3} hosts: with tidegate's bridge {}, Envoy alone {}", storm.tidegate, storm.envoy);
    }
}
