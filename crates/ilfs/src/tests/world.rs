//! Files of a test: the content and the place of each page.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use exraid::{Aligned, Buffers};

use super::super::clean::{Cleaned, Reason};
use super::super::error::{Error, Result};
use super::super::files::{Fate, Files, Move};
use super::super::part::Owner;
use super::super::place::{Place, Run};
use super::super::sorted::Kind;
use super::super::{Class, Head};
use super::rig::{block, content, Rig};

/// An inode and a page of it: its place, and the seed of its content.
pub type Pages = BTreeMap<(u64, u64), (Place, u64)>;

pub struct World {
    pub rig: Rig,
    pub pages: Arc<Mutex<Pages>>,
    /// Newer versions that are in memory alone.
    pub newer: Mutex<BTreeMap<(u64, u64), u64>>,
    pub epoch: Cell<u64>,
    pub durable: Cell<u64>,
    seed: Cell<u64>,
    /// Classes of inodes, where they differ from the usual one.
    pub classes: Mutex<BTreeMap<u64, Class>>,
    /// The next relocation finds that the mapping has changed meanwhile.
    pub race: Cell<bool>,
}

impl World {
    pub fn new(rig: Rig) -> World {
        World::with(rig, Pages::new(), 1, 0)
    }

    pub fn with(rig: Rig, pages: Pages, seed: u64, durable: u64) -> World {
        World {
            rig,
            pages: Arc::new(Mutex::new(pages)),
            newer: Mutex::default(),
            epoch: Cell::new(durable.max(1)),
            durable: Cell::new(durable),
            seed: Cell::new(seed),
            classes: Mutex::default(),
            race: Cell::new(false),
        }
    }

    pub fn next_seed(&self) -> u64 {
        self.seed.set(self.seed.get() + 1);
        self.seed.get()
    }

    /// Writes these pages, with new content.
    pub fn write(&self, pages: &[(u64, u64)]) -> Result<()> {
        let seeds: Vec<u64> = pages.iter().map(|_| self.next_seed()).collect();
        let blocks: Vec<_> = pages.iter().zip(&seeds).map(|((ino, page), seed)| block(*ino, *page, *seed)).collect();
        let mut writer = self.rig.log.sorted(&self.rig.session, Head::Hot, None);
        for block in blocks {
            writer.push(self.kind(block.owner, Place::new(1, 0))?, block)?;
        }
        let places = writer.finish()?;
        let log = &self.rig.log;
        for (some, seeds) in pages.iter().zip(&places).collect::<Vec<_>>().chunks(100).zip(seeds.chunks(100)) {
            let mut map = self.pages.lock().expect("not poisoned");
            log.change(&self.rig.session, |change| {
                for (page, place) in some {
                    assert!(log.can_link(change.tx, **place)?, "{place}");
                    if let Some((old, _)) = map.get(page) {
                        log.unlink(change.tx, &[*old])?;
                    }
                }
                Ok(())
            })?;
            map.extend(some.iter().zip(seeds).map(|((page, place), seed)| (**page, (**place, *seed))));
        }
        Ok(())
    }

    pub fn remove(&self, pages: &[(u64, u64)]) {
        for page in pages {
            if let Some((place, _)) = self.pages.lock().expect("not poisoned").remove(page) {
                self.rig.unlink(&[place]);
            }
            self.newer.lock().expect("not poisoned").remove(page);
        }
    }

    pub fn commit(&self) {
        self.epoch.set(self.epoch.get() + 1);
        self.durable.set(self.epoch.get());
    }

    pub fn reclaim(&self) -> Result<u64> {
        self.rig.log.reclaim(&self.rig.session, self.durable.get(), 1000)
    }

    pub fn clean(&self, wanted: u64) -> Result<Cleaned> {
        self.rig.log.clean(&self.rig.session, self, wanted, &mut || true)
    }

    /// Cleans until so many segments are free, or no more can be freed.
    pub fn make_room(&self, wanted: u64) -> Result<Reason> {
        loop {
            match self.clean(wanted)? {
                Cleaned::Asleep(Reason::AwaitingCommit) => {
                    self.commit();
                    assert!(self.reclaim()? > 0, "what was freed is free");
                }
                Cleaned::Asleep(reason) => return Ok(reason),
                _ => {}
            }
        }
    }

    /// Checks the content of each page that can be read; returns how many cannot.
    pub fn verify(&self) -> u64 {
        let mut failed = 0;
        for ((ino, page), (place, seed)) in self.pages.lock().expect("not poisoned").iter() {
            match self.rig.read(Run::one(*place)) {
                Ok(found) => assert!(found == content(*seed), "page {page} of {ino}: {place} has other content"),
                Err(Error::Damaged { .. } | Error::Device(_)) => failed += 1,
                Err(e) => panic!("page {page} of {ino}: {e}"),
            }
        }
        failed
    }
}

impl Files for World {
    fn fate(&self, owner: Owner, place: Place) -> Result<Fate> {
        let page = (owner.ino, owner.page);
        if self.pages.lock().expect("not poisoned").get(&page).map(|(now, _)| *now) != Some(place) {
            return Ok(if self.race.get() { Fate::Live } else { Fate::Dead });
        }
        Ok(match self.newer.lock().expect("not poisoned").get(&page) {
            Some(seed) => Fate::Newer(Buffers::whole(&Aligned::of(&content(*seed))), *seed),
            None => Fate::Live,
        })
    }

    fn relocate(&self, moves: &[Move]) -> Result<Vec<bool>> {
        let (log, mut pages) = (&self.rig.log, self.pages.lock().expect("not poisoned"));
        let mut one = |moved: &Move| {
            let page = (moved.owner.ino, moved.owner.page);
            let Some((now, seed)) = pages.get(&page).copied().filter(|(now, _)| *now == moved.from) else {
                return Ok(false);
            };
            log.change(&self.rig.session, |change| {
                assert!(log.can_link(change.tx, moved.to)?);
                log.unlink(change.tx, &[now])
            })?;
            let mut newer = self.newer.lock().expect("not poisoned");
            if moved.newer.is_some() && newer.get(&page) == moved.newer.as_ref() {
                newer.remove(&page);
            }
            pages.insert(page, (moved.to, moved.newer.unwrap_or(seed)));
            Ok(true)
        };
        moves.iter().map(&mut one).collect()
    }

    /// Memory holds none of them.
    fn redirty(&self, blocks: &[(Owner, Place)]) -> Result<Vec<bool>> {
        Ok(vec![false; blocks.len()])
    }

    fn kind(&self, owner: Owner, _: Place) -> Result<Kind> {
        Ok((self.classes.lock().expect("not poisoned").get(&owner.ino).copied().unwrap_or_default(), 1))
    }

    fn epoch(&self) -> u64 {
        self.epoch.get()
    }
}
