//! `tidegate describe`: everything about one instance, or about one cluster and the Envoys that serve it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;

use super::client::{ServerArgs, instance_name, plain, with_client};
use super::doctor::{self, Finding, Severity, Told};
use super::get::{self, Output};
use super::{Exit, envoy_admin, render};
use crate::model::Serve;
use crate::pb::admin as pb;
use crate::pb::admin::admin_client::AdminClient;

/// What is seen in two readings so far apart is no push under way.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// Arguments of `tidegate describe`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct DescribeArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// CLUSTER/INSTANCE
    #[arg(required = true)]
    instance: Option<String>,
    /// How it is written
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    output: Output,
    #[command(flatten)]
    server: ServerArgs,
}

/// What can be described. Without a word for it, it is an instance.
#[derive(Debug, Subcommand)]
enum What {
    /// One instance: CLUSTER/INSTANCE
    Instance(InstanceArgs),
    /// One cluster, who asks for it, and what in the config of given Envoys works against its verdicts
    Cluster(ClusterArgs),
    /// One Envoy or gRPC client, by its node id or its stream: what it asks for, has taken, and has refused
    Envoy(EnvoyArgs),
}

/// Arguments of `tidegate describe envoy`.
#[derive(Debug, Args)]
struct EnvoyArgs {
    /// A node id, or a stream as `tidegate get envoys` lists it
    envoy: String,
    /// How it is written
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `tidegate describe instance`.
#[derive(Debug, Args)]
struct InstanceArgs {
    /// CLUSTER/INSTANCE
    instance: String,
    /// How it is written
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    output: Output,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `tidegate describe cluster`.
#[derive(Debug, Args)]
struct ClusterArgs {
    /// The cluster's name
    cluster: String,
    /// An Envoy's admin interface to look into, over plain HTTP; once for each Envoy
    #[arg(long, value_name = "HOST:PORT")]
    envoy_admin: Vec<String>,
    /// How it is written
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    server: ServerArgs,
}

/// Tells everything about one thing.
pub(super) fn run(args: &DescribeArgs) -> anyhow::Result<Exit> {
    match (&args.what, &args.instance) {
        (Some(What::Cluster(args)), _) => cluster(args),
        (Some(What::Envoy(args)), _) => envoy(args),
        (Some(What::Instance(args)), _) => instance(&args.instance, args.output, &args.server),
        (None, Some(name)) => instance(name, args.output, &args.server),
        (None, None) => bail!("write CLUSTER/INSTANCE, or `cluster` and a name"),
    }
}

fn instance(name: &str, output: Output, server: &ServerArgs) -> anyhow::Result<Exit> {
    let name = instance_name(name)?;
    let list = with_client(server, async |mut client| {
        let answer = client.get_instance(pb::GetInstanceRequest { name }).await.map_err(|s| plain(&s))?;
        Ok(get::instances(&[answer.into_inner()]))
    })?;
    get::print_one(list, output)?;
    Ok(Exit::Done)
}

/// Node ids need not be unique: all streams that go by the name are told.
fn envoy(args: &EnvoyArgs) -> anyhow::Result<Exit> {
    let clients = with_client(&args.server, async |mut client| {
        let answer = client.list_clients(pb::ListClientsRequest {}).await.map_err(|s| plain(&s))?;
        let mut clients = Vec::new();
        for found in answer.into_inner().clients {
            if found.node != args.envoy && found.stream != args.envoy {
                continue;
            }
            let request = pb::ListHoldingsRequest { stream: found.stream.clone() };
            match client.list_holdings(request).await {
                Ok(holdings) => clients.push((found, holdings.into_inner().holdings)),
                Err(status) if status.code() == Code::NotFound => {} // it has just gone
                Err(status) => return Err(plain(&status)),
            }
        }
        Ok(clients)
    })?;
    if clients.is_empty() {
        bail!("no connected client goes by {:?}; `tidegate get envoys` lists them", args.envoy);
    }
    if matches!(args.output, Output::Json | Output::Yaml) {
        let data = clients.iter().map(|(client, holdings)| {
            let mut data = get::clients(std::slice::from_ref(client)).into_one();
            data["holdings"] = get::holdings(holdings).into_data();
            data
        });
        render::data(&Value::Array(data.collect()), args.output == Output::Yaml)?;
        return Ok(Exit::Done);
    }
    for (client, holdings) in &clients {
        get::print(get::clients(std::slice::from_ref(client)), Output::Wide)?;
        render::text("\n")?;
        get::print(get::client_types(&client.types), Output::Wide)?;
        render::text("\n")?;
        get::print(get::holdings(holdings), Output::Wide)?;
    }
    Ok(Exit::Done)
}

/// What tidegate says of one cluster.
struct Seen {
    cluster: pb::Cluster,
    instances: Vec<pb::Instance>,
    clients: Vec<pb::Client>,
}

/// What one Envoy says: node id, version, findings; or why it could not be read.
struct Envoy {
    admin: String,
    said: anyhow::Result<(String, String, Vec<Finding>)>,
}

fn cluster(args: &ClusterArgs) -> anyhow::Result<Exit> {
    let admins: Vec<_> =
        args.envoy_admin.iter().map(|text| envoy_admin::authority(text)).collect::<anyhow::Result<_>>()?;
    let (seen, envoys) = with_client(&args.server, async |mut client| {
        let seen = see(&mut client, &args.cluster).await?;
        let mut envoys = Vec::new();
        for admin in admins {
            let said = consult(&mut client, &args.cluster, &admin).await;
            envoys.push(Envoy { admin, said });
        }
        Ok((seen, envoys))
    })?;
    match args.output {
        Output::Table | Output::Wide => text(&seen, &envoys, args.output)?,
        Output::Json | Output::Yaml => render::data(&data(&seen, &envoys), args.output == Output::Yaml)?,
    }
    let unread: Vec<_> = envoys
        .iter()
        .filter_map(|envoy| Some(format!("{} ({:#})", envoy.admin, envoy.said.as_ref().err()?)))
        .collect();
    if !unread.is_empty() {
        bail!("could not read an Envoy's admin interface at {}", unread.join(", "));
    }
    Ok(Exit::Done)
}

async fn see(client: &mut AdminClient<Channel>, cluster: &str) -> anyhow::Result<Seen> {
    let name = format!("clusters/{cluster}");
    // An unknown name is an error here, in the API's words.
    let request = pb::ListInstancesRequest { parent: name.clone() };
    let instances = client.list_instances(request).await.map_err(|s| plain(&s))?.into_inner().instances;
    let clusters =
        client.list_clusters(pb::ListClustersRequest {}).await.map_err(|s| plain(&s))?.into_inner();
    let clients = client.list_clients(pb::ListClientsRequest {}).await.map_err(|s| plain(&s))?.into_inner();
    let found = clusters.clusters.into_iter().find(|found| found.name == name);
    Ok(Seen {
        cluster: found.with_context(|| format!("there is no cluster {cluster}"))?,
        instances,
        clients: clients.clients.into_iter().filter(|c| c.clusters.iter().any(|n| n == cluster)).collect(),
    })
}

/// Examines one Envoy; twice if what was found may be a push under way.
async fn consult(
    client: &mut AdminClient<Channel>,
    cluster: &str,
    admin: &str,
) -> anyhow::Result<(String, String, Vec<Finding>)> {
    let pages = envoy_admin::pages(admin).await?;
    let first = doctor::examine(&pages, &told(cluster, &see(client, cluster).await?));
    let (node, version) = doctor::identity(&pages);
    if !first.iter().any(|finding| finding.fleeting) {
        return Ok((node, version, first));
    }
    tokio::time::sleep(SECOND_LOOK).await;
    let pages = envoy_admin::pages(admin).await?;
    let mut again = doctor::examine(&pages, &told(cluster, &see(client, cluster).await?));
    again.retain(|finding| !finding.fleeting || first.iter().any(|before| finding.repeats(before)));
    Ok((node, version, again))
}

fn told(cluster: &str, seen: &Seen) -> Told {
    let hosts: BTreeMap<_, _> =
        seen.instances.iter().filter_map(|i| Some((i.address.parse().ok()?, serve(i.serve())?))).collect();
    Told {
        cluster: cluster.to_owned(),
        decided: seen.cluster.standing() == pb::Standing::Decided,
        hosts,
        asking: seen.clients.iter().map(|client| client.node.clone()).collect(),
    }
}

const fn serve(serve: pb::Serve) -> Option<Serve> {
    match serve {
        pb::Serve::Unspecified => None,
        pb::Serve::Absent => Some(Serve::Absent),
        pb::Serve::Healthy => Some(Serve::Healthy),
        pb::Serve::Degraded => Some(Serve::Degraded),
        pb::Serve::Unhealthy => Some(Serve::Unhealthy),
        pb::Serve::Draining => Some(Serve::Draining),
    }
}

fn text(seen: &Seen, envoys: &[Envoy], output: Output) -> anyhow::Result<()> {
    get::print(get::clusters(std::slice::from_ref(&seen.cluster)), output)?;
    render::text("\n")?;
    get::print(get::instances(&seen.instances), output)?;
    if seen.clients.is_empty() {
        render::text("\nNobody asks for its endpoints.\n")?;
    } else {
        render::text("\nThese ask for its endpoints:\n")?;
        get::print(get::clients(&seen.clients), output)?;
    }
    if envoys.is_empty() {
        render::text(
            "\nName an Envoy's admin interface with --envoy-admin, and its own config is looked at too.\n",
        )?;
    }
    for envoy in envoys {
        render::text(&format!("\n{}", section(envoy)))?;
    }
    Ok(())
}

/// One Envoy's findings for people. What it says comes from outside, so nothing in it may steer a terminal.
fn section(envoy: &Envoy) -> String {
    let (node, version, findings) = match &envoy.said {
        Err(error) => return printable(&format!("Envoy at {}: not read: {error:#}", envoy.admin)) + "\n",
        Ok(said) => (&said.0, &said.1, &said.2),
    };
    let count = |wanted| findings.iter().filter(|f| f.severity == wanted).count();
    let sum = match (count(Severity::Problem), count(Severity::Hint)) {
        (0, 0) => "nothing works against the verdicts".to_owned(),
        (problems, hints) => format!(
            "{}, {}",
            render::plural(problems, Severity::Problem.word()),
            render::plural(hints, Severity::Hint.word())
        ),
    };
    let head = format!("Envoy at {} (node {node:?}, version {version}): {sum}", envoy.admin);
    let mut out = printable(&head) + "\n";
    for finding in findings {
        let Finding { severity, about, field, value, effect, instead, .. } = finding;
        for line in [
            format!("  {}: {about}: {field}: {value}", severity.word()),
            format!("      {effect}"),
            format!("      instead: {instead}"),
        ] {
            // Writing into a String cannot fail.
            let _ = writeln!(out, "{}", printable(&line));
        }
    }
    out
}

fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn data(seen: &Seen, envoys: &[Envoy]) -> Value {
    let of_envoy = |envoy: &Envoy| match &envoy.said {
        Ok((node, version, findings)) => json!({
            "admin": envoy.admin, "node": node, "version": version, "error": null,
            "findings": findings.iter().map(Finding::data).collect::<Vec<_>>(),
        }),
        Err(error) => json!({
            "admin": envoy.admin, "node": null, "version": null, "error": format!("{error:#}"), "findings": null,
        }),
    };
    let mut data = get::clusters(std::slice::from_ref(&seen.cluster)).into_one();
    data["instances"] = get::instances(&seen.instances).into_data();
    data["asked_for_by"] = get::clients(&seen.clients).into_data();
    data["envoys"] = envoys.iter().map(of_envoy).collect();
    data
}
