//! The shared table of (uid, gid, mode) triples (mramfs, 3.3.1): an inode holds an index into it.
//!
//! Triples are appended and never changed or freed, so what a process has read of the table stays true.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use pram::{Off, Op, Region};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::inode::zeroed;
use crate::layout::{tag, RawPerm, MAX_INODES, PERM_CHUNK, PERM_CHUNKS};

/// The lock that protects appending: a key beyond all inode numbers.
const PERM_KEY: u64 = MAX_INODES + 1;

/// A process's knowledge of the table.
pub struct Perms {
    /// Offsets of chunks.
    chunks: Off<u64>,
    known: Mutex<Known>,
    /// The first triples, by index; and indices by a hash of their triple. Triples never change, so these
    /// need no lock.
    triples: Box<[Cached]>,
    indices: Box<[AtomicU64]>,
}

/// Triples held in [`Perms::triples`], and places in [`Perms::indices`].
const CACHED: usize = 1024;

/// A triple in two words; the second is 0 until it is known.
#[derive(Default)]
struct Cached {
    uid_gid: AtomicU64,
    mode: AtomicU64,
}

#[derive(Default)]
struct Known {
    index: HashMap<RawPerm, u32>,
    /// Triples read so far.
    read: u32,
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

    fn at(&self, region: &Region, id: u32) -> Result<Option<Off<RawPerm>>> {
        let (chunk, n) = (u64::from(id) / PERM_CHUNK, u64::from(id) % PERM_CHUNK);
        if chunk >= PERM_CHUNKS {
            return Ok(None);
        }
        let off = region.load(self.chunks.index(chunk))?;
        if off == 0 {
            return Ok(None);
        }
        region.resolve(off, tag::PERM)?;
        Ok(Some(Off::<RawPerm>::new(off).index(n)))
    }

    /// The triple with index `id`.
    #[inline(always)]
    pub fn get(&self, region: &Region, id: u32) -> Result<RawPerm> {
        match self.cached(id) {
            Some(perm) => Ok(perm),
            None => self.get_slow(region, id),
        }
    }

    #[inline(always)]
    fn cached(&self, id: u32) -> Option<RawPerm> {
        let cached = self.triples.get(id as usize)?;
        let mode = cached.mode.load(Ordering::Acquire);
        let ids = cached.uid_gid.load(Ordering::Relaxed);
        (mode != 0).then_some(RawPerm { uid: ids as u32, gid: (ids >> 32) as u32, mode: mode as u32 })
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, region: &Region, id: u32) -> Result<RawPerm> {
        let perm = match self.at(region, id)? {
            Some(off) => region.read(off)?,
            None => RawPerm { uid: 0, gid: 0, mode: 0 },
        };
        if perm.mode == 0 {
            return Err(Error::Corrupt(format!("permission triple {id} does not exist")));
        }
        Ok(perm)
    }

    /// Forgets what this process knows of the table, after repair has changed it.
    pub fn forget(&self) {
        *self.known.lock().unwrap_or_else(|e| e.into_inner()) = Known::default();
        self.indices.iter().for_each(|i| i.store(0, Ordering::Release));
        self.triples.iter().for_each(|t| t.mode.store(0, Ordering::Release));
    }

    /// Remembers a triple that is committed: from now on it never changes.
    fn remember(&self, id: u32, perm: RawPerm) {
        if let Some(cached) = self.triples.get(id as usize) {
            cached.uid_gid.store(u64::from(perm.uid) | u64::from(perm.gid) << 32, Ordering::Relaxed);
            cached.mode.store(u64::from(perm.mode), Ordering::Release);
            self.indices[hash(perm)].store(u64::from(id) + 1, Ordering::Release);
        }
    }

    /// The index of a triple, if it is at hand.
    #[inline(always)]
    pub fn known(&self, perm: RawPerm) -> Option<u32> {
        let id = self.indices[hash(perm)].load(Ordering::Acquire).checked_sub(1)? as u32;
        (self.cached(id)? == perm).then_some(id)
    }

    /// The index of a triple, appended if it is new. Takes locks: call it before the operation's own.
    #[inline(always)]
    pub fn intern(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        match self.known(perm) {
            Some(id) => Ok(id),
            None => self.intern_slow(op, perm),
        }
    }

    #[cold]
    #[inline(never)]
    fn intern_slow(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        op.lock(&[PERM_KEY])?;
        let id = self.append(op, perm);
        op.unlock();
        id
    }

    fn append(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        let region = op.session().region();
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        // Others may have appended since.
        while let Some(off) = self.at(region, known.read)? {
            let there = region.read(off)?;
            if there.mode == 0 {
                break;
            }
            let id = known.read;
            known.index.insert(there, id);
            known.read += 1;
            self.remember(id, there);
        }
        if let Some(id) = known.index.get(&perm) {
            self.remember(*id, perm);
            return Ok(*id);
        }
        let id = known.read;
        if u64::from(id) >= PERM_CHUNK * PERM_CHUNKS {
            return Err(Errno::NOSPC.into());
        }
        let mut tx = op.tx()?;
        let at = match self.at(region, id)? {
            Some(off) => off,
            None => {
                let chunk = tx.alloc(tag::PERM, PERM_CHUNK * size_of::<RawPerm>() as u64)?;
                tx.init_zero(chunk.off, chunk.cap)?;
                tx.set(self.chunks.index(u64::from(id) / PERM_CHUNK), &chunk.off)?;
                Off::new(chunk.off)
            }
        };
        tx.set(at, &perm)?;
        tx.commit()?;
        known.index.insert(perm, id);
        known.read = id + 1;
        self.remember(id, perm);
        Ok(id)
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
