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
use std::time::Duration;

use conquest_fs::error::{Error, Result};
use conquest_fs::node::Fs;
use conquest_fs::wakeup::Wakeup;
use rustix::io::Errno;

use super::report::{self, Activity, Job, Progress, TaskError, TaskState};

/// How a task rests, and how it is woken.
pub trait Rest: Send + Sync {
    /// Waits until the task is woken, at most so long. An earlier call to `wake` counts.
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

/// What a task does after a run: it sleeps or waits for so long.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    rest: Duration,
    state: Activity,
    why: &'static str,
}

impl Next {
    pub const NOW: Next = Next { rest: Duration::ZERO, state: Activity::Running, why: "" };

    /// It sleeps, since there is nothing to do until then.
    pub const fn after(rest: Duration, why: &'static str) -> Next {
        Next { rest, state: Activity::Asleep, why }
    }

    /// It waits for something else, and looks again after so long.
    pub const fn waiting(rest: Duration, what_for: &'static str) -> Next {
        Next { rest, state: Activity::Waiting, why: what_for }
    }
}

/// A shorter run found nothing to do.
const LOOK: Duration = Duration::from_millis(5);

/// How a task begins.
#[derive(Clone, Copy)]
pub struct Plan {
    pub job: Job,
    /// How long it rests before its first run.
    pub first: Duration,
    /// How much its thread gives way to others (`nice(2)`).
    pub nice: i32,
}

/// A running task; dropping it stops it, after its present work.
pub struct Task {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Shows to other processes the state of a task; nothing once it has ended.
type Publish = Box<dyn Fn(Option<&TaskState>) + Send + Sync>;

/// The state that a task's thread shares with others.
struct Shared {
    stopped: AtomicBool,
    rest: Box<dyn Rest>,
    state: Mutex<TaskState>,
    last_rest: Mutex<Option<LastRest>>,
    publish: Publish,
}

/// The last rest of a task, as it is shown.
#[derive(Clone, Copy)]
struct LastRest {
    state: Activity,
    why: &'static str,
    /// In seconds since 1970.
    since: f64,
}

impl LastRest {
    /// The rest that begins now, after a run since `ran`.
    fn begins(last: Option<LastRest>, next: Next, ran: f64, now: f64) -> LastRest {
        let goes_on =
            last.filter(|last| (last.state, last.why) == (next.state, next.why) && now - ran < LOOK.as_secs_f64());
        LastRest { state: next.state, why: next.why, since: goes_on.map_or(now, |last| last.since) }
    }
}

/// A task as its own runs see it.
pub struct Run<'t>(&'t Shared);

impl Task {
    /// Starts a task of the process that has `fs` open, and shows its state in the shared state.
    pub fn start(
        fs: &Arc<Fs>,
        plan: Plan,
        rest: impl Rest + 'static,
        work: impl FnMut(&Run) -> Next + Send + 'static,
    ) -> Result<Task> {
        let fs = fs.clone();
        Task::start_publishing(plan, rest, move |state| report::publish(&fs, plan.job, state), work)
    }

