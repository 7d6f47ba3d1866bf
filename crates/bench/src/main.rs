//! The program `conquest-bench`, which `conquest bench` runs.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "conquest bench", bin_name = "conquest bench", version)]
struct Cli {
    #[command(flatten)]
    args: bench::Args,
}

fn main() -> ExitCode {
    match bench::run(Cli::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("conquest bench: {e}");
            ExitCode::FAILURE
        }
    }
}
