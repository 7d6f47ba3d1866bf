//! A prefix code over buckets of values, for one field: what is common takes few bits.
//!
//! A bucket holds the values from its base on that so many extra bits tell apart; which bucket it is, a prefix tells.
//! The three codecs of mramfs are such codes, and differ in how the buckets and the prefixes are chosen (see
//! [`fit`](super::fit)). The last bucket is OTHER: it holds every value of the field, in full.

use super::bits::{Reader, Writer};

/// Most bits of a prefix: one look into a table of 1 KiB finds the bucket (mramfs bounds the depth of Huffman trees too).
pub const DEPTH: u32 = 10;
/// Most buckets of a code.
pub const BUCKETS: usize = 255;
/// A bucket that is none, for prefixes that no bucket has: longer than nearly all streams, so that whoever reads it is told.
const NONE: Bucket = Bucket { base: 0, extra: 0, len: u8::MAX, prefix: 0 };

/// Values `base` to `base + 2^extra - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub base: u64,
    /// Bits behind the prefix, at most 64.
    pub extra: u8,
    /// Bits of the prefix.
    pub len: u8,
    prefix: u16,
}

impl Bucket {
    pub fn new(base: u64, extra: u8, len: u8) -> Bucket {
        Bucket { base, extra, len, prefix: 0 }
    }

    /// Is `value` one of it?
    #[inline(always)]
    pub fn holds(&self, value: u64) -> bool {
        value.checked_sub(self.base).is_some_and(|d| self.extra >= 64 || d >> self.extra == 0)
    }

    /// Bits of each of its values.
    pub fn bits(&self) -> u32 {
        u32::from(self.len) + u32::from(self.extra)
    }
}

/// The code of a field.
#[derive(Clone, Debug)]
pub struct Code {
    /// By base, OTHER behind them.
    buckets: Vec<Bucket>,
    /// For each [`DEPTH`] bits the bucket whose prefix they begin with.
    found: Box<[u8; 1 << DEPTH]>,
    /// The buckets again, by number; what is not there is [`NONE`].
    by_number: Box<[Bucket; BUCKETS + 1]>,
    /// For values below its length, the bucket.
    small: Box<[u8; 256]>,
}

impl Code {
    /// A code of these buckets, ascending, of which the last is OTHER; prefixes follow from their lengths, shorter ones and earlier
    /// ones first. `None` if there can be no such code.
    pub fn new(mut buckets: Vec<Bucket>) -> Option<Code> {
        let (other, ascending) = buckets.split_last()?;
        let is_sound = buckets.len() <= BUCKETS
            && other.base == 0
            && other.extra <= 64
            && ascending.windows(2).all(|w| w[0].base < w[1].base)
            && ascending.iter().all(|b| b.extra < 64)
            && buckets.iter().all(|b| (1..=DEPTH).contains(&u32::from(b.len)));
        let room: u64 =
            buckets.iter().map(|b| 1u64.checked_shl(DEPTH - u32::from(b.len).min(DEPTH)).unwrap_or(0)).sum();
        if !is_sound || room > 1 << DEPTH {
            return None;
        }
        let mut found = Box::new([BUCKETS as u8; 1 << DEPTH]);
        let mut order: Vec<usize> = (0..buckets.len()).collect();
        order.sort_by_key(|n| buckets[*n].len);
        let mut next = 0u32;
        for n in order {
            let len = u32::from(buckets[n].len);
            // Streams begin with the lowest bit, canonical prefixes with the highest.
            let prefix = (next >> (DEPTH - len)).reverse_bits() >> (32 - len);
            buckets[n].prefix = prefix as u16;
            (0..1 << (DEPTH - len)).for_each(|rest| found[(prefix | rest << len) as usize] = n as u8);
            next += 1 << (DEPTH - len);
        }
        let mut by_number = Box::new([NONE; BUCKETS + 1]);
        by_number[..buckets.len()].copy_from_slice(&buckets);
        let mut code = Code { buckets, found, by_number, small: Box::new([0; 256]) };
        (0..256).for_each(|v| code.small[v] = code.search(v as u64) as u8);
        Some(code)
    }

    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    fn search(&self, value: u64) -> usize {
        let other = self.buckets.len() - 1;
        let behind = self.buckets[..other].partition_point(|b| b.base <= value);
        behind.checked_sub(1).filter(|n| self.buckets[*n].holds(value)).unwrap_or(other)
    }

    /// The bucket that codes `value`.
    #[inline(always)]
    fn bucket(&self, value: u64) -> &Bucket {
        let n = match self.small.get(value as usize) {
            Some(n) if value < 256 => usize::from(*n),
            _ => self.search(value),
        };
        &self.by_number[n.min(BUCKETS)]
    }

    /// Bits of `value`.
    pub fn bits(&self, value: u64) -> u32 {
        self.bucket(value).bits()
    }

    #[inline(always)]
    pub fn put(&self, w: &mut Writer, value: u64) {
        let b = self.bucket(value);
        let (len, rest) = (u32::from(b.len), value.wrapping_sub(b.base));
        if b.extra <= 20 {
            return w.put(u64::from(b.prefix) | rest << len, len + u32::from(b.extra));
        }
        w.put(u64::from(b.prefix), len);
        w.put(rest, u32::from(b.extra));
    }

    /// The next value; what is read of a stream that was not made by this code is any number.
    #[inline(always)]
    pub fn take(&self, r: &mut Reader) -> u64 {
        let word = r.peek();
        let b = &self.by_number[usize::from(self.found[(word & ((1 << DEPTH) - 1)) as usize])];
        r.skip(u32::from(b.len));
        if b.extra <= 40 {
            r.skip(u32::from(b.extra));
            return b.base.wrapping_add(word >> b.len.min(63) & ((1 << b.extra) - 1));
        }
        b.base.wrapping_add(r.take(u32::from(b.extra)))
    }
}
