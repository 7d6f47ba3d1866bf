//! Directories on a memory of the test's own, beside a model of their content.

use std::collections::BTreeMap;

use pram::{Memory, Session};
use rng::Rng;

use super::*;
use crate::packed::names::{Sample, Symbols};
use pram::sip::{NameHash, Sip};

mod cookies;
mod damage;
mod model;
mod packed;
mod space;
mod speed;

/// A directory with the hash function, the model, and the checks after each step.
pub struct Bench<H> {
    pub s: Session,
    pub h: H,
    pub d: Dir,
    pub model: BTreeMap<Vec<u8>, Entry>,
}

/// With symbols of names as the tests have them, with any hash.
macro_rules! named {
    ($hash:ty) => {
        impl crate::dir::naming::Naming for $hash {
            fn symbols(&self, profile: u8) -> crate::error::Result<&crate::packed::names::Symbols> {
                match profile {
                    0 => Ok(crate::dir::tests::symbols()),
                    n => Err(crate::dir::damaged(n.into(), "no such profile")),
                }
            }

            fn profiles(&self) -> crate::error::Result<crate::packed::profile::Numbers> {
                Ok([0].into_iter().collect())
            }
        }
    };
}
use named;
named!(Sip);

pub fn symbols() -> &'static Symbols {
    static SYMBOLS: std::sync::OnceLock<Symbols> = std::sync::OnceLock::new();
    SYMBOLS.get_or_init(|| {
        let mut sample = Sample::default();
        (0..1000).for_each(|n| sample.add(format!("name{n}file{n:03}.txt").as_bytes()));
        sample.symbols()
    })
}

impl<H: Naming> Bench<H> {
    pub fn new(size: u64, h: H) -> Self {
        Bench { s: pram::Session::in_memory(size).unwrap(), h, d: Dir::EMPTY, model: BTreeMap::new() }
    }

    pub fn insert(&mut self, name: &[u8], e: Entry) -> Result<()> {
        let mut op = self.s.begin()?;
        let mut tx = op.tx()?;
        let mut d = self.d;
        insert(&mut tx, &self.h, &mut d, name, e)?;
        tx.commit()?;
        self.d = d;
        assert_eq!(self.model.insert(name.to_vec(), e), None);
        Ok(())
    }

    pub fn remove(&mut self, name: &[u8]) {
        let mut op = self.s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let got = remove(&mut tx, &self.h, &mut self.d, name).unwrap();
        tx.commit().unwrap();
        assert_eq!(got, self.model.remove(name));
    }

    pub fn replace(&mut self, name: &[u8], e: Entry) {
        let mut op = self.s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let got = replace(&mut tx, &self.h, &mut self.d, name, e).unwrap();
        tx.commit().unwrap();
        assert_eq!(got, self.model.get(name).copied());
        if got.is_some() {
            self.model.insert(name.to_vec(), e);
        }
    }

    /// Packs all buckets that can be packed, one at a time; returns their bytes before and after.
    pub fn pack(&mut self) -> (u64, u64) {
        let (mut next, mut sum) = (Some(0), (0, 0));
        while let Some(index) = next {
            let mut op = self.s.begin().unwrap();
            let mut tx = op.tx().unwrap();
            let step = pack::pack_next(&mut tx, &self.h, &mut self.d, index).unwrap();
            tx.commit().unwrap();
            next = step.next;
            sum = (sum.0 + step.before, sum.1 + step.after);
        }
        sum
    }

    pub fn lookup(&self, name: &[u8]) -> Option<Entry> {
        spot(self.s.memory(), &self.h, &self.d, name).unwrap().map(|spot| spot.entry())
    }

    /// Up to `most` entries from `cookie` on, with their cookies.
    pub fn list_from(&self, cookie: u64, most: usize) -> Vec<(u64, Vec<u8>, Entry)> {
        let mut some = Vec::new();
        readout::read(self.s.memory(), &self.h, &self.d, cookie, &mut |cookie, name, e| {
            assert!(cookie > 2 && cookie < 1 << 63);
            some.push((cookie, name.to_vec(), e));
            some.len() < most
        })
        .unwrap();
        some
    }

    /// Some name of the model.
    pub fn some_name(&self, rng: &mut Rng) -> Option<Vec<u8>> {
        let from = name(rng, 4);
        self.model.range(from..).next().or(self.model.iter().next()).map(|(k, _)| k.clone())
    }

    /// Everything is as the model says.
    pub fn verify(&self) {
        assert_eq!(self.d.entries, self.model.len() as u64);
        let mut all = self.list_from(0, usize::MAX);
        all.sort_by(|a, b| a.1.cmp(&b.1));
        assert!(all.iter().map(|(_, n, e)| (n, e)).eq(self.model.iter()));
        for (name, e) in &self.model {
            assert_eq!(self.lookup(name), Some(*e));
        }
        assert_eq!(self.problems(), [""; 0]);
        assert_eq!(self.s.memory().allocated_bytes().unwrap(), self.bytes(), "no leaks");
    }

    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        check::check(self.s.memory(), &self.h, &self.d, &mut |p| problems.push(p), &mut |_, _| {});
        problems
    }

    /// Bytes of the directory's objects.
    pub fn bytes(&self) -> u64 {
        let mut sum = 0;
        let r = self.s.memory();
        visit(r, &self.d, &mut |off, tag| sum += r.resolve(off, tag).unwrap()).unwrap();
        sum
    }
}

pub fn entry(rng: &mut Rng) -> Entry {
    Entry { ino: 1 + rng.below(crate::layout::MAX_INODES - 1), kind: [1, 2, 4, 6, 8, 10, 12][rng.below(7) as usize] }
}

/// A name of 1 to `longest` letters.
pub fn name(rng: &mut Rng, longest: u64) -> Vec<u8> {
    (0..1 + rng.below(longest)).map(|_| b'a' + rng.below(26) as u8).collect()
}

#[test]
fn constants_are_as_documented() {
    use crate::layout::documented;
    assert_eq!(documented("SPLIT"), super::bucket::SPLIT);
    assert_eq!(documented("DIR_PACKED"), u64::from(form::PACKED));
    assert_eq!(documented("MAX_DEPTH"), u64::from(super::table::MAX_DEPTH));
    let sizes: Vec<String> = super::bucket::SIZES.iter().map(u64::to_string).collect();
    let (last, others) = sizes.split_last().unwrap();
    let listed = format!("A bucket is an object of {} or {last} bytes", others.join(", "));
    let page: Vec<&str> = include_str!("../../../../../docs/FORMAT.md").split_whitespace().collect();
    assert!(page.join(" ").contains(&listed), "{listed}");
}
