//! `conquest redundancy`: shows and sets how many replicas of each file to keep on disk.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use conquest_fs::{Priority, Redundancy};
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::paths_in_pools::{self, Failures, Inside};
use crate::{progress, say};

/// Show or set how many replicas of each file to keep on disk.
#[derive(clap::Args)]
#[command(after_help = "Values:\n  \
    none         one replica, wherever there is room: the usual\n  \
    whole        one replica, all of a file in one region: the loss of another does not touch it\n  \
    mirror[:N]   N replicas, 2 to 4, each in a region of its own [N: 2]\n  \
    lazy[:DELAY] two replicas, the second once the file was left alone for DELAY, as in 20s, 2m, 1h [DELAY: 2m]\n\n\
    What is made in a directory takes over what the directory has at that moment.\n\n\
    Examples:\n  conquest redundancy set mirror /mnt/fast/photos --recursive\n  \
    conquest redundancy set lazy:5m /mnt/fast/projects --priority high\n  \
    conquest redundancy get /mnt/fast/photos/1.raw\n  \
    conquest redundancy unset /mnt/fast/photos")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show the setting, whether the directory above has the same, and the present number of replicas
    Get(Get),
    /// Set the number of replicas
    #[command(after_help = "What exists is brought to it in the background.")]
    Set(Set),
    /// Remove the setting, and the priority
    Unset(Unset),
}

#[derive(clap::Args)]
struct Get {
    /// Files and directories in a mounted pool
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Set {
    /// `none`, `whole`, `mirror`, `mirror:N`, `lazy` or `lazy:DELAY`
    #[arg(value_parser = parse)]
    redundancy: Redundancy,
    /// Files and directories in a mounted pool
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also set everything in the directories
    #[arg(long, short = 'r')]
    recursive: bool,
    /// The priority in repairs of many files: `low`, `normal` or `high`
    #[arg(long, value_parser = parse_priority)]
    priority: Option<Priority>,
}

#[derive(clap::Args)]
struct Unset {
    /// Files and directories in a mounted pool
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also change everything in the directories
    #[arg(long, short = 'r')]
    recursive: bool,
}

fn parse(text: &str) -> Result<Redundancy, String> {
    Redundancy::from_text(text.as_bytes()).ok_or_else(|| match text.split_once(':') {
        Some(("mirror", _)) => "there can be 2 to 4 replicas: `mirror:2`, `mirror:3`, `mirror:4`".into(),
        Some(("lazy", _)) => {
            "a delay is 1 to 60 seconds (`lazy:20s`), whole minutes up to an hour (`lazy:5m`) or whole hours up to a day \
             (`lazy:2h`)"
                .into()
        }
        _ => "it is `none`, `whole`, `mirror`, `mirror:N`, `lazy` or `lazy:DELAY`".into(),
    })
}

fn parse_priority(text: &str) -> Result<Priority, String> {
    Priority::from_name(text.as_bytes()).ok_or_else(|| "it is `low`, `normal` or `high`".into())
}

pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Get(args) => get(args),
        What::Set(args) => {
            let value = args.redundancy.to_string();
            let mut settings = vec![(REDUNDANCY, Some(value.as_str()))];
            settings.extend(args.priority.map(|priority| (PRIORITY, Some(priority.name()))));
            let first = change(&args.paths, args.recursive, &settings)?;
            first.map_or(Ok(()), |path| warn(&path, args.redundancy))
        }
        What::Unset(args) => change(&args.paths, args.recursive, &[(REDUNDANCY, None), (PRIORITY, None)]).map(|_| ()),
    }
}

const REDUNDANCY: &str = "redundancy";
const PRIORITY: &str = "priority";

/// The answer of `get` for a path.
#[derive(Serialize)]
struct OfPath {
    /// As text: a path may be any bytes.
    path: String,
    /// The value, if it is set.
    redundancy: Option<String>,
    priority: Option<String>,
    /// The highest directory from which on everything down to the path has the same value.
    inherited_from: Option<String>,
    /// The redundancy in effect, by where the content lies; for a directory, that of new files in it.
    effective: String,
    effective_priority: String,
    is_directory: bool,
    /// Bytes on disks, counted once, and bytes that wait in memory; the fewest replicas of any content on disk; the
    /// number of regions with some.
    placed: u64,
    waiting: u64,
    replicas: u32,
    regions: u32,
}

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    paths: Vec<OfPath>,
}

fn get(args: &Get) -> Result<()> {
    let (mut failures, mut answers) = (Failures::default(), Vec::new());
    for path in &args.paths {
        match look(path) {
            Ok(one) => answers.push(one),
            Err(e) => failures.tell(e),
        }
    }
    if args.json {
        let answer = Answer { version: env!("CARGO_PKG_VERSION"), paths: answers };
        say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
    } else {
        answers.iter().try_for_each(|one| say(&text(one)))?;
    }
    failures.end("looked at")
}

fn look(path: &Path) -> Result<OfPath> {
    let Inside { path, mounted } = Inside::find(path)?;
    let read = |name: &str| paths_in_pools::attribute(&path, name);
    let redundancy = read(REDUNDANCY)?;
    let usage = usage(&path)?.unwrap_or_default();
    Ok(OfPath {
        inherited_from: redundancy.as_ref().and_then(|value| inherited(&path, &mounted.dir, value)),
        redundancy,
        priority: read(PRIORITY)?,
        effective: read("effective.redundancy")?.unwrap_or_else(|| "memory".into()),
        effective_priority: read("effective.priority")?.unwrap_or_default(),
        is_directory: path.is_dir(),
        placed: usage.placed,
        waiting: usage.waiting,
        replicas: usage.replicas_least,
        regions: usage.regions,
        path: path.display().to_string(),
    })
}

