//! The kernel's cache of files is never older than the last write, even after writes past the cache (O_DIRECT).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

use crate::lab::{self, program, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("page_cache::readers_see_what_was_written", readers_see_what_was_written),
    ("page_cache::a_file_is_read_whole_however_it_was_written", read_whole_however_written),
    ("page_cache::who_looks_does_not_undo_what_is_appended", who_looks_undoes_nothing),
    ("page_cache::what_is_stored_beside_a_copy_stays", stored_beside_copy),
    ("page_cache::copies_have_what_was_stored", copies_have_stores),
    ("page_cache::an_image_has_what_was_stored", image_has_stores),
    ("page_cache::listings_are_as_new_as_the_directory", listings),
    ("page_cache::links_are_counted_right_while_others_look", links),
    ("page_cache::a_write_takes_capabilities", a_write_takes_capabilities),
];

const PAGE: usize = 4096;
const PAGES: usize = 4;
/// The second half of each page is for stores through a mapping.
const HALF: usize = PAGE / 2;

/// One thread writes; others read the file, by read and by mapping, and change the other half of the same pages.
fn readers_see_what_was_written() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("64M");
        lab.mount_with(&format!("transport={transport}"));
        let path = lab.mnt().join("shared");
        let file = File::create(&path).expect("create");
        file.set_len((PAGES * PAGE) as u64).expect("truncate");
        let (written, ended) = ([const { AtomicU64::new(0) }; PAGES], AtomicBool::new(false));
        let stored = std::thread::scope(|scope| {
            scope.spawn(|| read(&path, &written, &ended));
            scope.spawn(|| look(&path, &written, &ended));
            let stores = scope.spawn(|| store(&path, &ended));
            let end = End(&ended);
            write(file, &written);
            drop(end);
            stores.join().expect("the one who stores")
        });
        for (page, written) in written.iter().enumerate() {
            let (first, second) = (number(&path, page * PAGE), number(&path, page * PAGE + HALF));
            assert_eq!(first, written.load(SeqCst), "{transport}, page {page}: the last write");
            assert_eq!(second, stored, "{transport}, page {page}: the last store");
        }
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// Makes the other threads end, also when one fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn write(file: File, written: &[AtomicU64]) {
    let until = Instant::now() + Duration::from_secs(3);
    for n in 1u64.. {
        for (page, written) in written.iter().enumerate() {
            file.write_all_at(&n.to_ne_bytes(), (page * PAGE) as u64).expect("write");
            written.store(n, SeqCst);
        }
        if Instant::now() > until {
            return;
        }
    }
}

fn read(path: &Path, written: &[AtomicU64], ended: &AtomicBool) {
    let _end = End(ended);
    let file = File::open(path).expect("open");
    while !ended.load(SeqCst) {
        for (page, written) in written.iter().enumerate() {
            let (least, mut bytes) = (written.load(SeqCst), [0; 8]);
            file.read_exact_at(&mut bytes, (page * PAGE) as u64).expect("read");
            let seen = u64::from_ne_bytes(bytes);
            assert!(seen >= least, "page {page}: read {seen} after {least} was written");
        }
    }
}

fn look(path: &Path, written: &[AtomicU64], ended: &AtomicBool) {
    let _end = End(ended);
    let pages = Mapping::of(&File::open(path).expect("open"), PAGES * PAGE, ProtFlags::READ);
    while !ended.load(SeqCst) {
        for (page, written) in written.iter().enumerate() {
            let least = written.load(SeqCst);
            let seen = pages.word(page * PAGE).load(SeqCst);
            assert!(seen >= least, "page {page}: mapped {seen} after {least} was written");
        }
    }
}

/// Stores numbers until `ended`; returns the last one.
fn store(path: &Path, ended: &AtomicBool) -> u64 {
    let _end = End(ended);
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    let pages = Mapping::of(&file, PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE);
    for n in 1u64.. {
        for page in 0..PAGES {
            let word = pages.word(page * PAGE + HALF);
            word.store(n, SeqCst);
            assert_eq!(word.load(SeqCst), n, "page {page}: a store");
        }
        std::thread::sleep(Duration::from_micros(100));
        if ended.load(SeqCst) {
            return n;
        }
    }
    unreachable!("numbers do not end")
}

