//! `tidegate serve`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, render};
use crate::app::{self, StartError};
use crate::source::FileProblem;
use crate::telemetry::{self, LogFormat};

/// Arguments of `tidegate serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The config file; read again whenever its content changes
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: PathBuf,
    /// How log lines are written to stderr
    #[arg(long, value_enum, default_value_t)]
    log_format: Format,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object for each line
    Json,
}

/// Serves until SIGTERM or SIGINT.
pub(super) fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    telemetry::init_logging(match args.log_format {
        Format::Text => LogFormat::Text,
        Format::Json => LogFormat::Json,
    });
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let served = runtime.block_on(serve(args.config));
    // Tasks have ended by now; a connection that has not is cut.
    runtime.shutdown_background();
    served
}

async fn serve(config: PathBuf) -> anyhow::Result<Exit> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGINT")?;
    let app = match app::start(config).await {
        Ok(app) => app,
        Err(StartError::Config { path, text, errors }) => {
            render::config_errors(&path.display().to_string(), &text, &errors)?;
            return Ok(Exit::BadConfig);
        }
        // The file is there, and wrong as a whole.
        Err(
            error @ StartError::File {
                problem: FileProblem::Empty | FileProblem::TooLarge { .. } | FileProblem::NotText,
                ..
            },
        ) => {
            render::failure(&error.into());
            return Ok(Exit::BadConfig);
        }
        Err(error) => return Err(error.into()),
    };
    let stop = async {
        loop {
            tokio::select! {
                _ = terminate.recv() => break tracing::info!("SIGTERM: shutting down; clients keep the last world"),
                _ = interrupt.recv() => break tracing::info!("SIGINT: shutting down; clients keep the last world"),
                _ = hangup.recv() => tracing::info!("SIGHUP: nothing to do, the config file is watched"),
            }
        }
    };
    app.run(stop).await?;
    Ok(Exit::Done)
}
