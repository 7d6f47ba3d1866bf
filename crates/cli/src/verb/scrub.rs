//! `conquest scrub`: all content on disks against its checksums.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use conquest::Pool;
use conquest::{Damage, Scrub};
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::{locate, progress, say, size};

/// Verify all content on disks, each copy of it, and put right what another copy has right.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  conquest scrub /srv/pool\n  conquest scrub /srv/pool --json | jq '.damage[].path'\n  \
    conquest scrub /srv/pool --background      (`conquest status` shows it)\n  \
    conquest scrub /srv/pool --forget          (what was found was seen)\n\n\
    Exit status: 0 all is well, 1 something was wrong (put right or lost, as is said), 2 it could not be done."
)]
pub struct Args {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Return at once: it goes on while the pool is mounted
    #[arg(long)]
    background: bool,
    /// What was found was seen: `status` shows it no more
    #[arg(long, conflicts_with = "background")]
    forget: bool,
}

/// What `--json` prints.
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
    describe(&done.damage).iter().try_for_each(|line| say(line))?;
    let (repaired, lost): (Vec<_>, Vec<_>) = done.damage.iter().partition(|damage| damage.repaired);
    let wrong = match (repaired.len(), lost.len()) {
        (0, 0) => "all of it is right".into(),
        (repaired, 0) => format!("{repaired} ranges were wrong and have been put right"),
        (repaired, lost) => format!("{repaired} ranges were wrong and have been put right, {lost} are LOST"),
    };
    say(&format!("{} in {} segments were verified: {wrong}", size::show(done.bytes), done.segments))
}

/// Ranges of a file that are told; more are counted.
const RANGES: usize = 4;

/// A line for each file, region, and thing that was wrong there.
pub fn describe(all: &[Damage]) -> Vec<String> {
    let mut files: BTreeMap<_, Vec<&Damage>> = BTreeMap::new();
    for one in all {
        let key = (one.ino, &one.path, one.region, &one.why, one.outcome());
        files.entry(key).or_default().push(one);
    }
    files.into_values().map(|of_one| line(of_one[0], &ranges(&of_one))).collect()
}

/// Their first and last bytes in order, those side by side as one.
fn ranges(of_one: &[&Damage]) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = of_one.iter().map(|damage| (damage.first, damage.last)).collect();
    all.sort_unstable();
    all.dedup_by(|next, last| {
        let joins = next.0 <= last.1.saturating_add(1);
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
    all
}

fn line(damage: &Damage, ranges: &[(u64, u64)]) -> String {
    let name = damage.path.clone().unwrap_or_else(|| format!("inode {} (without a name)", damage.ino));
    let mut told: Vec<String> = ranges.iter().take(RANGES).map(|(first, last)| format!("{first} to {last}")).collect();
    if ranges.len() > RANGES {
        let bytes: u64 = ranges.iter().map(|(first, last)| last + 1 - first).sum();
        told.push(format!("{} ranges more ({} in all)", ranges.len() - RANGES, size::show(bytes)));
    }
    let place = if damage.beside { "in its file".into() } else { format!("region {}", damage.region) };
    format!("{name}: bytes {}, {place}: {}; {}", told.join(", "), damage.why, damage.outcome())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_line_for_what_is_wrong_with_it_however_much_that_is() {
        let why = "its checksum is wrong".to_string();
        let one = Damage {
            ino: 5,
            path: Some("/f".into()),
            first: 0,
            last: 4095,
            region: 1,
            why,
            repaired: false,
            from_memory: false,
            beside: false,
        };
        let page = |n: u64| Damage { first: n * 4096, last: n * 4096 + 4095, ..one.clone() };
        let side_by_side: Vec<Damage> = (0..100).map(page).collect();
        assert_eq!(describe(&side_by_side), ["/f: bytes 0 to 409599, region 1: its checksum is wrong; LOST"]);
        let apart: Vec<Damage> = (0..100).rev().map(|n| page(2 * n)).collect();
        let told = describe(&apart);
        assert!(told.len() == 1 && told[0].starts_with("/f: bytes 0 to 4095, 8192 to 12287,"), "{told:?}");
        assert!(told[0].contains("96 ranges more (400 KiB in all)"), "{told:?}");
        let other = Damage { repaired: true, ..page(7) };
        assert_eq!(describe(&[one.clone(), other]).len(), 2);
    }
}
