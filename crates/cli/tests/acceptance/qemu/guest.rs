//! The guest's half: this program, with orders from [`super`]. It ends with a panic if a check fails.

use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use super::machine::MARK;
use super::{counters, Place};
use crate::kill9::model::SHARED;
use crate::kill9::record::{self, Record, Sum};
use crate::lab::{self, program, wait_until, write_seeded, Ran};
use crate::tree;

/// With this first argument the program runs in the machine.
pub const GUEST: &str = "--guest";

/// The device with the counts of acknowledged operations.
const COUNTS: &str = "/dev/pmem1";
pub const DISK: &str = "/disk";
const IMAGE: &str = "/disk/image";
pub const MNT: &str = "/mnt";
/// The directories of this many earlier rounds stay, and must not change.
const KEPT: u64 = 4;

pub fn main(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    mount("/dev/vda", DISK, "rw");
    match words[..] {
        ["commands", place] => commands(&Pool::make(place_of(place))),
        ["interrupted", place, command] => interrupted(&Pool::make(place_of(place)), command),
        ["repeated", place, command] => repeated(&Pool::at(place_of(place)), command),
        ["counters", seed, at] => counters::run(parse(seed), parse(at)),
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
        "mirror" => Place::Mirrored,
        _ => Place::Device,
    }
}

fn parse(number: &str) -> u64 {
    number.parse().unwrap_or_else(|e| panic!("{number}: {e}"))
}

pub fn tell(words: &str) {
    println!("{MARK}{words}");
}

fn mount(device: &str, dir: &str, options: &str) {
    lab::ok(&mut program("mount", &["-t", "ext4", "-o", options, device, dir]));
}

pub fn conquest(args: &[&str]) -> String {
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
            Place::File => Pool { place, dir: "/pm/pool", nvram: "200M" },
            Place::Device | Place::Mirrored => Pool { place, dir: "/disk/pool", nvram: "/dev/dax0.0" },
        }
    }

    /// Gives the memory its mode and makes the pool, replacing any other.
    fn make(place: Place) -> Pool {
        let pool = Pool::at(place);
        pool.prepare_memory();
        if place == Place::File {
            lab::ok(&mut program("mkfs.ext4", &["-q", "-F", "-b", "4096", "/dev/pmem0"]));
        }
        pool.reach();
        let mut format = vec!["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--force"];
        if place == Place::Mirrored {
            format.extend(["--mirror", "/disk/mirror"]);
        }
        conquest(&format);
        pool
    }

    fn prepare_memory(&self) {
        let mode = if self.place == Place::File { "fsdax" } else { "devdax" };
        lab::ok(&mut program("ndctl", &["create-namespace", "-m", mode, "-f", "-e", "namespace0.0", "-M", "mem"]));
    }

    /// Makes the memory reachable after a boot.
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

    /// Checks that the pool has no problems; space leaked by a crash is none.
    fn check(&self) {
        conquest(&["fsck", self.dir, "--json"]);
    }

    fn status(&self) -> serde_json::Value {
        let status: serde_json::Value = serde_json::from_str(&conquest(&["status", self.dir, "--json"])).expect("JSON");
        assert_eq!(status["medium"], "dax", "{status}");
        status
    }
}

/// The commands on persistent memory, and the cases that they refuse.
fn commands(pool: &Pool) {
    pool.status();
    pool.check();
    pool.mount();
    let file = Path::new(MNT).join("file");
    write_seeded(&file, 1, 3_000_000);
    std::fs::create_dir(Path::new(MNT).join("dir")).expect("mkdir");
    let before = tree::describe(Path::new(MNT));
    pool.check();
    conquest(&["save", pool.dir, IMAGE]);
    write_seeded(&file, 2, 10_000);
    refused(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--force"], &["umount"]);
    pool.umount();
    refused(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram], &["--force"]);

    refused(&["restore", pool.dir, IMAGE], &["--force"]);
    conquest(&["restore", pool.dir, IMAGE, "--force"]);
    pool.check();
    pool.mount();
    tree::assert_same(&before, &tree::describe(Path::new(MNT)), "the pool restored");
    if pool.place == Place::File {
        no_store_waits_for_the_journal();
    }
    pool.umount();
    if pool.place == Place::File {
        no_room_for_two(pool);
    }

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

/// A restore keeps the existing pool until the new one is done, and reports if both do not fit.
fn no_room_for_two(pool: &Pool) {
    let filler = std::fs::File::create("/pm/filler").expect("a file");
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, 150 << 20).expect("150 MiB");
    refused(&["restore", pool.dir, IMAGE, "--force"], &["no room for 200 MiB", "remove it first"]);
    pool.check();
    std::fs::remove_file("/pm/filler").expect("remove");
}

