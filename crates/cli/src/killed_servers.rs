//! Waits for servers that are being killed. Between `kill -9` and the end of the process, its mount may still answer,
//! or answer that a request was cancelled. Then a command could not tell whether to leave the mount alone or to clear
//! it away.

use std::collections::HashSet;
use std::path::Path;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use conquest_fs::poll::poll_until;
use fuse::killed_process::is_ending;
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::mounts::Mounted;
use crate::{mounts, servers, stopped_processes};

/// The end of a process takes as long as freeing its memory does.
const PATIENCE: Duration = Duration::from_secs(5);
/// By then a living guard has ended the connection, and a living server has answered.
const LENIENCE: Duration = Duration::from_secs(1);

/// Waits until no server of `pool` is being killed: its process has let go of the pool, and its mount answers that it
/// is dead. Does not wait for a server that is alive, nor for one that is dead. A server that cannot end because its
/// mount hangs is helped. Fails if one is stopped.
pub fn wait(pool: &Path) -> Result<()> {
    let mut asked = HashSet::new();
    for mounted in mounts::of(pool)?.into_iter().filter(|place| asked.insert(place.number.clone())) {
        stopped_processes::refuse(&mounted)?;
        let has_died = || !is_dying(&mounted);
        if poll_until(LENIENCE, has_died) {
            continue;
        }
        let helped = help(&mounted);
        if !poll_until(PATIENCE - LENIENCE, has_died) {
            let (dir, seconds) = (mounted.dir.display(), PATIENCE.as_secs());
            let what_to_do =
                helped.map_or_else(|e| format!("{e}; `umount -f {dir}` may"), |()| "try again later".into());
            return Err(Failure::new(format!(
                "the server of {dir} is being killed, but has not ended within {seconds} s; {what_to_do}"
            )));
        }
    }
    Ok(())
}

/// Ends the connection of a mount whose server is gone or certain to end, in case all wait for this connection.
fn help(mounted: &Mounted) -> fuse::Result<()> {
    match server_of(mounted) {
        Some(server) if !fuse::killed_process::is_doomed(server) => Ok(()),
        _ => fuse::Connection::at(&mounted.dir)?.abort(),
    }
}

fn is_dying(mounted: &Mounted) -> bool {
    let server = server_of(mounted);
    if server.is_some_and(is_ending) {
        return true;
    }
    match answer_of(&mounted.dir) {
        // The server's last threads cancel their requests. Or its connection is dead, but it still holds the pool.
        Some(Err(Errno::CANCELED)) => true,
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => server_of(mounted).is_some(),
        // It has answered: perhaps the signal had only not reached it yet.
        Some(_) => server.is_some_and(is_ending),
        None => server_of(mounted).is_none_or(is_ending),
    }
}

/// The mount's answer, if it comes soon. A thread asks, which may wait as long as the mount exists.
fn answer_of(dir: &Path) -> Option<Result<(), Errno>> {
    let (sender, ended) = mpsc::channel();
    let dir = dir.to_path_buf();
    Builder::new().spawn(move || sender.send(rustix::fs::statvfs(&dir).map(drop))).ok()?;
    ended.recv_timeout(LENIENCE).ok()
}

/// The process that serves the mount, as long as it holds the pool.
fn server_of(mounted: &Mounted) -> Option<u32> {
    servers::of_pool(&mounted.source).and_then(|_| servers::of(mounted).first().copied())
}
