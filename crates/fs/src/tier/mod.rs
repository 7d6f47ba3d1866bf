//! Files move between memory and disk, and room is made in both.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`room`] | memory and disk room for the next writes; the thread that provides both |
//! | `guest` | room for a process that leaves disks to others |
//! | [`residence`] | files move, piece by piece, while others use them |
//! | [`demote`] | where memory is short, cold small files go to disk |
//! | [`follow`] | files whose threshold says that they lie on the wrong side |
//! | [`sort`] | files whose content lies otherwise on disks than their setting says |
//!
//! A process's knowledge for it, without moving a file, is part of the [cache](crate::ubj).

use pram::Session;

use crate::compress::shortage;
use crate::error::{Lack, Result};
use crate::node::shortage::MakesRoom;
use crate::node::{Fs, Policy};
use crate::Ino;

mod demote;
mod follow;
mod guest;
mod residence;
mod room;
mod sort;

pub use follow::Survey;

/// All that makes room: files are compressed, written and moved.
struct Tiers;

impl MakesRoom for Tiers {
    fn make_room(&self, fs: &Fs, lack: Lack) -> Result<()> {
        fs.union().map_or(Ok(()), |union| union.make_room(fs, lack))
    }

    fn free_memory(&self, fs: &Fs, freed: u64) -> Result<bool> {
        shortage::free_memory(fs, freed)
    }

    fn free_memory_ahead(&self, fs: &Fs) -> Result<()> {
        shortage::free_memory_ahead(fs)
    }

    fn wait_behind(&self, fs: &Fs) -> Result<()> {
        fs.union().map_or(Ok(()), |union| union.wait_behind(fs))
    }

    fn move_to_disk(&self, fs: &Fs, ino: Ino) -> Result<()> {
        fs.union().map_or(Ok(()), |union| union.move_to_disk(fs, ino))
    }
}

impl Fs {
    /// The file system in the memory that `session` is attached to.
    pub fn over(session: Session, policy: Policy) -> Result<Fs> {
        let above: &dyn MakesRoom = if session.is_guest() { &guest::Asking } else { &Tiers };
        Fs::below(session, policy, above)
    }
}
