//! Processes that leave background work to others, and children of `fork`, which leave their parents' sessions alone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pram::session::Kind;
use pram::{Error, Session};
use rng::Rng;

use crate::player::{part, say, sleep_until_killed, Player};
use crate::rig::{self, MIB};

fn region_file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    rig::format_file(&path, MIB);
    (dir, path)
}

fn guest(path: &std::path::Path) -> pram::Result<Session> {
    rig::attach_as(path, Kind::Guest)
}

fn attendant(path: &std::path::Path) -> Session {
    let session = rig::attach(path).unwrap();
    session.attend().unwrap();
    session
}

/// What it comes to, without a wait.
#[track_caller]
fn is_refused_at_once(session: &Session) {
    let start = Instant::now();
    assert!(matches!(session.begin().map(drop), Err(Error::Unattended)));
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_guest_comes_only_beside_a_process_that_does_background_work() {
    let (_dir, path) = region_file();
    assert!(matches!(guest(&path).map(drop), Err(Error::Unattended)), "nobody is there");
    let first = rig::attach(&path).unwrap();
    assert!(matches!(guest(&path).map(drop), Err(Error::Unattended)), "it does none");
    first.attend().unwrap();
    let session = guest(&path).unwrap();
    rig::change(&session);
    drop(first);
    is_refused_at_once(&session);
    assert!(matches!(guest(&path).map(drop), Err(Error::Unattended)), "it has left");
}

#[test]
fn another_one_attends_when_one_leaves() {
    let (_dir, path) = region_file();
    let (first, second) = (attendant(&path), attendant(&path));
    let session = guest(&path).unwrap();
    assert!(!first.stop_attending().unwrap());
    drop(first);
    rig::change(&session);
    assert!(second.stop_attending().unwrap(), "there is a guest, and nobody else");
    is_refused_at_once(&session);
    let third = attendant(&path);
    rig::change(&session);
    drop((third, second));
    is_refused_at_once(&session);
}

#[test]
fn a_guest_waits_for_another_attendant_where_one_died() {
    if let Some((_, path)) = part() {
        let session = attendant(&path);
        session.retain(9, 1).unwrap();
        say("attends");
        sleep_until_killed();
    }
    let (_dir, path) = region_file();
    let mut victim = Player::start("guests::a_guest_waits_for_another_attendant_where_one_died", "victim", &path);
    victim.hear("attends");
    let session = guest(&path).unwrap();
    rig::change(&session);
    victim.kill();
    std::thread::scope(|scope| {
        session.clock().advance(Duration::from_secs(1));
        let waits = scope.spawn(|| session.begin().map(drop));
        while session.runtime().sessions().len() > 1 {
            std::thread::yield_now();
        }
        let _next = attendant(&path);
        waits.join().unwrap().unwrap();
        rig::change(&session);
    });
    // That one has left in order. Of one that dies nobody comes in the place.
    let mut victim = Player::start("guests::a_guest_waits_for_another_attendant_where_one_died", "victim", &path);
    victim.hear("attends");
    rig::change(&session);
    victim.kill();
    session.clock().advance(Duration::from_secs(1));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| session.begin().map(drop));
        while session.runtime().sessions().len() > 1 {
            std::thread::yield_now();
        }
        while !waits.is_finished() {
            session.clock().advance(Duration::from_secs(6));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(matches!(waits.join().unwrap(), Err(Error::Unattended)));
    });
    // It is told so at once from then on.
    is_refused_at_once(&session);
    let _last = attendant(&path);
    rig::change(&session);
}

#[test]
fn guests_count_together_and_each_for_itself() {
    const KEYS: u64 = 2000;
    let (_dir, path) = region_file();
    let first = attendant(&path);
    let mut rng = Rng::new(7);
    let mut guests: Vec<(Session, Vec<u32>)> =
        (0..3).map(|_| (guest(&path).unwrap(), vec![0; KEYS as usize])).collect();
    let are_right = |guests: &[(Session, Vec<u32>)]| {
        for key in 0..KEYS {
            let held = guests.iter().map(|(_, counts)| counts[key as usize]).sum::<u32>();
            assert_eq!(first.is_referenced(key), held > 0, "key {key}");
            assert!(guests.iter().all(|(guest, counts)| guest.holds(key) == (counts[key as usize] > 0)));
        }
        for (guest, counts) in guests {
            let mut found = first.runtime().referenced(guest.runtime().me());
            found.sort_unstable();
            assert_eq!(found, (0..KEYS).filter(|key| counts[*key as usize] > 0).collect::<Vec<_>>());
        }
    };
    for _ in 0..30_000 {
        let (which, key, n) = (rng.below(3) as usize, rng.below(KEYS), rng.below(3) as u32 + 1);
        let (guest, counts) = &mut guests[which];
        let count = &mut counts[key as usize];
        match rng.below(2) {
            0 => {
                guest.retain(key, n).unwrap();
                *count += n;
            }
            _ => {
                *count = count.saturating_sub(n);
                assert_eq!(guest.release(key, n), *count);
            }
        }
    }
    are_right(&guests);
    guests.pop();
    are_right(&guests);
    let (one, other) = (&guests[0].0, &guests[1].0);
    one.begin_change(5);
    other.begin_change(5);
    one.end_change(5);
    assert!(first.is_changing(5) && !first.is_changing(6));
    guests.clear();
    assert!(!first.is_changing(5));
    assert!((0..KEYS).all(|key| !first.is_referenced(key)));
}

