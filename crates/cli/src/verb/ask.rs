//! `conquest ask`, which other commands run: one call to a mount that may not answer.

use std::path::PathBuf;

use crate::ask;
use crate::failure::Result;

/// Print an attribute of a mount.
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    attribute: String,
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    ask::print(&args.attribute, &args.dir)
}
