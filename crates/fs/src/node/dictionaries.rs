//! The pool's dictionaries, by which cold content is compressed: in the memory, twice, and prepared in this process.
//!
//! Each of the two copies is a list of its own, from a root word on, newest first: damage to one leaves the other. Dictionaries do not
//! change, and their numbers are not used again. Content is compressed with the newest only, so no other gets users; an older one
//! is freed once a walk over all inodes has found none that names it ([`drop_unused`](Fs::drop_unused_dictionaries)):
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | a newer one is there; operations under way are waited for | one of them commits content that names the old one behind the walk's back |
//! | 2 | the walk: each inode under its sequence counter | a torn look misses a user |
//! | 3 | under the lock of the lists, a transaction takes it out of both and frees it | |
//!
//! The operation that commits compressed content checks that the dictionary is still the newest
//! ([`is_newest`](Fs::is_newest_dictionary)).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use pram::{Memory, Off, Op, Session};
use zerocopy::IntoBytes;

use super::{content_of, Fs};
use crate::attr::Kind;
use crate::codec::dictionary::LONGEST;
use crate::codec::Dictionary;
use crate::error::{Error, Result};
use crate::file;
use crate::inode::packing::Purpose;
use crate::layout::{root, tag, RawDictionary};

/// The lock of the lists.
const KEY: u64 = (1 << 48) - 2;
/// Most that a pool has at a time; none is made beyond.
pub(crate) const MOST: usize = 16;
const HEAD: u64 = size_of::<RawDictionary>() as u64;

/// Those that this process has met.
#[derive(Default)]
pub(super) struct Dictionaries(RwLock<HashMap<u16, Arc<Dictionary>>>);

#[cfg(test)]
impl Dictionaries {
    /// As another process begins.
    pub fn forget(&self) {
        self.0.write().unwrap().clear();
    }
}

/// One object of a list.
#[derive(Clone, Copy)]
pub(crate) struct Listed {
    pub off: u64,
    pub head: RawDictionary,
}

/// The dictionaries of one list. Fails at the first that is no object of this type.
pub(crate) fn list(r: &Memory, copy: usize) -> Result<Vec<Listed>> {
    let (mut found, mut at) = (Vec::new(), r.load(r.root(root::DICTIONARIES[copy]))?);
    while at != 0 {
        let cap = r.resolve(at, tag::DICTIONARY)?;
        let head: RawDictionary = r.read(Off::new(at))?;
        let wrong = |why: &str| Err(Error::Corrupt(format!("dictionary {} at {at:#x}: {why}", head.number)));
        if cap < HEAD || u64::from(head.len) > (cap - HEAD).min(LONGEST as u64) {
            return wrong("it is longer than its object");
        }
        if found.len() >= MOST || found.iter().any(|one: &Listed| one.head.number <= head.number) {
            return wrong("the list goes on where it has to end");
        }
        found.push(Listed { off: at, head });
        at = head.older.raw();
    }
    Ok(found)
}

impl Listed {
    /// The dictionary, if it is whole.
    pub fn read(&self, r: &Memory) -> Result<Dictionary> {
        let mut bytes = vec![0; self.head.len as usize];
        r.read_bytes(self.off + HEAD, &mut bytes)?;
        match self.head.number != 0 && checksum(&self.head, &bytes) == self.head.check {
            true => Ok(Dictionary::new(self.head.number, bytes)),
            false => Err(Error::Corrupt(format!("dictionary {} does not have its checksum", self.head.number))),
        }
    }
}

fn checksum(head: &RawDictionary, bytes: &[u8]) -> u32 {
    let sum = pram::mem::crc32c(&head.number.to_le_bytes());
    pram::mem::crc32c_append(pram::mem::crc32c_append(sum, &head.len.to_le_bytes()), bytes)
}

/// The result of a look at the lists.
pub(crate) struct Survey {
    /// Numbers of those of which at least one copy is whole, newest first.
    pub whole: Vec<u16>,
    /// Problems.
    pub problems: Vec<String>,
    /// Bytes that they occupy.
    pub objects: Vec<u64>,
}

