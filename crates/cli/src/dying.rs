//! Servers that are being killed: between `kill -9` and the end of the process, its mount may still answer, or answer
//! that a request was cancelled; then nobody could tell whether to leave it alone or to clear it away.

use std::path::Path;
use std::time::{Duration, Instant};

use fs::Pool;
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::mounts::{self, Mounted};

/// The end of a process takes as long as giving back its memory does.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(2);

/// The bit of SIGKILL in the masks of /proc/PID/status.
const KILL: u64 = 1 << 8;
/// The flag of /proc/PID/stat for who is in the middle of ending: PF_EXITING.
const EXITING: u64 = 4;

/// Waits until no server of `pool` at `dir`, or anywhere, is in the middle of being killed: its process has let go of
/// the pool, and its mount answers that it is dead. Does not wait for a server that is alive, nor for one that is dead.
pub fn wait(pool: &Path, dir: Option<&Path>) -> Result<()> {
    let start = Instant::now();
    let ours = |m: &Mounted| m.source == pool && dir.is_none_or(|d| d == m.dir);
    for mounted in mounts::conquest()?.into_iter().filter(ours) {
        while is_dying(&mounted) {
            if start.elapsed() > PATIENCE {
                let (dir, seconds) = (mounted.dir.display(), PATIENCE.as_secs());
                return Err(Failure::new(format!(
                    "the server of {dir} is being killed, but has not ended within {seconds} s; try again later"
                )));
            }
            std::thread::sleep(GLANCE);
        }
    }
    Ok(())
}

fn is_dying(mounted: &Mounted) -> bool {
    let server = server_of(mounted);
    if server.is_some_and(is_ending) {
        return true;
    }
    match rustix::fs::statvfs(&mounted.dir) {
        // Its last threads cancel what they were asked. Or its connection is dead, but the pool not let go of.
        Err(Errno::CANCELED) => true,
        Err(Errno::NOTCONN | Errno::CONNABORTED) => server_of(mounted).is_some(),
        // It has answered: is it only that it had not heard the signal?
        _ => server.is_some_and(is_ending),
    }
}

/// The process that serves the mount, as long as it holds on to the pool.
fn server_of(mounted: &Mounted) -> Option<u32> {
    let users = Pool::users(&mounted.source).ok()?;
    users.into_iter().find(|user| user.mountpoint.as_deref() == Some(&mounted.dir)).map(|user| user.pid)
}

/// Has the process been killed? So it is if any of its threads has: SIGKILL waits for all of them, and each ends.
/// False if it cannot be seen.
fn is_ending(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        is_killed(&read("status")) || has_ended(&read("stat"))
    })
}

/// Does /proc/PID/status say that SIGKILL waits to be heard?
fn is_killed(status: &str) -> bool {
    let masks =
        status.lines().filter_map(|line| line.split_once(':')).filter(|(k, _)| matches!(*k, "SigPnd" | "ShdPnd"));
    masks.map(|(_, mask)| u64::from_str_radix(mask.trim(), 16)).any(|mask| mask.is_ok_and(|mask| mask & KILL != 0))
}

/// Does /proc/PID/stat say that the thread ends or has ended? `pid (name) state ...`, the ninth field is the flags.
fn has_ended(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let fields: Vec<&str> = fields.split(' ').collect();
    let flags = fields.get(6).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(fields[0], "Z" | "X") || flags & EXITING != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_understood() {
        let status =
            |own: &str, shared: &str| format!("Name:\tconquest\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0100\n");
        assert!(!is_killed(&status("0000000000000000", "0000000000004000")));
        assert!(is_killed(&status("0000000000000100", "0000000000000000")));
        assert!(is_killed(&status("0000000000000000", "0000000000000100")));
        assert!(!has_ended("12 (a) b) S 1 12 12 0 -1 4194304 9 0"));
        assert!(has_ended("12 (a) b) S 1 12 12 0 -1 4194308 9 0"));
        assert!(has_ended("12 (conquest) Z 1 12 12 0 -1 4194304 9 0"));
        assert!(!has_ended("") && !has_ended("12 (conquest) "));
    }

    #[test]
    fn a_child_that_was_killed_is_ending_and_we_are_not() {
        assert!(!is_ending(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_ending(child.id()));
        child.kill().unwrap();
        // Until it is waited for it stays: killed, ending, or a zombie.
        assert!(is_ending(child.id()));
        child.wait().unwrap();
        assert!(!is_ending(child.id()));
    }
}
