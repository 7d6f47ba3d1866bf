//! When the change of an operation is durable: at its return, or after a commit that a caller waits for.
//!
//! A front end that must not block defers: a wait inside [`Fs::deferring`] hands out a ticket instead.

use std::cell::Cell;

use backing::Ticket;
use rustix::io::Errno;

use super::Fs;
use crate::attr::Ino;
use crate::error::{Error, Result};

thread_local! {
    /// Inside `deferring`: the last ticket handed out.
    static DEFERRED: Cell<Option<Option<Ticket>>> = const { Cell::new(None) };
}

impl Fs {
    /// Is everything durable when the call that made it returns, so that `fsync` has nothing to wait for?
    pub fn durable_at_return(&self) -> bool {
        backing::of(self.session()).is_none_or(|backing| !backing.is_awaited())
    }

    /// Waits until everything that returned before is durable (at once on `battery` and `dax`).
    pub fn sync(&self) -> Result<()> {
        let Some(backing) = backing::of(self.session()).filter(|_| !self.durable_at_return()) else { return Ok(()) };
        if backing.has_everything(self.session()).map_err(not_durable)? {
            return Ok(());
        }
        let ticket = backing.ticket(self.session());
        if DEFERRED.get().is_some() {
            DEFERRED.set(Some(Some(ticket)));
            return Ok(());
        }
        self.wait_for(ticket)
    }

    /// Waits until `ino` is durable: on `logged` with everything else, since a commit is of an instant.
    pub fn fsync(&self, _ino: Ino, _data_only: bool) -> Result<()> {
        self.sync()
    }

    /// Calls `f`, in which nothing waits for durability; its changes are durable after [`wait_for`](Self::wait_for) the
    /// ticket, if there is one.
    pub fn deferring<R>(&self, f: impl FnOnce() -> R) -> (R, Option<Ticket>) {
        let before = DEFERRED.replace(Some(None));
        let result = f();
        (result, DEFERRED.replace(before).flatten())
    }

    /// Waits until the changes of a ticket are durable.
    pub fn wait_for(&self, ticket: Ticket) -> Result<()> {
        match backing::of(self.session()) {
            Some(backing) => backing.wait_for(self.session(), ticket).map_err(not_durable),
            None => Ok(()),
        }
    }
}

/// EIO, for any error or finding of the disk: a full disk beneath is not a full pool, and EINVAL would mean that
/// this file cannot be waited for.
fn not_durable(e: pram::Error) -> Error {
    let what = match e {
        pram::Error::Host { what, errno } => format!("{what}: {errno}"),
        e => e.to_string(),
    };
    Error::Host { what, errno: Errno::IO }
}
