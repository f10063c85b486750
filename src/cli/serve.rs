//! `tidegate serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Exit;

/// Arguments of `tidegate serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The config file; read again whenever its content changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    pub(super) config: PathBuf,
    /// How log lines are written to stderr
    #[arg(long, value_enum, default_value_t)]
    pub(super) log_format: LogFormat,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object for each line
    Json,
}

/// Serves until told to stop.
pub(super) fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    let ServeArgs { config: _, log_format: LogFormat::Text | LogFormat::Json } = args;
    anyhow::bail!("`tidegate serve` is not built yet")
}
