//! Threads and processes in the same places, with sweeps and checks beside them.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conquest::{OpenOptions, Pool};
use conquest_fs::node::Rename;
use conquest_fs::path::{Open, View};
use rng::Rng;

use crate::rig::*;

const PART: &str = "CONQUEST_TEST_PART";
const POOL: &str = "CONQUEST_TEST_POOL";

/// This test program again, playing a part in `test`; killed when dropped.
struct Player(Child);

impl Player {
    fn start(test: &str, part: u64, dir: &std::path::Path) -> Player {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("concurrency::{test}"), "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part.to_string())
            .env(POOL, dir)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Player(child)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
    }
}

fn part() -> Option<(u64, Pool)> {
    let part = std::env::var(PART).ok()?.parse().unwrap();
    let dir = std::env::var_os(POOL).unwrap();
    Some((part, Pool::open(dir, &OpenOptions::default()).unwrap()))
}

/// Creates, replaces, renames, reads and removes files of its own beside others'; each holds its name.
fn own_files(v: &View, me: u64, until: &dyn Fn() -> bool) {
    let mut rng = Rng::new(me);
    let content = |name: &str, n: u64| format!("{name}:").repeat(1 + n as usize).into_bytes();
    let mut there = std::collections::HashMap::new();
    while until() {
        let name = format!("w{}/{me}-{}", rng.below(3), rng.below(40));
        match rng.below(6) {
            0 | 1 => {
                let n = rng.below(600);
                put(v, &name, &content(&name, n)).unwrap();
                there.insert(name, n);
            }
            2 => {
                let removed = v.unlink(name.as_bytes());
                assert_eq!(removed.is_ok(), there.remove(&name).is_some(), "{name}: {removed:?}");
            }
            3 => {
                let new = format!("w{}/{me}-{}", rng.below(3), rng.below(40));
                if let Some(n) = there.remove(&name) {
                    let temporary = format!("w0/{me}-new");
                    put(v, &temporary, &content(&new, n)).unwrap();
                    v.unlink(name.as_bytes()).unwrap();
                    v.rename(temporary.as_bytes(), new.as_bytes(), Rename::Replace).unwrap();
                    there.insert(new, n);
                }
            }
            4 => {
                // Fails: the inode reserved for it is given back.
                let made = v.open(name.as_bytes(), Open::new().write(true).create(true).create_new(true));
                assert_eq!(made.is_err(), there.contains_key(&name));
                if made.is_ok() {
                    there.insert(name, 0);
                    continue;
                }
            }
            _ => {}
        }
        let name = format!("w{}/{me}-{}", rng.below(3), rng.below(40));
        match (get(v, &name), there.get(&name)) {
            (Ok(got), Some(n)) => {
                assert!(got == content(&name, *n) || got.is_empty(), "{name} holds another's content")
            }
            (Err(e), None) => assert_eq!(e.errno(), rustix::io::Errno::NOENT),
            (got, want) => panic!("{name}: {got:?}, should be {want:?}"),
        }
    }
}

fn playground(pool: &Pool) {
    for d in 0..3 {
        root(pool).mkdir(format!("w{d}").as_bytes(), 0o777).unwrap();
    }
}

/// A sweep took reservations of operations under way for leaked ones, if the number had been reserved
/// before: two files then shared an inode.
#[test]
fn a_sweep_leaves_reservations_to_who_made_them() {
    let _dog = Watchdog::start("reserving beside sweeps", Duration::from_secs(60));
    let (_dir, pool) = pool(2 * MIB);
    let v = root(&pool);
    put(&v, "there", b"").unwrap();
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|s| {
        for me in 0..3 {
            s.spawn(move || {
                let name = format!("mine{me}");
                let exclusive = Open::new().write(true).create(true).create_new(true);
                while Instant::now() < end {
                    // The number is reserved and given back, and reserved again at once.
                    assert!(v.open(b"there", exclusive).is_err());
                    let mine = v.open(name.as_bytes(), exclusive).unwrap();
                    mine.write_all_at(name.as_bytes(), 0).unwrap();
                    assert_eq!(get(&v, &name).unwrap(), name.as_bytes());
                    v.unlink(name.as_bytes()).unwrap();
                    assert_eq!(mine.attr().unwrap().nlink, 0);
                }
            });
        }
        while Instant::now() < end {
            pool.sweep().unwrap();
        }
    });
    assert_tidy(&pool);
}

#[test]
fn sweeps_and_checks_take_nothing_from_who_works_meanwhile() {
    let _dog = Watchdog::start("sweeping beside work", Duration::from_secs(60));
    let (_dir, pool) = pool(32 * MIB);
    playground(&pool);
    let v = root(&pool);
    let end = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|s| {
        for me in 0..3 {
            s.spawn(move || own_files(&v, me, &|| Instant::now() < end));
        }
        let mut rounds = 0;
        while Instant::now() < end {
            let (objects, _) = pool.sweep().expect("no false alarm");
            assert_eq!(objects, 0, "nothing leaks");
            if rounds % 4 == 0 {
                assert_clean(&pool);
            }
            rounds += 1;
        }
        assert!(rounds > 0, "{rounds} sweeps");
    });
    assert_tidy(&pool);
}