fn number(path: &Path, at: usize) -> u64 {
    let mut bytes = [0; 8];
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, at as u64)).expect("read");
    u64::from_ne_bytes(bytes)
}

/// The pages of the file, mapped shared.
pub struct Mapping {
    start: *mut std::ffi::c_void,
    len: usize,
}

impl Mapping {
    pub fn of(file: &File, len: usize, how: ProtFlags) -> Mapping {
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), len, how, MapFlags::SHARED, file, 0) }.expect("mmap");
        Mapping { start, len }
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at % 8 == 0 && at < self.len);
        // SAFETY: aligned and within the mapping, which lives as long as `self`; all use it by atomic loads and stores.
        unsafe { AtomicU64::from_ptr(self.start.cast::<u8>().add(at).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, and nothing of it is borrowed any more.
        unsafe { munmap(self.start, self.len) }.expect("munmap");
    }
}

/// Written in pieces of any size, at the end and in the middle, through the first handle and through others.
fn read_whole_however_written() -> Outcome {
    let lab = Lab::mounted("64M");
    let path = lab.mnt().join("pieces");
    let (made, mut model) = (File::create(&path).expect("create"), Vec::new());
    let other = OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let mut rng = rng::Rng::new(crate::settings::seed());
    for round in 0..400 {
        let at = rng.below(model.len() as u64 + 1) as usize;
        let piece = vec![round as u8; 1 + rng.below(3 * PAGE as u64) as usize];
        let file = if rng.below(3) == 0 { &other } else { &made };
        file.write_all_at(&piece, at as u64).expect("write");
        model.resize(model.len().max(at + piece.len()), 0);
        model[at..at + piece.len()].copy_from_slice(&piece);
        if rng.below(8) == 0 {
            model.truncate(rng.below(model.len() as u64 + 1) as usize);
            made.set_len(model.len() as u64).expect("truncate");
        }
        if rng.below(2) == 0 {
            assert!(std::fs::read(&path).expect("read") == model, "round {round}: another content than was written");
        }
    }
    drop((made, other));
    lab.kill9();
    lab.mount();
    assert!(std::fs::read(&path).expect("read") == model, "another content after kill -9");
    lab.umount();
    lab.check();
    Ok(())
}

/// Attributes with an outdated length of a growing file must not make the kernel drop its pages beyond that length. The
/// file grows through the mount or beside it.
fn who_looks_undoes_nothing() -> Outcome {
    let lab = Lab::mounted("256M");
    let mut rng = rng::Rng::new(crate::settings::seed());
    let path = lab.mnt().join("log");
    for (how, flags) in [("through the page cache", OFlags::empty()), ("past the page cache", OFlags::DIRECT)] {
        append_for_a_while(how, &path, &mut rng, |at, piece| {
            let file = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(&path).expect("open");
            file.write_all_at(piece, at).expect("write");
        });
    }
    let pool = lab.open();
    append_for_a_while("beside the mount", &path, &mut rng, |at, piece| {
        let ino = pool.lookup(conquest_fs::ROOT, b"log", &conquest_fs::Caller::root()).expect("lookup").ino;
        pool.write(ino, at, piece, conquest_fs::node::WriteFlags::default()).expect("write");
    });
    drop(pool);
    lab.umount();
    lab.check();
    Ok(())
}

fn append_for_a_while(how: &str, path: &Path, rng: &mut rng::Rng, append: impl Fn(u64, &[u8])) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        append_watched(how, path, rng, &append);
    }
}