/// Looks at both lists.
pub(crate) fn survey(session: &Session) -> Result<Survey> {
    session.read(KEY, || {
        let mut seen = Survey { whole: Vec::new(), problems: Vec::new(), objects: Vec::new() };
        let r = session.memory();
        let mut numbers = [Vec::new(), Vec::new()];
        for (copy, found) in numbers.iter_mut().enumerate() {
            match list(r, copy) {
                Ok(listed) => {
                    for one in listed {
                        seen.objects.push(one.off);
                        match one.read(r) {
                            Ok(_) => found.push(one.head.number),
                            Err(e) => seen.problems.push(format!("copy {} of 2: {e}", copy + 1)),
                        }
                    }
                }
                Err(e) => seen.problems.push(format!("copy {} of 2 of the dictionaries: {e}", copy + 1)),
            }
        }
        let [first, second] = numbers;
        if first != second && seen.problems.is_empty() {
            seen.problems.push("the two copies of the dictionaries differ".into());
        }
        seen.whole = first;
        seen.whole.extend(second);
        seen.whole.sort_unstable_by(|a, b| b.cmp(a));
        seen.whole.dedup();
        Ok::<_, Error>(seen)
    })
}

impl Fs {
    /// The dictionary with this number; none for 0.
    ///
    /// # Errors
    /// It is not there, or neither copy is whole.
    pub(super) fn dictionary(&self, number: u16) -> Result<Option<Arc<Dictionary>>> {
        if number == 0 {
            return Ok(None);
        }
        let known = self.dictionaries.0.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        match known {
            Some(known) => Ok(Some(known)),
            None => self.load_dictionary(number).map(Some),
        }
    }

    #[cold]
    fn load_dictionary(&self, number: u16) -> Result<Arc<Dictionary>> {
        let r = self.memory();
        let found = self.session().read(KEY, || {
            let mut last = None;
            for copy in 0..root::DICTIONARIES.len() {
                let one = list(r, copy).and_then(|found| {
                    let one = found.into_iter().find(|one| one.head.number == number);
                    one.ok_or_else(|| Error::Corrupt(format!("dictionary {number} is not there")))?.read(r)
                });
                match one {
                    Ok(dictionary) => return Ok(dictionary),
                    Err(e) => last = Some(e),
                }
            }
            Err(last.unwrap_or_else(|| Error::Corrupt(format!("dictionary {number} is not there"))))
        })?;
        let mut known = self.dictionaries.0.write().unwrap_or_else(PoisonError::into_inner);
        Ok(known.entry(number).or_insert_with(|| Arc::new(found)).clone())
    }

    /// The number of the newest, or 0; for a caller inside an operation or section of [`KEY`], or as a hint.
    fn newest_number(&self) -> Result<u16> {
        Ok(list(self.memory(), 0)?.first().map_or(0, |one| one.head.number))
    }

    /// The dictionary by which content is compressed now, if there is one.
    pub(crate) fn newest_dictionary(&self) -> Result<Option<Arc<Dictionary>>> {
        let number = self.session().read(KEY, || self.newest_number())?;
        self.dictionary(number)
    }

    /// Whether this is still the newest, in the operation that commits content compressed with it.
    pub(super) fn is_newest_dictionary(&self, number: u16) -> bool {
        number == 0 || self.newest_number().is_ok_and(|newest| newest == number)
    }

    /// The MiB of samples of the newest, if there is one.
    pub(crate) fn newest_was_of(&self) -> Result<Option<u32>> {
        self.session().read(KEY, || Ok(list(self.memory(), 0)?.first().map(|one| one.head.of)))
    }

    /// Adds a dictionary, from then on the newest: `bytes` from training, or any bytes that files have in common, when there were so many MiB of small
    /// files. Its number; `None`: there are too many.
    pub fn add_dictionary(&self, bytes: &[u8], of: u32) -> Result<Option<u16>> {
        self.writable()?;
        self.beside(Purpose::Change, |op| self.add_dictionary_in(op, bytes, of))
    }

    fn add_dictionary_in(&self, op: &mut Op, bytes: &[u8], of: u32) -> Result<Option<u16>> {
        op.lock(&[KEY])?;
        let r = self.memory();
        let lists = [list(r, 0)?, list(r, 1)?];
        let newest = lists.iter().filter_map(|list| list.first()).map(|one| one.head.number).max().unwrap_or(0);
        let Some(number) = newest.checked_add(1) else { return Ok(None) };
        if lists.iter().any(|list| list.len() >= MOST) || bytes.is_empty() || bytes.len() > LONGEST {
            return Ok(None);
        }
        let mut tx = op.tx()?;
        for (word, list) in root::DICTIONARIES.into_iter().zip(&lists) {
            let object = tx.alloc(tag::DICTIONARY, HEAD + bytes.len() as u64)?;
            let older = Off::new(list.first().map_or(0, |one| one.off));
            let mut head = RawDictionary { older, number, reserved: 0, len: bytes.len() as u32, check: 0, of };
            head.check = checksum(&head, bytes);
            tx.init_pair(object.off, head.as_bytes(), bytes)?;
            tx.set(r.root(word), &object.off)?;
        }
        tx.commit()?;
        Ok(Some(number))
    }

