//! Random operations against a model, each also undone; a full region; damage.

use std::collections::{BTreeMap, BTreeSet};

use pram::heap::{Meta, CLASSES};
use pram::medium::Battery;
use pram::{Mapping, Region, Session, Tx};

use super::*;

fn session(size: u64) -> Session {
    let map = Mapping::anonymous(size).unwrap();
    let region = Region::format(map, Box::new(Battery), [7; 16], 1, 0).unwrap();
    Session::private(region, 64).unwrap()
}

/// Every object that the heap holds allocated.
fn heap_objects(r: &Region) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for s in 0..r.geo.segments {
        match r.meta(s).unwrap() {
            Meta::Small { class, .. } => {
                let c = &CLASSES[usize::from(class)];
                let at = |i| r.geo.segment(s) + u64::from(c.base) + u64::from(i) * u64::from(c.size);
                found.extend((0..c.count).map(at).filter(|off| r.is_allocated(*off).unwrap()));
            }
            Meta::RunHead { .. } => {
                found.insert(r.geo.segment(s));
            }
            _ => {}
        }
    }
    found
}

fn file_objects(r: &Region, c: &Content) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    visit(r, c, &mut |off, tag| {
        assert!(r.resolve(off, tag).is_ok());
        assert!(found.insert(off), "{off:#x} is named twice");
    })
    .unwrap();
    found
}

fn commit(s: &Session, c: &mut Content, f: impl FnOnce(&mut Tx, &mut Content) -> Result<()>) -> Result<()> {
    let mut op = s.begin()?;
    let mut tx = op.tx()?;
    let mut new = *c;
    f(&mut tx, &mut new)?;
    tx.commit()?;
    *c = new;
    Ok(())
}

/// The file as it should be.
#[derive(Clone, Default)]
struct Model {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    fn put(&mut self, off: u64, data: &[u8]) {
        for (i, byte) in data.iter().enumerate() {
            let at = off + i as u64;
            self.pages.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize])[(at % PAGE) as usize] = *byte;
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
        (off..off + n)
            .map(|at| self.pages.get(&(at / PAGE)).map_or(0, |b| b[(at % PAGE) as usize]))
            .collect()
    }

    /// The file reads as the model says: around every page that has content, and at the end.
    fn compare(&self, r: &Region, c: &Content, what: &str) {
        assert_eq!(self.size, c.size, "size after {what}");
        let mut starts: BTreeSet<u64> = [0, self.size.saturating_sub(5000)].into();
        starts.extend(self.pages.keys().map(|p| (p * PAGE).saturating_sub(100)));
        for start in starts {
            let want = self.get(start, 4400);
            let mut got = vec![0xee; 4400];
            let n = read(r, c, start, &mut got).unwrap();
            assert_eq!(n, want.len(), "length at {start} after {what}");
            if let Some(i) = (0..n).find(|i| got[*i] != want[*i]) {
                panic!("byte {} is {}, should be {} after {what}; {c:?}", start + i as u64, got[i], want[i]);
            }
        }
    }

    /// Data and holes are told apart so that no content is in a hole.
    fn compare_seek(&self, r: &Region, c: &Content, from: u64, what: &str) {
        let data = seek_data(r, c, from).unwrap();
        let hole = seek_hole(r, c, from).unwrap();
        assert_eq!(hole.is_none(), from >= c.size, "hole from {from} after {what}");
        assert!(hole.is_none_or(|h| h >= from && h <= c.size));
        assert!(data.is_none_or(|d| d >= from && d < c.size));
        let first = self.first_nonzero(from);
        assert!(first.is_none_or(|f| data.is_some_and(|d| d <= f)), "data from {from}: {data:?}, not {first:?} after {what}");
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

/// Seeded numbers (splitmix64).
struct Dice(u64);
impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
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
    /// Near what is there, at page borders, or far away.
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

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Collapse(u64, u64),
    Insert(u64, u64),
    Allocate(u64, u64, bool),
    Trim,
}

impl Op {
    fn random(d: &mut Dice, size: u64, far: bool) -> Op {
        let off = d.offset(size, far);
        match d.below(20) {
            0..=9 => {
                let (len, seed) = (d.length(), d.next() | 1);
                Op::Write(off, (0..len).map(|i| (i.wrapping_mul(seed) >> 7) as u8 | 1).collect())
            }
            10 | 11 => Op::Truncate(off),
            12 => Op::Truncate(d.below(size + 1)),
            13 => Op::Punch(off, d.length()),
            14 => Op::Zero(off, d.length(), d.below(2) == 0),
            15 => Op::Collapse(off & !(PAGE - 1), PAGE * (1 + d.below(5))),
            16 => Op::Insert(off & !(PAGE - 1), PAGE * (1 + d.below(5))),
            17 => Op::Allocate(off, d.length(), d.below(2) == 0),
            18 => Op::Truncate(0),
            _ => Op::Trim,
        }
    }

