//! `conquest profile`: the savings of packed inodes and compressed files in a directory tree.

use std::path::{Path, PathBuf};

use study::scan::{self, Options, Tree};
use study::{Step, Study};

use crate::failure::{Context, Failure, Result};
use crate::{progress, say};

/// Measure how much a directory tree would save with packed inodes and compressed files, on any file system.
#[derive(clap::Args)]
#[command(
    after_help = "Prints the tables and figures of the study of mramfs for this tree: its inodes by codec (all or nothing, \
    Huffman, gamma, and for each field the best), with its own profile and with the built-in one; a sample of its files up to \
    128 KiB by codec; and what a pool with this tree would take. Nothing is changed.\n\n\
    Examples:\n  conquest profile /usr\n  conquest profile -x / --plot plots --json > root.json\n  \
    conquest profile /home -o home.profile"
)]
pub struct Args {
    /// The directory tree
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Stay on the file system of DIR
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// MiB of small files to compress as a sample, spread over the tree; 0: none
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(..=65_536))]
    sample: u64,
    /// Write the profile that is best for this tree
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the figures as SVG to this directory
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Add this many made-up inodes of many owners, with full nanosecond times
    #[arg(long, value_name = "COUNT", hide = true)]
    home_like: Option<usize>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut show = progress::words();
    let mut tree = look(args, &mut |step| show(words(&step)))?;
    if tree.inodes.len() == 1 && args.home_like.is_none() {
        return Err(Failure::new(format!("{} has nothing in it", args.dir.display())));
    }
    tree.inodes.extend(args.home_like.map(|count| study::home::inodes(count, 1)).unwrap_or_default());
    let name = args.dir.display().to_string();
    let done = study::study(&name, &tree, args.sample << 20, &mut |step| show(words(&step)));
    drop(show);
    if let Some(path) = &args.output {
        write(path, &done.profile())?;
    }
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir).context(|| cannot_write(dir))?;
        report::plot::write(dir, &done.outcome()).context(|| cannot_write(dir))?;
    }
    tell(args, &done)
}

fn tell(args: &Args, done: &Study) -> Result<()> {
    match args.json {
        true => say(&serde_json::to_string_pretty(done).context(|| "cannot write JSON".into())?),
        false => say(done.show().trim_end()),
    }
}

fn look(args: &Args, tell: &mut dyn FnMut(Step)) -> Result<Tree> {
    let options = Options { one_file_system: args.one_file_system };
    let found = scan::scan(&args.dir, options, &mut |inodes| tell(Step::Scanned(inodes)));
    found.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotADirectory => {
            Failure::new(format!("{} is no directory: name the one whose files are to be studied", args.dir.display()))
        }
        _ => Failure::new(format!("cannot look at {}: {e}", args.dir.display())),
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// The progress in words.
fn words(step: &Step) -> String {
    match step {
        Step::Scanned(inodes) => format!("{inodes} inodes found"),
        Step::Read(done, all) => format!("{} of {} MiB of small files read", done >> 20, all >> 20),
        Step::Measure(what) => format!("measuring: {what}"),
    }
}
