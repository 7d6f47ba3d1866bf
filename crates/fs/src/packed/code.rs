//! A prefix code over buckets of values, for one field: common values take few bits.
//!
//! A bucket holds the values from its base on that so many extra bits tell apart; which bucket it is, a prefix tells.
//! The three codecs of mramfs are such codes, and differ in how the buckets and the prefixes are chosen (see
//! [`fit`](super::fit)). The last bucket is OTHER: it holds every value of the field, in full or behind its own length.

use super::bits::{Reader, Writer};

/// Most bits of a prefix: one look into a table of 1 KiB finds the bucket (mramfs bounds the depth of Huffman trees
/// too).
pub const DEPTH: u32 = 10;
/// Most buckets of a code.
pub const BUCKETS: usize = 255;
/// A bucket that is none, for prefixes that no bucket has: longer than nearly all streams, so that a reader
/// fails on it.
const NONE: Bucket = Bucket { base: 0, extra: 0, len: u8::MAX, prefix: 0 };

/// Instead of a number of extra bits, of OTHER: behind the prefix [`LENGTH`] bits tell how many there are, less one. So
/// a value that a profile of another tree has never seen costs about its own length.
pub const ESCAPED: u8 = 128;
const LENGTH: u32 = 6;

/// Values `base` to `base + 2^extra - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub base: u64,
    /// Bits behind the prefix, at most 64, or [`ESCAPED`].
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

    /// Bits of `value`, one of it.
    pub fn bits(&self, value: u64) -> u32 {
        let rest = if self.extra == ESCAPED { LENGTH + length(value) } else { u32::from(self.extra) };
        u32::from(self.len) + rest
    }
}

/// Bits of a value itself, one at least.
#[inline(always)]
fn length(value: u64) -> u32 {
    64 - (value | 1).leading_zeros()
}

/// The code of a field.
#[derive(Clone, Debug)]
pub struct Code {
    /// By base, OTHER behind them.
    buckets: Vec<Bucket>,
    /// For each [`DEPTH`] bits the bucket whose prefix they begin with.
    found: [u8; 1 << DEPTH],
    /// The buckets again, by number; missing ones are [`NONE`].
    by_number: [Bucket; BUCKETS + 1],
    /// For values below its length, the bucket.
    small: [u8; 256],
    /// For values from there on, by [`cell`]: how many buckets have bases below the cell.
    cells: [u8; CELLS + 1],
}

/// Cells of values, an eighth of a power of two each: between two neighbours there are few buckets.
const CELLS: usize = 64 << 3;

#[inline(always)]
fn cell(value: u64) -> usize {
    let top = length(value) - 1;
    (top << 3 | (value << (63 - top) >> 60) as u32 & 7) as usize
}

impl Code {
    /// A code of these buckets, ascending, of which the last is OTHER; prefixes follow from their lengths, shorter ones
    /// and earlier ones first. `None` if there can be no such code.
    pub fn new(mut buckets: Vec<Bucket>) -> Option<Code> {
        let (other, ascending) = buckets.split_last()?;
        let is_sound = buckets.len() <= BUCKETS
            && other.base == 0
            && (other.extra <= 64 || other.extra == ESCAPED)
            && ascending.windows(2).all(|w| w[0].base < w[1].base)
            && ascending.iter().all(|b| b.extra < 64)
            && buckets.iter().all(|b| (1..=DEPTH).contains(&u32::from(b.len)));
        let room: u64 =
            buckets.iter().map(|b| 1u64.checked_shl(DEPTH - u32::from(b.len).min(DEPTH)).unwrap_or(0)).sum();
        if !is_sound || room > 1 << DEPTH {
            return None;
        }
        let mut found = [BUCKETS as u8; 1 << DEPTH];
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
        let mut by_number = [NONE; BUCKETS + 1];
        by_number[..buckets.len()].copy_from_slice(&buckets);
        let mut cells = [buckets.len() as u8 - 1; CELLS + 1];
        for (n, bucket) in buckets[..buckets.len() - 1].iter().enumerate().rev() {
            cells[..=cell(bucket.base)].fill(n as u8);
        }
        let mut code = Code { buckets, found, by_number, small: [0; 256], cells };
        (0..256).for_each(|v| code.small[v] = code.search(v as u64) as u8);
        Some(code)
    }

    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    #[inline(always)]
    fn search(&self, value: u64) -> usize {
        let other = self.buckets.len() - 1;
        let cell = cell(value);
        let (from, to) = (usize::from(self.cells[cell]), usize::from(self.cells[cell + 1]));
        let near = self.buckets.get(from..to).unwrap_or(&[]);
        let behind = from + near.partition_point(|b| b.base <= value);
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
        self.bucket(value).bits(value)
    }

    #[inline(always)]
    pub fn put(&self, w: &mut Writer, value: u64) {
        let b = self.bucket(value);
        let (len, rest) = (u32::from(b.len), value.wrapping_sub(b.base));
        if b.extra <= 20 {
            return w.put(u64::from(b.prefix) | rest << len, len + u32::from(b.extra));
        }
        w.put(u64::from(b.prefix), len);
        if b.extra == ESCAPED {
            w.put(u64::from(length(value) - 1), LENGTH);
            return w.put(value, length(value));
        }
        w.put(rest, u32::from(b.extra));
    }

    /// The next value; a stream that was not made by this code gives any number.
    #[inline(always)]
    pub fn take(&self, r: &mut Reader) -> u64 {
        let word = r.peek();
        let b = &self.by_number[usize::from(self.found[(word & ((1 << DEPTH) - 1)) as usize])];
        r.skip(u32::from(b.len));
        if b.extra <= 40 {
            r.skip(u32::from(b.extra));
            return b.base.wrapping_add(word >> b.len.min(63) & ((1 << b.extra) - 1));
        }
        self.take_long(b, r)
    }

    #[cold]
    fn take_long(&self, b: &Bucket, r: &mut Reader) -> u64 {
        let bits = if b.extra == ESCAPED { r.take(LENGTH) as u32 + 1 } else { u32::from(b.extra) };
        b.base.wrapping_add(r.take(bits))
    }
}
