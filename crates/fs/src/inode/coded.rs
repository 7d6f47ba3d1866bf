//! The coded bytes of a packed block: what [`packed`](super::packed) reads and [`pack`](super::pack) makes.
//!
//! ```text
//! lengths   16 bytes: of each inode; 0 none
//! base      80 bytes: the first inode
//! inodes    one behind the other: for each word, how many bytes of the difference to the base's follow
//! ```
//! Functions of bytes that read any bytes without a panic; whether what they make of them is right, a sequence counter or
//! the check code tells.

use std::ops::Range;

use zerocopy::{transmute, IntoBytes};

use crate::layout::{RawInode, INODE, PER_BLOCK};

const N: usize = PER_BLOCK as usize;
const WORDS: usize = INODE as usize / 8;
/// Bytes that are enough for a [`Head`].
pub const HEAD: usize = N + INODE as usize;
/// Longest coded inode.
pub const LONGEST: usize = INODE as usize + WORDS.div_ceil(2);
/// Bytes of a block, at most.
pub const MAX: usize = HEAD + N * LONGEST;

/// What comes before the inodes.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub lengths: [u8; N],
    base: [u64; WORDS],
}

impl Head {
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Option<Head> {
        let (lengths, rest) = bytes.split_first_chunk::<N>()?;
        let base: [u8; INODE as usize] = *rest.first_chunk()?;
        lengths
            .iter()
            .all(|l| usize::from(*l) <= LONGEST)
            .then_some(Head { lengths: *lengths, base: transmute!(base) })
    }

    /// Where inode `n` lies, from the start of the coded bytes.
    #[inline(always)]
    pub fn range(&self, n: usize) -> Option<Range<usize>> {
        let len = usize::from(*self.lengths.get(n)?);
        let before: usize = self.lengths[..n].iter().map(|l| usize::from(*l)).sum();
        (len > 0).then_some(HEAD + before..HEAD + before + len)
    }

    /// All coded bytes.
    pub fn bytes(&self) -> usize {
        HEAD + self.lengths.iter().map(|l| usize::from(*l)).sum::<usize>()
    }

    /// The inode that is coded so.
    #[inline(always)]
    pub fn inode(&self, coded: &[u8]) -> Option<RawInode> {
        let (widths, mut rest) = coded.split_at_checked(WORDS.div_ceil(2))?;
        let mut words = self.base;
        for (n, word) in words.iter_mut().enumerate() {
            let width = usize::from(widths[n / 2] >> (n % 2 * 4) & 15).min(8);
            let (bytes, more) = rest.split_at_checked(width)?;
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(bytes);
            *word = word.wrapping_add(unzigzag(u64::from_le_bytes(wide)));
            rest = more;
        }
        rest.is_empty().then(|| transmute!(words))
    }
}

/// Codes the inodes that there are; how many bytes that takes.
pub fn encode(inodes: &[Option<RawInode>; N], out: &mut [u8; MAX]) -> usize {
    let zero: [u64; WORDS] = [0; WORDS];
    let base: [u64; WORDS] = inodes.iter().flatten().next().map_or(zero, |raw| transmute!(*raw));
    out[N..HEAD].copy_from_slice(base.as_bytes());
    let mut at = HEAD;
    for (n, inode) in inodes.iter().enumerate() {
        let len = inode.as_ref().map_or(0, |raw| put(&base, raw, &mut out[at..]));
        out[n] = len as u8;
        at += len;
    }
    at
}

fn put(base: &[u64; WORDS], raw: &RawInode, out: &mut [u8]) -> usize {
    let words: [u64; WORDS] = transmute!(*raw);
    let mut at = WORDS.div_ceil(2);
    out[..at].fill(0);
    for (n, word) in words.iter().enumerate() {
        let d = zigzag(word.wrapping_sub(base[n]));
        let width = 8 - d.leading_zeros() as usize / 8;
        out[n / 2] |= (width as u8) << (n % 2 * 4);
        out[at..at + width].copy_from_slice(&d.to_le_bytes()[..width]);
        at += width;
    }
    at
}

fn zigzag(d: u64) -> u64 {
    d << 1 ^ ((d as i64) >> 63) as u64
}

fn unzigzag(v: u64) -> u64 {
    v >> 1 ^ (v & 1).wrapping_neg()
}
