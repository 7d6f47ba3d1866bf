//! The shared table of (uid, gid, mode) triples (mramfs, 3.3.1): an inode holds an index into it.
//!
//! Triples never change while an inode names them, so a process's knowledge of the table stays true until a sweep begins
//! ([`free_unused`](crate::node::Fs::free_unused_triples)). Before one all processes get a new
//! [numbering](pram::runtime::Runtime::numbering). The first free place is taken first, so that a process that knows the table up
//! to there looks at what follows and knows it all.

use std::collections::HashMap;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use pram::runtime::{Runtime, NUMBERS};
use pram::{Memory, Off, Op, Session};

use crate::error::{Error, Result};
use crate::inode::zeroed;
use crate::layout::{tag, RawPerm, MAX_INODES, PERM_CHUNK, PERM_CHUNKS};

/// When the last [sweep](crate::fsck) of this process found nothing.
pub type FoundNothing = Mutex<Option<Instant>>;
/// The lock that protects the table: a key beyond all inode numbers.
pub const PERM_KEY: u64 = MAX_INODES + 1;

/// Triples that fit.
pub const LIMIT: u64 = PERM_CHUNK * PERM_CHUNKS;
const _: () = assert!(LIMIT == NUMBERS);
/// Where one is put from here on, those that nothing uses are freed.
const CROWDED: u64 = LIMIT / 8 * 7;

/// A process's knowledge of the table.
pub struct Perms {
    /// Offsets of chunks.
    chunks: Off<u64>,
    known: Mutex<Known>,
    /// The first triples, by index; and by a hash of their triple indices, as [`Perms::known`] has them. Of the numbering
    /// that they name, these need no lock.
    triples: Box<[Cached]>,
    indices: Box<[AtomicU64]>,
}

/// Triples held in [`Perms::triples`], and places in [`Perms::indices`].
const CACHED: usize = 256;

/// A triple in two words. The second is 0 while the first changes; its upper half is that of the numbering.
#[derive(Default)]
struct Cached {
    uid_gid: AtomicU64,
    mode: AtomicU64,
}

#[derive(Default)]
struct Known {
    /// The numbering of the known triples.
    numbering: u64,
    index: HashMap<RawPerm, u32>,
    /// Triples below this are known: the first free place, when it was looked for.
    read: u64,
}

