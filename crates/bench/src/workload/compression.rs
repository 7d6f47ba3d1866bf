//! Compressing unused small files: the savings, the time to compress and to read, and the cost for programs that work
//! meanwhile. On a sample of a tree of this machine, in a pool in this process.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use conquest::{Caller, FormatOptions, Ino, Kind, Pool};
use conquest_fs::codec::Codec;
use conquest_fs::compress::{Compressor, Plan};
use conquest_fs::node::{ReadFlags, WriteFlags};
use pram::budget::{self, Budget};

use crate::clock::thread_time;
use crate::prelude::*;
use crate::program::{compressing, Own, NOTHING};

/// A chunk of a longer file is compressed like a file of its own.
const LONGEST: u64 = 128 << 10;
const PER_DIR: usize = 1000;
/// Most bytes of an empty pool's objects.
const EMPTY: u64 = 64 << 10;
const ROUNDS: usize = 7;
/// The number of files that a pass of the foreground makes, reads and removes.
const WORK: usize = 4000;
/// Passes in each round: one takes as long as several pieces of the compressor's work, with its rests.
const PASSES: usize = 200;
const WORK_SIZE: usize = 1024;
/// The number of files for the first read, and their length.
const FIRST: usize = 2000;
const FIRST_SIZE: usize = 8192;
/// Percent of one processor, as for maintenance.
const SHARE: u32 = 25;

const PLAIN: &str = "plain";
const WARM: &str = "warm (LZ4)";
const COLD: &str = "cold (zstd)";
const SAVED: &str = "saved, %";
const COMPRESS: &str = "compress";
const READ: &str = "read back";
const OFF: &str = "compression off";
const ON: &str = "a backlog is compressed";
const PHASES: [&str; 3] = ["create+write", "read", "unlink"];

options! { Options {
    tree: dir = "/usr", "The tree that files are taken from";
    files: count "N" = 20_000, "Files of the sample";
    {
        /// MiB that are compressed while others work
        #[arg(long, value_name = "MIB", default_value_t = 1024)]
        pub backlog: u64
    }
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let files = context.size(self.files, 1500);
        context.progress.say(format!("reading a sample of {}", self.tree.display()));
        let sample = sample(&self.tree, files)?;
        let mut outcome = tiers(context, &self.tree, &sample)?;
        outcome.extend(first_read(context, &sample)?);
        outcome.extend(foreground(context, self.backlog, &sample)?);
        Ok(outcome)
    }
}

/// The content of `files` files of the tree, taken about evenly.
fn sample(tree: &Path, files: usize) -> Result<Vec<Vec<u8>>, Error> {
    let (mut found, mut left) = (Vec::new(), vec![tree.to_path_buf()]);
    let device = std::fs::metadata(tree).map_err(Error::file(tree))?.dev();
    while let Some(dir) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if metadata.is_dir() && metadata.dev() == device {
                left.push(entry.path());
            } else if metadata.is_file() && (1..=LONGEST).contains(&metadata.len()) {
                found.push(entry.path());
            }
        }
    }
    Rng::new(1).shuffle(&mut found);
    let sample: Vec<Vec<u8>> = found.iter().filter_map(|path| std::fs::read(path).ok()).take(files).collect();
    match sample.is_empty() {
        true => Err(Error::Wrong(format!("{} has no files that could be read", tree.display()))),
        false => Ok(sample),
    }
}

/// A pool that compresses nothing by itself, and the inodes of the files in it.
fn filled(context: &Context, label: &str, sample: &[Vec<u8>]) -> Result<(Own, Pool, Vec<Ino>), Error> {
    let bytes = context.bytes().max(sample.iter().map(|file| file.len() as u64 * 3).sum());
    let how = FormatOptions { compression: compressing(NOTHING), ..FormatOptions::on(MediumKind::Battery, bytes) };
    let own = Own::make(context.base.join(format!("{label}.pool")), how)?;
    let pool = own.open()?;
    let inos = fill(&pool, "d", sample)?;
    Ok((own, pool, inos))
}

