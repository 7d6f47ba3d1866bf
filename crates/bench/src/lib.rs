//! The papers' workloads, run side by side on Conquest and on the host's file systems.
//!
//! Every figure is a ratio measured in one run: the rounds of all file systems are interleaved
//! (A B C A B C), a ratio is the median of the ratios of the single rounds, and a system that the
//! machine cannot provide is reported as skipped with the reason, never as good.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`args`] | the command line of `conquest bench` |
//! | [`options`] | how workloads name their options |
//! | [`context`] | the run: sizes, rounds, who fails |
//! | [`peer`] | who is compared: pools and the host's file systems, made and taken away |
//! | [`place`] | what a workload runs on: a mounted directory or a pool in this process, one trait |
//! | [`hosts`] | tmpfs, and ext4, XFS and btrfs on loop devices; made and torn down here |
//! | [`command`], [`mounts`] | programs that are run, and the table of mounts |
//! | [`program`] | pools, and mounts of them through the `conquest` program |
//! | [`disk`] | the machine's own disk, for what must be durable |
//! | [`setting`] | what lies where in workloads of large files: on the machine's own disk, or in RAM |
//! | [`rig`] | slow disks: loop devices that the block throttle holds to a speed |
//! | [`raw`] | a disk by itself, as the measure of what is possible |
//! | [`supervise`] | a private namespace, and cleaning up however the run ends |
//! | [`run`] | running what is asked for |
//! | [`workload`] | one module per workload, each of which uses the [`prelude`] |
//! | [`figures`] | what is published: the JSON of each workload, and the tables made of them |
//! | [`clock`], [`cpu`] | time, pinning |
//!
//! Data flow: args → peers → rounds of a workload → [`report::Section`] → [`report::goals::Finding`] → table and
//! JSON → plots and figures.

#![forbid(unsafe_code)]

pub mod args;
mod clock;
mod command;
mod context;
mod cpu;
mod disk;
mod error;
mod figures;
mod hosts;
mod mounts;
mod options;
mod peer;
mod place;
mod prelude;
mod program;
mod raw;
mod rig;
mod run;
mod setting;
mod supervise;
mod workload;

pub use args::Args;
pub use error::Error;

/// Runs what the command line asks for, prints the tables and writes the JSON.
///
/// An error at the end also tells of single file systems that failed in the course of a workload; their
/// rows are in the report as failed.
pub fn run(args: &Args) -> Result<(), Error> {
    match &args.what {
        args::What::Worker(worker) => return workload::scale::work(worker),
        args::What::Figures(figures) => return figures::run(figures),
        _ => {}
    }
    if supervise::is_supervised() {
        run::run(args)
    } else {
        supervise::run_supervised(args.what.disk())
    }
}
