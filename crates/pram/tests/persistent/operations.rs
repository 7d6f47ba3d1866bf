//! Operations that begin anew, long locks, and threads that may not wait for a device.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use backing::log::{Identity, MIN_CAPACITY};
use backing::{create, Backing, Disks};
use pram::marks::Marks;
use pram::session::assert_may_wait;
use pram::{Error, Mapping, Session};

use crate::rig::{self, KEYS, MIB, UUID};
use crate::tape::Tape;

const MOMENT: Duration = Duration::from_millis(20);

#[test]
#[should_panic(expected = "a wait for a device inside an operation or a section")]
fn nobody_waits_for_a_device_in_an_operation() {
    let session = rig::private(MIB);
    let _op = session.begin().unwrap();
    assert_may_wait();
}

#[test]
#[should_panic(expected = "a wait for a device inside an operation or a section")]
fn nobody_waits_for_a_device_in_a_section() {
    let session = rig::private(MIB);
    let _ = session.read::<_, Error>(5, || {
        assert_may_wait();
        Ok(())
    });
}

#[test]
#[should_panic(expected = "a wait for a device inside an operation or a section")]
fn nobody_waits_for_a_commit_in_an_operation() {
    let id = Identity { uuid: UUID };
    let [image, first, second] = [0, MIN_CAPACITY, MIN_CAPACITY].map(|len| Tape::of(vec![0; len as usize]));
    let disks = Disks { image: Arc::new(image), logs: [Arc::new(first), Arc::new(second)] };
    let loaded = create(&disks, id, MIN_CAPACITY).unwrap();
    let marks = Marks::over(Mapping::anonymous(Marks::bytes(MIB)).unwrap()).unwrap();
    let copy = Backing::begin(disks, &marks, id, &loaded).unwrap();
    let memory = rig::format(Mapping::anonymous(MIB).unwrap());
    let session = Session::private_with(memory, KEYS, Some(copy)).unwrap();
    let _op = session.begin().unwrap();
    let _ = backing::of(&session).unwrap().wait(&session);
}

#[test]
fn who_is_in_none_may_wait() {
    let session = rig::private(MIB);
    let mut op = session.begin().unwrap();
    op.lock(&[5]).unwrap();
    op.renew().unwrap();
    drop(op);
    session.read::<_, Error>(5, || Ok(())).unwrap();
    assert_may_wait();
}

/// Its locks and its slot are free in between: a freeze that waits until no operation is under way can begin.
#[test]
fn an_operation_that_begins_anew_lets_others_pass() {
    let session = rig::private(MIB);
    let (frozen, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut op = session.begin().unwrap();
    op.lock(&[5]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _still = session.freeze().unwrap();
            frozen.store(true, Ordering::SeqCst);
            std::thread::sleep(MOMENT);
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(MOMENT);
        assert!(!frozen.load(Ordering::SeqCst), "an operation is under way");
        while !frozen.load(Ordering::SeqCst) {
            op.renew().unwrap();
        }
        assert!(done.load(Ordering::SeqCst), "it began only when the other one was done");
    });
    op.lock(&[5]).unwrap();
}

#[test]
fn long_locks_exclude_each_other_and_who_asks_for_them() {
    const THREADS: u32 = 8;
    const EACH: u32 = 50;
    let session = rig::private(MIB);
    let (inside, sum) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let (session, inside, sum) = (&session, &inside, &sum);
            scope.spawn(move || {
                for _ in 0..EACH {
                    if n % 2 == 0 {
                        let _lock = session.long_lock(5).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        // An operation of the holder does not ask.
                        session.begin().unwrap().lock(&[5]).unwrap();
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    } else {
                        let mut op = session.begin().unwrap();
                        op.lock_apart(5).unwrap();
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                    }
                    sum.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(sum.load(Ordering::SeqCst), THREADS * EACH);
}

/// More keys than the table has entries: a thread that finds none waits for one.
#[test]
fn there_are_enough_long_locks_in_the_end() {
    let session = rig::private(MIB);
    let locks: Vec<_> = (0..64).map(|key| session.long_lock(key).unwrap()).collect();
    let taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _lock = session.long_lock(1000).unwrap();
            taken.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(MOMENT);
        assert!(!taken.load(Ordering::SeqCst));
        drop(locks);
    });
    assert!(taken.load(Ordering::SeqCst));
}
