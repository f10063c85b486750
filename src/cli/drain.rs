//! `tidegate drain` and `tidegate undrain`.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use tonic::transport::Channel;

use super::client::{ServerArgs, instance_name, plain, with_client};
use super::{Exit, render};
use crate::pb::admin as pb;
use crate::pb::admin::admin_client::AdminClient;

/// Arguments of `tidegate drain`.
#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// CLUSTER/INSTANCE
    instance: String,
    /// Why, for those who will look
    #[arg(long, default_value = "")]
    reason: String,
    /// Wait until every connected Envoy has acknowledged it. A drain is carried out though it be of the last one that
    /// serves. In-flight requests are not counted yet, and a restart of
    /// tidegate forgets the drain
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this long
    #[arg(long, default_value = "30s", value_parser = duration, requires = "wait")]
    timeout: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `tidegate undrain`.
#[derive(Debug, Args)]
pub(super) struct UndrainArgs {
    /// CLUSTER/INSTANCE
    instance: String,
    #[command(flatten)]
    server: ServerArgs,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "write a positive duration such as 30s".to_owned())
}

/// Takes the instance out of traffic.
pub(super) fn run(args: &DrainArgs) -> anyhow::Result<Exit> {
    let name = instance_name(&args.instance)?;
    with_client(&args.server, async |mut client| {
        let request = pb::DrainInstanceRequest { name: name.clone(), reason: args.reason.clone() };
        let status = client.drain_instance(request).await.map_err(|s| plain(&s))?.into_inner();
        if !args.wait {
            render::message(&format!("{}: draining{}", args.instance, known(&status)));
            return Ok(());
        }
        match tokio::time::timeout(args.timeout, follow(args, &name, &mut client)).await {
            Ok(done) => done,
            Err(_) => bail!(
                "{}: not everybody has acknowledged within {:?}; the drain stays",
                args.instance,
                args.timeout
            ),
        }
    })?;
    Ok(Exit::Done)
}

async fn follow(args: &DrainArgs, name: &str, client: &mut AdminClient<Channel>) -> anyhow::Result<()> {
    let request = pb::WatchDrainRequest { name: name.to_owned() };
    let mut statuses = client.watch_drain(request).await.map_err(|s| plain(&s))?.into_inner();
    while let Some(status) = statuses.message().await.map_err(|s| plain(&s))? {
        render::message(&format!("{}: draining{}", args.instance, known(&status)));
        if status.acknowledged {
            render::message(&format!(
                "{}: every connected Envoy knows; requests in flight are not counted",
                args.instance
            ));
            return Ok(());
        }
    }
    bail!("tidegate ended before everybody had acknowledged")
}

/// How far the drain is known, in words.
fn known(status: &pb::DrainStatus) -> String {
    let all = status.settled.len() + status.pending.len();
    let waiting = match status.pending.len() {
        0 => String::new(),
        1..=5 => format!(", waiting for {}", status.pending.join(", ")),
        n => format!(", waiting for {n}"),
    };
    let lost = match status.lost.len() {
        0 => String::new(),
        1..=5 => format!(", lost without an answer: {}", status.lost.join(", ")),
        n => format!(", lost without an answer: {n}"),
    };
    if all == 0 && lost.is_empty() {
        return ", nobody connected asks for the cluster: nothing is proved".to_owned();
    }
    format!(", {} of {all} connected Envoys know{waiting}{lost}", status.settled.len())
}

/// Lets the instance serve again.
pub(super) fn undo(args: &UndrainArgs) -> anyhow::Result<Exit> {
    let name = instance_name(&args.instance)?;
    let instance = with_client(&args.server, async |mut client| {
        let request = pb::UndrainInstanceRequest { name };
        Ok(client.undrain_instance(request).await.map_err(|s| plain(&s))?.into_inner())
    })?;
    let serve = instance.serve().as_str_name().to_lowercase();
    render::message(&format!("{}: {serve}, {}", args.instance, instance.reason));
    Ok(Exit::Done)
}