impl Perms {
    pub fn new(chunks: Off<u64>) -> Self {
        Perms {
            chunks,
            known: Mutex::default(),
            triples: (0..CACHED).map(|_| Cached::default()).collect(),
            indices: (0..CACHED).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The offset of a chunk; 0 if there is none.
    fn chunk(&self, memory: &Memory, n: u64) -> Result<u64> {
        let off = memory.load(self.chunks.index(n))?;
        if off != 0 {
            memory.resolve(off, tag::PERM)?;
        }
        Ok(off)
    }

    pub fn at(&self, memory: &Memory, id: u64) -> Result<Option<Off<RawPerm>>> {
        if id >= LIMIT {
            return Ok(None);
        }
        let chunk = self.chunk(memory, id / PERM_CHUNK)?;
        Ok((chunk != 0).then(|| Off::<RawPerm>::new(chunk).index(id % PERM_CHUNK)))
    }

    /// The triple with index `id`, for a caller that holds the lock of an inode that names it or reads that one optimistically.
    /// Others: [`seen_perm`](crate::node::Fs::seen_perm).
    #[inline(always)]
    pub fn get(&self, session: &Session, id: u32) -> Result<RawPerm> {
        match self.cached(id, session.runtime().numbering()) {
            Some(perm) => Ok(perm),
            None => self.get_slow(session.memory(), id),
        }
    }

    #[inline(always)]
    fn cached(&self, id: u32, numbering: u64) -> Option<RawPerm> {
        let cached = self.triples.get(id as usize)?;
        let mode = cached.mode.load(Ordering::Acquire);
        let ids = cached.uid_gid.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = cached.mode.load(Ordering::Relaxed) == mode;
        let valid = same && mode as u32 != 0 && mode >> 32 == numbering & 0xffff_ffff;
        valid.then_some(RawPerm { uid: ids as u32, gid: (ids >> 32) as u32, mode: mode as u32 })
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, memory: &Memory, id: u32) -> Result<RawPerm> {
        let perm = match self.at(memory, id.into())? {
            Some(off) => memory.read(off)?,
            None => RawPerm { uid: 0, gid: 0, mode: 0 },
        };
        if perm.mode == 0 {
            return Err(Error::Corrupt(format!("permission triple {id} does not exist")));
        }
        Ok(perm)
    }

    /// Remembers a triple that is committed, with the table's lock held: of this numbering it never changes.
    fn remember(&self, id: u32, perm: RawPerm, numbering: u64) {
        let (Some(cached), true) = (self.triples.get(id as usize), numbering % 2 == 0) else { return };
        cached.mode.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        cached.uid_gid.store(u64::from(perm.uid) | u64::from(perm.gid) << 32, Ordering::Relaxed);
        cached.mode.store(u64::from(perm.mode) | numbering << 32, Ordering::Release);
        self.indices[hash(perm)].store(u64::from(id) + 1, Ordering::Release);
    }

    /// The index of a triple, if it is at hand; for an operation, which uses it before it ends.
    #[inline(always)]
    pub fn known(&self, rt: &Runtime, perm: RawPerm) -> Option<u32> {
        let id = self.indices[hash(perm)].load(Ordering::Acquire).checked_sub(1)? as u32;
        (self.cached(id, rt.numbering())? == perm).then_some(id)
    }

    /// The index of a triple, added if it is new. Takes locks: call it before the operation's own. It holds until the
    /// operation ends; where that [begins anew](Op::renew), as long as the numbering is the same.
    #[inline(always)]
    pub fn intern(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        match self.known(op.session().runtime(), perm) {
            Some(id) => Ok(id),
            None => self.intern_slow(op, perm),
        }
    }

    #[cold]
    #[inline(never)]
    fn intern_slow(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        op.lock(&[PERM_KEY])?;
        let id = self.find_or_add(op, perm);
        op.unlock();
        id
    }

    fn find_or_add(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        let (memory, rt) = (op.session().memory(), op.session().runtime());
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let numbering = rt.numbering();
        self.catch_up(memory, &mut known, numbering)?;
        let id = match self.find(memory, &mut known, perm)? {
            Some(id) => id,
            None => self.add(op, &mut known, perm)?,
        };
        if numbering % 2 == 1 {
            rt.note_number(id.into());
        }
        self.remember(id, perm, numbering);
        Ok(id)
    }

    /// Learns triples that others have added since, or all of them in another numbering.
    fn catch_up(&self, memory: &Memory, known: &mut Known, numbering: u64) -> Result<()> {
        if known.numbering != numbering || known.read == 0 {
            *known = Known { numbering, ..Known::default() };
            let mut free = None;
            self.for_each(memory, &mut |id, perm| match perm.mode {
                0 => _ = free.get_or_insert(u64::from(id)),
                _ => _ = known.index.entry(perm).or_insert(id),
            })?;
            known.read = free.unwrap_or(LIMIT);
            return Ok(());
        }
        while let Some(off) = self.at(memory, known.read)? {
            let there = memory.read(off)?;
            if there.mode == 0 {
                break;
            }
            known.index.entry(there).or_insert(known.read as u32);
            known.read += 1;
        }
        Ok(())
    }

    /// Calls `f` with all places of the table, as long as they have memory, and with the first of each chunk that has none.
    fn for_each(&self, memory: &Memory, f: &mut dyn FnMut(u32, RawPerm)) -> Result<()> {
        for n in 0..PERM_CHUNKS {
            let (chunk, first) = (self.chunk(memory, n)?, (n * PERM_CHUNK) as u32);
            if chunk == 0 {
                f(first, RawPerm { uid: 0, gid: 0, mode: 0 });
                continue;
            }
            let triples: [RawPerm; PERM_CHUNK as usize] = memory.read(Off::new(chunk))?;
            (first..).zip(triples).for_each(|(id, perm)| f(id, perm));
        }
        Ok(())
    }

    /// A triple that is known, if a sweep under way has not freed it.
    fn find(&self, memory: &Memory, known: &mut Known, perm: RawPerm) -> Result<Option<u32>> {
        let Some(id) = known.index.get(&perm).copied() else { return Ok(None) };
        match self.at(memory, id.into())? {
            Some(off) if memory.read(off)? == perm => Ok(Some(id)),
            _ => {
                known.index.remove(&perm);
                Ok(None)
            }
        }
    }

    /// Adds a triple in the first free place.
    fn add(&self, op: &mut Op, known: &mut Known, perm: RawPerm) -> Result<u32> {
        let (memory, rt) = (op.session().memory(), op.session().runtime());
        let id = known.read;
        if id >= CROWDED {
            rt.set_crowded();
        }
        if id >= LIMIT {
            return Err(Error::NoTriple);
        }
        let mut tx = op.tx()?;
        let at = match self.at(memory, id)? {
            Some(off) => off,
            None => {
                let chunk = tx.alloc(tag::PERM, PERM_CHUNK * size_of::<RawPerm>() as u64)?;
                tx.init_zero(chunk.off, chunk.cap)?;
                tx.set(self.chunks.index(id / PERM_CHUNK), &chunk.off)?;
                Off::<RawPerm>::new(chunk.off).index(id % PERM_CHUNK)
            }
        };
        tx.set(at, &perm)?;
        tx.commit()?;
        known.index.insert(perm, id as u32);
        known.read = id + 1;
        Ok(id as u32)
    }
}

/// A place in [`Perms::indices`].
#[inline(always)]
fn hash(perm: RawPerm) -> usize {
    let mixed =
        (u64::from(perm.uid) << 32 | u64::from(perm.gid)) ^ u64::from(perm.mode).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % CACHED
}

/// Makes the empty table.
pub fn format(op: &mut Op) -> Result<Off<u64>> {
    zeroed(op, tag::PERM, PERM_CHUNKS * 8).map(Off::new)
}
