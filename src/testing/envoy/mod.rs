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
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

pub use admin::{Admin, Host};
pub use bootstrap::Bootstrap;

use super::eventually::eventually;
use super::parts;

/// In a bootstrap this stands for the process's scratch directory.
pub const SCRATCH: &str = "$SCRATCH";

const EPHEMERAL_ADMIN: &str = "{admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}}";
const LOG_TAIL_LINES: usize = 40;

/// How to run it.
#[derive(Debug, Clone)]
pub struct EnvoyOptions {
    /// Worker threads.
    pub concurrency: u32,
    /// Envoy's own log level.
    pub log_level: &'static str,
    /// Return only once Envoy is LIVE, which without its control plane takes as long as `initial_fetch_timeout`.
    pub wait_live: bool,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self { concurrency: 2, log_level: "info", wait_live: true }
    }
}

/// What to send to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Freeze: sockets stay open, nothing is answered.
    Stop,
    /// Go on after [`Signal::Stop`].
    Cont,
    /// Exit at once, cutting streams.
    Term,
}

/// A running Envoy. Dropping it kills it.
#[derive(Debug)]
pub struct EnvoyProcess {
    child: Child,
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
        let console = std::fs::File::create(at("console.log"))?;
        let child = Command::new(&binary)
            .arg("--config-path")
            .arg(at("bootstrap.yaml"))
            .args(["--config-yaml", EPHEMERAL_ADMIN, "--disable-hot-restart"])
            .arg("--admin-address-path")
            .arg(at("admin.address"))
            .args(["--file-flush-interval-msec", "50", "--log-level", options.log_level])
            .args(["--concurrency", &options.concurrency.to_string()])
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .with_context(|| format!("running {}", binary.display()))?;
        // The value owns the child from here on, so that every early return kills it.
        let mut envoy = Self { child, scratch, admin: Admin::new(SocketAddr::from(([127, 0, 0, 1], 0))) };
        envoy.admin = Admin::new(envoy.wait_for_admin().await?);
        if options.wait_live {
            envoy.wait_live().await?;
        }
        Ok(envoy)
    }

    /// Waits until Envoy has its first config and serves.
    pub async fn wait_live(&mut self) -> anyhow::Result<()> {
        let admin = self.admin.clone();
        let live = self.while_running("Envoy is LIVE", async || match admin.ready().await {
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
        self.child.id()
    }

    /// Where the listener `name` is bound, once it is.
    pub async fn listener(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let find = async || {
            let bound = self.admin.listeners().await?;
            bound.get(name).copied().with_context(|| format!("listeners: {:?}", bound.keys()))
        };
        eventually(&format!("listener {name} is bound"), find).await.with_context(|| self.log_tail())
    }

    /// Sends a signal to this process.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let name = match signal {
            Signal::Stop => "-STOP",
            Signal::Cont => "-CONT",
            Signal::Term => "-TERM",
        };
        let sent = Command::new("kill").args([name, &self.pid().to_string()]).status()?;
        ensure!(sent.success(), "kill {name} {} failed", self.pid());
        Ok(())
    }

    /// Ends the process by SIGTERM and reads its status.
    pub async fn terminate(mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::Term)?;
        eventually("Envoy exits", async || {
            self.child.try_wait().map_err(|e| e.to_string())?.ok_or_else(|| "still running".to_owned())
        })
        .await
    }

    /// The last lines that Envoy wrote.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(self.scratch.path().join("console.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!("Envoy's log ends with:\n{}", tail.join("\n"))
    }

    async fn wait_for_admin(&mut self) -> anyhow::Result<SocketAddr> {
        let file = self.scratch.path().join("admin.address");
        self.while_running("Envoy's admin is bound", async || {
            let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
            text.trim().parse::<SocketAddr>().map_err(|e| format!("{text:?}: {e}"))
        })
        .await
    }

    /// [`eventually`], but at once an error when the process is gone; with the log in either case.
    async fn while_running<T>(
        &mut self,
        what: &str,
        mut check: impl AsyncFnMut() -> Result<T, String>,
    ) -> anyhow::Result<T> {
        let child = &mut self.child;
        let outcome = eventually(what, async || {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                return Ok(Err(status));
            }
            check().await.map(Ok)
        });
        match outcome.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(status)) => bail!("{what}: it exited with {status}. {}", self.log_tail()),
            Err(error) => Err(error.context(self.log_tail())),
        }
    }
}

impl Drop for EnvoyProcess {
    fn drop(&mut self) {
        // Both fail only if the child is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
