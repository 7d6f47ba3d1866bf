//! `conquest du`: memory and disk space that files, directories and owners occupy.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::ops::AddAssign;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use conquest_fs::node::Usage;
use serde::Serialize;

use super::redundancy;
use crate::failure::{Context, Failure, Result};
use crate::paths_in_pools::{self, Entry, Failures, Inside};
use crate::{say, size};

/// Show how much memory and disk space files, directories and owners occupy.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Columns:\n  \
    apparent  the lengths of files\n  \
    memory    what is in memory and stays: names, attributes, small files, and what waits for its place on disk\n  \
    disk      what is on disks, with every replica\n  \
    cached    what is on disks and in memory too, which goes when the memory is wanted\n\n\
    A file with several names is counted once, where it is found first. Exit status: 1 if something could not be looked at.\n\n\
    Examples:\n  conquest du -sh /mnt/fast\n  conquest du -h /mnt/fast/photos\n  conquest du --by-owner /mnt/fast\n  \
    conquest du --json -s /mnt/fast/* | jq '.paths[].disk'"
)]
pub struct Args {
    /// Files and directories in a mounted pool
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Show only the named paths, not the directories in them
    #[arg(short, long)]
    summarize: bool,
    /// Show files too
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// Print sizes like `1.5 GiB`; otherwise bytes
    #[arg(short, long)]
    human_readable: bool,
    /// Show a sum for each owner, instead of each directory
    #[arg(long, conflicts_with_all = ["summarize", "all"])]
    by_owner: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// The sum of some files, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Sum {
    inodes: u64,
    apparent: u64,
    /// Memory that is not released when others want it: the sum of the next three.
    memory: u64,
    metadata: u64,
    content: u64,
    waiting: u64,
    /// Compressed content in memory, and its length before.
    compressed: u64,
    plain: u64,
    /// On disk: with every replica, and counted once; reserved there without content.
    disk: u64,
    placed: u64,
    promised: u64,
    /// In memory and also on disk.
    cached: u64,
}

impl Sum {
    fn of(apparent: u64, usage: &Usage) -> Sum {
        Sum {
            inodes: 1,
            apparent,
            memory: usage.memory(),
            metadata: usage.metadata,
            content: usage.content,
            waiting: usage.waiting,
            compressed: usage.compressed,
            plain: usage.plain,
            disk: usage.disk,
            placed: usage.placed,
            promised: usage.promised,
            cached: usage.cached,
        }
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, more: Sum) {
        self.inodes += more.inodes;
        self.apparent += more.apparent;
        self.memory += more.memory;
        self.metadata += more.metadata;
        self.content += more.content;
        self.waiting += more.waiting;
        self.compressed += more.compressed;
        self.plain += more.plain;
        self.disk += more.disk;
        self.placed += more.placed;
        self.promised += more.promised;
        self.cached += more.cached;
    }
}

/// A line of the output.
#[derive(Serialize)]
struct Line {
    /// As text: a path may be any bytes.
    path: String,
    #[serde(flatten)]
    sum: Sum,
}

#[derive(Serialize)]
struct Owner {
    uid: u32,
    /// The name in the system's list of users.
    name: Option<String>,
    #[serde(flatten)]
    sum: Sum,
}

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    paths: Vec<Line>,
    owners: Vec<Owner>,
    total: Sum,
}

pub fn run(args: &Args) -> Result<()> {
    let mut walk = Walk::new(args);
    for path in &args.paths {
        walk.argument(path);
    }
    let owners = owners(&walk.owners);
    if args.json {
        let answer = Answer { version: env!("CARGO_PKG_VERSION"), paths: walk.lines, owners, total: walk.total };
        say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
    } else {
        let lines: Vec<(String, Sum)> = match args.by_owner {
            true => owners.into_iter().map(|one| (one.name.unwrap_or(one.uid.to_string()), one.sum)).collect(),
            false => walk.lines.into_iter().map(|line| (line.path, line.sum)).collect(),
        };
        if !lines.is_empty() {
            say(table(&lines, args.human_readable, if args.by_owner { "owner" } else { "path" }).trim_end())?;
        }
    }
    walk.failures.end("looked at")
}

struct Walk<'a> {
    args: &'a Args,
    /// Inodes with several names that are counted already.
    seen: HashSet<(u64, u64)>,
    lines: Vec<Line>,
    owners: BTreeMap<u32, Sum>,
    total: Sum,
    failures: Failures,
}

/// A directory that the walk is in.
struct Open {
    path: PathBuf,
    sum: Sum,
    left: Vec<Entry>,
}

impl<'a> Walk<'a> {
    fn new(args: &'a Args) -> Walk<'a> {
        Walk {
            args,
            seen: HashSet::new(),
            lines: Vec::new(),
            owners: BTreeMap::new(),
            total: Sum::default(),
            failures: Failures::default(),
        }
    }

    fn argument(&mut self, path: &Path) {
        let found = Inside::find(path).and_then(|inside| {
            let metadata =
                inside.path.symlink_metadata().context(|| format!("cannot look at {}", inside.path.display()))?;
            Ok(Entry { path: inside.path, metadata })
        });
        match found {
            Ok(entry) => self.tree(entry, path),
            Err(e) => self.failures.tell(e),
        }
    }

    /// Counts a file, or everything in a directory. The output shows it as `named`.
    fn tree(&mut self, top: Entry, named: &Path) {
        let device = top.metadata.dev();
        let sum = self.one(&top);
        if !top.metadata.is_dir() {
            return self.lines.extend(sum.map(|sum| Line { path: named.display().to_string(), sum }));
        }
        let left = self.children(&top.path, device);
        let mut open = vec![Open { path: top.path.clone(), sum: sum.unwrap_or_default(), left }];
        while let Some(dir) = open.last_mut() {
            let Some(entry) = dir.left.pop() else {
                let done = open.pop().expect("there is a last one");
                self.close(&done, &top.path, named, open.last_mut());
                continue;
            };
            let sum = self.one(&entry);
            if entry.metadata.is_dir() {
                let left = self.children(&entry.path, device);
                open.push(Open { path: entry.path, sum: sum.unwrap_or_default(), left });
            } else if let Some(sum) = sum {
                open.last_mut().expect("there is a last one").sum += sum;
                if self.args.all {
                    let path = shown(&entry.path, &top.path, named);
                    self.lines.push(Line { path, sum });
                }
            }
        }
    }

    fn close(&mut self, done: &Open, top: &Path, named: &Path, above: Option<&mut Open>) {
        if above.is_none() || !self.args.summarize {
            self.lines.push(Line { path: shown(&done.path, top, named), sum: done.sum });
        }
        if let Some(above) = above {
            above.sum += done.sum;
        }
    }

    fn children(&mut self, dir: &Path, device: u64) -> Vec<Entry> {
        let failures = &mut self.failures;
        paths_in_pools::children(dir, device, &mut |e| failures.tell(e))
    }

    /// The sum of one inode; none if it was counted before, or is gone.
    fn one(&mut self, Entry { path, metadata }: &Entry) -> Option<Sum> {
        let is_shared = metadata.nlink() > 1 && !metadata.is_dir();
        if is_shared && !self.seen.insert((metadata.dev(), metadata.ino())) {
            return None;
        }
        match usage(path, metadata) {
            Ok(usage) => {
                // A directory's length is the memory it takes, so it is not added.
                let apparent = if metadata.is_dir() { 0 } else { metadata.len() };
                let sum = Sum::of(apparent, &usage);
                *self.owners.entry(metadata.uid()).or_default() += sum;
                self.total += sum;
                Some(sum)
            }
            Err(e) => {
                if path.symlink_metadata().is_ok() {
                    self.failures.tell(e);
                }
                None
            }
        }
    }
}

/// For links and devices, which have no attributes in `user.`, as much as is known without them.
fn usage(path: &Path, metadata: &std::fs::Metadata) -> Result<Usage> {
    if metadata.is_dir() || metadata.is_file() {
        let none =
            || Failure::new(format!("{} is served by a program that does not tell what it occupies", path.display()));
        return redundancy::usage(path)?.ok_or_else(none);
    }
    let inode = conquest_fs::layout::INODE + 1;
    // A link's object has about the target's length; a device has none.
    let content = if metadata.is_symlink() { metadata.len().next_multiple_of(16) } else { 0 };
    Ok(Usage { metadata: inode, content, ..Usage::default() })
}

/// A path below `top`, written as the user wrote `top`.
fn shown(path: &Path, top: &Path, named: &Path) -> String {
    match path.strip_prefix(top) {
        Ok(rest) if rest.as_os_str().is_empty() => named.display().to_string(),
        Ok(rest) => named.join(rest).display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

fn owners(sums: &BTreeMap<u32, Sum>) -> Vec<Owner> {
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    sums.iter().map(|(uid, sum)| Owner { uid: *uid, name: name_of(&known, *uid), sum: *sum }).collect()
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

fn table(lines: &[(String, Sum)], human: bool, named: &str) -> String {
    let text = |bytes: u64| if human { size::show(bytes) } else { bytes.to_string() };
    let row = |sum: &Sum| [sum.apparent, sum.memory, sum.disk, sum.cached].map(text);
    let heads = ["apparent", "memory", "disk", "cached"].map(String::from);
    let rows: Vec<(&str, [String; 4])> =
        std::iter::once((named, heads)).chain(lines.iter().map(|(name, sum)| (name.as_str(), row(sum)))).collect();
    let width = |n: usize| rows.iter().map(|(_, cells)| cells[n].len()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut out = String::new();
    for (name, cells) in &rows {
        for (cell, width) in cells.iter().zip(widths) {
            let _ = write!(out, "{cell:>width$}  ");
        }
        let _ = writeln!(out, "{name}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_have_names() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_of(passwd, 0).as_deref(), Some("root"));
        assert_eq!(name_of(passwd, 7), None);
    }

    #[test]
    fn columns_are_aligned() {
        let sum = Sum { apparent: 3 << 20, memory: 81, ..Sum::default() };
        let out = table(&[("/a".into(), sum), ("/b c".into(), Sum::default())], true, "path");
        assert_eq!(
            out,
            "apparent  memory  disk  cached  path\n   3 MiB    81 B   0 B     0 B  /a\n     0 B     0 B   0 B     0 B  /b c\n"
        );
        assert!(table(&[("/a".into(), sum)], false, "path").contains(" 3145728 "));
    }

    #[test]
    fn paths_are_shown_as_they_were_named() {
        let shown = |path, named| shown(Path::new(path), Path::new("/m/d"), Path::new(named));
        assert_eq!(shown("/m/d", "."), ".");
        assert_eq!(shown("/m/d/x/y", "."), "./x/y");
        assert_eq!(shown("/m/d/x", "/link"), "/link/x");
    }
}
