//! The loop that does what the timetable says.
//!
//! It owns the probes in flight and the connections kept between probes, and decides nothing: who is asked when is
//! the timetable's, what an answer means is `ask`'s. All probes run inside this one task, so none can outlive it.
//! Called by `app`.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::ask::{Answer, Ask, Sockets};
use super::metrics::Metrics;
use super::timetable::{SlotId, Start, Timetable};
use crate::clock::Clock;
use crate::config::Prober;
use crate::model::{Catalog, MonoTime, Observation, Role, Target};

/// What the prober needs besides its channels.
#[derive(Debug, Clone)]
pub struct ProberCtx {
    /// The only source of time.
    pub clock: Clock,
    /// Shifts the timetable and makes the prompts: give two probers of one fleet different ones.
    pub seed: u64,
    /// Where it counts.
    pub metrics: Metrics,
    /// Sockets it may hold, in flight and kept between probes together.
    pub max_sockets: usize,
}

/// Probes what `catalog` lists until cancelled, or until nobody publishes catalogs or takes observations any more.
///
/// Observations go out as one `Vec` per turn. While `out` is full no probe starts; what ends meanwhile is kept, so
/// no result is ever dropped, and there are never more of them than `max_in_flight`.
pub async fn run(
    ctx: ProberCtx,
    catalog: watch::Receiver<Arc<Catalog>>,
    limits: watch::Receiver<Prober>,
    out: mpsc::Sender<Vec<Observation>>,
    cancel: CancellationToken,
) {
    let sockets = Sockets::new(ctx.clock, ctx.seed);
    run_with(sockets, ctx, catalog, limits, out, cancel).await;
}

/// [`run`] with another way to ask.
pub async fn run_with<A: Ask>(
    asker: A,
    ctx: ProberCtx,
    mut catalog: watch::Receiver<Arc<Catalog>>,
    mut limits: watch::Receiver<Prober>,
    out: mpsc::Sender<Vec<Observation>>,
    cancel: CancellationToken,
) {
    let first_limits = *limits.borrow_and_update();
    let mut desk = Desk::new(asker, ctx, first_limits);
    desk.take_over(&catalog.borrow_and_update().clone());
    let mut limits_open = true;
    // Every arm is safe to cancel: what it waits for stays where it is, and what it brings is taken over at once.
    loop {
        if desk.reported.is_empty() {
            desk.start_due();
        }
        let wake = desk.wake_at();
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            changed = catalog.changed() => {
                if changed.is_err() {
                    return;
                }
                let catalog = catalog.borrow_and_update().clone();
                desk.take_over(&catalog);
            }
            changed = limits.changed(), if limits_open => {
                limits_open = changed.is_ok();
                let limits = *limits.borrow_and_update();
                desk.timetable.set_limits(within(limits, desk.ctx.max_sockets));
            }
            room = out.reserve(), if !desk.reported.is_empty() => match room {
                Ok(room) => room.send(std::mem::take(&mut desk.reported)),
                Err(_) => return,
            },
            () = out.closed() => return,
            Some(landed) = desk.flights.next() => {
                desk.take_in(landed.ok());
                desk.take_in_all_ready();
            }
            () = desk.ctx.clock.sleep_until(wake.unwrap_or_default()),
                if wake.is_some() && desk.reported.is_empty() => {}
        }
    }
}

/// `limits` as far as there are sockets for it.
fn within(limits: Prober, max_sockets: usize) -> Prober {
    Prober { max_in_flight: limits.max_in_flight.min(max_sockets.div_ceil(2)), ..limits }
}

/// A probe in flight, or a connection at rest that carries the next one.
type Flight<K> = Abortable<BoxFuture<'static, Landing<K>>>;

/// How a flight ended.
enum Landing<K> {
    Answered(Landed<K>),
    /// The connection was ended by its peer while it was at rest.
    HungUp(SlotId),
}

/// A connection at rest.
struct Resting {
    /// Sends the next probe over it.
    next: oneshot::Sender<Start>,
    cancel: AbortHandle,
}

/// A probe that ended.
struct Landed<K> {
    slot: SlotId,
    target: Arc<Target>,
    role: Role,
    answer: Answer,
    kept: Option<K>,
}

/// All that is in the loop's hands.
struct Desk<A: Ask> {
    asker: A,
    ctx: ProberCtx,
    timetable: Timetable,
    flights: FuturesUnordered<Flight<A::Kept>>,
    cancels: HashMap<SlotId, AbortHandle>,
    resting: HashMap<SlotId, Resting>,
    /// Ended, and not handed out yet.
    reported: Vec<Observation>,
}

impl<A: Ask> Desk<A> {
    fn new(asker: A, ctx: ProberCtx, limits: Prober) -> Self {
        Self {
            timetable: Timetable::new(ctx.seed, within(limits, ctx.max_sockets)),
            asker,
            ctx,
            flights: FuturesUnordered::new(),
            cancels: HashMap::new(),
            resting: HashMap::new(),
            reported: Vec::new(),
        }
    }

