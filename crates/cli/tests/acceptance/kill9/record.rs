//! The acknowledgements of one writer, the writer itself, and the check afterwards.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::str::FromStr;

use rng::Rng;

use super::model::Model;
use super::tally::Tally;
use crate::lab::is_gone;

/// The first argument that makes this program a writer.
pub const WRITER: &str = "--writer";

const WRITERS: u64 = 4;

/// The acknowledgements of one writer, and the path of its record.
pub struct Record {
    pub seed: u64,
    pub index: u64,
    /// Relative to the mount.
    dir: PathBuf,
    acknowledged: PathBuf,
}

/// The results of the checks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub writers: u64,
    pub acknowledged: u64,
    in_flight_done: u64,
    in_flight_undone: u64,
    /// The first pages of a write: each is a request of its own to the server.
    in_flight_partly_written: u64,
}

/// The records of a round's writers in `dir` of the mount; their counts are in `acknowledged`.
pub fn all(seed: u64, dir: &Path, acknowledged: &Path) -> Vec<Record> {
    let of = |index| Record { seed: seed ^ index, index, dir: dir.into(), acknowledged: acknowledged.into() };
    (0..WRITERS).map(of).collect()
}

impl Record {
    pub fn spawn(&self, mnt: &Path) -> Child {
        Command::new(std::env::current_exe().expect("this program"))
            .arg(WRITER)
            .args([self.seed.to_string(), self.index.to_string()])
            .args([&mnt.join(&self.dir), &self.acknowledged])
            .spawn()
            .expect("a writer")
    }

    /// Forgets the counts of an earlier round.
    pub fn clear(&self) {
        Tally::start(&self.acknowledged, self.index).expect("a count of nothing");
    }

    /// The operations that were acknowledged.
    pub fn count(&self) -> u64 {
        Tally::read(&self.acknowledged, self.index)
    }

    /// Checks that every acknowledged operation is present, and the one in flight wholly or not at all.
    pub fn verify(&self, mnt: &Path, sum: &mut Sum) {
        let mut rng = Rng::new(self.seed);
        let mut model = Model::new(self.index);
        for _ in 0..self.count() {
            let op = model.next(&mut rng);
            model.apply(&op);
        }
        sum.writers += 1;
        sum.acknowledged += self.count();
        let found = model.observe(&mnt.join(&self.dir));
        let undone = model.differences(&found);
        if undone.is_empty() {
            sum.in_flight_undone += 1;
            return;
        }
        let op = model.next(&mut rng);
        let partly = op.parts(|path| model.size(path)).iter().any(|part| {
            let mut model = model.clone();
            model.apply(part);
            model.differences(&found).is_empty()
        });
        if partly {
            sum.in_flight_partly_written += 1;
            return;
        }
        model.apply(&op);
        let done = model.differences(&found);
        sum.in_flight_done += 1;
        assert!(
            done.is_empty(),
            "writer {} (seed {}) after {} operations, with {op} in flight:\nif it was not done: {undone:#?}\n\
             if it was: {done:#?}",
            self.index,
            self.seed,
            self.count(),
        );
    }
}

impl Sum {
    pub fn add(&mut self, other: &Sum) {
        self.writers += other.writers;
        self.acknowledged += other.acknowledged;
        self.in_flight_done += other.in_flight_done;
        self.in_flight_undone += other.in_flight_undone;
        self.in_flight_partly_written += other.in_flight_partly_written;
    }
}

/// The form in which a machine sends it to its watcher: numbers.
impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Sum { writers, acknowledged, in_flight_done, in_flight_undone, in_flight_partly_written } = self;
        write!(f, "{writers} {acknowledged} {in_flight_done} {in_flight_undone} {in_flight_partly_written}")
    }
}

impl FromStr for Sum {
    type Err = String;
    fn from_str(text: &str) -> Result<Sum, String> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[writers, acknowledged, in_flight_done, in_flight_undone, in_flight_partly_written]) => {
                Ok(Sum { writers, acknowledged, in_flight_done, in_flight_undone, in_flight_partly_written })
            }
            _ => Err(format!("`{text}` is no sum")),
        }
    }
}

/// A writer process: SEED INDEX DIR RECORD. It succeeds only if the server ends.
pub fn write(args: &[String]) -> ExitCode {
    let [seed, index, dir, record] = args else { return ExitCode::from(2) };
    let (Ok(seed), Ok(index)) = (seed.parse(), index.parse()) else { return ExitCode::from(2) };
    let mut done = Tally::start(Path::new(record), index).expect("a record");
    let mut rng = Rng::new(seed);
    let mut model = Model::new(index);
    loop {
        let op = model.next(&mut rng);
        match op.perform(Path::new(dir)) {
            Ok(()) => done.add().expect("acknowledge"),
            Err(e) if is_gone(&e) => return ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("writer {index} (seed {seed}): {op}: {e}");
                return ExitCode::from(3);
            }
        }
        model.apply(&op);
    }
}
