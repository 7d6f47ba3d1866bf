//! `conquest scrub`: verifies all content on disks against its checksums.

use std::path::PathBuf;
use std::process::ExitCode;

use conquest::Pool;
use conquest::Scrub;
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::{damage, locate, progress, say, size};

/// Verify every replica of all content on disks, and mend wrong replicas from right ones.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  conquest scrub /srv/pool\n  conquest scrub /srv/pool --json | jq '.damage[].path'\n  \
    conquest scrub /srv/pool --background      (`conquest status` shows it)\n  \
    conquest scrub /srv/pool --forget          (clear the list of findings)\n\n\
    Exit status: 0 all is well, 1 something was wrong (put right or lost, as is said), 2 it could not be done."
)]
pub struct Args {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Return at once: the work goes on while the pool is mounted
    #[arg(long)]
    background: bool,
    /// Clear the list of findings: `status` shows them no more
    #[arg(long, conflicts_with = "background")]
    forget: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Answer<'s> {
    version: &'static str,
    pool: String,
    #[serde(flatten)]
    scrub: &'s Scrub,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    scrub(args).map_err(|failure| failure.with_status(2))
}

fn scrub(args: &Args) -> Result<ExitCode> {
    let pool = locate::pool(&args.pool)?;
    let cannot = || format!("cannot scrub {}", pool.display());
    let open = Pool::open(&pool, &conquest::OpenOptions::default()).context(cannot)?;
    if args.forget {
        open.forget_damage().context(cannot)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.background {
        open.begin_scrub().context(cannot)?;
        say(&format!(
            "{} is scrubbed while it is mounted; `conquest status` shows what is left and what is found",
            pool.display()
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut show = progress::count("segments scrubbed");
    let done = open.scrub(&mut |n, of| {
        show(n, of);
        true
    });
    drop(show);
    let done = done.context(cannot)?;
    match args.json {
        true => {
            let answer = Answer { version: env!("CARGO_PKG_VERSION"), pool: pool.display().to_string(), scrub: &done };
            say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
        }
        false => tell(&done)?,
    }
    Ok(if done.damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn tell(done: &Scrub) -> Result<()> {
    damage::describe(&done.damage).iter().try_for_each(|line| say(line))?;
    let (repaired, lost): (Vec<_>, Vec<_>) = done.damage.iter().partition(|damage| damage.repaired);
    let wrong = match (repaired.len(), lost.len()) {
        (0, 0) => "all of it is right".into(),
        (repaired, 0) => format!("{repaired} ranges were wrong and have been put right"),
        (repaired, lost) => format!("{repaired} ranges were wrong and have been put right, {lost} are LOST"),
    };
    say(&format!("{} in {} segments were verified: {wrong}", size::show(done.bytes), done.segments))
}