    fn start_publishing(
        plan: Plan,
        rest: impl Rest + 'static,
        publish: impl Fn(Option<&TaskState>) + Send + Sync + 'static,
        mut work: impl FnMut(&Run) -> Next + Send + 'static,
    ) -> Result<Task> {
        let name = plan.job.name();
        let state = TaskState {
            name,
            state: Activity::Running,
            why: "".into(),
            since: report::now(),
            at_most: None,
            runs: 0,
            progress: None,
            last_error: None,
        };
        publish(Some(&state));
        let shared = Arc::new(Shared {
            stopped: AtomicBool::new(false),
            rest: Box::new(rest),
            state: Mutex::new(state),
            last_rest: Mutex::new(None),
            publish: Box::new(publish),
        });
        let theirs = shared.clone();
        let thread = Builder::new().name(name.into()).spawn(move || {
            if plan.nice != 0 {
                // A task works also if it may not do that.
                let _ = rustix::process::nice(plan.nice);
            }
            let _ends = Ends(&theirs);
            let run = Run(&theirs);
            let mut next = Next::after(plan.first, "its first run is due later");
            while run.rest_for(next) {
                next = work(&run);
                theirs.change(|state| (state.runs, state.progress) = (state.runs + 1, None));
            }
        });
        let thread = thread.map_err(|e| Error::Host {
            what: format!("starting the thread {name}"),
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
        (self.shared.publish)(None);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and shows it.
    fn change(&self, change: impl FnOnce(&mut TaskState)) {
        let mut state = self.state();
        change(&mut state);
        (self.publish)(Some(&state));
    }

    fn set(&self, activity: Activity) {
        self.change(|state| {
            (state.state, state.why, state.since, state.at_most) = (activity, "".into(), report::now(), None);
        });
    }

    fn rests(&self, next: Next) {
        let mut last = self.last_rest.lock().unwrap_or_else(PoisonError::into_inner);
        self.change(|state| {
            let rest = LastRest::begins(*last, next, state.since, report::now());
            *last = Some(rest);
            (state.state, state.why, state.since) = (next.state, next.why.into(), rest.since);
            state.at_most = Some(next.rest.as_secs_f64());
        });
    }
}

/// Notes the end of the thread, when it is dropped.
struct Ends<'t>(&'t Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set(Activity::Ended);
    }
}

impl Run<'_> {
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::SeqCst)
    }

    /// Rests in the midst of a run, to leave resources to others; false if it is time to stop.
    pub fn pause(&self, rest: Duration, what_for: &'static str) -> bool {
        self.rest_for(Next::waiting(rest, what_for))
    }

    /// Logs and remembers an error.
    pub fn failed(&self, what: &str, e: &dyn Display) {
        tracing::error!("{what}: {e}");
        self.note_failure(what, e);
    }

    /// Remembers an error that is not worth a line in the log.
    pub fn note_failure(&self, what: &str, e: &dyn Display) {
        let error = TaskError { what: format!("{what}: {e}"), at: report::now() };
        self.0.change(|state| state.last_error = Some(error));
    }

    /// Shows the progress of this run.
    pub fn progress(&self, done: u64, total: u64, of: &'static str) {
        self.0.change(|state| state.progress = Some(Progress { done, total, of: of.into() }));
    }

    /// A rest after a run that found nothing to do is shown as one with the rest before.
    fn rest_for(&self, next: Next) -> bool {
        if !next.rest.is_zero() && !self.is_stopped() {
            self.0.rests(next);
            self.0.rest.rest(next.rest);
            self.0.set(Activity::Running);
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
        start_publishing(wakeup, first, |_| {}, work)
    }

    fn start_publishing(
        wakeup: &Arc<Wakeup>,
        first: Duration,
        publish: impl Fn(Option<&TaskState>) + Send + Sync + 'static,
        work: impl FnMut(&Run) -> Next + Send + 'static,
    ) -> Task {
        let plan = Plan { job: Job::Commit, first, nice: 0 };
        Task::start_publishing(plan, wakeup.clone(), publish, work).expect("a thread")
    }

    #[track_caller]
    fn comes_to(task: &Task, state: impl Fn(&TaskState) -> bool) {
        assert!(poll_until(Duration::from_secs(60), || state(&task.state())), "{:?}", task.state());
    }

    fn ended(task: Task) -> (Activity, u64) {
        let shared = task.shared.clone();
        drop(task);
        let state = shared.state();
        (state.state, state.runs)
    }

    fn is_resting(task: &TaskState, why: &str) -> bool {
        task.state == Activity::Asleep && task.at_most == Some(LONG.as_secs_f64()) && task.why == why
    }

    #[test]
    fn it_rests_until_it_is_woken_and_ends_when_it_is_dropped() {
        let wakeup = Arc::<Wakeup>::default();
        let task = start(&wakeup, LONG, |_| Next::after(LONG, "there is nothing to do"));
        comes_to(&task, |task| is_resting(task, "its first run is due later") && task.runs == 0);
        for runs in 1..4 {
            wakeup.wake();
            comes_to(&task, |task| is_resting(task, "there is nothing to do") && task.runs == runs);
        }
        assert_eq!(ended(task), (Activity::Ended, 3));
    }

    #[test]
    fn a_rest_goes_on_over_runs_that_find_nothing_to_do() {
        let nothing = Next::after(LONG, "there is nothing to do");
        let first = LastRest::begins(None, nothing, 10.0, 10.001);
        assert_eq!(first.since, 10.001);
        assert_eq!(LastRest::begins(Some(first), nothing, 20.0, 20.001).since, 10.001);
        assert_eq!(LastRest::begins(Some(first), nothing, 20.0, 20.1).since, 20.1, "it did something");
        let full = Next::waiting(LONG, "the disk is full");
        assert_eq!(LastRest::begins(Some(first), full, 20.0, 20.001).since, 20.001);
    }

    #[test]
    fn a_run_stops_while_it_pauses_or_works() {
        for pauses in [false, true] {
            let (begins, begun) = std::sync::mpsc::channel();
            let task = start(&Arc::default(), Duration::ZERO, move |run| {
                _ = begins.send(());
                while if pauses { run.pause(LONG, "its share") } else { !run.is_stopped() } {}
                Next::NOW
            });
            begun.recv().expect("a run");
            comes_to(&task, |task| task.state == if pauses { Activity::Waiting } else { Activity::Running });
            assert_eq!(ended(task), (Activity::Ended, 1));
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
        comes_to(&task, |task| task.last_error.as_ref().is_some_and(|error| error.what.starts_with("writing: ")));
        comes_to(&task, |task| is_resting(task, "the last run failed"));
        wakeup.wake();
        comes_to(&task, |task| task.state == Activity::Ended && task.runs == 1);
    }

    #[test]
    fn whatever_it_does_is_published_until_it_is_stopped() {
        let (shown, published) = (Arc::<Mutex<Vec<Option<TaskState>>>>::default(), Arc::<Wakeup>::default());
        let show = {
            let shown = shown.clone();
            move |state: Option<&TaskState>| shown.lock().expect("a lock").push(state.cloned())
        };
        let task = start_publishing(&published, Duration::ZERO, show, |run| {
            run.progress(1, 2, "inodes");
            Next::waiting(LONG, "the disk is full")
        });
        comes_to(&task, |task| task.state == Activity::Waiting);
        drop(task);
        let shown = shown.lock().expect("a lock");
        let shows = |what: &dyn Fn(&TaskState) -> bool| shown.iter().flatten().any(what);
        assert!(shows(&|task| task.progress.as_ref().is_some_and(|progress| progress.total == 2)), "{shown:?}");
        assert!(
            shows(&|task| task.why == "the disk is full" && task.progress.is_none() && task.runs == 1),
            "{shown:?}"
        );
        assert_eq!(shown.last(), Some(&None));
    }
}
