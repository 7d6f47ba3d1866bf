//! `conquest salvage`: recovers content of large files from the disks alone.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conquest::{Gap, Remains, SalvagedInode};

use crate::failure::{Context, Failure, Result};
use crate::{locate, progress, say, size};

/// The number of missing ranges shown for a file.
const SHOWN: usize = 4;

/// List and recover the content of large files from a pool's disks alone, where its memory and its backing are lost.
///
/// Names, sizes and the content of small files were in the memory: recovered files are named by inode numbers, and
/// consist of whole pages of 4096 bytes. Removed or cut-off content may be among them. With a backing use `conquest
/// import`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest salvage /srv/pool/disk                       (what there is)\n  \
    conquest salvage /dev/sdb /dev/sdc --to /mnt/rescue   (writes /mnt/rescue/inode-17 and so on)")]
pub struct Args {
    /// The disks of one pool, files or block devices; nothing is written to them
    #[arg(required = true)]
    disk: Vec<PathBuf>,
    /// Write the content found to files in this directory, which is made if need be, readable by you alone. Beside an
    /// incomplete file lies NAME.missing, with a line for each range: first byte, the byte behind the last, why
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let disks: Vec<PathBuf> = args.disk.iter().map(|disk| locate::absolute(disk)).collect::<Result<_>>()?;
    let mut bar = progress::bytes("looking");
    let found = Remains::find(&disks, &mut bar).context(|| "cannot look through the disks".into())?;
    drop(bar);
    let inodes = found.inodes();
    let (segments, parts) = found.segments();
    say(&format!("pool {}: content of {} inodes, in {parts} parts of {segments} segments", found.pool, inodes.len()))?;
    let failed = found.failed();
    for failure in &failed {
        say(&format!("FAILED: {failure}"))?;
    }
    let lost = match &args.to {
        None => list(&inodes).map(|()| 0)?,
        Some(to) => recover(&found, &inodes, &locate::absolute(to)?)?,
    };
    match (failed.len(), lost) {
        (0, 0) => Ok(()),
        (segments, ranges) => Err(Failure::new(format!(
            "not everything could be read: {segments} segments while looking, and {ranges} ranges of files"
        ))),
    }
}

fn list(inodes: &[SalvagedInode]) -> Result<()> {
    let names = names(inodes);
    inodes.iter().try_for_each(|inode| say(&describe(inode, &names[&key(inode)])))
}

fn describe(inode: &SalvagedInode, name: &str) -> String {
    let (bytes, end) = (inode.pages * ilfs::place::BLOCK, inode.end * ilfs::place::BLOCK);
    let within = match bytes == end {
        true => String::new(),
        false => format!(" of {}", size::show(end)),
    };
    let written = humantime::format_rfc3339_seconds(instant(inode.written));
    format!("{name}: {}{within} in {} pages, written until {written}", size::show(bytes), inode.pages)
}

fn key(inode: &SalvagedInode) -> (u64, u32) {
    (inode.ino, inode.generation)
}

/// The names of the files: by inode number. If several inodes had a number, all but the one written last are named with
/// their generation too.
fn names(inodes: &[SalvagedInode]) -> HashMap<(u64, u32), String> {
    let mut newest = HashMap::<u64, &SalvagedInode>::new();
    for inode in inodes {
        let of_number = newest.entry(inode.ino).or_insert(inode);
        if of_number.written < inode.written {
            *of_number = inode;
        }
    }
    let name = |inode: &SalvagedInode| match newest.get(&inode.ino) {
        Some(last) if last.generation != inode.generation => format!("inode-{}.{}", inode.ino, inode.generation),
        _ => format!("inode-{}", inode.ino),
    };
    inodes.iter().map(|inode| (key(inode), name(inode))).collect()
}

/// Writes all content to files in `to`. Returns how many existing ranges could not be read.
fn recover(found: &Remains, inodes: &[SalvagedInode], to: &Path) -> Result<usize> {
    // The owners of these files are unknown.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(to)
        .context(|| format!("cannot make {}", to.display()))?;
    let (names, mut lost) = (names(inodes), 0);
    for inode in inodes {
        let name = &names[&key(inode)];
        let path = to.join(name);
        let gaps = found.recover(inode, &path).context(|| "cannot write what was found".into())?;
        lost += gaps.iter().filter(|gap| gap.why.is_some()).count();
        say(&format!("{}{}", describe(inode, name), missing(&gaps)))?;
        if !gaps.is_empty() {
            let list = to.join(format!("{name}.missing"));
            note(&list, &gaps).context(|| format!("cannot write {}", list.display()))?;
        }
    }
    Ok(lost)
}

fn why(gap: &Gap) -> &str {
    gap.why.as_deref().unwrap_or("not on these disks")
}

/// The first gaps, in words.
fn missing(gaps: &[Gap]) -> String {
    let one = |gap: &Gap| format!("\n  missing: bytes {} to {}: {}", gap.range.start, gap.range.end, why(gap));
    let mut out: String = gaps.iter().take(SHOWN).map(one).collect();
    if gaps.len() > SHOWN {
        out += &format!("\n  missing: {} ranges more", gaps.len() - SHOWN);
    }
    out
}

/// Writes all gaps, a line each.
fn note(path: &Path, gaps: &[Gap]) -> std::io::Result<()> {
    let mut file =
        std::io::BufWriter::new(std::fs::File::options().write(true).create_new(true).mode(0o600).open(path)?);
    for gap in gaps {
        writeln!(file, "{} {} {}", gap.range.start, gap.range.end, why(gap))?;
    }
    file.flush()
}

fn instant(nanos: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(nanos.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_owners_of_a_number_are_distinguished() {
        let inode = |ino, generation, written| SalvagedInode { ino, generation, pages: 1, end: 1, written };
        let all = [inode(5, 1, 30), inode(5, 2, 20), inode(6, 9, 1)];
        let names = names(&all);
        let named: Vec<_> = all.iter().map(|inode| names[&key(inode)].as_str()).collect();
        assert_eq!(named, ["inode-5", "inode-5.2", "inode-6"]);
    }

    #[test]
    fn few_gaps_are_shown() {
        let gaps: Vec<Gap> = (0..7).map(|n| Gap { range: n * 8192..n * 8192 + 4096, why: None }).collect();
        let shown = missing(&gaps);
        assert!(
            shown.contains("bytes 8192 to 12288: not on these disks") && shown.ends_with("3 ranges more"),
            "{shown}"
        );
        assert_eq!(missing(&[]), "");
    }
}
