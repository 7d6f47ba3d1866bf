//! Packing and unpacking of inodes, for all of `node`.
//!
//! Inodes that have been quiet are packed, block by block, by a walk over the table ([`Fs::pack_inodes`]). A change of a
//! packed one fails with [`Error::Packed`] before anything has changed; its block is then unpacked outside the operation,
//! which begins anew, as after content was fetched. An access time alone unpacks nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pram::Op;

use super::{now, Fs, PackedNames};
use crate::attr::{Ino, Time};
use crate::dir;
use crate::error::Result;
use crate::inode::packing::{self, Left, Memory, Purpose};
use crate::inode::profiles;
use crate::layout::{RawInode, PER_BLOCK, PROFILES};
use crate::packed::seen::Seen;
use crate::retry::with_memory;
use crate::setting::Times;

pub use crate::inode::packing::Packed;

/// If memory is full, blocks are packed that have not changed for so long, in nanoseconds.
const QUIET: i64 = 1_000_000_000;
/// Blocks that are looked at for that together, and rounds over them.
const SOME: u64 = 1024;
const WANTED: u64 = 4;

/// Inodes that a profile is made of, at most.
const TRAINED: usize = 1 << 15;
/// Names of one directory that one is made of.
const NAMES: usize = 4096;
/// Inodes that are worth a profile of their own.
const WORTH: usize = 1 << 14;
/// As many of a sample are worth one whose times are kept in seconds, since others are wide of them.
const WORTH_SECONDS: usize = 1 << 12;

impl Fs {
    /// Packs the inodes of these blocks, of [`PER_BLOCK`] numbers each, that have not changed since `quiet_since`, in nanoseconds,
    /// block by block, until `go_on` says no.
    pub fn pack_inodes(&self, blocks: Range<u64>, quiet_since: Time, go_on: &dyn Fn() -> bool) -> Result<Packed> {
        self.writable()?;
        // Sweeps and checks must not see blocks go; and if this process dies, a sweep frees the rest.
        let _no_sweep = self.session().without_sweeps()?;
        let _unfinished = self.session().unfinished();
        packing::pack(self.session(), self.table(), blocks, quiet_since.0, go_on)
    }

