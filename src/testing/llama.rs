//! A real llama.cpp server: its own HTTP front, a tiny model of random weights.
//!
//! `examples/llama/serve.py` runs it, on `127.0.0.1`; the module that it needs is a pinned part, and the model is
//! written by `examples/llama/tiny_model.py`. One process for each server, so it can be frozen and killed by its own
//! process id. It is the real thing: 503 while it loads, 200 on `/health`, completions and chats as streams, and no
//! draining: what ends it cuts its streams.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use super::child::{ChildProcess, Signal};
use super::setup::free_port;
use super::{fetch, parts};

/// The model's name, as requests say it.
pub const MODEL: &str = "tiny";

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/llama").join(name)
}

/// Writes the model into `dir`: half a megabyte, always the same.
pub fn write_model(dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join("tiny.gguf");
    let done = Command::new("python3")
        .arg(script("tiny_model.py"))
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .context("python3 is needed to write a model for llama.cpp")?;
    ensure!(done.status.success(), "no model: {}", String::from_utf8_lossy(&done.stderr));
    Ok(path)
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct LlamaServer {
    process: ChildProcess,
    address: SocketAddr,
    _scratch: TempDir,
}

impl LlamaServer {
    /// Starts one on a free port, and waits until it is ready.
    pub async fn start(model: &Path) -> anyhow::Result<Self> {
        let mut server = Self::launch(model, free_port()).await?;
        server.wait_ready().await?;
        Ok(server)
    }

    /// Starts one on `port` and returns at once: connections are refused until the server has come up.
    pub async fn launch(model: &Path, port: u16) -> anyhow::Result<Self> {
        let modules = tokio::task::spawn_blocking(parts::llama_modules).await??;
        let scratch = TempDir::with_prefix("tidegate-llama-")?;
        let mut command = Command::new("python3");
        command.arg(script("serve.py")).arg("--model").arg(model).args(["--port", &port.to_string()]);
        command.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
        let process = ChildProcess::start("llama.cpp", command, &scratch.path().join("console.log"))?;
        Ok(Self { process, address: SocketAddr::from(([127, 0, 0, 1], port)), _scratch: scratch })
    }

    /// Waits until `/health` says 200: the model is loaded.
    pub async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let address = self.address;
        let ready = self.process.while_running("llama.cpp is ready", async || {
            match fetch::get(address, "/health").await {
                Ok(answer) if answer.status.is_success() => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        ready.await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.process.signal(signal)
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.kill()
    }

    /// SIGTERM, which cuts its streams; returns when it is gone.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.terminate().await
    }

    /// The last lines that it wrote.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}
