//! Config files for tests: fast checks, loopback addresses, ports of the system's choice.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A check that is asked often and believed soon: out after about 0.2 s of refusals or half a second of silence.
const CHECKS: &str = "{ readiness: { http: { path: /health }, interval: 150ms, timeout: 150ms, \
                      confirm_timeout: 150ms, confirm_interval: 50ms, \
                      min_failing_time: { unreachable: 100ms, timeout: 400ms } } }";

/// A config in the making. [`Setup::yaml`] writes it.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `listen.xds`; port 0 unless set.
    pub xds: SocketAddr,
    /// `listen.admin`; port 0 unless set.
    pub admin: SocketAddr,
    /// `listen.health`; port 0 unless set.
    pub health: SocketAddr,
    merge_window: &'static str,
    first_verdict_wait: &'static str,
    zones: Vec<&'static str>,
    max_connection_age: &'static str,
    clusters: BTreeMap<String, Pool>,
    listeners: BTreeMap<String, (SocketAddr, String)>,
}

#[derive(Debug, Clone)]
struct Pool {
    instances: Vec<SocketAddr>,
    extra: String,
}

impl Default for Setup {
    fn default() -> Self {
        let any = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        Self {
            xds: any,
            admin: any,
            health: any,
            merge_window: "50ms",
            first_verdict_wait: "15s",
            zones: vec![""],
            max_connection_age: "0s",
            clusters: BTreeMap::new(),
            listeners: BTreeMap::new(),
        }
    }
}

impl Setup {
    /// A config without clusters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fixed ports, free a moment ago.
    #[must_use]
    pub fn fixed_ports(mut self) -> Self {
        self.xds.set_port(free_port());
        self.admin.set_port(free_port());
        self.health.set_port(free_port());
        self
    }

    /// Another xDS address.
    #[must_use]
    pub fn xds_at(mut self, at: SocketAddr) -> Self {
        self.xds = at;
        self
    }

    /// How long good news waits.
    #[must_use]
    pub fn merge_window(mut self, window: &'static str) -> Self {
        self.merge_window = window;
        self
    }

    /// How long a first verdict is waited for.
    #[must_use]
    pub fn first_verdict_wait(mut self, wait: &'static str) -> Self {
        self.first_verdict_wait = wait;
        self
    }

    /// Adds or replaces a cluster. Its instances are named after their ports.
    #[must_use]
    pub fn cluster(self, name: &str, instances: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.cluster_with(name, instances, "")
    }

    /// The same, with further keys in flow style, for example `envoy: { http2: true }`.
    #[must_use]
    pub fn cluster_with(
        mut self,
        name: &str,
        instances: impl IntoIterator<Item = SocketAddr>,
        extra: &str,
    ) -> Self {
        let pool = Pool { instances: instances.into_iter().collect(), extra: extra.to_owned() };
        self.clusters.insert(name.to_owned(), pool);
        self
    }

    /// Another `xds.max_connection_age`; `0s` unless set.
    #[must_use]
    pub fn max_connection_age(mut self, age: &'static str) -> Self {
        self.max_connection_age = age;
        self
    }

    /// Spreads the instances of each cluster over these zones, in turn.
    #[must_use]
    pub fn zones(mut self, zones: &[&'static str]) -> Self {
        self.zones = zones.to_vec();
        self
    }

    /// Takes a cluster out.
    #[must_use]
    pub fn without_cluster(mut self, name: &str) -> Self {
        self.clusters.remove(name);
        self
    }

    /// Adds or replaces a listener that sends everything to `cluster`.
    #[must_use]
    pub fn listener(mut self, name: &str, at: SocketAddr, cluster: &str) -> Self {
        self.listeners.insert(name.to_owned(), (at, cluster.to_owned()));
        self
    }

    /// Takes a listener out.
    #[must_use]
    pub fn without_listener(mut self, name: &str) -> Self {
        self.listeners.remove(name);
        self
    }

    /// The config file.
    pub fn yaml(&self) -> String {
        let mut out = format!(
            "listen: {{ xds: \"{}\", admin: \"{}\", health: \"{}\" }}\n",
            self.xds, self.admin, self.health
        );
        let (merge, wait, age) = (self.merge_window, self.first_verdict_wait, self.max_connection_age);
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "xds: {{ merge_window: {merge}, first_verdict_wait: {wait}, max_connection_age: {age} }}"
        );
        out.push_str(if self.clusters.is_empty() { "clusters: {}\n" } else { "clusters:\n" });
        for (name, pool) in &self.clusters {
            let instances: Vec<_> = pool
                .instances
                .iter()
                .zip(self.zones.iter().cycle())
                .map(|(at, zone)| format!("i{}: {{ address: \"{at}\", zone: \"{zone}\" }}", at.port()))
                .collect();
            let _ = writeln!(out, "  {name}:\n    instances: {{ {} }}", instances.join(", "));
            if !pool.extra.contains("checks:") {
                let _ = writeln!(out, "    checks: {CHECKS}");
            }
            // Tests break the same instance over and over.
            if !pool.extra.lines().any(|line| line.trim_start().starts_with("policy:")) {
                out.push_str("    policy: { recovery_time: 0s }\n");
            }
            if !pool.extra.is_empty() {
                let _ = writeln!(out, "    {}", pool.extra);
            }
        }
        if !self.listeners.is_empty() {
            out.push_str("listeners:\n");
        }
        for (name, (at, cluster)) in &self.listeners {
            let _ = writeln!(
                out,
                "  {name}: {{ address: \"{at}\", routes: [{{ prefix: /, cluster: {cluster} }}] }}"
            );
        }
        out
    }
}

/// A loopback port that nothing listens on, below the range from which systems choose by themselves, so that no
/// test running beside this one is given it by chance.
pub fn free_port() -> u16 {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 18_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 900).unwrap_or(0) * 20;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    0
}

/// [`free_port`] on 127.0.0.1.
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_is_a_config_that_parses() {
        let at = SocketAddr::from(([127, 0, 0, 1], 9000));
        let setup = Setup::new().fixed_ports();
        crate::config::parse(&setup.yaml()).unwrap();
        let setup = setup.cluster("a", [at]).cluster_with("b", [], "policy: { min_serving: 0 }").listener(
            "in",
            free_address(),
            "a",
        );
        let config = crate::config::parse(&setup.yaml()).unwrap();
        assert_eq!((config.clusters.len(), config.listeners.len()), (2, 1));
        assert_eq!(config.listen.xds, setup.xds);
    }
}
