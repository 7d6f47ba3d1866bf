//! Epochs, the participants in their end, and commits that end although a writer always changes more.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backing::log::{Disk, Identity, MIN_CAPACITY};
use backing::{create, Backing, Disks};
use pram::marks::Marks;
use pram::session::{Epochs, Frozen, Participant};
use pram::{Error, Mapping, Session};

use crate::rig::{self, change, KEYS, MIB, UUID};
use crate::tape::Tape;

/// Records its calls, and fails at the given one.
#[derive(Default)]
struct Witness {
    calls: Mutex<Vec<String>>,
    due: AtomicBool,
    /// It begins no operations.
    idle: AtomicBool,
    fails: Mutex<Option<&'static str>>,
}

impl Witness {
    fn called(&self, what: &'static str, session: &Session, epoch: u64) -> pram::Result<()> {
        let Epochs { running, durable, .. } = session.epochs()?;
        self.calls.lock().unwrap().push(format!("{what} {epoch}: {running} runs, below {durable} durable"));
        match *self.fails.lock().unwrap() == Some(what) {
            true => Err(Error::Unusable(format!("the witness fails: {what}"))),
            false => Ok(()),
        }
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Participant for Witness {
    fn is_due(&self, _: &Session) -> bool {
        self.due.load(Ordering::SeqCst)
    }
    fn at_rest(&self, still: &Frozen, epoch: u64) -> pram::Result<()> {
        assert!(still.session().runtime().held());
        self.called("rest", still.session(), epoch)
    }
    fn write(&self, session: &Session, epoch: u64) -> pram::Result<()> {
        // Operations go on.
        if !self.idle.load(Ordering::SeqCst) {
            drop(session.begin()?);
        }
        self.called("write", session, epoch)
    }
    fn durable(&self, session: &Session, epoch: u64) {
        self.called("durable", session, epoch).unwrap();
    }
}

fn disks(disk: impl Fn(u64) -> Arc<dyn Disk>) -> Disks {
    Disks { image: disk(0), logs: [disk(MIN_CAPACITY), disk(MIN_CAPACITY)] }
}

/// A session on a new memory with a backing.
fn copied(size: u64, disks: Disks) -> Session {
    let id = Identity { uuid: UUID };
    let marks = Marks::over(Mapping::anonymous(Marks::bytes(size)).unwrap()).unwrap();
    let loaded = create(&disks, id, MIN_CAPACITY).unwrap();
    let copy = Backing::begin(disks, &marks, id, &loaded).unwrap();
    let mut memory = rig::format(Mapping::anonymous(size).unwrap());
    marks.mark(0, size).unwrap();
    memory.track(marks);
    Session::private_with(memory, KEYS, Some(copy)).unwrap()
}

fn tapes() -> Disks {
    disks(|len| Arc::new(Tape::of(vec![0; len as usize])))
}

const ORDER: [&str; 3] =
    ["rest 0: 0 runs, below 0 durable", "write 0: 1 runs, below 0 durable", "durable 0: 1 runs, below 1 durable"];

#[test]
fn a_commit_ends_an_epoch_and_its_participants_are_asked_in_order() {
    let (session, witness) = (copied(MIB, tapes()), Arc::new(Witness::default()));
    session.enlist(witness.clone());
    let copy = backing::of(&session).unwrap();
    change(&session);
    copy.wait(&session).unwrap();
    assert_eq!(witness.calls(), ORDER);
    // Nothing has changed.
    copy.wait(&session).unwrap();
    assert_eq!(witness.calls(), [""; 0]);
    assert_eq!(session.epoch().unwrap(), 1);
    // But something else has.
    witness.due.store(true, Ordering::SeqCst);
    copy.wait(&session).unwrap();
    assert_eq!(witness.calls().len(), 3);
    assert_eq!(session.epochs().unwrap(), Epochs { running: 2, durable: 2, recovered: 0 });
    assert!(!session.move_on().unwrap(), "commits do");
}

#[test]
fn an_epoch_ends_without_a_copy_too() {
    let (session, witness) = (rig::private(MIB), Arc::new(Witness::default()));
    session.enlist(witness.clone());
    assert!(session.move_on().unwrap());
    assert_eq!(witness.calls(), ORDER);
    change(&session);
    assert!(session.move_on_if_due(Duration::ZERO).unwrap());
    witness.idle.store(true, Ordering::SeqCst);
    assert!(session.move_on_if_due(Duration::ZERO).unwrap(), "what a participant does is in the epoch after");
    assert!(!session.move_on_if_due(Duration::ZERO).unwrap(), "nothing was done since");
    change(&session);
    assert!(!session.move_on_if_due(Duration::from_secs(3600)).unwrap(), "not yet");
    assert_eq!(session.epochs().unwrap(), Epochs { running: 3, durable: 3, recovered: 0 });
    let again = rig::reopen(&rig::bytes_of(&session)).unwrap();
    assert_eq!(again.epochs().unwrap(), Epochs { running: 3, durable: 3, recovered: 0 }, "memory that was kept");
}

#[test]
fn a_participant_that_fails_fails_the_commit_for_good() {
    for what in ["rest", "write"] {
        for session in [copied(MIB, tapes()), rig::private(MIB)] {
            let witness = Arc::new(Witness::default());
            *witness.fails.lock().unwrap() = Some(what);
            session.enlist(witness.clone());
            change(&session);
            let commit = || match backing::of(&session) {
                Some(copy) => copy.wait(&session),
                None => session.move_on().map(drop),
            };
            commit().expect_err("it fails");
            let why = session.runtime().backing_failure().expect("it is recorded for all");
            assert!(why.contains(&format!("the witness fails: {what}")), "{why}");
            assert!(!session.runtime().held(), "operations go on");
            *witness.fails.lock().unwrap() = None;
            witness.calls();
            commit().expect_err("it is not tried again");
            assert_eq!(witness.calls(), [""; 0]);
            assert_eq!(session.epochs().unwrap().durable, 0);
        }
    }
}

/// A disk that takes its time.
struct Slow(Tape, Duration);

impl Disk for Slow {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, at)
    }
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        std::thread::sleep(self.1 * bytes.len() as u32 / (1 << 20));
        self.0.with(|s| {
            let end = at as usize + bytes.len();
            s.bytes.resize(s.bytes.len().max(end), 0);
            s.bytes[at as usize..end].copy_from_slice(bytes);
        });
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// In every round a writer changes more than the last standstill may copy, and more than the log takes: it would do so
/// for ever if nothing held it back.
#[test]
fn a_commit_ends_although_somebody_always_changes_more() {
    const SIZE: u64 = 16 * MIB;
    let session = copied(SIZE, disks(|len| Arc::new(Slow(Tape::of(vec![0; len as usize]), Duration::from_millis(10)))));
    let copy = backing::of(&session).unwrap();
    copy.wait(&session).unwrap();
    let object = {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let off = tx.alloc(pram::Tag(1), 8 * MIB).unwrap().off;
        tx.set(session.memory().root(1), &off).unwrap();
        tx.commit().unwrap();
        off
    };
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut op = session.begin().unwrap();
                let mut tx = op.tx().unwrap();
                tx.init_bytes(object + n % 8 * MIB, &[n as u8; MIB as usize]).unwrap();
                tx.commit().unwrap();
            }
        });
        for _ in 0..3 {
            copy.wait(&session).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert!(!session.runtime().held(), "nobody is held up any more");
}
