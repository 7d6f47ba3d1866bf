//! A whole machine, with emulated persistent memory or a disk, killed under load. Off by default: `./test qemu`.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the machine, and the watching half of each test, here |
//! | [`guest`] | the other half, in the machine |
//! | [`power`] | power cuts of a machine with ordinary RAM: all states in which its disk may be left |
//! | [`counters`] | the load for that, in the machine |
//! | [`writes`] | the log of all writes to a disk, and those states |
//! | [`machine`] | a machine that can be booted, listened to and killed |
//! | [`initramfs`] | the root that it boots with |
//!
//! The acknowledgements of a writer are counted on persistent memory of its own (/dev/pmem1 of the guest), which is a
//! file of this machine: each count is stored before the next operation begins. Killing QEMU preserves data that the
//! guest had only in its caches. So it cannot show that a line was not written back; the explorer of crash states
//! (`sim`) does that.

mod counters;
mod guest;
mod initramfs;
mod machine;
mod power;
mod writes;

use std::collections::BTreeMap;
use std::time::Duration;

use rng::Rng;

use crate::kill9::record::Sum;
use crate::kill9::tally::Tally;
use crate::settings::{number, seed};
use crate::{Outcome, Skip, Test};
use machine::Parts;

pub use guest::{main as guest_main, GUEST};

pub const TESTS: &[Test] = &[
    ("qemu::the_commands_work_on_a_file_with_dax", commands_on_file),
    ("qemu::the_commands_work_on_a_dax_device", commands_on_device),
    ("qemu::the_processor_and_the_platform_say_how_to_write_back", write_back),
    ("qemu::the_check_finds_what_is_lost", canary),
    ("qemu::an_interrupted_format_or_restore_can_be_repeated", interrupted),
    ("qemu::nothing_acknowledged_is_lost_on_a_file_with_dax", cuts_on_file),
    ("qemu::nothing_acknowledged_is_lost_on_a_dax_device", cuts_on_device),
    ("qemu::nothing_acknowledged_is_lost_with_the_memory_of_a_mirror", losses),
    ("qemu::nothing_acknowledged_is_lost_on_ordinary_ram_and_a_disk", cuts_of_a_disk),
];

/// Setting this variable enables these tests.
const WANTED: &str = "CONQUEST_QEMU";

/// The kind of persistent memory for the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A file on ext4, mounted with `-o dax`.
    File,
    /// `/dev/dax0.0`.
    Device,
    /// `/dev/dax0.0`, with a mirrored backing on the disk; each cut takes the memory too.
    Mirrored,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::File => "file",
            Place::Device => "device",
            Place::Mirrored => "mirror",
        }
    }
}

fn wanted() -> Outcome {
    match std::env::var_os(WANTED) {
        Some(_) => Ok(()),
        None => Err(Skip("takes minutes; `./test qemu` runs it".into())),
    }
}

/// The machine of these tests: persistent memory for a pool, another for counts, and a disk.
fn parts() -> Result<Parts, Skip> {
    wanted()?;
    Ok(Parts::new()?.with_memory(576).with_memory(32).with_disk(2048))
}

fn commands_on_file() -> Outcome {
    commands(Place::File)
}

fn commands_on_device() -> Outcome {
    commands(Place::Device)
}

/// Format, mount, status, fsck, save, restore, and the refusals.
fn commands(place: Place) -> Outcome {
    parts()?.boot(&["commands", place.name()]).end();
    Ok(())
}

fn write_back() -> Outcome {
    let mut parts = parts()?;
    for (processor, persistence, expected) in [
        ("max", "mem-ctrl", "CLWB"),
        ("max,-clwb", "mem-ctrl", "CLFLUSHOPT"),
        ("qemu64", "mem-ctrl", "CLFLUSH"),
        ("max", "cpu", "none: the caches survive"),
    ] {
        (parts.processor, parts.persistence) = (processor, persistence);
        for place in [Place::File, Place::Device] {
            let mut machine = parts.boot(&["write-back", place.name()]);
            assert_eq!(machine.hear("write-back"), expected, "{processor}, {persistence}, {}", place.name());
            machine.end();
        }
    }
    Ok(())
}

