//! Servers that are killed while one of their notifications waits in the kernel for a request.
//!
//! A page that is being read is locked until the server has answered. A notification that drops the page waits for
//! that, and SIGKILL does not end the wait. So a server that itself waited could not end, /dev/fuse would stay open,
//! and all callers would wait for ever. Its guard waits instead, and ends the connection after the server's end. If the
//! guard was killed too, the next command does so. This happens by chance under load; here it happens each time, since
//! the answering threads are stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;
use std::time::Duration;

use conquest::{Caller, Ino, Pool};
use conquest_fs::node::WriteFlags;
use conquest_fs::path::View;
use nix::sys::ptrace;
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use rustix::fs::Advice;

use crate::lab::{is_gone, wait_until, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("hanging::the_guard_of_a_killed_server_ends_the_mount", guard_helps),
    ("hanging::if_that_is_killed_too_umount_does", umount_helps),
    ("hanging::if_that_is_killed_too_the_next_mount_does", mount_helps),
];

/// Longer than any step takes on a busy machine, shorter than the limit of a test.
const PATIENCE: Duration = Duration::from_secs(60);

fn guard_helps() -> Outcome {
    let (lab, pool) = lab();
    let hung = Hung::new(&lab, &pool);
    hung.kill_server();
    hung.end();
    let dead = rustix::fs::statvfs(lab.mnt()).map(drop).expect_err("the mount of a dead server");
    assert!(is_gone(&dead.into()), "{dead}");
    lab.umount();
    close(lab, pool);
    Ok(())
}

fn umount_helps() -> Outcome {
    let (lab, pool) = lab();
    let hung = Hung::new(&lab, &pool);
    hung.kill_all();
    lab.umount();
    hung.end();
    close(lab, pool);
    Ok(())
}

fn mount_helps() -> Outcome {
    let (lab, pool) = lab();
    let hung = Hung::new(&lab, &pool);
    hung.kill_all();
    lab.mount();
    hung.end();
    assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read")[..3], *b"new", "what a program wrote");
    lab.umount();
    close(lab, pool);
    Ok(())
}

/// A lab with a mounted pool and a file, opened by this process too.
fn lab() -> (Lab, Arc<Pool>) {
    let lab = Lab::mounted("64M");
    std::fs::write(lab.mnt().join("f"), [0; 8192]).expect("write");
    let pool = Arc::new(lab.open());
    (lab, pool)
}

fn close(lab: Lab, pool: Arc<Pool>) {
    let mut text = [0; 3];
    pool.read(file(&pool), 0, &mut text).expect("read");
    assert_eq!(&text, b"new", "what was written is there");
    drop(pool);
    lab.check();
}

fn file(pool: &Pool) -> Ino {
    View::new(pool, Caller::root()).stat(b"f").expect("a file").ino
}

/// A server whose threads are stopped while its guard tells the kernel to forget a page that is being read.
struct Hung {
    server: Pid,
    guard: Pid,
    stopped: Vec<Pid>,
    reader: JoinHandle<io::Result<()>>,
    writer: JoinHandle<conquest_fs::Result<()>>,
}

impl Hung {
    fn new(lab: &Lab, pool: &Arc<Pool>) -> Hung {
        let pid = lab.server().as_raw_nonzero().get();
        let is_child = |other: &i32| stat(*other, *other).and_then(|stat| stat.get(1)?.parse().ok()) == Some(pid);
        let guard = numbers("/proc").into_iter().find(is_child).expect("the guard of the server");
        let (read, pool) = (open(&lab.mnt().join("f")), pool.clone());
        rustix::fs::fadvise(&read, 0, None, Advice::DontNeed).expect("the page is not in the cache");
        let stopped = stop(pid, "fuse-uring").into_iter().chain(stop(pid, "fuse-dev")).collect();
        let (tell, reading) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid());
            read.read_exact_at(&mut [0; 8], 0)
        });
        let reading = reading.recv().expect("a reader").as_raw_nonzero().get();
        wait_until(PATIENCE, "the page is being read", || is_stuck(std::process::id() as i32, reading));
        let writer = std::thread::spawn(move || pool.write(file(&pool), 0, b"new", WriteFlags::default()).map(drop));
        let sends = |thread: &i32| is_stuck(guard, *thread);
        wait_until(PATIENCE, "the notification waits for the page", || threads(guard, "fuse-notify").iter().any(sends));
        Hung { server: Pid::from_raw(pid), guard: Pid::from_raw(guard), stopped, reader, writer }
    }

    fn kill_server(&self) {
        kill(self.server, Signal::SIGKILL).expect("kill");
        // Threads that are dead stay until we have waited for them.
        self.stopped.iter().for_each(|thread| bury(*thread));
    }

    /// Kills the guard first: then it cannot help.
    fn kill_all(&self) {
        kill(self.guard, Signal::SIGKILL).expect("kill");
        self.kill_server();
    }

    /// Checks that all waiting processes continue.
    fn end(self) {
        for process in [self.server, self.guard] {
            wait_until(PATIENCE, "the processes of the mount have ended", || has_ended(process));
        }
        let read = self.reader.join().expect("the reader").expect_err("nobody has answered the reader");
        assert!(is_gone(&read), "{read}");
        self.writer.join().expect("the writer").expect("the writer needs no server");
    }
}

/// The process is gone, or only waits for its parent.
fn has_ended(process: Pid) -> bool {
    let threads = numbers(&format!("/proc/{process}/task"));
    threads.iter().all(|thread| stat(process.as_raw(), *thread).is_none_or(|stat| stat[0] == "Z"))
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

/// Stops those threads of the process whose names begin so.
fn stop(pid: i32, name: &str) -> Vec<Pid> {
    let threads: Vec<Pid> = threads(pid, name).into_iter().map(Pid::from_raw).collect();
    for thread in &threads {
        ptrace::seize(*thread, ptrace::Options::empty()).expect("ptrace");
        ptrace::interrupt(*thread).expect("ptrace");
        waitpid(*thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    }
    threads
}

/// Waits for the end of a stopped thread that was killed.
fn bury(thread: Pid) {
    while let Ok(WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..)) = waitpid(thread, Some(WaitPidFlag::__WALL)) {}
}

pub fn threads(pid: i32, name: &str) -> Vec<i32> {
    let named = |thread: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    numbers(&format!("/proc/{pid}/task")).into_iter().filter(named).collect()
}

fn numbers(dir: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Does the thread sleep in the kernel in a state that only SIGKILL may end, and stay there?
fn is_stuck(pid: i32, thread: i32) -> bool {
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(2));
        stat(pid, thread).is_some_and(|stat| stat[0] == "D")
    })
}

/// The fields of a thread's line in /proc: its state, its parent, and so on.
fn stat(pid: i32, thread: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}
