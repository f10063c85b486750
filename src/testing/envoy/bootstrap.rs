//! A bootstrap for tests, independent of the one that tidegate prints.

use std::net::SocketAddr;

use super::{SCRATCH, access_log};
use crate::testing::sim_envoy::Wire;

/// What the Envoy gets at start.
///
/// Its listener `traffic` sits on an ephemeral port, answers `/direct` itself with 200, routes everything else to the
/// cluster named in the header `x-cluster`, and writes `access.log` into the scratch directory.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    /// `node.id`.
    pub node_id: String,
    /// The control plane, if any.
    pub xds: Option<SocketAddr>,
    /// Which of the two protocols.
    pub wire: Wire,
    /// Ask for clusters (and, as they say, for endpoints) over ADS.
    pub cds: bool,
    /// Ask for listeners (and, as they say, for routes) over ADS.
    pub lds: bool,
    /// Static clusters whose endpoints alone come over ADS.
    pub eds_clusters: Vec<String>,
    /// Further static clusters, each in flow style, braces included.
    pub static_clusters: Vec<String>,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self {
            node_id: "envoy".to_owned(),
            xds: None,
            wire: Wire::Delta,
            cds: false,
            lds: false,
            eds_clusters: Vec::new(),
            static_clusters: Vec::new(),
        }
    }
}

impl Bootstrap {
    /// The YAML (in flow style inside).
    pub fn yaml(&self) -> String {
        let mut out = format!("node: {{id: '{}', cluster: test}}\n", self.node_id);
        let mut clusters = Vec::new();
        if let Some(xds) = self.xds {
            out.push_str(&self.dynamic_resources());
            clusters.push(xds_cluster(xds));
        }
        clusters.extend(self.eds_clusters.iter().map(|name| eds_cluster(name)));
        clusters.extend(self.static_clusters.iter().cloned());
        out.push_str(&format!("static_resources:\n  listeners: [{}]\n", traffic_listener()));
        out.push_str(&format!("  clusters: [{}]\n", clusters.join(", ")));
        out
    }

    fn dynamic_resources(&self) -> String {
        let api = match self.wire {
            Wire::Delta => "DELTA_GRPC",
            Wire::Sotw => "GRPC",
        };
        let mut out = format!(
            "dynamic_resources:\n  ads_config: {{api_type: {api}, transport_api_version: V3, \
             set_node_on_first_message_only: true, grpc_services: [{{envoy_grpc: {{cluster_name: xds, \
             retry_policy: {{retry_back_off: {{base_interval: 0.1s, max_interval: 1s}}}}}}}}]}}\n"
        );
        for (asked, key) in [(self.cds, "cds_config"), (self.lds, "lds_config")] {
            if asked {
                out.push_str(&format!(
                    "  {key}: {{resource_api_version: V3, ads: {{}}, initial_fetch_timeout: 5s}}\n"
                ));
            }
        }
        out
    }
}

fn xds_cluster(at: SocketAddr) -> String {
    format!(
        "{{name: xds, type: STATIC, connect_timeout: 1s, typed_extension_protocol_options: \
         {{envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{\
         '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, \
         explicit_http_config: {{http2_protocol_options: {{connection_keepalive: {{interval: 5s, timeout: 2s}}}}}}}}}}, \
         load_assignment: {{cluster_name: xds, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{\
         socket_address: {{address: '{}', port_value: {}}}}}}}}}]}}]}}}}",
        at.ip(),
        at.port()
    )
}

fn eds_cluster(name: &str) -> String {
    format!(
        "{{name: '{name}', type: EDS, connect_timeout: 1s, eds_cluster_config: {{eds_config: \
         {{resource_api_version: V3, ads: {{}}, initial_fetch_timeout: 1s}}}}, \
         common_lb_config: {{healthy_panic_threshold: {{value: 0}}, update_merge_window: 0s}}}}"
    )
}

fn traffic_listener() -> String {
    format!(
        "{{name: traffic, address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}, filter_chains: \
         [{{filters: [{{name: hcm, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.network.\
         http_connection_manager.v3.HttpConnectionManager, stat_prefix: traffic, access_log: {}, route_config: \
         {{virtual_hosts: [{{name: all, domains: ['*'], routes: [\
         {{match: {{path: /direct}}, direct_response: {{status: 200, body: {{inline_string: direct}}}}}}, \
         {{match: {{prefix: /}}, route: {{cluster_header: x-cluster, timeout: 0s}}}}]}}]}}, \
         http_filters: [{{name: router, typed_config: {{\
         '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}}}]}}]}}",
        access_log::yaml(&format!("{SCRATCH}/access.log"))
    )
}