fn fill(pool: &Pool, name: &str, sample: &[Vec<u8>]) -> Result<Vec<Ino>, Error> {
    let (mut inos, mut parent) = (Vec::with_capacity(sample.len()), conquest_fs::ROOT);
    for (n, content) in sample.iter().enumerate() {
        if n % PER_DIR == 0 {
            let dir = format!("{name}{}", n / PER_DIR);
            parent = pool.create(conquest_fs::ROOT, dir.as_bytes(), Kind::Directory, 0o755, 0, &Caller::root())?.ino;
        }
        let attr = pool.create(parent, format!("f{n}").as_bytes(), Kind::Regular, 0o644, 0, &Caller::root())?;
        pool.write(attr.ino, 0, content, WriteFlags::default())?;
        inos.push(attr.ino);
    }
    Ok(inos)
}

fn read_all(pool: &Pool, inos: &[Ino], buf: &mut [u8]) -> Result<u64, Error> {
    let unnoted = ReadFlags { unnoted: true, caller_caches: true };
    inos.iter().try_fold(0, |sum, ino| Ok(sum + pool.read_as(*ino, 0, buf, unnoted)? as u64))
}

/// MB in a second of this thread's processor time.
fn rate(bytes: u64, began: u64) -> f64 {
    bytes as f64 * 1e3 / (thread_time() - began).max(1) as f64
}

/// The savings, and the speed.
fn tiers(context: &Context, tree: &Path, sample: &[Vec<u8>]) -> Result<Outcome, Error> {
    let content: u64 = sample.iter().map(|file| file.len() as u64).sum();
    let title = format!(
        "Compression at rest: {} files of {} up to 128 KiB, {} MB; MB in a second of one processor, in process",
        sample.len(),
        tree.display(),
        content / 1_000_000
    );
    let mut section = Section::rates("compression", title, "MB/s")
        .noting("saved: of the length of all files, by the memory that their content then occupies")
        .noting("compress: copying out, compressing, decoding, comparing and committing");
    let (mut findings, mut used) = (Vec::new(), 0);
    for (codec, name, saved, quick, back) in [
        (Codec::Lz4, WARM, (50.0, 55.0), (400.0, 400.0), (2000.0, 2800.0)),
        (Codec::Zstd, COLD, (62.0, 65.0), (150.0, 170.0), (700.0, 800.0)),
    ] {
        for round in 0..context.count(3) {
            context.say_round("compressing", round, 3, name);
            // Of the last codec, the cold one.
            used = tier(context, sample, (codec, name, content), &mut section)?;
        }
        let row = |what, measure, (required, aim), unit| {
            let goal = Goal::at_least(required, aim, unit);
            let value = section.median(name, measure);
            Finding::judge(MediumKind::Battery, format!("{name}: {what}"), goal, section.text(name, measure), value)
        };
        findings.extend([
            row("saved of small files", SAVED, saved, "%"),
            row("compressing, one core", COMPRESS, quick, "MB/s"),
            row("reading back, one core", READ, back, "MB/s"),
        ]);
    }
    findings.push(Finding::judge(
        MediumKind::Battery,
        "memory of all objects, names and inodes too, against the length of small files, cold",
        Goal::quantity(60.0, 45.0, "%"),
        format!("{} / {} MB", used / 1_000_000, content / 1_000_000),
        Ok(used as f64 * 100.0 / content as f64),
    ));
    Ok(Outcome { sections: vec![section], findings })
}

