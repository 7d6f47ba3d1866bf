//! Codes made from how often values occur (mramfs, 4.2 to 4.4).
//!
//! | codec | buckets | prefixes |
//! | --- | --- | --- |
//! | [`all_or_nothing`] | the most common value, or the values of so many bits | one bit |
//! | [`huffman`] | the common values, or all values of each length | Huffman's, of a bounded depth |
//! | [`gamma`] | ranges, ascending | unary numbers |
//! | [`hybrid`] | single values and ranges, as is best | Huffman's, of a bounded depth |
//! | [`best`] | the best of these, with room for values that have not occurred | |
//!
//! Ranges are cut by dynamic programming, so that all values together take the fewest bits (mramfs left open how): over
//! the values themselves where there are up to [`EXACT`] of them, else over the most common ones and narrow ranges of
//! the others.

use std::collections::HashMap;

use super::code::{Bucket, Code, BUCKETS, DEPTH, ESCAPED};

/// Values and ranges between which cuts are looked for.
const EXACT: usize = 1200;
/// Bits that a bucket must save, all values together: its own bits in a profile.
const PRICE: f64 = 40.0;
/// From so many bits on, OTHER tells its own length in a hybrid code.
const LONG: u8 = 32;

/// Of how many values one counts as if it had been OTHER, in a hybrid code: so much is given for trees that a profile
/// was not made of. Few of the values of a short field are stored, the noise below a second, and all of them are alike.
fn unseen(width: u8) -> u64 {
    if width < LONG {
        8
    } else {
        32
    }
}

