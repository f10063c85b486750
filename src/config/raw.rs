//! The config file as it is written: every key, none of them checked beyond its type.
//!
//! Pure: no I/O. Everything is optional here, so that one missing key hides no other error; [`super::validate`]
//! decides what is required, fills in the defaults and looks at what belongs together. Decoded by
//! [`super::yaml`] alone. Every key is described for operators in `docs/config.md`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

/// What the types below say they are; [`super::yaml`] knows them by these texts and offers what to write.
pub(super) const ADDRESS: &str = "an address";
pub(super) const DURATION: &str = "a duration with a unit";
pub(super) const TCP: &str = "an empty map";

/// The file.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the key `clusters`")]
pub(super) struct RawConfig {
    /// tidegate's own sockets.
    pub(super) listen: Option<RawListen>,
    /// The pools by name.
    pub(super) clusters: Option<BTreeMap<String, RawCluster>>,
    /// Envoy's listeners by name.
    pub(super) listeners: Option<BTreeMap<String, RawListener>>,
    /// Limits of the prober.
    pub(super) prober: Option<RawProber>,
    /// Timing of what is pushed.
    pub(super) xds: Option<RawXds>,
}

/// `listen`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of addresses")]
pub(super) struct RawListen {
    /// gRPC xDS.
    pub(super) xds: Option<RawAddress>,
    /// gRPC admin API.
    pub(super) admin: Option<RawAddress>,
    /// `/livez`, `/readyz`, `/metrics`.
    pub(super) health: Option<RawAddress>,
}

/// `clusters.NAME`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the keys `instances` and `checks`")]
pub(super) struct RawCluster {
    /// Instances by identity.
    pub(super) instances: Option<BTreeMap<String, RawInstance>>,
    /// What they are asked.
    pub(super) checks: Option<RawChecks>,
    /// What follows from the answers.
    pub(super) policy: Option<RawPolicy>,
    /// What Envoy is told besides the endpoints.
    pub(super) envoy: Option<RawEnvoyCluster>,
}

/// `clusters.NAME.instances.ID`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the key `address`")]
pub(super) struct RawInstance {
    /// IP address and port.
    pub(super) address: Option<RawAddress>,
    /// Locality: region.
    pub(super) region: Option<String>,
    /// Locality: zone.
    pub(super) zone: Option<String>,
    /// Load-balancing weight while healthy.
    pub(super) weight: Option<u64>,
    /// Free text by name.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Token of the process's run.
    pub(super) lifetime: Option<String>,
}

/// `clusters.NAME.checks`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the key `readiness`")]
pub(super) struct RawChecks {
    /// Gates the others.
    pub(super) startup: Option<RawCheck>,
    /// Prompts before the first traffic.
    pub(super) warmup: Option<RawWarmup>,
    /// Moves traffic.
    pub(super) readiness: Option<RawCheck>,
    /// Moves traffic by real completions.
    pub(super) inference: Option<RawCheck>,
}

/// `clusters.NAME.checks.warmup`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the key `openai`")]
pub(super) struct RawWarmup {
    /// Has a completion streamed.
    pub(super) openai: Option<RawOpenAi>,
    /// At least so many.
    pub(super) prompts: Option<u64>,
    /// So many in time, in a row.
    pub(super) last: Option<u64>,
    /// What in time is.
    pub(super) expect_latency: Option<RawDuration>,
    /// Pause after a good answer.
    pub(super) interval: Option<RawDuration>,
    /// Pause after any other.
    pub(super) recover_interval: Option<RawDuration>,
    /// Deadline of one prompt.
    pub(super) timeout: Option<RawDuration>,
}

/// `clusters.NAME.checks.ROLE`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the key `http` or `tcp`")]
pub(super) struct RawCheck {
    /// Connects.
    pub(super) tcp: Option<RawTcp>,
    /// Sends a request.
    pub(super) http: Option<RawHttp>,
    /// Has a completion streamed.
    pub(super) openai: Option<RawOpenAi>,
    /// From start to start while serving.
    pub(super) interval: Option<RawDuration>,
    /// Deadline of one probe.
    pub(super) timeout: Option<RawDuration>,
    /// Later answers are slow.
    pub(super) budget: Option<RawDuration>,
    /// Consecutive answers that bring back.
    pub(super) healthy_threshold: Option<u64>,
    /// Consecutive failures that eject.
    pub(super) unhealthy_threshold: Option<u64>,
    /// Pause before a confirming probe.
    pub(super) confirm_interval: Option<RawDuration>,
    /// Deadline of a confirming probe.
    pub(super) confirm_timeout: Option<RawDuration>,
    /// From start to start while not serving.
    pub(super) recover_interval: Option<RawDuration>,
    /// The span that failing evidence must have.
    pub(super) min_failing_time: Option<RawMinFailingTime>,
}

/// `tcp`: a check without settings.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "an empty map")]
pub(super) struct RawTcp {}

/// `http`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the key `path`")]
pub(super) struct RawHttp {
    /// Request target.
    pub(super) path: Option<String>,
    /// Request method.
    pub(super) method: Option<String>,
    /// Host header or authority.
    pub(super) host: Option<String>,
    /// Statuses that mean yes.
    pub(super) expected_statuses: Option<Vec<Option<RawStatus>>>,
    /// `http1` or `h2c`.
    pub(super) protocol: Option<String>,
    /// Keep the connection.
    pub(super) reuse_connection: Option<bool>,
    /// Further headers.
    pub(super) headers: Option<BTreeMap<String, String>>,
}

