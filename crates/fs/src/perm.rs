//! The shared table of (uid, gid, mode) triples (mramfs, 3.3.1): an inode holds an index into it.
//!
//! Triples are appended, never changed, and kept while the pool is open; an offline `fsck --repair` frees
//! the unused ones. So what a process has read of the table stays true.

use std::collections::HashMap;
use std::sync::RwLock;

use pram::{Off, Op, Region};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::layout::{tag, RawPerm, MAX_INODES, PERM_CHUNK, PERM_CHUNKS};

/// The lock that protects appending: a key beyond all inode numbers.
const PERM_KEY: u64 = MAX_INODES + 1;

/// A process's knowledge of the table.
pub struct Perms {
    /// Offsets of chunks.
    chunks: Off<u64>,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    index: HashMap<RawPerm, u32>,
    /// Triples read so far.
    read: u32,
}

impl Perms {
    pub fn new(chunks: Off<u64>) -> Self {
        Perms { chunks, known: RwLock::default() }
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
    #[inline]
    pub fn get(&self, region: &Region, id: u32) -> Result<RawPerm> {
        let perm = match self.at(region, id)? {
            Some(off) => region.read(off)?,
            None => RawPerm { uid: 0, gid: 0, mode: 0 },
        };
        if perm.mode == 0 {
            return Err(Error::Corrupt(format!("permission triple {id} does not exist")));
        }
        Ok(perm)
    }

    /// The index of a triple, appended if it is new. Takes locks: call it before the operation's own.
    #[inline]
    pub fn intern(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        if let Some(id) = self.read().index.get(&perm) {
            return Ok(*id);
        }
        self.intern_slow(op, perm)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(|e| e.into_inner())
    }

    #[cold]
    fn intern_slow(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        op.lock(&[PERM_KEY])?;
        let id = self.append(op, perm);
        op.unlock();
        id
    }

    fn append(&self, op: &mut Op, perm: RawPerm) -> Result<u32> {
        let region = op.session().region();
        let mut known = self.known.write().unwrap_or_else(|e| e.into_inner());
        // Others may have appended since.
        while let Some(off) = self.at(region, known.read)? {
            let there = region.read(off)?;
            if there.mode == 0 {
                break;
            }
            let id = known.read;
            known.index.insert(there, id);
            known.read += 1;
        }
        if let Some(id) = known.index.get(&perm) {
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
        Ok(id)
    }

    /// Heap objects of the table.
    pub fn visit(&self, region: &Region, object: &mut dyn FnMut(u64, pram::Tag)) -> Result<()> {
        object(self.chunks.raw(), tag::PERM);
        for chunk in 0..PERM_CHUNKS {
            match region.load(self.chunks.index(chunk))? {
                0 => {}
                off => object(off, tag::PERM),
            }
        }
        Ok(())
    }
}

/// Makes the empty table.
pub fn format(op: &mut Op) -> Result<Off<u64>> {
    let mut tx = op.tx()?;
    let block = tx.alloc(tag::PERM, PERM_CHUNKS * 8)?;
    tx.init_zero(block.off, PERM_CHUNKS * 8)?;
    tx.commit()?;
    Ok(Off::new(block.off))
}
