//! Acceptance: the built program on real input, mounted, killed, fed with damage.
//!
//! | module | subject |
//! | --- | --- |
//! | [`main_job`] | copy, compare, build, git, sqlite, run; `kill -9` in the middle; nothing lost |
//! | [`kill9`] | `kill -9` at random moments under several writers, against an independent record |
//! | [`libc_calls`] | every function of the C library on files, under direct access and on tmpfs |
//! | [`large`] | files larger than memory: fsx, and kills and power cuts under sqlite3 and an appending program |
//! | [`suites`] | pjdfstest and fsx |
//! | [`sources`] | the suites of git, PostgreSQL, Python and coreutils under direct access (`./test long`) |
//! | [`bad_input`] | damaged, missing, foreign or full files get a clear error, and nothing is lost |
//! | [`alone`] | the disks alone open the pool, whose backing lies in its regions |
//! | [`direct`] | programs under direct access do the same as elsewhere |
//! | [`disks`] | disks of pools: made, refused, missing, and their fate |
//! | [`replicas`] | replicas in several regions, disks lost and back, removal by force, balance, scrub |
//! | [`regions`] | regions of several disks: lost, back, replaced |
//! | [`export`] | volumes as one block device, for other file systems, with disks lost |
//! | [`older`] | images and backings that are older than the pool's disks |
//! | [`memory`] | memory that outlives processes and pools: shown, released, destroyed |
//! | [`looking`] | commands that only look change nothing, and show the truth to every user |
//! | [`foreign`] | pool directories of another user |
//! | [`fuzz`] | flipped bytes anywhere: never a crash, a hang or a panic |
//! | [`mounting`] | mount(8), fstab, remounting, options, images at unmount, users without privileges |
//! | [`redundancy`] | the number of replicas: set, inherited, carried, shown; and the usage of files |
//! | [`slow_disk`] | a disk that slows down is named and sits out, and recovers; one under load is not |
//! | [`compression`] | compression of unused small files, by command and by age |
//! | [`durability`] | which changes are durable when: strict and not, fsync, O_SYNC, per tree |
//! | [`long`] | disks that hang, fail, lie and are rolled back under load, for an hour (`./test long`) |
//! | [`qemu`] | a whole machine, with persistent memory or a disk, killed under load (`./test qemu`) |
//! | [`page_cache`] | the kernel's cache of files is never older than the last write |
//! | [`parked`] | calls that wait for a disk, or work long, do not delay others |
//! | `ring_errors` | passing errors are waited out, and after any other error the mount ends |
//! | [`like_others`] | behaviour that suites expect from other file systems |
//! | [`details`] | times, cookies, holes, space and the log, as programs expect them |
//! | [`privileges`] | which calls clear set-id bits and capabilities of files, as on ext4 |
//! | [`profile`] | the savings of packing and compressing a tree, measured without changing it |
//! | [`places`] | the directories at which a pool's one file system is mounted |
//! | [`delegation`] | direct changes of a program cost no event, and the mount is never behind |
//! | [`beside`] | a program that works on the pool directly, and the mount, see the same files |
//! | [`fault_disk`] | a disk beneath a mount that hangs, fails, lies or is rolled back on command |
//! | [`idmap`] | a mount point that maps users and groups to others |
//! | [`hanging`] | a server that is killed while its kernel waits for it, and the processes that help it to end |
//! | [`hung_disk`] | only calls that need a disk which does not answer wait for it |
//! | [`stopped`] | a server that is stopped: commands say so instead of waiting |
//! | [`frozen`] | a disk that does not answer while a mount ends, and a server that is killed or stopped then |
//! | [`lab`] | the environment of a test: directories, pools, mounts, and cleaning up |
//! | [`two_sides`] | one process under direct access, one through the mount, on the same files: the last change is seen |
//! | [`tree`] | comparing and describing directory trees |
//! | [`runner`] | runs tests side by side, each in a process and a mount namespace of its own |
//! | [`settings`] | values from the environment: the seed of the run, and other numbers |
//! | [`watchdog`] | an end for tests that hang |
//!
//! The tests need root and /dev/fuse. A test that cannot run on this machine is counted as ignored, with the reason.
//! Arguments: parts of test names.
//!
//! Tests that boot machines, and tests that take an hour, run only if they are named.
//!
//! Environment: `CONQUEST_SEED` (printed by each run), `CONQUEST_ROUNDS` (kill -9, default 20; cuts, 50),
//! `CONQUEST_FLIPS` (flipped bytes, default 150), `CONQUEST_FSX_SEEDS`, `CONQUEST_FSX_OPS`,
//! `CONQUEST_JOBS` (tests at a time), `CONQUEST_TOOLS` (where pjdfstest and fsx are, default target/tools/bin), `CONQUEST_SOURCES` (sources of other programs, built, default target/tools/sources), `CONQUEST_TRANSPORT`
//! (`uring` or `dev`, for all mounts), `CONQUEST_TEST_LIMIT` (seconds per test), `CONQUEST_TEST_DIR`,
//! `CONQUEST_LONG` (minutes of `long`, default 60), `CONQUEST_TWO_SIDES` (minutes of its two sides, default 10), `CONQUEST_SEQUENCES` (of calls under direct access, default 100), `CONQUEST_QEMU` (set: run the tests that boot machines), `CONQUEST_GUEST` (the kernel that they boot),
//! `CONQUEST_BOOTS` and `CONQUEST_STATES` (boots of the machine whose disk's writes are logged, default 2; states in
//! which a cut may leave the disk after each, default 60).

mod alone;
mod bad_input;
mod beside;
mod compression;
mod delegation;
mod details;
mod direct;
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
mod libc_calls;
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
mod replicas;
#[cfg(target_arch = "x86_64")]
mod ring_errors;
mod runner;
mod settings;
mod slow_disk;
mod sources;
mod stopped;
mod suites;
mod tree;
mod two_sides;
mod watchdog;
mod watching;

use std::process::ExitCode;

/// The reason why a test cannot run here.
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
    let [machines, long, slow, suites, sources, builds, sides, calls]: [&[Test]; 8] = match filters.is_empty() {
        true => [&[]; 8],
        false => [
            qemu::TESTS,
            long::TESTS,
            slow_disk::LONG,
            suites::LONG,
            sources::LONG,
            main_job::LONG,
            two_sides::LONG,
            libc_calls::LONG,
        ],
    };
    let all = [
        alone::TESTS,
        bad_input::TESTS,
        direct::TESTS,
        libc_calls::TESTS,
        two_sides::TESTS,
        disks::TESTS,
        regions::TESTS,
        replicas::TESTS,
        export::TESTS,
        older::TESTS,
        foreign::TESTS,
        looking::TESTS,
        watching::TESTS,
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
        delegation::TESTS,
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
        sources,
        builds,
        sides,
        calls,
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
