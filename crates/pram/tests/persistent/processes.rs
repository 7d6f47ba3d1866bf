//! Several processes on one memory, some of them killed with SIGKILL.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pram::events::{Event, Seen};
use pram::session::Op;
use pram::{Error, Off, Session, Tag};
use rng::Rng;

use crate::player::{part, say, sleep_until_killed, Player};
use crate::rig::{self, KEYS, MIB};

/// A memory of the test's own, in a directory that goes with it.
fn region_file(size: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    rig::format_file(&path, size);
    (dir, path)
}

/// The same, and a session on it.
fn attached(size: u64) -> (tempfile::TempDir, PathBuf, Session) {
    let (dir, path) = region_file(size);
    let session = rig::attach(&path).unwrap();
    (dir, path, session)
}

fn runtime_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    names.filter(|n| n.to_string_lossy().starts_with("conquest-")).count()
}

fn word(session: &Session, n: u64) -> u64 {
    session.memory().load(session.memory().root(n)).unwrap()
}

fn set_word(op: &mut Op, n: u64, value: u64) {
    let root = op.session().memory().root(n);
    let mut tx = op.tx().unwrap();
    tx.set(root, &value).unwrap();
    tx.commit().unwrap();
}

#[test]
fn a_killed_holder_is_rolled_back_by_the_next_taker() {
    const TEST: &str = "a_killed_holder_is_rolled_back_by_the_next_taker";
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        session.retain(9, 3).unwrap();
        let mut op = session.begin().unwrap();
        op.lock(&[5, 6]).unwrap();
        let mut tx = op.tx().unwrap();
        for n in 1..50 {
            tx.set(session.memory().root(n), &77).unwrap();
            tx.alloc(Tag(1), 100 * n).unwrap();
        }
        say("inside");
        sleep_until_killed();
    }
    let (_dir, path, session) = attached(8 * MIB);
    {
        let mut op = session.begin().unwrap();
        (1..50).for_each(|n| set_word(&mut op, n, n));
    }
    let mut victim = Player::start(TEST, "victim", &path);
    victim.hear("inside");
    assert!(session.is_referenced(9));
    let mut bystander = Player::start(TEST, "victim-too", &path);
    assert_eq!(session.reap().unwrap(), 0, "all are alive");
    victim.kill();
    // Another child waits for the same locks: it gets them, and is killed inside its transaction too.
    bystander.hear("inside");
    bystander.kill();
    let started = Instant::now();
    let mut op = session.begin().unwrap();
    op.lock(&[5, 6]).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!((1..50).all(|n| word(&session, n) == n), "the dead one's changes are undone");
    set_word(&mut op, 1, 1000);
    drop(op);
    assert_eq!(session.read::<_, Error>(5, || session.memory().load(session.memory().root(1))).unwrap(), 1000);
    session.reap().unwrap();
    assert_eq!(session.runtime().sessions().len(), 1);
    assert!(!session.is_referenced(9), "its references are gone");
    assert!(session.runtime().leaks_pending());
}

#[test]
fn a_reader_without_lock_gets_past_a_killed_holder() {
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        let mut op = session.begin().unwrap();
        op.lock(&[5]).unwrap();
        let mut tx = op.tx().unwrap();
        tx.set(session.memory().root(1), &77).unwrap();
        say("inside");
        sleep_until_killed();
    }
    let (_dir, path, session) = attached(MIB);
    let mut victim = Player::start("a_reader_without_lock_gets_past_a_killed_holder", "victim", &path);
    victim.hear("inside");
    victim.kill();
    assert_eq!(session.read::<_, Error>(5, || session.memory().load(session.memory().root(1))).unwrap(), 0);
}

#[test]
fn a_long_lock_goes_with_its_holder() {
    const TEST: &str = "a_long_lock_goes_with_its_holder";
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        let _lock = session.long_lock(5).unwrap();
        say("locked");
        sleep_until_killed();
    }
    let (_dir, path, session) = attached(MIB);
    let mut victim = Player::start(TEST, "victim", &path);
    victim.hear("locked");
    let is_locked = |key| {
        let mut op = session.begin().unwrap();
        op.lock(&[key]).unwrap();
        op.is_long_locked(key)
    };
    assert!(is_locked(5) && !is_locked(6));
    // Other keys are free meanwhile, also by the same lock.
    session.begin().unwrap().lock_apart(5 + pram::runtime::LOCKS).unwrap();
    victim.kill();
    let started = Instant::now();
    session.begin().unwrap().lock_apart(5).unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(!is_locked(5));
}

