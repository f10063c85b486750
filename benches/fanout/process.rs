//! A role in a process of its own, and what the kernel counts for it.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Longest time for an answer, beyond what the command itself takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with the value.
pub struct Role {
    name: &'static str,
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Role {
    pub fn start(name: &'static str, args: &[String]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--role", name])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let commands = child.stdin.take().context("no stdin")?;
        let answers = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        Ok(Self { name, child, commands, answers })
    }

    pub async fn tell(&mut self, command: &str) -> anyhow::Result<()> {
        Ok(self.commands.write_all(format!("{command}\n").as_bytes()).await?)
    }

    /// Waits for `word`, and gives what comes after it.
    pub async fn hear(&mut self, word: &str, extra: Duration) -> anyhow::Result<String> {
        let line = tokio::time::timeout(PATIENCE + extra, self.answers.next_line());
        let line = line.await.with_context(|| format!("{}: no {word:?} in time", self.name))??;
        let line = line.with_context(|| format!("{} ended", self.name))?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => bail!("{}: {line:?} instead of {word:?}", self.name),
        }
    }

    pub async fn address(&mut self) -> anyhow::Result<SocketAddr> {
        Ok(self.hear("listening", Duration::ZERO).await?.parse()?)
    }

    /// CPU time of all threads so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut nanoseconds = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid()?))? {
            let schedstat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let on_cpu = schedstat.split(' ').next().context("schedstat is empty")?;
            nanoseconds += on_cpu.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// Memory now (`VmRSS`) or at its peak (`VmHWM`), in KiB.
    pub fn memory(&self, key: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.with_context(|| format!("no {key}"))?.parse()?)
    }

    fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().with_context(|| format!("{} has ended", self.name))
    }
}
