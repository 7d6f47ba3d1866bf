//! `conquest bench`: runs `conquest-bench`, the program of the papers' workloads.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::{Failure, Result};

pub const PROGRAM: &str = "conquest-bench";

/// Measure Conquest beside the file systems of this machine.
///
/// A separate program, `conquest-bench`, does it: from the directory of this program, or from PATH. `conquest bench
/// --help` lists its workloads.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The arguments of `conquest-bench`
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<()> {
    let error = Command::new(program()).args(&args.arguments).exec();
    Err(match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!(
            "{PROGRAM} is not installed: build it with `cargo build --profile dist -p conquest -p {PROGRAM}`, and put it beside `conquest`"
        )),
        _ => Failure::new(format!("cannot run {PROGRAM}: {error}")),
    })
}

fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(PROGRAM));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}
