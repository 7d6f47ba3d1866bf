//! The guard of a server: a second process, which sends the server's notifications, and ends the [`Connection`] when
//! the server has ended.
//!
//! A notification may wait in the kernel for a page or a directory that a request holds, and SIGKILL does not end that
//! wait. Suppose the server itself waited and were killed just then. Nobody would answer the request, and the server
//! could not end. Its /dev/fuse and rings would stay open, its locks in the pool locked, and all others would wait for
//! ever. So another process waits, which has nothing open but /dev/fuse. When the server has ended, the guard ends the
//! connection: the request fails, and the wait is over.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pram::priority;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{getppid, pidfd_open, Pid, PidfdFlags};

use crate::connection::Connection;
use crate::error::{Context, Result};
use crate::notify;
use crate::sys::{Device, Signals};

/// The descriptors that [`Mount::guarded`](crate::Mount::guarded) gives to a guard.
pub struct Duty {
    pub device: OwnedFd,
    pub server: OwnedFd,
}

impl Duty {
    /// Takes them from standard input and standard output.
    pub fn inherited() -> Result<Duty> {
        let own = |fd: std::io::Result<OwnedFd>| fd.context("take over the server's notifications");
        Ok(Duty {
            device: own(std::io::stdin().as_fd().try_clone_to_owned())?,
            server: own(std::io::stdout().as_fd().try_clone_to_owned())?,
        })
    }
}

/// Guards the mount at `dir`, whose server is our parent, until the server has ended. The process should then end.
pub fn guard(server: u32, dir: &Path, duty: Duty) -> Result<()> {
    // A signal that asks the server to end is not meant for us: we end after it.
    Signals::catch().context("receive signals")?;
    let Some(pid) = Pid::from_raw(server as i32) else { return Ok(()) };
    // Some users cannot find it; notifications are sent without it too.
    let connection = Connection::at(dir);
    let opened = pidfd_open(pid, PidfdFlags::empty());
    let relay = std::thread::Builder::new().name("fuse-notify".into());
    relay.spawn(move || relay_all(duty)).context("start a thread")?;
    // If the parent has changed, the number may already belong to another process.
    if getppid() == Some(pid) {
        wait_for(&opened.context("guard the server")?)?;
    }
    // As a rule the server was killed: else it would have ended us first. The mount may also have been unmounted.
    if let Err(e) = connection.and_then(|connection| connection.abort()) {
        tracing::debug!("{e}");
    }
    Ok(())
}

fn relay_all(duty: Duty) {
    priority::come_first();
    let (device, mut server) = (Device::from(duty.device), UnixStream::from(duty.server));
    if let Err(e) = notify::relay(&device, &mut server) {
        tracing::debug!("no more notifications: {e}");
    }
}

fn wait_for(process: &OwnedFd) -> Result<()> {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            polled => return polled.map(drop).context("wait for the server"),
        }
    }
}
