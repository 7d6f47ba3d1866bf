//! `conquest man`: the manual pages, made from the same text as `--help`.

use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::failure::{Context, Result};
use crate::{say, Cli};

/// Print the manual page, or write the pages of all commands to a directory.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest man | man -l -\n  conquest man /usr/local/share/man/man1")]
pub struct Args {
    /// The directory for conquest.1, conquest-mount.1 and the others
    dir: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let Some(dir) = &args.dir else {
        let page = render(Cli::command())?;
        return say(String::from_utf8_lossy(&page).trim_end());
    };
    write_to(dir)?;
    say(&format!("the pages are in {}", dir.display()))
}

/// Writes a page for the program and one for each of its commands.
pub fn write_to(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).context(|| format!("cannot make {}", dir.display()))?;
    let program = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(program, dir).context(|| format!("cannot write to {}", dir.display()))
}

fn render(command: clap::Command) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    clap_mangen::Man::new(command).render(&mut out).context(|| "cannot write a manual page".into())?;
    Ok(out)
}
