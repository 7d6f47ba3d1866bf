//! The redo log: every crash, damage, and logs that must be refused.

use std::sync::Arc;

use backing::log::{Identity, Instant, Log, Position, RawRecord, LINE, MAX_RECORD, MIN_CAPACITY, RECORDS, SECTOR};
use backing::{Disks, SharedDisk};
use rng::Rng;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::rig::{MIB, UUID};
use crate::tape::{after_cut, Event, Tape};

const ID: Identity = Identity { uuid: UUID };
const START: Instant = Instant { commit: 0, time: 0 };

fn blank() -> Tape {
    Tape::of(vec![0; MIN_CAPACITY as usize])
}

/// A memory in plain memory, and its bytes after each commit.
struct Model {
    now: Vec<u8>,
    history: Vec<Vec<u8>>,
    rng: Rng,
}

impl Model {
    fn new(seed: u64) -> Model {
        let empty = vec![0; MIB as usize];
        Model { now: empty.clone(), history: vec![empty], rng: Rng::new(seed) }
    }

    /// Changes some lines and commits them.
    fn commit(&mut self, log: &mut Log<Tape>, stretches: u64) -> pram::Result<Instant> {
        let mut commit = log.begin()?;
        for _ in 0..stretches {
            let lines = 1 + self.rng.below(40);
            let first = self.rng.below(MIB / LINE - lines);
            let range = (first * LINE) as usize..((first + lines) * LINE) as usize;
            let byte = self.rng.below(256) as u8;
            self.now[range.clone()].fill(byte);
            commit.push(first * LINE, &self.now[range])?;
        }
        let done = commit.finish(1000 + self.history.len() as i64)?;
        self.history.push(self.now.clone());
        Ok(done)
    }
}

/// Opens the log and replays it over `memory`, read in either way.
fn replay(tape: Tape, image: Instant, memory: &mut [u8]) -> pram::Result<Log<Tape>> {
    let mut again = memory.to_vec();
    let (ahead, plain) = (replay_one(tape.read_at_once(), image, &mut again), replay_one(tape, image, memory));
    match (&ahead, &plain) {
        (Ok(ahead), Ok(plain)) => assert_eq!(come_to(ahead), come_to(plain)),
        (Err(ahead), Err(plain)) => assert_eq!(ahead.to_string(), plain.to_string()),
        (ahead, plain) => panic!("read ahead {:?}, without {:?}", ahead.as_ref().err(), plain.as_ref().err()),
    }
    assert!(again == memory, "read ahead, other bytes come out");
    plain
}

/// The position of a log, without its writer.
fn come_to(log: &Log<Tape>) -> (Position, std::ops::Range<u64>) {
    (Position { writer: 0, ..log.position() }, log.found())
}

