//! `tidegate check`: is this config file right?

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::{Exit, render};
use crate::config::{self, MAX_BYTES};

/// Arguments of `tidegate check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The config file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How the result is written
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// How the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Output {
    /// For people: errors to stderr, beside the lines they are about
    #[default]
    Text,
    /// One JSON object on stdout
    Json,
}

/// Checks the file; `Err` if it cannot be read or the result not be written.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    let bytes = read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let name = args.file.display().to_string();
    let result = config::parse_bytes(&bytes);
    match args.output {
        Output::Text => match &result {
            Ok(config) => render::config_summary(&name, config)?,
            // What is not text up to the end is shown as far as it is.
            Err(errors) => render::config_errors(&name, &String::from_utf8_lossy(&bytes), errors)?,
        },
        Output::Json => render::config_json(&name, result.as_ref())?,
    }
    Ok(if result.is_ok() { Exit::Done } else { Exit::BadConfig })
}

/// One byte more than is accepted, so that a larger file is told so without being read.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
