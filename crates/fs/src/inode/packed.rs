//! Reading inodes of a packed block where they are.
//!
//! Readers read under the sequence counter of the inode or with its lock, as of a plain one: packing and unpacking
//! take the locks of all sixteen, so a look at bytes that have gone since is torn and repeated. The decoded bytes may thus be
//! anything; decoding is bounded and does not fail worse than with [`Error::Corrupt`]. The check code is for `fsck`, and for
//! unpacking.
//!
//! An inode that is only read stays packed: its access time goes to an object beside, of one time for each inode, which is made
//! when the first changes:
//! 1. The object, zeroed. A crash leaks it.
//! 2. One word of the block leads to it, unless another process was first.
//! 3. The time, one word, with the inode's lock held.

use std::mem::offset_of;

use pram::mem::crc32c;
use pram::{Off, Op, Sequence};
use zerocopy::{transmute, FromZeros};

use super::decoded::Form;
use super::{Block, Table};
use crate::error::{Error, Result};
use crate::layout::{tag, AccessTimes, RawInode, RawPacked, INODE, PER_BLOCK, PROFILES};
use crate::packed::bits::{Padded, LONGEST};
use crate::packed::block::{PROFILE_AT, READ_HEADER};
use crate::packed::Header;
use crate::Ino;

const _: () = assert!(LONGEST >= INODE as usize);
const ATIMES: u64 = size_of::<AccessTimes>() as u64;
/// Bytes before the coded inodes.
pub const CODED: u64 = size_of::<RawPacked>() as u64;
/// Position of the word with check code and length of the coded part.
const CHECK: u64 = offset_of!(RawPacked, check) as u64;
const _: () = assert!(CHECK % 8 == 0 && CHECK + 8 == CODED);

/// All of a packed block.
pub struct Whole {
    pub inodes: [Option<RawInode>; PER_BLOCK as usize],
    /// Offset of the access times, or 0.
    pub atimes: u64,
    /// Numbers, in the block, of inodes that are there and cannot be decoded.
    pub lost: Vec<u64>,
    /// The check code is right.
    pub is_whole: bool,
}

