//! The papers' workloads, run side by side on Conquest and on the host's file systems.
//!
//! Every figure is a ratio measured in one run: the rounds of all file systems are interleaved (A B C A B C), and a
//! ratio is the median of the ratios of the single rounds. A system that the machine lacks is reported as skipped with
//! the reason, never as good.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`args`] | the command line of `conquest bench` |
//! | [`options`] | declares the options of workloads |
//! | [`context`] | the run: sizes, rounds, failures |
//! | [`peer`] | the peers: pools and the host's file systems, made and removed |
//! | [`place`] | the file system of a workload: a mounted directory or a pool in this process, one trait |
//! | [`hosts`] | tmpfs, and ext4, XFS and btrfs on loop devices; made and torn down here |
//! | [`command`], [`mounts`] | running other programs, and the mount table |
//! | [`program`] | pools, and mounts of them through the `conquest` program |
//! | [`disk`] | the machine's own disk, for durable data |
//! | [`setting`] | the ground of workloads of large files: the machine's own disk, or RAM |
//! | [`rig`] | slow disks: loop devices whose speed the block throttle limits |
//! | [`raw`] | a disk by itself, as the measure of the possible speed |
//! | [`supervise`] | a private namespace, and cleaning up however the run ends |
//! | [`run`] | runs the requested workloads |
//! | [`workload`] | one module per workload, each of which uses the [`prelude`] |
//! | [`figures`] | the pages made from the JSON of published workloads |
//! | [`book`] | the figures of the four papers, with their values |
//! | [`published`] | the workloads that are published, and their files |
//! | [`publish`] | measuring all of them, in as many runs as it takes |
//! | [`mine`] | the user's own mount beside another file system |
//! | [`clock`], [`cpu`] | time, pinning |
//!
//! Data flow: args → peers → rounds of a workload → [`report::Section`] → [`report::goals::Finding`] → table and
//! JSON → plots and figures.

#![forbid(unsafe_code)]

pub mod args;
mod book;
mod clock;
mod command;
mod context;
mod cpu;
mod disk;
mod error;
mod figures;
mod hosts;
mod mine;
mod mounts;
mod options;
mod peer;
mod place;
mod prelude;
mod program;
mod publish;
mod published;
mod raw;
mod rig;
mod run;
mod setting;
mod supervise;
mod workload;

pub use args::Args;
pub use error::Error;

/// Runs the command line, prints the tables and writes the JSON.
///
/// An error at the end also lists single file systems that failed in the course of a workload; the report has their
/// rows as failed.
pub fn run(args: &Args) -> Result<(), Error> {
    match &args.what {
        args::What::Worker(worker) => return workload::scale::work(worker),
        args::What::FileWorker(worker) => return workload::direct::work(worker),
        args::What::Figures(figures) => return figures::run(figures),
        args::What::Mine(mine) => return mine::run(mine),
        _ => {}
    }
    if supervise::is_supervised() {
        run::run(args)
    } else {
        supervise::run_supervised(args.what.disk())
    }
}
