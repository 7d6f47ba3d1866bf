//! Direct access: what it gives to unmodified programs, beside tmpfs, ext4 and the plain mount.
//!
//! | part | subject |
//! | --- | --- |
//! | `files` | [`files`]: single operations in one directory, by a program that uses `std::fs` alone |
//! | `commands` | [`commands`]: tar, cp, rm, find, git, sqlite3, postmark and others, as they are installed |
//! | `start` | [`start`]: the price of the library for a process |
//!
//! What counts is processor time, user and system, of all processes of a command. Wall time stands beside it, and what
//! the mount's server takes meanwhile. Programs get the environment that `conquest run` gives, as from a shell that
//! runs under it; `start` shows the price of `conquest run` itself.

mod commands;
mod files;
mod start;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::smallfile::in_ram;
use crate::clock::{children_time, process_time_of};
use crate::command::output;
use crate::prelude::*;

pub use files::{work, Worker};

pub const BATTERY_DIRECT: Who = BATTERY_MOUNTED.called("conquest battery direct");
pub const LOGGED_DIRECT: Who = LOGGED_MOUNTED.called("conquest logged direct");
const DIRECTS: [Who; 2] = [BATTERY_DIRECT, LOGGED_DIRECT];
const WHOS: [Who; 6] = [TMPFS, EXT4, BATTERY_MOUNTED, LOGGED_MOUNTED, BATTERY_DIRECT, LOGGED_DIRECT];

type Measure = fn(&Context, &Options) -> Result<Outcome, Error>;

const PARTS: [Part<Measure>; 3] = [
    ("files", "Operations on the files of one directory", files::run),
    ("commands", "Programs of the machine", commands::run),
    ("start", "The price of direct access for a process", start::run),
];

options! { Options {
    only: "PART,..." of &PARTS, "What to measure [default: all]";
    files: count "N" = 10_000, "Files of the directory";
    source: dir = "/usr/include", "The tree that programs copy, pack, search and put under version control";
    transactions: count "N" = 1_000, "Transactions of sqlite3";
    postmark: count "N" = 50_000, "Transactions of postmark, on a fifth as many files";
    processes: count "N" = 200, "Processes started in a round";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for (.., measure) in wanted(&PARTS, &self.only) {
            outcome.extend(measure(context, self)?);
        }
        Ok(outcome)
    }
}

/// A peer, and the environment of programs on it.
struct Subject {
    peer: Peer,
    dir: PathBuf,
    environment: Vec<(String, String)>,
    server: Option<u32>,
}

impl Named for Subject {
    fn name(&self) -> &'static str {
        self.peer.who.name
    }
}

impl Subject {
    fn of(peer: Peer, context: &Context) -> Result<Subject, Error> {
        let environment = if DIRECTS.contains(&peer.who) { environment(&peer, context)? } else { Vec::new() };
        Ok(Subject { dir: peer.dir()?.to_owned(), server: peer.server()?, environment, peer })
    }

    /// A program that works in a directory of the peer.
    fn command(&self, program: impl AsRef<OsStr>, dir: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.join(dir)).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn is_direct(&self) -> bool {
        DIRECTS.contains(&self.peer.who)
    }

    fn settle(&self) -> Result<(), Error> {
        on_place!(&self.peer.place, place => place.settle())
    }

    /// Seconds of processors that the mount's server has taken so far.
    fn serving(&self) -> Result<f64, Error> {
        self.server.map_or(Ok(0.0), process_time_of)
    }

    /// Does `work`; adds the seconds of processors that its programs took, those of the clock, and those of processors
    /// that the server took, each multiplied by `scale`, to a section of its own.
    fn measure<T>(
        &self,
        sections: &mut [Section],
        (measure, scale): (&str, f64),
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (serving, cpu, start) = (self.serving()?, children_time()?, now());
        let done = work()?;
        let figures = [children_time()? - cpu, seconds_since(start), self.serving()? - serving];
        for (section, figure) in sections.iter_mut().zip(figures) {
            section.add(self.name(), measure, figure * scale);
        }
        Ok(done)
    }
}

/// Makes all peers; the sections say which are missing.
fn subjects(context: &Context, sections: &mut [Section]) -> Vec<Subject> {
    let peers = context.make(&WHOS, sections, |who| in_ram(context, who));
    let subject = |peer: Peer| {
        let name = peer.who.name;
        let made = Subject::of(peer, context);
        made.map_err(|e| sections.iter_mut().for_each(|section| section.skip(name, e.to_string()))).ok()
    };
    peers.into_iter().filter_map(subject).collect()
}

/// `conquest run` on the pool, without the command.
fn run(peer: &Peer, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--pool"]).arg(peer.pool_dir().unwrap_or(Path::new("")));
    command
}

/// The variables that `conquest run` sets. Fails where it gives no direct access: the figures would be the mount's.
fn environment(peer: &Peer, context: &Context) -> Result<Vec<(String, String)>, Error> {
    let all = output(run(peer, &context.program).args(["--", "env", "-0"]))?;
    let mut check = run(peer, &context.program);
    let check = check.args(["--check", "--", "test", "-e"]).arg(peer.dir()?.join("missing"));
    let said = check.output().map_err(Error::io("conquest run --check"))?.stderr;
    let said = String::from_utf8_lossy(&said);
    if !said.contains("calls on pools were direct") || said.starts_with("0 of") {
        return Err(Error::Usage(format!("no direct access: {}", said.trim())));
    }
    let variables = all.split('\0').filter_map(|line| line.split_once('='));
    let variables = variables.filter(|(name, value)| std::env::var(name).as_deref() != Ok(value));
    Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Sections for processor time, wall time, and the server's processor time.
fn sections(ids: [&'static str; 3], title: &str, unit: &'static str) -> [Section; 3] {
    let whats = ["processor time", "wall time", "processor time of the mount's server"];
    let of = |n: usize| Section::times(ids[n], format!("{title}: {}", whats[n]), unit);
    [of(0).against(TMPFS.name), of(1).against(TMPFS.name).drawn(Plot::bars()), of(2)]
}

/// What a measure is to reach against tmpfs and ext4: at least, and the aim.
type Goals = (&'static str, [(f64, f64); 2]);

/// The rows of a measure: against tmpfs and ext4 on `battery`, and `logged` against `battery`.
fn findings(section: &Section, (measure, goals): Goals) -> Vec<Finding> {
    let direct = BATTERY_DIRECT.name;
    let against = |(base, (required, aim)): (Who, (f64, f64))| {
        let what = format!("direct: {measure}, processor time, faster than {}", base.name);
        let row = section.row(MediumKind::Battery, what, Goal::factor(required, aim));
        row.factor(measure, direct, base.name)
    };
    let what = format!("direct: {measure}, processor time of `battery`");
    let logged = section.row(MediumKind::Logged, what, Goal::at_most(1.1, 1.0));
    let logged = logged.ratio(measure, LOGGED_DIRECT.name, direct);
    [TMPFS, EXT4].into_iter().zip(goals).map(against).chain([logged]).collect()
}