    fn take_over(&mut self, catalog: &Arc<Catalog>) {
        for slot in self.timetable.reconcile(catalog, self.ctx.clock.now()) {
            let resting = self.resting.remove(&slot).map(|resting| resting.cancel);
            if let Some(cancel) = self.cancels.remove(&slot).or(resting) {
                // Wakes the flight, which then ends without landing and takes its socket along.
                cancel.abort();
            }
        }
        self.ctx.metrics.in_flight(self.cancels.len());
    }

    fn wake_at(&self) -> Option<MonoTime> {
        self.timetable.wake_at()
    }

    fn start_due(&mut self) {
        let now = self.ctx.clock.now();
        let mut any = false;
        while let Some(start) = self.timetable.start(now) {
            self.ctx.metrics.started(now.since(start.due));
            self.begin(start);
            any = true;
        }
        if any {
            self.ctx.metrics.in_flight(self.cancels.len());
        }
    }

    fn begin(&mut self, start: Start) {
        let slot = start.slot;
        let mut start = start;
        if let Some(Resting { next, cancel }) = self.resting.remove(&slot) {
            // Confirming on the connection that has just failed would confirm the connection's death, not the peer's.
            if start.confirm {
                cancel.abort();
            } else {
                match next.send(start) {
                    Ok(()) => {
                        self.cancels.insert(slot, cancel);
                        return;
                    }
                    // It has just been ended by its peer.
                    Err(unsent) => start = unsent,
                }
            }
        }
        let cancel = self.launch(fly(self.asker.clone(), start, None).boxed());
        self.cancels.insert(slot, cancel);
    }

    fn launch(&mut self, flight: BoxFuture<'static, Landing<A::Kept>>) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        self.flights.push(Abortable::new(flight, registration));
        handle
    }

    /// Keeps a connection for the next probe of `slot`.
    fn rest(&mut self, slot: SlotId, mut kept: A::Kept) {
        let (next, start) = oneshot::channel();
        let asker = self.asker.clone();
        let rest = async move {
            tokio::select! {
                biased;
                start = start => match start {
                    // Boxed: what only waits should be small.
                    Ok(start) => fly(asker, start, Some(kept)).boxed().await,
                    Err(_) => Landing::HungUp(slot),
                },
                () = A::ended(&mut kept) => Landing::HungUp(slot),
            }
        };
        let cancel = self.launch(rest.boxed());
        self.resting.insert(slot, Resting { next, cancel });
    }

    fn take_in_all_ready(&mut self) {
        while let Some(Some(outcome)) = self.flights.next().now_or_never() {
            self.take_in(outcome.ok());
        }
        self.ctx.metrics.in_flight(self.cancels.len());
    }

    /// Takes in the end of a flight; `None` is one that was cancelled.
    fn take_in(&mut self, outcome: Option<Landing<A::Kept>>) {
        match outcome {
            Some(Landing::Answered(landed)) => self.land(landed),
            Some(Landing::HungUp(slot)) if self.resting.remove(&slot).is_some() => {
                self.timetable.hung_up(slot, self.ctx.clock.now());
            }
            Some(Landing::HungUp(_)) | None => {}
        }
    }

    fn land(&mut self, landed: Landed<A::Kept>) {
        let Landed { slot, target, role, answer, kept } = landed;
        // Cancelled while it was landing: it speaks of a registration that is no more.
        if self.cancels.remove(&slot).is_none() {
            return;
        }
        if let Some(check) = target.checks.get(role) {
            self.ctx.metrics.ended(role, &check.kind, &answer);
        }
        self.timetable.finish(slot, answer.ended, answer.outcome);
        // Half of the sockets is for probes in flight; what is not kept costs a connection, not a probe.
        if let Some(kept) = kept.filter(|_| self.resting.len() < self.ctx.max_sockets / 2) {
            self.rest(slot, kept);
        }
        let Answer { started, ended, outcome, detail, timings, fresh, retried: _ } = answer;
        tracing::debug!(
            cluster = %target.key.cluster, instance = %target.key.id, probe = %role, reason = %detail, %outcome,
            "probe ended"
        );
        self.reported.push(Observation {
            key: target.key.clone(),
            epoch: target.epoch,
            role,
            started,
            ended,
            outcome,
            detail,
            timings,
            fresh,
        });
    }
}

/// One probe.
async fn fly<A: Ask>(asker: A, start: Start, kept: Option<A::Kept>) -> Landing<A::Kept> {
    let Start { slot, target, role, timeout, .. } = start;
    let (answer, kept) = asker.ask(&target, role, timeout, kept).await;
    Landing::Answered(Landed { slot, target, role, answer, kept })
}