#[test]
fn the_last_one_out_leaves_the_region_clean() {
    let (dir, path) = region_file(MIB);
    let first = rig::attach(&path).unwrap();
    assert!(!first.runtime().leaks_pending(), "fresh");
    let second = rig::attach(&path).unwrap();
    assert_ne!(first.runtime().me(), second.runtime().me());
    assert_eq!(first.runtime().sessions().len(), 2);
    assert_eq!(first.runtime().sessions()[1].label, b"test");
    first.retain(3, 1).unwrap();
    assert!(second.is_referenced(3));
    drop(first);
    assert!(!second.is_referenced(3), "detaching gives references back");
    assert_eq!(runtime_files(dir.path()), 1);
    drop(second);
    assert_eq!(runtime_files(dir.path()), 0, "the last one removes the runtime file");
    assert!(!rig::attach(&path).unwrap().runtime().leaks_pending());
}

#[test]
fn what_the_last_one_killed_left_is_recovered_at_attach() {
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        let mut op = session.begin().unwrap();
        set_word(&mut op, 1, 5);
        let mut tx = op.tx().unwrap();
        tx.set(session.memory().root(1), &77).unwrap();
        say("inside");
        sleep_until_killed();
    }
    let (_dir, path) = region_file(MIB);
    let mut victim = Player::start("what_the_last_one_killed_left_is_recovered_at_attach", "victim", &path);
    victim.hear("inside");
    victim.kill();
    let session = rig::attach(&path).unwrap();
    assert_eq!(word(&session, 1), 5, "committed is there, open is undone");
    assert!(session.runtime().leaks_pending(), "a sweep is due");
    drop(session);
    let session = rig::attach(&path).unwrap();
    assert!(session.runtime().leaks_pending(), "until it is done");
    session.runtime().set_leaks_pending(false);
    drop(session);
    assert!(!rig::attach(&path).unwrap().runtime().leaks_pending());
}

#[test]
fn a_killed_freezer_does_not_stop_the_pool() {
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        let _frozen = session.freeze().unwrap();
        assert!(session.runtime().start_sweep().unwrap());
        say("frozen");
        sleep_until_killed();
    }
    let (_dir, path, session) = attached(MIB);
    let mut victim = Player::start("a_killed_freezer_does_not_stop_the_pool", "victim", &path);
    victim.hear("frozen");
    assert!(session.runtime().held());
    victim.kill();
    drop(session.begin().unwrap());
    assert!(!session.runtime().held());
    assert!(session.runtime().start_sweep().unwrap(), "nor does its sweep go on");
}

#[test]
fn only_one_freezes_at_a_time() {
    let session = rig::private(MIB);
    let inside = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let _frozen = session.freeze().unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                }
            });
        }
    });
}

#[test]
fn publish_notifies_watchers_before_it_returns_and_they_may_die() {
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        session.start_watching().unwrap();
        say("watching");
        let mut acted = 0;
        loop {
            let next = session.next_event(acted).unwrap();
            acted = next.events();
            match next {
                Seen::Event(e) => say(&format!("event {} {} {}", e.kind, e.key, e.payload.len())),
                Seen::Lost(_) => panic!("nothing was lost"),
                Seen::Idle => {}
            }
        }
    }
    let (_dir, path, session) = attached(MIB);
    let mut watcher = Player::start("publish_notifies_watchers_before_it_returns_and_they_may_die", "watcher", &path);
    watcher.hear("watching");
    assert!(session.is_watched());
    // Far more than the ring holds.
    for n in 0..3000 {
        session.publish(&Event { kind: 1, key: n, payload: vec![0; (n % 280) as usize] }).unwrap();
    }
    for n in 0..3000 {
        assert_eq!(watcher.hear("event "), format!("1 {n} {}", n % 280));
    }
    watcher.kill();
    let started = Instant::now();
    session.publish(&Event { kind: 1, key: 1, payload: vec![] }).unwrap();
    assert!(started.elapsed() < Duration::from_secs(3), "the dead one is not waited for");
    assert!(!session.is_watched());
}

