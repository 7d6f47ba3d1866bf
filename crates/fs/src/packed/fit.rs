//! Codes made from how often values occur (mramfs, 4.2 to 4.4).
//!
//! | codec | buckets | prefixes |
//! | --- | --- | --- |
//! | [`all_or_nothing`] | the most common value | one bit |
//! | [`huffman`] | the most common values, one each | Huffman's, of a bounded depth |
//! | [`gamma`] | ranges | gamma codes of their ranks |
//! | [`hybrid`] | single values and ranges, as is best | Huffman's, of a bounded depth |
//!
//! Ranges are cut by dynamic programming, so that all values together take the fewest bits (mramfs left open how): over the
//! values themselves where there are up to [`EXACT`] of them, else over the most common ones and narrow ranges of the others.

use std::collections::HashMap;

use super::code::{Bucket, Code, BUCKETS, DEPTH};

/// Values and ranges between which cuts are looked for.
const EXACT: usize = 1200;
/// Bits that a bucket must save, all values together: what it takes in a profile.
const PRICE: f64 = 40.0;
/// Ranges of a gamma code: of these the last has the longest prefix.
const RANKS: usize = (1 << DEPTH.div_ceil(2)) - 2;

/// How often each value of a field occurs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    counts: HashMap<u64, u64>,
    pub total: u64,
}

impl Tally {
    pub fn add(&mut self, value: u64) {
        *self.counts.entry(value).or_default() += 1;
        self.total += 1;
    }

    /// The most common value, and its share.
    pub fn most_common(&self) -> (u64, f64) {
        self.common().first().map_or((0, 0.0), |(v, n)| (*v, *n as f64 / self.total as f64))
    }

    pub fn distinct(&self) -> usize {
        self.counts.len()
    }

    /// Bits that all of it takes by `code`.
    pub fn bits(&self, code: &Code) -> u64 {
        self.counts.iter().map(|(v, n)| u64::from(code.bits(*v)) * n).sum()
    }

    /// Bits that no code of single values comes below: its entropy.
    pub fn entropy(&self) -> f64 {
        let total = self.total as f64;
        self.counts.values().map(|n| *n as f64 * (total / *n as f64).log2()).sum()
    }

    fn ascending(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.counts.iter().map(|(v, n)| (*v, *n)).collect();
        all.sort_unstable();
        all
    }

    /// By count, the most common first.
    fn common(&self) -> Vec<(u64, u64)> {
        let mut all = self.ascending();
        all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        all
    }
}

/// Values from `low` to `high`, `count` in all.
#[derive(Clone, Copy)]
struct Range {
    low: u64,
    high: u64,
    count: u64,
}

impl Range {
    fn extra(&self) -> u32 {
        64 - (self.high - self.low).leading_zeros()
    }
}

/// The most common value, or all bits of the field.
pub fn all_or_nothing(tally: &Tally, width: u8) -> Code {
    let usual = tally.common().first().map_or(0, |(v, _)| *v);
    whole(vec![Bucket::new(usual, 0, 1)], 1, width)
}

/// The most common values, or all bits of the field.
pub fn huffman(tally: &Tally, width: u8) -> Code {
    let common = tally.common();
    let (named, others) = common.split_at(common.len().min(BUCKETS - 1));
    let rest = others.iter().map(|(_, n)| n).sum();
    let ranges = named.iter().map(|(v, n)| Range { low: *v, high: *v, count: *n }).collect();
    with_huffman(ranges, rest, width)
}

/// Ranges with gamma codes.
pub fn gamma(tally: &Tally, width: u8) -> Code {
    let mut price = PRICE;
    let mut ranges = cut(tally, price);
    while ranges.len() > RANKS {
        price *= 4.0;
        ranges = cut(tally, price);
    }
    let mut ranks: Vec<usize> = (0..ranges.len()).collect();
    ranks.sort_by_key(|n| std::cmp::Reverse(ranges[*n].count));
    let mut lens = vec![0; ranges.len()];
    ranks.iter().enumerate().for_each(|(rank, n)| lens[*n] = gamma_bits(rank));
    let other = gamma_bits(ranges.len());
    let buckets = ranges.iter().zip(lens).map(|(r, len)| Bucket::new(r.low, r.extra() as u8, len)).collect();
    whole(buckets, other, width)
}

/// Bits of the gamma code of `rank`, from 0 on.
fn gamma_bits(rank: usize) -> u8 {
    (2 * (rank + 1).ilog2() + 1).min(DEPTH) as u8
}

/// Values and ranges with Huffman codes.
pub fn hybrid(tally: &Tally, width: u8) -> Code {
    let mut price = PRICE;
    let mut ranges = cut(tally, price);
    while ranges.len() >= BUCKETS {
        price *= 2.0;
        ranges = cut(tally, price);
    }
    with_huffman(ranges, 0, width)
}

