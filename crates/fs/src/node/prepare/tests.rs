//! Files with pages on disk: readers and writers do not notice.

use std::rc::Rc;

use rng::Rng;

use super::*;
use crate::attr::{Caller, Kind, SetAttr};
use crate::file::testing::{before_each_fetch, evict, place_of, spoil};
use crate::node::{Fallocate, Policy, Seek, WriteFlags};

const PAGE: u64 = file::PAGE;
const LEN: usize = 100_000;

/// A file system with one file, and its expected content.
struct Rig {
    fs: Rc<Fs>,
    ino: Ino,
    model: Vec<u8>,
}

fn file_system() -> Rc<Fs> {
    let session = pram::Session::in_memory(16 << 20).unwrap();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    Rc::new(Fs::over(session, Policy::default()).unwrap())
}

impl Rig {
    fn new(len: usize) -> Rig {
        let fs = file_system();
        let ino = fs.create(crate::ROOT, b"f", Kind::Regular, 0o644, 0, &Caller::root()).unwrap().ino;
        let mut rig = Rig { fs, ino, model: Vec::new() };
        rig.write(0, &Rng::new(len as u64).bytes(len)).unwrap();
        rig.evict_all();
        rig
    }

    fn content(&self) -> crate::file::Content {
        self.fs.node(self.ino).unwrap().content()
    }

