//! Taking up a backing that was read back, also one on two disks of which one is old or rotten.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use backing::log::{Disk, Identity, MIN_CAPACITY};
use backing::{create, load, Backing, Disks, Loaded, SharedDisk};
use pram::marks::Marks;
use pram::session::{Frozen, Participant};
use pram::{Error, Mapping, Session};
use rustix::io::Errno;

use crate::rig::{self, change, MIB, UUID};
use crate::tape::{Event, Tape};

const ID: Identity = Identity { uuid: UUID };

fn disks_of(tapes: &[Tape; 3]) -> Disks {
    let [image, first, second] = tapes.clone();
    Disks { image: Arc::new(image), logs: [Arc::new(first), Arc::new(second)] }
}

/// An empty backing, on disks that may not have made it durable.
fn made() -> [Tape; 3] {
    let tapes = [0, MIN_CAPACITY, MIN_CAPACITY].map(|len| Tape::of(vec![0; len as usize]));
    create(&disks_of(&tapes), ID, MIN_CAPACITY).unwrap();
    tapes.map(|tape| tape.copy())
}

fn take_up(tapes: &[Tape; 3]) -> pram::Result<Backing> {
    let marks = Marks::over(Mapping::anonymous(Marks::bytes(MIB)).unwrap())?;
    let loaded = load(&disks_of(tapes), ID, &mut |_, _| Ok(()))?;
    Backing::begin(disks_of(tapes), &marks, ID, &loaded)
}

/// Somebody may have put the files there a moment ago.
#[test]
fn all_that_was_read_back_is_flushed() {
    let tapes = made();
    take_up(&tapes).unwrap();
    for (n, tape) in tapes.iter().enumerate() {
        assert!(tape.with(|s| matches!(s.events.last(), Some(Event::Flush))), "file {n}");
    }
}

#[test]
fn a_copy_that_cannot_be_flushed_is_not_taken_up() {
    for n in 0..3 {
        let tapes = made();
        tapes[n].with(|s| s.fuse = Some((0, Errno::IO)));
        load(&disks_of(&tapes), ID, &mut |_, _| Ok(())).expect("it can be read");
        let e = take_up(&tapes).map(|_| ()).expect_err("it cannot be made durable");
        assert!(matches!(e, Error::Host { errno: Errno::IO, .. }), "file {n}: {e}");
    }
}

/// Two tapes that hold the same.
#[derive(Clone, Default)]
struct Twin {
    tapes: [Tape; 2],
    wrong: Arc<AtomicUsize>,
    away: Arc<Mutex<Vec<usize>>>,
}

impl Disk for Twin {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.tapes[0].read_exact_at(buf, at)
    }
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.tapes.iter().try_for_each(|tape| tape.write_all_at(bytes, at))
    }
    fn flush(&self) -> io::Result<()> {
        self.tapes.iter().try_for_each(Disk::flush)
    }
    fn copies(&self) -> usize {
        2
    }
    fn read_copy_at(&self, n: usize, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.tapes[n].read_exact_at(buf, at)
    }
    fn note_wrong(&self) {
        self.wrong.fetch_add(1, Ordering::SeqCst);
    }
    fn put_away(&self, copies: &[usize]) -> io::Result<()> {
        self.away.lock().unwrap().extend(copies);
        Ok(())
    }
}

/// The image and both logs of a memory of some mebibytes, twice, after so many commits.
struct Twins([Twin; 3]);

impl Twins {
    fn new() -> Twins {
        let twin = |len: u64| Twin { tapes: [(); 2].map(|()| Tape::of(vec![0; len as usize])), ..Twin::default() };
        Twins([0, MIN_CAPACITY, MIN_CAPACITY].map(twin))
    }

    fn disks(&self) -> Disks {
        let [image, first, second] = self.0.each_ref().map(|twin| Arc::new(twin.clone()) as SharedDisk);
        Disks { image, logs: [first, second] }
    }

    /// A session on a new memory that has this backing.
    fn session(&self) -> Session {
        let marks = Marks::over(Mapping::anonymous(Marks::bytes(4 * MIB)).unwrap()).unwrap();
        let loaded = create(&self.disks(), ID, MIN_CAPACITY).unwrap();
        let copy = Backing::begin(self.disks(), &marks, ID, &loaded).unwrap();
        let mut memory = rig::format(Mapping::anonymous(4 * MIB).unwrap());
        marks.mark(0, 4 * MIB).unwrap();
        memory.track(marks);
        Session::private_with(memory, 16, Some(copy)).unwrap()
    }

    fn bytes(&self, copy: usize) -> [Vec<u8>; 3] {
        self.0.each_ref().map(|twin| twin.tapes[copy].bytes())
    }

    fn put(&self, copy: usize, bytes: &[Vec<u8>; 3]) {
        self.0.iter().zip(bytes).for_each(|(twin, bytes)| twin.tapes[copy].with(|s| s.bytes.clone_from(bytes)));
    }

