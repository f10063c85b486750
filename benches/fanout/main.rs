//! What a fleet of clients costs the server: CPU for each client and flip, when the last one has it, and memory.
//!
//! Server, floor and clients are processes of their own (this program with `--role`), so that the kernel counts the
//! server alone. The floor is a bare tonic server that sends the same bytes and keeps no state; its rounds alternate
//! with the server's, so that both meet the same machine.
//!
//! `cargo bench --bench fanout` takes about three minutes, prints tables beside what the peers need for the same work,
//! and as its last line one JSON object. `-- --churn 600` makes the churn ten minutes long; `-- --only flip_1000` runs
//! a part.

mod client;
mod clients;
mod control;
mod floor;
mod process;
mod protocol;
mod role;
mod scenario;
mod world;

use std::time::Duration;

use clap::{Parser, ValueEnum};
use tidegate::net;

use crate::clients::Crowd;
use crate::protocol::Wire;
use crate::scenario::{Shape, churn, connect, flips, idle};
use crate::world::Size;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoleName {
    Server,
    Floor,
    Clients,
}

#[derive(Debug, Parser)]
struct Args {
    /// Seconds of churn.
    #[arg(long, default_value_t = 20)]
    churn: u64,
    /// Runs only what begins with this.
    #[arg(long, default_value = "")]
    only: String,
    #[arg(long, value_enum, hide = true)]
    role: Option<RoleName>,
    #[command(flatten)]
    size: Size,
    #[command(flatten)]
    crowd: Crowd,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    net::Descriptors::raise();
    match args.role {
        Some(RoleName::Server) => control::run(args.size).await,
        Some(RoleName::Floor) => floor::run(args.size).await,
        Some(RoleName::Clients) => clients::run(args.crowd).await,
        None => measure(&args).await,
    }
}

async fn measure(args: &Args) -> anyhow::Result<()> {
    let wanted = |name: &str| name.starts_with(&args.only);
    let mut json = Vec::new();
    let many = Shape { clients: 1000, clusters: 20, endpoints: 500, wire: Wire::Delta };
    let big = Shape { clients: 100, clusters: 1, endpoints: 10_000, wire: Wire::Delta };
    let sotw = Shape { clients: 100, wire: Wire::Sotw, ..many };
    if wanted("flip_1000x20x500") {
        println!("\n1,000 delta clients, 20 clusters x 500 endpoints, one flip");
        let [ours, floor] = &flips(many, true).await?[..] else { unreachable!() };
        row("server CPU per client, µs", ours.cpu_us, Some(floor.cpu_us), "534 / 99");
        row("last client has it, ms", ours.last_ms, Some(floor.last_ms), "285 / 52");
        row("peak memory, MB", ours.peak_mb, Some(floor.peak_mb), "310-436 / 272-358");
        json.push(format!(
            r#""flip_1000x20x500":{{"cpu_us_per_client":{:.1},"floor_us_per_client":{:.1},"last_ms":{:.1},"floor_last_ms":{:.1},"peak_rss_mb":{:.1}}}"#,
            ours.cpu_us, floor.cpu_us, ours.last_ms, floor.last_ms, ours.peak_mb
        ));
    }
    if wanted("flip_100x1x10000") {
        println!("\n100 delta clients, one cluster of 10,000 endpoints, one flip");
        let [ours, floor] = &flips(big, true).await?[..] else { unreachable!() };
        row("server CPU per client, µs", ours.cpu_us, Some(floor.cpu_us), "8,570 / 534");
        row("last client has it, ms", ours.last_ms, Some(floor.last_ms), "438 / 54");
        row("peak memory, MB", ours.peak_mb, Some(floor.peak_mb), "68-134 / 55-112");
        json.push(format!(
            r#""flip_100x1x10000":{{"cpu_us_per_client":{:.1},"floor_us_per_client":{:.1}}}"#,
            ours.cpu_us, floor.cpu_us
        ));
    }
    if wanted("flip_sotw_100x20x500") {
        println!("\n100 SotW clients, 20 clusters x 500 endpoints, one flip");
        let [ours] = &flips(sotw, false).await?[..] else { unreachable!() };
        row("server CPU per client, µs", ours.cpu_us, None, "9,600 / -");
        row("last client has it, ms", ours.last_ms, None, "497 / -");
        json.push(format!(r#""flip_sotw_100x20x500":{{"cpu_us_per_client":{:.1}}}"#, ours.cpu_us));
    }
    if wanted("connect_1000") {
        println!("\n1,000 delta clients connect at once, 20 clusters x 500 endpoints");
        let (wall, cpu) = connect(many).await?;
        row("all have everything, s", wall, None, "4-5 / -");
        row("server CPU, s", cpu, None, "8-9.5 / -");
        json.push(format!(r#""connect_1000":{{"wall_s":{wall:.2},"cpu_s":{cpu:.2}}}"#));
    }
    if wanted("idle") {
        println!("\n5,000 delta clients, 20 clusters x 500 endpoints, nothing happens");
        let kib = idle(Shape { clients: 5000, ..many }).await?;
        row("server memory per client, KiB", kib, None, "-");
        json.push(format!(r#""idle_kib_per_client":{kib:.1}"#));
    }
    if wanted("churn") {
        println!("\n1,000 delta clients, 100 flips per second for {} s", args.churn);
        churn(many, Duration::from_secs(args.churn)).await?;
    }
    println!("\n{{{}}}", json.join(","));
    Ok(())
}

/// The figure, the floor's, and those of go-control-plane's SnapshotCache and LinearCache.
fn row(what: &str, ours: f64, floor: Option<f64>, peers: &str) {
    let floor = floor.map_or_else(|| "-".to_owned(), |floor| format!("{floor:.1}"));
    println!("  {what:<32} {ours:>8.1}   floor {floor:>7}   go-control-plane {peers}");
}
