//! Permission triples: they are shared, half a million fit, and an ordinary user makes new ones by `chmod` and `chgrp`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conquest::{Caller, OpenOptions, Pool, SetAttr};
use conquest_fs::path::View;

use crate::rig::*;

/// As many as fit.
const LIMIT: u32 = (conquest_fs::layout::PERM_CHUNK * conquest_fs::layout::PERM_CHUNKS) as u32;

fn chown(v: &View, path: &str, uid: u32, mode: u32) -> conquest_fs::Result<()> {
    v.setattr(path.as_bytes(), &SetAttr { uid: Some(uid), mode: Some(mode), ..SetAttr::default() }).map(drop)
}

fn owner(v: &View, path: &str) -> (u32, u32) {
    let attr = v.stat(path.as_bytes()).unwrap();
    (attr.uid, attr.perm)
}

/// Fills the table with triples of `owners` times 4096 modes that nothing uses in the end.
fn use_up(v: &View, path: &str, owners: std::ops::Range<u32>) {
    for uid in owners {
        (0..4096).for_each(|mode| chown(v, path, uid, mode).unwrap());
    }
}

/// A user in 32 groups could fill the table for good, so that no user could make a file with a new mode or owner.
#[test]
fn no_user_fills_the_table_for_good() {
    let (_dir, pool) = pool(32 * MIB);
    let v = root(&pool);
    put(&v, "mine", b"x").unwrap();
    put(&v, "stays", b"x").unwrap();
    chown(&v, "stays", 77, 0o640).unwrap();
    use_up(&v, "mine", 1..LIMIT / 4096 + 20);
    assert_eq!(owner(&v, "stays"), (77, 0o640));
    assert_eq!(owner(&v, "mine"), (LIMIT / 4096 + 19, 0o7777));
    put(&v, "new", b"x").unwrap();
    chown(&v, "new", 4321, 0o600).unwrap();
    assert_eq!(owner(&v, "new"), (4321, 0o600));
    assert_tidy(&pool);
}

/// Another process remembers the table no longer than the triples last.
#[test]
fn nobody_relies_on_triples_that_were_freed() {
    let dir = format(32 * MIB);
    let (a, b) = (open(&dir), Pool::open(dir.path(), &OpenOptions::default()).unwrap());
    let (v, w) = (root(&a), root(&b));
    for n in 0..50 {
        put(&v, &format!("f{n}"), b"").unwrap();
        chown(&v, &format!("f{n}"), 100 + n, 0o600).unwrap();
        put(&w, &format!("g{n}"), b"").unwrap();
        chown(&w, &format!("g{n}"), 100 + n, 0o600).unwrap();
        assert_eq!(owner(&w, &format!("f{n}")), (100 + n, 0o600));
    }
    // All of these go, their numbers are used again by the one process, and then wanted again by the other.
    for n in 0..50 {
        chown(&v, &format!("f{n}"), 9, 0o600).unwrap();
        chown(&v, &format!("g{n}"), 9, 0o600).unwrap();
    }
    assert!(a.free_unused_triples().unwrap() >= 50);
    for n in 0..50 {
        chown(&v, &format!("f{n}"), 1000 + n, 0o640).unwrap();
        assert_eq!(owner(&w, &format!("f{n}")), (1000 + n, 0o640));
        chown(&w, &format!("g{n}"), 100 + n, 0o600).unwrap();
        assert_eq!(owner(&v, &format!("g{n}")), (100 + n, 0o600));
        assert_eq!(owner(&w, &format!("f{n}")), (1000 + n, 0o640));
    }
    assert_eq!(a.free_unused_triples().unwrap(), 1, "but that of owner 9, each triple is there once and named");
    assert_tidy(&a);
}

/// Files get owners, are made and read while triples are freed all the time, in two processes' sessions.
#[test]
fn triples_that_are_taken_up_meanwhile_stay() {
    let _dog = Watchdog::start("freeing triples beside others", Duration::from_secs(120));
    let dir = format(32 * MIB);
    let (a, b) = (open(&dir), open(&dir));
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..4u32)
            .map(|me| {
                let pool = if me % 2 == 0 { &a } else { &b };
                s.spawn(move || {
                    let (v, name) = (root(pool), format!("w{me}"));
                    put(&v, &name, b"").unwrap();
                    let mut rng = rng::Rng::new(u64::from(me));
                    for n in 0..30_000 {
                        let (uid, mode) = (rng.below(40) as u32, 0o600 | rng.below(2) as u32);
                        chown(&v, &name, uid, mode).unwrap();
                        assert_eq!(owner(&v, &name), (uid, mode));
                        if n % 8 == 0 {
                            let user = Caller { uid, gid: me, groups: &[], umask: 0, checked: true, owns: &[] };
                            let (u, new) = (View::new(pool, user), format!("n{me}"));
                            u.create(new.as_bytes(), mode).unwrap();
                            let attr = v.stat(new.as_bytes()).unwrap();
                            assert_eq!((attr.uid, attr.gid, attr.perm), (uid, me, mode));
                            v.unlink(new.as_bytes()).unwrap();
                        }
                    }
                })
            })
            .collect();
        let sweeper = s.spawn(|| {
            let mut freed = 0;
            while !stop.load(Ordering::Relaxed) {
                freed += a.free_unused_triples().unwrap();
            }
            freed
        });
        let done: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(done.iter().all(|d| d.is_ok()));
        assert!(sweeper.join().unwrap() > 100, "nothing was freed meanwhile");
    });
    assert_tidy(&a);
}
