//! Packed inodes: their size, the speed of packing, and the cost of `stat`: of the same ones repeatedly, and of more
//! than a process remembers. On names and inodes of a tree of this machine, in a pool in this process.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use conquest::{Caller, FormatOptions, Ino, Kind, Pool, SetAttr, SetTime, Time};
use conquest_fs::layout::tag;
use conquest_fs::node::{Packed, WriteFlags};

use crate::clock::thread_time;
use crate::prelude::*;
use crate::program::{compressing, Own, NOTHING};

const ROUNDS: usize = 7;
/// Inodes that are looked at repeatedly: fewer than a process remembers.
const FEW: usize = 2000;
/// How often these are looked at in a round.
const AGAIN: usize = 20;

const PLAIN: &str = "plain";
const PACKED: &str = "packed";
const FOREIGN: &str = "packed, profile of the program";
const AGAIN_AND_AGAIN: &str = "the same 2,000";
const WALK: &str = "all, one after the other";
const ANYHOW: &str = "all, at random";
const PACK: &str = "packing";
const BYTES: &str = "an inode takes";
const ENTRY: &str = "an entry takes, with its name and inode";

options! { Options {
    tree: dir = "/usr", "The tree that names and inodes are taken from";
    inodes: count "N" = 150_000, "Inodes, at most";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let how = FormatOptions::on(MediumKind::Battery, context.bytes());
        let how = FormatOptions { compression: compressing(NOTHING), ..how };
        let own = Own::make(context.base.join("packed.pool"), how)?;
        let pool = &own.open()?;
        context.progress.say(format!("copying names and inodes of {}", self.tree.display()));
        let inos = copy(pool, &self.tree, context.size(self.inodes, 20_000))?;
        let of = format!("{} inodes of {}", inos.len(), self.tree.display());
        let mut figures = Figures {
            times: Section::times("packed-stat", format!("{of}: stat, by processor time, in process"), "ns")
                .against(PLAIN),
            rates: Section::rates("packed", format!("{of}: packing, by processor time"), "1000/s"),
            bytes: Section::times("packed-bytes", format!("{of}: what they take"), "B"),
        };
        let mut shuffled = inos.clone();
        Rng::new(1).shuffle(&mut shuffled);
        let unpack = || inos.iter().try_for_each(|ino| pool.unpack_inodes_beside(*ino));
        let (mut names, mut entries) = (None, Vec::new());
        for round in 0..context.count(ROUNDS) {
            context.say_round("packed inodes", round, ROUNDS, "");
            figures.stat(pool, PLAIN, &inos, &shuffled)?;
            let names = match names {
                Some(names) => names,
                None => {
                    figures.pack(pool, FOREIGN)?;
                    unpack()?;
                    pool.train_profile()?;
                    // They stay packed.
                    let plain = names_take(pool, inos.len())?;
                    pool.pack_names(0..pool.inode_blocks(), Time(i64::MAX), &|| true)?;
                    *names.insert((plain, names_take(pool, inos.len())?))
                }
            };
            let (plain, packed) = figures.pack(pool, PACKED)?;
            entries.extend([(PLAIN, plain + names.0), (PACKED, packed + names.1)]);
            figures.stat(pool, PACKED, &inos, &shuffled)?;
            unpack()?;
        }
        entries.into_iter().for_each(|(subject, each)| figures.bytes.add(subject, ENTRY, each));
        let findings = figures.findings();
        Ok(Outcome { sections: vec![figures.times, figures.rates, figures.bytes], findings })
    }
}

struct Figures {
    times: Section,
    rates: Section,
    bytes: Section,
}

impl Figures {
    fn stat(&mut self, pool: &Pool, subject: &str, inos: &[Ino], shuffled: &[Ino]) -> Result<(), Error> {
        let few = &inos[..inos.len().min(FEW)];
        // Inodes decoded twice in a row are remembered from here on.
        stat(pool, few, 2)?;
        self.times.add(subject, AGAIN_AND_AGAIN, stat(pool, few, AGAIN)?);
        self.times.add(subject, WALK, stat(pool, inos, 1)?);
        self.times.add(subject, ANYHOW, stat(pool, shuffled, 1)?);
        Ok(())
    }

    /// Packs all inodes; returns the bytes of one before and after.
    fn pack(&mut self, pool: &Pool, subject: &str) -> Result<(f64, f64), Error> {
        let began = thread_time();
        let done = pool.pack_inodes(0..pool.inode_blocks(), Time(i64::MAX), &|| true)?;
        let took = (thread_time() - began).max(1);
        let Packed { inodes, plain_bytes, packed_bytes, .. } = done;
        self.rates.add(subject, PACK, inodes as f64 * 1e6 / took as f64);
        let [plain, packed] = [plain_bytes, packed_bytes].map(|bytes| bytes as f64 / inodes.max(1) as f64);
        self.bytes.add(PLAIN, BYTES, plain);
        self.bytes.add(subject, BYTES, packed);
        Ok((plain, packed))
    }