/// A reader that gave up reading without locks took the directory's lock, and a slot, and with them in hand
/// waited for the lock of the named inode; a freeze waited for it, and it for the thaw.
#[test]
fn a_crowded_directory_comes_to_no_standstill() {
    let _dog = Watchdog::start("a crowded directory", Duration::from_secs(60));
    // Few slots, as a tiny pool has.
    let (_dir, pool) = pool(MIB);
    let v = root(&pool);
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|s| {
        for me in 0..4u64 {
            s.spawn(move || {
                let mut rng = Rng::new(me);
                while Instant::now() < end {
                    let (a, b) = (format!("{}", rng.below(4)), format!("{}", rng.below(4)));
                    let _ = match rng.below(4) {
                        0 => v.unlink(a.as_bytes()),
                        1 => v.rename(a.as_bytes(), b.as_bytes(), Rename::Replace),
                        2 => v.link(a.as_bytes(), b.as_bytes()).map(|_| ()),
                        _ => v.create(a.as_bytes(), 0o644).map(|_| ()),
                    };
                }
            });
        }
        for me in 0..4u64 {
            let pool = &pool;
            s.spawn(move || {
                let mut rng = Rng::new(me + 100);
                while Instant::now() < end {
                    let name = format!("{}", rng.below(4));
                    let _ = v.stat(name.as_bytes());
                    let _ = v.open(name.as_bytes(), Open::new().read(true));
                    let _ = pool.lookup(conquest_fs::ROOT, b"..", &conquest_fs::Caller::root()).unwrap();
                }
            });
        }
        while Instant::now() < end {
            drop(pool.session().freeze().unwrap());
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    assert_tidy(&pool);
}

#[test]
fn processes_share_directories_and_die_in_them() {
    if let Some((me, pool)) = part() {
        // Open and without name when death comes.
        let v = root(&pool);
        let name = format!("w0/{me}-open");
        let file = v.create(name.as_bytes(), 0o644).unwrap();
        file.write_all_at(&vec![8; 100_000], 0).unwrap();
        v.unlink(name.as_bytes()).unwrap();
        own_files(&v, me, &|| true);
        return;
    }
    let _dog = Watchdog::start("processes that die", Duration::from_secs(90));
    let (dir, pool) = pool(64 * MIB);
    playground(&pool);
    let v = root(&pool);
    let mut rng = Rng::new(5);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let survivor = s.spawn(|| own_files(&v, 99, &|| !stop.load(Ordering::Relaxed)));
        for round in 0..8 {
            let mut players: Vec<Player> = (0..2)
                .map(|n| Player::start("processes_share_directories_and_die_in_them", round * 2 + n, dir.path()))
                .collect();
            std::thread::sleep(Duration::from_millis(150 + rng.below(200)));
            for player in &mut players {
                assert!(player.0.try_wait().unwrap().is_none(), "ended by itself: a check in it failed");
                player.kill();
            }
            assert_clean(&pool);
        }
        stop.store(true, Ordering::Relaxed);
        survivor.join().unwrap();
    });
    eventually("maintenance ends what the dead had open, and sweeps", || {
        let report = pool.fsck(false, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        report.orphans == 0 && report.leaked_objects == 0
    });
    assert!(walk(&v, "", 2).unwrap().iter().all(|(path, _)| !path.ends_with("-open")));
    delete_all(&v, "");
    pool.sweep().unwrap();
    assert_tidy(&pool);
}

/// The process with the role of maintenance dies; another takes over and cleans up after it.
#[test]
fn the_role_of_maintenance_passes_on() {
    if let Some((_, pool)) = part() {
        let v = root(&pool);
        let file = v.create(b"w0/ready", 0o644).unwrap();
        file.write_all_at(&[1; 50_000], 0).unwrap();
        let open = v.create(b"w0/open", 0o644).unwrap();
        v.unlink(b"w0/open").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        drop(open);
        return;
    }
    let dir = format(16 * MIB);
    let first = open(&dir);
    playground(&first);
    drop(first);
    let mut player = Player::start("the_role_of_maintenance_passes_on", 0, dir.path());
    let started = Instant::now();
    let pool = loop {
        let pool = open(&dir);
        if root(&pool).stat(b"w0/ready").is_ok_and(|a| a.size > 0) && started.elapsed() > Duration::from_millis(2500) {
            break pool;
        }
        drop(pool);
        std::thread::sleep(Duration::from_millis(50));
        assert!(started.elapsed() < Duration::from_secs(30));
    };
    assert!(!pool.session().try_maintenance(), "the other process has the role");
    player.kill();
    eventually("this process takes over", || {
        let report = assert_clean(&pool);
        report.orphans == 0 && report.leaked_objects == 0 && pool.session().runtime().sessions().len() == 1
    });
}

/// Waits until the child has made the file `name`.
fn wait_for(v: &View, name: &str) {
    eventually(name, || v.stat(name.as_bytes()).is_ok());
}

/// Each death was followed by a sweep of the whole pool, also of a process that had only looked.
#[test]
fn who_dies_with_nothing_in_hand_leaves_nothing_to_sweep() {
    const TEST: &str = "who_dies_with_nothing_in_hand_leaves_nothing_to_sweep";
    if let Some((_, pool)) = part() {
        let v = root(&pool);
        (0..200).for_each(|n| put(&v, &format!("f{n}"), &[1; 3000]).unwrap());
        let _open = v.open(b"f1", Open::new().read(true)).unwrap();
        v.unlink(b"f2").unwrap();
        put(&v, "ready", b"").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
    let (dir, pool) = pool(8 * MIB);
    let mut player = Player::start(TEST, 0, dir.path());
    wait_for(&root(&pool), "ready");
    player.kill();
    eventually("it is noticed", || pool.session().reap().is_ok() && pool.session().runtime().sessions().len() == 1);
    assert!(!pool.session().runtime().leaks_pending());
    assert_tidy(&pool);
}

#[test]
fn who_dies_with_the_last_reference_is_followed_by_a_sweep() {
    const TEST: &str = "who_dies_with_the_last_reference_is_followed_by_a_sweep";
    if let Some((part, pool)) = part() {
        let v = root(&pool);
        put(&v, "file", &[1; 3000]).unwrap();
        let ino = v.stat(b"file").unwrap().ino;
        pool.retain(ino, 1).unwrap();
        if part == 1 {
            v.unlink(b"file").unwrap();
        }
        let _nameless =
            (part == 2).then(|| pool.tmpfile(conquest_fs::ROOT, 0o600, &conquest_fs::Caller::root()).unwrap());
        put(&v, "ready", b"").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
    for part in 0..3 {
        let (dir, pool) = pool(8 * MIB);
        let v = root(&pool);
        let mut player = Player::start(TEST, part, dir.path());
        wait_for(&v, "ready");
        if part == 0 {
            v.unlink(b"file").unwrap();
        }
        assert_eq!(assert_clean(&pool).orphans, 0, "it is referred to");
        player.kill();
        eventually("what it left is swept", || {
            assert_clean(&pool).orphans == 0 && pool.session().reap().is_ok() && {
                pool.session().runtime().sessions().len() == 1 && !pool.session().runtime().leaks_pending()
            }
        });
        assert_tidy(&pool);
    }
}

/// Killed at any moment: either a sweep is due, or nothing is left for one.
#[test]
fn no_death_leaves_what_nobody_sweeps() {
    const TEST: &str = "no_death_leaves_what_nobody_sweeps";
    if let Some((me, pool)) = part() {
        let v = root(&pool);
        put(&v, &format!("ready{me}"), b"").unwrap();
        let big = vec![7; 24 << 20];
        loop {
            put(&v, "large", &big).unwrap();
            let open = v.open(b"large", Open::new().read(true)).unwrap();
            match me % 2 {
                0 => v.unlink(b"large").unwrap(),
                _ => _ = v.setattr(b"large", &conquest_fs::SetAttr { size: Some(5), ..Default::default() }).unwrap(),
            }
            drop(open);
            (0..20).for_each(|n| put(&v, &format!("small{n}"), &[1; 300]).unwrap());
            (0..20).for_each(|n| v.unlink(format!("small{n}").as_bytes()).unwrap());
        }
    }
    let dir = format(64 * MIB);
    let watching = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (mut due, mut tidy) = (0, 0);
    for me in 0..240 {
        if me >= 24 && due > 0 {
            break;
        }
        // It has no maintenance that would sweep in between.
        let pool = Pool::open(dir.path(), &watching).unwrap();
        let mut player = Player::start(TEST, me, dir.path());
        wait_for(&root(&pool), &format!("ready{me}"));
        // On a busy machine a process needs longer to come as far: then later deaths have more time before them.
        std::thread::sleep(Duration::from_micros(7919 * (me + 1) % 60_000 * (1 + me / 24)));
        player.kill();
        eventually("it is noticed", || pool.session().reap().is_ok() && pool.session().runtime().sessions().len() == 1);
        match pool.session().runtime().leaks_pending() {
            true => due += 1,
            false => {
                assert_tidy(&pool);
                tidy += 1;
            }
        }
        pool.sweep().unwrap();
        assert_tidy(&pool);
        let made: Vec<_> = root(&pool).read_dir(b"").unwrap().map(Result::unwrap).collect();
        drop(pool);
        let pool = open(&dir);
        for entry in made {
            root(&pool).unlink(&entry.name).unwrap();
        }
    }
    assert!(due > 0, "{due} due, {tidy} tidy");
}