/// One kernel caches: a second watcher would need notifications too, and could not be waited for.
#[test]
fn one_watches_at_a_time() {
    let (_dir, path, watcher) = attached(MIB);
    let other = rig::attach(&path).unwrap();
    watcher.start_watching().unwrap();
    watcher.start_watching().unwrap();
    assert!(other.is_watched() && !watcher.is_watched());
    assert!(other.start_watching().is_err());
    other.stop_watching();
    assert!(other.is_watched(), "it is not other's to end");
    watcher.stop_watching();
    assert!(!other.is_watched());
    other.start_watching().unwrap();
    drop(other);
    watcher.start_watching().unwrap();
}

/// A publisher waits as long as the watcher gets on, however slow it is.
#[test]
fn a_slow_watcher_is_waited_for() {
    let (_dir, path, publisher) = attached(MIB);
    let slow = rig::attach(&path).unwrap();
    slow.start_watching().unwrap();
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut acted = 0;
            while !done.load(Ordering::Acquire) {
                let next = slow.next_event(acted).unwrap();
                acted = next.events();
                if let Seen::Event(event) = next {
                    std::thread::sleep(Duration::from_millis(15));
                    seen.fetch_max(event.key, Ordering::AcqRel);
                }
            }
            slow.stop_watching();
        });
        for key in 1..20 {
            publisher.publish(&Event { kind: 1, key, payload: vec![] }).unwrap();
            let was_seen = seen.load(Ordering::Acquire) >= key;
            done.store(!was_seen || key == 19, Ordering::Release);
            assert!(was_seen, "{key} was not waited for");
        }
    });
}

/// Everybody waited for a stopped watcher with each change, and it had to go through all of them when it went on.
#[test]
fn a_stopped_watcher_is_waited_for_once_and_catches_up() {
    if let Some((_, path)) = part() {
        let session = rig::attach(&path).unwrap();
        session.start_watching().unwrap();
        say("watching");
        let (mut acted, mut seen) = (0, 0);
        loop {
            acted = session.next_event(acted).unwrap().events();
            seen += acted;
            if acted > 0 {
                say(&format!("seen {seen}"));
            }
        }
    }
    let (_dir, path, session) = attached(MIB);
    let mut watcher = Player::start("a_stopped_watcher_is_waited_for_once_and_catches_up", "watcher", &path);
    watcher.hear("watching");
    let publish = || session.publish(&Event { kind: 1, key: 1, payload: vec![] }).unwrap();
    publish();
    assert_eq!(watcher.hear("seen "), "1");
    watcher.signal("STOP");
    let started = Instant::now();
    (0..5000).for_each(|_| publish());
    assert!(started.elapsed() < Duration::from_secs(20), "waited for {:?}", started.elapsed());
    watcher.signal("CONT");
    // It may have seen some before it heard the signal.
    let steps = std::iter::from_fn(|| Some(watcher.hear("seen "))).take_while(|seen| seen != "5001").count();
    assert!(steps < 1000, "not all at once: {steps}");
    publish();
    assert_eq!(watcher.hear("seen "), "5002", "and it is waited for again");
    watcher.kill();
}

// Stress: pairs of words that are equal whenever their lock is free, changed by threads of several
// processes that are killed and replaced meanwhile.

const PAIRS: u64 = 16;
/// Root words: pairs at 100 + 2i, an object per pair at 200 + i, a word per worker at 300 + w.
fn pair(n: u64) -> (u64, u64) {
    (100 + 2 * n, 101 + 2 * n)
}

/// One round of a worker: pair, object and its own count change together or not at all.
fn round(session: &Session, rng: &mut Rng, worker: u64) -> pram::Result<()> {
    let memory = session.memory();
    let n = rng.below(PAIRS);
    let key = n * 7 % KEYS;
    if rng.below(3) == 0 {
        let (a, b) = session.read::<_, Error>(key, || {
            Ok((memory.load(memory.root(pair(n).0))?, memory.load(memory.root(pair(n).1))?))
        })?;
        assert_eq!(a, b, "a reader without lock saw a torn pair");
        return Ok(());
    }
    let mut op = session.begin()?;
    op.lock(&[key, 1000 + worker])?;
    let (a, b) = (memory.load(memory.root(pair(n).0))?, memory.load(memory.root(pair(n).1))?);
    assert_eq!(a, b, "a pair was torn under its lock");
    let old = memory.load(memory.root(200 + n))?;
    if old != 0 {
        let kept: [u64; 4] = memory.read(Off::new(old))?;
        assert_eq!(kept, [n, a, n, a], "an object was given to two owners");
    }
    let count = memory.load(memory.root(300 + worker))?;
    let abort = rng.below(8) == 0;
    let mut tx = op.tx()?;
    tx.set(memory.root(pair(n).0), &(a + 1))?;
    let size = 32 + rng.below(3000) * rng.below(60) / 59;
    let block = tx.alloc(Tag(1), size)?;
    tx.init(Off::new(block.off), &[n, a + 1, n, a + 1])?;
    tx.set(memory.root(200 + n), &block.off)?;
    if old != 0 {
        tx.free(old, Tag(1))?;
    }
    tx.set(memory.root(300 + worker), &(count + 1))?;
    tx.set(memory.root(pair(n).1), &(a + 1))?;
    if abort {
        return Ok(());
    }
    tx.commit()
}