fn with_huffman(mut ranges: Vec<Range>, others: u64, width: u8) -> Code {
    ranges.sort_by_key(|r| r.low);
    let counts: Vec<u64> = ranges.iter().map(|r| r.count).chain([others]).collect();
    let lens = huffman_lens(&counts);
    let buckets = ranges.iter().zip(&lens).map(|(r, len)| Bucket::new(r.low, r.extra() as u8, *len)).collect();
    whole(buckets, lens[ranges.len()], width)
}

/// A code of `buckets` and OTHER, whose prefix has `len` bits. Ranges of all 64 bits are OTHER's.
fn whole(mut buckets: Vec<Bucket>, len: u8, width: u8) -> Code {
    buckets.retain(|b| b.extra < 64);
    buckets.push(Bucket::new(0, width, len));
    Code::new(buckets).expect("made to be one")
}

/// Lengths of Huffman codes, 1 to [`DEPTH`]; what never occurred has one too.
fn huffman_lens(counts: &[u64]) -> Vec<u8> {
    let mut counts: Vec<u64> = counts.iter().map(|n| (*n).max(1)).collect();
    loop {
        let lens = free_lens(&counts);
        if lens.iter().all(|len| u32::from(*len) <= DEPTH) {
            return lens;
        }
        // Flatter, until the rarest are not too deep; equal ones never are.
        counts.iter_mut().for_each(|n| *n = n.div_ceil(2) + 1);
    }
}

fn free_lens(counts: &[u64]) -> Vec<u8> {
    use std::cmp::Reverse;
    if counts.len() == 1 {
        return vec![1];
    }
    let mut heap: std::collections::BinaryHeap<_> = counts.iter().enumerate().map(|(n, c)| Reverse((*c, n))).collect();
    let mut above = vec![0; 2 * counts.len()];
    let mut next = counts.len();
    while let (Some(Reverse((a, left))), Some(Reverse((b, right)))) = (heap.pop(), heap.pop()) {
        (above[left], above[right]) = (next, next);
        heap.push(Reverse((a + b, next)));
        next += 1;
        if heap.len() == 1 {
            break;
        }
    }
    let root = next - 1;
    let mut depth = vec![0u8; next];
    for n in (0..root).rev() {
        depth[n] = depth[above[n]].saturating_add(1);
    }
    depth.truncate(counts.len());
    depth
}

/// The ranges that code all values in the fewest bits, where each costs `price` bits itself and has a prefix of as many bits as its
/// share says.
fn cut(tally: &Tally, price: f64) -> Vec<Range> {
    let parts = narrow(tally);
    let total = tally.total as f64;
    // best[j]: bits of the first j parts, and where the last range of these begins.
    let mut best: Vec<(f64, usize)> = vec![(0.0, 0)];
    for end in 1..=parts.len() {
        let mut found = (f64::INFINITY, 0);
        let mut range = Range { count: 0, ..parts[end - 1] };
        for begin in (0..end).rev() {
            range.low = parts[begin].low;
            range.count += parts[begin].count;
            let count = range.count as f64;
            let bits = best[begin].0 + price + count * (f64::from(range.extra()) + (total / count).log2());
            if bits < found.0 {
                found = (bits, begin);
            }
        }
        best.push(found);
    }
    let mut ranges = Vec::new();
    let mut end = parts.len();
    while end > 0 {
        let begin = best[end].1;
        let count = parts[begin..end].iter().map(|p| p.count).sum();
        ranges.push(Range { low: parts[begin].low, high: parts[end - 1].high, count });
        end = begin;
    }
    ranges.reverse();
    ranges
}

/// What is cut between: the values, or where there are many the common ones and ranges of the others, a sixteenth of a power of two each.
fn narrow(tally: &Tally) -> Vec<Range> {
    let all = tally.ascending();
    let single = |(v, n): (u64, u64)| Range { low: v, high: v, count: n };
    if all.len() <= EXACT {
        return all.into_iter().map(single).collect();
    }
    let common = tally.total / 600;
    let step = |v: u64| {
        let top = 63 - (v | 1).leading_zeros();
        (top, v >> top.saturating_sub(3))
    };
    let mut parts: Vec<Range> = Vec::new();
    let mut may_grow = false;
    for (v, n) in all {
        match parts.last_mut().filter(|p| may_grow && n <= common && step(p.low) == step(v)) {
            Some(part) => (part.high, part.count) = (v, part.count + n),
            None => parts.push(single((v, n))),
        }
        may_grow = n <= common;
    }
    parts
}
