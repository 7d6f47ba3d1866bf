//! `conquest fsck`: checks a pool, also while it is in use.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conquest::{CheckedBacking, Pool};
use conquest_fs::fsck::{Look, Lost, Report};
use serde::Serialize;

use crate::damage::describe_found;
use crate::failure::{Context, Result};
use crate::{inspect, locate, lost_content, progress, say, size, stall};

/// Check a pool, mounted or not; with --repair, mend the problems found.
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 the pool is clean, 1 there were problems, content is lost, or the backing is damaged (the output says what is repaired or made zeros), \
    2 it could not be checked.\n\n\
    Examples:\n  conquest fsck /srv/pool\n  conquest fsck /srv/pool --repair\n  \
    conquest fsck /srv/pool --zero-lost    (what is lost with a disk reads as zeros)\n  conquest fsck /srv/pool --json | jq .problems"
)]
pub struct Args {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// Mend problems, and free space that a crash left unused; without this the pool is not changed
    #[arg(long)]
    repair: bool,
    /// Read content that is lost for good as ZEROS from now on, where reading it fails now; content on a disk that is
    /// only missing stays as it is
    #[arg(long)]
    zero_lost: bool,
    /// Do not read the content of large files, nor the backing: check content by the summaries of segments alone
    #[arg(long, conflicts_with = "zero_lost")]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    version: &'static str,
    /// As text: a path may be any bytes.
    pool: String,
    clean: bool,
    /// Ranges that read as zeros from now on.
    zeroed: &'a [Lost],
    /// The backing, if it was checked.
    backing: Option<&'a CheckedBacking>,
    #[serde(flatten)]
    report: &'a Report,
}

/// The result of a check.
struct Found {
    zeroed: Vec<Lost>,
    report: Report,
    backing: Option<CheckedBacking>,
}

impl Found {
    fn is_clean(&self) -> bool {
        let backing =
            self.backing.as_ref().is_none_or(|backing| backing.damage.is_empty() && backing.failure.is_none());
        self.report.problems.is_empty() && self.report.lost.is_empty() && self.zeroed.is_empty() && backing
    }
}

pub fn run(args: &Args) -> Result<ExitCode> {
    check(args).map_err(|failure| failure.with_status(2))
}

