//! Directories against a model, on a region of the test's own.

use std::collections::BTreeMap;

use pram::medium::Battery;
use pram::{Mapping, Region, Session};

use super::hash::{NameHash, Sip};
use super::*;

/// A small generator, so that a failure repeats.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn session(size: u64) -> Session {
    let map = Mapping::anonymous(size).unwrap();
    let region = Region::format(map, Box::new(Battery), [7; 16], 1, 0).unwrap();
    Session::private(region, 64).unwrap()
}

/// A directory with the hash function, the model, and what to check after each step.
pub struct Bench<H> {
    pub s: Session,
    pub h: H,
    pub d: Dir,
    pub model: BTreeMap<Vec<u8>, Entry>,
}

impl<H: NameHash> Bench<H> {
    pub fn new(size: u64, h: H) -> Self {
        Bench { s: session(size), h, d: Dir::EMPTY, model: BTreeMap::new() }
    }

    pub fn insert(&mut self, name: &[u8], e: Entry) -> Result<()> {
        let mut op = self.s.begin()?;
        let mut tx = op.tx()?;
        let mut d = self.d;
        insert_by(&mut tx, &self.h, &mut d, name, e)?;
        tx.commit()?;
        self.d = d;
        assert_eq!(self.model.insert(name.to_vec(), e), None);
        Ok(())
    }

    pub fn remove(&mut self, name: &[u8]) {
        let mut op = self.s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let got = remove_by(&mut tx, &self.h, &mut self.d, name).unwrap();
        tx.commit().unwrap();
        assert_eq!(got, self.model.remove(name));
    }

    pub fn replace(&mut self, name: &[u8], e: Entry) {
        let mut op = self.s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let got = replace_by(&mut tx, &self.h, &self.d, name, e).unwrap();
        tx.commit().unwrap();
        assert_eq!(got, self.model.get(name).copied());
        if got.is_some() {
            self.model.insert(name.to_vec(), e);
        }
    }

    pub fn lookup(&self, name: &[u8]) -> Option<Entry> {
        locate(self.s.region(), &self.h, &self.d, name).unwrap().and_then(|(_, f)| f).map(|f| f.entry())
    }

    pub fn list(&self) -> Vec<(Vec<u8>, Entry)> {
        let mut all = Vec::new();
        let mut last = 2;
        readout::read(self.s.region(), &self.h, &self.d, 0, &mut |cookie, name, e| {
            assert!(cookie > last && cookie < 1 << 63);
            last = cookie;
            all.push((name.to_vec(), e));
            true
        })
        .unwrap();
        all
    }

    /// Everything is as the model says.
    pub fn verify(&self) {
        assert_eq!(self.d.entries, self.model.len() as u64);
        let mut all = self.list();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        assert!(all.iter().map(|(n, e)| (n, e)).eq(self.model.iter()));
        for (name, e) in &self.model {
            assert_eq!(self.lookup(name), Some(*e));
        }
    }

    /// Bytes of the directory's objects.
    pub fn bytes(&self) -> u64 {
        let mut sum = 0;
        let r = self.s.region();
        visit(r, &self.d, &mut |off, tag| sum += r.resolve(off, tag).unwrap()).unwrap();
        sum
    }
}

pub fn entry(rng: &mut Rng) -> Entry {
    Entry { ino: rng.below(MAX_INO), kind: [1, 2, 4, 6, 8, 10, 12][rng.below(7) as usize] }
}

const MAX_INO: u64 = 1 << 40;

fn name(rng: &mut Rng, longest: u64) -> Vec<u8> {
    (0..1 + rng.below(longest)).map(|_| b'a' + rng.below(26) as u8).collect()
}

/// Random steps; `bias` in 100 insertions.
fn steps<H: NameHash>(b: &mut Bench<H>, rng: &mut Rng, n: u64, bias: u64, longest: u64) {
    for _ in 0..n {
        let known = || {
            let from = name(&mut Rng(rng.0), longest);
            b.model.range(from..).next().or(b.model.iter().next()).map(|(k, _)| k.clone())
        };
        let known = known();
        rng.next();
        let what = rng.below(100);
        if what < bias {
            let name = name(rng, longest);
            if !b.model.contains_key(&name) {
                let e = entry(rng);
                b.insert(&name, e).unwrap();
            }
        } else if let Some(known) = known {
            if what % 4 == 0 {
                let e = entry(rng);
                b.replace(&known, e);
            } else {
                b.remove(&known);
            }
        }
        let absent = name(rng, longest);
        assert_eq!(b.lookup(&absent), b.model.get(&absent).copied());
    }
}

#[test]
fn follows_a_model() {
    for (seed, longest) in [(1, 3), (2, 10), (3, 40), (4, 255)] {
        let mut rng = Rng(seed);
        let mut b = Bench::new(64 << 20, Sip::new(seed));
        for bias in [90, 20, 60, 40, 95, 5] {
            steps(&mut b, &mut rng, 3000, bias, longest);
            b.verify();
        }
        let names: Vec<_> = b.model.keys().cloned().collect();
        names.iter().for_each(|n| b.remove(n));
        assert_eq!(b.d, Dir::EMPTY);
    }
}