#[test]
fn many_guests_may_come() {
    let (_dir, path) = region_file();
    let first = attendant(&path);
    let guests: Vec<Session> = (0..200).map(|_| guest(&path).unwrap()).collect();
    let mut numbers: Vec<u32> = first.runtime().sessions().iter().map(|session| session.index).collect();
    assert!(numbers.iter().filter(|n| **n >= pram::runtime::FULL).count() == 200);
    numbers.dedup();
    assert_eq!(numbers.len(), 201);
    guests.iter().for_each(rig::change);
    assert_eq!(first.reap().unwrap(), 0);
    let last = guests.last().unwrap().runtime().me();
    drop(guests);
    assert_eq!(first.runtime().sessions().len(), 1);
    assert!(!first.is_alive(last));
}

/// Makes a child of this process by `fork`, which calls `f` and sleeps until it is killed.
fn fork(f: impl FnOnce()) -> i32 {
    // SAFETY: the child plays a part of a test, in a process of few threads, and never returns.
    match unsafe { libc::fork() } {
        0 => {
            f();
            sleep_until_killed()
        }
        child => child,
    }
}

/// Ended with the test.
struct Forked(i32);

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: a system call; the number is that of a child of a child of ours that has not been waited for.
        let _ = unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// A process is killed, and its child, which `has` what it had of the session, lives.
fn outlived(kind: Kind, has: bool, test: &str) {
    if let Some((_, path)) = part() {
        let mut session = Some(rig::attach_as(&path, kind).unwrap());
        session.as_ref().unwrap().retain(9, 1).unwrap();
        let child = fork(|| {
            let session = session.take().unwrap();
            let refused = session.begin().map(drop).unwrap_err();
            assert!(matches!(refused, Error::Forked), "{refused}");
            assert!(matches!(session.read::<(), Error>(5, || Ok(())), Err(Error::Forked)));
            // The parent's goes nowhere with it, and it has one of its own.
            if has {
                std::mem::forget(session);
            } else {
                drop(session);
            }
            let own = rig::attach_as(&path, kind).unwrap();
            rig::change(&own);
            say("=changed");
            std::mem::forget(own);
        });
        say(&format!("=child {child}"));
        sleep_until_killed();
    }
    let (_dir, path) = region_file();
    let session = attendant(&path);
    let mut parent = Player::start(&format!("guests::{test}"), "parent", &path);
    let (mut child, mut is_changed) = (None, false);
    while child.is_none() || !is_changed {
        let said = parent.hear("=");
        is_changed |= said == "changed";
        child = child.or(said.strip_prefix("child ").and_then(|pid| pid.parse().ok()).map(Forked));
    }
    assert_eq!(session.runtime().sessions().len(), 3);
    assert!(session.is_referenced(9));
    assert_eq!(session.reap().unwrap(), 0, "all are alive");
    // The child has the pipe too: nothing is read to its end.
    parent.signal("KILL");
    let start = Instant::now();
    while session.reap().unwrap() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the dead one lives on in its child");
        std::thread::yield_now();
    }
    assert!(!session.is_referenced(9));
    assert_eq!(session.runtime().sessions().len(), 2, "the child is there");
    drop(child);
}

#[test]
fn a_forked_child_does_not_keep_its_parents_session_alive() {
    outlived(Kind::Full, true, "a_forked_child_does_not_keep_its_parents_session_alive");
}

#[test]
fn nor_does_that_of_a_guest() {
    outlived(Kind::Guest, true, "nor_does_that_of_a_guest");
}

#[test]
fn a_forked_child_that_drops_what_it_has_ends_nothing() {
    outlived(Kind::Full, false, "a_forked_child_that_drops_what_it_has_ends_nothing");
}