/// Makes a file and appends to it, while others read its attributes and its content. The content must be as written.
fn append_watched(how: &str, path: &Path, rng: &mut rng::Rng, append: &dyn Fn(u64, &[u8])) {
    drop(File::create_new(path).expect("create"));
    let (reads, ended) = (File::open(path).expect("open"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = End(&ended);
        for reader in [false, true, false, true] {
            let ended = &ended;
            scope.spawn(move || {
                let reads = File::open(path).expect("open");
                let mut all = vec![0; 2 << 20];
                while !ended.load(SeqCst) {
                    match reader {
                        true => drop(reads.read_at(&mut all, 0).expect("read")),
                        false => drop(rustix::fs::fstat(&reads).expect("fstat")),
                    }
                }
            });
        }
        let (mut model, mut found) = (Vec::new(), vec![0; 2 << 20]);
        for round in 0..300u32 {
            let piece = vec![round as u8 | 1; 1 + rng.below(6000) as usize];
            append(model.len() as u64, &piece);
            model.extend(piece);
            let len = reads.read_at(&mut found, 0).expect("read");
            assert_eq!(len, model.len(), "{how}: round {round}");
            assert!(found[..len] == model, "{how}: round {round}");
        }
    });
    drop(reads);
    std::fs::remove_file(path).expect("unlink");
}

/// Runs `act` while other threads repeat `aside`, until it returns.
fn beside(others: usize, aside: impl Fn() + Sync, act: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&ended);
        for _ in 0..others {
            scope.spawn(|| {
                while !ended.load(SeqCst) {
                    aside();
                }
            });
        }
        act();
    });
}

/// In another part of the same page.
fn stored_beside_copy() -> Outcome {
    let lab = Lab::mounted("64M");
    let path = lab.mnt().join("target");
    let make = |name: &str| OpenOptions::new().read(true).write(true).create_new(true).open(lab.mnt().join(name));
    let (source, target) = (make("source").expect("create"), make("target").expect("create"));
    target.set_len(PAGE as u64).expect("truncate");
    source.write_all_at(&[7; HALF], 0).expect("write");
    let copy = || {
        let copied = rustix::fs::copy_file_range(&source, Some(&mut 0), &target, Some(&mut 0), HALF);
        assert_eq!(copied.expect("copy"), HALF);
    };
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let page = Mapping::of(&file, PAGE, ProtFlags::READ | ProtFlags::WRITE);
    let word = page.word(HALF);
    beside(1, copy, || {
        let start = Instant::now();
        for n in 1.. {
            word.store(n, SeqCst);
            for _ in 0..50 {
                assert_eq!(word.load(SeqCst), n, "a store is gone");
            }
            if start.elapsed() > Duration::from_secs(4) {
                break;
            }
        }
    });
    drop((page, file, source, target));
    lab.umount();
    lab.check();
    Ok(())
}

/// Recent stores through a mapping, in holes and in allocated ranges: `cp` and other programs that seek data once
/// skipped them.
fn copies_have_stores() -> Outcome {
    const SIZE: usize = 64 * PAGE;
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("64M");
        lab.mount_with(&format!("transport={transport}"));
        for allocated in [false, true] {
            let name = |what: &str| lab.mnt().join(format!("{what}-{allocated}"));
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(name("file")).expect("create");
            match allocated {
                true => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64).expect("fallocate"),
                false => file.set_len(SIZE as u64).expect("truncate"),
            }
            let pages = Mapping::of(&file, SIZE, ProtFlags::READ | ProtFlags::WRITE);
            let stored = [1, 2, 3, 40, 63];
            stored.iter().for_each(|page| pages.word(page * PAGE).store(7, SeqCst));
            // This page is only read, so it stays a hole.
            assert_eq!(pages.word(20 * PAGE).load(SeqCst), 0);
            let data = data_in(&file);
            let is_data = |page: &usize| data.iter().any(|(from, to)| (*from..*to).contains(&(page * PAGE)));
            assert!(stored.iter().all(is_data), "{transport}, allocated {allocated}: {data:?}");
            assert!(!is_data(&20), "{transport}, allocated {allocated}: {data:?}");

            pages.word(50 * PAGE).store(8, SeqCst);
            let whole = || std::fs::read(name("file")).expect("read");
            lab::ok(&mut program("cp", &[name("file").to_str().expect("text"), name("cp").to_str().expect("text")]));
            assert!(std::fs::read(name("cp")).expect("read") == whole(), "{transport}: cp");

            pages.word(30 * PAGE).store(9, SeqCst);
            let target = File::create(name("range")).expect("create");
            let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &target, Some(&mut 0), SIZE).expect("copy");
            assert_eq!(copied, SIZE);
            assert!(std::fs::read(name("range")).expect("read") == whole(), "{transport}: copy_file_range");
        }
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// The ranges of the file with data, by SEEK_DATA and SEEK_HOLE.
fn data_in(file: &File) -> Vec<(usize, usize)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(from) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(from)).expect("the end at least");
        found.push((from as usize, at as usize));
    }
    found
}

