//! Three caches of a given size, each a pool of this process whose one file a trace reads and writes.
//!
//! | cache | memory | a commit |
//! | --- | --- | --- |
//! | [`Cache::None`], BF-no | all of it is cache | does nothing: dirty blocks change in place |
//! | [`Cache::Beside`], BF-Jm | half is cache, half a journal | copies each changed block to the journal; when that is full, all dirty blocks are written to disk, and the journal is empty |
//! | [`Cache::Union`], UBJ | all of it is cache and journal | freezes the blocks in place |
//!
//! The three share one code: they read, evict and write back as any pool does. A pool on `battery` commits each write.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use conquest::{Caller, FormatOptions, Ino, Kind, NewDisk, OpenOptions, Pool};
use conquest_fs::node::{Fallocate, WriteFlags};
use conquest_fs::ubj::policy::{BlockState, Scheme};
use rustix::io::Errno;

use super::trace::{self, Reference, Trace, BLOCK};
use crate::prelude::{Error, MediumKind, Rng, MIB};
use crate::program::{remove, Own};

/// Bytes of a write before a trace begins.
const PIECE: u64 = MIB;
/// The permitted difference from the requested size of a cache: one part in this many.
const NEAR: u64 = 50;
/// Or this many blocks: memory is taken in chunks, some of which are partly used.
const FEW: u64 = 160;
/// The number of attempts to make a pool of the right size.
const TRIES: usize = 8;
/// References between commits of a journal beside the cache, if the trace requests none.
const PERIOD: u64 = 1000;
/// The longest wait for blocks to leave memory, and for memory; and the interval of the checks.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a call that writes whole blocks.
const CALL: usize = 16 << 10;
/// Bytes of a write to a part of a block.
const PART: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    None,
    Beside,
    Union,
}

impl Cache {
    pub const ALL: [Cache; 3] = [Cache::None, Cache::Beside, Cache::Union];

    /// The name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Cache::None => "BF-no",
            Cache::Beside => "BF-Jm",
            Cache::Union => "UBJ",
        }
    }
}

/// Where blocks that were read or written were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub missed: u64,
    /// In a block outside the journal ...
    pub normal: u64,
    /// ... or in a block of the journal.
    pub frozen: u64,
}

impl Found {
    pub fn hits(self) -> u64 {
        self.normal + self.frozen
    }

    pub fn miss_ratio(self) -> f64 {
        self.missed as f64 / (self.missed + self.hits()).max(1) as f64
    }

    pub fn frozen_share(self) -> f64 {
        self.frozen as f64 / self.hits().max(1) as f64
    }

    pub fn since(self, before: Found) -> Found {
        Found {
            missed: self.missed - before.missed,
            normal: self.normal - before.normal,
            frozen: self.frozen - before.frozen,
        }
    }
}

/// An empty cache.
pub struct Rig {
    cache: Cache,
    pool: Pool,
    // Declared after the pool, which is closed before its files are removed.
    _own: Own,
    ino: Ino,
    journal: Option<Journal>,
    /// Blocks of memory, with those of the journal.
    pub blocks: u64,
    pub found: Found,
    references: u64,
    random: Vec<u8>,
    buf: Vec<u8>,
}

/// A journal beside a cache: a ring of blocks in a file in memory.
struct Journal {
    file: File,
    blocks: u64,
    next: u64,
    /// Blocks that changed since the last commit.
    changed: BTreeSet<u64>,
}

impl Rig {
    /// A cache of `blocks` blocks for a trace, below `home`, which is in memory. Dropping it removes it.
    pub fn new(home: &Path, cache: Cache, blocks: u64, trace: &Trace) -> Result<Rig, Error> {
        let own = if cache == Cache::Beside { blocks / 2 } else { blocks };
        let content = trace.end() * BLOCK;
        let mut ram = own * BLOCK + content / 64 + 16 * MIB;
        for _ in 0..TRIES {
            let (files, pool, ino) = made(home, ram, content)?;
            let found = union(&pool)?.capacity(pool.session());
            if found.abs_diff(own) > (own / NEAR).max(FEW) {
                let wanted = (ram + own * BLOCK).checked_sub(found * BLOCK);
                ram = wanted.ok_or_else(|| Error::Wrong(format!("no cache of {own} blocks")))?;
                continue;
            }
            let scheme = if cache == Cache::Union { Scheme::Union } else { Scheme::Buffer };
            union(&pool)?.choose(scheme);
            let journal = (cache == Cache::Beside).then(|| Journal::new(home, blocks - own)).transpose()?;
            let random = Rng::new(6).bytes(PIECE as usize);
            let (found, references, buf) = (Found::default(), 0, Vec::new());
            return Ok(Rig { cache, pool, _own: files, ino, journal, blocks, found, references, random, buf });
        }
        Err(Error::Wrong(format!("no pool has room for {own} blocks and hardly more")))
    }

