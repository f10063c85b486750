//! The prober against fakes that imitate one defect each, and what a probe must survive: silence at every stage,
//! answers that are too long, broken or none, and its own death. Cases 10, 31, 64, 65 and 148 of the case list; 2, 137,
//! 139, 140, 142 and 143 for completions.

#![expect(clippy::disallowed_methods, reason = "fakes live in tasks of the test's own runtime")]

mod answers;
mod completion;
mod fakes;
mod keepalive;
mod leaks;
mod protocols;
mod schedule;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::model::{
    Address, Catalog, Check, CheckKind, Checks, ClusterName, Epoch, HttpCheck, HttpProtocol, InstanceId,
    InstanceKey, MinFailingTime, Phase, Role, Target,
};
use tidegate::probe::{self, Answer, Kept, Question};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// The deadline where nothing is meant to reach it.
const PATIENCE: Duration = Duration::from_secs(20);

fn http(protocol: HttpProtocol) -> HttpCheck {
    HttpCheck {
        path: Arc::from("/health"),
        method: http::Method::GET,
        host: None,
        expected_statuses: vec![200..=200],
        protocol,
        reuse_connection: true,
        headers: Vec::new(),
    }
}

fn check(kind: CheckKind) -> Check {
    Check {
        role: Role::Readiness,
        kind,
        interval: MS(1_000),
        timeout: MS(900),
        budget: None,
        healthy_threshold: NonZeroU32::MIN,
        unhealthy_threshold: NonZeroU32::MIN,
        confirm_interval: MS(100),
        confirm_timeout: MS(450),
        recover_interval: MS(1_000),
        min_failing_time: MinFailingTime { unreachable: MS(200), timeout: MS(1_000) },
    }
}

fn target(name: &str, address: Address, phase: Phase, readiness: Check) -> Target {
    Target {
        key: InstanceKey { cluster: ClusterName::new("pool").unwrap(), id: InstanceId::new(name).unwrap() },
        epoch: Epoch(1),
        address,
        phase,
        checks: Arc::new(Checks { startup: None, warmup: None, readiness, inference: None }),
    }
}

fn catalog(targets: impl IntoIterator<Item = Target>) -> Arc<Catalog> {
    Arc::new(Catalog { targets: targets.into_iter().map(|t| (t.key.clone(), Arc::new(t))).collect() })
}

async fn ask_kept(
    address: Address,
    kind: HttpCheck,
    timeout: Duration,
    kept: Option<Kept>,
) -> (Answer, Option<Kept>) {
    let check = check(CheckKind::Http(kind));
    probe::ask(Clock::start(), Question { check: &check, address, timeout, salt: 1 }, kept).await
}

async fn ask(address: Address, kind: HttpCheck, timeout: Duration) -> Answer {
    ask_kept(address, kind, timeout, None).await.0
}

async fn ask_tcp(address: Address, timeout: Duration) -> Answer {
    let check = check(CheckKind::Tcp);
    probe::ask(Clock::start(), Question { check: &check, address, timeout, salt: 1 }, None).await.0
}
