//! `tidegate get`, and what is listed as `describe` shows it too.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::client::{ServerArgs, plain, with_client};
use super::{Exit, render};
use crate::pb::admin as pb;

/// Arguments of `tidegate get`.
#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// What to list
    #[arg(value_enum)]
    what: What,
    /// Only this cluster's instances
    #[arg(long)]
    cluster: Option<String>,
    /// How the list is written
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    server: ServerArgs,
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Pools, and how many of each are how
    #[value(alias = "cluster")]
    Clusters,
    /// Instances, and why each is as it is
    #[value(alias = "instance")]
    Instances,
    /// Connected Envoys and other xDS clients
    #[value(aliases = ["envoy", "clients", "client"])]
    Envoys,
}

/// How output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Output {
    /// For people
    #[default]
    Table,
    /// For people with a wide terminal
    Wide,
    /// For programs
    Json,
    /// For both
    Yaml,
}

/// A list: columns for a table, and the same as data. Columns after `narrow` are for wide tables.
pub(super) struct List {
    columns: &'static [&'static str],
    narrow: usize,
    rows: Vec<Vec<String>>,
    data: Vec<Value>,
}

impl List {
    /// The first as data; null if there is none.
    pub(super) fn into_one(self) -> Value {
        self.data.into_iter().next().unwrap_or(Value::Null)
    }

    /// All of it as data.
    pub(super) fn into_data(self) -> Value {
        Value::Array(self.data)
    }
}

/// Lists.
pub(super) fn run(args: &GetArgs) -> anyhow::Result<Exit> {
    let list = with_client(&args.server, async |mut client| {
        Ok(match args.what {
            What::Clusters => {
                let answer = client.list_clusters(pb::ListClustersRequest {}).await.map_err(|s| plain(&s))?;
                clusters(&answer.into_inner().clusters)
            }
            What::Instances => {
                let parent = format!("clusters/{}", args.cluster.as_deref().unwrap_or("-"));
                let answer = client
                    .list_instances(pb::ListInstancesRequest { parent })
                    .await
                    .map_err(|s| plain(&s))?;
                instances(&answer.into_inner().instances)
            }
            What::Envoys => {
                let answer = client.list_clients(pb::ListClientsRequest {}).await.map_err(|s| plain(&s))?;
                clients(&answer.into_inner().clients)
            }
        })
    })?;
    print(list, args.output)?;
    Ok(Exit::Done)
}

/// Prints a list of one: as a wide table, or as the thing itself.
pub(super) fn print_one(list: List, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Table | Output::Wide => print(list, Output::Wide),
        Output::Json | Output::Yaml => render::data(&list.into_one(), output == Output::Yaml),
    }
}

/// Prints a list.
pub(super) fn print(list: List, output: Output) -> anyhow::Result<()> {
    let shown = match output {
        Output::Json | Output::Yaml => return render::data(&list.into_data(), output == Output::Yaml),
        Output::Table => list.narrow,
        Output::Wide => list.columns.len(),
    };
    let header = list.columns.iter().take(shown).copied().collect();
    let rows = list.rows.into_iter().map(|row| row.into_iter().take(shown).collect()).collect();
    Ok(render::table(header, rows)?)
}

/// `clusters/C/instances/I` as people write it.
fn short(name: &str) -> String {
    name.trim_start_matches("clusters/").replace("/instances/", "/")
}

/// Clusters as a list.
pub(super) fn clusters(clusters: &[pb::Cluster]) -> List {
    let row = |c: &pb::Cluster| {
        let standing = c.standing().as_str_name().to_lowercase();
        let counts = [c.healthy, c.degraded, c.unhealthy, c.draining, c.absent, c.clients];
        let mut row = vec![short(&c.name), standing];
        row.extend(counts.map(|n| n.to_string()));
        row.push(c.generation.to_string());
        row
    };
    let data = |c: &pb::Cluster| {
        json!({
            "name": c.name, "standing": c.standing().as_str_name(), "generation": c.generation, "healthy": c.healthy,
            "degraded": c.degraded, "unhealthy": c.unhealthy, "draining": c.draining, "absent": c.absent,
            "clients": c.clients,
        })
    };
    List {
        columns: &[
            "CLUSTER",
            "STANDING",
            "HEALTHY",
            "DEGRADED",
            "UNHEALTHY",
            "DRAINING",
            "ABSENT",
            "ENVOYS",
            "GENERATION",
        ],
        narrow: 8,
        rows: clusters.iter().map(row).collect(),
        data: clusters.iter().map(data).collect(),
    }
}

/// Instances as a list.
pub(super) fn instances(instances: &[pb::Instance]) -> List {
    let row = |i: &pb::Instance| {
        let serve = i.serve().as_str_name().to_lowercase();
        vec![
            short(&i.name),
            serve,
            i.address.clone(),
            i.reason.clone(),
            i.weight.to_string(),
            i.zone.clone(),
            i.region.clone(),
        ]
    };
    let data = |i: &pb::Instance| {
        json!({
            "name": i.name, "address": i.address, "serve": i.serve().as_str_name(), "reason": i.reason,
            "weight": i.weight, "zone": i.zone, "region": i.region,
        })
    };
    List {
        columns: &["INSTANCE", "SERVED AS", "ADDRESS", "REASON", "WEIGHT", "ZONE", "REGION"],
        narrow: 4,
        rows: instances.iter().map(row).collect(),
        data: instances.iter().map(data).collect(),
    }
}

