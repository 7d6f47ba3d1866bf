//! A private namespace for the run, and cleaning up however it ends.
//!
//! A run makes mounts, loop devices, servers and gigabytes on a tmpfs. None of them may outlive it, whether it ends
//! with an error, Ctrl-C or SIGKILL. So the command runs itself a second time, supervised:
//!
//! - as root in a mount and a PID namespace of its own (`unshare` of util-linux): the kernel removes all its mounts,
//!   loop devices and processes when its first process ends. The run holds none of the pools mounted on this machine:
//!   it detaches their mounts from its namespace. An unmount outside reaches the namespace too, if the machine's mounts
//!   are shared;
//! - in a process group of its own, with a pipe to the first process as its stdin: when that process ends for any
//!   reason, the pipe closes, and the supervised one cleans up and ends too.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;

use crate::error::Error;
use crate::mounts::{self, Mounted};
use crate::program;
use crate::{hosts, rig};

/// Names the directory of the run to the supervised process.
const BASE: &str = "CONQUEST_BENCH_BASE";

/// Names the directory on the machine's own disk, if the run has one.
const DISK: &str = "CONQUEST_BENCH_DISK";

/// The directory of pools' shared memory.
const SHM: &str = "/dev/shm";

/// The arguments of `unshare`; tried beforehand too, since containers often forbid it.
const UNSHARE: [&str; 7] = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "slave"];

/// Is this the second process?
pub fn is_supervised() -> bool {
    std::env::var_os(BASE).is_some()
}

/// Runs this command line again, supervised, and waits for it. It gets a directory in RAM, and one below `disk`.
pub fn run_supervised(disk: Option<PathBuf>) -> Result<(), Error> {
    // In a namespace of its own the run mounts a tmpfs there; otherwise it must lie in RAM already.
    let unshare = can_unshare();
    let homes = if unshare { ["/tmp", "/"] } else { [SHM, "/tmp"] };
    let home = homes.into_iter().find(|d| Path::new(d).is_dir()).unwrap_or(".");
    let base = directory_in(Path::new(home))?;
    let disk = disk.map(|home| directory_in(&home)).transpose()?;
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
    if let Some(disk) = &disk {
        command.env(DISK, disk.path());
    }
    let status = status_holding_stdin(&mut command);
    // The run has done so itself, unless it was killed.
    [Some(&base), disk.as_ref()].into_iter().flatten().for_each(|dir| remove_pools(dir.path()));
    rig::clean(base.path());
    let status = status?;
    if status == 0 {
        Ok(())
    } else {
        Err(Error::Ended(status))
    }
}

fn directory_in(home: &Path) -> Result<tempfile::TempDir, Error> {
    tempfile::Builder::new().prefix("conquest-bench-").tempdir_in(home).map_err(Error::file(home))
}

/// Like `status`, but the pipe to the child's stdin stays open until the child has ended.
pub fn status_holding_stdin(command: &mut Command) -> Result<i32, Error> {
    let mut child = command.spawn().map_err(Error::io("the supervised benchmark"))?;
    let pipe = child.stdin.take();
    let status = child.wait().map_err(Error::io("the supervised benchmark"))?;
    drop(pipe);
    Ok(status.code().unwrap_or(1))
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

/// The directories of the supervised run, removed with everything in them by dropping this.
pub struct Base(Directories);

#[derive(Clone)]
struct Directories {
    /// In RAM.
    base: PathBuf,
    /// On the machine's own disk.
    disk: Option<PathBuf>,
}

impl Base {
    /// Takes over the directories that the first process made, and watches that process.
    pub fn take() -> Result<Base, Error> {
        let base = PathBuf::from(std::env::var_os(BASE).unwrap_or_default());
        let directories = Directories { base: base.clone(), disk: std::env::var_os(DISK).map(PathBuf::from) };
        let watched = directories.clone();
        let taken = Base(directories);
        // The first process of a PID namespace.
        if std::process::id() == 1 {
            let_go_of_pools(&[Some(taken.path()), taken.disk()].into_iter().flatten().collect::<Vec<_>>());
            // Two tmpfs of our own: they vanish with the namespace, with all their content.
            hosts::mount(&["-t", "tmpfs", "-o", "mode=700", "tmpfs"], &base)?;
            hosts::mount(&["-t", "tmpfs", "tmpfs"], Path::new(SHM))?;
        }
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            // The first process writes nothing: this returns at its end.
            let _ = std::io::stdin().read_to_end(&mut rest);
            watched.clean_up();
            std::process::exit(130);
        });
        Ok(taken)
    }

    pub fn path(&self) -> &Path {
        &self.0.base
    }

    pub fn disk(&self) -> Option<&Path> {
        self.0.disk.as_deref()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.0.clean_up();
    }
}

