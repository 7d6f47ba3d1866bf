//! What a program changes directly, beside a mount whose kernel knows it: the mount is never behind, and after one recall the
//! changes cost no event.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use conquest::{Pool, SetAttr, SetTime, Time};
use conquest_fs::node::Rename;
use conquest_fs::path::{Open, View};
use rustix::mm::ProtFlags;

use crate::beside::{close, lab, root};
use crate::page_cache::Mapping;
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("delegation::changes_of_a_recalled_directory_cost_no_event", directory),
    ("delegation::files_that_nobody_uses_are_forgotten_together", forgotten),
    ("delegation::changes_of_a_file_in_use_cost_no_event", file_in_use),
    ("delegation::a_directory_and_a_file_are_taken_back", taken_back),
    ("delegation::a_mount_is_never_behind", never_behind),
    ("delegation::what_is_mounted_below_stays", mounted_below),
];

fn make(view: &View, name: &str) {
    view.create(name.as_bytes(), 0o644).and_then(|file| file.write_all_at(b"text", 0)).expect("create");
}

/// How many events `act` costs.
fn events(pool: &Pool, act: impl FnOnce()) -> u64 {
    let before = pool.session().events();
    act();
    pool.session().events() - before
}

/// The names that a directory lists.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("list").map(|entry| entry.expect("entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Names that come and go, while the mount looks at each, and at the directory.
fn directory() -> Outcome {
    let (lab, pool) = lab();
    let (view, dir) = (root(&pool), lab.mnt().join("d"));
    view.mkdir(b"d", 0o755).expect("mkdir");
    for n in 0..100 {
        assert!(!dir.join(format!("new{n}")).exists(), "it knows that there is no such name");
    }
    names(&dir);
    let first = events(&pool, || make(&view, "d/first"));
    assert!((1..=2).contains(&first), "{first} events for the first change");
    let more = events(&pool, || {
        for n in 0..100 {
            let (name, by) = (format!("d/new{n}"), format!("d/by{n}"));
            make(&view, &name);
            view.rename(name.as_bytes(), by.as_bytes(), Rename::Replace).expect("rename");
            view.rename(by.as_bytes(), name.as_bytes(), Rename::Replace).expect("rename");
            assert_eq!(names(&dir.join("..")), ["d"]);
            assert!(!lab.mnt().join(&by).exists(), "{by}: gone");
        }
    });
    // A listing that shows a new name has the kernel know the file; and a rename of it is an event.
    assert!(more < 20, "{more} events for 300 changes");
    for n in 0..100 {
        assert!(dir.join(format!("new{n}")).exists(), "{n}");
        view.mkdir(format!("d/x{n}").as_bytes(), 0o755).expect("mkdir");
        assert_eq!(dir.metadata().expect("stat").nlink(), 3 + n, "{n}");
    }
    assert_eq!(names(&dir).len(), 201);
    close(&lab, pool);
    Ok(())
}

/// `ls -l`, and then `rm *` by a program: each file was an event, or two.
fn forgotten() -> Outcome {
    const FILES: u64 = 2000;
    let (lab, pool) = lab();
    let (view, dir) = (root(&pool), lab.mnt().join("d"));
    view.mkdir(b"d", 0o755).expect("mkdir");
    (0..FILES).for_each(|n| make(&view, &format!("d/f{n}")));
    let listed = names(&dir);
    assert!(listed.iter().all(|name| dir.join(name).metadata().expect("stat").len() == 4));
    let cost =
        events(&pool, || listed.iter().for_each(|name| view.unlink(format!("d/{name}").as_bytes()).expect("unlink")));
    assert!(listed.iter().all(|name| !dir.join(name).exists()));
    println!("note: {cost} events for {FILES} files that the kernel knew");
    assert!(cost < FILES / 4, "{cost} events");
    close(&lab, pool);
    Ok(())
}