/// `openai`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the keys `path` and `model`")]
pub(super) struct RawOpenAi {
    /// Request target.
    pub(super) path: Option<String>,
    /// The model's name.
    pub(super) model: Option<String>,
    /// What is asked.
    pub(super) prompt: Option<String>,
    /// The most tokens wanted.
    pub(super) max_tokens: Option<u64>,
    /// Host header.
    pub(super) host: Option<String>,
    /// Further headers.
    pub(super) headers: Option<BTreeMap<String, String>>,
    /// What each stage may take.
    pub(super) budgets: Option<RawBudgets>,
}

/// `openai.budgets`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of durations")]
pub(super) struct RawBudgets {
    /// Until connected.
    pub(super) connect: Option<RawDuration>,
    /// Until the answer's head.
    pub(super) headers: Option<RawDuration>,
    /// Until the first token.
    pub(super) first_token: Option<RawDuration>,
    /// Between two tokens.
    pub(super) gap: Option<RawDuration>,
    /// Until the stream's end.
    pub(super) end: Option<RawDuration>,
}

/// `min_failing_time`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the keys `unreachable` and `timeout`")]
pub(super) struct RawMinFailingTime {
    /// While the latest failure is `unreachable`.
    pub(super) unreachable: Option<RawDuration>,
    /// While the latest failure is `timeout`.
    pub(super) timeout: Option<RawDuration>,
}

/// `policy`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of numbers")]
pub(super) struct RawPolicy {
    /// Bound of those without traffic.
    pub(super) max_ejected_percent: Option<u64>,
    /// Floor of those with traffic.
    pub(super) min_serving: Option<u64>,
    /// What a slow instance keeps of its weight.
    pub(super) slow_weight: Option<u64>,
    /// How long one that was ejected twice must answer well.
    pub(super) recovery_time: Option<RawDuration>,
    /// The most of that.
    pub(super) max_recovery_time: Option<RawDuration>,
}

/// `clusters.NAME.envoy`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of Envoy settings")]
pub(super) struct RawEnvoyCluster {
    /// Time to connect.
    pub(super) connect_timeout: Option<RawDuration>,
    /// Choice among the healthy.
    pub(super) lb_policy: Option<String>,
    /// Speak HTTP/2.
    pub(super) http2: Option<bool>,
    /// Outlier detection for connection failures.
    pub(super) bridge: Option<bool>,
    /// Limits.
    pub(super) circuit_breakers: Option<RawCircuitBreakers>,
}

/// `circuit_breakers`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of numbers")]
pub(super) struct RawCircuitBreakers {
    /// Connections.
    pub(super) max_connections: Option<u64>,
    /// Requests waiting for a connection.
    pub(super) max_pending_requests: Option<u64>,
    /// Requests in flight.
    pub(super) max_requests: Option<u64>,
    /// Retries in flight.
    pub(super) max_retries: Option<u64>,
}

/// `listeners.NAME`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the keys `address` and `routes`")]
pub(super) struct RawListener {
    /// Where Envoy listens.
    pub(super) address: Option<RawAddress>,
    /// Tried in order.
    pub(super) routes: Option<Vec<Option<RawRoute>>>,
}

/// `listeners.NAME.routes[N]`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map with the keys `prefix` and `cluster`")]
pub(super) struct RawRoute {
    /// Path prefix.
    pub(super) prefix: Option<String>,
    /// Where it leads.
    pub(super) cluster: Option<String>,
    /// Total time of a request.
    pub(super) timeout: Option<RawDuration>,
    /// Longest silence on a stream.
    pub(super) idle_timeout: Option<RawDuration>,
    /// Retries of requests that reached nobody.
    pub(super) num_retries: Option<u64>,
}

/// `prober`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of numbers")]
pub(super) struct RawProber {
    /// Probes in flight.
    pub(super) max_in_flight: Option<u64>,
    /// Probes started per second.
    pub(super) max_starts_per_second: Option<u64>,
}

/// `xds`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a map of durations")]
pub(super) struct RawXds {
    /// How long good news may wait.
    pub(super) merge_window: Option<RawDuration>,
    /// How long a cluster waits for its last first verdict.
    pub(super) first_verdict_wait: Option<RawDuration>,
    /// After this a client is asked to connect anew.
    pub(super) max_connection_age: Option<RawDuration>,
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $expecting:expr $(, $number:ident)?) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name(pub(super) String);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_str<E>(self, text: &str) -> Result<$name, E> {
                        Ok($name(text.to_owned()))
                    }

                    $(fn visit_u64<E>(self, $number: u64) -> Result<$name, E> {
                        Ok($name($number.to_string()))
                    })?
                }
                deserializer.deserialize_any(Text)
            }
        }
    };
}

text_type! {
    /// An address, still as text.
    RawAddress, ADDRESS
}
text_type! {
    /// A duration, still as text.
    RawDuration, DURATION
}
text_type! {
    /// An HTTP status or a range of them, still as text; a number is one too.
    RawStatus, "a status such as `200` or a range such as `300-399`", number
}
