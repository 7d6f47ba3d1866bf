//! The state of a task, as `status` shows it: each process writes it to its records in the runtime file, where others read it.

use std::borrow::Cow;

use conquest_fs::node::Fs;
use pram::runtime::reports::{REPORT, REPORTS};
use serde::Serialize;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// All tasks; each has the record of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Commits to the backing.
    Commit,
    /// The content of the redo log goes to the checkpoint of the backing.
    Checkpoint,
    /// Dirty blocks go to segments, clean ones are evicted, segments are cleaned.
    WriteBack,
    /// Replicas that are lacking, regions that leave or come back, balance, scrub.
    Rebuild,
    /// Compression of small files, packing of inodes and names.
    Compression,
    /// Memory ahead of need.
    Preallocate,
    /// Remains of dead processes, memory of freed inodes, memory that is not needed.
    Reclaim,
}

impl Job {
    const ALL: [Job; 7] =
        [Job::Commit, Job::Checkpoint, Job::WriteBack, Job::Rebuild, Job::Compression, Job::Preallocate, Job::Reclaim];

    /// Also the name of its thread.
    pub const fn name(self) -> &'static str {
        match self {
            Job::Commit => "commit",
            Job::Checkpoint => "checkpoint",
            Job::WriteBack => "write-back",
            Job::Rebuild => "rebuild",
            Job::Compression => "compression",
            Job::Preallocate => "preallocate",
            Job::Reclaim => "reclaim",
        }
    }
}

const _: () = assert!(Job::ALL.len() <= REPORTS as usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    Running,
    /// It has nothing to do now: it wakes by itself, or is woken.
    Asleep,
    /// Work is due, or may be, and something else must happen first.
    Waiting,
    /// Its thread has ended by a defect.
    Ended,
}

impl Activity {
    const ALL: [Activity; 4] = [Activity::Running, Activity::Asleep, Activity::Waiting, Activity::Ended];
}

/// The present state of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskState {
    pub name: &'static str,
    pub state: Activity,
    /// What it waits for, or why it sleeps.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub why: Cow<'static, str>,
    /// Since when, in seconds since 1970. Runs that found nothing to do do not end a sleep.
    pub since: f64,
    /// It sleeps or waits for at most so many seconds.
    pub at_most: Option<f64>,
    /// How often it has run.
    pub runs: u64,
    /// The progress of its run.
    pub progress: Option<Progress>,
    pub last_error: Option<TaskError>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
    /// The things that are counted.
    pub of: Cow<'static, str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskError {
    pub what: String,
    /// The time of the error, in seconds since 1970.
    pub at: f64,
}

/// Seconds since 1970.
pub fn now() -> f64 {
    pram::clock::precise() as f64 / 1e9
}

/// A [`TaskState`] in the runtime file. Text is padded with zeros; zeros are no report.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    /// Position in [`Activity::ALL`], + 1.
    activity: u64,
    /// The bits of an `f64`.
    since: u64,
    /// The same; 0: it does not end by itself.
    at_most: u64,
    runs: u64,
    done: u64,
    /// 0: no progress is reported.
    total: u64,
    /// The bits of an `f64`; 0: no error.
    failed_at: u64,
    of: [u8; 16],
    why: [u8; 96],
    failure: [u8; REPORT - 7 * 8 - 16 - 96],
}

impl Record {
    fn of(state: &TaskState) -> Record {
        let mut record = Record::new_zeroed();
        record.activity = Activity::ALL.iter().position(|known| *known == state.state).map_or(0, |n| n as u64 + 1);
        (record.since, record.runs) = (state.since.to_bits(), state.runs);
        record.at_most = state.at_most.map_or(0, f64::to_bits);
        put(&mut record.why, &state.why);
        if let Some(progress) = &state.progress {
            (record.done, record.total) = (progress.done, progress.total);
            put(&mut record.of, &progress.of);
        }
        if let Some(error) = &state.last_error {
            record.failed_at = error.at.to_bits();
            put(&mut record.failure, &error.what);
        }
        record
    }

    fn state(&self, job: Job) -> Option<TaskState> {
        let activity = self.activity.checked_sub(1).and_then(|n| Activity::ALL.get(n as usize))?;
        Some(TaskState {
            name: job.name(),
            state: *activity,
            why: text(&self.why).into(),
            since: f64::from_bits(self.since),
            at_most: (self.at_most != 0).then(|| f64::from_bits(self.at_most)),
            runs: self.runs,
            progress: (self.total != 0).then(|| Progress {
                done: self.done,
                total: self.total,
                of: text(&self.of).into(),
            }),
            last_error: (self.failed_at != 0)
                .then(|| TaskError { what: text(&self.failure), at: f64::from_bits(self.failed_at) }),
        })
    }
}

/// Copies as much of the text as there is room for.
fn put(room: &mut [u8], text: &str) {
    let len = (0..=room.len().min(text.len())).rev().find(|len| text.is_char_boundary(*len)).unwrap_or(0);
    room[..len].copy_from_slice(&text.as_bytes()[..len]);
}

fn text(room: &[u8]) -> String {
    let len = room.iter().position(|byte| *byte == 0).unwrap_or(room.len());
    String::from_utf8_lossy(&room[..len]).into_owned()
}

/// Shows the state of a task of this process, or that there is none.
pub fn publish(fs: &Fs, job: Job, state: Option<&TaskState>) {
    let mut report = [0; REPORT];
    if let Some(state) = state {
        report.copy_from_slice(Record::of(state).as_bytes());
    }
    fs.session().runtime().report(job as u32, &report);
}

/// The states of the tasks of an attached process.
pub fn of_session(fs: &Fs, session: u32) -> Vec<TaskState> {
    let read = |job: Job| {
        let report = fs.session().runtime().reported(session, job as u32)?;
        Record::read_from_bytes(&report).ok()?.state(job)
    };
    Job::ALL.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_holds_all_of_a_state() {
        let plain = TaskState {
            name: "commit",
            state: Activity::Running,
            why: "".into(),
            since: 1.5e9,
            at_most: None,
            runs: 7,
            progress: None,
            last_error: None,
        };
        let full = TaskState {
            state: Activity::Waiting,
            why: "the disk is full".into(),
            at_most: Some(0.25),
            progress: Some(Progress { done: 3, total: 8, of: "inodes".into() }),
            last_error: Some(TaskError { what: "ü".repeat(300), at: 2e9 }),
            ..plain.clone()
        };
        assert_eq!(Record::of(&plain).state(Job::Commit), Some(plain));
        let read = Record::of(&full).state(Job::Commit).expect("a state");
        let error = read.last_error.clone().expect("an error");
        assert!(error.what.len() > 300 && error.what.chars().all(|c| c == 'ü'), "{error:?}");
        assert_eq!(TaskState { last_error: full.last_error.clone(), ..read }, full);
        assert_eq!(Record::new_zeroed().state(Job::Commit), None);
    }

    #[test]
    fn each_job_has_a_number_of_its_own_and_a_name_that_a_thread_can_have() {
        for (n, job) in Job::ALL.into_iter().enumerate() {
            assert!(job as usize == n && job.name().len() <= 15, "{job:?}");
        }
    }
}