/// A file that somebody has open through the mount, and does not read.
fn file_in_use() -> Outcome {
    let (lab, pool) = lab();
    let view = root(&pool);
    make(&view, "f");
    let there = File::open(lab.mnt().join("f")).expect("open");
    let word = || {
        let mut word = [0; 4];
        there.read_exact_at(&mut word, 0).expect("read");
        word
    };
    assert_eq!(&word(), b"text");
    let here = view.open(b"f", Open::new().write(true)).expect("open");
    let write = |n: u32| here.write_all_at(&n.to_ne_bytes(), 0).expect("write");
    assert_eq!(events(&pool, || write(0)), 1);
    let set = |sec: i64| {
        let time = Some(SetTime::At(Time(sec * 1_000_000_000)));
        view.setattr(b"f", &SetAttr { mtime: time, ..SetAttr::default() }).expect("utimens");
    };
    let more = events(&pool, || {
        for n in 1..500 {
            write(n);
            set(n.into());
            assert_eq!(there.metadata().expect("stat").mtime(), i64::from(n), "{n}");
        }
    });
    assert!(more < 5, "{more} events for 998 changes");
    let read = events(&pool, || {
        for n in 0..50u32 {
            write(n);
            assert_eq!(word(), n.to_ne_bytes());
        }
    });
    assert!((49..=50).contains(&read), "what the kernel has read is recalled each time: {read} events");
    drop((here, there));
    close(&lab, pool);
    Ok(())
}

/// When nobody has changed it for a while, the kernel keeps it again: it asks no more.
fn taken_back() -> Outcome {
    let (lab, pool) = lab();
    let (view, dir) = (root(&pool), lab.mnt().join("d"));
    view.mkdir(b"d", 0o755).expect("mkdir");
    assert!(!dir.join("a").exists());
    make(&view, "d/first");
    assert_eq!(events(&pool, || make(&view, "d/second")), 0);
    // The kernel asks, and is answered at last that it may keep what it was told.
    let start = Instant::now();
    let kept = || {
        dir.metadata().expect("stat");
        assert!(!dir.join("a").exists());
        events(&pool, || make(&view, "d/a")) == 1
    };
    let mut tries = 0;
    while !kept() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not taken back");
        tries += 1;
        assert!(dir.join("a").exists(), "{tries}");
        view.unlink(b"d/a").expect("unlink");
        let until = Instant::now() + Duration::from_millis(1300);
        while Instant::now() < until {
            assert!(!dir.join("a").exists(), "{tries}");
            dir.metadata().expect("stat");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(dir.join("a").exists());
    assert_eq!(events(&pool, || make(&view, "d/b")), 0, "and recalled again");
    close(&lab, pool);
    Ok(())
}

/// Rounds that a program has begun and done.
#[derive(Default)]
struct Rounds {
    begun: AtomicU64,
    done: AtomicU64,
}

/// A program makes, moves, writes and removes; others look through the mount all the time, at names, attributes, content and
/// mappings. What they see is never older than what was done when they began to look.
fn never_behind() -> Outcome {
    let (lab, pool) = lab();
    let (view, mnt) = (root(&pool), lab.mnt());
    view.mkdir(b"d", 0o755).expect("mkdir");
    let file = view.create(b"d/word", 0o644).expect("create");
    file.write_all_at(&[0; 4096], 0).expect("write");
    let (rounds, ended) = (Rounds::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for which in 0..3 {
            let (rounds, ended, mnt) = (&rounds, &ended, &mnt);
            scope.spawn(move || {
                let _end = End(ended);
                while !ended.load(SeqCst) {
                    match which {
                        0 => look_at_names(mnt, rounds),
                        1 => look_at_file(mnt, rounds),
                        _ => look_and_change(mnt),
                    }
                }
            });
        }
        let _end = End(&ended);
        let until = Instant::now() + Duration::from_secs(3);
        for n in 1u64.. {
            rounds.begun.store(n, SeqCst);
            make(&view, &format!("d/new{n}"));
            view.rename(format!("d/new{n}").as_bytes(), format!("d/name{n}").as_bytes(), Rename::Replace)
                .expect("rename");
            let _ = view.unlink(format!("d/name{}", n - 1).as_bytes());
            file.write_all_at(&n.to_ne_bytes(), 0).expect("write");
            let time = Some(SetTime::At(Time(n as i64 * 1_000_000_000)));
            view.setattr(b"d/word", &SetAttr { mtime: time, ..SetAttr::default() }).expect("utimens");
            rounds.done.store(n, SeqCst);
            if Instant::now() > until || ended.load(SeqCst) {
                break;
            }
            // Now and then long enough to be taken back.
            if n % 2000 == 0 {
                std::thread::sleep(Duration::from_millis(1100));
            }
        }
    });
    println!("note: {} rounds, {} events", rounds.done.load(SeqCst), pool.session().events());
    drop(file);
    close(&lab, pool);
    Ok(())
}

