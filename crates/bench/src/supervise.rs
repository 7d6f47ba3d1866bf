//! A private namespace for the run, and cleaning up however it ends.
//!
//! A run makes mounts, loop devices, servers and gigabytes on a tmpfs, none of which may outlive it, be it
//! ended by an error, Ctrl-C or SIGKILL. So the command runs itself a second time, supervised:
//!
//! - as root in a mount and a PID namespace of its own (`unshare` of util-linux): the kernel removes every
//!   mount, loop device and process of it when its first process ends;
//! - in a process group of its own, holding a pipe to the first process as its stdin: when that one ends for
//!   whatever reason, the pipe closes, and the supervised one cleans up and ends too.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;

use crate::error::Error;
use crate::hosts;

/// Names the directory of the run to the supervised process.
const BASE: &str = "CONQUEST_BENCH_BASE";

/// Where pools keep what their processes share.
const SHM: &str = "/dev/shm";

/// What `unshare` is asked for; also tried out beforehand, as containers often forbid it.
const UNSHARE: [&str; 7] = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"];

/// Is this the second process?
pub fn is_supervised() -> bool {
    std::env::var_os(BASE).is_some()
}

/// Runs this very command line again, supervised, and waits for it.
pub fn run_supervised() -> Result<(), Error> {
    // In a namespace of its own the run mounts a tmpfs there; else it must lie in RAM already.
    let unshare = can_unshare();
    let homes = if unshare { ["/tmp", "/"] } else { [SHM, "/tmp"] };
    let home = homes.into_iter().find(|d| Path::new(d).is_dir()).unwrap_or(".");
    let base = tempfile::Builder::new().prefix("conquest-bench-").tempdir_in(home).map_err(Error::file(home))?;
    let program = std::env::current_exe().map_err(Error::io("the path of this program"))?;
    let mut command = if unshare {
        let mut unshare = Command::new("unshare");
        unshare.args(UNSHARE).arg("--").arg(program);
        unshare
    } else {
        eprintln!("conquest bench: not root, or namespaces are forbidden: what needs to be mounted is skipped");
        Command::new(program)
    };
    command.args(std::env::args_os().skip(1)).env(BASE, base.path()).stdin(Stdio::piped()).process_group(0);
    let status = command.status_holding_stdin()?;
    if status == 0 {
        Ok(())
    } else {
        Err(Error::Ended(status))
    }
}

trait StatusHoldingStdin {
    fn status_holding_stdin(&mut self) -> Result<i32, Error>;
}

impl StatusHoldingStdin for Command {
    /// Like `status`, but the pipe to the child's stdin stays open until the child has ended.
    fn status_holding_stdin(&mut self) -> Result<i32, Error> {
        let mut child = self.spawn().map_err(Error::io("the supervised benchmark"))?;
        let pipe = child.stdin.take();
        let status = child.wait().map_err(Error::io("the supervised benchmark"))?;
        drop(pipe);
        Ok(status.code().unwrap_or(1))
    }
}

fn can_unshare() -> bool {
    rustix::process::geteuid().is_root()
        && Command::new("unshare")
            .args(UNSHARE)
            .args(["--", "true"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
}

/// The directory of the supervised run, removed with everything in it by dropping this.
pub struct Base(PathBuf);

impl Base {
    /// Takes over the directory that the first process made, and watches that process.
    pub fn take() -> Result<Base, Error> {
        let dir = PathBuf::from(std::env::var_os(BASE).unwrap_or_default());
        let base = Base(dir.clone());
        // The first process of a PID namespace.
        if std::process::id() == 1 {
            // Two of our own: they vanish with the namespace, whatever is in them.
            hosts::mount(&["-t", "tmpfs", "-o", "mode=700", "tmpfs"], &dir)?;
            hosts::mount(&["-t", "tmpfs", "tmpfs"], Path::new(SHM))?;
        }
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            // The first process writes nothing: this returns when it has gone.
            let _ = std::io::stdin().read_to_end(&mut rest);
            clean_up(&dir);
            std::process::exit(130);
        });
        Ok(base)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        clean_up(&self.0);
    }
}

/// Unmounts everything at and below `base` and removes it. Errors are not reported: nobody could act on
/// them, and the namespace is the second net.
fn clean_up(base: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for dir in mounts_below(&table, base).iter().rev() {
        if rustix::mount::unmount(dir, UnmountFlags::DETACH).is_err() {
            let _ = Command::new("fusermount3").arg("-uz").arg(dir).status();
        }
    }
    let _ = std::fs::remove_dir_all(base);
}

/// The mount points at and below `base`, in the order of mounting.
fn mounts_below(mountinfo: &str, base: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(base)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mounts_are_found() {
        let table = "22 1 0:21 / /proc rw - proc proc rw\n\
                     90 22 0:40 / /dev/shm/conquest-bench-x rw - tmpfs tmpfs rw\n\
                     91 90 7:0 / /dev/shm/conquest-bench-x/ext4 rw - ext4 /dev/loop0 rw\n\
                     92 22 0:41 / /dev/shm/conquest-bench-xy rw - tmpfs tmpfs rw\n";
        let found = mounts_below(table, Path::new("/dev/shm/conquest-bench-x"));
        assert_eq!(found, ["/dev/shm/conquest-bench-x", "/dev/shm/conquest-bench-x/ext4"].map(PathBuf::from));
    }
}
