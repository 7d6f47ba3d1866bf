//! Operations that lack something, and run again once they have it.
//!
//! An operation cannot wait for the host to give memory or for a disk, and takes no locks after its first ones. So an operation that finds
//! too little of something fails with an error that names it, before it has changed anything that it would not change again. This module,
//! and no other, provides it outside of the operation, and runs the operation again. All other code passes such an error up.
//!
//! Content on disk is the exception: it is fetched while the operation is suspended, which then enters it into the file itself
//! (`node::prepare`).

use pram::Session;
use rustix::io::Errno;

use crate::attr::Ino;
use crate::error::{Error, Lack, Result};

/// How often an operation runs at most. Others may take the memory or room provided for it before it runs again.
const MOST: u32 = 1 << 14;

/// Provides for lacks of operations. An operation that lacks anything else fails.
pub(crate) trait Provides {
    fn session(&self) -> &Session;

    /// Takes memory.
    fn memory(&mut self) -> Result<()> {
        self.session().supply_needed()?;
        Ok(())
    }

    /// Makes the block of a packed inode plain.
    fn plain(&mut self, ino: Ino) -> Result<()> {
        Err(Error::Packed(ino))
    }

    /// Frees triples that nothing uses.
    fn triples(&mut self) -> Result<()> {
        Err(Error::NoTriple)
    }

    /// Makes room.
    fn room(&mut self, lack: Lack) -> Result<()> {
        Err(Error::MustMakeRoom(lack))
    }

    /// An operation has failed for want of memory or room: true if there may be more now, and it runs again.
    fn more(&mut self, _failed: &Error) -> Result<bool> {
        Ok(false)
    }
}

/// Memory alone.
impl Provides for &Session {
    fn session(&self) -> &Session {
        self
    }
}

/// Runs `work`, which begins and ends an operation, until it lacks nothing that `by` provides.
#[inline(always)]
pub(crate) fn run<P: Provides, T>(by: &mut P, mut work: impl FnMut(&mut P) -> Result<T>) -> Result<T> {
    for _ in 0..MOST {
        match work(by) {
            Err(Error::MustGrow) => by.memory()?,
            Err(Error::Packed(ino)) => by.plain(ino)?,
            Err(Error::NoTriple) => by.triples()?,
            Err(Error::MustMakeRoom(lack)) => by.room(lack)?,
            Err(e @ (Error::Posix(Errno::NOSPC) | Error::DisksFull)) => match by.more(&e)? {
                true => {}
                false => return Err(e),
            },
            done => return done,
        }
    }
    Err(Errno::NOSPC.into())
}

/// [`run`] that provides memory alone.
pub(crate) fn with_memory<T>(session: &Session, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    run(&mut &*session, |_| work())
}

/// Is this an error of an operation that lacks something and runs again?
pub(crate) fn is_lack(e: &Error) -> bool {
    matches!(e, Error::MustGrow | Error::NoTriple | Error::MustMakeRoom(_) | Error::Packed(_) | Error::Elsewhere)
}

/// The result of work that is left undone where there is no room for it: `None` then.
pub(crate) fn if_there_is_room<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(e) if e.is_full() => Ok(None),
        Err(e) => Err(e),
    }
}
