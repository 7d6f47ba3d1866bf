//! Packing and unpacking of inodes: who asks for it.
//!
//! Inodes that have been quiet are packed, block by block, by who goes over the table ([`Fs::pack_inodes`]). Whoever is to change a
//! packed one fails with [`Error::Packed`] before anything has changed; its block is then unpacked outside the operation,
//! which begins anew, as after content was fetched. An access time alone unpacks nothing.

use std::ops::Range;

use pram::Op;
use rustix::io::Errno;

use super::{Fs, Node};
use crate::attr::{Ino, Time};
use crate::error::{Error, Result};
use crate::fsck::mark::Marks;
use crate::inode::pack::{self, Left};
use crate::inode::InodePlace;
use crate::layout::PER_BLOCK;

pub use crate::inode::pack::Packed;

impl Node {
    /// Where the inode can be changed.
    #[inline(always)]
    pub fn plain(&self) -> Result<InodePlace> {
        match self.place.is_nowhere() {
            false => Ok(self.place),
            true => Err(Error::Packed(self.ino)),
        }
    }
}

impl Fs {
    /// Packs the inodes of these blocks, of [`PER_BLOCK`] numbers each, that have not changed since `quiet_since`, in nanoseconds,
    /// block by block, until `go_on` says no.
    pub fn pack_inodes(&self, blocks: Range<u64>, quiet_since: Time, go_on: &dyn Fn() -> bool) -> Result<Packed> {
        self.writable()?;
        // Sweeps and checks must not see blocks go.
        let _marks = Marks::begin(self.session())?;
        pack::pack(self.session(), self.table(), blocks, quiet_since.0, go_on)
    }

    /// Packs the block of `ino` if that is quiet.
    pub fn pack_inodes_beside(&self, ino: Ino, quiet_since: Time) -> Result<Packed> {
        let block = ino / PER_BLOCK;
        self.pack_inodes(block..block + 1, quiet_since, &|| true)
    }

    /// Makes the block of `ino` plain, if it is packed.
    pub fn unpack_inodes_beside(&self, ino: Ino) -> Result<()> {
        self.writable()?;
        self.unpack(ino)
    }

    /// What is packed now.
    pub fn packed_inodes(&self) -> Result<Packed> {
        pack::count(self.table())
    }

    /// The end of the inode table, in blocks.
    pub fn inode_blocks(&self) -> u64 {
        crate::inode::max_inodes(self.region().size()) / PER_BLOCK
    }

    /// The offset of the word that leads to a block of inodes, for tests and tools; 0: there is none.
    pub fn inode_block_word(&self, block: u64) -> u64 {
        self.table().block_word(block).ok().flatten().map_or(0, |word| word.raw())
    }

    /// Unpacks the block of `ino`, outside of operations.
    #[cold]
    #[inline(never)]
    pub(crate) fn unpack(&self, ino: Ino) -> Result<()> {
        loop {
            let mut left = Left::default();
            let done = self.unpack_once(ino, &mut left);
            left.free(self.session())?;
            match done {
                Err(Error::MustGrow) => _ = self.session().supply_needed()?,
                Err(e) => match self.lack(&e) {
                    Some(lack) => self.make_room(lack)?,
                    None => return Err(e),
                },
                done => return done,
            }
        }
    }

    fn unpack_once(&self, ino: Ino, left: &mut Left) -> Result<()> {
        let mut op = self.aside()?;
        pack::unpack(&mut op, self.table(), ino, left)
    }

    /// Runs `work`, which no caller waits for, in an operation; again where an inode had to be unpacked for it.
    pub(super) fn beside(&self, mut work: impl FnMut(&mut Op) -> Result<()>) -> Result<()> {
        loop {
            let mut op = self.aside()?;
            let done = work(&mut op);
            drop(op);
            match done {
                Err(Error::Packed(ino)) => self.unpack(ino)?,
                done => return done,
            }
        }
    }

    /// Sets the access time of an inode that is packed, whose lock `op` holds; false if it is not.
    pub(super) fn store_packed_atime(&self, op: &mut Op, ino: Ino, time: Time) -> Result<bool> {
        self.table().set_packed_atime(op, ino, time.0)
    }

    /// [`unpack`](Self::unpack) in an operation of who holds everybody up.
    pub(crate) fn unpack_held(&self, mut op: Op, ino: Ino) -> Result<()> {
        let mut left = Left::default();
        pack::unpack(&mut op, self.table(), ino, &mut left)?;
        left.free_in(&mut op)
    }

    /// The same for a damaged block, of which what can be read stays.
    pub(crate) fn salvage_held(&self, op: &mut Op, block: u64) -> Result<String> {
        let mut left = Left::default();
        let told = pack::salvage(op, self.table(), block, &mut left)?;
        left.free_in(op)?;
        Ok(told)
    }
}

/// Of a note that needs memory: there is none, and nobody has to have it.
pub(super) fn is_full(e: &Error) -> bool {
    e.errno() == Errno::NOSPC
}