/// A store to a block of the memory's file that the file system has not recorded would wait for a commit of the file
/// system's journal. After format or restore all blocks are recorded.
fn no_store_waits_for_the_journal() {
    let commits = || {
        let info = std::fs::read_to_string("/proc/fs/jbd2/pmem0-8/info").expect("the journal of /pm");
        parse(info.split(' ').next().expect("a number of transactions"))
    };
    let before = commits();
    write_seeded(&Path::new(MNT).join("large"), 4, 40 << 20);
    // The journal commits now and then on its own.
    let meanwhile = commits() - before;
    assert!(meanwhile < 10, "40 MiB of stores took {meanwhile} commits of the journal");
}

/// The commands as far as they differ on a device.
fn device_commands(pool: &Pool) {
    refused(&["format", "/disk/other", "--medium", "dax", "--nvram", pool.nvram], &["holds data", "--force"]);
    refused(&["format", "/disk/other", "--medium", "battery", "--nvram", pool.nvram, "--force"], &["--medium dax"]);
    refused(&["format", "/disk/other", "--medium", "dax", "--nvram", pool.nvram, "--size", "1G"], &["--size"]);
    // Memory that is smaller than its device.
    conquest(&["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--size", "65M", "--force"]);
    assert_eq!(pool.status()["size"], 64 << 20, "whole units of 2 MiB");
    pool.mount();
    write_seeded(&Path::new(MNT).join("file"), 3, 100_000);
    pool.umount();
    pool.check();
}

/// The arguments that replace the existing pool by another.
fn replacing(pool: &Pool, command: &str) -> Vec<&'static str> {
    match command {
        "restore" => vec!["restore", pool.dir, IMAGE, "--force"],
        _ => vec!["format", pool.dir, "--medium", "dax", "--nvram", pool.nvram, "--force"],
    }
}

/// A pool with content, an image of it on disk, and `command`, during which the machine is killed.
fn interrupted(pool: &Pool, command: &str) {
    pool.mount();
    write_seeded(&Path::new(MNT).join("file"), 5, 20 << 20);
    conquest(&["save", pool.dir, IMAGE]);
    pool.umount();
    lab::ok(&mut program("sync", &[]));
    tell("at work");
    loop {
        conquest(&replacing(pool, command));
    }
}

/// After the cut there is a whole pool, or one that is refused with a reason; the command can be repeated.
fn repeated(pool: &Pool, command: &str) {
    pool.reach();
    let checked = Ran::from(program("conquest", &["fsck", pool.dir]).output().expect("conquest"));
    let refused = checked.code == 2 && !checked.err.contains("panicked");
    assert!(checked.code == 0 || refused, "fsck after the cut: {} {}{}", checked.code, checked.out, checked.err);
    tell(&format!("found {}", if refused { checked.err.trim() } else { "a whole pool" }));
    conquest(&replacing(pool, command));
    pool.check();
    pool.mount();
    let found = tree::count(Path::new(MNT));
    let expected = if command == "restore" { (1, 20 << 20) } else { (0, 0) };
    assert_eq!(found, expected, "files and bytes after {command}");
    pool.umount();
}

fn write_back(pool: &Pool) {
    tell(&format!("write-back {}", pool.status()["flush_instruction"].as_str().expect("a way")));
}

/// Round `number`: checks the state after the cut that ended the round before, and loads until the next cut.
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

/// Opens the pool and checks it; alternately a check or a mount is the first to meet the state after the cut.
fn come_back(place: Place, number: u64) -> Pool {
    if number == 0 {
        let pool = Pool::make(place);
        pool.mount();
        return pool;
    }
    let pool = Pool::at(place);
    pool.reach();
    if place == Place::Mirrored {
        pool.prepare_memory();
        // Opening the pool does the same by itself.
        if number % 4 < 2 {
            conquest(&["import", pool.dir]);
        }
    }
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

/// Digests of the directories of earlier rounds; removes the oldest one.
fn kept(number: u64) -> String {
    let rounds = number.saturating_sub(KEPT)..number;
    let digests = rounds.clone().map(|round| {
        let items = tree::describe(&Path::new(MNT).join(dir_of(round)));
        format!("{round}={:x}", tree::checksum(format!("{items:?}").as_bytes()))
    });
    let digests: Vec<String> = digests.collect();
    if number >= KEPT {
        std::fs::remove_dir_all(Path::new(MNT).join(dir_of(number - KEPT))).expect("remove an old round");
    }
    digests.join(" ")
}

/// Starts the writers, which work until the machine is killed.
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
