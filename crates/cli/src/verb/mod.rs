//! The commands, a file each.

mod ask;
mod bench;
mod completions;
mod destroy;
mod du;
pub mod export;
mod format;
mod fsck;
mod import;
pub mod install;
mod iostat;
mod list;
mod man;
mod metrics;
pub mod mount;
mod pack;
mod profile;
mod redundancy;
mod region;
mod release;
mod resize;
mod restore;
pub mod run;
mod salvage;
mod save;
mod scrub;
mod status;
mod umount;
mod up;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Result;

#[derive(Subcommand)]
pub enum Verb {
    Up(up::Args),
    Format(format::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Status(status::Args),
    List(list::Args),
    Iostat(iostat::Args),
    Ask(ask::Args),
    Metrics(metrics::Args),
    Release(release::Args),
    Run(run::Args),
    Destroy(destroy::Args),
    Resize(resize::Args),
    Region(region::Args),
    Export(export::Args),
    Redundancy(redundancy::Args),
    Du(du::Args),
    Pack(pack::Args),
    Profile(profile::Args),
    Scrub(scrub::Args),
    Fsck(fsck::Args),
    Save(save::Args),
    Restore(restore::Args),
    Import(import::Args),
    Salvage(salvage::Args),
    Bench(bench::Args),
    Install(install::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Verb {
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Verb::Fsck(args) => return fsck::run(&args),
            Verb::Run(args) => return run::run(&args),
            Verb::Up(args) => up::run(&args),
            Verb::Format(args) => format::run(&args),
            Verb::Mount(args) => mount::run(&args),
            Verb::Umount(args) => umount::run(&args),
            Verb::Status(args) => return status::run(&args),
            Verb::List(args) => list::run(&args),
            Verb::Ask(args) => ask::run(&args),
            Verb::Iostat(args) => iostat::run(&args),
            Verb::Metrics(args) => metrics::run(&args),
            Verb::Release(args) => release::run(&args),
            Verb::Destroy(args) => destroy::run(&args),
            Verb::Resize(args) => resize::run(&args),
            Verb::Region(args) => return region::run(&args),
            Verb::Pack(args) => return pack::run(&args),
            Verb::Scrub(args) => return scrub::run(&args),
            Verb::Export(args) => export::run(&args),
            Verb::Redundancy(args) => redundancy::run(&args),
            Verb::Du(args) => du::run(&args),
            Verb::Profile(args) => profile::run(&args),
            Verb::Save(args) => save::run(&args),
            Verb::Restore(args) => restore::run(&args),
            Verb::Import(args) => import::run(&args),
            Verb::Salvage(args) => salvage::run(&args),
            Verb::Bench(args) => bench::run(&args),
            Verb::Install(args) => install::run(&args),
            Verb::Completions(args) => completions::run(&args),
            Verb::Man(args) => man::run(&args),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
