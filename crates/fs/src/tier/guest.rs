//! Room for a guest ([`pram::session::Kind`]), which leaves disks to others: it asks its attendant, and waits.

use std::time::Duration;

use pram::session::assert_may_wait;

use crate::compress::shortage;
use crate::error::{Error, Lack, Result};
use crate::node::shortage::MakesRoom;
use crate::node::Fs;
use crate::ubj::{dirty, free_memory, Union};
use crate::Ino;

/// How long it waits for room, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(1);

/// The attendant makes room; files are compressed here.
pub(super) struct Asking;

impl MakesRoom for Asking {
    fn make_room(&self, fs: &Fs, lack: Lack) -> Result<()> {
        let Some(union) = fs.union() else { return Ok(()) };
        match ask(fs, union)? || union.may_run_again(fs.session(), lack)? {
            true => Ok(()),
            false => union.note_exhausted(fs.session(), lack),
        }
    }

    fn free_memory(&self, fs: &Fs, freed: u64) -> Result<bool> {
        shortage::free_memory(fs, freed)
    }

    fn free_memory_ahead(&self, fs: &Fs) -> Result<()> {
        shortage::free_memory_ahead(fs)
    }

    fn wait_behind(&self, fs: &Fs) -> Result<()> {
        fs.union().map_or(Ok(()), |union| ask(fs, union).map(drop))
    }

    fn move_to_disk(&self, _: &Fs, _: Ino) -> Result<()> {
        Err(Error::OnDisk)
    }
}

/// Asks for room, and waits until there is more of it, or all has been done that can be; true: there is more.
fn ask(fs: &Fs, union: &Union) -> Result<bool> {
    assert_may_wait();
    let session = fs.session();
    let room = || -> Result<_> {
        Ok((free_memory(session), union.log().available_about(session)?, std::cmp::Reverse(dirty(session))))
    };
    let (before, start, asked) = (room()?, session.clock().instant(), session.ask_for_room());
    loop {
        session.memory().wait_by(|| std::thread::sleep(GLANCE));
        session.expect_attendant()?;
        let now = room()?;
        if now.0 > before.0 || now.1 > before.1 || now.2 > before.2 {
            return Ok(true);
        }
        if session.is_room_made(asked) || session.clock().since(start) > PATIENCE {
            return Ok(false);
        }
    }
}
