//! Guests: pools opened beside a process that does the background work.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conquest::{Caller, Durability, Error, FormatOptions, MediumKind, NewDisk, OpenOptions, Pool};
use conquest_fs::path::{Open, View};

use crate::modes::{content, exists, Home};

const MIB: usize = 1 << 20;

fn guest(dir: &Path) -> conquest::Result<Pool> {
    Pool::open(dir, &OpenOptions { guest: true, ..OpenOptions::default() })
}

fn root(pool: &Pool) -> View<'_> {
    View::new(pool, Caller::root())
}

fn write(pool: &Pool, path: &str) -> conquest::Result<()> {
    root(pool).create(path.as_bytes(), 0o600)?.write_all_at(path.as_bytes(), 0)
}

#[track_caller]
fn is_unattended<T>(done: conquest::Result<T>) {
    assert!(matches!(done.map(drop), Err(Error::Unattended)));
}

#[test]
fn a_guest_needs_a_process_that_does_the_background_work() {
    for medium in [MediumKind::Logged, MediumKind::Battery] {
        let home = Home::new(medium);
        is_unattended(guest(&home.pool()));
        // One that looks does none.
        let looks = Pool::look(home.pool()).unwrap();
        drop(looks);
        let reads = Pool::open(home.pool(), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        is_unattended(guest(&home.pool()));
        let works = home.open(Durability::Fsync);
        let pool = guest(&home.pool()).unwrap();
        write(&pool, "a").unwrap();
        assert_eq!(content(&works, "a"), b"a");
        write(&works, "b").unwrap();
        assert_eq!(content(&pool, "b"), b"b");
        drop(works);
        is_unattended(write(&pool, "c"));
        assert_eq!(content(&pool, "b"), b"b", "it still reads");
        drop((pool, reads));
    }
}

#[test]
fn what_a_guest_waits_for_is_durable() {
    let home = Home::new(MediumKind::Logged);
    let works = home.open(Durability::Fsync);
    let pool = guest(&home.pool()).unwrap();
    write(&pool, "a").unwrap();
    pool.sync().unwrap();
    home.after_power_cut(|found| assert_eq!(content(found, "a"), b"a"));
    let strict = OpenOptions { guest: true, durability: Durability::Strict, ..OpenOptions::default() };
    let strict = Pool::open(home.pool(), &strict).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let strict = &strict;
            scope.spawn(move || (0..10).for_each(|n| write(strict, &format!("{thread}-{n}")).unwrap()));
        }
    });
    write(&pool, "b").unwrap();
    home.after_power_cut(|found| {
        assert!((0..40).all(|n| exists(found, &format!("{}-{}", n / 10, n % 10))) && !exists(found, "b"));
    });
    drop((pool, strict, works));
}

/// `fsync` of a file's directory after that of the file, as databases call it.
#[test]
fn waiting_for_what_is_durable_takes_no_commit() {
    let home = Home::new(MediumKind::Logged);
    let works = home.open(Durability::Fsync);
    let pool = guest(&home.pool()).unwrap();
    let commits = || works.session().runtime().backing_commits().0;
    for who in [&works, &pool] {
        write(who, "a").unwrap();
        let before = commits();
        who.sync().unwrap();
        assert!(commits() > before);
        home.after_power_cut(|found| assert_eq!(content(found, "a"), b"a"));
        // The background may change something meanwhile.
        let takes_none = |_: &usize| {
            let before = commits();
            who.sync().unwrap();
            commits() == before
        };
        assert!((0..100).find(takes_none).is_some());
    }
    drop((pool, works));
}

