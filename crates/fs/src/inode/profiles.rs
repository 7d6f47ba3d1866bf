//! Profiles: the codes that inodes are packed with, stored in the pool, so that any version reads them.
//!
//! A profile has a number, for good; blocks that were packed with it have that number. It is stored twice, each copy with its checksum,
//! since all inodes packed with it depend on it. Only a repair removes one, if both copies are lost. Steps of adding one:
//! 1. The object, durable. A crash leaks it.
//! 2. One root word leads to it, unless another process took the number.

use std::sync::OnceLock;

use pram::{Memory, Off, Session};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::Table;
use crate::error::{Error, Result};
use crate::layout::{root, tag, RawInode, RawProfile, PER_BLOCK, PROFILES};
use crate::packed::block::MAX;
use crate::packed::profile::{Codec, Numbers};
use crate::packed::seen::Seen;
use crate::packed::{builtin, Prepared, Profile};
use crate::retry::with_memory;
use crate::Ino;

const BODY: u64 = size_of::<RawProfile>() as u64;

/// Those that this process has read.
#[derive(Default)]
pub struct Profiles([OnceLock<Profile>; PROFILES]);

impl<'a> Table<'a> {
    /// The profile with this number.
    #[inline(always)]
    pub fn profile(&self, n: u8) -> Result<&'a Profile> {
        match self.known.profiles.0.get(usize::from(n)).and_then(OnceLock::get) {
            Some(profile) => Ok(profile),
            None => self.read_profile(n),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_profile(&self, n: u8) -> Result<&'a Profile> {
        let missing = || Error::Corrupt(format!("there is no profile {n} to read packed inodes with"));
        let known = self.known.profiles.0.get(usize::from(n)).ok_or_else(missing)?;
        let profile = match stored(self.memory, n).ok().flatten() {
            Some(profile) => profile,
            // A lost profile was stored under this number.
            None if n == 0 => builtin_again(),
            None => return Err(missing()),
        };
        Ok(known.get_or_init(|| profile))
    }

    /// The numbers of the profiles that there are.
    pub fn profiles(&self) -> Result<Numbers> {
        numbers(self.memory)
    }

    /// Packs the inodes by the profile that makes the least of some of them; how many bytes that is.
    pub(super) fn pack(&self, inodes: &[Option<RawInode>; PER_BLOCK as usize], out: &mut [u8; MAX]) -> Result<usize> {
        let prepared = Prepared::of(inodes);
        let known = self.profiles()?.into_iter().filter_map(|n| self.profile(n).ok().map(|profile| (n, profile)));
        let known: SmallVec<[_; PROFILES]> = known.collect();
        let best = match known.as_slice() {
            [only] => Some(only),
            several => several.iter().min_by_key(|(_, profile)| prepared.bits_of_some(profile)),
        };
        match best {
            Some((n, profile)) => Ok(prepared.pack(profile, *n, out)),
            None => Err(Error::Corrupt("no profile to pack inodes with can be read".into())),
        }
    }
}

/// Apart: copying it takes 60 KiB of stack.
#[cold]
#[inline(never)]
fn builtin_again() -> Profile {
    builtin().clone()
}

fn word(memory: &Memory, n: u8) -> Off<u64> {
    memory.root(root::PROFILES + u64::from(n))
}

