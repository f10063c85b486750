//! What serves: a stand-in or a real llama.cpp server, behind the few things that happen to either.

mod stand_in;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;
use tidegate::testing::child::Signal;
use tidegate::testing::llama::{self, LlamaServer};
use tidegate::testing::setup::free_address;

use stand_in::StandIn;

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Imitates the front of an inference server; runs no model
    StandIn,
    /// llama.cpp's own server with a tiny model of random weights
    Llama,
}

/// Makes engines of one kind.
pub struct Kit {
    kind: Kind,
    model: PathBuf,
}

/// One engine: placed (it has an address), then up, then in trouble. Dropping it ends it at once.
pub enum Engine {
    StandIn(StandIn),
    Llama { address: SocketAddr, model: PathBuf, server: Option<LlamaServer> },
}

impl Kit {
    /// Files that engines need go to `dir`.
    pub fn new(kind: Kind, dir: &Path) -> anyhow::Result<Self> {
        let model = match kind {
            Kind::StandIn => PathBuf::new(),
            Kind::Llama => llama::write_model(dir)?,
        };
        Ok(Self { kind, model })
    }

    /// An engine that has an address, and serves nothing yet.
    pub async fn place(&self) -> anyhow::Result<Engine> {
        Ok(match self.kind {
            Kind::StandIn => Engine::StandIn(StandIn::start().await?),
            Kind::Llama => Engine::Llama { address: free_address(), model: self.model.clone(), server: None },
        })
    }

    /// What an engine does between being placed and being up.
    pub fn while_loading(&self) -> &'static str {
        match self.kind {
            Kind::StandIn => "it answers 503",
            // Its model is loaded in no time, so its process is started late: as vLLM, whose port opens when it is
            // ready.
            Kind::Llama => "its process is started only then, and until then connections are refused",
        }
    }
}

impl Engine {
    /// Where it listens, or will.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::StandIn(engine) => engine.address,
            Self::Llama { address, .. } => *address,
        }
    }

    /// Serves from now on.
    pub async fn come_up(&mut self) -> anyhow::Result<()> {
        match self {
            Self::StandIn(engine) => engine.ready(),
            Self::Llama { address, model, server } => {
                let started = server.insert(LlamaServer::launch(model, address.port()).await?);
                started.wait_ready().await?;
            }
        }
        Ok(())
    }

    /// Takes connections from now on, and does nothing else.
    pub fn hang(&self) -> anyhow::Result<()> {
        match self {
            Self::StandIn(engine) => engine.hang(),
            Self::Llama { server, .. } => server.as_ref().context("it is up")?.signal(Signal::Stop)?,
        }
        Ok(())
    }

    /// Ends it as an operator does, who has made sure that nobody uses it.
    pub async fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::StandIn(engine) => drop(engine),
            Self::Llama { server, .. } => {
                server.context("it is up")?.terminate().await?;
            }
        }
        Ok(())
    }

    /// Ends it in the middle of everything.
    pub fn kill(self) -> anyhow::Result<()> {
        match self {
            Self::StandIn(engine) => drop(engine),
            Self::Llama { server, .. } => {
                server.context("it is up")?.kill()?;
            }
        }
        Ok(())
    }
}
