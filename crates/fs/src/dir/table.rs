//! The table of a large directory: 2^depth offsets of buckets, indexed by the top bits of the hash.
//!
//! A bucket of local depth `l` stands in the 2^(depth - l) adjacent entries whose indices agree in their
//! top `l` bits. The low bit of an offset says that the bucket is packed.

use pram::{Memory, Off, Tx};
use smallvec::SmallVec;

use super::bucket::Bucket;
use super::damaged;
use super::packed::Packed;
use crate::error::Result;
use crate::layout::{tag, PACKED};

/// Depth of the largest table, 128 MiB of offsets.
pub const MAX_DEPTH: u8 = 24;

const WORD: u64 = 8;
/// Words copied in one go.
const STEP: usize = 256;

/// A bucket in one of its forms.
#[derive(Clone, Copy, Debug)]
pub enum AnyBucket {
    Plain(Bucket),
    Packed(Packed),
}

impl AnyBucket {
    #[inline(always)]
    pub fn depth(&self) -> u8 {
        match self {
            AnyBucket::Plain(bucket) => bucket.head.depth,
            AnyBucket::Packed(bucket) => bucket.head.depth,
        }
    }

    #[inline(always)]
    pub fn off(&self) -> u64 {
        match self {
            AnyBucket::Plain(bucket) => bucket.off,
            AnyBucket::Packed(bucket) => bucket.off,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub off: u64,
    pub depth: u8,
    /// Made by this transaction: nothing links it yet, so nothing in it needs undo.
    fresh: bool,
}

impl Table {
    #[inline(always)]
    pub fn open(r: &Memory, off: u64, depth: u8) -> Result<Table> {
        let cap = r.resolve(off, tag::BUCKET_TABLE)?;
        if depth > MAX_DEPTH || cap < WORD << depth {
            return Err(damaged(off, "bucket table is deeper than its object"));
        }
        Ok(Table { off, depth, fresh: false })
    }

    fn at(&self, index: u64) -> u64 {
        self.off + index * WORD
    }

    pub fn len(&self) -> u64 {
        1 << self.depth
    }

    /// The index for a hash.
    #[inline(always)]
    pub fn index(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - u32::from(self.depth)).unwrap_or(0)
    }

    #[inline(always)]
    pub fn word(&self, r: &Memory, index: u64) -> Result<u64> {
        Ok(r.load(Off::new(self.at(index)))?)
    }

    /// The bucket at `index`, and the first of the entries that it stands in.
    #[inline(always)]
    pub fn bucket(&self, r: &Memory, index: u64) -> Result<(AnyBucket, u64)> {
        let word = self.word(r, index)?;
        let bucket = match word & PACKED {
            0 => AnyBucket::Plain(Bucket::open(r, word)?),
            _ => AnyBucket::Packed(Packed::open(r, word & !PACKED)?),
        };
        if bucket.depth() > self.depth {
            return Err(damaged(bucket.off(), "bucket is deeper than its table"));
        }
        Ok((bucket, index & !(self.span(bucket.depth()) - 1)))
    }

    /// How many entries a bucket of local depth `depth` stands in.
    #[inline(always)]
    pub fn span(&self, depth: u8) -> u64 {
        1 << self.depth.saturating_sub(depth)
    }

    /// A table of depth `depth`, the same or more, with the same buckets.
    pub fn copy(&self, tx: &mut Tx, depth: u8) -> Result<Table> {
        let table = Table::alloc(tx, depth)?;
        let times = 1 << (depth - self.depth);
        self.transfer(tx, &table, |words, out| {
            words.iter().for_each(|w| out.extend(std::iter::repeat_n(*w, times)));
        })?;
        Ok(table)
    }

    /// A table of half the size, for buckets that all stand in two entries or more.
    pub fn halve(&self, tx: &mut Tx) -> Result<Table> {
        let table = Table::alloc(tx, self.depth - 1)?;
        self.transfer(tx, &table, |words, out| out.extend(words.iter().step_by(2).copied()))?;
        Ok(table)
    }

    pub fn alloc(tx: &mut Tx, depth: u8) -> Result<Table> {
        let block = tx.alloc(tag::BUCKET_TABLE, WORD << depth)?;
        Ok(Table { off: block.off, depth, fresh: true })
    }

    /// Fills a fresh table with the results of `f` for each few words of this one.
    fn transfer(
        &self,
        tx: &mut Tx,
        to: &Table,
        f: impl Fn(&[[u8; 8]], &mut SmallVec<[[u8; 8]; 2 * STEP]>),
    ) -> Result<()> {
        let (mut from, mut at) = (0, to.off);
        while from < self.len() {
            let mut words = [[0; 8]; STEP];
            let words = &mut words[..(self.len() - from).min(STEP as u64) as usize];
            tx.memory().read_bytes(self.at(from), words.as_flattened_mut())?;
            from += words.len() as u64;
            let mut out = SmallVec::new();
            f(words, &mut out);
            tx.init_bytes(at, out.as_flattened())?;
            at += out.len() as u64 * WORD;
        }
        Ok(())
    }

    /// Bytes of undo log that a change of `count` entries takes.
    pub fn log_needed(count: u64) -> u64 {
        count.div_ceil(STEP as u64) * pram::tx::RECORD + count * WORD
    }

    /// Lets `count` entries from `first` on hold `to`.
    pub fn fill(&self, tx: &mut Tx, first: u64, count: u64, to: u64) -> Result<()> {
        let words = [to.to_le_bytes(); STEP];
        let (mut at, end) = (first, first + count);
        while at < end {
            let part = &words[..(end - at).min(STEP as u64) as usize];
            if self.fresh {
                tx.init_bytes(self.at(at), part.as_flattened())?;
            } else {
                tx.set_bytes(self.at(at), part.as_flattened())?;
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Could the table be halved? Looks from the pair of `start` on, all the way round, so that while there
    /// are buckets of full depth the answer comes soon.
    pub fn can_halve(&self, r: &Memory, start: u64) -> Result<bool> {
        let pairs = self.len() / 2;
        for i in 0..pairs {
            let pair = (start / 2 + i) % pairs;
            let [a, b] = r.read::<[u64; 2]>(Off::new(self.at(pair * 2)))?;
            if a != b {
                return Ok(false);
            }
        }
        Ok(pairs > 0)
    }
}
