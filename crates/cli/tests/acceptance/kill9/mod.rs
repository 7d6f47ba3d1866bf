//! `kill -9` of the server at random moments under several writer processes.
//!
//! A writer's operations follow from its seed, so its record of what was acknowledged is a count: one byte,
//! in a file outside the pool, for each operation that returned. After a crash the checker replays that
//! many operations on a model. The operation after them was in flight: it is there wholly or not at all, or
//! of a write the first pages, which the kernel hands over one by one.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`operation`] | the operations: one system call that changes something, each |
//! | [`model`] | what the operations should have made; the seeded choice of the next one |

mod model;
mod operation;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use rng::Rng;

use crate::lab::{is_gone, wait_until, Lab};
use crate::settings::{number, seed};
use crate::{tree, Outcome, Test};
use model::Model;

pub const TESTS: &[Test] = &[("kill9::nothing_acknowledged_is_lost", nothing_acknowledged_is_lost)];

/// The first argument that makes this program a writer.
pub const WRITER: &str = "--writer";

const WRITERS: u64 = 4;
/// Directories of so many earlier rounds stay, and must stay as they are.
const KEPT: usize = 4;

fn nothing_acknowledged_is_lost() -> Outcome {
    let rounds = number("CONQUEST_ROUNDS", 20);
    let lab = Lab::mounted("1G");
    let mut rng = Rng::new(seed());
    let mut kept: Vec<(PathBuf, _)> = Vec::new();
    let mut sum = Sum::default();
    for number in 0..rounds {
        let mut round = Round::start(&lab, number, rng.next());
        std::thread::sleep(Duration::from_millis(1 + rng.below(250)));
        lab.kill9();
        round.wait();
        come_back(&lab, number);
        round.writers.iter().for_each(|(_, record)| record.verify(&lab.mnt(), &mut sum));
        for (dir, before) in &kept {
            tree::assert_same(before, &tree::describe(dir), "a directory of an earlier round");
        }
        let dir = lab.mnt().join(round.name());
        kept.push((dir.clone(), tree::describe(&dir)));
        if kept.len() > KEPT {
            let (oldest, _) = kept.remove(0);
            std::fs::remove_dir_all(&oldest).expect("remove an old round");
        }
    }
    lab.umount();
    lab.check();
    println!("{rounds} rounds: {sum:?}, nothing lost");
    assert!(sum.acknowledged > rounds * WRITERS, "the writers did next to nothing: {sum:?}");
    Ok(())
}

/// Mounts again, checks, in turns before and after, and with or without unmounting first.
fn come_back(lab: &Lab, number: u64) {
    if number % 2 == 0 {
        lab.umount();
        lab.check();
    }
    lab.mount();
    if number % 3 == 0 {
        lab.check();
    }
}

#[derive(Debug, Default)]
struct Sum {
    acknowledged: u64,
    in_flight_done: u64,
    in_flight_undone: u64,
    /// The first pages of a write: each is a request of its own to the server.
    in_flight_partly_written: u64,
}

/// The writers at work.
struct Round {
    number: u64,
    writers: Vec<(Child, Record)>,
}

/// What one writer was told, and where its record is.
struct Record {
    seed: u64,
    index: u64,
    /// Relative to the mount.
    dir: PathBuf,
    acknowledged: PathBuf,
}

impl Round {
    fn start(lab: &Lab, number: u64, seed: u64) -> Round {
        let dir = PathBuf::from(format!("round{number}"));
        std::fs::create_dir_all(lab.mnt().join(&dir).join(model::SHARED)).expect("mkdir");
        let writers = (0..WRITERS).map(|index| {
            let acknowledged = lab.path(&format!("acknowledged-{number}-{index}"));
            let record = Record { seed: seed ^ index, index, dir: dir.clone(), acknowledged };
            (record.spawn(&lab.mnt()), record)
        });
        let round = Round { number, writers: writers.collect() };
        wait_until(Duration::from_secs(30), "each writer has done something", || {
            round.writers.iter().all(|(_, record)| record.count() > 0)
        });
        round
    }

    fn name(&self) -> String {
        format!("round{}", self.number)
    }

    /// The writers notice that the server is gone, and end.
    fn wait(&mut self) {
        for (writer, record) in &mut self.writers {
            let mut status = None;
            wait_until(Duration::from_secs(30), "the writers notice", || {
                status = writer.try_wait().expect("wait");
                status.is_some()
            });
            let well = status.is_some_and(|s| s.success());
            assert!(well, "writer {} (seed {}) ended with {status:?}", record.index, record.seed);
        }
    }
}

impl Record {
    fn spawn(&self, mnt: &Path) -> Child {
        Command::new(std::env::current_exe().expect("this program"))
            .arg(WRITER)
            .args([self.seed.to_string(), self.index.to_string()])
            .args([&mnt.join(&self.dir), &self.acknowledged])
            .spawn()
            .expect("a writer")
    }

    /// The operations that were acknowledged.
    fn count(&self) -> u64 {
        std::fs::metadata(&self.acknowledged).map_or(0, |m| m.len())
    }

    /// Everything acknowledged is there, and the one in flight wholly or not at all.
    fn verify(&self, mnt: &Path, sum: &mut Sum) {
        let mut rng = Rng::new(self.seed);
        let mut model = Model::new(self.index);
        for _ in 0..self.count() {
            let op = model.next(&mut rng);
            model.apply(&op);
        }
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

/// A writer process: SEED INDEX DIR RECORD. Ends well only when the server goes.
pub fn write(args: &[String]) -> ExitCode {
    let [seed, index, dir, record] = args else { return ExitCode::from(2) };
    let (Ok(seed), Ok(index)) = (seed.parse(), index.parse()) else { return ExitCode::from(2) };
    let mut record = std::fs::File::options().append(true).create(true).open(record).expect("a record");
    let mut rng = Rng::new(seed);
    let mut model = Model::new(index);
    loop {
        let op = model.next(&mut rng);
        match op.perform(Path::new(dir)) {
            Ok(()) => record.write_all(b".").expect("acknowledge"),
            Err(e) if is_gone(&e) => return ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("writer {index} (seed {seed}): {op}: {e}");
                return ExitCode::from(3);
            }
        }
        model.apply(&op);
    }
}
