//! A disk that does not answer while a mount as a block device ends: the kernel asks the server to commit, and the
//! command that unmounts waits for that. The pool lies on a file system of its own, which is frozen.
//!
//! In every case the wait ends at last, and no process waits for a server that is gone: a wait for a mount as a block
//! device holds up every `sync` of the machine.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{kill_process, Signal};

use crate::lab::{self, program, wait_until, Lab, Process};
use crate::stopped::Stop;
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("frozen::a_server_killed_while_it_unmounts_itself", ends_itself),
    ("frozen::a_server_killed_while_umount_waits", unmounted),
    ("frozen::a_server_stopped_while_umount_waits", stopped),
];

/// Longer than any step takes on a busy machine, shorter than the limit of a test.
const PATIENCE: Duration = Duration::from_secs(60);
/// Seconds after which the file system thaws in any case.
const LONGEST: &str = "150";
/// Where the kernel shows the connections of mounts.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

fn ends_itself() -> Outcome {
    let disk = Disk::new()?;
    let server = disk.lab.server();
    let frozen = Frozen::new(&disk.path());
    kill_process(server, Signal::TERM).expect("kill");
    let ending = Process::open(server);
    disk.wait_for_unmount(&ending);
    kill_process(server, Signal::KILL).expect("kill");
    drop(frozen);
    wait_until(PATIENCE, "the server ends that was killed", || ending.has_ended());
    disk.holds_all();
    Ok(())
}

fn unmounted() -> Outcome {
    let disk = Disk::new()?;
    let server = disk.lab.server();
    let frozen = Frozen::new(&disk.path());
    let mut umount = disk.umount();
    disk.wait_for_unmount(&Process::open(server));
    kill_process(server, Signal::KILL).expect("kill");
    drop(frozen);
    wait_until(PATIENCE, "umount ends", || umount.try_wait().expect("wait").is_some());
    assert!(umount.wait().expect("wait").success());
    disk.holds_all();
    Ok(())
}

/// A command that waits in the kernel by then reports the stopped server, and continues with it.
fn stopped() -> Outcome {
    let disk = Disk::new()?;
    let server = disk.lab.server();
    let frozen = Frozen::new(&disk.path());
    let mut umount = disk.umount();
    disk.wait_for_unmount(&Process::open(server));
    let stop = Stop::new(server);
    drop(frozen);
    let said = first_line(umount.stderr.take().expect("a pipe"));
    let words = [format!("process {}, is stopped", server.as_raw_nonzero()), "kill -CONT".into()];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(umount.try_wait().expect("wait").is_none(), "it waits: {said}");
    drop(stop);
    wait_until(PATIENCE, "umount ends", || umount.try_wait().expect("wait").is_some());
    assert!(umount.wait().expect("wait").success());
    disk.holds_all();
    Ok(())
}

/// Waits for the first line.
fn first_line(pipe: ChildStderr) -> String {
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || tell.send(BufReader::new(pipe).lines().next()));
    lines.recv_timeout(PATIENCE).expect("somebody says something").expect("a line").expect("text")
}

/// A lab whose pool lies on a file system of its own. It commits on demand; some of it is committed.
struct Disk {
    /// Ends the connection of the mount.
    abort: File,
    lab: Lab,
}

impl Disk {
    fn new() -> Result<Disk, Skip> {
        lab::require("fsfreeze")?;
        let lab = Lab::new();
        let disk = lab.loop_ext4()?;
        std::fs::create_dir(disk.join("pool")).expect("mkdir");
        symlink(disk.join("pool"), lab.path("pool")).expect("symlink");
        lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--commit", "86400"]);
        lab.mount();
        let abort = connection(&lab).inspect_err(|_| _ = lab.ok(&["umount", &lab.text("mnt"), "--release"]))?;
        let disk = Disk { abort, lab };
        let path = |name: &str| disk.lab.mnt().join(name);
        File::create(path("synced")).and_then(|mut f| f.write_all(b"1").and_then(|()| f.sync_all())).expect("write");
        std::fs::write(path("later"), "2").expect("write");
        Ok(disk)
    }

    fn path(&self) -> PathBuf {
        self.lab.path("ext4")
    }

    fn umount(&self) -> Child {
        let mut command = self.lab.command(&["umount", "mnt"]);
        command.stderr(Stdio::piped()).spawn().expect("conquest")
    }

    /// Waits until the mount is out of the table, and its server is asked for a commit.
    fn wait_for_unmount(&self, server: &Process) {
        wait_until(PATIENCE, "it is being unmounted", || !is_mounted(&self.lab.mnt()));
        for _ in 0..50 {
            assert!(!server.has_ended(), "it has not waited for the disk");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Nothing is lost, and the pool can be mounted.
    fn holds_all(&self) {
        assert!(!is_mounted(&self.lab.mnt()));
        self.lab.mount();
        for (name, text) in [("synced", "1"), ("later", "2")] {
            assert_eq!(std::fs::read_to_string(self.lab.mnt().join(name)).expect("read"), text, "{name}");
        }
        self.lab.umount();
        self.lab.check();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Also for a mount that is only half unmounted. Fails only if the connection has ended.
        let _ = self.abort.write_all(b"1");
        lab::forget_memory(&self.path(), 1);
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    mounts.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

/// The file that ends the connection of a mount as a block device.
fn connection(lab: &Lab) -> Result<File, Skip> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == lab.mnt().to_str()).expect("a mount");
    if !line.contains(" fuseblk.conquest ") {
        return Err(Skip("needs Linux 6.18 and a loop device: umount does not wait here".into()));
    }
    let (major, minor) = line.split(' ').nth(2).and_then(|number| number.split_once(':')).expect("a number");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let name = (number(major) << 20 | number(minor)).to_string();
    let open = || File::options().write(true).open(Path::new(CONNECTIONS).join(&name).join("abort"));
    let mount = || program("mount", &["-t", "fusectl", "fusectl", CONNECTIONS]).status();
    open().or_else(|_| mount().and_then(|_| open())).map_err(|e| Skip(format!("needs {CONNECTIONS}: {e}")))
}

/// A frozen file system: each write to it waits. It thaws when this is dropped, when this process ends, and in any case
/// after a while.
pub struct Frozen {
    thaw: Child,
}

impl Frozen {
    pub fn new(dir: &Path) -> Frozen {
        // Waits for the end of its input. In a process group of its own: a signal that ends us must not end it.
        let script = format!("timeout {LONGEST} cat; fsfreeze -u \"$0\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(dir).stdin(Stdio::piped()).process_group(0);
        let frozen = Frozen { thaw: command.spawn().expect("sh") };
        lab::ok(program("timeout", &["-s", "KILL", "30", "fsfreeze", "-f"]).arg(dir));
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.thaw.stdin.take());
        if !self.thaw.wait().is_ok_and(|status| status.success()) {
            println!("note: the file system that was frozen does not go on");
        }
    }
}
