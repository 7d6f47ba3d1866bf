//! Admission: pages that lie on disk alone, and were read again, come into a block of the union cache.
//!
//! A page that is read the first time stays for a while in the process that reads ([`super::fetch`]). If bytes of a page are read a second time
//! while it stays, or soon after it left, it is worth shared memory. So a scan, however long, brings nothing in. Admission takes only free
//! memory, or blocks that the hand of the clock evicts since they were not used since its last round: a page that finds none is admitted
//! at its next reading, or not.

use std::ops::Range;

use pram::memory::BLOCK;
use pram::Session;

use super::inodes::{regular, Inodes};
use super::room::HIGH;
use super::{all_memory, count, free_memory, usage, Count, Union};
use crate::error::Result;
use crate::file::{self, Fetched};
use crate::retry::with_memory;
use ilfs::table::ORDERING;

/// Pages that one transaction lets in.
const PIECE: u64 = 256;

impl Union {
    /// Admits pages that were `fetched` for a reader of these pages of a file, and read again, as far as there is memory. An error
    /// here does not concern the reader.
    pub(crate) fn admit(&self, fs: &dyn Inodes, ino: u64, pages: Range<u64>, fetched: &Fetched) {
        let wanted = fetched.read_again();
        if wanted == 0 {
            return;
        }
        let mut from = pages.start;
        while from < pages.end {
            let piece = from..pages.end.min(from + PIECE);
            from = piece.end;
            match self.admit_some(fs, ino, piece.clone(), fetched, wanted.min(piece.end - piece.start)) {
                Ok(admitted) => count(fs.session(), Count::Admitted, admitted),
                Err(e) => return tracing::debug!("pages of inode {ino} are not let into the cache: {e}"),
            }
        }
    }

    fn admit_some(&self, fs: &dyn Inodes, ino: u64, pages: Range<u64>, fetched: &Fetched, wanted: u64) -> Result<u64> {
        if !self.has_memory_for(fs, wanted)? {
            return Ok(0);
        }
        with_memory(fs.session(), || try_admit(fs, ino, pages.clone(), fetched))
    }

    /// Whether there is memory for so many more pages that is not wanted for something else, also by evicting now.
    fn has_memory_for(&self, fs: &dyn Inodes, pages: u64) -> Result<bool> {
        let session = fs.session();
        let lacks = || self.lacks(session, pages);
        match lacks() {
            0 => Ok(true),
            some => {
                self.evict_passed(fs, some)?;
                Ok(lacks() == 0)
            }
        }
    }

    /// Blocks that have to go before so many come in.
    fn lacks(&self, session: &Session, pages: u64) -> u64 {
        let beyond = (usage(session).used + pages).saturating_sub(self.most(session));
        let kept = all_memory(session) / HIGH / BLOCK;
        beyond.max((kept + pages).saturating_sub(free_memory(session) / BLOCK))
    }
}

fn try_admit(fs: &dyn Inodes, ino: u64, pages: Range<u64>, fetched: &Fetched) -> Result<u64> {
    fs.writable()?;
    let mut op = fs.session().begin()?;
    op.lock(&[ino])?;
    // Another operation is in the midst of a change of the file, or gives its pages other numbers.
    if op.is_long_locked(ino) || op.is_long_locked(ORDERING) {
        return Ok(0);
    }
    let Some(node) = regular(fs, ino)? else { return Ok(0) };
    let content = node.content();
    if !content.is_large() || content.is_cut() {
        return Ok(0);
    }
    let mut tx = op.tx()?;
    let mut edit = fs.edit(&mut tx);
    let admitted = file::admit(&mut edit, &content, pages, fetched)?;
    edit.finish()?;
    tx.commit()?;
    Ok(admitted)
}