#[test]
fn nothing_is_torn_or_lost_while_processes_are_killed() {
    if let Some((part, path)) = part() {
        let first: u64 = part.parse().unwrap();
        let session = rig::attach(&path).unwrap();
        std::thread::scope(|scope| {
            for worker in [first, first + 1] {
                let session = &session;
                scope.spawn(move || {
                    let mut rng = Rng::new(worker);
                    loop {
                        (0..100).for_each(|_| round(session, &mut rng, worker).unwrap());
                        let count = word(session, 300 + worker);
                        say(&format!("done {worker} {count}"));
                    }
                });
            }
        });
    }
    const TEST: &str = "nothing_is_torn_or_lost_while_processes_are_killed";
    // Large enough that every busy slot can hold a chunk of every class that is used.
    let (_dir, path, session) = attached(64 * MIB);
    let mut acknowledged = [0u64; 64];
    let mut note = |line: &str| {
        let mut words = line.split_whitespace().map(|w| w.parse::<u64>());
        if let (Some(Ok(worker)), Some(Ok(count))) = (words.next(), words.next()) {
            acknowledged[worker as usize] = acknowledged[worker as usize].max(count);
        }
    };
    let mut rng = Rng::new(99);
    let mut players: Vec<Player> = (0..2).map(|p| Player::start(TEST, &(p * 2).to_string(), &path)).collect();
    for generation in 1..=10u64 {
        players.iter_mut().for_each(|p| note(&p.hear("done ")));
        std::thread::sleep(Duration::from_millis(rng.below(40)));
        let victim = players.remove(0);
        for line in victim.kill() {
            if let Some(at) = line.find("done ") {
                note(&line[at + 5..]);
            }
        }
        // The survivor and we go on at once; a newcomer joins.
        (0..200).for_each(|_| round(&session, &mut rng, 63).unwrap());
        players.push(Player::start(TEST, &(2 + generation * 2).to_string(), &path));
    }
    drop(players);
    let mut op = session.begin().unwrap();
    op.lock(&(0..64).map(|w| 1000 + w).chain((0..PAIRS).map(|n| n * 7)).collect::<Vec<_>>()).unwrap();
    for (worker, acknowledged) in acknowledged.iter().enumerate() {
        assert!(
            word(&session, 300 + worker as u64) >= *acknowledged,
            "worker {worker} lost what was acknowledged to it"
        );
    }
    let pairs: u64 = (0..PAIRS).map(|n| word(&session, pair(n).0)).sum();
    assert_eq!(pairs, (0..PAIRS).map(|n| word(&session, pair(n).1)).sum::<u64>());
    assert_eq!(pairs, (0..64).map(|w| word(&session, 300 + w)).sum::<u64>(), "pairs and counts are one transaction");
    assert!(pairs > 1000, "{pairs} rounds");
    drop(op);
    while session.runtime().sessions().len() > 1 {
        session.reap().unwrap();
    }
    every_chunk_is_usable_again(&session);
}

/// A process that begins a transfer and is killed, and what goes on with it: as the kernel does with a ring, another one
/// keeps the lock, on its standard input. Returns that, and the block.
fn killed_in_a_transfer(test: &str, path: &Path) -> (Player, u64) {
    let mut victim = Player::start(test, "victim", path);
    let block = victim.hear("block ").parse().unwrap();
    let mut goes_on = Player::start(test, "goes on", path);
    goes_on.hear("goes on");
    assert!(victim.hear("handed ").is_empty());
    victim.kill();
    (goes_on, block)
}

