//! The real `tidegate` program as a child process.
//!
//! Started on a config file of its own with fixed ports, so that a restart comes back to the same place. It is killed
//! by its process id when the value is dropped. What it logs is kept for the test to read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use super::eventually::eventually;
use super::fetch;
use super::setup::Setup;

/// `tidegate serve`, running or ended.
#[derive(Debug)]
pub struct TidegateProcess {
    binary: PathBuf,
    dir: TempDir,
    xds: SocketAddr,
    admin: SocketAddr,
    health: SocketAddr,
    max_descriptors: Option<u32>,
    child: Option<Child>,
}

impl TidegateProcess {
    /// Starts `binary` with a config that names its ports, and waits until it is ready.
    pub async fn start(binary: &str, setup: &Setup) -> anyhow::Result<Self> {
        let mut process = Self::prepare(binary, setup)?;
        process.run()?;
        process.wait_ready().await?;
        Ok(process)
    }

    /// The config is written, nothing runs.
    pub fn prepare(binary: &str, setup: &Setup) -> anyhow::Result<Self> {
        ensure!(setup.xds.port() != 0 && setup.health.port() != 0, "a process needs fixed ports");
        let dir = TempDir::with_prefix("tidegate-process-")?;
        std::fs::write(dir.path().join("tidegate.yaml"), setup.yaml())?;
        let Setup { xds, admin, health, .. } = *setup;
        Ok(Self { binary: binary.into(), dir, xds, admin, health, max_descriptors: None, child: None })
    }

    /// How many descriptors it may have open, from its next start on.
    pub fn limit_descriptors(&mut self, to: u32) {
        self.max_descriptors = Some(to);
    }

    /// Starts the process and returns at once. The log goes on in the same file.
    pub fn run(&mut self) -> anyhow::Result<()> {
        ensure!(self.child.is_none(), "it runs already");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let mut command = match self.max_descriptors {
            None => Command::new(&self.binary),
            // The shell sets both limits, soft and hard, and is replaced by the program.
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\"")).arg(&self.binary);
                shell
            }
        };
        let child = command
            .args(["serve", "--config"])
            .arg(self.config_path())
            .env("RUST_LOG", "info")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("running {}", self.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until `/readyz` says yes; an error at once if the process ends.
    pub async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let health = self.health;
        let Some(child) = self.child.as_mut() else { bail!("nothing runs") };
        let ready = eventually("tidegate is ready", async || {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                return Ok(Err(status));
            }
            match fetch::get(health, "/readyz").await {
                Ok(answer) if answer.status.is_success() => Ok(Ok(())),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        match ready.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => bail!("it exited with {status}: {}", self.log()),
            Err(error) => Err(error.context(self.log())),
        }
    }

    /// Where it serves xDS.
    pub fn xds(&self) -> SocketAddr {
        self.xds
    }

    /// Where the admin API is.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Where it serves its own health.
    pub fn health(&self) -> SocketAddr {
        self.health
    }

    /// The config file.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("tidegate.yaml")
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The CPU time it has used so far, in ticks of the system's clock: a hundred in a second.
    pub fn cpu_ticks(&self) -> anyhow::Result<u64> {
        let Some(child) = self.child.as_ref() else { bail!("nothing runs") };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
        // The name, in parentheses, may hold anything; user and system time are fields 14 and 15, the name is 2.
        let (_, after_name) = stat.rsplit_once(") ").context("no name")?;
        let ticks: Result<Vec<u64>, _> = after_name.split(' ').skip(11).take(2).map(str::parse).collect();
        Ok(ticks?.iter().sum())
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Everything logged so far, over all runs.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// SIGTERM; returns when it has exited.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        let Some(child) = self.child.as_ref() else { bail!("nothing runs") };
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        ensure!(sent.success(), "kill -TERM {} failed", child.id());
        self.wait_exit().await
    }

    /// SIGKILL; returns when it is gone.
    pub async fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        let Some(child) = self.child.as_mut() else { bail!("nothing runs") };
        child.kill()?;
        self.wait_exit().await
    }

    /// Waits until it has exited by itself.
    pub async fn wait_exit(&mut self) -> anyhow::Result<ExitStatus> {
        let Some(child) = self.child.as_mut() else { bail!("nothing runs") };
        let status = eventually("tidegate exits", async || {
            child.try_wait().map_err(|e| e.to_string())?.ok_or_else(|| "still running".to_owned())
        })
        .await?;
        self.child = None;
        Ok(status)
    }
}

impl Drop for TidegateProcess {
    fn drop(&mut self) {
        if let Some(child) = self.child.as_mut() {
            // Both fail only if the child is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
