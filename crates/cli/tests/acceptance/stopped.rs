//! Servers that are stopped, by SIGSTOP or a debugger. A call to their mounts waits in the kernel, and no signal ends
//! the wait. So commands make no such call, and report the stopped process and the remedy.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::wait::{waitpid, WaitPidFlag};
use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process, Pid, Signal};

use crate::lab::{self, kill_and_wait, program, wait_until, Lab, Process, Ran};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("stopped::commands_say_so_and_work_when_it_goes_on", said),
    ("stopped::it_can_be_killed_and_unmounted", killed),
    ("stopped::what_it_has_locked_is_not_waited_for", locked),
    ("stopped::a_debugger_is_named", debugged),
];

/// Longer than any command takes on a busy machine, unless it waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops a process as long as this lives.
pub struct Stop(Pid);

impl Stop {
    pub fn new(pid: Pid) -> Stop {
        let stop = Stop(pid);
        kill_process(pid, Signal::STOP).expect("kill");
        // All threads except those that wait for a disk.
        let is_stopped = || threads(pid).iter().all(|thread| matches!(state(*thread), Some('T' | 'D')));
        wait_until(PATIENCE, "it is stopped", is_stopped);
        stop
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn threads(pid: Pid) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn state(thread: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Runs `conquest ARGS`, which must not wait for the stopped process.
fn at_once(lab: &Lab, args: &[&str]) -> Ran {
    let mut command = lab.command(args);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("conquest");
    let ended = || running.try_wait().expect("wait").is_some();
    wait_until(PATIENCE, &format!("conquest {args:?} ends"), ended);
    running.wait_with_output().expect("what it said").into()
}

/// Runs `conquest ARGS`, which must fail with a text that contains each of `words`.
fn refused(lab: &Lab, code: i32, args: &[&str], words: &[&str]) {
    at_once(lab, args).is_refusal(code, words, &format!("conquest {args:?}"));
}

fn said() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("64M");
        let (pool, mnt) = (lab.pool(), lab.text("mnt"));
        if lab.run(&["mount", &pool, &mnt, "-o", &format!("transport={transport}")]).code != 0 {
            println!("note: {transport} cannot be had here");
            continue;
        }
        std::fs::create_dir(lab.mnt().join("dir")).expect("mkdir");
        std::fs::write(lab.mnt().join("dir/file"), "in it").expect("write");
        std::fs::create_dir(lab.path("bound")).expect("mkdir");
        std::os::unix::fs::symlink("mnt", lab.path("link")).expect("symlink");
        lab::ok(&mut program("mount", &["--bind", &lab.text("mnt/dir"), &lab.text("bound")]));
        let server = lab.server();
        let number = server.as_raw_nonzero();
        // One that is stopped in the midst of its work may have locked what others need.
        let is_idle = || {
            lab.status()["sessions"][0]["tasks"]
                .as_array()
                .is_some_and(|tasks| tasks.iter().all(|task| task["state"] == "asleep"))
        };
        wait_until(PATIENCE, "the server has no work", is_idle);
        let nvram = lab.status()["nvram"].as_str().expect("a path").to_owned();

        let stop = Stop::new(server);
        let [process, cont] = [format!("process {number}, is stopped"), format!("kill -CONT {number}")];
        let words = [process.as_str(), &cont, &format!("kill -9 {number}")];
        let places = ["mnt", "./mnt//", "link", "link/", "mnt/../mnt", "mnt/dir", "mnt/../mnt/dir/..", "bound"];
        let umounts = places.map(|place| (1, vec!["umount", place]));
        let others = [
            (1, vec!["umount", &mnt]),
            (1, vec!["mount", &pool, &mnt]),
            (1, vec!["mount", &pool, "mnt/dir"]),
            (1, vec!["mount", &pool, &mnt, "-o", "remount,noatime"]),
            (1, vec!["mount", &pool, "link/", "-o", "remount,commit=1"]),
            (1, vec!["up", "--pool", &pool, &mnt]),
            (1, vec!["up", "--pool", &pool]),
            (2, vec!["status", "mnt/dir"]),
            (2, vec!["fsck", "mnt/dir"]),
            (1, vec!["save", &pool, "mnt/dir/image"]),
        ];
        let refusals: Vec<_> = umounts.into_iter().chain(others).collect();
        // Commands can read the memory.
        let looks = [vec!["status", &mnt], vec!["status", "link"], vec!["fsck", "link"], vec!["save", &mnt, "image"]];
        std::thread::scope(|scope| {
            for (code, args) in &refusals {
                let (lab, words) = (&lab, &words);
                scope.spawn(move || refused(lab, *code, args, words));
            }
            for args in &looks {
                let (lab, cont) = (&lab, &cont);
                scope.spawn(move || {
                    let ran = at_once(lab, args);
                    assert_eq!(ran.code, 0, "conquest {args:?}: {}", ran.err);
                    assert!(args[0] != "status" || ran.out.contains(cont), "it names who is stopped: {}", ran.out);
                });
            }
        });
        let said = at_once(&lab, &["status", &pool, "--json"]).out;
        let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(status["stopped"], serde_json::json!([number.get()]));
        // Nothing names the processes of the pool any more, but the guard exists.
        let runtime = nvram.strip_suffix("-region").expect("a region");
        std::fs::remove_file(runtime).expect("delete");
        refused(&lab, 1, &["umount", "mnt"], &words);

        drop(stop);
        assert_eq!(std::fs::read(lab.mnt().join("dir/file")).expect("read"), b"in it");
        lab::ok(&mut program("umount", &[&lab.text("bound")]));
        lab.umount();
        lab.check();
    }
    Ok(())
}

fn killed() -> Outcome {
    let lab = Lab::mounted("64M");
    std::fs::write(lab.mnt().join("file"), "in it").expect("write");
    for mount_first in [false, true] {
        let server = lab.server();
        let _stop = Stop::new(server);
        refused(&lab, 1, &["umount", "mnt"], &["is stopped"]);
        kill_and_wait(server, Signal::KILL);
        if !mount_first {
            lab.umount();
        }
        lab.mount();
        assert_eq!(std::fs::read(lab.mnt().join("file")).expect("read"), b"in it");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// A process that opens a pool locks a file of it meanwhile, and may be stopped just then.
fn locked() -> Outcome {
    let lab = Lab::mounted("64M");
    let server = lab.server();
    let words = ["stands still", &format!("kill -CONT {}", server.as_raw_nonzero())];
    let lock = std::fs::File::open(Path::new(&lab.pool()).join("image")).expect("open");
    flock(&lock, FlockOperation::LockExclusive).expect("lock");
    {
        let _stop = Stop::new(server);
        refused(&lab, 2, &["status", "pool"], &words);
        refused(&lab, 2, &["fsck", "pool"], &words);
        refused(&lab, 1, &["save", "pool", "image"], &words);
    }
    drop(lock);
    lab.check();
    lab.umount();
    Ok(())
}

/// A debugger has stopped the threads of the server, which SIGCONT does not help.
fn debugged() -> Outcome {
    let lab = Lab::mounted("64M");
    let server = lab.server();
    let held = Held::new(server);
    let number = server.as_raw_nonzero();
    let debugger = format!("debugger, process {}", std::process::id());
    refused(&lab, 1, &["umount", "mnt"], &[&format!("process {number}, is stopped"), &debugger]);
    drop(held);
    let process = Process::open(server);
    lab.umount();
    assert!(process.has_ended());
    Ok(())
}

/// Threads that we debug; dropping it lets them continue.
struct Held(Vec<nix::unistd::Pid>);

impl Held {
    fn new(pid: Pid) -> Held {
        let mut held = Held(Vec::new());
        for thread in threads(pid).into_iter().map(nix::unistd::Pid::from_raw) {
            ptrace::seize(thread, ptrace::Options::empty()).expect("ptrace");
            held.0.push(thread);
            ptrace::interrupt(thread).expect("ptrace");
            waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for thread in &self.0 {
            let _ = ptrace::detach(*thread, None);
        }
    }
}