    fn run(&self, tx: &mut Tx, c: &mut Content) -> Result<()> {
        match self {
            Op::Write(off, data) => write(tx, c, *off, data),
            Op::Truncate(size) => truncate(tx, c, *size),
            Op::Punch(off, len) => punch(tx, c, *off, *len),
            Op::Zero(off, len, keep) => zero(tx, c, *off, *len, *keep),
            Op::Collapse(off, len) => collapse(tx, c, *off, *len),
            Op::Insert(off, len) => insert(tx, c, *off, *len),
            Op::Allocate(off, len, keep) => {
                assert_eq!(allocate(tx, c, *off, *len, *keep)?, off + len);
                Ok(())
            }
            Op::Trim => trim(tx, c).map(|_| ()),
        }
    }

    /// What the operation does to the model; the errors that fallocate(2) demands.
    fn model(&self, m: &mut Model) -> std::result::Result<(), Errno> {
        match self {
            Op::Write(off, data) => m.put(*off, data),
            Op::Truncate(size) => m.truncate(*size),
            Op::Punch(off, len) => m.zero(*off, (off + len).min(m.size.max(*off))),
            Op::Zero(off, len, keep) => {
                m.zero(*off, off + len);
                m.size = if *keep { m.size } else { m.size.max(off + len) };
            }
            Op::Collapse(off, len) => {
                if off + len >= m.size {
                    return Err(Errno::INVAL);
                }
                let (a, b) = (off / PAGE, (off + len) / PAGE);
                m.renumber(|p| if p < a { Some(p) } else { (p >= b).then(|| p - (b - a)) });
                m.size -= len;
            }
            Op::Insert(off, len) => {
                if *off >= m.size {
                    return Err(Errno::INVAL);
                }
                if m.size + len > MAX_SIZE {
                    return Err(Errno::FBIG);
                }
                m.renumber(|p| Some(if p < off / PAGE { p } else { p + len / PAGE }));
                m.size += len;
            }
            Op::Allocate(off, len, keep) => m.size = if *keep { m.size } else { m.size.max(off + len) },
            Op::Trim => {}
        }
        Ok(())
    }

    fn short(&self) -> String {
        match self {
            Op::Write(off, data) => format!("Write({off}, {} bytes)", data.len()),
            other => format!("{other:?}"),
        }
    }
}

fn random_run(seed: u64, steps: u32, far: bool, region: u64) {
    let s = session(region);
    let r = s.region();
    let mut d = Dice(seed);
    let (mut c, mut m) = (Content::default(), Model::default());
    for step in 0..steps {
        let op = Op::random(&mut d, c.size, far);
        let what = format!("seed {seed} step {step}: {}", op.short());
        let mut after = m.clone();
        let expected = op.model(&mut after);
        // Undone: as if it had not been.
        if d.below(3) == 0 {
            let mut holder = s.begin().unwrap();
            let mut tx = holder.tx().unwrap();
            let mut dropped = c;
            let _ = op.run(&mut tx, &mut dropped);
            drop(tx);
            drop(holder);
            m.compare(r, &c, &format!("undone {what}"));
            assert_eq!(heap_objects(r), file_objects(r, &c), "objects after undone {what}");
        }
        let done = commit(&s, &mut c, |tx, c| op.run(tx, c));
        match (done, expected) {
            (Ok(()), Ok(())) => m = after,
            (Err(e), Err(want)) => assert_eq!(e.errno(), want, "{what}"),
            // Full: nothing has changed.
            (Err(e), Ok(())) if e.errno() == Errno::NOSPC => {}
            (got, want) => panic!("{what}: {got:?}, should be {want:?}"),
        }
        m.compare(r, &c, &what);
        let from = d.offset(c.size, far);
        m.compare_seek(r, &c, from, &what);
        assert_eq!(heap_objects(r), file_objects(r, &c), "objects after {what}");
        check(r, &c, &mut |p| panic!("{what}: {p}"));
    }
    commit(&s, &mut c, free).unwrap();
    assert!(heap_objects(r).is_empty(), "seed {seed}: objects are left after free");
    assert_eq!(c, Content::default());
}

#[test]
fn random_operations_match_the_model() {
    for seed in 0..60 {
        random_run(seed, 120, false, 8 << 20);
    }
}

#[test]
fn random_sparse_operations_match_the_model() {
    for seed in 1000..1060 {
        random_run(seed, 120, true, 8 << 20);
    }
}

#[test]
fn random_operations_in_a_region_that_fills_up() {
    for seed in 2000..2040 {
        random_run(seed, 200, seed % 2 == 0, 1 << 20);
    }
}
