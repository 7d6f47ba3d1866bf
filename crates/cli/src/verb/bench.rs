//! `conquest bench`: the papers' workloads, side by side with other file systems.

use crate::failure::{Failure, Result};

pub type Args = bench::Args;

pub fn run(args: Args) -> Result<()> {
    bench::run(args).map_err(|e| Failure::new(format!("bench: {e}")))
}
