//! What every workload needs to know of the run.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{Args, Kind};
use crate::error::Error;
use crate::supervise::Base;

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
    pub fn new(args: &Args, base: &Base) -> Result<Context, Error> {
        Ok(Context {
            base: base.path().to_owned(),
            disk: base.disk().map(Into::into),
            program: args.program.clone().unwrap_or_else(conquest),
            quick: args.quick,
            progress: Progress::new(),
            rounds: args.rounds,
            on: args.on.clone(),
            failures: RefCell::default(),
        })
    }

    pub fn wants(&self, kind: Kind) -> bool {
        self.on.is_empty() || self.on.contains(&kind)
    }

    /// Is it named on the command line, and not only included by naming nothing?
    pub fn names(&self, kind: Kind) -> bool {
        self.on.contains(&kind)
    }

    /// The rounds to run: as asked for, or `usual`, or few when quick.
    pub fn rounds(&self, usual: usize) -> usize {
        self.rounds.map_or(if self.quick { usual.min(2) } else { usual }, |n| n as usize)
    }

    /// Shows which of how many rounds a workload is in, and `at` what.
    pub fn say_round(&self, what: &str, round: usize, usual: usize, at: impl Display) {
        let of = self.rounds(usual);
        let at = at.to_string();
        let comma = if at.is_empty() { "" } else { ", " };
        self.progress.say(format!("{what}: round {} of {of}{comma}{at}", round + 1));
    }

    /// A size: as asked for, or at most `small` when quick.
    pub fn size(&self, asked: usize, small: usize) -> usize {
        if self.quick {
            asked.min(small)
        } else {
            asked
        }
    }

    /// Bytes of each file system under test; sparse, so that only what a workload writes is RAM.
    pub fn bytes(&self) -> u64 {
        if self.quick {
            512 << 20
        } else {
            2 << 30
        }
    }

    /// Notes that a file system failed, to be told at the end; the others go on.
    pub fn failed(&self, subject: &str, error: &Error) {
        self.failures.borrow_mut().push(format!("{subject}: {error}"));
    }

    /// How many have failed so far.
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

/// One line on a terminal, drawn only when told to: a ticking thread would disturb what is measured.
pub struct Progress(ProgressBar);

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        bar.set_style(
            ProgressStyle::with_template("{elapsed_precise} {msg}").unwrap_or(ProgressStyle::default_spinner()),
        );
        Progress(bar)
    }

    pub fn say(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    /// Prints a table without leaving the line in it. A reader that has gone does not end the run: the
    /// JSON may still be wanted.
    pub fn print(&self, text: &str) {
        let _ = self.0.suspend(|| writeln!(std::io::stdout(), "{text}"));
    }
}