    /// Packs the names in the directories among the inodes of these blocks, and then the inodes: a directory of which the inode is
    /// packed is passed over.
    pub fn pack_metadata(
        &self,
        blocks: Range<u64>,
        quiet_since: Time,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(PackedNames, Packed)> {
        let names = self.pack_names(blocks.clone(), quiet_since, go_on)?;
        Ok((names, self.pack_inodes(blocks, quiet_since, go_on)?))
    }

    /// Packs the block of `ino` if that is quiet.
    pub fn pack_inodes_beside(&self, ino: Ino, quiet_since: Time) -> Result<Packed> {
        let block = ino / PER_BLOCK;
        self.pack_inodes(block..block + 1, quiet_since, &|| true)
    }

    /// Makes the block of `ino` plain, if it is packed.
    pub fn unpack_inodes_beside(&self, ino: Ino) -> Result<()> {
        self.writable()?;
        self.unpack_block_for(ino, Purpose::Change, &[])
    }

    /// The inodes that are packed now.
    pub fn packed_inodes(&self) -> Result<Packed> {
        packing::count(self.table())
    }

    /// The end of the inode table, in blocks.
    pub fn inode_blocks(&self) -> u64 {
        crate::inode::max_inodes(self.memory().size()) / PER_BLOCK
    }

    /// The offset of the word that leads to a block of inodes, for tests and tools; 0: there is none.
    pub fn inode_block_word(&self, block: u64) -> u64 {
        self.table().block_word(block).ok().flatten().map_or(0, |word| word.raw())
    }

    /// How many profiles inodes can be packed with.
    pub fn profiles(&self) -> Result<usize> {
        Ok(self.table().profiles()?.len())
    }

    /// Adds a profile to those that inodes are packed with; each block is with the one that makes the least of it. Its number.
    pub fn add_profile(&self, bytes: &[u8]) -> Result<u8> {
        self.writable()?;
        // The first is the one that comes with the program.
        profiles::make_first(self.session(), self.table())?;
        profiles::add(self.session(), bytes)
    }

    /// Makes a profile of the inodes that the pool has, and adds it; its number, if there are any.
    pub fn train_profile(&self) -> Result<Option<u8>> {
        self.train_on(Time(i64::MAX), 1)
    }

    /// The same of those that have not changed since then, if the pool has no profile of its own, and of those enough.
    pub fn train_first_profile(&self, quiet_since: Time) -> Result<()> {
        match profiles::numbers(self.memory())?.len() <= 1 && self.count_inodes()? >= WORTH as u64 {
            true => self.train_on(quiet_since, WORTH).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Another profile for inodes whose times are kept in seconds, if there are enough of them and the existing profiles code them much
    /// worse, as one of exact times does: it has no short code for times without nanoseconds.
    pub fn train_profile_of_seconds(&self, quiet_since: Time) -> Result<Option<u8>> {
        let seen = self.sample(quiet_since, |raw| raw.times() == Times::Seconds, WORTH_SECONDS)?;
        let Some(seen) = seen else { return Ok(None) };
        let profile = profiles::of(&seen);
        match profiles::numbers(self.memory())?.len() < PROFILES && profiles::is_worth(self.table(), &seen, &profile)? {
            true => self.add_profile(&profile.to_bytes()).map(Some),
            false => Ok(None),
        }
    }

    fn train_on(&self, quiet_since: Time, least: usize) -> Result<Option<u8>> {
        let seen = self.sample(quiet_since, |_| true, least)?;
        seen.map(|seen| self.add_profile(&profiles::of(&seen).to_bytes())).transpose()
    }

    /// Samples of inodes, and of the names in directories among them.
    fn sample(&self, quiet_since: Time, meant: fn(&RawInode) -> bool, least: usize) -> Result<Option<Seen>> {
        let mut names = |ino: Ino, raw: &RawInode, seen: &mut Seen| self.see_names(ino, raw, seen);
        profiles::sample(self.session(), self.table(), TRAINED, (quiet_since.0, meant), least, &mut names)
    }

    /// The names in a directory, for a profile. Unreadable ones are for fsck to report.
    fn see_names(&self, ino: Ino, raw: &RawInode, seen: &mut Seen) {
        let mut found = Vec::new();
        let read = self.session().read(ino, || {
            found.clear();
            match raw.is_dir() {
                true => dir::read(self.memory(), &self.names(), &self.dir_node(ino)?.dir(), 0, &mut |_, name, _| {
                    found.push(name.to_vec());
                    found.len() < NAMES
                }),
                false => Ok(()),
            }
        });
        if read.is_ok() {
            found.iter().for_each(|name| seen.add_name(name));
        }
    }

    /// Unpacks the block of `ino`, outside of operations. If memory is full: 1. For a removal, the block becomes one of those that are
    /// kept for this. 2. Other memory is given up. 3. Empty blocks go back. 4. Other blocks are packed, quiet ones first, but
    /// none of `unpacked`, which the caller needs too.
    #[cold]
    #[inline(never)]
    pub(crate) fn unpack_block_for(&self, ino: Ino, purpose: Purpose, unpacked: &[Ino]) -> Result<()> {
        loop {
            let full = match self.unpack_if_room(ino, purpose) {
                Err(e) if e.is_full() => e,
                done => return done,
            };
            match self.lack(&full) {
                // 2.
                Some(lack) => self.make_room(lack)?,
                None => return self.unpack_full(ino, purpose, unpacked),
            }
        }
    }

    /// The same for a caller that makes room itself, or that no process waits for: no more than step 1.
    ///
    /// # Errors
    /// ENOSPC if memory is full.
    #[cold]
    #[inline(never)]
    pub(crate) fn unpack_if_room(&self, ino: Ino, purpose: Purpose) -> Result<()> {
        match with_memory(self.session(), || self.unpack_once(ino, Memory::Heap)) {
            Err(e) if e.is_full() && purpose == Purpose::Removal => self.unpack_once(ino, Memory::Spare),
            done => done,
        }
    }

    #[cold]
    fn unpack_full(&self, ino: Ino, purpose: Purpose, unpacked: &[Ino]) -> Result<()> {
        // 3 and 4.
        self.before_waiting()?;
        if self.give_back()? == 0 {
            self.pack_some_inodes(unpacked)?;
        }
        self.unpack_if_room(ino, purpose)
    }

    /// Packs inodes, wherever some can be: some that have just changed rather than none, but none of the blocks of `except`.
    fn pack_some_inodes(&self, except: &[Ino]) -> Result<()> {
        for since in [Time(now().0.saturating_sub(QUIET)), Time(i64::MAX)] {
            let (mut next, all) = (0, self.inode_blocks());
            while next < all {
                let (from, end) = (next, all.min(next + SOME));
                let excepted =
                    except.iter().map(|ino| ino / PER_BLOCK).filter(|block| (from..end).contains(block)).min();
                let end = excepted.unwrap_or(end);
                next = end + u64::from(excepted.is_some());
                let wanted = AtomicU64::new(WANTED);
                let go_on = || wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
                if self.pack_inodes(from..end, since, &go_on)?.blocks > 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn unpack_once(&self, ino: Ino, memory: Memory) -> Result<()> {
        let _unfinished = self.session().unfinished();
        let mut left = Left::default();
        let done = self.unpack_in(ino, memory, &mut left);
        left.free(self.session())?;
        done
    }

    fn unpack_in(&self, ino: Ino, memory: Memory, left: &mut Left) -> Result<()> {
        let mut op = self.aside()?;
        packing::unpack(&mut op, self.table(), ino, memory, left)
    }

    /// Sets the access time of a packed inode, whose lock `op` holds; false if it is not packed.
    pub(super) fn store_packed_atime(&self, op: &mut Op, ino: Ino, time: Time) -> Result<bool> {
        self.table().set_packed_atime(op, ino, time.0)
    }

    /// Unpacks the block of `ino` in an operation of a caller that holds up all others.
    pub(crate) fn unpack_held(&self, mut op: Op, ino: Ino) -> Result<()> {
        let mut left = Left::default();
        packing::unpack(&mut op, self.table(), ino, Memory::Heap, &mut left)?;
        left.free_in(&mut op)
    }

    /// The same for a damaged block, whose readable inodes stay.
    pub(crate) fn salvage_held(&self, op: &mut Op, block: u64) -> Result<String> {
        packing::salvage(op, self.table(), block)
    }
}

#[cfg(test)]
mod tests;
