//! The same config and the same verdicts are the same bytes, in whatever process.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tidegate::config::{self, Config};
use tidegate::model::{ClusterPlan, Entry, MonoTime, Plan, Reason, Serve, Standing};
use tidegate::snapshot::{Door, Kind, Rendering, Snapshot};

/// Set in the processes that are to print their versions.
const CHILD: &str = "TIDEGATE_TEST_PRINTS_VERSIONS";
const LINE: &str = "version of ";

/// Everything that a config can say: the example, and what the example says otherwise.
fn configs() -> [Config; 2] {
    let full = include_str!("../../examples/configs/full.yaml");
    let other = full
        .replace("http2: false", "http2: true")
        .replace("bridge: true", "bridge: false")
        .replace("lb_policy: least_request", "lb_policy: round_robin");
    assert!(
        other.contains("http2: true") && other.contains("bridge: false") && other.contains("round_robin")
    );
    [full, &other].map(|text| config::parse(text).unwrap())
}

/// Every way to serve somebody, in turn.
fn plan_of(config: &Config) -> Plan {
    let mut serves = [Serve::Healthy, Serve::Degraded, Serve::Unhealthy, Serve::Draining, Serve::Absent]
        .into_iter()
        .cycle();
    let clusters = config.clusters.iter().map(|(name, cluster)| {
        let entries = cluster.instances.values().map(|i| {
            Arc::new(Entry {
                id: i.id.clone(),
                address: i.address,
                locality: i.locality.clone(),
                weight: i.weight,
                serve: serves.next().unwrap_or(Serve::Healthy),
                reason: Reason::Passing,
            })
        });
        let entries = entries.collect();
        (name.clone(), Arc::new(ClusterPlan { generation: 1, standing: Standing::Decided, entries }))
    });
    Plan { generation: 1, at: MonoTime::ZERO, clusters: clusters.collect() }
}

/// One line for each resource in each form.
fn versions() -> String {
    let mut lines = String::new();
    for (number, config) in configs().iter().enumerate() {
        let snapshot = Snapshot::default().update(config, &plan_of(config));
        for (door, rendering) in [
            (Door::Aggregated, Rendering::Envoy),
            (Door::Clusters, Rendering::Envoy),
            (Door::Aggregated, Rendering::Grpc),
        ] {
            for kind in Kind::ALL {
                for resource in snapshot.set_for(door, rendering, kind).resources.values() {
                    let (name, version) = (&resource.name, &resource.version);
                    writeln!(lines, "{LINE}{number} {door:?} {rendering:?} {kind:?} {name}: {version}")
                        .unwrap();
                }
            }
        }
    }
    lines
}

#[test]
fn twenty_processes_give_every_resource_the_same_version() {
    let here = versions();
    if std::env::var_os(CHILD).is_some() {
        println!("\n{here}");
        return;
    }
    assert!(here.lines().count() > 30, "{here}");
    for _ in 0..20 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "encoding::twenty_processes_give_every_resource_the_same_version",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let printed = String::from_utf8(child.stdout).unwrap();
        let there: String =
            printed.lines().filter(|line| line.starts_with(LINE)).map(|line| format!("{line}\n")).collect();
        assert_eq!(there, here);
    }
}
