//! The command line.
//!
//! Decides nothing about health: each subcommand reads its arguments, calls the rest of the crate and maps the
//! result to an exit code and to text. All text goes through `render`. Called by `main` alone.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | not done, for a reason that the message gives |
//! | 2 | the config is wrong |
//! | 64 | the command line is wrong |

mod bootstrap;
mod check;
mod client;
mod describe;
mod doctor;
mod drain;
mod envoy_admin;
mod get;
mod render;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// How a command ended, if it did not fail for an unforeseen reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    Done,
    BadConfig,
}

const FAILED: u8 = 1;
const BAD_CONFIG: u8 = 2;
/// `EX_USAGE` of sysexits.h: not 2, which clap would use and which means a bad config here.
const USAGE: u8 = 64;

/// A health control plane for Envoy: probes backends, decides who may serve, and pushes that over xDS.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Probe, decide and serve xDS until told to stop
    Serve(serve::ServeArgs),
    /// Say whether a config file is right, and everything that is wrong with it
    Check(check::CheckArgs),
    /// List what tidegate knows: clusters, instances, or connected clients
    Get(get::GetArgs),
    /// Tell everything about one instance, or about one cluster and the Envoys that serve it
    Describe(describe::DescribeArgs),
    /// Take an instance out of traffic
    Drain(drain::DrainArgs),
    /// Let a drained instance serve again
    Undrain(drain::UndrainArgs),
    /// Print a bootstrap with which an Envoy gets everything else from tidegate
    Bootstrap(bootstrap::BootstrapArgs),
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors.
            let code = if error.use_stderr() { USAGE } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::from(FAILED) };
        }
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Describe(args) => describe::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Undrain(args) => drain::undo(&args),
        Command::Bootstrap(args) => bootstrap::run(&args),
    };
    match done {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::BadConfig) => ExitCode::from(BAD_CONFIG),
        Err(error) => {
            render::failure(&error);
            ExitCode::from(FAILED)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
