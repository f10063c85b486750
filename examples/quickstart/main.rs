//! A whole small fleet on this machine, and four things that happen to it.
//!
//! `cargo run --release --example quickstart` gets a real Envoy, starts three inference instances, tidegate and Envoy,
//! and sends a steady streaming load. Then one instance is added that loads for three seconds, one hangs, one is drained
//! and stopped, and one is killed. A timeline on stderr says what happened, what tidegate saw and when Envoy knew;
//! stdout gets a table and, as its last line, JSON. The exit code is 0 only if no request failed that need not.
//!
//! * [`story`]: the four things; [`fleet`]: what they happen to; [`engine`]: the instances
//! * [`load`]: the users; [`follow`] and [`screen`]: the timeline; [`report`]: the numbers

mod engine;
mod fleet;
mod follow;
mod load;
mod report;
mod screen;
mod story;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Parser;
use tidegate::clock::Clock;
use tidegate::testing::parts;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use engine::{Kind, Kit};
use fleet::Fleet;
use load::{Account, Load};
use screen::{ABOUT_SECONDS, Screen, Who};

/// As in `tidegate` itself.
const USAGE: u8 = 64;

/// A small fleet in trouble, on a real Envoy: watch what tidegate does about it
#[derive(Debug, Parser)]
#[command(name = "quickstart")]
struct Args {
    /// What serves the requests
    #[arg(long, value_enum, default_value_t = Kind::StandIn)]
    engine: Kind,
    /// Leave everything running afterwards, and say where it is
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help is an answer, not an error.
            let code = if error.use_stderr() { USAGE } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::FAILURE };
        }
    };
    match run(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("quickstart: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> anyhow::Result<bool> {
    let dir = tempfile::TempDir::with_prefix("tidegate-quickstart-")?;
    introduce(args.engine);
    tokio::task::spawn_blocking(parts::envoy_binary).await??;
    if args.engine == Kind::Llama {
        tokio::task::spawn_blocking(parts::llama_modules).await??;
    }
    let kit = Kit::new(args.engine, dir.path())?;
    let account = Arc::new(watch::Sender::new(Account::default()));
    let clock = Clock::start();
    let (screen, printer) = Screen::start(clock, account.subscribe());
    // Leaving early drops all that runs, and with it every process.
    let played = async {
        let mut fleet = Fleet::start(kit, dir, &["one", "two", "three"], clock, screen.clone()).await?;
        let text =
            format!("three instances, tidegate and Envoy run; users send to http://{}\n", fleet.ingress);
        screen.say(Who::Event, text).await;
        let load = Load::start(fleet.ingress, clock, account.clone());
        let phases = story::play(&mut fleet, &account.subscribe()).await?;
        screen.phase("waiting for the last requests").await;
        let account = load.stop().await;
        let served = fleet.served(account.reached_envoy()).await?;
        anyhow::Ok((fleet, phases, account, served))
    };
    let played = tokio::select! {
        played = played => played,
        interrupted = interrupted() => interrupted.and_then(|()| bail!("interrupted")),
    };
    screen.close(printer).await;
    let (fleet, phases, account, served) = played?;
    let rows: Vec<_> = phases.iter().map(|phase| (phase, phase.row(&account.ended, &served))).collect();
    let complaints: Vec<_> = rows.iter().filter_map(|(phase, row)| phase.complaint(row)).collect();
    for complaint in &complaints {
        eprintln!("NOT GOOD ENOUGH: {complaint}");
    }
    println!("{}\n{}", report::table(&rows), report::json(&rows));
    if args.keep {
        kept(&fleet);
        interrupted().await?;
    }
    fleet.stop().await?;
    Ok(complaints.is_empty())
}

fn introduce(kind: Kind) {
    let (what, parts) = match kind {
        Kind::StandIn => ("stand-ins for inference servers", "Envoy (35 MiB) is"),
        Kind::Llama => {
            ("llama.cpp servers with a tiny random model", "Envoy (35 MiB) and llama.cpp (33 MiB) are")
        }
    };
    eprintln!(
        "Three {what}, tidegate, a real Envoy, and users who send streams. Then one instance is\n\
         added that loads for 3 s, one hangs, one is drained and stopped, and one is killed. About {ABOUT_SECONDS} s.\n\
         The first time, {parts} downloaded before that, and kept in target/parts.\n"
    );
}

/// What there is to try while it runs.
fn kept(fleet: &Fleet) {
    let profile = if cfg!(debug_assertions) { "" } else { " --release" };
    let tidegate = format!("cargo run{profile} --");
    let (admin, health) = (fleet.listen.admin, fleet.listen.health);
    eprintln!(
        "\nAll of it keeps running until Ctrl-C. Try, in another shell:\n\n\
         \x20 {tidegate} get instances --server {admin}\n\
         \x20 {tidegate} get envoys --server {admin}\n\
         \x20 {tidegate} describe demo/two --server {admin}\n\
         \x20 curl -N http://{}{} -H 'content-type: application/json' -d '{}'\n\
         \x20 curl -s http://{health}/metrics\n\
         \x20 curl -s http://{}/clusters\n\n\
         tidegate's config, which may be edited: {}",
        fleet.ingress,
        load::PATH,
        load::BODY,
        fleet.envoy.admin().address(),
        fleet.config().display()
    );
}

/// Ctrl-C, a polite request to end, or the end of the terminal.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => Ok(pressed?),
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}
