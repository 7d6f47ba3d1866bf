//! Tests on real regions, beside a model of a file.

mod damage;
pub(crate) mod disk;
mod edges;
mod random;
mod tally;
mod trees;
mod union;

use std::collections::{BTreeMap, BTreeSet};

use pram::memory::{Meta, CLASSES};
use pram::{Memory, Session};
use rng::Rng;

use super::tree::entry::Entry;
use super::*;

fn read(r: &Memory, c: &Content, off: u64, buf: &mut [u8]) -> Result<usize> {
    super::read(r, c, off, buf, |_, _| {})
}

/// Every object that the heap holds allocated.
fn heap_objects(r: &Memory) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for s in r.chunks() {
        match r.meta(s).unwrap() {
            Meta::Small { class, .. } => {
                let c = &CLASSES[usize::from(class)];
                let at = |i| r.geo.chunk(s) + u64::from(c.base) + u64::from(i) * u64::from(c.size);
                found.extend((0..c.count).map(at).filter(|off| r.is_allocated(*off).unwrap()));
            }
            Meta::RunHead { .. } => {
                found.insert(r.geo.chunk(s));
            }
            _ => {}
        }
    }
    found
}

fn file_objects(r: &Memory, c: &Content) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    visit(r, c, &mut |off, tag| {
        assert!(r.resolve(off, tag).is_ok());
        assert!(found.insert(off), "{off:#x} is named twice");
    })
    .unwrap();
    found
}

fn commit(s: &Session, c: &mut Content, f: impl FnOnce(&mut Edit, &mut Content) -> Result<()>) -> Result<()> {
    let mut op = s.begin()?;
    let mut tx = op.tx()?;
    let mut new = *c;
    let mut edit = Edit::in_memory(&mut tx);
    f(&mut edit, &mut new)?;
    edit.finish()?;
    tx.commit()?;
    *c = new;
    Ok(())
}

/// The result in the end of a search that may be cut.
fn found(mut from: u64, mut seek: impl FnMut(u64) -> Result<Sought>) -> Option<u64> {
    loop {
        match seek(from).unwrap() {
            Sought::At(at) => return Some(at),
            Sought::After(at) => from = at,
            Sought::Nowhere => return None,
        }
    }
}

fn data_at(r: &Memory, c: &Content, from: u64) -> Option<u64> {
    found(from, |from| seek_data(r, c, from))
}

fn hole_at(r: &Memory, c: &Content, from: u64) -> Option<u64> {
    found(from, |from| seek_hole(r, c, from))
}

/// The file as it should be.
#[derive(Clone, Default)]
struct Model {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    fn put(&mut self, off: u64, data: &[u8]) {
        let (mut at, mut rest) = (off, data);
        while !rest.is_empty() {
            let start = (at % PAGE) as usize;
            let n = rest.len().min(PAGE as usize - start);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[start..start + n].copy_from_slice(&rest[..n]);
            at += n as u64;
            rest = &rest[n..];
        }
        self.size = self.size.max(off + data.len() as u64);
    }

    fn zero(&mut self, off: u64, end: u64) {
        for (page, bytes) in self.pages.range_mut(off / PAGE..=end / PAGE) {
            let from = off.saturating_sub(page * PAGE).min(PAGE) as usize;
            let to = end.saturating_sub(page * PAGE).min(PAGE) as usize;
            bytes[from..to.max(from)].fill(0);
        }
    }

    fn truncate(&mut self, size: u64) {
        if size < self.size {
            let end = self.size;
            self.zero(size, end);
            self.pages.retain(|p, _| p * PAGE < size);
        }
        self.size = size;
    }

    fn renumber(&mut self, place: impl Fn(u64) -> Option<u64>) {
        self.pages = std::mem::take(&mut self.pages).into_iter().filter_map(|(p, b)| Some((place(p)?, b))).collect();
    }

    fn get(&self, off: u64, len: usize) -> Vec<u8> {
        let n = self.size.saturating_sub(off).min(len as u64);
        let mut bytes = Vec::with_capacity(n as usize);
        while (bytes.len() as u64) < n {
            let at = off + bytes.len() as u64;
            let part = (PAGE - at % PAGE).min(off + n - at) as usize;
            let start = (at % PAGE) as usize;
            match self.pages.get(&(at / PAGE)) {
                Some(page) => bytes.extend_from_slice(&page[start..start + part]),
                None => bytes.resize(bytes.len() + part, 0),
            }
        }
        bytes
    }

    /// The file reads as the model says: around every page that has content, and at the end.
    fn compare(&self, r: &Memory, c: &Content, what: &str) {
        self.compare_by(c, what, |start, buf| disk::read_all(r, c, start, buf).unwrap());
    }

