//! What runs in the machine: this program, told by [`super`] what to do. It ends by a panic if a check fails.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use super::machine::MARK;
use super::Place;
use crate::kill9::model::SHARED;
use crate::kill9::record::{self, Record, Sum};
use crate::lab::{self, program, wait_until, write_seeded, Ran};
use crate::tree;

/// The first argument that makes this program the one in the machine.
pub const GUEST: &str = "--guest";

/// Counts of what was acknowledged.
const COUNTS: &str = "/dev/pmem1";
const DISK: &str = "/disk";
const MNT: &str = "/mnt";
/// Directories of so many earlier rounds stay, and must stay as they are.
const KEPT: u64 = 4;

pub fn main(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    mount("/dev/vda", DISK, "rw");
    match words[..] {
        ["commands", place] => commands(&Pool::make(place_of(place))),
        ["write-back", place] => write_back(&Pool::make(place_of(place))),
        ["round", place, number, last, seed, before] => {
            round(place_of(place), parse(number), last == "end", parse(seed), parse(before));
        }
        _ => {
            eprintln!("{words:?} is nothing to do");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn place_of(name: &str) -> Place {
    match name {
        "file" => Place::File,
        _ => Place::Device,
    }
}

fn parse(number: &str) -> u64 {
    number.parse().unwrap_or_else(|e| panic!("{number}: {e}"))
}

fn tell(words: &str) {
    println!("{MARK}{words}");
}

fn mount(device: &str, dir: &str, options: &str) {
    lab::ok(&mut program("mount", &["-t", "ext4", "-o", options, device, dir]));
}

fn conquest(args: &[&str]) -> String {
    lab::ok(&mut program("conquest", args))
}

fn refused(args: &[&str], words: &[&str]) {
    let output = program("conquest", args).output().expect("conquest");
    Ran::from(output).is_refusal(1, words, &format!("conquest {args:?}"));
}

/// A pool on persistent memory.
struct Pool {
    place: Place,
    dir: &'static str,
    /// Arguments of `conquest format`.
    nvram: &'static str,
}

impl Pool {
    fn at(place: Place) -> Pool {
        match place {
            Place::File => Pool { place, dir: "/pm/pool", nvram: "256M" },
            Place::Device => Pool { place, dir: "/disk/pool", nvram: "/dev/dax0.0" },
        }
    }

    /// Gives the memory its mode and makes the pool, over whatever is there.
    fn make(place: Place) -> Pool {
        let pool = Pool::at(place);
        let mode = match place {
            Place::File => "fsdax",
            Place::Device => "devdax",
        };
        lab::ok(&mut program("ndctl", &["create-namespace", "-m", mode, "-f", "-e", "namespace0.0", "-M", "mem"]));
        if place == Place::File {
            lab::ok(&mut program("mkfs.ext4", &["-q", "-F", "-b", "4096", "/dev/pmem0"]));
        }
        pool.reach();
        conquest(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--force"]);
        pool
    }

    /// Makes the region reachable after a boot.
    fn reach(&self) {
        if self.place == Place::File {
            mount("/dev/pmem0", "/pm", "dax");
        }
    }

    fn mount(&self) {
        conquest(&["mount", self.dir, MNT]);
    }

    fn umount(&self) {
        conquest(&["umount", MNT]);
    }

    /// Free of problems; what a crash leaked is none.
    fn check(&self) {
        conquest(&["fsck", self.dir, "--json"]);
    }

    fn status(&self) -> serde_json::Value {
        let status: serde_json::Value = serde_json::from_str(&conquest(&["status", self.dir, "--json"])).expect("JSON");
        assert_eq!(status["medium"], "dax", "{status}");
        status
    }
}

/// The commands on persistent memory, and what they refuse.
fn commands(pool: &Pool) {
    pool.status();
    pool.check();
    pool.mount();
    let (file, image) = (Path::new(MNT).join("file"), "/disk/image");
    write_seeded(&file, 1, 3_000_000);
    std::fs::create_dir(Path::new(MNT).join("dir")).expect("mkdir");
    let before = tree::describe(Path::new(MNT));
    pool.check();
    conquest(&["save", pool.dir, image]);
    write_seeded(&file, 2, 10_000);
    refused(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--force"], &["umount"]);
    pool.umount();
    refused(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram], &["--force"]);

    refused(&["restore", pool.dir, image], &["--force"]);
    conquest(&["restore", pool.dir, image, "--force"]);
    pool.check();
    pool.mount();
    tree::assert_same(&before, &tree::describe(Path::new(MNT)), "the pool restored");
    pool.umount();

    let refusal = ["MAP_SYNC", "-o dax", "/dev/dax", "--medium battery"];
    for dir in ["/tmp/pool", "/disk/other"] {
        refused(&["format", dir, "--medium", "dax", "--nvram", "16M"], &refusal);
        assert!(!Path::new(dir).join("nvram").exists(), "a region that is none is left in {dir}");
    }
    refused(&["format", "/disk/other", "--medium", "dax", "--nvram", "/dev/pmem1"], &["block device", "devdax"]);
    if pool.place == Place::Device {
        device_commands(pool);
    }
}

/// What is particular to a device.
fn device_commands(pool: &Pool) {
    refused(&["format", "/disk/other", "--medium", "dax", "--nvram", pool.nvram], &["holds data", "--force"]);
    refused(&["format", "/disk/other", "--medium", "battery", "--nvram", pool.nvram, "--force"], &["--medium dax"]);
    refused(&["format", "/disk/other", "--medium", "dax", "--nvram", pool.nvram, "--size", "1G"], &["--size"]);
    // A region that is smaller than its device.
    conquest(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--size", "65M", "--force"]);
    assert_eq!(pool.status()["size"], 64 << 20, "whole units of 2 MiB");
    pool.mount();
    write_seeded(&Path::new(MNT).join("file"), 3, 100_000);
    pool.umount();
    pool.check();
}

fn write_back(pool: &Pool) {
    tell(&format!("write-back {}", pool.status()["write_back"].as_str().expect("a way")));
}

/// Round `number`: what there is, after the cut that ended the round before, and load until the next cut.
fn round(place: Place, number: u64, last: bool, seed: u64, before: u64) {
    let pool = come_back(place, number);
    if number > 0 {
        let mut sum = Sum::default();
        records(number - 1, before).iter().for_each(|record| record.verify(Path::new(MNT), &mut sum));
        tell(&format!("verified {sum}"));
    }
    tell(&format!("kept {}", kept(number)));
    if last {
        pool.umount();
        pool.check();
    } else {
        load(&records(number, seed), number);
    }
}

/// Opens the pool and checks it; a check and a mount take turns to be the first to meet what the cut left.
fn come_back(place: Place, number: u64) -> Pool {
    if number == 0 {
        let pool = Pool::make(place);
        pool.mount();
        return pool;
    }
    let pool = Pool::at(place);
    pool.reach();
    if number % 2 == 0 {
        pool.check();
    }
    pool.mount();
    pool.check();
    pool.status();
    pool
}

fn dir_of(number: u64) -> PathBuf {
    PathBuf::from(format!("round{number}"))
}

fn records(number: u64, seed: u64) -> Vec<Record> {
    record::all(seed, &dir_of(number), Path::new(COUNTS))
}

/// What the directories of earlier rounds hold; the oldest goes.
fn kept(number: u64) -> String {
    let rounds = number.saturating_sub(KEPT)..number;
    let told = rounds.clone().map(|round| {
        let items = tree::describe(&Path::new(MNT).join(dir_of(round)));
        format!("{round}={:x}", tree::checksum(format!("{items:?}").as_bytes()))
    });
    let told: Vec<String> = told.collect();
    if number >= KEPT {
        std::fs::remove_dir_all(Path::new(MNT).join(dir_of(number - KEPT))).expect("remove an old round");
    }
    told.join(" ")
}

/// Writers at work, until the machine is killed.
fn load(records: &[Record], number: u64) {
    std::fs::create_dir_all(Path::new(MNT).join(dir_of(number)).join(SHARED)).expect("mkdir");
    records.iter().for_each(Record::clear);
    let mut writers: Vec<Child> = records.iter().map(|record| record.spawn(Path::new(MNT))).collect();
    wait_until(Duration::from_secs(60), "each writer has done something", || records.iter().all(|r| r.count() > 0));
    tell("at work");
    wait_until(Duration::from_secs(600), "the machine is killed", || {
        let ended = writers.iter_mut().find_map(|writer| writer.try_wait().expect("wait"));
        ended.is_some_and(|status| panic!("a writer ended with {status}"))
    });
}
