//! Acceptance: the built program on real input, mounted, killed, fed with damage.
//!
//! | module | what it shows |
//! | --- | --- |
//! | [`main_job`] | copy, compare, build, git, sqlite, run; `kill -9` in the middle; nothing lost |
//! | [`kill9`] | `kill -9` at random moments under several writers, against an independent record |
//! | [`large`] | files larger than memory: fsx, and kills and power cuts under sqlite3 and one who appends |
//! | [`suites`] | pjdfstest and fsx |
//! | [`bad_input`] | what is damaged, missing, foreign or full gets a clear error and loses nothing |
//! | [`alone`] | the disks alone open the pool, whose backing lies in its regions |
//! | [`disks`] | disks of pools: made, refused, missing, and what stays of them |
//! | [`copies`] | copies of files in several regions, disks lost and back, removal by force, balance, scrub |
//! | [`regions`] | regions of several disks: lost, back, replaced |
//! | [`export`] | volumes as one block device, for other file systems, with disks lost |
//! | [`older`] | images and copies that are older than the pool's disks |
//! | [`fuzz`] | flipped bytes anywhere: never a crash, a hang or a panic |
//! | [`mounting`] | mount(8), fstab, remounting, options, images at unmount, users without privileges |
//! | [`redundancy`] | how many copies there are to be: set, inherited, carried, shown; and what files occupy |
//! | [`slow_disk`] | a disk that slows down is named and sits out, and recovers; one under load is not |
//! | [`packing`] | compression of small files that nobody uses, by command and by age |
//! | [`durability`] | what is durable when: strict and not, fsync, O_SYNC, per tree |
//! | [`long`] | disks that hang, fail, lie and come back old under load, for an hour (`./test long`) |
//! | [`qemu`] | a whole machine, with persistent memory or a disk, killed under load (`./test qemu`) |
//! | [`page_cache`] | what the kernel keeps of files is never older than what was written |
//! | [`parked`] | who waits for a disk, or works long, keeps nobody else from working |
//! | `ring_errors` | what passes is waited out, and after any other error the mount ends |
//! | [`like_others`] | what suites expect as it is on other file systems |
//! | [`details`] | times, cookies, holes, room and the log, as programs expect them |
//! | [`privileges`] | what takes set-id bits and capabilities from files, as on ext4 |
//! | [`profile`] | what a tree would gain by packing and compression, measured without changing it |
//! | [`places`] | the directories at which a pool's one mount is |
//! | [`beside`] | a program that works on the pool directly, and the mount, see the same files |
//! | [`fault_disk`] | a disk beneath a mount that hangs, fails, lies or comes back old on command |
//! | [`idmap`] | a place that maps users and groups to others |
//! | [`hanging`] | a server that is killed while its kernel waits for it, and who helps it to end |
//! | [`hung_disk`] | a disk that does not answer is waited for by nobody who does not need it |
//! | [`stopped`] | a server that is stopped: commands say so instead of waiting |
//! | [`frozen`] | a disk that does not answer while a mount ends, and a server that is killed or stopped then |
//! | [`lab`] | a place to work in: directories, pools, mounts, and cleaning up |
//! | [`tree`] | comparing and describing directory trees |
//! | [`runner`] | runs tests side by side, each in a process and a mount namespace of its own |
//! | [`settings`] | what the environment sets: the seed of the run, and other numbers |
//! | [`watchdog`] | an end for tests that hang |
//!
//! The tests need root and /dev/fuse. One that
//! cannot run on this machine is counted as ignored, with the reason. Arguments: parts of test names.
//!
//! Those that boot machines, and those that take an hour, are part of a run only if they are named.
//!
//! Environment: `CONQUEST_SEED` (printed by each run), `CONQUEST_ROUNDS` (kill -9, default 20; cuts, 50),
//! `CONQUEST_FLIPS` (flipped bytes, default 150), `CONQUEST_FSX_SEEDS`, `CONQUEST_FSX_OPS`,
//! `CONQUEST_JOBS` (tests at a time), `CONQUEST_TOOLS` (where pjdfstest and fsx are, default target/tools/bin), `CONQUEST_TRANSPORT`
//! (`uring` or `dev`, for all mounts), `CONQUEST_TEST_LIMIT` (seconds per test), `CONQUEST_TEST_DIR`,
//! `CONQUEST_LONG` (minutes of `long`, default 60), `CONQUEST_QEMU` (set: run the tests that boot machines), `CONQUEST_GUEST` (the kernel that they boot),
//! `CONQUEST_BOOTS` and `CONQUEST_STATES` (boots of the machine whose disk's writes are logged, default 2; states in
//! which a cut may leave the disk after each, default 60).

mod alone;
mod bad_input;
mod beside;
mod compression;
mod copies;
mod details;
mod disks;
mod durability;
mod export;
mod fault_disk;
mod foreign;
mod frozen;
mod fuzz;
mod hanging;
mod hung_disk;
mod idmap;
mod kill9;
mod lab;
mod large;
mod like_others;
mod long;
mod looking;
mod main_job;
mod memory;
mod mounting;
mod older;
mod page_cache;
mod parked;
mod places;
mod privileges;
mod profile;
mod qemu;
mod redundancy;
mod regions;
#[cfg(target_arch = "x86_64")]
mod ring_errors;
mod runner;
mod settings;
mod slow_disk;
mod stopped;
mod suites;
mod tree;
mod watchdog;

use std::process::ExitCode;

/// Why a test cannot run here.
pub struct Skip(pub String);

/// A test panics if it fails.
pub type Outcome = Result<(), Skip>;
pub type Test = (&'static str, fn() -> Outcome);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == kill9::record::WRITER) {
        return kill9::record::write(&args[1..]);
    }
    if args.first().is_some_and(|a| a == fault_disk::SERVER) {
        return fault_disk::serve(&args[1..]);
    }
    if args.first().is_some_and(|a| a == qemu::GUEST) {
        return qemu::guest_main(&args[1..]);
    }
    let name = args.iter().skip_while(|a| *a != runner::ONE).nth(1);
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let [machines, long, slow, suites, builds]: [&[Test]; 5] = match filters.is_empty() {
        true => [&[]; 5],
        false => [qemu::TESTS, long::TESTS, slow_disk::LONG, suites::LONG, main_job::LONG],
    };
    let all = [
        alone::TESTS,
        bad_input::TESTS,
        disks::TESTS,
        regions::TESTS,
        copies::TESTS,
        export::TESTS,
        older::TESTS,
        foreign::TESTS,
        looking::TESTS,
        fuzz::TESTS,
        mounting::TESTS,
        idmap::TESTS,
        memory::TESTS,
        durability::TESTS,
        compression::TESTS,
        redundancy::TESTS,
        slow_disk::TESTS,
        places::TESTS,
        profile::TESTS,
        beside::TESTS,
        fault_disk::TESTS,
        hanging::TESTS,
        hung_disk::TESTS,
        stopped::TESTS,
        frozen::TESTS,
        page_cache::TESTS,
        parked::TESTS,
        #[cfg(target_arch = "x86_64")]
        ring_errors::TESTS,
        like_others::TESTS,
        privileges::TESTS,
        details::TESTS,
        suites::TESTS,
        kill9::TESTS,
        large::TESTS,
        main_job::TESTS,
        machines,
        long,
        slow,
        suites,
        builds,
    ];
    let chosen: Vec<Test> = all
        .iter()
        .flat_map(|tests| tests.iter().copied())
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())))
        .collect();
    if let Some(name) = name {
        return runner::one(&chosen, name);
    }
    if args.iter().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    runner::run(&chosen, lab::what_is_missing())
}