    /// Repeats a reference of the recorded program.
    pub fn apply(&mut self, reference: &Reference) -> Result<(), Error> {
        let Reference { kind, first, count } = *reference;
        let (at, len) = (first * BLOCK, (count * BLOCK) as usize);
        match kind {
            trace::Kind::Sync => return self.commit(),
            trace::Kind::Forget => {
                let forget = || self.pool.fallocate(self.ino, Fallocate::PunchHole, at, len as u64);
                patiently(forget).map_err(|e| e.at("a hole"))?;
                if let Some(journal) = &mut self.journal {
                    (first..first + count).for_each(|block| _ = journal.changed.remove(&block));
                }
                return Ok(());
            }
            trace::Kind::Read => {
                self.look(first, count)?;
                self.buf.resize(len, 0);
                self.pool.read(self.ino, at, &mut self.buf)?;
            }
            trace::Kind::Write | trace::Kind::Part => {
                self.look(first, count)?;
                let len = if kind == trace::Kind::Part { PART } else { len };
                let from = (first % 64) as usize;
                let data = &self.random[from..from + CALL];
                for done in (0..len).step_by(CALL) {
                    write(&self.pool, self.ino, at + done as u64, &data[..CALL.min(len - done)])?;
                }
                if let Some(journal) = &mut self.journal {
                    journal.changed.extend(first..first + count);
                }
            }
        }
        let before = self.references;
        self.references += count;
        if before / PERIOD != self.references / PERIOD {
            self.commit()?;
        }
        Ok(())
    }

    /// Counts where the blocks are found.
    fn look(&mut self, first: u64, count: u64) -> Result<(), Error> {
        let union = union(&self.pool)?;
        for block in first..first + count {
            match union.state(&*self.pool, self.ino, block)? {
                None => self.found.missed += 1,
                Some(BlockState::Frozen) if self.cache == Cache::Union => self.found.frozen += 1,
                Some(_) => self.found.normal += 1,
            }
        }
        Ok(())
    }

    /// Copies to the journal beside the cache; in the other caches a commit has nothing to copy.
    fn commit(&mut self) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut buf = [0; BLOCK as usize];
        for block in std::mem::take(&mut journal.changed) {
            if journal.next == journal.blocks {
                let union = union(&self.pool)?;
                patiently(|| union.write_all(&self.pool)).map_err(|e| e.at("a checkpoint"))?;
                journal.next = 0;
            }
            self.pool.read(self.ino, block * BLOCK, &mut buf)?;
            journal.file.write_all_at(&buf, journal.next * BLOCK).map_err(Error::io("the journal"))?;
            journal.next += 1;
        }
        Ok(())
    }

    /// The part of the memory that is frozen blocks, or the journal.
    pub fn journal_share(&self) -> Result<f64, Error> {
        let blocks = match (self.cache, &self.journal) {
            (Cache::Union, _) => union(&self.pool)?.status(self.pool.session())?.frozen,
            (_, Some(journal)) => journal.next,
            _ => 0,
        };
        Ok(blocks as f64 / self.blocks as f64)
    }
}

impl Journal {
    fn new(home: &Path, blocks: u64) -> Result<Journal, Error> {
        let file = tempfile::tempfile_in(home).map_err(Error::file(home))?;
        Ok(Journal { file, blocks: blocks.max(1), next: 0, changed: BTreeSet::new() })
    }
}

fn union(pool: &Pool) -> Result<&conquest_fs::ubj::Union, Error> {
    pool.union().map(|union| &**union).ok_or_else(|| Error::Wrong("a pool without a disk".into()))
}