fn check(args: &Args) -> Result<ExitCode> {
    let pool = locate::pool_or_memory(&args.pool)?;
    let found = examine(&pool, args)?;
    let (clean, Found { zeroed, report, backing }) = (found.is_clean(), &found);
    if args.json {
        let (pool, version) = (pool.display().to_string(), env!("CARGO_PKG_VERSION"));
        let answer = Answer { version, pool, clean, zeroed, backing: backing.as_ref(), report };
        say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
    } else {
        zeroed.iter().try_for_each(|range| say(&lost_content::describe_zeroed(range)))?;
        say(checked(args.quick, backing.as_ref().is_some_and(|backing| backing.failure.is_none())))?;
        say(text(report, backing.as_ref(), &pool, args.repair).trim_end())?;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn checked(quick: bool, backing: bool) -> &'static str {
    match (quick, backing) {
        (true, _) => "checked: the memory, and what it says of the disks; content on disks was not read",
        (false, false) => "checked: the memory, what it says of the disks, and the content there",
        (false, true) => "checked: the memory, its backing, what it says of the disks, and the content there",
    }
}

/// Zeroes lost content if asked to, and checks the pool.
fn examine(pool: &Path, args: &Args) -> Result<Found> {
    let (path, repair, zero_lost) = (pool.to_path_buf(), args.repair, args.zero_lost);
    let look = if args.quick { Look::Segments } else { Look::Content };
    stall::watched(pool, move |steps| {
        let shown = path.display();
        let cannot = || format!("cannot check {shown}");
        let unfinished = || format!("could not finish the check of {shown}");
        let backing_of = |pool: &Pool| if look == Look::Content { pool.check_backing() } else { None };
        let mut bar = steps.count(progress::count("checking inodes"));
        if !repair && !zero_lost {
            let pool = Pool::look_whole(&path).context(cannot)?;
            pool.missing_disks().for_each(|why| eprintln!("conquest: {}", crate::in_line(&why)));
            let report = pool.fsck_with(false, look, &mut bar).context(unfinished)?;
            return Ok(Found { zeroed: Vec::new(), report, backing: backing_of(&pool) });
        }
        let open = inspect::open_whole(&path).context(cannot)?;
        let zeroed = if zero_lost { open.zero_lost().context(unfinished)? } else { Vec::new() };
        let report = open.fsck_with(repair, look, &mut bar).context(unfinished)?;
        Ok(Found { zeroed, report, backing: backing_of(&open) })
    })
}

fn text(r: &Report, backing: Option<&CheckedBacking>, pool: &Path, repair: bool) -> String {
    let mut out = String::new();
    let of_backing = backing.map_or_else(Vec::new, |backing| about_backing(backing, pool));
    for problem in &r.problems {
        let _ = writeln!(out, "problem: {}", crate::in_line(problem));
    }
    for lost in &r.lost {
        let _ = writeln!(out, "{}", lost_content::describe(lost));
    }
    for repaired in &r.repaired {
        let _ = writeln!(out, "repaired: {repaired}");
    }
    let _ = writeln!(
        out,
        "{}: {} inodes, {} directories, {} names, {} in use",
        pool.display(),
        r.inodes,
        r.directories,
        r.entries,
        size::show(r.bytes)
    );
    if r.leaked_objects + r.leaked_slots + r.orphans + r.truncations > 0 {
        let advice = if repair { "" } else { " (harmless; --repair gives the space back)" };
        let _ = writeln!(
            out,
            "left by a crash: {} unused objects of {}, {} unlinked inodes, {} truncated files, {} unused segments of disks{advice}",
            r.leaked_objects,
            size::show(r.leaked_bytes),
            r.orphans,
            r.truncations,
            r.leaked_slots
        );
    }
    // No repair brings lost content back.
    let to_mend = r.problems.len().saturating_sub(r.losses);
    let _ = match (to_mend, repair) {
        (0, _) if !r.lost.is_empty() => writeln!(out, "{}", advice(&r.lost, pool)),
        (0, _) if r.problems.is_empty() && of_backing.is_empty() => writeln!(out, "clean"),
        (0, _) if r.problems.is_empty() => Ok(()),
        (0, _) => writeln!(out, "content was lost, and no file needs it any more; run it again"),
        (n, false) => writeln!(out, "{n} problems, none repaired; run `conquest fsck {} --repair`", pool.display()),
        (n, true) => writeln!(out, "{n} problems, {} repairs; run it again to see what is left", r.repaired.len()),
    };
    if to_mend > 0 && !r.lost.is_empty() {
        let _ = writeln!(out, "{}", advice(&r.lost, pool));
    }
    of_backing.iter().for_each(|line| _ = writeln!(out, "{line}"));
    out
}

/// Problems of the backing, and the commands that mend them.
fn about_backing(backing: &CheckedBacking, pool: &Path) -> Vec<String> {
    let mut lines = describe_found(&backing.damage);
    if !lines.is_empty() {
        lines.push(format!("the backing is damaged: `conquest scrub {}` puts it right", pool.display()));
    }
    lines.extend(backing.failure.as_ref().map(|why| format!("the backing cannot be used: {}", crate::in_line(why))));
    lines
}

/// Advice about lost content, for which repair has no source.
fn advice(lost: &[Lost], pool: &Path) -> String {
    let mut lines = Vec::new();
    if lost.iter().any(|lost| lost.for_good) {
        lines.push(format!(
            "content is lost for good: restore these files from a backup, or remove them; `conquest fsck {} --zero-lost` has what is lost \
             of them read as zeros instead of failing",
            pool.display()
        ));
    }
    if lost.iter().any(|lost| !lost.for_good) {
        lines.push(format!(
            "content cannot be read as things are: attach the disk that has it (`conquest region list {0}`), or give up what only that has \
             (`conquest region remove {0} REGION --force`)",
            pool.display()
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_verdict() {
        let pool = std::path::Path::new("/p");
        let clean = Report { leaked_objects: 2, ..Report::default() };
        assert!(text(&clean, None, pool, false).ends_with("clean\n"));
        assert!(text(&clean, None, pool, false).contains("--repair gives the space back"));
        let slots = text(&Report { leaked_slots: 3, ..Report::default() }, None, pool, false);
        assert!(slots.contains("3 unused segments of disks (harmless") && slots.ends_with("clean\n"), "{slots}");
        let lost = conquest_fs::fsck::Lost {
            ino: 9,
            path: Some("/films/one".into()),
            first: 4096,
            last: 12_287,
            why: "its segment was used again".into(),
            for_good: true,
        };
        let problems = vec!["2 pages of files lie in segment 5, which is gone: they are lost".into()];
        let shown = text(&Report { lost: vec![lost], problems, losses: 1, ..Report::default() }, None, pool, false);
        assert!(shown.contains("lost: /films/one: bytes 4096..12287: its segment was used again\n"), "{shown}");
        assert!(!shown.contains("clean") && !shown.contains("--repair"), "{shown}");
        assert!(shown.contains("from a backup") && shown.contains("`conquest fsck /p --zero-lost`"), "{shown}");
        let damaged = Report { problems: vec!["inode 7: bad".into()], ..Report::default() };
        assert!(text(&damaged, None, pool, false).contains("1 problems, none repaired"));
        assert!(text(&damaged, None, pool, true).contains("1 problems, 0 repairs"));
    }
}
