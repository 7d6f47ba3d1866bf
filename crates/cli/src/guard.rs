//! The second process of a mount, which sends notifications and ends the connection of a killed server: see [`fuse::guard`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::failure::{Context, Result};
use crate::proc::numbered;

/// A guard of this process. Dropping it ends it: a server that ends by itself needs none.
pub struct Guard(Child);

/// Starts a guard. A mount works without it, too.
pub fn start(mount: &fuse::Mount, pool: &Path, dir: &Path) -> Option<Guard> {
    match mount.guarded().context(|| "no duty".into()).and_then(|duty| spawn(pool, dir, duty)) {
        Ok(guard) => Some(Guard(guard)),
        Err(e) => {
            tracing::warn!("without a guard, a server that is killed at the wrong moment may hang: {e}");
            None
        }
    }
}

/// In a process group of its own, so that signals to ours, as from a terminal, do not reach it.
fn spawn(pool: &Path, dir: &Path, duty: fuse::Duty) -> Result<Child> {
    let program = std::env::current_exe().context(|| "cannot find this program".into())?;
    let mut command = Command::new(program);
    command.arg0("conquest").args(["mount", "--guard", &std::process::id().to_string()]);
    command.arg(pool).arg(dir).current_dir("/").process_group(0);
    command.stdin(duty.device).stdout(duty.server);
    command.spawn().context(|| "cannot start the guard".into())
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The servers of a pool that are found by their guards, when nothing else names them.
pub fn guarded(pool: &Path) -> Vec<u32> {
    let charges = numbered("/proc").filter_map(|process| guarded_by(&process));
    charges.filter(|(_, guarded)| guarded == pool).map(|(server, _)| server).collect()
}

/// The server that a process guards, and its pool.
fn guarded_by(process: &Path) -> Option<(u32, PathBuf)> {
    let is_ours = std::fs::read(process.join("comm")).is_ok_and(|name| name.starts_with(b"conquest"));
    let line = std::fs::read(process.join("cmdline")).ok().filter(|_| is_ours)?;
    charge(&line)
}

/// The server that a guard with this command line guards, and its pool. A zero byte ends each argument.
fn charge(line: &[u8]) -> Option<(u32, PathBuf)> {
    match line.split(|b| *b == 0).collect::<Vec<_>>()[..] {
        [_, b"mount", b"--guard", server, pool, _, _] => {
            Some((std::str::from_utf8(server).ok()?.parse().ok()?, OsStr::from_bytes(pool).into()))
        }
        _ => None,
    }
}

/// Runs this process as the guard of the mount at `dir`.
pub fn run(server: u32, dir: &Path) -> Result<()> {
    let cannot = || format!("cannot guard the server of {}", dir.display());
    fuse::guard(server, dir, fuse::Duty::inherited().context(cannot)?).context(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_known_by_its_command_line() {
        let guard = b"conquest\0mount\0--guard\x0031\0/srv/a \xff\0/mnt\0";
        assert_eq!(charge(guard), Some((31, OsStr::from_bytes(b"/srv/a \xff").into())));
        assert_eq!(charge(b"conquest\0mount\0--detached\0-oro\0/srv/p\0/mnt\0"), None);
        assert_eq!(charge(b""), None);
    }
}
