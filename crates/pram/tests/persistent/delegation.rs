//! What is recalled costs no event, and nobody who watches keeps what is older than a change that is done.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;

use pram::delegation::Recall;
use pram::events::{Event, Seen};
use pram::session::Kind;
use pram::Session;

use crate::rig::{self, MIB};

const KEY: u64 = 7;

/// One that watches, and one that changes things.
fn pair() -> (tempfile::TempDir, Session, Session) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("memory");
    rig::format_file(&path, MIB);
    let (watcher, other) = (rig::attach(&path).unwrap(), rig::attach(&path).unwrap());
    watcher.start_watching().unwrap();
    (dir, watcher, other)
}

#[test]
fn a_recalled_key_needs_no_notification_until_it_is_taken_back() {
    let (_dir, watcher, other) = pair();
    watcher.begin_recall(KEY);
    assert_eq!(watcher.recall(KEY), Recall::None, "nothing to recall");
    assert!(!other.is_kept(KEY), "nobody refers to it");
    watcher.retain(KEY, 3).unwrap();
    assert!(other.is_kept(KEY));
    watcher.begin_recall(KEY);
    assert_eq!(watcher.recall(KEY), Recall::Begun);
    assert!(other.is_kept(KEY), "the watcher may have it still");
    watcher.end_recall(KEY);
    assert_eq!(watcher.recall(KEY), Recall::Done { changed: true });
    watcher.note_changes(KEY);
    assert_eq!(watcher.recall(KEY), Recall::Done { changed: false });
    assert!(!other.is_kept(KEY) && other.is_cached(KEY));
    assert_eq!(watcher.recall(KEY), Recall::Done { changed: true }, "the change is noted");
    assert_eq!(watcher.release(KEY, 1), 2, "what is recalled is counted as before");
    watcher.take_back(KEY);
    assert_eq!(watcher.recall(KEY), Recall::None);
    assert!(other.is_kept(KEY));

    watcher.begin_recall(KEY);
    watcher.take_back(KEY);
    watcher.end_recall(KEY);
    assert_eq!(watcher.recall(KEY), Recall::None, "it was read again before the recall was over");
    assert!(other.is_kept(KEY));
}

#[test]
fn what_is_recalled_ends_with_the_last_reference() {
    let (_dir, watcher, other) = pair();
    watcher.retain(KEY, 2).unwrap();
    watcher.begin_recall(KEY);
    watcher.end_recall(KEY);
    assert_eq!(watcher.release(KEY, u32::MAX), 0);
    assert!(!watcher.runtime().any_reference().unwrap() && !other.is_cached(KEY));
    assert_eq!((watcher.recall(KEY), other.is_kept(KEY)), (Recall::None, false));
    watcher.retain(KEY, 1).unwrap();
    assert!(other.is_kept(KEY));
    assert_eq!(watcher.runtime().referenced(watcher.runtime().me()), [KEY]);
}

/// A kernel that may not keep a name takes a reference each time it looks it up: a count that overflowed would be none.
#[test]
fn a_count_does_not_overflow() {
    let (_dir, watcher, other) = pair();
    for _ in 0..64 {
        watcher.retain(KEY, 1 << 26).unwrap();
    }
    assert_eq!(watcher.recall(KEY), Recall::None);
    assert!(watcher.release(KEY, 5) > 0 && other.is_kept(KEY) && other.is_referenced(KEY));
    assert_eq!(watcher.release(KEY, u32::MAX), 0);
}

#[test]
fn a_change_is_seen_by_others_until_it_ends_and_not_by_itself() {
    let (_dir, watcher, other) = pair();
    assert!(!other.is_changed_beside(KEY, &[]));
    other.begin_change(KEY);
    assert!(other.is_changed_beside(KEY, &[]) && watcher.is_changed_beside(KEY, &[]));
    assert!(!other.is_changed_beside(KEY, &[KEY]), "that is our own");
    other.begin_change(KEY);
    assert!(other.is_changed_beside(KEY, &[KEY]), "another thread");
    other.end_change(KEY);
    other.end_change(KEY);
    assert!(!watcher.is_changed_beside(KEY, &[]));
}

/// Guests count together: each has to know its own from the others'.
#[test]
fn guests_see_the_changes_of_each_other_and_not_their_own() {
    let (dir, watcher, _other) = pair();
    watcher.attend().unwrap();
    let guest = || rig::attach_as(&dir.path().join("memory"), Kind::Guest).unwrap();
    let (one, another) = (guest(), guest());
    watcher.retain(KEY, 1).unwrap();
    one.begin_change(KEY);
    assert!(!one.is_changed_beside(KEY, &[KEY]) && another.is_changed_beside(KEY, &[]));
    assert!(watcher.is_changed_beside(KEY, &[]) && one.is_kept(KEY));
    another.begin_change(KEY);
    assert!(one.is_changed_beside(KEY, &[KEY]));
    another.end_change(KEY);
    one.end_change(KEY);
    assert!(!one.is_changed_beside(KEY, &[]) && !watcher.is_changed_beside(KEY, &[]));
    watcher.begin_recall(KEY);
    watcher.end_recall(KEY);
    assert!(!one.is_kept(KEY) && !another.is_kept(KEY));
    one.retain(KEY, 1).unwrap();
    assert_eq!((one.release(KEY, 1), watcher.recall(KEY)), (0, Recall::Done { changed: true }));
}

/// What a kernel keeps: a value, and how often it was made to forget it. It takes no reply to what it asked for before.
#[derive(Default)]
struct Kernel {
    kept: Option<u64>,
    version: u64,
}

/// One changes a value, one reads and keeps it, and takes it back at any time, and one is notified.
#[test]
fn nothing_older_than_a_change_that_is_done_is_kept() {
    let (_dir, watcher, other) = pair();
    let (value, done, kernel) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Kernel::default()));
    watcher.retain(KEY, 1).unwrap();
    let serve = |takes_back: &dyn Fn() -> bool| {
        let version = kernel.lock().unwrap().version;
        if takes_back() {
            watcher.take_back(KEY);
        }
        let keeps = watcher.recall(KEY) == Recall::None;
        let read = value.load(SeqCst);
        let mut kernel = kernel.lock().unwrap();
        if keeps && kernel.version == version {
            kernel.kept = Some(read);
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut acted = 0;
            while !done.load(SeqCst) {
                let next = watcher.next_event(acted).unwrap();
                acted = next.events();
                if let Seen::Event(_) = next {
                    watcher.begin_recall(KEY);
                    let mut kernel = kernel.lock().unwrap();
                    (kernel.kept, kernel.version) = (None, kernel.version + 1);
                    drop(kernel);
                    watcher.end_recall(KEY);
                }
            }
            watcher.stop_watching();
        });
        for server in 0..2 {
            let (serve, done) = (&serve, &done);
            s.spawn(move || {
                let mut rng = rng::Rng::new(server);
                let rng = std::cell::RefCell::new(&mut rng);
                while !done.load(SeqCst) {
                    serve(&|| rng.borrow_mut().below(50) == 0);
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 1..=20_000 {
                value.store(n, SeqCst);
                if other.is_kept(KEY) {
                    other.publish(&Event { kind: 1, key: KEY, payload: vec![] }).unwrap();
                }
                let kept = kernel.lock().unwrap().kept;
                assert!(kept.is_none_or(|kept| kept >= n), "{kept:?} is kept after {n}");
            }
        }));
        done.store(true, SeqCst);
        result.unwrap();
    });
    println!("{} events for 20000 changes", other.events());
    assert!(other.events() < 20_000);
}