/// How a client stands to all that it asks for, in words: what has been refused, else what it owes an answer to.
fn converged(client: &pb::Client) -> String {
    let of = |wanted: pb::Convergence| client.types.iter().filter(move |t| t.convergence() == wanted);
    let names = |types: Vec<&pb::ClientType>| types.iter().map(|t| &*t.r#type).collect::<Vec<_>>().join(",");
    let (nacked, pending): (Vec<_>, Vec<_>) =
        (of(pb::Convergence::Nacked).collect(), of(pb::Convergence::Pending).collect());
    let oldest = pending.iter().map(|t| t.waiting_millis).max().unwrap_or(0);
    match (nacked.is_empty(), pending.is_empty()) {
        (false, _) => format!("refuses {}", names(nacked)),
        (true, false) => format!("owes {} for {:.1}s", names(pending), oldest as f64 / 1000.0),
        (true, true) => "synced".to_owned(),
    }
}

/// How long ago something was; empty if it never was.
fn ago(millis: Option<u64>) -> String {
    millis.map(|millis| format!("{:.1}s ago", millis as f64 / 1000.0)).unwrap_or_default()
}

/// What a client asks for, by type.
pub(super) fn client_types(types: &[pb::ClientType]) -> List {
    let row = |t: &pb::ClientType| {
        let state = t.convergence().as_str_name().to_lowercase();
        let waiting = if t.waiting_millis == 0 { String::new() } else { format!("{}ms", t.waiting_millis) };
        let refused = t.refused.join(",");
        vec![
            t.r#type.clone(),
            state,
            t.acks.to_string(),
            t.nacks.to_string(),
            ago(t.acked_millis),
            waiting,
            refused,
            t.rejection.clone(),
        ]
    };
    List {
        columns: &["TYPE", "STATE", "ACKS", "NACKS", "LAST ACK", "WAITING", "REFUSED", "REJECTION"],
        narrow: 8,
        rows: types.iter().map(row).collect(),
        data: types.iter().map(of_type).collect(),
    }
}

fn of_type(of: &pb::ClientType) -> Value {
    json!({
        "type": of.r#type, "convergence": of.convergence().as_str_name(), "acks": of.acks, "nacks": of.nacks,
        "acked_millis": of.acked_millis, "waiting_millis": of.waiting_millis, "refused": of.refused, "rejection": of.rejection,
    })
}

/// What a client holds, resource by resource. Versions are shortened for people: they are hashes.
pub(super) fn holdings(holdings: &[pb::Holding]) -> List {
    let short = |version: &str| version.get(..8).unwrap_or(version).to_owned();
    let row = |h: &pb::Holding| {
        let state = h.state().as_str_name().to_lowercase();
        let or_removal = |version, removal| if removal { "removal".to_owned() } else { short(version) };
        let sent = or_removal(&h.sent, h.removal_sent);
        let versions = [short(&h.held), short(&h.truth), sent, or_removal(&h.refused, h.removal_refused)];
        [h.r#type.clone(), h.name.clone(), state].into_iter().chain(versions).collect()
    };
    let data = |h: &pb::Holding| {
        json!({
            "type": h.r#type, "name": h.name, "state": h.state().as_str_name(), "held": h.held, "truth": h.truth,
            "sent": h.sent, "removal_sent": h.removal_sent, "refused": h.refused,
            "removal_refused": h.removal_refused,
        })
    };
    List {
        columns: &["TYPE", "NAME", "STATE", "HELD", "TRUTH", "SENT", "REFUSED"],
        narrow: 7,
        rows: holdings.iter().map(row).collect(),
        data: holdings.iter().map(data).collect(),
    }
}

/// Clients as a list.
pub(super) fn clients(clients: &[pb::Client]) -> List {
    let acked = |c: &pb::Client| ago(c.types.iter().filter_map(|t| t.acked_millis).min());
    let row = |c: &pb::Client| {
        vec![
            c.node.clone(),
            c.stream.clone(),
            converged(c),
            format!("{}s", c.age_seconds),
            c.acks.to_string(),
            c.nacks.to_string(),
            c.clusters.join(","),
            acked(c),
            c.method.clone(),
            format!("{} {}", c.agent, c.agent_version).trim().to_owned(),
            c.rejection.clone(),
        ]
    };
    let data = |c: &pb::Client| {
        json!({
            "node": c.node, "stream": c.stream, "agent": c.agent, "method": c.method, "age_seconds": c.age_seconds,
            "clusters": c.clusters, "acks": c.acks, "nacks": c.nacks, "rejection": c.rejection,
            "agent_version": c.agent_version, "rendering": c.rendering,
            "types": c.types.iter().map(of_type).collect::<Vec<_>>(),
        })
    };
    List {
        columns: &[
            "NODE",
            "STREAM",
            "STATE",
            "AGE",
            "ACKS",
            "NACKS",
            "CLUSTERS",
            "LAST ACK",
            "METHOD",
            "AGENT",
            "REJECTION",
        ],
        narrow: 7,
        rows: clients.iter().map(row).collect(),
        data: clients.iter().map(data).collect(),
    }
}