    fn findings(&self) -> Vec<Finding> {
        fn row<'s>(of: &'s Section, what: &str, goal: Goal) -> report::Row<'s> {
            of.row(MediumKind::Battery, what, goal)
        }
        let per_second = self.times.median(PACKED, WALK).map(|nanos| 1e3 / nanos);
        let packing = self.rates.median(PACKED, PACK).map(|rate| rate / 1e3);
        let bytes = |what, required, aim| row(&self.bytes, what, Goal::quantity(required, aim, "B"));
        vec![
            row(&self.times, "stat of packed inodes, again and again, against plain", Goal::at_most(1.5, 1.2)).ratio(
                AGAIN_AND_AGAIN,
                PACKED,
                PLAIN,
            ),
            row(&self.times, "stat of packed inodes, more than are remembered, against plain", Goal::at_most(1.5, 1.2))
                .ratio(WALK, PACKED, PLAIN),
            row(&self.times, "reading packed inodes, more than are remembered", Goal::at_least(10.0, 30.0, "M/s"))
                .judge([(PACKED, WALK)], per_second),
            row(&self.rates, "packing inodes, one core", Goal::at_least(5.0, 15.0, "M/s"))
                .judge([(PACKED, PACK)], packing),
            bytes("bytes of a packed inode, own profile", 16.0, 12.0).median(PACKED, BYTES),
            bytes("bytes of a packed inode, profile of the program", 24.0, 18.0).median(FOREIGN, BYTES),
            bytes("bytes of a packed entry with its name and inode, own profile", 40.0, 26.0).median(PACKED, ENTRY),
        ]
    }
}

/// Bytes of all buckets and tables of directories, for each entry.
fn names_take(pool: &Pool, entries: usize) -> Result<f64, Error> {
    let allocated = pool.session().memory().allocated().map_err(conquest_fs::Error::from)?;
    let bytes = allocated[usize::from(tag::BUCKET.0)] + allocated[usize::from(tag::BUCKET_TABLE.0)];
    Ok(bytes as f64 / entries.max(1) as f64)
}

/// Nanoseconds of this thread's processor time for each.
fn stat(pool: &Pool, inos: &[Ino], times: usize) -> Result<f64, Error> {
    let began = thread_time();
    let mut sum = 0u64;
    for _ in 0..times {
        for ino in inos {
            sum = sum.wrapping_add(pool.getattr(*ino)?.size);
        }
    }
    std::hint::black_box(sum);
    Ok((thread_time() - began) as f64 / (inos.len() * times).max(1) as f64)
}

fn kind_of(about: &Metadata) -> Kind {
    Kind::from_type((about.mode() >> 12) as u8).unwrap_or(Kind::Regular)
}

/// Copies names and metadata of a tree, and one byte of content, so that it has a place. Returns the inodes in the
/// order in which they were made.
fn copy(pool: &Pool, tree: &Path, most: usize) -> Result<Vec<Ino>, Error> {
    let (mut inos, mut dirs) = (Vec::new(), vec![(tree.to_path_buf(), conquest_fs::ROOT)]);
    while let Some((from, to)) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&from) else { continue };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let Ok(about) = entry.path().symlink_metadata() else { continue };
            let ino = copy_one(pool, &entry.path(), &about, to)?;
            if about.is_dir() {
                dirs.push((entry.path(), ino));
            }
            inos.push(ino);
            if inos.len() >= most {
                return Ok(inos);
            }
        }
    }
    match inos.is_empty() {
        true => Err(Error::Wrong(format!("{} has nothing in it", tree.display()))),
        false => Ok(inos),
    }
}

fn copy_one(pool: &Pool, path: &Path, about: &Metadata, to: Ino) -> Result<Ino, Error> {
    let root = Caller::root();
    let name = path.file_name().unwrap_or_default().as_bytes();
    let kind = kind_of(about);
    let ino = match kind {
        Kind::Symlink => {
            let target = std::fs::read_link(path).unwrap_or_else(|_| "unknown".into());
            pool.symlink(to, name, target.as_os_str().as_bytes(), &root)?.ino
        }
        kind => pool.create(to, name, kind, about.mode() & 0o7777, about.rdev(), &root)?.ino,
    };
    let time = |second: i64, nanos: i64| Some(SetTime::At(Time(second * 1_000_000_000 + nanos)));
    let mut set = SetAttr {
        uid: Some(about.uid()),
        gid: Some(about.gid()),
        atime: time(about.atime(), about.atime_nsec()),
        mtime: time(about.mtime(), about.mtime_nsec()),
        ..SetAttr::default()
    };
    if kind == Kind::Regular && about.size() > 0 {
        pool.write(ino, 0, b"x", WriteFlags::default())?;
        set.size = Some(about.size());
    }
    pool.setattr(ino, &set, &root)?;
    Ok(ino)
}
