//! A changed config file takes effect, or says why not.
//!
//! Whatever is wrong with the file, the last good config stays in force. What a running process cannot change (its
//! own sockets) is named as needing a restart; the rest applies at once.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::admin::ConfigStatus;
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::model::{ContentHash, SourceView};
use crate::source::{self, FileContent, FileState};

/// What became of changes. Clones share the counters.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    applied: Counter,
    refused: Counter,
}

impl Metrics {
    /// Registers the counters, and a gauge that is read from `status` at each scrape.
    pub(super) fn register(registry: &mut Registry, status: watch::Receiver<ConfigStatus>) -> Self {
        let metrics = Self { applied: Counter::default(), refused: Counter::default() };
        let r = registry.sub_registry_with_prefix("config");
        r.register("reloads", "Changes of the config file that were applied", metrics.applied.clone());
        r.register("refused", "Changes of the config file that were refused", metrics.refused.clone());
        r.register_collector(Box::new(InForce(status)));
        metrics
    }
}

#[derive(Debug)]
struct InForce(watch::Receiver<ConfigStatus>);

impl Collector for InForce {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(i64::from(self.0.borrow().problem.is_none()));
        let help = "1 if the config file as it is now is in force; 0 if the last good one is";
        gauge.encode(encoder.encode_descriptor("in_force", help, None, gauge.metric_type())?)
    }
}

/// The task and what it publishes.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) clock: Clock,
    pub(super) path: PathBuf,
    pub(super) config: watch::Sender<Arc<Config>>,
    pub(super) view: watch::Sender<Arc<SourceView>>,
    pub(super) limits: watch::Sender<config::Prober>,
    pub(super) status: watch::Sender<ConfigStatus>,
    pub(super) metrics: Metrics,
    /// The content that `config` was read from.
    pub(super) in_force: Option<ContentHash>,
}

impl Reload {
    /// Runs until cancelled, or until nobody watches the file any more.
    pub(super) async fn run(self, mut file: watch::Receiver<FileState>, cancel: CancellationToken) {
        // Not what the file holds now: that may be newer already.
        let mut tried = self.in_force;
        let mut verdict: Result<(), Arc<str>> = Ok(());
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                changed = file.changed() => if changed.is_err() { return },
            }
            let state = file.borrow_and_update().clone();
            if let Some(content) = state.content.as_ref().filter(|content| tried != Some(content.hash)) {
                tried = Some(content.hash);
                verdict = self.apply(content);
            }
            let unreadable = state.problem.map(|(problem, _)| Arc::from(problem.to_string()));
            let problem = unreadable.or_else(|| verdict.clone().err());
            self.status.send_modify(|status| status.problem = problem);
        }
    }

    /// Puts new content in force; `Err` says why it is not.
    fn apply(&self, content: &FileContent) -> Result<(), Arc<str>> {
        let path = self.path.display();
        match config::parse(&content.text) {
            Ok(config) => {
                self.publish(config);
                self.metrics.applied.inc();
                tracing::info!(%path, "config reloaded");
                Ok(())
            }
            Err(errors) => {
                self.metrics.refused.inc();
                self.status.send_modify(|status| status.refused += 1);
                let mut first = None;
                for error in errors.as_slice() {
                    tracing::error!(%path, %error, "config refused; the last good one stays in force");
                    first.get_or_insert_with(|| Arc::from(error.to_string()));
                }
                Err(first.unwrap_or_else(|| Arc::from("it has errors")))
            }
        }
    }

    fn publish(&self, config: Config) {
        let in_force = self.config.borrow().clone();
        let needs_restart = [
            ("listen.xds", in_force.listen.xds != config.listen.xds),
            ("listen.admin", in_force.listen.admin != config.listen.admin),
            ("listen.health", in_force.listen.health != config.listen.health),
        ];
        let needs_restart: Vec<_> =
            needs_restart.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect();
        for key in &needs_restart {
            tracing::warn!(key, "this change needs a restart");
        }
        // The sockets stay as they were bound, so that the next comparison is with what really is.
        let config = Config { listen: in_force.listen, ..config };
        let view = source::view_of(&config, &self.view.borrow(), self.clock.now());
        self.limits.send_replace(config.prober);
        self.config.send_replace(Arc::new(config));
        self.view.send_replace(Arc::new(view));
        self.status.send_modify(|status| {
            status.reloads += 1;
            status.needs_restart = needs_restart;
        });
    }
}
