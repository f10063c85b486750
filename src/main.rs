//! The `tidegate` program: reads the command line, runs it, says how it went.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main()
}
