//! The program `conquest-bench`, which `conquest bench` runs.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match bench::run(&bench::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("conquest bench: {e}");
            ExitCode::FAILURE
        }
    }
}