#[test]
fn the_last_process_that_works_commits_for_guests_when_it_leaves() {
    let home = Home::new(MediumKind::Logged);
    let (works, other) = (home.open(Durability::Fsync), home.open(Durability::Fsync));
    let pool = guest(&home.pool()).unwrap();
    write(&pool, "a").unwrap();
    drop(works);
    home.after_power_cut(|found| assert!(!exists(found, "a"), "the other one goes on"));
    write(&pool, "b").unwrap();
    drop(other);
    home.after_power_cut(|found| assert!(exists(found, "a") && exists(found, "b")));
    let start = Instant::now();
    is_unattended(write(&pool, "c"));
    pool.sync().expect("all that it can read is durable");
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(exists(&pool, "b") && !exists(&pool, "c"));
    // Whoever comes next goes on, with the guest and without it.
    let works = home.open(Durability::Fsync);
    write(&pool, "d").unwrap();
    drop((works, pool));
    let works = home.open(Durability::Fsync);
    assert!(exists(&works, "d") && !exists(&works, "c"));
    assert_eq!(works.fsck(false, &mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_guest_that_is_left_alone_loses_nothing() {
    let home = Home::new(MediumKind::Logged);
    let works = home.open(Durability::Fsync);
    let pool = guest(&home.pool()).unwrap();
    write(&pool, "a").unwrap();
    drop(works);
    drop(pool);
    let works = home.open(Durability::Fsync);
    assert_eq!(content(&works, "a"), b"a");
    assert_eq!(works.fsck(false, &mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Does a thread of this name precede all threads of ordinary priority?
fn comes_first(name: &str) -> bool {
    let of = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let is_first = |task: &Path| of(task, "stat").split(' ').nth_back(11) == Some(&libc::SCHED_RR.to_string());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    tasks.into_iter().any(|task| of(&task, "comm").trim_end() == name && is_first(&task))
}

/// Else each of them waits for the time slices of other programs.
#[test]
fn who_commits_for_guests_comes_first_where_no_processor_is_idle() {
    let may = std::thread::Builder::new().name("may".into()).spawn(|| {
        pram::priority::come_first();
        comes_first("may")
    });
    if !may.unwrap().join().unwrap() {
        println!("needs a real-time priority");
        return;
    }
    let home = Home::new(MediumKind::Logged);
    let interval = "0.2".parse().ok();
    let works = Pool::open(home.pool(), &OpenOptions { commit_interval: interval, ..OpenOptions::default() }).unwrap();
    let pool = guest(&home.pool()).unwrap();
    let (is_over, start) = (AtomicBool::new(false), Instant::now());
    let wait = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        }
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for _ in 0..=std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        wait("it comes first for a guest", &mut || {
            write(&pool, "a").and_then(|()| pool.sync()).unwrap();
            comes_first("commit")
        });
        wait("nobody waits for a commit in its time", &mut || {
            write(&works, "b").unwrap();
            std::thread::sleep(Duration::from_millis(50));
            !comes_first("commit")
        });
    });
    drop((pool, works));
}

/// Ends the threads of a scope that look at it, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Descriptors of this process for what belongs to the pool in `dir`.
fn descriptors(dir: &Path) -> Vec<(i32, String)> {
    let uuid = std::fs::read_to_string(dir.join("pool.toml")).unwrap();
    let uuid = uuid.lines().find_map(|line| line.strip_prefix("uuid = ")).unwrap().replace(['"', '-'], "");
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = all.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
    });
    named.filter(|(_, path)| path.contains(&uuid) || Path::new(path).starts_with(dir)).collect()
}

#[test]
fn a_guest_keeps_few_descriptors_and_none_of_low_numbers() {
    for medium in [MediumKind::Logged, MediumKind::Battery] {
        let home = Home::new(medium);
        let _works = home.open(Durability::Fsync);
        let before = descriptors(&home.pool());
        let pool = guest(&home.pool()).unwrap();
        write(&pool, "a").unwrap();
        pool.sync().unwrap();
        let own: Vec<_> = descriptors(&home.pool()).into_iter().filter(|found| !before.contains(found)).collect();
        assert!(own.len() <= 4 && own.iter().all(|(number, _)| *number >= 900), "{own:?}");
        let parts = ["-region", "-marks", "image", "nvram"];
        let is_known = |path: &str| parts.iter().any(|part| path.ends_with(part)) || path.contains("/conquest-");
        assert!(own.iter().all(|(_, path)| is_known(path)), "{own:?}");
        drop(pool);
        assert_eq!(descriptors(&home.pool()), before);
    }
}

#[test]
fn content_that_lies_on_disk_is_left_to_others() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = home.path().join("pool");
    let disk = NewDisk { path: "disk".into(), size: Some(96 << 20) };
    Pool::format(
        &dir,
        &FormatOptions { regions: vec![disk.into()], ..FormatOptions::on(MediumKind::Battery, 24 << 20) },
    )
    .unwrap();
    let works = Pool::open(&dir, &OpenOptions::default()).unwrap();
    let pool = guest(&dir).unwrap();
    // More than the memory holds: room is made for the guest.
    let piece: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
    let file = root(&pool).open(b"large", Open::new().read(true).write(true).create(true).mode(0o600)).unwrap();
    (0..48).for_each(|n| file.write_all_at(&piece, (n * MIB) as u64).unwrap());
    let mut found = vec![0; MIB];
    let mut on_disk = 0;
    for n in 0..48 {
        match file.read_at(&mut found, (n * MIB) as u64) {
            Ok(read) => assert!(read == MIB && found == piece),
            Err(Error::OnDisk) => on_disk += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(on_disk > 0, "memory has no room for all of it");
    let there = root(&works).open(b"large", Open::new().read(true)).unwrap();
    for n in 0..48 {
        assert!(there.read_at(&mut found, (n * MIB) as u64).unwrap() == MIB && found == piece);
    }
    drop((there, file));
    drop(pool);
    assert_eq!(works.fsck(false, &mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// A child of this process, by `fork`, that sleeps until the test ends.
struct Forked(i32);

impl Forked {
    fn new() -> Forked {
        // SAFETY: the child makes system calls alone.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            },
            child => Forked(child),
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: system calls; the child has not been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// It had the locks of the backing: nobody could open the pool while it lived.
#[test]
fn a_forked_child_keeps_nobody_from_the_pool_that_its_parent_had_open() {
    let home = Home::new(MediumKind::Logged);
    let works = home.open(Durability::Fsync);
    write(&works, "a").unwrap();
    let child = Forked::new();
    drop(works);
    let start = Instant::now();
    let works = home.open(Durability::Fsync);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(content(&works, "a"), b"a");
    drop((works, child));
}