/// One round of a codec; bytes of all objects of the pool at its end.
fn tier(
    context: &Context,
    sample: &[Vec<u8>],
    (codec, name, content): (Codec, &str, u64),
    section: &mut Section,
) -> Result<u64, Error> {
    let (_own, pool, inos) = filled(context, "compression", sample)?;
    let mut buf = vec![0; LONGEST as usize];
    let began = thread_time();
    let read = read_all(&pool, &inos, &mut buf)?;
    section.add(PLAIN, READ, rate(read, began));
    let saved = |memory: u64| 100.0 - memory as f64 * 100.0 / content as f64;
    section.add(PLAIN, SAVED, saved(pool.survey_compression()?.plain.memory));
    pool.train_if_due(&mut || true)?;
    let began = thread_time();
    let mut compressor = Compressor::new(&pool, Plan::now(codec))?;
    inos.iter().try_for_each(|ino| compressor.see(*ino).map(|_| ()))?;
    section.add(name, COMPRESS, rate(content, began));
    let found = pool.survey_compression()?;
    section.add(
        name,
        SAVED,
        saved(found.plain.memory + found.warm.memory + found.cold.memory + found.dictionary_memory),
    );
    let began = thread_time();
    let read = read_all(&pool, &inos, &mut buf)?;
    section.add(name, READ, rate(read, began));
    let heap: u64 = pool.status()?.heap.iter().map(|h| h.objects * h.size).sum();
    Ok(heap.saturating_sub(EMPTY))
}

/// The time of the first read of a cold file of 8 KB, beyond that of a plain one.
fn first_read(context: &Context, sample: &[Vec<u8>]) -> Result<Outcome, Error> {
    let title = format!("The first read of a file of {FIRST_SIZE} bytes, in process");
    let mut section = Section::times("compression-first", title, "us").against(PLAIN);
    let text: Vec<u8> = sample.iter().filter(|file| file.len() < 64 << 10).flatten().copied().take(64 << 20).collect();
    let files: Vec<Vec<u8>> =
        text.chunks_exact(FIRST_SIZE).take(context.size(FIRST, 200)).map(<[u8]>::to_vec).collect();
    let count = files.len();
    let (_own, pool, inos) = filled(context, "compression-first", &files)?;
    let pool = &pool;
    let mut buf = vec![0; FIRST_SIZE];
    for round in 0..context.count(ROUNDS) {
        context.say_round("first read", round, ROUNDS, "");
        // Other files than in the round before: a file that is often read becomes plain.
        pool.train_if_due(&mut || true)?;
        let mut compressor = Compressor::new(pool, Plan::now(Codec::Zstd))?;
        let (even, odd): (Vec<_>, Vec<_>) = inos.iter().enumerate().partition(|(n, _)| n % 2 == 0);
        even.iter().try_for_each(|(_, ino)| compressor.see(**ino).map(|_| ()))?;
        // A file that is no text may not have been compressed.
        let cold: Vec<Ino> = even.iter().map(|(_, ino)| **ino).filter(|ino| is_cold(pool, *ino)).collect();
        let plain: Vec<Ino> = odd.iter().map(|(_, ino)| **ino).collect();
        for (name, inos) in [(PLAIN, &plain), (COLD, &cold)] {
            let start = now();
            read_all(pool, inos, &mut buf)?;
            section.add(name, READ, us_per_op(start, inos.len().max(1)));
        }
        cold.iter().try_for_each(|ino| compressor.expand(*ino))?;
    }
    section.notes.push(format!("{count} files, every other one compressed"));
    let value = section.median(COLD, READ).and_then(|cold| Ok(cold - section.median(PLAIN, READ)?));
    let what = "first read of a cold file of 8 KB above a plain one";
    let row = section.row(MediumKind::Battery, what, Goal::quantity(12.0, 10.0, "us"));
    let finding = row.judge([(COLD, READ), (PLAIN, READ)], value);
    Ok(Outcome { sections: vec![section], findings: vec![finding] })
}

fn is_cold(pool: &Pool, ino: Ino) -> bool {
    pool.getxattr(ino, b"user.conquest.effective.compression").is_ok_and(|is| is == b"zstd")
}