/// A value as those that have not occurred.
const TYPICAL: u64 = 1 << 20;
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

    /// The share of those that `bucket` holds.
    pub fn share(&self, bucket: &Bucket) -> f64 {
        let held = self.counts.iter().filter(|(v, _)| bucket.holds(**v)).map(|(_, n)| n).sum::<u64>();
        held as f64 / self.total.max(1) as f64
    }

    /// Bits that all of it takes by `code`.
    pub fn bits(&self, code: &Code) -> u64 {
        self.counts.iter().map(|(v, n)| u64::from(code.bits(*v)) * n).sum()
    }

    /// Bits that all of it takes by `code`, and values that are not in it and count as if they were.
    fn bits_and_unseen(&self, code: &Code, width: u8) -> u64 {
        let other = code.buckets().last().map_or(0, |other| other.bits(TYPICAL));
        self.bits(code) + u64::from(other) * (self.total / unseen(width) + 1) + 24 * code.buckets().len() as u64
    }

    /// With the values up to `small` as if each had occurred now and then.
    pub fn smoothed(&self, small: u64) -> Tally {
        let mut tally = self.clone();
        for value in 1..=small {
            let count = 1 + self.total / 64;
            *tally.counts.entry(value).or_default() += count;
            tally.total += count;
        }
        tally
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

/// One bit for the most common value or before the bits of short ones, whichever is better (mramfs, Table 3.2: types A
/// and B); one bit before all bits of the field for the others.
pub fn all_or_nothing(tally: &Tally, width: u8) -> Code {
    let usual = tally.common().first().map_or(0, |(v, _)| *v);
    let one = |base, extra| whole(vec![Bucket::new(base, extra, 1)], 1, width);
    let codes = [one(usual, 0)].into_iter().chain((1..width.min(64)).map(|extra| one(0, extra)));
    codes.min_by_key(|code| tally.bits(code)).expect("one at least")
}

/// Values rarer than one in so many are OTHER's (mramfs, 3.3).
const RARE: u64 = 1000;

/// The common values, or where this is better all values of each length.
pub fn huffman(tally: &Tally, width: u8) -> Code {
    let common = tally.common();
    let named = common.iter().take(BUCKETS - 1).take_while(|(_, n)| n * RARE >= tally.total);
    let values: Vec<Range> = named.map(|(v, n)| Range { low: *v, high: *v, count: *n }).collect();
    let mut lengths: Vec<Range> = Vec::new();
    for (v, count) in tally.ascending() {
        let top = v.checked_ilog2();
        match lengths.last_mut().filter(|range| range.high.checked_ilog2() == top) {
            Some(range) => range.count += count,
            None => {
                let (low, high) = top.map_or((0, 0), |top| (1 << top, u64::MAX >> (63 - top)));
                lengths.push(Range { low, high, count });
            }
        }
    }
    let codes = [values, lengths].map(|ranges| {
        let rest = tally.total - ranges.iter().map(|r| r.count).sum::<u64>();
        with_huffman(ranges, rest, width)
    });
    codes.into_iter().min_by_key(|code| tally.bits(code)).expect("two")
}

/// Ranges, ascending, that take the fewest bits if the first has a prefix of one bit, the next one of two, and so on.
pub fn gamma(tally: &Tally, width: u8) -> Code {
    let parts = narrow(tally);
    let sums = running(&parts);
    let total = sums[parts.len()];
    // best[k][n]: bits of the first n parts in k ranges, how many parts the last range is behind, and its bits.
    let mut best = vec![vec![None; parts.len() + 1]; DEPTH as usize + 1];
    best[0][0] = Some((0u64, 0, 0));
    for k in 0..DEPTH as usize {
        for begin in 0..parts.len() {
            let Some((before, ..)) = best[k][begin] else { continue };
            for extra in 0..64 {
                let last = parts[begin].low.saturating_add((1 << extra) - 1);
                let end = begin + parts[begin..].partition_point(|p| p.high <= last);
                let bits = before + (sums[end] - sums[begin]) * (k as u64 + 1 + extra);
                let found = &mut best[k + 1][end];
                if end > begin && found.is_none_or(|(least, ..)| bits < least) {
                    *found = Some((bits, begin, extra as u8));
                }
                if end == parts.len() {
                    break;
                }
            }
        }
    }
    // Values behind the ranges are OTHER's.
    let whole_bits = |k: usize, n: usize| {
        let (bits, ..) = best[k][n]?;
        Some(bits + (total - sums[n]) * (k.max(1) as u64 + u64::from(width.min(64))))
    };
    let ends = (0..best.len()).flat_map(|k| (0..=parts.len()).map(move |n| (k, n)));
    let (count, mut end) = ends.min_by_key(|(k, n)| whole_bits(*k, *n).unwrap_or(u64::MAX)).unwrap_or((0, 0));
    let mut buckets = Vec::new();
    for k in (1..=count).rev() {
        let Some((_, begin, extra)) = best[k][end] else { break };
        buckets.push(Bucket::new(parts[begin].low, extra, k as u8));
        end = begin;
    }
    buckets.reverse();
    whole(buckets, count.max(1) as u8, width)
}

/// How many values are in the first n of these.
fn running(parts: &[Range]) -> Vec<u64> {
    let mut sum = 0;
    let sums = parts.iter().map(|part| {
        sum += part.count;
        sum
    });
    [0].into_iter().chain(sums).collect()
}

/// The best of all, with room for values that have not occurred.
pub fn best(tally: &Tally, small: u64, width: u8) -> Code {
    let smoothed = tally.smoothed(small);
    let other = if width >= LONG { ESCAPED } else { width };
    let codes = [all_or_nothing, huffman, gamma].map(|make| make(&smoothed, other));
    let codes = codes.into_iter().chain([hybrid(&smoothed, width)]);
    codes.min_by_key(|code| smoothed.bits_and_unseen(code, width)).expect("four")
}

/// Values and ranges with Huffman codes.
pub fn hybrid(tally: &Tally, width: u8) -> Code {
    let mut price = PRICE;
    let mut ranges = cut(tally, price);
    while ranges.len() >= BUCKETS {
        price *= 2.0;
        ranges = cut(tally, price);
    }
    let other = if width >= LONG { ESCAPED } else { width };
    with_huffman(ranges, tally.total / unseen(width), other)
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

/// Lengths of Huffman codes, 1 to [`DEPTH`]; a value that never occurred has one too.
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

/// The ranges that code all values in the fewest bits, where each costs `price` bits itself and has a prefix of as many
/// bits as its share says.
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
            let bits = best[begin].0 + price + count * (f64::from(range.extra()) + libm::log2(total / count));
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

/// The points to cut at: the values, or where there are many the common ones and ranges of the others, a sixteenth of a
/// power of two each.
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
