//! A real program as a child process: its log, its signals, and its end with the value.
//!
//! What Envoy and llama.cpp have in common. It is signalled by its own process id and by nothing broader.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, bail, ensure};

use super::eventually::eventually;

const LOG_TAIL_LINES: usize = 40;

/// What to send to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Freeze: sockets stay open, nothing is answered.
    Stop,
    /// Go on after [`Signal::Stop`].
    Cont,
    /// Exit.
    Term,
}

/// A running program. Dropping it kills it, frozen or not.
#[derive(Debug)]
pub struct ChildProcess {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl ChildProcess {
    /// Runs `command`, with what it writes in the file `log`.
    pub fn start(name: &'static str, mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let console = std::fs::File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console)
            .spawn()
            .with_context(|| format!("running {}", command.get_program().display()))?;
        Ok(Self { name, child, log: log.to_owned() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
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

    /// True once it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// SIGTERM; returns when it has exited.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::Term)?;
        let child = &mut self.child;
        eventually(&format!("{} exits", self.name), async || {
            child.try_wait().map_err(|e| e.to_string())?.ok_or_else(|| "still running".to_owned())
        })
        .await
    }

    /// [`eventually`], but at once an error when the process is gone; with the log in either case.
    pub async fn while_running<T>(
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

    /// The last lines that it wrote.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!("{}'s log ends with:\n{}", self.name, tail.join("\n"))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both fail only if the child is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