impl Table<'_> {
    #[inline(never)]
    pub(super) fn check_packed(&self, off: u64) -> Result<()> {
        self.memory.resolve(off, tag::PACKED)?;
        Ok(())
    }

    /// Reads an inode of the packed block that should be at `off`; false if it is not in use.
    #[inline(always)]
    pub(super) fn read_packed(&self, off: u64, ino: Ino, raw: &mut RawInode) -> Result<bool> {
        let seen = self.session.seen(ino);
        let form = Form { off, check: self.memory.load(Off::new(off + CHECK))? };
        if let Some(known) = seen.and_then(|seen| self.known.decoded.get(ino, seen, form)) {
            *raw = known;
            return Ok(true);
        }
        let mut decoded = RawInode::new_zeroed();
        let is_used = self.decode_and_remember(form, ino, seen, &mut decoded)?;
        *raw = decoded;
        Ok(is_used)
    }

    #[inline(never)]
    fn decode_and_remember(&self, form: Form, ino: Ino, seen: Option<Sequence>, raw: &mut RawInode) -> Result<bool> {
        let is_used = self.decode(form.off, ino, raw)?;
        if is_used && self.known.decoded.wants(ino) {
            if let Some(seen) = seen.filter(|seen| self.session.is_unchanged(ino, *seen)) {
                self.known.decoded.put(ino, seen, form, raw);
            }
        }
        Ok(is_used)
    }

    #[inline(always)]
    fn decode(&self, off: u64, ino: Ino, raw: &mut RawInode) -> Result<bool> {
        let end = off + self.memory.resolve(off, tag::PACKED)?;
        let n = ino % PER_BLOCK;
        let atimes = self.memory.load(Off::new(off))?;
        let head = self.packed_head(off, end)?;
        let Some(range) = head.place(n as usize) else { return Ok(false) };
        let at = off + CODED + range.start as u64;
        let mut bytes = [0; size_of::<Padded>()];
        self.read_until(end, at, &mut bytes)?;
        let profile = self.profile(head.profile)?;
        if !head.read_inode(profile, &bytes, range.len(), raw) {
            return Err(cannot_decode(ino));
        }
        if atimes != 0 {
            self.read_atime(atimes, n, raw)?;
        }
        Ok(true)
    }

    #[inline(always)]
    fn packed_head(&self, off: u64, end: u64) -> Result<Header> {
        let mut bytes = [0; READ_HEADER];
        self.read_until(end, off + CODED, &mut bytes)?;
        Header::read(&bytes).ok_or_else(|| no_head(off))
    }

    /// Reads the bytes from `at` on; those behind the object, which ends at `end`, stay as they are: there may be no memory.
    #[inline(always)]
    fn read_until<const N: usize>(&self, end: u64, at: u64, bytes: &mut [u8; N]) -> Result<()> {
        match at + N as u64 <= end {
            true => Ok(self.memory.read_bytes(at, bytes)?),
            false => self.read_last(end, at, bytes),
        }
    }

    #[cold]
    fn read_last(&self, end: u64, at: u64, bytes: &mut [u8]) -> Result<()> {
        let len = end.saturating_sub(at).min(bytes.len() as u64) as usize;
        Ok(self.memory.read_bytes(at, &mut bytes[..len])?)
    }

    /// That there are access times at this offset, and not a profile.
    #[inline(always)]
    fn check_atimes(&self, off: u64) -> Result<()> {
        match self.memory.resolve(off, tag::PACKING)? {
            ATIMES => Ok(()),
            _ => Err(Error::Corrupt(format!("there are no access times of packed inodes at {off:#x}"))),
        }
    }

    #[inline(always)]
    fn read_atime(&self, atimes: u64, n: u64, raw: &mut RawInode) -> Result<()> {
        self.check_atimes(atimes)?;
        match self.memory.load(Off::<u64>::new(atimes).index(n))? {
            0 => {}
            time => raw.atime = time as i64,
        }
        Ok(())
    }

    /// The lengths of the inodes of the packed block at `off`; 0: not in use.
    pub(super) fn packed_lengths(&self, off: u64) -> Result<[u8; PER_BLOCK as usize]> {
        let end = off + self.memory.resolve(off, tag::PACKED)?;
        Ok(self.packed_head(off, end)?.lengths)
    }

    /// Everything in the packed block at `off`, as far as it can be read; `None` if that is nothing.
    pub fn whole(&self, off: u64) -> Result<Option<Whole>> {
        let cap = self.memory.resolve(off, tag::PACKED)?;
        let mut bytes = vec![0; cap as usize];
        self.memory.read_bytes(off, &mut bytes)?;
        let Some((raw, coded)) = bytes.split_first_chunk_mut::<{ size_of::<RawPacked>() }>() else { return Ok(None) };
        let raw: RawPacked = transmute!(*raw);
        let mut is_checked = false;
        if let Some(checked) = coded.get_mut(..raw.bytes as usize) {
            is_checked = crc32c(checked) == raw.check;
            if !is_checked {
                mend_profile(checked, raw.check);
            }
        }
        let Some(head) = Header::read(coded) else { return Ok(None) };
        let Ok(profile) = self.profile(head.profile) else { return Ok(None) };
        let (mut inodes, mut lost) = ([None; PER_BLOCK as usize], Vec::new());
        for (n, inode) in inodes.iter_mut().enumerate() {
            let Some(range) = head.place(n) else { continue };
            *inode = coded.get(range).and_then(|coded| head.inode(profile, coded));
            if inode.is_none() {
                lost.push(n as u64);
            }
        }
        let is_whole = is_checked && raw.bytes as usize == head.bytes() && lost.is_empty();
        let atimes = self.memory.load(Off::new(off))?;
        if atimes != 0 && self.check_atimes(atimes).is_ok() {
            for (n, inode) in (0..).zip(&mut inodes) {
                inode.iter_mut().try_for_each(|inode| self.read_atime(atimes, n, inode))?;
            }
        }
        Ok(Some(Whole { inodes, atimes, lost, is_whole }))
    }

    /// Sets the access time of a packed inode whose lock `op` holds; false if it is not packed.
    pub fn set_packed_atime(&self, op: &mut Op, ino: Ino, time: i64) -> Result<bool> {
        let Block::Packed(off) = self.block(ino / PER_BLOCK)? else { return Ok(false) };
        let mut atimes = self.memory.load(Off::new(off))?;
        if atimes == 0 {
            // 1.
            let made = super::zeroed(op, tag::PACKING, ATIMES)?;
            // 2.
            atimes = match self.memory.install_word(Off::new(off), 0, made)? {
                true => made,
                false => {
                    let mut tx = op.tx()?;
                    tx.free(made, tag::PACKING)?;
                    tx.commit()?;
                    self.memory.load(Off::new(off))?
                }
            };
        }
        self.check_atimes(atimes)?;
        // 3.
        self.memory.commit_word(Off::<u64>::new(atimes).index(ino % PER_BLOCK), time as u64)?;
        Ok(true)
    }
}

/// Finds the number of the profile again, if nothing else is wrong with the coded bytes: without it all of them would be lost.
fn mend_profile(coded: &mut [u8], check: u32) {
    let Some(first) = coded.get(PROFILE_AT).copied() else { return };
    let found = (0..PROFILES as u8).any(|n| {
        coded[PROFILE_AT] = n;
        crc32c(coded) == check
    });
    if !found {
        coded[PROFILE_AT] = first;
    }
}

#[cold]
#[inline(never)]
fn cannot_decode(ino: Ino) -> Error {
    Error::Corrupt(format!("inode {ino} is packed and cannot be decoded"))
}

#[cold]
#[inline(never)]
fn no_head(off: u64) -> Error {
    Error::Corrupt(format!("the packed inodes at {off:#x} have no head"))
}