    fn evict_all(&self) {
        (0..self.model.len() as u64 / PAGE + 1).for_each(|page| evict_page(&self.fs, self.ino, page));
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.fs.write(self.ino, at as u64, bytes, WriteFlags::default())?;
        self.model.resize(self.model.len().max(at + bytes.len()), 0);
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.fs.setattr(self.ino, &SetAttr { size: Some(size), ..SetAttr::default() }, &Caller::root()).map(|_| ())
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0xaa; self.model.len() + 10];
        let n = self.fs.read(self.ino, 0, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn compare(&self, what: &str) {
        assert!(self.read().unwrap() == self.model, "{what}");
        let problem = &mut |p| panic!("{what}: {p}");
        file::check(self.fs.memory(), &self.content(), problem);
    }
}

/// Moves a page to disk, as eviction would: not of a file that another call changes in several operations.
fn evict_page(fs: &Fs, ino: Ino, page: u64) {
    let mut op = fs.session().begin().unwrap();
    op.lock(&[ino]).unwrap();
    if op.is_long_locked(ino) {
        return;
    }
    let content = fs.node(ino).unwrap().content();
    let mut tx = op.tx().unwrap();
    if evict(&mut tx, &content, page).unwrap().is_some() {
        tx.commit().unwrap();
    }
}

#[test]
fn what_lies_on_disk_is_read_and_found() {
    let rig = Rig::new(LEN);
    rig.compare("all on disk");
    assert!(place_of(rig.fs.memory(), &rig.content(), 3).is_some(), "reading has moved nothing");
    assert_eq!(rig.fs.seek(rig.ino, 5000, Seek::Data).unwrap(), 5000);
    assert_eq!(rig.fs.seek(rig.ino, 5000, Seek::Hole).unwrap(), LEN as u64);
    assert_eq!(rig.fs.getattr(rig.ino).unwrap().blocks, 25 * 8);
    // More than one look notes.
    Rig::new(900_000).compare("in several rounds");
}

type Change = fn(&mut Rig) -> Result<()>;

/// Changes of a part of a file, and the most pages that each fetches.
const CHANGES: [(&str, Change, usize); 14] = [
    ("a byte", |rig| rig.write(5000, b"x"), 1),
    ("two edges", |rig| rig.write(5000, &[7; 50_000]), 2),
    ("whole pages", |rig| rig.write(8192, &[7; 40_960]), 0),
    ("up to the end", |rig| rig.write(98_304, &[7; 5000]), 0),
    ("append", |rig| rig.write(LEN, &[7; 5000]), 1),
    ("beyond the end", |rig| rig.write(LEN + 20_000, &[7; 5000]), 1),
    ("a long write", |rig| rig.write(50, &Rng::new(1).bytes(3 << 20)), 2),
    (
        "growth",
        |rig| {
            rig.model.resize(LEN + 5000, 0);
            rig.set_size(LEN as u64 + 5000)
        },
        1,
    ),
    (
        "shrinking",
        |rig| {
            rig.model.truncate(5000);
            rig.set_size(5000)
        },
        0,
    ),
    (
        "punch",
        |rig| {
            rig.model[5000..50_000].fill(0);
            rig.fs.fallocate(rig.ino, Fallocate::PunchHole, 5000, 45_000)
        },
        2,
    ),
    (
        "zero",
        |rig| {
            rig.model.resize(LEN + 50_000, 0);
            rig.model[5000..].fill(0);
            rig.fs.fallocate(rig.ino, Fallocate::ZeroRange { keep_size: false }, 5000, LEN as u64 + 45_000)
        },
        2,
    ),
    (
        "allocate",
        |rig| {
            rig.model.resize(LEN + 5000, 0);
            rig.fs.fallocate(rig.ino, Fallocate::Allocate { keep_size: false }, 0, LEN as u64 + 5000)
        },
        1,
    ),
    (
        "collapse",
        |rig| {
            rig.model.drain(4096..12_288);
            rig.fs.fallocate(rig.ino, Fallocate::CollapseRange, 4096, 8192)
        },
        0,
    ),
    (
        "insert",
        |rig| {
            rig.model.splice(4096..4096, [0; 8192]);
            rig.fs.fallocate(rig.ino, Fallocate::InsertRange, 4096, 8192)
        },
        0,
    ),
];

#[test]
fn changes_of_a_part_fetch_what_they_need() {
    for (what, change, most) in CHANGES {
        let mut rig = Rig::new(LEN);
        let fetches = count_fetches();
        change(&mut rig).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(fetches.get() <= most, "{what}: {} pages fetched", fetches.get());
        rig.compare(what);
    }
}

fn count_fetches() -> Rc<std::cell::Cell<usize>> {
    let count = Rc::new(std::cell::Cell::new(0));
    let counted = count.clone();
    before_each_fetch(move || counted.set(counted.get() + 1));
    count
}

/// The file system copies content on disk to itself.
#[test]
fn what_lies_on_disk_is_copied() {
    let mut rig = Rig::new(LEN);
    assert_eq!(rig.fs.copy_range((rig.ino, 10), (rig.ino, 60_000), 30_000).unwrap(), 30_000);
    rig.model.copy_within(10..30_010, 60_000);
    rig.compare("copied");
}

/// Each page that a call has fetched is moved to another place before it has the lock: it ends nevertheless.
#[test]
fn who_prepares_ends_though_pages_are_evicted_again_and_again() {
    for (what, size) in [("write", None), ("truncate", Some(LEN as u64 + 100))] {
        let mut rig = Rig::new(LEN);
        let (fs, ino, count) = (rig.fs.clone(), rig.ino, Rc::new(std::cell::Cell::new(0)));
        let counted = count.clone();
        before_each_fetch(move || {
            counted.set(counted.get() + 1);
            assert!(counted.get() < 100, "it goes on for ever");
            // One thread brings all into memory, and another moves it out to new places.
            for page in 0..LEN as u64 / PAGE + 1 {
                bring(&fs, ino, page);
                evict_page(&fs, ino, page);
            }
        });
        match size {
            None => rig.write(5000, &[7; 50_000]).unwrap(),
            Some(size) => {
                rig.model.resize(size as usize, 0);
                rig.set_size(size).unwrap();
            }
        }
        assert!(count.get() > TRIES as usize, "{what}: the race has been run");
        before_each_fetch(|| {});
        rig.compare(what);
        // The long lock is given up.
        rig.write(5000, b"x").unwrap();
    }
}

/// As reading ahead would: a page on disk comes into memory.
fn bring(fs: &Fs, ino: Ino, page: u64) {
    let mut op = fs.session().begin().unwrap();
    op.lock(&[ino]).unwrap();
    let content = fs.node(ino).unwrap().content();
    if op.is_long_locked(ino) || place_of(fs.memory(), &content, page).is_none() {
        return;
    }
    let mut tx = op.tx().unwrap();
    file::testing::bring(&mut tx, &content, page).unwrap();
    tx.commit().unwrap();
}

/// EIO, and nothing has changed; calls that need nothing from the disk work.
#[test]
fn a_page_that_cannot_be_fetched_fails_the_call() {
    let mut rig = Rig::new(LEN);
    let before = rig.content();
    let last = LEN as u64 / PAGE;
    [1, last].iter().for_each(|page| spoil(place_of(rig.fs.memory(), &before, *page).unwrap()));
    let eio = |what: &str, done: Result<()>| assert_eq!(done.expect_err(what).errno(), Errno::IO, "{what}");
    let model = rig.model.clone();
    eio("read", rig.read().map(|_| ()));
    eio("write", rig.write(5000, b"x"));
    eio("write to both edges", rig.write(100, &[1; 5000]));
    eio("append", rig.write(LEN, b"x"));
    eio("grow", rig.set_size(LEN as u64 + 1));
    eio("punch", rig.fs.fallocate(rig.ino, Fallocate::PunchHole, 5000, 20_000));
    eio("zero", rig.fs.fallocate(rig.ino, Fallocate::ZeroRange { keep_size: true }, 100, 5000));
    assert_eq!((rig.content().size, rig.content().pages), (before.size, before.pages));
    let mut page = [0; 4096];
    rig.fs.read(rig.ino, 8192, &mut page).unwrap();
    assert_eq!(page, model[8192..12_288]);
    // Written wholly, it is whole again.
    rig.write(4096, &[1; 4096]).unwrap();
    rig.set_size(last * PAGE).unwrap();
    rig.model.truncate((last * PAGE) as usize);
    rig.compare("written over");
}
