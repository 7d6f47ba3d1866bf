//! Background tasks: one mechanism starts, wakes, stops and reports all of a process.
//!
//! A task runs again and again. Each run says how long to rest after it, and why; the task rests for that time, or until it is woken. To
//! stop a task is to wake it for the last time, and to wait for the end of its run.
//!
//! Each task has a thread of its own, since almost all of them wait for disks, for seconds if a disk is slow: a commit must not wait for a
//! checkpoint, writing for cleaning up, or memory for either.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use conquest_fs::error::{Error, Result};
use conquest_fs::wakeup::Wakeup;
use rustix::io::Errno;

/// How a task rests, and how it is woken.
pub trait Rest: Send + Sync {
    /// Waits until the task is woken, at most so long. A call to `wake` before it counts.
    fn rest(&self, most: Duration);
    fn wake(&self);
}

impl Rest for Arc<Wakeup> {
    fn rest(&self, most: Duration) {
        self.wait(most);
    }

    fn wake(&self) {
        Wakeup::wake(self);
    }
}

/// What a task does after a run: it rests for so long, for this reason.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    rest: Duration,
    why: &'static str,
}

impl Next {
    pub const NOW: Next = Next { rest: Duration::ZERO, why: "" };

    pub const fn after(rest: Duration, why: &'static str) -> Next {
        Next { rest, why }
    }
}

/// How a task begins.
#[derive(Clone, Copy)]
pub struct Plan {
    pub name: &'static str,
    /// How long it rests before its first run.
    pub first: Duration,
    /// How much its thread gives way to others (`nice(2)`).
    pub nice: i32,
}

/// What a task does, as of now.
#[derive(Clone, Debug)]
pub struct TaskState {
    pub name: &'static str,
    pub doing: Doing,
    /// Since when.
    pub since: Instant,
    pub runs: u64,
    /// The last error, and when it came.
    pub failure: Option<(String, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Working,
    /// It rests for at most so long, for this reason.
    Resting(Duration, &'static str),
    /// Its thread has ended, after it was stopped or by a defect.
    Ended,
}

/// A task that runs; dropping it stops it, after what it is doing.
pub struct Task {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a task's thread and others share.
struct Shared {
    stopped: AtomicBool,
    rest: Box<dyn Rest>,
    state: Mutex<TaskState>,
}

/// A task as its own runs see it.
pub struct Run<'t>(&'t Shared);

impl Task {
    pub fn start(
        plan: Plan,
        rest: impl Rest + 'static,
        mut work: impl FnMut(&Run) -> Next + Send + 'static,
    ) -> Result<Task> {
        let state = TaskState { name: plan.name, doing: Doing::Working, since: Instant::now(), runs: 0, failure: None };
        let shared =
            Arc::new(Shared { stopped: AtomicBool::new(false), rest: Box::new(rest), state: Mutex::new(state) });
        let theirs = shared.clone();
        let thread = Builder::new().name(plan.name.into()).spawn(move || {
            if plan.nice != 0 {
                // Not being allowed to is no reason not to work.
                let _ = rustix::process::nice(plan.nice);
            }
            let _ends = Ends(&theirs);
            let run = Run(&theirs);
            let mut next = Next::after(plan.first, "its first run is due later");
            while run.rest_for(next) {
                next = work(&run);
                theirs.state().runs += 1;
            }
        });
        let thread = thread.map_err(|e| Error::Host {
            what: format!("starting the thread {}", plan.name),
            errno: e.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error),
        })?;
        Ok(Task { shared, thread: Some(thread) })
    }

    pub fn state(&self) -> TaskState {
        self.shared.state().clone()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.rest.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, doing: Doing) {
        let mut state = self.state();
        (state.doing, state.since) = (doing, Instant::now());
    }
}

/// Notes the end of the thread, when it is dropped.
struct Ends<'t>(&'t Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set(Doing::Ended);
    }
}

impl Run<'_> {
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::SeqCst)
    }

    /// Rests in the midst of a run, to be no burden; false if it is time to stop.
    pub fn pause(&self, rest: Duration) -> bool {
        self.rest_for(Next::after(rest, "it keeps to its share"))
    }

    /// Tells and remembers an error.
    pub fn failed(&self, what: &str, e: &dyn Display) {
        tracing::error!("{what}: {e}");
        self.note_failure(what, e);
    }

    /// Remembers an error that is not worth a line in the log.
    pub fn note_failure(&self, what: &str, e: &dyn Display) {
        self.0.state().failure = Some((format!("{what}: {e}"), Instant::now()));
    }

    fn rest_for(&self, next: Next) -> bool {
        if !next.rest.is_zero() && !self.is_stopped() {
            self.0.set(Doing::Resting(next.rest, next.why));
            self.0.rest.rest(next.rest);
            self.0.set(Doing::Working);
        }
        !self.is_stopped()
    }
}

#[cfg(test)]
mod tests {
    use conquest_fs::poll::poll_until;

    use super::*;

    const LONG: Duration = Duration::from_secs(100_000);

    fn start(wakeup: &Arc<Wakeup>, first: Duration, work: impl FnMut(&Run) -> Next + Send + 'static) -> Task {
        Task::start(Plan { name: "test", first, nice: 0 }, wakeup.clone(), work).expect("a thread")
    }

    #[track_caller]
    fn comes_to(task: &Task, state: impl Fn(&TaskState) -> bool) {
        assert!(poll_until(Duration::from_secs(60), || state(&task.state())), "{:?}", task.state());
    }

    fn ended(task: Task) -> (Doing, u64) {
        let shared = task.shared.clone();
        drop(task);
        let state = shared.state();
        (state.doing, state.runs)
    }

    #[test]
    fn it_rests_until_it_is_woken_and_ends_when_it_is_dropped() {
        let wakeup = Arc::<Wakeup>::default();
        let task = start(&wakeup, LONG, |_| Next::after(LONG, "there is nothing to do"));
        comes_to(&task, |task| matches!(task.doing, Doing::Resting(LONG, _)) && task.runs == 0);
        for runs in 1..4 {
            wakeup.wake();
            comes_to(&task, |task| task.doing == Doing::Resting(LONG, "there is nothing to do") && task.runs == runs);
        }
        assert_eq!(ended(task), (Doing::Ended, 3));
    }

    #[test]
    fn a_run_stops_while_it_pauses_or_works() {
        for pauses in [false, true] {
            let (begins, begun) = std::sync::mpsc::channel();
            let task = start(&Arc::default(), Duration::ZERO, move |run| {
                _ = begins.send(());
                while if pauses { run.pause(LONG) } else { !run.is_stopped() } {}
                Next::NOW
            });
            begun.recv().expect("a run");
            comes_to(&task, |task| matches!(task.doing, Doing::Resting(..)) == pauses);
            assert_eq!(ended(task), (Doing::Ended, 1));
        }
    }

    #[test]
    fn errors_and_a_panic_are_remembered() {
        let wakeup = Arc::<Wakeup>::default();
        let mut runs = 0;
        let task = start(&wakeup, Duration::ZERO, move |run| {
            runs += 1;
            assert!(runs < 2, "a defect");
            run.failed("writing", &Errno::IO);
            Next::after(LONG, "the last run failed")
        });
        comes_to(&task, |task| task.failure.as_ref().is_some_and(|(what, _)| what.starts_with("writing: ")));
        comes_to(&task, |task| task.doing == Doing::Resting(LONG, "the last run failed"));
        wakeup.wake();
        comes_to(&task, |task| task.doing == Doing::Ended && task.runs == 1);
    }
}