/// The profile that is stored under this number; the first copy that is whole.
fn stored(memory: &Memory, n: u8) -> Result<Option<Profile>> {
    let off = memory.load(word(memory, n))?;
    if off == 0 {
        return Ok(None);
    }
    let cap = memory.resolve(off, tag::PACKING)?;
    let head: RawProfile = memory.read(Off::new(off))?;
    let len = u64::from(head.len);
    if 2 * len + BODY > cap {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    for copy in 0..2 {
        memory.read_bytes(off + BODY + copy * len, &mut bytes)?;
        if let Some(profile) = Profile::from_bytes(&bytes) {
            return Ok(Some(profile));
        }
    }
    Ok(None)
}

/// Makes sure that there is a profile: the one that comes with the program is number 0.
pub fn make_first(session: &Session, table: Table) -> Result<()> {
    if table.memory.load(word(table.memory, 0))? == 0 {
        install(session, 0, &builtin().to_bytes())?;
    }
    Ok(())
}

/// Adds a profile; its number. One that is there already is not added again.
pub fn add(session: &Session, bytes: &[u8]) -> Result<u8> {
    let refused = |text: &str| Error::Pool(format!("the profile cannot be added: {text}"));
    Profile::from_bytes(bytes).ok_or_else(|| refused("it is damaged, or of another version"))?;
    for n in 0..PROFILES as u8 {
        let memory = session.memory();
        if memory.load(word(memory, n))? == 0 && install(session, n, bytes)? {
            return Ok(n);
        }
        if stored(memory, n)?.is_some_and(|there| there.to_bytes() == bytes) {
            return Ok(n);
        }
    }
    Err(refused("the pool has as many as it can have"))
}

/// The numbers of the profiles that there are, ascending; with gaps where a repair took one away.
pub fn numbers(memory: &Memory) -> Result<Numbers> {
    let mut numbers = Numbers::new();
    for n in 0..PROFILES as u8 {
        if memory.load(word(memory, n))? != 0 {
            numbers.push(n);
        }
    }
    Ok(numbers)
}

/// A scan of the inodes that have not changed since `quiet_since` and are `meant`, as they are packed, and of the additions of `names` for
/// each: of all, or if there are more than `most` inodes, of such a part from all over the table. `None` if these are fewer than `least`.
pub fn sample(
    session: &Session,
    table: Table,
    most: usize,
    (quiet_since, meant): (i64, fn(&RawInode) -> bool),
    least: usize,
    names: &mut dyn FnMut(Ino, &RawInode, &mut Seen),
) -> Result<Option<Seen>> {
    let (mut blocks, mut all) = (Vec::new(), 0);
    let mut from = 0;
    while let Some(block) = table.next_block(from)? {
        from = block + 1;
        blocks.push(block);
    }
    let step = (blocks.len() * PER_BLOCK as usize / most.max(1)).max(1);
    let mut seen: Vec<Vec<RawInode>> = Vec::new();
    let mut tallies = Seen::default();
    for block in blocks.into_iter().step_by(step) {
        let mut inodes = Vec::new();
        for ino in block * PER_BLOCK..(block + 1) * PER_BLOCK {
            // Unreadable inodes are for fsck to report.
            let raw = session.read(ino, || table.get(ino)).ok().flatten();
            let Some(raw) = raw.filter(|raw| raw.ctime < quiet_since && meant(raw)) else { continue };
            names(ino, &raw, &mut tallies);
            inodes.push(raw.times().packed(&raw));
        }
        all += inodes.len();
        seen.push(inodes);
    }
    if all == 0 || all < least {
        return Ok(None);
    }
    seen.iter().filter(|block| !block.is_empty()).for_each(|block| tallies.add(block));
    Ok(Some(tallies))
}

/// A profile of the scanned inodes.
pub fn of(seen: &Seen) -> Profile {
    seen.profile(Codec::Hybrid)
}

/// Would it take by each of the stored profiles so much more than by this one, a tenth, that this one is worth having?
pub fn is_worth(table: Table, seen: &Seen, profile: &Profile) -> Result<bool> {
    let bits = |profile: &Profile| seen.bits(profile).iter().map(|(_, bits)| bits).sum::<u64>();
    let there = numbers(table.memory)?.into_iter().filter_map(|n| table.profile(n).ok());
    Ok(there.map(bits).min().is_none_or(|least| least > bits(profile) / 10 * 11))
}

fn install(session: &Session, n: u8, bytes: &[u8]) -> Result<bool> {
    with_memory(session, || {
        let mut op = session.begin()?;
        // 1.
        let mut tx = op.tx()?;
        let made = tx.alloc(tag::PACKING, BODY + 2 * bytes.len() as u64)?;
        let head = RawProfile { len: bytes.len() as u32, reserved: 0 };
        tx.init_bytes(made.off, head.as_bytes())?;
        tx.init_pair(made.off + BODY, bytes, bytes)?;
        tx.commit()?;
        // 2.
        if session.memory().install_word(word(session.memory(), n), 0, made.off)? {
            return Ok(true);
        }
        let mut tx = op.tx()?;
        tx.free(made.off, tag::PACKING)?;
        tx.commit()?;
        Ok(false)
    })
}

/// The objects that profiles lie in.
pub fn objects(memory: &Memory) -> Result<Vec<u64>> {
    let words = (0..PROFILES as u8).map(|n| memory.load(word(memory, n)));
    Ok(words.collect::<pram::Result<Vec<u64>>>()?.into_iter().filter(|off| *off != 0).collect())
}

/// Profiles of which no copy is whole: the number, and the word that leads there.
pub fn lost(memory: &Memory) -> Result<Vec<(u8, Off<u64>)>> {
    let mut lost = Vec::new();
    for n in 0..PROFILES as u8 {
        if memory.load(word(memory, n))? != 0 && stored(memory, n).ok().flatten().is_none() {
            lost.push((n, word(memory, n)));
        }
    }
    Ok(lost)
}