/// Makes, reads and removes files while a backlog is compressed, within a share of another processor.
fn foreground(context: &Context, backlog_mib: u64, sample: &[Vec<u8>]) -> Result<Outcome, Error> {
    let (work, passes) = (context.size(WORK, 300), context.size(PASSES, 2));
    let title = format!("{work} files of {WORK_SIZE} bytes made, read and removed {passes} times, in process");
    let mut section = Section::rates("compression-foreground", title, "1000 files/s").against(OFF);
    section.notes.push(format!("compression: {SHARE} % of one processor, as maintenance"));
    let wanted = if context.quick { 32 << 20 } else { backlog_mib << 20 };
    let (mut backlog, mut bytes) = (Vec::new(), 0);
    for content in sample.iter().cycle() {
        bytes += content.len() as u64;
        backlog.push(content.clone());
        if bytes >= wanted {
            break;
        }
    }
    let (_own, pool, inos) = filled(context, "compression-backlog", &backlog)?;
    drop(backlog);
    let pool = &pool;
    pool.train_if_due(&mut || true)?;
    let content = vec![b'x'; WORK_SIZE];
    let parent = pool.create(conquest_fs::ROOT, b"work", Kind::Directory, 0o755, 0, &Caller::root())?.ino;
    // The first use of memory costs extra.
    one(pool, parent, (work, passes), &content, OFF, &mut section.clone())?;
    let mut next = 0;
    for round in 0..context.count(ROUNDS) {
        context.say_round("foreground", round, ROUNDS, "");
        one(pool, parent, (work, passes), &content, OFF, &mut section)?;
        let stop = AtomicBool::new(false);
        next = std::thread::scope(|scope| {
            let compress = scope.spawn(|| compress(pool, &inos, next, &stop));
            let worked = one(pool, parent, (work, passes), &content, ON, &mut section);
            stop.store(true, Ordering::Relaxed);
            worked.and(joined(compress))
        })?;
    }
    let left = inos.len().saturating_sub(next);
    section.notes.push(format!("a backlog of {} MB, of which {left} files were left at the end", bytes / 1_000_000));
    let findings = PHASES.map(|phase| {
        let what = format!("{phase} while a backlog is compressed, against compression off");
        let judged = section.row(MediumKind::Battery, what, Goal::factor(0.97, 1.0)).ratio(phase, ON, OFF);
        match left {
            0 => judged.skipped("the backlog was done before the rounds were"),
            _ => judged,
        }
    });
    Ok(Outcome { sections: vec![section], findings: findings.into() })
}

/// Compresses the files from number `next` on until `stop` is set; returns the number of the next.
fn compress(pool: &Pool, inos: &[Ino], mut next: usize, stop: &AtomicBool) -> Result<usize, Error> {
    let mut compressor = Compressor::new(pool, Plan::now(Codec::Zstd))?;
    let rest = budget::looking(std::time::Duration::from_secs(1), || true);
    let mut budget = Budget::processor(SHARE, pool.session().clock(), rest);
    while next < inos.len() && !stop.load(Ordering::Relaxed) {
        compressor.see(inos[next])?;
        next += 1;
        budget.turn();
    }
    Ok(next)
}

fn one(
    pool: &Pool,
    parent: Ino,
    (work, passes): (usize, usize),
    content: &[u8],
    subject: &str,
    section: &mut Section,
) -> Result<(), Error> {
    let root = Caller::root();
    let names: Vec<String> = (0..work).map(|n| format!("w{n}")).collect();
    let mut inos = Vec::with_capacity(work);
    let (mut took, mut buf) = ([0; PHASES.len()], vec![0; content.len()]);
    for _ in 0..passes {
        inos.clear();
        let mut start = now();
        let mut end_phase = |phase: usize| {
            let end = now();
            took[phase] += end - start;
            start = end;
        };
        for name in &names {
            let attr = pool.create(parent, name.as_bytes(), Kind::Regular, 0o644, 0, &root)?;
            pool.write(attr.ino, 0, content, WriteFlags::default())?;
            inos.push(attr.ino);
        }
        end_phase(0);
        for ino in &inos {
            pool.read(*ino, 0, &mut buf)?;
        }
        end_phase(1);
        for name in &names {
            pool.unlink(parent, name.as_bytes(), &root)?;
        }
        end_phase(2);
    }
    for (phase, took) in PHASES.iter().zip(took) {
        section.add(subject, phase, (work * passes) as f64 * 1e6 / took.max(1) as f64);
    }
    Ok(())
}