/// A program stores to a mapping, and the pool is saved meanwhile.
fn image_has_stores() -> Outcome {
    let lab = Lab::mounted("64M");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(lab.mnt().join("file")).expect("create");
    file.set_len(PAGE as u64).expect("truncate");
    let page = Mapping::of(&file, PAGE, ProtFlags::READ | ProtFlags::WRITE);
    page.word(HALF).store(7, SeqCst);
    lab.ok(&["save", &lab.pool(), &lab.text("image")]);
    drop((page, file));
    lab.umount();
    lab.ok(&["restore", &lab.text("other"), &lab.text("image")]);
    lab.ok(&["mount", &lab.text("other"), &lab.text("mnt")]);
    assert_eq!(number(&lab.mnt().join("file"), HALF), 7);
    lab.umount();
    lab.ok(&["destroy", "--yes", &lab.text("other")]);
    Ok(())
}

/// While others read the directory.
fn listings() -> Outcome {
    let lab = Lab::mounted("64M");
    let dir = lab.mnt().join("dir");
    std::fs::create_dir(&dir).expect("mkdir");
    for n in 0..1500 {
        File::create(dir.join(format!("old-{n:04}-with-a-longer-name"))).expect("create");
    }
    let new = dir.join("new");
    let list = || std::fs::read_dir(&dir).expect("readdir").map(|entry| entry.expect("an entry").path());
    beside(
        3,
        || assert!(list().count() >= 1500),
        || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(8) {
                File::create(&new).expect("create");
                assert!(list().any(|path| path == new), "a name that was made is not listed");
                std::fs::remove_file(&new).expect("unlink");
                assert!(list().all(|path| path != new), "a name that was removed is listed");
            }
        },
    );
    lab.umount();
    lab.check();
    Ok(())
}

/// The kernel once decremented a link count that a notification had already brought, and took the file for a removed
/// one.
fn links() -> Outcome {
    let lab = Lab::mounted("64M");
    let [stays, goes, other] = ["stays", "goes", "other"].map(|name| lab.mnt().join(name));
    File::create(&stays).expect("create");
    let file = OpenOptions::new().write(true).open(&stays).expect("open");
    let look = || assert!(rustix::fs::stat(&stays).expect("stat").st_nlink > 0);
    beside(2, look, || {
        let start = Instant::now();
        for round in 0u64.. {
            std::fs::hard_link(&stays, &goes).expect("link");
            file.write_all_at(b"x", round % 64).expect("write");
            if round % 2 == 0 {
                File::create(&other).expect("create");
                std::fs::rename(&other, &goes).expect("rename");
            }
            std::fs::remove_file(&goes).expect("unlink");
            if start.elapsed() > Duration::from_secs(8) {
                break;
            }
        }
    });
    drop(file);
    lab.umount();
    lab.check();
    Ok(())
}

/// A program that a user has changed loses its rights, by any handle.
fn a_write_takes_capabilities() -> Outcome {
    lab::require("setcap")?;
    let lab = Lab::mounted("64M");
    for (name, reopen) in [("made", false), ("opened", true)] {
        let path = lab.mnt().join(name);
        let text = path.to_str().expect("text");
        let mut file = File::create(&path).expect("create");
        file.write_all_at(b"#!/bin/sh\n", 0).expect("write");
        lab::ok(&mut program("setcap", &["cap_net_raw+ep", text]));
        assert!(lab::ok(&mut program("getcap", &[text])).contains("cap_net_raw"));
        if reopen {
            file = OpenOptions::new().write(true).open(&path).expect("open");
        }
        file.write_all_at(b"exit 0\n", 10).expect("write");
        assert_eq!(lab::ok(&mut program("getcap", &[text])), "", "{name}");
    }
    lab.umount();
    lab.check();
    Ok(())
}
