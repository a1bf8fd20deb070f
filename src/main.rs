//! The command-line program: parse, call, print the error, choose the exit code.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