    fn compare_by(&self, c: &Content, what: &str, mut read: impl FnMut(u64, &mut [u8]) -> usize) {
        assert_eq!(self.size, c.size, "size after {what}");
        let mut starts: BTreeSet<u64> = [0, self.size.saturating_sub(5000)].into();
        starts.extend(self.pages.keys().map(|p| (p * PAGE).saturating_sub(100)));
        for start in starts {
            let want = self.get(start, 4400);
            let mut got = vec![0xee; 4400];
            let n = read(start, &mut got);
            assert_eq!(n, want.len(), "length at {start} after {what}");
            if got[..n] != want[..] {
                let i = (0..n).find(|i| got[*i] != want[*i]).unwrap_or(0);
                panic!("byte {} is {}, should be {} after {what}; {c:?}", start + i as u64, got[i], want[i]);
            }
        }
    }

    /// Data and holes are distinguished so that no content is in a hole.
    fn compare_seek(&self, r: &Memory, c: &Content, from: u64, what: &str) {
        let data = data_at(r, c, from);
        let hole = hole_at(r, c, from);
        assert_eq!(hole.is_none(), from >= c.size, "hole from {from} after {what}");
        assert!(hole.is_none_or(|h| h >= from && h <= c.size));
        assert!(data.is_none_or(|d| d >= from && d < c.size));
        let first = self.first_nonzero(from);
        assert!(
            first.is_none_or(|f| data.is_some_and(|d| d <= f)),
            "data from {from}: {data:?}, not {first:?} after {what}"
        );
        if let Some(h) = hole.filter(|h| *h < c.size) {
            assert_eq!(self.get(h, 1)[0], 0, "hole at {h} after {what}");
        }
    }

    fn first_nonzero(&self, from: u64) -> Option<u64> {
        self.pages.range(from / PAGE..).find_map(|(p, bytes)| {
            let skip = from.saturating_sub(p * PAGE) as usize;
            bytes.iter().enumerate().skip(skip).find(|(_, b)| **b != 0).map(|(i, _)| p * PAGE + i as u64)
        })
    }
}

/// The parameters of a random operation.
struct Dice(Rng);
impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n.max(1))
    }
    fn length(&mut self) -> u64 {
        match self.below(10) {
            0..=3 => 1 + self.below(200),
            4..=6 => 1 + self.below(6000),
            7 => PAGE * (1 + self.below(8)),
            8 => 1 + self.below(40_000),
            _ => 1 + self.below(300_000),
        }
    }
    /// Near the present content, at page borders, or far away.
    fn offset(&mut self, size: u64, far: bool) -> u64 {
        match self.below(12) {
            0..=3 => size.min(2 << 20),
            4..=6 => self.below(size.min(2 << 20) + 1),
            7 => self.below(size.min(2 << 20) / PAGE + 2) * PAGE,
            8 => size.min(1 << 20) + self.below(10_000),
            9 => self.below(500_000),
            10 if far => 1 << self.below(62),
            _ => 0,
        }
    }
}

#[test]
fn constants_are_as_documented() {
    use crate::layout::documented;
    assert_eq!(documented("FANOUT"), super::tree::FANOUT);
    assert_eq!(documented("MAX_HEIGHT"), u64::from(super::tree::MAX_HEIGHT));
    assert_eq!(documented("PAGE"), super::PAGE);
    assert_eq!(documented("FILE_CUT"), u64::from(super::CUT));
    assert_eq!(
        (documented("FILE_LARGE"), documented("FILE_MOVED")),
        (u64::from(super::LARGE), u64::from(super::MOVED))
    );
    assert_eq!(documented("MAX_FILE"), super::MAX_SIZE);
}

fn put(s: &Session, c: &mut Content, off: u64, data: &[u8]) -> Result<()> {
    commit(s, c, |tx, c| write(tx, c, off, data))
}

fn whole(r: &Memory, c: &Content) -> Vec<u8> {
    let mut bytes = vec![0; c.size as usize];
    assert_eq!(read(r, c, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Makes a hole as [`punch`] does; returns where each transaction ended.
fn punch_all(s: &Session, c: &mut Content, off: u64, end: u64) -> Vec<u64> {
    let (mut at, mut ends) = (off, Vec::new());
    while at < end {
        commit(s, c, |tx, c| {
            let reached = punch(tx, c, at, end - at)?;
            assert!(reached > at && tx.room() >= RESERVE);
            at = reached;
            Ok(())
        })
        .unwrap();
        ends.push(at);
    }
    ends
}

fn free_all(tx: &mut Edit, c: &mut Content) -> Result<()> {
    free(tx, c)
}

fn consistent(s: &Session, c: &Content, m: &Model, what: &str) {
    m.compare(s.memory(), c, what);
    check(s.memory(), c, &mut |p| panic!("{what}: {p}"));
    assert_eq!(heap_objects(s.memory()), file_objects(s.memory(), c), "{what}");
}