/// A pool of `ram` bytes with a file of `content` bytes, none of which is in memory.
fn made(home: &Path, ram: u64, content: u64) -> Result<(Own, Pool, Ino), Error> {
    let dir = home.join("cache.pool");
    remove(&dir);
    // The cleaner is to have little to do: it is not the subject.
    let disk = NewDisk { path: "disk".into(), size: Some(3 * content + 256 * MIB) };
    let how = FormatOptions {
        regions: vec![disk.into()],
        ..FormatOptions::on(MediumKind::Battery, ram.next_multiple_of(pram::CHUNK))
    };
    let own = Own::make(dir, how)?;
    let pool = Pool::open(&own.dir, &OpenOptions { noatime: true, ..OpenOptions::default() })?;
    let ino = pool.create(conquest_fs::ROOT, b"blocks", Kind::Regular, 0o600, 0, &Caller::root())?.ino;
    let data = Rng::new(7).bytes(PIECE as usize);
    for at in (0..content).step_by(PIECE as usize) {
        let len = (content - at).min(PIECE) as usize;
        write(&pool, ino, at, &data[..len])?;
    }
    move_out(&pool, ino, content / BLOCK)?;
    Ok((own, pool, ino))
}

fn write(pool: &Pool, ino: Ino, at: u64, data: &[u8]) -> Result<(), Error> {
    patiently(|| pool.write(ino, at, data, WriteFlags::default()).map(drop)).map_err(|e| e.at("a write"))
}

/// Does `work` once there is memory for it: all blocks of such a small cache may be on their way to disk.
fn patiently(mut work: impl FnMut() -> conquest_fs::Result<()>) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match work() {
            Err(e) if e.errno() == Errno::NOSPC && begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            done => return Ok(done?),
        }
    }
}

/// Evicts all of these blocks, also those that the pool's own thread is writing.
fn move_out(pool: &Pool, ino: Ino, blocks: u64) -> Result<(), Error> {
    let (union, begun) = (union(pool)?, Instant::now());
    loop {
        patiently(|| union.move_to_disk(pool, ino)).map_err(|e| e.at("emptying a cache"))?;
        let mut is_there = (0..blocks).map(|block| union.state(&**pool, ino, block).map(|state| state.is_some()));
        if !is_there.try_fold(false, |any, one| one.map(|one| any || one))? {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(Error::Wrong("blocks stay in memory that are on disk".into()));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cache_has_the_size_asked_for_and_finds_what_it_was_given() {
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let trace = trace::any(2048, 1);
        for cache in Cache::ALL {
            let mut rig = Rig::new(home.path(), cache, 4096, &trace).expect("a cache");
            let of = |kind, first, count| Reference { kind, first, count };
            rig.apply(&of(trace::Kind::Read, 0, 4)).expect("read");
            rig.apply(&of(trace::Kind::Part, 9, 1)).expect("written");
            assert_eq!(rig.found, Found { missed: 5, ..Found::default() }, "{cache:?}: nothing is in it");
            rig.apply(&of(trace::Kind::Write, 16, 8)).expect("written");
            let before = rig.found;
            rig.apply(&of(trace::Kind::Read, 16, 8)).expect("read");
            let found = rig.found.since(before);
            assert_eq!((found.hits(), found.missed), (8, 0), "{cache:?}");
            assert_eq!(found.frozen, if cache == Cache::Union { 8 } else { 0 }, "{cache:?}");
            rig.apply(&of(trace::Kind::Sync, 0, 0)).expect("committed");
            assert_eq!(rig.journal_share().expect("a share") > 0.0, cache != Cache::None, "{cache:?}");
            rig.apply(&of(trace::Kind::Forget, 16, 8)).expect("forgotten");
            let before = rig.found;
            rig.apply(&of(trace::Kind::Read, 16, 1)).expect("read");
            assert_eq!(rig.found.since(before).missed, 1, "{cache:?}");
        }
        assert_eq!(std::fs::read_dir(home.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_full_journal_goes_to_disk_and_begins_again() {
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let trace = trace::any(1024, 8_000);
        let mut rig = Rig::new(home.path(), Cache::Beside, 4096, &trace).expect("a cache");
        let mut most = 0.0f64;
        for reference in &trace.references {
            rig.apply(reference).expect("applied");
            most = most.max(rig.journal_share().expect("a share"));
        }
        let written = union(&rig.pool).expect("it has one").status(rig.pool.session()).expect("it works").written;
        assert!(most > 0.4 && most <= 0.5, "{most}");
        assert!(rig.journal_share().expect("a share") < most, "it never began again");
        assert!(written > 1024, "{written} blocks were written, all that are there once before the trace began");
    }
}
