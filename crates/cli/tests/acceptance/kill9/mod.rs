//! `kill -9` of the server at random moments under several writer processes.
//!
//! A writer's operations follow from its seed, so its record is only the number of acknowledged operations, stored
//! outside the pool. After a crash the checker replays that many operations on a model. The operation after them was in
//! flight: it is present wholly or not at all, or, if it is a write, with its first pages, which the kernel sends one
//! by one.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`operation`] | the operations: each is one system call that changes something |
//! | [`model`] | the expected state after the operations; the seeded choice of the next one |
//! | [`record`] | a writer, its acknowledgements, and the check afterwards |
//! | [`tally`] | counts that outlive a writer, or its machine |

pub mod model;
mod operation;
pub mod record;
pub mod tally;

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use rng::Rng;

use crate::lab::{wait_until, Lab};
use crate::settings::{number, seed};
use crate::{tree, Outcome, Test};
use record::{Record, Sum};

pub const TESTS: &[Test] = &[("kill9::nothing_acknowledged_is_lost", nothing_acknowledged_is_lost)];

/// The directories of this many earlier rounds stay, and must not change.
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
    assert!(sum.acknowledged > sum.writers, "the writers did next to nothing: {sum:?}");
    Ok(())
}

/// Mounts again and checks: alternately before and after mounting, and with and without unmounting first.
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

/// The writers at work.
struct Round {
    number: u64,
    writers: Vec<(Child, Record)>,
}

impl Round {
    fn start(lab: &Lab, number: u64, seed: u64) -> Round {
        let dir = PathBuf::from(format!("round{number}"));
        std::fs::create_dir_all(lab.mnt().join(&dir).join(model::SHARED)).expect("mkdir");
        let records = record::all(seed, &dir, &lab.path(&format!("acknowledged-{number}")));
        let writers = records.into_iter().map(|record| (record.spawn(&lab.mnt()), record));
        let round = Round { number, writers: writers.collect() };
        wait_until(Duration::from_secs(30), "each writer has done something", || {
            round.writers.iter().all(|(_, record)| record.count() > 0)
        });
        round
    }

    fn name(&self) -> String {
        format!("round{}", self.number)
    }

    /// Waits until the writers notice that the server is gone, and end.
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
