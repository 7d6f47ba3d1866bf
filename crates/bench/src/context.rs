//! The state of the run that every workload needs, and the runner of rounds.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use report::{Outcome, Section};

use crate::error::Error;
use crate::peer::{Kind, Named, Peer, Who};
use crate::supervise::Base;

/// A workload with its options.
pub trait Workload {
    /// The disk that it writes to, if any.
    fn disk(&self) -> Option<PathBuf> {
        None
    }

    fn run(&self, context: &Context) -> Result<Outcome, Error>;
}

/// The options of all workloads.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Write all rounds and medians to FILE as JSON
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the plots into DIR, as SVG
    #[arg(long, global = true, value_name = "DIR")]
    pub plots: Option<PathBuf>,

    /// Much smaller sizes, to see that everything works; the figures mean little
    #[arg(long, global = true)]
    pub quick: bool,

    /// Rounds per file system, interleaved [default: depends on the workload]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    pub rounds: Option<u32>,

    /// The file systems to run on [default: all that the workload compares]
    #[arg(long, global = true, value_name = "NAME,...", value_delimiter = ',')]
    pub on: Vec<Kind>,

    /// The conquest program to mount with [default: the one beside this program, or in PATH]
    #[arg(long, global = true, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// The run.
pub struct Context {
    /// A directory in RAM for pools, images and mount points.
    pub base: PathBuf,
    /// A directory on the machine's own disk, if the workload asked for one.
    pub disk: Option<PathBuf>,
    /// The program to mount pools with.
    pub program: PathBuf,
    pub quick: bool,
    pub progress: Progress,
    rounds: Option<u32>,
    on: Vec<Kind>,
    failures: RefCell<Vec<String>>,
}

impl Context {
    pub fn new(common: &Common, base: &Base) -> Context {
        Context {
            base: base.path().to_owned(),
            disk: base.disk().map(Into::into),
            program: common.program.clone().unwrap_or_else(conquest),
            quick: common.quick,
            progress: Progress::new(),
            rounds: common.rounds,
            on: common.on.clone(),
            failures: RefCell::default(),
        }
    }

    /// Fails if the command line leaves it out.
    pub fn require(&self, kind: Kind) -> Result<(), Error> {
        match self.on.is_empty() || self.on.contains(&kind) {
            true => Ok(()),
            false => Err(Error::Usage("not asked for with --on".into())),
        }
    }

    /// Does the command line name it, and not only include it by naming none?
    pub fn names(&self, kind: Kind) -> bool {
        self.on.contains(&kind)
    }

    /// The number of rounds: the requested one, or `usual`, or few when quick.
    pub fn count(&self, usual: usize) -> usize {
        self.rounds.map_or(if self.quick { usual.min(2) } else { usual }, |n| n as usize)
    }

    /// Shows the round of a workload, the number of rounds, and the subject `at` work.
    pub fn say_round(&self, what: &str, round: usize, usual: usize, at: impl Display) {
        let of = self.count(usual);
        let at = at.to_string();
        let comma = if at.is_empty() { "" } else { ", " };
        self.progress.say(format!("{what}: round {} of {of}{comma}{at}", round + 1));
    }

    /// A size: `asked`, or at most `small` when quick.
    pub fn size(&self, asked: usize, small: usize) -> usize {
        if self.quick {
            asked.min(small)
        } else {
            asked
        }
    }

    /// As `size`, in MiB; returns bytes.
    pub fn mib(&self, asked: usize, small: usize) -> u64 {
        (self.size(asked, small) as u64) << 20
    }

    /// The seconds of a round: as asked, or few when quick.
    pub fn seconds(&self, asked: f64) -> f64 {
        if self.quick {
            asked.min(0.3)
        } else {
            asked
        }
    }

    /// The size of each file system under test in bytes; it is sparse, so that only written parts take RAM.
    pub fn bytes(&self) -> u64 {
        if self.quick {
            512 << 20
        } else {
            2 << 30
        }
    }

    /// Makes the peers of `whos` that the command line does not exclude; the others are skipped in each of the
    /// sections.
    pub fn make(&self, whos: &[Who], sections: &mut [Section], make: impl Fn(Who) -> Result<Peer, Error>) -> Vec<Peer> {
        let made = whos.iter().filter_map(|&who| {
            self.progress.say(format!("making {}", who.name));
            let made = self.require(who.kind).and_then(|()| make(who));
            made.map_err(|e| sections.iter_mut().for_each(|section| section.skip(who.name, e.to_string()))).ok()
        });
        made.collect()
    }

    /// Does `work` with each of the subjects, round by round. A failure is reported at the end; the other subjects go
    /// on.
    pub fn rounds<T: Named>(
        &self,
        label: &str,
        usual: usize,
        subjects: &mut Vec<T>,
        sections: &mut [Section],
        mut work: impl FnMut(&T, usize, &mut [Section]) -> Result<(), Error>,
    ) {
        for round in 0..self.count(usual) {
            self.once_each((label, round, usual), subjects, sections, |subject, sections| {
                work(subject, round, sections)
            });
        }
    }

    /// Runs one round, or a part of it: each subject once.
    pub fn once_each<T: Named>(
        &self,
        (label, round, usual): (&str, usize, usize),
        subjects: &mut Vec<T>,
        sections: &mut [Section],
        mut work: impl FnMut(&T, &mut [Section]) -> Result<(), Error>,
    ) {
        subjects.retain(|subject| {
            self.say_round(label, round, usual, subject.name());
            self.attempt(label, subject.name(), sections, |sections| work(subject, sections))
        });
    }

    /// Does `work`; if it fails, `subject` leaves the sections. A subject that this machine lacks is no failure.
    pub fn attempt(
        &self,
        label: &str,
        subject: &'static str,
        sections: &mut [Section],
        work: impl FnOnce(&mut [Section]) -> Result<(), Error>,
    ) -> bool {
        let Err(e) = work(sections) else { return true };
        if e.is_lacking() {
            sections.iter_mut().for_each(|section| section.skip(subject, e.to_string()));
        } else {
            self.failed(&format!("{label}: {subject}"), &e);
            sections.iter_mut().for_each(|section| section.fail(subject, e.to_string()));
        }
        false
    }

    /// Records that a file system failed, to be reported at the end; the others go on.
    pub fn failed(&self, subject: &str, error: &Error) {
        self.failures.borrow_mut().push(format!("{subject}: {error}"));
    }

    /// The number of failures so far.
    pub fn failures(&self) -> usize {
        self.failures.borrow().len()
    }

    pub fn into_failures(self) -> Vec<String> {
        self.progress.0.finish_and_clear();
        self.failures.into_inner()
    }
}

/// The program `conquest`: beside this one, or in PATH.
fn conquest() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name("conquest"));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| "conquest".into())
}

/// One line on a terminal, drawn only on demand: a ticking thread would disturb the measurement.
pub struct Progress(ProgressBar);

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{elapsed_precise} {prefix}{msg}").unwrap_or(ProgressStyle::default_spinner()),
        );
        Progress(bar)
    }

    /// Says what the following is a part of.
    pub fn within(&self, what: String) {
        self.0.set_prefix(what);
    }

    pub fn say(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    /// Prints a table without leaving the line in it. A reader that is gone does not end the run: the JSON may still be
    /// wanted.
    pub fn print(&self, text: &str) {
        let _ = self.0.suspend(|| writeln!(std::io::stdout(), "{text}"));
    }
}
