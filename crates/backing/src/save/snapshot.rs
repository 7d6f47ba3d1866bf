//! A memory as of one instant, in a file of its own, while operations go on.
//!
//! With a backing a snapshot is the state of a commit, taken by the same [rounds](crate::rounds):
//! 1. From now on commits [trace](pram::marks) the pages that they have written.
//! 2. All of the memory that a backing holds is read, while it changes.
//! 3. Traced pages are read again, until few are left.
//! 4. A commit that this process leads: its lines come here too. Its instant is the snapshot's.
//!
//! So operations stand still for no longer than for any commit, and a snapshot equals the backing at that instant: it
//! has content only of blocks without a place.
//!
//! Without a backing, or with one that has failed, nothing marks changes: operations wait until all is read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{host, nameless};
use crate::commit::Backing;
use crate::image::PAGE;
use pram::error::{Error, Result};
use pram::marks::Marks;
use pram::medium::{MediumKind, Ram};
use pram::mem::Mapping;
use pram::memory::Memory;
use pram::session::Session;

/// Bytes that are read at a time.
const PIECE: u64 = 64 << 10;
/// So few changed pages are read again while commits wait.
const FEW: u64 = 1024;
/// Most times that changed pages are read before that: if more change all the time, commits wait a little longer.
const ROUNDS: u32 = 8;

/// The memory as of one instant.
pub struct Snapshot {
    memory: Memory,
    /// Nanoseconds since 1970.
    pub time: i64,
    /// Of blocks, only those without a place have content.
    pub unplaced: bool,
    /// Something may have to be swept.
    pub to_sweep: bool,
}

impl Snapshot {
    /// Takes a snapshot into a file without a name, in the directory of `path`.
    pub fn take(session: &Session, path: &Path) -> Result<Snapshot> {
        let memory = session.memory();
        let to = Sink { file: nameless(path)?, path };
        let by_commit = match (crate::of(session), memory.marks()) {
            (Some(backing), Some(marks)) if !session.runtime().backing_failed() => {
                match by_rounds(session, backing, marks, &to) {
                    // The backing has just failed: the more reason to save the memory.
                    Err(_) if session.runtime().backing_failed() => None,
                    done => Some(done?),
                }
            }
            _ => None,
        };
        let unplaced = by_commit.is_some() || memory.info.medium == MediumKind::Logged;
        let (time, to_sweep) = by_commit.map_or_else(|| at_rest(session, &to), Ok)?;
        let size = memory.size();
        to.file.set_len(size).map_err(|e| to.failed(e))?;
        let map = Mapping::file_private(&to.file, size).map_err(Error::host("mapping what is saved"))?;
        let medium = Box::new(Ram::like(memory.info.medium));
        Ok(Snapshot { memory: Memory::open(map, medium)?, time, unplaced, to_sweep })
    }

    /// The memory, mapped for this process alone: nobody else sees stores there.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn into_memory(self) -> Memory {
        self.memory
    }
}

/// The file of a snapshot.
struct Sink<'a> {
    file: File,
    path: &'a Path,
}

impl Sink<'_> {
    fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| self.failed(e))
    }

    fn failed(&self, e: std::io::Error) -> Error {
        host(self.path, "keeping the memory as it is, for", e)
    }

    fn read(&self, memory: &Memory, range: std::ops::Range<u64>, piece: &mut [u8]) -> Result<()> {
        for at in range.clone().step_by(PIECE as usize) {
            let bytes = &mut piece[..PIECE.min(range.end - at) as usize];
            memory.read_bytes(at, bytes)?;
            self.put(at, bytes)?;
        }
        Ok(())
    }
}

fn is_to_sweep(session: &Session) -> Result<bool> {
    Ok(session.runtime().leaks_pending() || session.runtime().any_reference()?)
}

fn at_rest(session: &Session, to: &Sink) -> Result<(i64, bool)> {
    let memory = session.memory();
    let _frozen = session.freeze()?;
    let mut piece = vec![0; PIECE as usize];
    memory.held()?.into_iter().try_for_each(|range| to.read(memory, range, &mut piece))?;
    Ok((pram::clock::precise(), is_to_sweep(session)?))
}

fn by_rounds(session: &Session, backing: &Backing, marks: &Marks, to: &Sink) -> Result<(i64, bool)> {
    let (memory, mut piece) = (session.memory(), vec![0; PIECE as usize]);
    let _alone = Saver::begin(session)?;
    // 1.
    let trace = marks.trace()?;
    // 2.
    memory.copied()?.into_iter().try_for_each(|range| to.read(memory, range, &mut piece))?;
    // 3.
    let mut again = || -> Result<u64> {
        let mut count = 0;
        trace.take(&mut |page| {
            count += 1;
            to.read(memory, page * PAGE..(page + 1) * PAGE, &mut piece)
        })?;
        Ok(count)
    };
    for _ in 0..ROUNDS {
        backing.wait(session)?;
        if again()? <= FEW {
            break;
        }
    }
    let mut to_sweep = is_to_sweep(session)?;
    // 4.
    let mut lines = Vec::new();
    let time = backing.lead_seen(session, &mut || again().map(drop), &mut |at, bytes| {
        lines.push((at, bytes.to_vec()));
        Ok(())
    })?;
    // Others may have had references between the two looks.
    to_sweep |= is_to_sweep(session)? || session.runtime().any_other();
    lines.iter().try_for_each(|(at, bytes)| to.put(*at, bytes))?;
    Ok((time, to_sweep))
}

/// One process saves at a time, since a traced page is taken only once.
struct Saver<'a>(&'a Session);

impl Saver<'_> {
    fn begin(session: &Session) -> Result<Saver<'_>> {
        match session.take_role(session.runtime().saver())? {
            true => Ok(Saver(session)),
            false => Err(Error::Unusable("the pool is being saved already; try again when that has ended".into())),
        }
    }
}

impl Drop for Saver<'_> {
    fn drop(&mut self) {
        self.0.runtime().saver().store(0, std::sync::atomic::Ordering::SeqCst);
    }
}