fn replay_one(tape: Tape, image: Instant, memory: &mut [u8]) -> pram::Result<Log<Tape>> {
    Log::open(tape, ID, image, |_, off, bytes| {
        memory[off as usize..off as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    })
}

fn refused(result: pram::Result<Log<Tape>>, word: &str) {
    let text = result.err().expect("an error").to_string();
    assert!(text.contains(word), "{text}");
}

#[test]
fn commits_come_back_in_order_and_can_be_continued() {
    let (tape, mut model) = (blank(), Model::new(1));
    let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    for n in 1..=20 {
        let done = model.commit(&mut log, n).unwrap();
        assert_eq!(done.commit, n);
        let mut memory = vec![0; MIB as usize];
        log = replay(tape.clone(), START, &mut memory).unwrap();
        assert_eq!((log.last(), &memory), (done, &model.now));
    }
}

#[test]
fn a_commit_of_many_records_is_whole() {
    let (tape, mut model) = (blank(), Model::new(2));
    let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    model.commit(&mut log, 3).unwrap();
    // An abandoned commit of several records leaves no trace.
    let mut commit = log.begin().unwrap();
    commit.push(0, &vec![7; MIB as usize]).unwrap();
    commit.push(0, &vec![8; MIB as usize / 2]).unwrap();
    drop(commit);
    let before = log.used();
    let mut commit = log.begin().unwrap();
    model.now = (0..MIB).map(|i| (i / LINE % 251) as u8).collect();
    commit.push(0, &model.now).unwrap();
    commit.finish(6).unwrap();
    assert!(log.used() - before > MAX_RECORD, "several records");
    let mut memory = vec![0; MIB as usize];
    assert_eq!(replay(tape, START, &mut memory).unwrap().last(), Instant { commit: 2, time: 6 });
    assert!(memory == model.now);
}

/// Commits of several records, small enough to be held until their end has come, and larger: each counts as a whole
/// or not at all.
#[test]
fn a_commit_of_many_records_counts_as_a_whole_or_not_at_all() {
    for records in [3, 70] {
        let tape = Tape::of(vec![0; 80 * MIB as usize]);
        let mut log = Log::create(tape.clone(), ID, 80 * MIB, START, 7).unwrap();
        let mut model = Model::new(7);
        model.commit(&mut log, 3).unwrap();
        let before = model.now.clone();
        let mut commit = log.begin().unwrap();
        for n in 0..records {
            commit.push(0, &vec![n; MIB as usize]).unwrap();
        }
        commit.finish(9).unwrap();
        let torn = RECORDS + log.used() * 2 / 3;
        let mut memory = vec![0; MIB as usize];
        assert_eq!(replay(tape.clone(), START, &mut memory).unwrap().last().commit, 2);
        assert!(memory.iter().all(|byte| *byte == records - 1));
        tape.with(|s| s.bytes[torn as usize] ^= 1);
        let mut memory = vec![0; MIB as usize];
        assert_eq!(replay(tape, START, &mut memory).unwrap().last().commit, 1);
        assert!(memory == before);
    }
}

/// Behind the end of a log that has begun anew lie records of the generation before. Each of them was read anew, and
/// a megabyte after it: a log of small commits took minutes to open.
#[test]
fn what_an_earlier_generation_left_is_read_once() {
    let (tape, mut model) = (blank(), Model::new(8));
    let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    while log.has_room(40) {
        model.commit(&mut log, 1).unwrap();
        model.history.clear();
    }
    log.restart(log.last(), MIN_CAPACITY).unwrap();
    let done = model.commit(&mut log, 1).unwrap();
    tape.with(|s| s.reads = 0);
    let image = Instant { commit: done.commit - 1, time: 0 };
    assert_eq!(replay_one(tape.clone(), image, &mut vec![0; MIB as usize]).unwrap().last(), done);
    assert!(tape.with(|s| s.reads) < 20, "{} reads", tape.with(|s| s.reads));
}

#[test]
fn a_power_cut_leaves_a_prefix_with_all_that_was_acknowledged() {
    cut_everywhere(0);
}

/// A commit was larger than the log, which then was longer than its file and could not be read to its end.
#[test]
fn a_log_that_grows_can_be_read_to_its_end() {
    cut_everywhere(MIN_CAPACITY);
}

/// Every place where the power can be cut, with the sectors written since the last flush kept or lost, while the
/// log grows by so many bytes whenever it begins anew.
fn cut_everywhere(growth: u64) {
    let (tape, mut model) = (blank(), Model::new(3));
    let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    let base = tape.with(|s| (s.events.clear(), s.bytes.clone())).1;
    let mut image = (START, model.now.clone());
    let (mut images, mut capacity) = (vec![image.clone()], MIN_CAPACITY);
    for n in 0..12 {
        let done = model.commit(&mut log, 1 + n % 5).unwrap();
        tape.with(|s| s.events.push(Event::Acknowledged));
        if n % 4 == 3 {
            image = (done, model.now.clone());
            capacity += growth;
            log.restart(log.last(), capacity).unwrap();
        }
        images.push(image.clone());
    }
    let events = tape.with(|s| s.events.clone());
    let mut checked = 0;
    for cut in 0..=events.len() {
        for seed in 0..6 {
            let (bytes, acknowledged) = after_cut(&base, &events[..cut], seed);
            // The image that was there: complete before the log restarts.
            let (at, memory) = &images[acknowledged];
            let mut memory = memory.clone();
            let log =
                replay(Tape::of(bytes), *at, &mut memory).unwrap_or_else(|e| panic!("cut {cut}, seed {seed}: {e}"));
            let found = log.last().commit as usize;
            assert!(found == acknowledged || found == acknowledged + 1, "cut {cut}, seed {seed}: {found}");
            assert!(memory == model.history[found], "cut {cut}, seed {seed}: not the state of commit {found}");
            checked += 1;
        }
    }
    assert!(checked > 200);
}

/// A log of five commits, and the beginning of each.
fn five() -> (Tape, Vec<u64>) {
    let (tape, mut model) = (blank(), Model::new(4));
    let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    let mut starts = Vec::new();
    for _ in 0..5 {
        starts.push(RECORDS + log.used());
        model.commit(&mut log, 2).unwrap();
    }
    (tape, starts)
}

#[test]
fn a_hole_is_an_error_and_a_damaged_end_is_not() {
    let (tape, starts) = five();
    for (n, start) in starts.iter().enumerate() {
        for at in [start + 4, start + 70, start + 300] {
            let damaged = Tape::of(tape.with(|s| s.bytes.clone()));
            damaged.with(|s| s.bytes[at as usize] ^= 0x10);
            let opened = replay(damaged, START, &mut vec![0; MIB as usize]);
            if n < 4 {
                refused(opened, "hole");
            } else {
                assert_eq!(opened.unwrap().last().commit, 4);
            }
        }
    }
}

/// A record as a program may write it to a file, and so into the log: it knows all but the nonce.
fn forged(generation: u64, commit: u64, before: u32, nonce: u64) -> [u8; SECTOR as usize] {
    let magic = u32::from_le_bytes(*b"CQRL");
    let (len, last) = (64, 1);
    let (crc, time, extents, part, writer) = (0, 0, 0, 0, 0);
    let mut raw =
        RawRecord { magic, crc, generation, commit, time, len, extents, before, part, flags: last, writer, nonce };
    raw.crc = crc32c::crc32c(&raw.as_bytes()[8..]);
    let mut sector = [0; SECTOR as usize];
    sector[..64].copy_from_slice(raw.as_bytes());
    sector
}

#[test]
fn what_programs_write_is_never_a_record() {
    let (tape, _) = five();
    let plain = || replay(tape.clone(), START, &mut vec![0; MIB as usize]);
    let end = plain().unwrap().position();
    let at = end.end as usize;
    let place = |nonce| {
        let (next, later) = (forged(end.generation, 6, end.before, nonce), forged(end.generation, 1 << 40, 0, nonce));
        tape.with(|s| s.bytes[at..][..SECTOR as usize].copy_from_slice(&next));
        tape.with(|s| s.bytes[at + 8 * SECTOR as usize..][..SECTOR as usize].copy_from_slice(&later));
    };
    for nonce in [0, 1, u64::MAX, !end.nonce] {
        place(nonce);
        assert_eq!(plain().unwrap().last().commit, 5);
    }
    place(end.nonce);
    refused(plain(), "hole");
}

#[test]
fn memory_that_the_log_has_left_behind_is_reported() {
    let (tape, mut model) = (blank(), Model::new(7));
    let mut here = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    let resume = |at| Log::resume(tape.clone(), ID, at);
    for commits in 0..3 {
        let left = here.position();
        // Commits that a dead process of the same memory had written count as its own.
        model.commit(&mut here, 1).unwrap();
        assert!(resume(left).check().is_ok());
        assert_eq!(resume(left).check_end().unwrap(), here.position(), "{commits} commits");
        let known = here.position();
        let mut elsewhere = replay(tape.clone(), START, &mut vec![0; MIB as usize]).unwrap();
        assert!(resume(known).check_end().is_ok(), "{commits} commits");
        model.commit(&mut elsewhere, 1).unwrap();
        assert!(resume(known).check().is_ok(), "its own last commit is there");
        for at in [known, left] {
            let refusal = resume(at).check_end().expect_err("another's commit follows").to_string();
            assert!(refusal.contains("without this memory"), "{refusal}");
        }
        here = elsewhere;
    }
}

#[test]
fn the_log_that_takes_over_is_left_as_it_was_or_empty() {
    let (tape, mut model) = (blank(), Model::new(8));
    let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    model.commit(&mut log, 1).unwrap();
    let left = log.position();
    let resume = || Log::resume(tape.clone(), ID, left);
    assert!([true, false].iter().all(|swapping| resume().check_next(*swapping).is_ok()));
    // Begun anew by a process of this memory, which then died; or by another's.
    log.restart(log.last(), MIN_CAPACITY).unwrap();
    assert!(resume().check_next(true).is_ok());
    refused(resume().check_next(false).map(|()| resume()), "without this memory");
    let mut elsewhere = replay(tape.clone(), log.last(), &mut model.now.clone()).unwrap();
    model.commit(&mut elsewhere, 1).unwrap();
    refused(resume().check_next(true).map(|()| resume()), "without this memory");
    elsewhere.restart(elsewhere.last(), MIN_CAPACITY).unwrap();
    refused(resume().check_next(true).map(|()| resume()), "another or an older copy");
}

#[test]
fn a_log_of_another_version_says_so() {
    let (tape, _) = five();
    for at in [8, 4104] {
        tape.with(|s| s.bytes[at] = 1);
    }
    refused(replay(tape, START, &mut vec![0; MIB as usize]), "format version 1, this program reads version 3");
}

#[test]
fn a_part_of_a_commit_leaves_no_memory_behind() {
    let tape = Tape::of(vec![0; 4 * MIN_CAPACITY as usize]);
    let mut here = Log::create(tape.clone(), ID, 4 * MIN_CAPACITY, START, 7).unwrap();
    let mut commit = here.begin().unwrap();
    // More than a record, and never the last.
    (0..3).for_each(|_| commit.push(0, &vec![1; MIB as usize]).unwrap());
    drop(commit);
    let again = replay(tape.clone(), START, &mut vec![0; MIB as usize]).unwrap();
    assert_eq!(again.last().commit, 0);
    assert!(Log::resume(tape, ID, again.position()).check_end().is_ok());
}

#[test]
fn a_commit_that_never_ended_is_not_completed_by_the_next() {
    let (tape, mut model) = (blank(), Model::new(9));
    let mut here = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
    let noted = model.commit(&mut here, 3).map(|_| here.position()).unwrap();
    let commit = |log: &mut Log<Tape>, first: u8| {
        let mut commit = log.begin().unwrap();
        commit.push(0, &[first; LINE as usize]).unwrap();
        commit.push(4096, &[9; 20 * LINE as usize]).unwrap();
        commit.finish(7).unwrap();
    };
    let (start, end) = (noted.end as usize, noted.end as usize + SECTOR as usize);
    // The next record equals this one in all sectors but the first, and the cut lost one of the others.
    commit(&mut Log::resume(tape.clone(), ID, noted), 1);
    let whole = tape.bytes();
    tape.with(|s| s.bytes[end..end + SECTOR as usize].fill(0));
    let found = replay(tape.clone(), START, &mut model.now.clone()).unwrap();
    assert_eq!((found.last().commit, found.is_begun_behind(noted.end).unwrap()), (1, true));
    let durable = |settled: bool| {
        let tape = tape.copy();
        if settled {
            Log::settle(&tape, ID, found.found()).unwrap();
        }
        let before = tape.bytes();
        commit(&mut Log::resume(tape.clone(), ID, found.position()), 2);
        assert_eq!(tape.bytes()[end..][..2 * SECTOR as usize], whole[end..][..2 * SECTOR as usize]);
        // A cut before the flush has lost only the first sector of the next one.
        tape.with(|s| s.bytes[start..end].copy_from_slice(&before[start..end]));
        replay(tape, START, &mut model.now.clone()).unwrap().last().commit
    };
    assert_eq!((durable(false), durable(true)), (2, 1));
}

#[test]
fn a_sector_that_cannot_be_read_is_an_error() {
    let (tape, starts) = five();
    for start in starts {
        tape.with(|s| s.bad_sector = Some(start));
        refused(replay(tape.clone(), START, &mut vec![0; MIB as usize]), "reading the log");
    }
}

#[test]
fn a_log_that_does_not_belong_is_refused() {
    let (tape, _) = five();
    let mut memory = vec![0; MIB as usize];
    let mut open = |id: Identity, image: Instant| {
        Log::open(tape.clone(), id, image, |_, off, bytes| {
            memory[off as usize..off as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        })
    };
    refused(open(Identity { uuid: [9; 16] }, START), "another pool");
    refused(open(ID, Instant { commit: 6, time: 0 }), "old copy");
    assert_eq!(open(ID, Instant { commit: 5, time: 0 }).unwrap().last().commit, 5);

    let mut log = open(ID, START).unwrap();
    log.restart(log.last(), MIN_CAPACITY).unwrap();
    refused(open(ID, START), "begins with commit 6");
    refused(open(ID, Instant { commit: 7, time: 0 }), "old copy");
    refused(replay(blank(), START, &mut vec![0; MIB as usize]), "no header");
    refused(replay(Tape::of(vec![0; 100]), START, &mut vec![0; MIB as usize]), "reading the log");
}

/// A log has two headers. One that could not be read, or had another version in it, hid the other one.
#[test]
fn either_header_will_do() {
    let headers = [0, 4096u64];
    for at in headers {
        let (tape, _) = five();
        tape.with(|s| s.bad_sector = Some(at));
        assert_eq!(replay(tape, START, &mut vec![0; MIB as usize]).unwrap().last().commit, 5);
        for byte in 0..80 {
            let (tape, _) = five();
            tape.with(|s| s.bytes[(at + byte) as usize] ^= 0x10);
            assert_eq!(replay(tape, START, &mut vec![0; MIB as usize]).unwrap().last().commit, 5, "byte {byte}");
        }
    }
    let (tape, _) = five();
    headers.iter().for_each(|at| tape.with(|s| s.bytes[*at as usize + 8] ^= 0x10));
    refused(replay(tape.copy(), START, &mut vec![0; MIB as usize]), "format version");
    let (tape, _) = five();
    tape.with(|s| (s.bytes[0], s.bad_sector) = (0, Some(4096)));
    refused(replay(tape, START, &mut vec![0; MIB as usize]), "reading the log's header");
}

#[test]
fn after_a_failure_nothing_is_acknowledged_any_more() {
    for calls in 0..6 {
        let (tape, mut model) = (blank(), Model::new(5));
        let mut log = Log::create(tape.clone(), ID, MIN_CAPACITY, START, 7).unwrap();
        tape.with(|s| s.fuse = Some((calls, Errno::IO)));
        let mut acknowledged = 0;
        while model.commit(&mut log, 1).is_ok() {
            acknowledged += 1;
        }
        // The disk works again, but may have dropped anything.
        tape.with(|s| s.fuse = None);
        assert!(model.commit(&mut log, 1).is_err() && log.restart(log.last(), MIN_CAPACITY).is_err());
        assert_eq!(acknowledged, calls as u64 / 2);
    }
}

#[test]
fn a_full_log_says_so_and_goes_on_after_a_restart() {
    let (tape, mut model) = (blank(), Model::new(6));
    let mut log = Log::create(tape, ID, MIN_CAPACITY, START, 7).unwrap();
    let mut commits = 0;
    while log.has_room(40) {
        model.commit(&mut log, 1).unwrap();
        // Thousands of memories would take gigabytes.
        model.history.clear();
        commits += 1;
    }
    assert!(commits > 1000);
    let mut commit = log.begin().unwrap();
    let full = (0..1000).try_for_each(|_| commit.push(0, &vec![1; 1 << 19]));
    assert!(full.is_err_and(|e| e.to_string().contains("full")));
    drop(commit);
    log.restart(log.last(), MIN_CAPACITY).unwrap();
    assert_eq!(model.commit(&mut log, 1).unwrap().commit, commits + 1);
}

/// A process died before its commit counted, and the next one began the other log anew instead.
#[test]
fn a_log_that_another_goes_on_from_may_have_a_commit_that_never_counted() {
    let tapes = [Tape::of(Vec::new()), blank(), blank()];
    let [image, first, second] = tapes.each_ref().map(|tape| Arc::new(tape.clone()) as SharedDisk);
    let disks = Disks { image, logs: [first, second] };
    backing::create(&disks, ID, MIN_CAPACITY).unwrap();
    let reopen = |n: usize| Log::open(tapes[n].clone(), ID, START, |_, _, _| Ok(())).unwrap();
    let as_of = || backing::load(&disks, ID, &mut |_, _| Ok(())).unwrap().as_of.commit;
    let mut second = reopen(2);
    second.restart(START, MIN_CAPACITY).unwrap();
    assert_eq!(as_of(), 0);
    Model::new(1).commit(&mut second, 3).unwrap();
    assert_eq!(as_of(), 1);
    reopen(1).restart(START, MIN_CAPACITY).unwrap();
    assert_eq!(as_of(), 0);
}
