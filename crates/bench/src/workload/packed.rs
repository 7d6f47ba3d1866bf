//! Packed inodes: what they take, how fast they are packed, and what `stat` of them costs: of the same ones again and again, and of
//! more than a process remembers. On names and inodes of a tree of this machine, in a pool in this process.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use conquest::{Caller, Ino, Kind, MediumKind, Pool, SetAttr, SetTime, Time};
use conquest_fs::layout::tag;
use conquest_fs::node::{Packed, WriteFlags};
use rng::Rng;

use crate::args;
use crate::clock::thread_time;
use crate::context::Context;
use crate::error::Error;
use crate::place::InProcess;
use crate::program;
use report::goals::{Finding, Goal, Sense};
use report::{Outcome, Section};

const ROUNDS: usize = 7;
/// Inodes that are looked at again and again: fewer than a process remembers.
const FEW: usize = 2000;
/// Times that these are looked at in a round.
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

pub fn run(context: &Context, args: &args::Packed) -> Result<Outcome, Error> {
    let dir = context.base.join("packed.pool");
    program::format_without_compression(&dir, context.bytes())?;
    let place = InProcess::open(&dir)?;
    context.progress.say(format!("copying names and inodes of {}", args.tree.display()));
    let inos = copy(&place.pool, &args.tree, context.size(args.inodes, 20_000))?;
    let outcome = measure(context, args, &place.pool, &inos)?;
    drop(place);
    std::fs::remove_dir_all(&dir).map_err(Error::file(&dir))?;
    Ok(outcome)
}

fn measure(context: &Context, args: &args::Packed, pool: &Pool, inos: &[Ino]) -> Result<Outcome, Error> {
    let of = format!("{} inodes of {}", inos.len(), args.tree.display());
    let mut rates = Section::rates("packed", format!("{of}: packing, by processor time"), "1000/s");
    let mut bytes = Section::times("packed-bytes", format!("{of}: what they take"), "B");
    let mut times = Section::times("packed-stat", format!("{of}: stat, by processor time, in process"), "ns");
    times.baseline = Some(PLAIN.into());
    let few = &inos[..inos.len().min(FEW)];
    let mut shuffled = inos.to_vec();
    Rng::new(1).shuffle(&mut shuffled);
    let mut stat_all = |subject: &str| -> Result<(), Error> {
        // Decoded twice in a row, they are remembered from here on.
        stat(pool, few, 2)?;
        times.add(subject, AGAIN_AND_AGAIN, stat(pool, few, AGAIN)?);
        times.add(subject, WALK, stat(pool, inos, 1)?);
        times.add(subject, ANYHOW, stat(pool, &shuffled, 1)?);
        Ok(())
    };
    let mut pack = |subject: &str| -> Result<(f64, f64), Error> {
        let began = thread_time();
        let done = pool.pack_inodes(0..pool.inode_blocks(), Time(i64::MAX), &|| true)?;
        let took = (thread_time() - began).max(1);
        let Packed { inodes, plain_bytes, packed_bytes, .. } = done;
        rates.add(subject, PACK, inodes as f64 * 1e6 / took as f64);
        let (plain, packed) = (plain_bytes as f64 / inodes.max(1) as f64, packed_bytes as f64 / inodes.max(1) as f64);
        bytes.add(PLAIN, BYTES, plain);
        bytes.add(subject, BYTES, packed);
        Ok((plain, packed))
    };
    let unpack = || inos.iter().try_for_each(|ino| pool.unpack_inodes_beside(*ino));
    let (mut has_own, mut names, mut entries) = (false, (0.0, 0.0), Vec::new());
    for round in 0..context.rounds(ROUNDS) {
        context.say_round("packed inodes", round, ROUNDS, "");
        stat_all(PLAIN)?;
        if !has_own {
            pack(FOREIGN)?;
            unpack()?;
            pool.train_profile()?;
            // They stay packed.
            names.0 = names_take(pool, inos.len())?;
            pool.pack_names(0..pool.inode_blocks(), Time(i64::MAX), &|| true)?;
            names.1 = names_take(pool, inos.len())?;
            has_own = true;
        }
        let (plain, packed) = pack(PACKED)?;
        entries.extend([(PLAIN, plain + names.0), (PACKED, packed + names.1)]);
        stat_all(PACKED)?;
        unpack()?;
    }
    entries.into_iter().for_each(|(subject, each)| bytes.add(subject, ENTRY, each));
    let ratio = |measure| (times.text(PACKED, measure), times.ratio(measure, PACKED, PLAIN));
    let judge = |what: &str, goal, (text, value): (String, Result<f64, String>)| {
        Finding::judge(MediumKind::Battery, what.to_owned(), goal, text, value)
    };
    let per_second = |nanos: Result<f64, String>| nanos.map(|nanos| 1e3 / nanos);
    let at_least = |required, aim| Goal { sense: Sense::AtLeast, required, aim, unit: "M/s".into() };
    let findings = vec![
        judge("stat of packed inodes, again and again, against plain", Goal::at_most(1.5, 1.2), ratio(AGAIN_AND_AGAIN)),
        judge("stat of packed inodes, more than are remembered, against plain", Goal::at_most(1.5, 1.2), ratio(WALK)),
        judge(
            "reading packed inodes, more than are remembered",
            at_least(10.0, 30.0),
            (times.text(PACKED, WALK), per_second(times.median(PACKED, WALK))),
        ),
        judge(
            "packing inodes, one core",
            at_least(5.0, 15.0),
            (rates.text(PACKED, PACK), rates.median(PACKED, PACK).map(|rate| rate / 1e3)),
        ),
        judge(
            "bytes of a packed inode, own profile",
            Goal::quantity(16.0, 12.0, "B"),
            (bytes.text(PACKED, BYTES), bytes.median(PACKED, BYTES)),
        ),
        judge(
            "bytes of a packed inode, profile of the program",
            Goal::quantity(24.0, 18.0, "B"),
            (bytes.text(FOREIGN, BYTES), bytes.median(FOREIGN, BYTES)),
        ),
        judge(
            "bytes of a packed entry with its name and inode, own profile",
            Goal::quantity(40.0, 26.0, "B"),
            (bytes.text(PACKED, ENTRY), bytes.median(PACKED, ENTRY)),
        ),
    ];
    Ok(Outcome { sections: vec![times, rates, bytes], findings })
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

/// Copies names and metadata of a tree; of content a byte, so that it has a place. The inodes, in the order in which they were made.
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
