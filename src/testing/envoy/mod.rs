//! A real Envoy process.
//!
//! Started from a bootstrap in a scratch directory of its own, with its admin and its listeners on ephemeral ports,
//! and killed by its process id when the value is dropped. It is the real thing: nothing here interprets config.
//! Used by integration tests and by benchmarks.
//!
//! * [`EnvoyProcess`]: start, signals, log
//! * [`Admin`]: what Envoy says about itself
//! * [`access_log`]: when Envoy itself started each request, and on which instance
//! * [`Bootstrap`]: a bootstrap for tests; tidegate's own is `tidegate bootstrap`

pub mod access_log;
mod admin;
mod bootstrap;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context;
use tempfile::TempDir;

pub use admin::{Admin, Host};
pub use bootstrap::Bootstrap;

pub use super::child::Signal;

use super::child::ChildProcess;
use super::eventually::eventually;
use super::parts;

/// In a bootstrap this stands for the process's scratch directory.
pub const SCRATCH: &str = "$SCRATCH";

const EPHEMERAL_ADMIN: &str = "{admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}}";

/// How to run it.
#[derive(Debug, Clone)]
pub struct EnvoyOptions {
    /// Worker threads.
    pub concurrency: u32,
    /// Envoy's own log level.
    pub log_level: &'static str,
    /// Return only once Envoy is LIVE, which without its control plane takes as long as `initial_fetch_timeout`.
    pub wait_live: bool,
    /// Hot restart, as (`--base-id`, `--restart-epoch`): the next epoch takes the sockets of the one before over.
    pub restart: Option<(u32, u32)>,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self { concurrency: 2, log_level: "info", wait_live: true, restart: None }
    }
}

impl EnvoyOptions {
    fn restart_args(&self) -> Vec<String> {
        let Some((base_id, epoch)) = self.restart else { return vec!["--disable-hot-restart".to_owned()] };
        // Every answer of the old process asks its client to come back on another connection, from the beginning.
        let fixed = "--drain-time-s 1 --parent-shutdown-time-s 3 --drain-strategy immediate";
        let text = format!("--base-id {base_id} --restart-epoch {epoch} {fixed}");
        text.split(' ').map(str::to_owned).collect()
    }
}

/// A running Envoy. Dropping it kills it.
#[derive(Debug)]
pub struct EnvoyProcess {
    process: ChildProcess,
    scratch: TempDir,
    admin: Admin,
}

impl EnvoyProcess {
    /// Runs Envoy with `bootstrap` (YAML). Its admin is moved to an ephemeral port whatever the bootstrap says.
    pub async fn start(bootstrap: &str, options: &EnvoyOptions) -> anyhow::Result<Self> {
        let binary = tokio::task::spawn_blocking(parts::envoy_binary).await??;
        let scratch = TempDir::with_prefix("tidegate-envoy-")?;
        let at = |name: &str| scratch.path().join(name);
        let here = scratch.path().to_str().context("the scratch directory's name is UTF-8")?;
        std::fs::write(at("bootstrap.yaml"), bootstrap.replace(SCRATCH, here))?;
        let mut command = Command::new(&binary);
        command
            .arg("--config-path")
            .arg(at("bootstrap.yaml"))
            .args(["--config-yaml", EPHEMERAL_ADMIN])
            .args(options.restart_args())
            .arg("--admin-address-path")
            .arg(at("admin.address"))
            .args(["--file-flush-interval-msec", "50", "--log-level", options.log_level])
            .args(["--concurrency", &options.concurrency.to_string()]);
        let process = ChildProcess::start("Envoy", command, &at("console.log"))?;
        let mut envoy = Self { process, scratch, admin: Admin::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
        envoy.admin = Admin::new(envoy.wait_for_admin().await?);
        if options.wait_live {
            envoy.wait_live().await?;
        }
        Ok(envoy)
    }

    /// Waits until Envoy has its first config and serves.
    pub async fn wait_live(&mut self) -> anyhow::Result<()> {
        let admin = self.admin.clone();
        let live = self.process.while_running("Envoy is LIVE", async || match admin.ready().await {
            Ok(true) => Ok(()),
            Ok(false) => Err("still initializing".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        });
        live.await
    }

    /// The admin interface.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// The scratch directory: `bootstrap.yaml`, `console.log`, and what the bootstrap put there.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where the listener `name` is bound, once it is.
    pub async fn listener(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let find = async || {
            let bound = self.admin.listeners().await?;
            bound.get(name).copied().with_context(|| format!("listeners: {:?}", bound.keys()))
        };
        eventually(&format!("listener {name} is bound"), find).await.with_context(|| self.log_tail())
    }

    /// Sends a signal to this process. [`Signal::Term`] cuts streams.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process.signal(signal)
    }

    /// True once the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Ends the process by SIGTERM and reads its status.
    pub async fn terminate(mut self) -> anyhow::Result<ExitStatus> {
        self.process.terminate().await
    }

    /// The last lines that Envoy wrote.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    async fn wait_for_admin(&mut self) -> anyhow::Result<SocketAddr> {
        let file = self.scratch.path().join("admin.address");
        self.process
            .while_running("Envoy's admin is bound", async || {
                let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
                text.trim().parse::<SocketAddr>().map_err(|e| format!("{text:?}: {e}"))
            })
            .await
    }
}