/// A writer claims more acknowledgements than it got; the machine must object.
fn canary() -> Outcome {
    let parts = parts()?;
    let mut machine = parts.boot(&["round", Place::File.name(), "0", "load", "1", "0"]);
    machine.hear("kept");
    machine.hear("at work");
    machine.kill();
    let counts = parts.memory(1);
    let report = Tally::read(counts, 0);
    Tally::set(counts, 0, report + 20);
    let mut machine = parts.boot(&["round", Place::File.name(), "1", "end", "2", "1"]);
    let objection = machine.listen_for("verified").expect_err("20 operations are missing");
    assert!(objection.contains("if it was not done"), "{objection}");
    Ok(())
}

fn interrupted() -> Outcome {
    let parts = parts()?;
    let mut rng = Rng::new(seed());
    for round in 0..number("CONQUEST_ROUNDS", 50).div_ceil(10) {
        for place in [Place::File, Place::Device] {
            let command = ["format", "restore"][(round % 2) as usize];
            let mut machine = parts.boot(&["interrupted", place.name(), command]);
            machine.hear("at work");
            std::thread::sleep(Duration::from_millis(rng.below(LONGEST_LOAD)));
            machine.kill();
            let mut machine = parts.boot(&["repeated", place.name(), command]);
            println!("{command} on a {}: the cut left {}", place.name(), machine.hear("found"));
            machine.end();
        }
    }
    Ok(())
}

fn cuts_on_file() -> Outcome {
    cuts(Place::File, number("CONQUEST_ROUNDS", 50))
}

fn cuts_of_a_disk() -> Outcome {
    wanted()?;
    power::cuts(number("CONQUEST_BOOTS", 2))
}

fn cuts_on_device() -> Outcome {
    cuts(Place::Device, number("CONQUEST_ROUNDS", 50))
}

fn losses() -> Outcome {
    cuts(Place::Mirrored, number("CONQUEST_ROUNDS", 50).div_ceil(5))
}

/// The most milliseconds of load before a cut.
const LONGEST_LOAD: u64 = 1500;

fn cuts(place: Place, rounds: u64) -> Outcome {
    let parts = parts()?;
    let mut rng = Rng::new(seed());
    let mut sum = Sum::default();
    let mut kept = BTreeMap::new();
    let mut before = 0;
    for round in 0..=rounds {
        let seed = rng.next();
        let last = if round == rounds { "end" } else { "load" };
        let words = ["round", place.name(), &round.to_string(), last, &seed.to_string(), &before.to_string()];
        let mut machine = parts.boot(&words);
        if round > 0 {
            sum.add(&machine.hear("verified").parse().expect("a sum"));
        }
        same_as_before(&machine.hear("kept"), &mut kept, round);
        if round == rounds {
            machine.end();
            break;
        }
        machine.hear("at work");
        std::thread::sleep(Duration::from_millis(rng.below(LONGEST_LOAD)));
        machine.kill();
        if place == Place::Mirrored {
            parts.replace_memory(0);
        }
        before = seed;
    }
    println!("{rounds} cuts on a {}: {sum:?}, nothing lost", place.name());
    assert!(sum.acknowledged > sum.writers, "the writers did next to nothing: {sum:?}");
    Ok(())
}

/// Checks that the directories of earlier rounds have not changed: `ROUND=DIGEST ...`.
fn same_as_before(digests: &str, kept: &mut BTreeMap<String, String>, round: u64) {
    for (name, digest) in digests.split_whitespace().filter_map(|word| word.split_once('=')) {
        let before = kept.entry(name.into()).or_insert_with(|| digest.into());
        assert_eq!(before, digest, "round {round} finds the directory of round {name} changed");
    }
}
