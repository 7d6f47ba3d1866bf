//! Finds processes that are stopped, by SIGSTOP or a debugger. A call to a mount whose server is stopped waits in the
//! kernel until the server continues, and no signal ends that wait. So the mount is not called: the mount table and
//! /proc tell.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::Duration;

use conquest_fs::poll::poll_until;

use crate::failure::{Failure, Result};
use crate::mounts::Mounted;
use crate::proc::numbered;
use crate::servers;

/// A process that is stopped for this long is not merely traced, which stops a thread for a moment with each call.
pub const LENIENCE: Duration = Duration::from_secs(1);

/// Fails if the server of the mount is stopped.
pub fn refuse(mounted: &Mounted) -> Result<()> {
    let stopped = Stopped::among(&servers::of(mounted));
    stopped.map_or(Ok(()), |stopped| Err(Failure::new(stopped.as_server_of(&mounted.dir))))
}

/// Reports once, as long as it lives, that the server of a mount is stopped: for commands that have to wait in the
/// kernel.
pub struct Watch {
    _alive: Sender<()>,
}

impl Watch {
    pub fn over(mounted: &Mounted) -> Watch {
        let (alive, ended) = mpsc::channel();
        let (servers, dir) = (servers::of(mounted), mounted.dir.clone());
        let watch = move || {
            while ended.recv_timeout(LENIENCE) == Err(RecvTimeoutError::Timeout) {
                if let Some(stopped) = Stopped::among(&servers) {
                    let _ = writeln!(std::io::stderr(), "conquest: waiting: {}", stopped.as_server_of(&dir));
                    return;
                }
            }
        };
        // Without the thread there is only no report.
        let _ = Builder::new().spawn(watch);
        Watch { _alive: alive }
    }
}

/// A process that is stopped, or some of its threads.
pub struct Stopped {
    pub pid: u32,
    /// The debugger that holds it.
    debugger: Option<u32>,
}

impl Stopped {
    /// The first of these processes that is stopped, and stays so for a while.
    pub fn among(pids: &[u32]) -> Option<Stopped> {
        pids.iter().find_map(|pid| {
            let mut threads: Vec<PathBuf> = threads_of(*pid).filter(|thread| is_stopped(thread)).collect();
            let goes_on = || {
                threads.retain(|thread| is_stopped(thread));
                threads.is_empty()
            };
            let stays = !poll_until(LENIENCE, goes_on);
            stays.then(|| Stopped { pid: *pid, debugger: threads.first().and_then(|thread| debugger_of(thread)) })
        })
    }

    /// The command that lets it continue.
    pub fn remedy(&self) -> String {
        match self.debugger {
            Some(debugger) => format!("its debugger, process {debugger}, can let it go on"),
            None => format!("`kill -CONT {}` lets it go on", self.pid),
        }
    }

    fn as_server_of(&self, dir: &Path) -> String {
        let (dir, pid, remedy) = (dir.display(), self.pid, self.remedy());
        format!(
            "the server of {dir}, process {pid}, is stopped, and everything that asks the mount waits: {remedy}; or \
             `kill -9 {pid}` ends it, and `conquest umount {dir}` works after that"
        )
    }
}

fn threads_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    numbered(&format!("/proc/{pid}/task"))
}

fn is_stopped(thread: &Path) -> bool {
    std::fs::read_to_string(thread.join("stat")).is_ok_and(|stat| says_stopped(&stat))
}

fn debugger_of(thread: &Path) -> Option<u32> {
    tracer(&std::fs::read_to_string(thread.join("status")).ok()?)
}

/// Does /proc/PID/stat, `pid (name) state ...`, show that it is stopped, by a signal or a tracer?
fn says_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

/// The process that traces it, from /proc/PID/status.
fn tracer(status: &str) -> Option<u32> {
    let pid = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    (pid != 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{kill_process, Pid, Signal};

    use super::*;

    #[test]
    fn what_proc_says_is_understood() {
        assert!(says_stopped("12 (a) b) T 1 12") && says_stopped("12 (a) t 1 12"));
        assert!(!says_stopped("12 (a) T 1) S 1 12") && !says_stopped(""));
        assert_eq!(tracer("Name:\tT\nTracerPid:\t0\nUid:\t7\n"), None);
        assert_eq!(tracer("Name:\tT\nTracerPid:\t31\nUid:\t7\n"), Some(31));
        assert_eq!(tracer(""), None);
    }

    /// A process that does nothing; dropping it ends it.
    struct Sleeper(Child);

    impl Sleeper {
        fn signal(&self, signal: Signal) {
            kill_process(Pid::from_child(&self.0), signal).expect("it is there");
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).expect("it ends");
        }
    }

    #[test]
    fn a_process_is_stopped_until_it_goes_on_or_is_killed() {
        let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().expect("sleep"));
        let pids = [std::process::id(), sleeper.0.id()];
        let stopped = || Stopped::among(&pids).map(|stopped| stopped.pid);
        assert_eq!(stopped(), None);
        sleeper.signal(Signal::STOP);
        assert!(poll_until(Duration::from_secs(60), || stopped() == Some(sleeper.0.id())));
        sleeper.signal(Signal::CONT);
        assert_eq!(stopped(), None);
        sleeper.signal(Signal::STOP);
        sleeper.signal(Signal::KILL);
        assert_eq!(stopped(), None);
    }
}