/// The usage of an inode; none for inodes without attributes.
pub fn usage(path: &Path) -> Result<Option<conquest_fs::node::Usage>> {
    let Some(text) = paths_in_pools::attribute(path, "usage")? else { return Ok(None) };
    text.parse().map(Some).context(|| format!("cannot read the usage of {}", path.display()))
}

/// The highest directory from which on, down to the path, everything has the same value: it was probably set there.
fn inherited(path: &Path, mount: &Path, value: &str) -> Option<String> {
    let above = path.ancestors().skip(1).take_while(|dir| dir.starts_with(mount));
    let same = above
        .take_while(|dir| paths_in_pools::attribute(dir, REDUNDANCY).is_ok_and(|set| set.as_deref() == Some(value)));
    same.last().map(|dir| dir.display().to_string())
}

fn text(of: &OfPath) -> String {
    let mut out = format!("{}: ", of.path);
    match (&of.redundancy, &of.inherited_from) {
        (None, _) => out.push_str("not set"),
        (Some(value), None) => out.push_str(value),
        (Some(value), Some(dir)) => _ = write!(out, "{value}, as {dir}"),
    }
    if let Some(priority) = &of.priority {
        let _ = write!(out, ", priority {priority}");
    }
    let _ = match of.is_directory {
        true => write!(out, "; files made in it get: {}", of.effective),
        false => write!(out, "; in effect: {}", of.effective),
    };
    out
}

/// Sets these values, or removes those that are `None`. Returns one of the paths that could be changed, if any.
fn change(paths: &[PathBuf], recursive: bool, settings: &[(&str, Option<&str>)]) -> Result<Option<PathBuf>> {
    let (mut failures, mut first) = (Failures::default(), None);
    for path in paths {
        let find = || {
            let inside = Inside::find(path)?;
            paths_in_pools::refuse_without_content(path, &inside.path)?;
            set(&inside.path, settings).map(|()| inside.path)
        };
        match find() {
            Ok(path) => {
                if recursive && path.is_dir() {
                    change_below(&path, settings, &mut failures)?;
                }
                first = first.or(Some(path));
            }
            Err(e) => failures.tell(e),
        }
    }
    failures.end("changed")?;
    Ok(first)
}

fn change_below(top: &Path, settings: &[(&str, Option<&str>)], failures: &mut Failures) -> Result<()> {
    let (mut show, mut done) = (progress::count("files"), 0);
    let mut failed = Vec::new();
    let mut see = |entry: &paths_in_pools::Entry, left: u64| {
        done += 1;
        show(done, done + left);
        if entry.metadata.is_dir() || entry.metadata.is_file() {
            failed.extend(set(&entry.path, settings).err().filter(|_| entry.path.symlink_metadata().is_ok()));
        }
        Ok(())
    };
    let mut unread = Vec::new();
    paths_in_pools::below(top, &mut see, &mut |e| unread.push(e))?;
    drop(show);
    failed.into_iter().chain(unread).for_each(|e| failures.tell(e));
    Ok(())
}

fn set(path: &Path, settings: &[(&str, Option<&str>)]) -> Result<()> {
    settings.iter().try_for_each(|(name, value)| paths_in_pools::set_attribute(path, name, *value))
}

/// Warns if the pool has too few regions for `wanted`.
fn warn(path: &Path, wanted: Redundancy) -> Result<()> {
    let Some(regions) = paths_in_pools::attribute(path, "regions")?.and_then(|text| text.parse::<u32>().ok()) else {
        return Ok(());
    };
    if wanted.replicas() > regions.max(1) || (regions == 0 && wanted != Redundancy::None) {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), warning(wanted, regions).as_bytes());
    }
    Ok(())
}

fn warning(wanted: Redundancy, regions: u32) -> String {
    let remedy = "`conquest region add POOL PATH` gives it one more";
    match regions {
        0 => format!("warning: the pool has no disk, so all content is in its memory alone; {remedy}\n"),
        1 => format!(
            "warning: {wanted} takes {} regions and the pool has 1: there will be 1 replica; {remedy}\n",
            wanted.replicas()
        ),
        n => format!(
            "warning: {wanted} takes {} regions and the pool has {n}: there will be {n} replicas; {remedy}\n",
            wanted.replicas()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_answered_with_the_right_ones() {
        for (text, word) in [
            ("mirror:9", "mirror:4"),
            ("mirror:", "2 to 4"),
            ("lazy:90s", "whole minutes"),
            ("raid", "`whole`"),
            ("", "`none`"),
        ] {
            assert!(parse(text).unwrap_err().contains(word), "{text}");
        }
        assert_eq!(parse("mirror"), Ok(Redundancy::Mirror(2)));
        assert!(parse_priority("urgent").unwrap_err().contains("`high`"));
    }

    #[test]
    fn too_few_regions_are_reported() {
        assert!(warning(Redundancy::Mirror(3), 0).contains("no disk"));
        assert!(
            warning(Redundancy::Mirror(3), 1).contains("takes 3 regions and the pool has 1: there will be 1 replica")
        );
        assert!(warning(Redundancy::Mirror(3), 2).contains("there will be 2 replicas"));
    }
}