/// The part of the victim of `test`, and of what goes on.
fn be_killed_in_a_transfer(part: &str, path: &Path) -> ! {
    use std::os::unix::net::{UnixListener, UnixStream};
    let socket = path.with_extension("socket");
    if part == "goes on" {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _lock = receive(&mut stream);
        say("goes on");
        sleep_until_killed();
    }
    let listener = UnixListener::bind(&socket).unwrap();
    let session = rig::attach(path).unwrap();
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let block = tx.alloc_block(1, [2, 3]).unwrap();
    tx.commit().unwrap();
    drop(op);
    let _transfer = session.transfer(block, 1).unwrap().unwrap();
    say(&format!("block {block}"));
    let (mut stream, _) = listener.accept().unwrap();
    send(&mut stream, &session.transfer_lock().unwrap().unwrap());
    say("handed ");
    sleep_until_killed();
}

/// Sends an open file.
fn send(stream: &mut std::os::unix::net::UnixStream, file: &std::os::fd::OwnedFd) {
    use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::os::fd::AsFd;
    let files = [file.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(stream, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
}

fn receive(stream: &mut std::os::unix::net::UnixStream) -> std::os::fd::OwnedFd {
    use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(stream, &mut [std::io::IoSliceMut::new(&mut [0])], &mut control, RecvFlags::empty()).unwrap();
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    files.next().expect("a file was sent")
}

#[test]
fn blocks_under_transfer_of_the_dead_are_in_quarantine() {
    const TEST: &str = "blocks_under_transfer_of_the_dead_are_in_quarantine";
    if let Some((part, path)) = part() {
        be_killed_in_a_transfer(&part, &path);
    }
    let (_dir, path, session) = attached(MIB);
    let (goes_on, block) = killed_in_a_transfer(TEST, &path);
    while session.runtime().sessions().len() > 1 {
        session.reap().unwrap();
    }
    assert!(session.may_others_transfer().unwrap() && session.may_the_gone_transfer().unwrap());
    // Swept, and nobody is given it, nor the number of the dead.
    session.begin().unwrap().sweep_object(block).unwrap();
    assert_eq!(session.free_ended().unwrap(), 0);
    let alloc = |session: &Session| -> pram::Result<u64> {
        let mut op = session.begin()?;
        let mut tx = op.tx()?;
        let block = tx.alloc_block(1, [2, 3])?;
        tx.commit()?;
        Ok(block)
    };
    let taken: Vec<u64> = std::iter::from_fn(|| alloc(&session).ok()).collect();
    assert!(!taken.is_empty() && !taken.contains(&block));
    let another = rig::attach(&path).unwrap();
    let numbers: Vec<u32> = session.runtime().sessions().iter().map(|s| s.index).collect();
    assert_eq!(numbers, [0, 2]);
    drop(another);

    goes_on.kill();
    assert!(!session.may_others_transfer().unwrap());
    assert_eq!(session.free_ended().unwrap(), 1);
    assert_eq!(alloc(&session).unwrap(), block);
    let another = rig::attach(&path).unwrap();
    assert_eq!(session.runtime().sessions()[1].index, 1);
    drop(another);
}

#[test]
fn who_comes_when_all_have_died_waits_for_their_transfers() {
    const TEST: &str = "who_comes_when_all_have_died_waits_for_their_transfers";
    if let Some((part, path)) = part() {
        be_killed_in_a_transfer(&part, &path);
    }
    let (_dir, path) = region_file(MIB);
    let (goes_on, block) = killed_in_a_transfer(TEST, &path);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            ended.store(true, Ordering::SeqCst);
            goes_on.kill();
        });
        let session = rig::attach(&path).unwrap();
        assert!(ended.load(Ordering::SeqCst), "it has not waited");
        session.begin().unwrap().sweep_object(block).unwrap();
        assert!(!session.memory().is_allocated(block).unwrap_or(false));
    });
}

/// Frees what is referred to and sweeps the rest; then one run can have the whole memory.
fn every_chunk_is_usable_again(session: &Session) {
    let memory = session.memory();
    for off in (memory.geo.heap()..memory.geo.chunk(memory.chunks_end())).step_by(16) {
        if memory.is_allocated(off).unwrap_or(false) {
            session.begin().unwrap().sweep_object(off).unwrap();
        }
    }
    assert_eq!(memory.allocated_bytes().unwrap(), 0);
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.alloc(Tag(1), memory.chunks().count() as u64 * pram::CHUNK).expect("no chunk was lost with the dead");
    drop(tx);
    for n in 0..PAIRS {
        set_word(&mut op, 200 + n, 0);
    }
}