impl Directories {
    /// Unmounts everything at and below the base and removes it, and the directory on the disk. Errors are not
    /// reported: nobody could act on them, and the namespace and the first process clean up as well.
    fn clean_up(&self) {
        // Before waiting for requests on them.
        rig::clean(&self.base);
        for dir in mounts_below(mounts::all(), &self.base).iter().rev() {
            if rustix::mount::unmount(dir, UnmountFlags::DETACH).is_err() {
                let _ = Command::new("fusermount3").arg("-uz").arg(dir).status();
            }
        }
        for dir in [Some(&self.base), self.disk.as_ref()].into_iter().flatten() {
            remove_pools(dir);
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Removes the pools in `dir`, with their shared memory.
fn remove_pools(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        program::remove(&entry.path());
    }
}

/// Detaches the mounts of pools and volumes from this namespace, except those that contain the run itself: as long as
/// they were here, their servers would not end when they are unmounted outside.
fn let_go_of_pools(needed: &[&Path]) {
    let program = std::env::current_exe();
    let needed: Vec<&Path> = needed.iter().copied().chain(program.as_deref().ok()).collect();
    for dir in pools(mounts::all(), &needed).iter().rev() {
        let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
    }
}

/// The mount points of pools and volumes, except those with a directory in `needed` below.
fn pools(mounts: Vec<Mounted>, needed: &[&Path]) -> Vec<PathBuf> {
    let is_pool =
        |mounted: &Mounted| mounted.fs_type.split_once('.').is_some_and(|(_, subtype)| subtype.starts_with("conquest"));
    let points = mounts.into_iter().filter(is_pool).map(|mounted| mounted.point);
    points.filter(|point| !needed.iter().any(|path| path.starts_with(point))).collect()
}

/// The mount points at and below `base`, in the order of mounting.
fn mounts_below(mounts: Vec<Mounted>, base: &Path) -> Vec<PathBuf> {
    mounts.into_iter().map(|mounted| mounted.point).filter(|point| point.starts_with(base)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_found_where_nothing_needed_lies() {
        let table = "30 22 7:1 / /mnt/my\\040pool rw shared:3 - fuseblk.conquest /srv/pool rw\n\
                     31 22 0:44 / /srv/v rw - fuse.conquest-volume /srv/volume rw\n\
                     32 22 0:45 / /home rw - fuse.conquest /srv/home rw\n\
                     33 22 0:46 / /mnt/s rw - fuse.sshfs host:/ rw\n\
                     34 22 8:1 / / rw - ext4 /dev/sda1 rw\n";
        let needed = [Path::new("/home/me/bench"), Path::new("/tmp/x")];
        assert_eq!(pools(mounts::parse(table), &needed), ["/mnt/my pool", "/srv/v"].map(PathBuf::from));
    }

    #[test]
    fn only_our_mounts_are_found() {
        let table = "22 1 0:21 / /proc rw - proc proc rw\n\
                     90 22 0:40 / /dev/shm/conquest-bench-x rw - tmpfs tmpfs rw\n\
                     91 90 7:0 / /dev/shm/conquest-bench-x/ext4 rw - ext4 /dev/loop0 rw\n\
                     92 22 0:41 / /dev/shm/conquest-bench-xy rw - tmpfs tmpfs rw\n";
        let found = mounts_below(mounts::parse(table), Path::new("/dev/shm/conquest-bench-x"));
        assert_eq!(found, ["/dev/shm/conquest-bench-x", "/dev/shm/conquest-bench-x/ext4"].map(PathBuf::from));
    }
}
