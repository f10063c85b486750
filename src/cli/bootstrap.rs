//! `tidegate bootstrap`: all that an Envoy has to be given; the rest comes over xDS.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};

use super::{Exit, render};

/// Arguments of `tidegate bootstrap`.
#[derive(Debug, Args)]
pub(super) struct BootstrapArgs {
    /// The Envoy's node id; unique among all Envoys
    #[arg(long)]
    node_id: String,
    /// The Envoy's own cluster name
    #[arg(long, default_value = "tidegate-clients")]
    node_cluster: String,
    /// Where tidegate serves xDS
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18000")]
    xds: String,
    /// Where the Envoy's admin interface listens; none if absent
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<SocketAddr>,
    /// Which variant of the protocol the Envoy speaks
    #[arg(long, value_enum, default_value_t)]
    protocol: Protocol,
}

/// The variants of ADS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Protocol {
    /// Incremental: only what changed is sent
    #[default]
    Delta,
    /// State of the world
    Sotw,
}

/// Prints the bootstrap.
pub(super) fn run(args: &BootstrapArgs) -> anyhow::Result<Exit> {
    render::text(&bootstrap(args)?)?;
    Ok(Exit::Done)
}

fn bootstrap(args: &BootstrapArgs) -> anyhow::Result<String> {
    ensure!(!args.node_id.is_empty(), "--node-id must not be empty: tidegate names Envoys by it");
    let (host, port) = host_and_port(&args.xds).with_context(|| {
        format!("--xds {:?} is not HOST:PORT; write for example 10.0.0.5:18000", args.xds)
    })?;
    let api_type = match args.protocol {
        Protocol::Delta => "DELTA_GRPC",
        Protocol::Sotw => "GRPC",
    };
    let discovery = if host.parse::<IpAddr>().is_ok() { "STATIC" } else { "STRICT_DNS" };
    let admin = args.admin.map(admin).unwrap_or_default();
    Ok(format!(
        r"# Envoy bootstrap for tidegate: envoy -c THIS_FILE
node:
  id: {id}
  cluster: {cluster}
{admin}dynamic_resources:
  ads_config:
    api_type: {api_type}
    transport_api_version: V3
    # An Envoy's node is 61 KB; without this it goes with every acknowledgement.
    set_node_on_first_message_only: true
    grpc_services:
      - envoy_grpc:
          cluster_name: tidegate
          # Envoy's own back-off of up to 30 s leaves it blind long after a restart of tidegate.
          retry_policy: {{ retry_back_off: {{ base_interval: 0.1s, max_interval: 1s }} }}
  cds_config: {{ resource_api_version: V3, ads: {{}}, initial_fetch_timeout: 5s }}
  lds_config: {{ resource_api_version: V3, ads: {{}}, initial_fetch_timeout: 5s }}
static_resources:
  clusters:
    - name: tidegate
      type: {discovery}
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config:
            http2_protocol_options:
              # Without it a control plane that stands still is never noticed.
              connection_keepalive: {{ interval: 5s, timeout: 2s }}
      load_assignment:
        cluster_name: tidegate
        endpoints:
          - lb_endpoints:
              - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }} }}
",
        id = quoted(&args.node_id),
        cluster = quoted(&args.node_cluster),
        host = quoted(host),
    ))
}

fn admin(at: SocketAddr) -> String {
    let (address, port) = (quoted(&at.ip().to_string()), at.port());
    format!("admin:\n  address: {{ socket_address: {{ address: {address}, port_value: {port} }} }}\n")
}

/// Splits `HOST:PORT` and `[V6]:PORT`.
fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(v6) => Some(v6).filter(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok())?,
        None => Some(host).filter(|host| !host.is_empty() && !host.contains([':', '/', ' ']))?,
    };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    Some((host, port))
}

/// A JSON string is a YAML string, whatever is in it.
fn quoted(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_split_or_refused() {
        assert_eq!(host_and_port("10.0.0.1:18000"), Some(("10.0.0.1", 18000)));
        assert_eq!(host_and_port("tidegate.infra.svc:18000"), Some(("tidegate.infra.svc", 18000)));
        assert_eq!(host_and_port("[::1]:18000"), Some(("::1", 18000)));
        for bad in
            ["", "host", "host:", ":1", "host:0", "host:65536", "::1:18000", "[::1]", "http://x:1", "[x]:1"]
        {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }
}