    fn loaded(&self) -> (Vec<u8>, Loaded) {
        let mut memory = vec![0; 4 * MIB as usize];
        let loaded = load(&self.disks(), ID, &mut |off, bytes| {
            memory[off as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        (memory, loaded.unwrap())
    }

    /// Takes it up, and returns which copies were put away for that.
    fn take_up(&self) -> Vec<usize> {
        let marks = Marks::over(Mapping::anonymous(Marks::bytes(4 * MIB)).unwrap()).unwrap();
        let loaded = self.loaded().1;
        Backing::begin(self.disks(), &marks, ID, &loaded).unwrap();
        self.0[0].away.lock().unwrap().clone()
    }
}

/// Fills memory anew so often, with a commit each time.
fn commit(session: &Session, times: u64) {
    for _ in 0..times {
        change(session);
        backing::of(session).unwrap().wait(session).unwrap();
    }
}

/// Lets the other log take over, and writes the first one's commits to the image.
fn checkpoint(session: &Session) {
    if session.memory().load(session.memory().root(1)).unwrap() == 0 {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let off = tx.alloc(pram::Tag(1), 2 * MIB + MIB / 2).unwrap().off;
        tx.set(session.memory().root(1), &off).unwrap();
        tx.commit().unwrap();
    }
    // A commit skips chunks without memory, so one alone does not fill the log.
    for _ in 0..2 {
        session.memory().marks().unwrap().mark(0, 4 * MIB).unwrap();
        backing::of(session).unwrap().wait(session).unwrap();
    }
    while backing::of(session).unwrap().checkpoint_if_due(session).unwrap() {}
}

#[test]
fn of_two_copies_the_log_that_ends_later_counts_and_the_other_is_put_away() {
    for old in 0..2 {
        for turns in [false, true] {
            let twins = Twins::new();
            let session = twins.session();
            commit(&session, 3);
            let before = twins.bytes(old);
            commit(&session, 5);
            if turns {
                checkpoint(&session);
            }
            let (memory, loaded) = twins.loaded();
            twins.put(old, &before);
            let (found, again) = twins.loaded();
            assert_eq!(again.as_of.commit, loaded.as_of.commit, "copy {old}, turns {turns}");
            assert!(found == memory, "copy {old}, turns {turns}");
            assert_eq!(twins.take_up(), [old], "turns {turns}");
        }
    }
}

#[test]
fn what_was_being_written_to_one_copy_when_the_power_went_is_in_both_then() {
    for lacks in 0..2 {
        let twins = Twins::new();
        let session = twins.session();
        commit(&session, 3);
        let before = twins.bytes(lacks);
        commit(&session, 1);
        let after = twins.bytes(lacks);
        twins.put(lacks, &before);
        assert_eq!(twins.take_up(), [0; 0], "it is no older than what was acknowledged");
        assert!(twins.bytes(lacks) == after, "copy {lacks}");
    }
}

#[test]
fn each_block_is_read_from_the_copy_that_has_it_right() {
    let twins = Twins::new();
    let session = twins.session();
    commit(&session, 3);
    checkpoint(&session);
    commit(&session, 5);
    let (memory, loaded) = twins.loaded();
    assert_eq!(twins.0.iter().map(|twin| twin.wrong.load(Ordering::SeqCst)).sum::<usize>(), 0);
    let well = twins.bytes(0);
    for (rotten, first) in [(0, 0), (1, 0), (0, 700), (0, 5000)] {
        let mut bytes = well.clone();
        for bytes in &mut bytes {
            bytes.iter_mut().skip(first).step_by(16 << 10).for_each(|byte| *byte ^= 0x10);
        }
        twins.put(rotten, &bytes);
        let (found, again) = twins.loaded();
        assert_eq!(again.as_of.commit, loaded.as_of.commit, "copy {rotten} from {first}");
        assert!(found == memory, "copy {rotten} from {first}");
        twins.put(rotten, &well);
    }
    assert!(twins.0.iter().any(|twin| twin.wrong.load(Ordering::SeqCst) > 0), "it is noticed");
    // Each copy has another half wrong.
    for (copy, from) in [(0, 0), (1, 8 << 10)] {
        let mut bytes = well.clone();
        bytes[0].iter_mut().skip(from + (16 << 10)).step_by(16 << 10).for_each(|byte| *byte ^= 0x10);
        twins.put(copy, &bytes);
    }
    assert!(twins.loaded().0 == memory, "both together have all");
}

/// Changes a byte of a copy every 16 KiB.
fn rot(twins: &Twins, copy: usize, first: usize) {
    let mut bytes = twins.bytes(copy);
    for bytes in &mut bytes {
        bytes.iter_mut().skip(first).step_by(16 << 10).for_each(|byte| *byte ^= 0x10);
    }
    twins.put(copy, &bytes);
}

#[test]
fn a_scrub_puts_right_what_one_copy_has_wrong() {
    let twins = Twins::new();
    let session = twins.session();
    commit(&session, 3);
    checkpoint(&session);
    commit(&session, 5);
    let scrub = || backing::of(&session).unwrap().scrub(&session, &mut |_| true).unwrap();
    assert_eq!(scrub().odd, []);
    for (copy, first) in [(0, 0), (1, 0), (1, 700), (0, 5000)] {
        rot(&twins, copy, first);
        let odd = scrub().odd;
        assert!(!odd.is_empty() && odd.iter().all(|odd| odd.mended), "copy {copy} from {first}: {odd:?}");
        assert_eq!(scrub().odd, [], "copy {copy} from {first}");
    }
    let memory = twins.loaded().0;
    for gone in 0..2 {
        let kept = twins.bytes(gone);
        twins.put(gone, &kept.each_ref().map(|bytes| vec![0; bytes.len()]));
        assert!(twins.loaded().0 == memory, "without copy {gone}");
        twins.put(gone, &kept);
    }
    // A page that no copy has is in memory. (Without a table there is no image.)
    let kept = [twins.bytes(0), twins.bytes(1)];
    let is_mended = |at: usize| {
        for (copy, kept) in kept.iter().enumerate() {
            let mut bytes = kept.clone();
            bytes[0][at] ^= 0x10;
            twins.put(copy, &bytes);
        }
        let found = backing::of(&session).unwrap().scrub(&session, &mut |_| true);
        found.is_ok_and(|found| found.odd.len() == 2 && found.odd.iter().all(|odd| odd.part == 0 && odd.mended))
    };
    let mut slots = (8192..kept[0][0].len()).step_by(4096);
    assert!(slots.any(is_mended), "one of them is a page");
    commit(&session, 1);
    checkpoint(&session);
    commit(&session, 1);
    assert_eq!(scrub().odd.iter().filter(|odd| odd.part == 0).count(), 0);
}

/// One disk, of which something is damaged or cannot be written while memory is whole: session, and the tapes of image and logs.
fn alone() -> (Session, [Tape; 3]) {
    let tapes = [0, MIN_CAPACITY, MIN_CAPACITY].map(|len| Tape::of(vec![0; len as usize]));
    let marks = Marks::over(Mapping::anonymous(Marks::bytes(4 * MIB)).unwrap()).unwrap();
    let loaded = create(&disks_of(&tapes), ID, MIN_CAPACITY).unwrap();
    let copy = Backing::begin(disks_of(&tapes), &marks, ID, &loaded).unwrap();
    let mut memory = rig::format(Mapping::anonymous(4 * MIB).unwrap());
    marks.mark(0, 4 * MIB).unwrap();
    memory.track(marks);
    let session = Session::private_with(memory, 16, Some(copy)).unwrap();
    commit(&session, 2);
    checkpoint(&session);
    commit(&session, 3);
    (session, tapes)
}

/// The backing equals the memory, but for the parts that no commit holds.
fn holds_all(session: &Session, tapes: &[Tape; 3], why: &str) {
    let kept = tapes.each_ref().map(Tape::copy);
    let mut loaded = vec![0; 4 * MIB as usize];
    load(&disks_of(&kept), ID, &mut |off, bytes| {
        loaded[off as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{why}: {e}"));
    let (root, len) = (session.memory().root(1), session.memory().size());
    assert!(len == 4 * MIB, "{why}");
    let off = session.memory().load(root).unwrap();
    let memory = rig::bytes_of(session);
    assert!(loaded[off as usize..][..2 << 20] == memory[off as usize..][..2 << 20], "{why}");
    assert!(loaded[root.raw() as usize..][..8] == memory[root.raw() as usize..][..8], "{why}");
    Backing::begin(disks_of(&kept), &Marks::over(Mapping::anonymous(Marks::bytes(4 * MIB)).unwrap()).unwrap(), ID, &{
        load(&disks_of(&kept), ID, &mut |_, _| Ok(())).unwrap()
    })
    .unwrap_or_else(|e| panic!("{why}: {e}"));
}

#[test]
fn a_copy_that_is_damaged_is_made_anew_from_memory() {
    type Harm = (&'static str, fn(&[Tape; 3]));
    let harms: [Harm; 8] = [
        ("logs", |t| t[1..].iter().for_each(|tape| rot_tape(tape, 8192, 16 << 10))),
        ("the image's pages and tables", |t| rot_tape(&t[0], 8192, 1 << 10)),
        ("a log's headers", |t| rot_tape(&t[2], 0, 4096)),
        ("the other log's headers", |t| rot_tape(&t[1], 0, 4096)),
        ("all but headers", |t| t.iter().for_each(|tape| rot_tape(tape, 8192, 1 << 10))),
        ("one write to a log", |t| t[1..].iter().for_each(|tape| tape.with(|s| s.fail_once = Some(0)))),
        ("one write to the image", |t| t[0].with(|s| s.fail_once = Some(0))),
        ("a flush of the image", |t| t[0].with(|s| s.fail_once = Some(3))),
    ];
    for (why, harm) in harms {
        let (session, tapes) = alone();
        harm(&tapes);
        let scrubbed = backing::of(&session).unwrap().scrub(&session, &mut |_| true).unwrap();
        assert!(scrubbed.odd.iter().all(|odd| odd.mended), "{why}: {:?}", scrubbed.odd);
        for _ in 0..2 {
            change(&session);
            // Commits go to both logs and to the image.
            session.memory().marks().unwrap().mark(0, 4 * MIB).unwrap();
            backing::of(&session).unwrap().wait(&session).unwrap_or_else(|e| panic!("{why}: {e}"));
            backing::of(&session).unwrap().checkpoint_if_due(&session).unwrap_or_else(|e| panic!("{why}: {e}"));
        }
        assert!(!session.runtime().backing_failed() && !session.runtime().backing_damaged(), "{why}");
        let (times, last) = session.runtime().backing_anew();
        assert!((1..=2).contains(&times) && last.is_some(), "{why}: {times} times, {last:?}");
        commit(&session, 2);
        holds_all(&session, &tapes, why);
    }
}

fn rot_tape(tape: &Tape, from: usize, every: usize) {
    tape.with(|s| s.bytes.iter_mut().skip(from).step_by(every).for_each(|byte| *byte ^= 0x10));
}

#[test]
fn a_copy_that_no_disk_can_take_has_failed() {
    let (session, tapes) = alone();
    tapes.iter().for_each(|tape| tape.with(|s| s.fuse = Some((0, Errno::IO))));
    change(&session);
    backing::of(&session).unwrap().wait(&session).expect_err("nothing can be written");
    let why = session.runtime().backing_failure().expect("it is recorded for all");
    assert!(why.contains("cannot be made anew"), "{why}");
}

/// A disk with room for so many bytes.
struct Short(Tape, u64);

impl Disk for Short {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, at)
    }
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match at + bytes.len() as u64 <= self.1 {
            true => self.0.write_all_at(bytes, at),
            false => Err(Errno::NOSPC.into()),
        }
    }
    fn flush(&self) -> io::Result<()> {
        Disk::flush(&self.0)
    }
    fn reserved(&self) -> Option<u64> {
        Some(self.1)
    }
}

/// Marks much at the instant of a commit, once where that is to be tried again, as content of blocks is.
struct Marking(Weak<Session>, Arc<AtomicBool>);

impl Participant for Marking {
    fn at_rest(&self, _still: &Frozen, _epoch: u64) -> pram::Result<()> {
        let Some(session) = self.0.upgrade().filter(|_| self.1.swap(false, Ordering::SeqCst)) else { return Ok(()) };
        session.memory().marks().unwrap().mark(MIB, 5 * MIB / 2)
    }
}

/// Such a commit once asked for a log twice as long as any, by a guess, and failed where its disk had no room for that: though the other
/// log, as long as it was, had enough.
#[test]
fn a_commit_that_was_guessed_too_large_gets_the_other_log_as_it_is() {
    let tape = |len: u64| Tape::of(vec![0; len as usize]);
    let [first, second] = [(); 2].map(|()| Arc::new(Short(tape(MIN_CAPACITY), MIN_CAPACITY)) as SharedDisk);
    let disks = Disks { image: Arc::new(tape(0)), logs: [first, second] };
    let marks = Marks::over(Mapping::anonymous(Marks::bytes(4 * MIB)).unwrap()).unwrap();
    let loaded = create(&disks, ID, MIN_CAPACITY).unwrap();
    let backing = Backing::begin(disks, &marks, ID, &loaded).unwrap();
    let mut memory = rig::format(Mapping::anonymous(4 * MIB).unwrap());
    memory.track(marks);
    let session = Arc::new(Session::private_with(memory, 16, Some(backing)).unwrap());
    let wait = || backing::of(&session).unwrap().wait(&session);
    session.memory().marks().unwrap().mark(MIB, 7 * MIB / 4).unwrap();
    wait().expect("less than half of the log");
    let much = Arc::new(AtomicBool::new(false));
    session.enlist(Arc::new(Marking(Arc::downgrade(&session), much.clone())));
    for n in 0..4 {
        change(&session);
        much.store(true, Ordering::SeqCst);
        wait().unwrap_or_else(|e| panic!("commit {n}: {e}"));
        backing::of(&session).unwrap().checkpoint_if_due(&session).unwrap();
    }
    assert!(!session.runtime().backing_full());
}
