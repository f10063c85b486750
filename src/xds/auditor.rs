//! The reconciler: looks at every stream in turn, whether its client holds what there is.
//!
//! A stream says what has changed since it last looked, and nothing else; if that account were ever wrong, its client
//! would keep what is outdated until it came back. So each stream is compared with the truth as a whole once in
//! [`ROUND`] seconds, and what is missing is sent. A finding is a fault of ours: it is counted and logged as one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Clients, Metrics};
use crate::model::ClientId;
use crate::snapshot::Snapshot;

/// In so many seconds all streams have had their turn: a part of them in each.
const ROUND: u64 = 30;

/// Looks until cancelled.
pub(super) async fn run(
    clients: Clients,
    snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    for second in 0u64.. {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        let Some(snapshot) = snapshots.borrow().clone() else { continue };
        let turn = |client: &ClientId| client.0 % ROUND == second % ROUND;
        for client in clients.ids().into_iter().filter(turn) {
            tokio::task::yield_now().await; // a look at one is short; who connects does not wait for all
            let Some(stream) = clients.stream(client) else { continue };
            for finding in stream.audit(&snapshot) {
                metrics.of(finding.kind).repairs.inc();
                tracing::warn!(
                    %client, r#type = finding.kind.as_str(), name = &*finding.name,
                    "a client was not told something: it is now"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::model::MonoTime;
    use crate::snapshot::Kind;
    use crate::xds::machine::Inspect;
    use crate::xds::stream::{Finding, Holding};

    /// A stream that has overlooked one thing.
    #[derive(Default)]
    struct Faulty(AtomicUsize);

    impl Inspect for Faulty {
        fn holdings(&self, _: &Snapshot) -> Vec<Holding> {
            Vec::new()
        }

        fn audit(&self, _: &Snapshot) -> Vec<Finding> {
            let found = self.0.fetch_add(1, Ordering::Relaxed) == 0;
            found.then(|| Finding { kind: Kind::Endpoints, name: "c".into() }).into_iter().collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_stream_has_its_turn_once_in_a_round() {
        let (clients, metrics) = (Clients::new(), Metrics::register(&mut Registry::default()));
        let streams: Vec<Arc<Faulty>> = (0..70).map(|_| Arc::default()).collect();
        for stream in &streams {
            let stream: Weak<Faulty> = Arc::downgrade(stream);
            clients.open("test", MonoTime::ZERO, stream);
        }
        let (_keep, snapshots) = watch::channel(Some(Arc::default()));
        let cancel = CancellationToken::new();
        let rounds = Duration::from_secs(2 * ROUND) + Duration::from_millis(500);
        let stop = async {
            tokio::time::sleep(rounds).await;
            cancel.cancel();
        };
        tokio::join!(run(clients, snapshots, metrics.clone(), cancel.clone()), stop);
        assert!(streams.iter().all(|stream| stream.0.load(Ordering::Relaxed) == 2));
        assert_eq!(metrics.of(Kind::Endpoints).repairs.get(), 70, "what was found once");
    }
}