    /// Frees the dictionaries that nothing names any more, but for the newest; how many. Steps 1 to 3.
    pub fn drop_unused_dictionaries(&self) -> Result<usize> {
        self.writable()?;
        let numbers = |copy| self.session().read(KEY, || list(self.memory(), copy));
        let (first, second) = (numbers(0)?, numbers(1)?);
        let old: Vec<u16> = first.iter().skip(1).map(|one| one.head.number).collect();
        if old.is_empty() || second.len() != first.len() {
            return Ok(0);
        }
        // 1.
        self.session().drain()?;
        // 2.
        let used = self.named_dictionaries()?;
        let unused: Vec<u16> = old.into_iter().filter(|number| !used.contains(number)).collect();
        // 3.
        for number in &unused {
            self.beside(Purpose::Change, |op| self.take_out(op, *number))?;
        }
        Ok(unused.len())
    }

    /// The numbers that content names.
    fn named_dictionaries(&self) -> Result<HashSet<u16>> {
        let (mut named, mut from) = (HashSet::new(), 0);
        while let Some(ino) = self.table().next_used(from)? {
            let number = self.session().read(ino, || {
                let Some(raw) = self.table().get(ino)? else { return Ok(0) };
                match raw.kind == Kind::Regular as u8 {
                    true => file::dictionary_of(self.memory(), &content_of(ino, &raw)),
                    false => Ok(0),
                }
            })?;
            named.insert(number);
            from = ino + 1;
        }
        Ok(named)
    }

    fn take_out(&self, op: &mut Op, number: u16) -> Result<()> {
        op.lock(&[KEY])?;
        let r = self.memory();
        let lists = [list(r, 0)?, list(r, 1)?];
        let mut tx = op.tx()?;
        for (word, list) in root::DICTIONARIES.into_iter().zip(&lists) {
            let Some(n) = list.iter().position(|one| one.head.number == number) else { continue };
            let before = match n.checked_sub(1) {
                Some(before) => Off::<u64>::new(list[before].off),
                None => r.root(word),
            };
            tx.set(before, &list[n].head.older.raw())?;
            tx.free(list[n].off, tag::DICTIONARY)?;
        }
        Ok(tx.commit()?)
    }

    /// Reduces both lists to the dictionaries that are whole, without a notification; for repair. Returns their number.
    pub(crate) fn mend_dictionaries(&self, op: &mut Op) -> Result<usize> {
        op.lock(&[KEY])?;
        let r = self.memory();
        let mut whole: Vec<Dictionary> = Vec::new();
        for copy in 0..root::DICTIONARIES.len() {
            for one in readable(r, copy) {
                if whole.iter().all(|has| has.number != one.number) {
                    whole.push(one);
                }
            }
        }
        whole.sort_unstable_by_key(|one| one.number);
        let mut heads = [0; 2];
        // Oldest first, in a transaction of its own: nothing leads to them yet. The old ones are swept.
        let mut tx = op.tx()?;
        for dictionary in &whole {
            for last in &mut heads {
                let object = tx.alloc(tag::DICTIONARY, HEAD + dictionary.bytes.len() as u64)?;
                let mut head = RawDictionary {
                    older: Off::new(*last),
                    number: dictionary.number,
                    reserved: 0,
                    len: dictionary.bytes.len() as u32,
                    check: 0,
                    of: 0,
                };
                head.check = checksum(&head, &dictionary.bytes);
                tx.init_pair(object.off, head.as_bytes(), &dictionary.bytes)?;
                *last = object.off;
            }
        }
        for (word, head) in root::DICTIONARIES.into_iter().zip(heads) {
            tx.set(r.root(word), &head)?;
        }
        tx.commit()?;
        Ok(whole.len())
    }
}

/// The readable part of a list, up to where it is damaged.
fn readable(r: &Memory, copy: usize) -> Vec<Dictionary> {
    let (mut found, mut at) = (Vec::new(), r.load(r.root(root::DICTIONARIES[copy])).unwrap_or(0));
    for _ in 0..MOST {
        let Ok(cap) = r.resolve(at, tag::DICTIONARY) else { break };
        let Ok(head) = r.read::<RawDictionary>(Off::new(at)) else { break };
        if u64::from(head.len) <= cap.saturating_sub(HEAD).min(LONGEST as u64) {
            found.extend(Listed { off: at, head }.read(r));
        }
        at = head.older.raw();
    }
    found
}
