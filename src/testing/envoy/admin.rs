//! Envoy's admin interface, read as data.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use http::{Method, StatusCode};
use serde_json::Value;

use crate::testing::fetch;

/// A client of one Envoy's admin interface.
#[derive(Debug, Clone)]
pub struct Admin {
    address: SocketAddr,
}

/// One host of a cluster as Envoy's main thread sees it. Not a barrier: workers apply on their next turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// `HEALTHY`, `UNHEALTHY`, `DRAINING`, …: what EDS said. Envoy leaves `HEALTHY` for what EDS left unknown.
    pub eds_health: String,
    /// The load-balancing weight.
    pub weight: u64,
    /// True while Envoy's own outlier detection has it out.
    pub outlier: bool,
    /// Requests under way on it.
    pub active_requests: u64,
}

impl Admin {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A page as text.
    pub async fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = fetch::get(self.address, path).await?;
        ensure!(answer.status == StatusCode::OK, "admin {path}: {} {}", answer.status, answer.text());
        Ok(answer.text())
    }

    /// An action, for example `/drain_listeners?graceful`.
    pub async fn post(&self, path: &str) -> anyhow::Result<String> {
        let answer = fetch::request(Method::POST, self.address, path, &[]).await?;
        ensure!(answer.status == StatusCode::OK, "admin {path}: {} {}", answer.status, answer.text());
        Ok(answer.text())
    }

    /// A page as JSON.
    pub async fn json(&self, path: &str) -> anyhow::Result<Value> {
        let text = self.get(path).await?;
        serde_json::from_str(&text).with_context(|| format!("admin {path}: {text}"))
    }

    /// True once Envoy is LIVE.
    pub async fn ready(&self) -> anyhow::Result<bool> {
        Ok(fetch::get(self.address, "/ready").await?.status == StatusCode::OK)
    }

    /// `/config_dump`, endpoints included.
    pub async fn config_dump(&self) -> anyhow::Result<Value> {
        self.json("/config_dump?include_eds").await
    }

    /// Every cluster's hosts.
    pub async fn clusters(&self) -> anyhow::Result<BTreeMap<String, BTreeMap<SocketAddr, Host>>> {
        Ok(parse_clusters(&self.json("/clusters?format=json").await?))
    }

    /// Every listener's bound address, by name.
    pub async fn listeners(&self) -> anyhow::Result<BTreeMap<String, SocketAddr>> {
        let page = self.json("/listeners?format=json").await?;
        let listed = page["listener_statuses"].as_array().into_iter().flatten();
        Ok(listed
            .filter_map(|l| Some((l["name"].as_str()?.to_owned(), socket(&l["local_address"])?)))
            .collect())
    }

    /// One counter or gauge; `None` if Envoy has none of that name yet.
    pub async fn stat(&self, name: &str) -> anyhow::Result<Option<u64>> {
        Ok(self.stats(name).await?.get(name).copied())
    }

    /// Counters and gauges whose names begin with `prefix`.
    pub async fn stats(&self, prefix: &str) -> anyhow::Result<BTreeMap<String, u64>> {
        let filter = prefix.replace('.', "%5C.");
        let page = self.json(&format!("/stats?format=json&filter=%5E{filter}")).await?;
        let listed = page["stats"].as_array().into_iter().flatten();
        Ok(listed.filter_map(|s| Some((s["name"].as_str()?.to_owned(), s["value"].as_u64()?))).collect())
    }
}

fn parse_clusters(page: &Value) -> BTreeMap<String, BTreeMap<SocketAddr, Host>> {
    let hosts = |cluster: &Value| {
        let listed = cluster["host_statuses"].as_array().into_iter().flatten();
        listed.filter_map(|h| Some((socket(&h["address"])?, host(h)))).collect::<BTreeMap<_, _>>()
    };
    let clusters = page["cluster_statuses"].as_array().into_iter().flatten();
    clusters.filter_map(|c| Some((c["name"].as_str()?.to_owned(), hosts(c)))).collect()
}

fn host(status: &Value) -> Host {
    let health = &status["health_status"];
    let stats = status["stats"].as_array();
    let active = stats.into_iter().flatten().find(|stat| stat["name"] == "rq_active");
    Host {
        eds_health: health["eds_health_status"].as_str().unwrap_or("UNKNOWN").to_owned(),
        weight: status["weight"].as_u64().unwrap_or(1),
        outlier: health["failed_outlier_check"].as_bool().unwrap_or(false),
        // Envoy leaves a zero out, and writes other numbers as text.
        active_requests: active.and_then(|stat| number(&stat["value"])).unwrap_or(0),
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn socket(address: &Value) -> Option<SocketAddr> {
    let address = &address["socket_address"];
    let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
    Some(SocketAddr::new(address["address"].as_str()?.parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_with_health_weight_and_load() {
        let page = serde_json::json!({"cluster_statuses": [{"name": "c", "host_statuses": [{
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 8000}},
            "stats": [{"name": "cx_active", "value": "9"}, {"name": "rq_active", "value": "3", "type": "GAUGE"}],
            "health_status": {"eds_health_status": "DRAINING"}, "weight": 25}]}, {"name": "empty"}]});
        let clusters = parse_clusters(&page);
        let host = Host { eds_health: "DRAINING".to_owned(), weight: 25, outlier: false, active_requests: 3 };
        assert_eq!(clusters["c"], BTreeMap::from([("127.0.0.1:8000".parse().unwrap(), host)]));
        assert!(clusters["empty"].is_empty());
    }
}