/// The others end also when one fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn look_at_names(mnt: &Path, rounds: &Rounds) {
    let done = rounds.done.load(SeqCst);
    let name = |what: &str, n: u64| mnt.join(format!("d/{what}{n}"));
    let (is_there, was_made) = (name("name", done).exists(), name("new", done).exists());
    let next = name("name", done + 2).exists();
    let begun = rounds.begun.load(SeqCst);
    if done > 0 {
        assert!(!was_made, "round {done}: it has another name by now");
        assert!(is_there || begun > done, "round {done}: its file");
        assert!(!name("name", done - 1).exists(), "round {done}: the file of the one before is gone");
    }
    assert!(!next || begun >= done + 2, "round {done}");
    let later = rounds.done.load(SeqCst);
    let listed = names(&mnt.join("d")).iter().any(|name| *name == format!("name{later}"));
    assert!(later == 0 || listed || rounds.begun.load(SeqCst) > later, "round {later}: it is listed");
}

fn look_at_file(mnt: &Path, rounds: &Rounds) {
    let file = File::open(mnt.join("d/word")).expect("open");
    for n in 0..20 {
        let done = rounds.done.load(SeqCst);
        let time = file.metadata().expect("stat").mtime() as u64;
        assert!(time >= done || time > 1 << 30, "its time is {time} after {done}");
        // Where it is not read, it stays recalled.
        if n > 10 {
            let (done, mut word) = (rounds.done.load(SeqCst), [0; 8]);
            file.read_exact_at(&mut word, 0).expect("read");
            let seen = u64::from_ne_bytes(word);
            assert!(seen >= done, "read {seen} after {done}");
        }
        if n == 15 {
            let mapped = Mapping::of(&file, 4096, ProtFlags::READ);
            for _ in 0..100 {
                let done = rounds.done.load(SeqCst);
                let seen = mapped.word(0).load(SeqCst);
                assert!(seen >= done, "mapped {seen} after {done}");
            }
        }
    }
}

/// The mount's own changes in the same directory.
fn look_and_change(mnt: &Path) {
    let (mine, by) = (mnt.join("d/mine"), mnt.join("d/by"));
    std::fs::write(&mine, b"mine").expect("write");
    assert!(mine.exists() && !by.exists());
    std::fs::rename(&mine, &by).expect("rename");
    assert!(!mine.exists() && by.exists());
    assert_eq!(std::fs::read(&by).expect("read"), b"mine");
    std::fs::remove_file(&by).expect("unlink");
    assert!(!mine.exists() && !by.exists());
}

/// Recalling a directory does not take other file systems away that are mounted there.
fn mounted_below() -> Outcome {
    let (lab, pool) = lab();
    let view = root(&pool);
    view.mkdir(b"d", 0o755).and_then(|_| view.mkdir(b"d/below", 0o755)).expect("mkdir");
    make(&view, "d/file");
    let (below, file) = (lab.mnt().join("d/below"), lab.mnt().join("d/file"));
    std::fs::write(lab.path("over"), "over").expect("write");
    let mount = |args: &[&str]| crate::lab::ok(&mut crate::lab::program("mount", args));
    mount(&["-t", "tmpfs", "none", below.to_str().expect("text")]);
    mount(&["--bind", &lab.text("over"), file.to_str().expect("text")]);
    std::fs::write(below.join("in it"), "here").expect("write");
    assert!(!lab.mnt().join("d/new").exists());
    for n in 0..20 {
        make(&view, &format!("d/new{n}"));
        view.unlink(format!("d/new{n}").as_bytes()).expect("unlink");
    }
    make(&view, "d/new");
    assert!(lab.mnt().join("d/new").exists());
    let seen = (std::fs::read(below.join("in it")).ok(), std::fs::read(&file).ok());
    let unmount = |at: &Path| crate::lab::ok(&mut crate::lab::program("umount", &[at.to_str().expect("text")]));
    assert_eq!(seen, (Some(b"here".to_vec()), Some(b"over".to_vec())));
    unmount(&below);
    unmount(&file);
    close(&lab, pool);
    Ok(())
}
