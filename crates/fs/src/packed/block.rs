//! Up to sixteen inodes, packed (mramfs, 5.1).
//!
//! ```text
//! profile     1 byte: the number of the profile that it was packed with
//! shortest    1 byte: the length of the shortest inode
//! references  1 byte: the references of coded times
//! widths      4 bytes: 4 bits for each number of the base: its bytes; 1 bit: times beyond the usual ones;
//!             3 bits: bits of a length
//! lengths     of each inode, less that of the shortest and one more; 0 none
//! base        the numbers of the base, as many bytes each as they need
//! inodes      one behind the other; one of 80 bytes is plain
//! ```
//! Each inode is coded against the base and against itself alone: to read one, no other is read.

use super::bits::{padded, unzigzag, zigzag, Padded, Reader, Writer, LONGEST};
use super::profile::Profile;
use super::values::{Base, References, Values};
use super::PER_BLOCK;
use crate::layout::{RawInode, INODE};
use zerocopy::{transmute, FromBytes, IntoBytes};

/// Each how many-th inode says by which profile a block is packed.
const SOME: usize = 5;
/// Where the number of the profile is.
pub const PROFILE_AT: usize = 0;
/// Bytes before the lengths.
const FIXED: usize = 3 + 4;
/// Lengths are stored in two halves, of eight inodes each: they take as many bytes as one of them has bits.
const HALF: usize = PER_BLOCK / 2;
/// Bits of a length, at most.
const MAX_BITS: u32 = 7;
/// Numbers of the base, of 8 bytes at most.
const NUMBERS: usize = 7;
/// Bytes before the first inode, at most.
pub const MAX_HEADER: usize = FIXED + 2 * MAX_BITS as usize + NUMBERS * 8;
/// Bytes that are read of a header: a word behind the longest one, and in whole words.
pub const READ_HEADER: usize = (MAX_HEADER + 8).next_multiple_of(8);
/// Bytes of a block, at most.
pub const MAX: usize = MAX_HEADER + PER_BLOCK * INODE as usize + (LONGEST - PLAIN);
const NO_INODE: RawInode = transmute!([0u8; INODE as usize]);
/// A length: the inode is not coded.
const PLAIN: usize = INODE as usize;

/// Packs the inodes that there are into `out`; how many bytes they take.
pub fn pack(profile: &Profile, number: u8, inodes: &[Option<RawInode>; PER_BLOCK], out: &mut [u8; MAX]) -> usize {
    Prepared::of(inodes).pack(profile, number, out)
}

/// The inodes of a block as numbers, which are the same for any profile.
pub struct Prepared<'a> {
    inodes: &'a [Option<RawInode>; PER_BLOCK],
    base: Base,
    values: [Values; PER_BLOCK],
}

impl<'a> Prepared<'a> {
    pub fn of(inodes: &'a [Option<RawInode>; PER_BLOCK]) -> Prepared<'a> {
        let mut there = [NO_INODE; PER_BLOCK];
        let mut count = 0;
        for inode in inodes.iter().flatten() {
            there[count] = *inode;
            count += 1;
        }
        let base = Base::of(&there[..count]);
        let mut values = [Values::default(); PER_BLOCK];
        for (values, inode) in values.iter_mut().zip(inodes) {
            if let Some(inode) = inode {
                *values = Values::of(inode, &base);
            }
        }
        Prepared { inodes, base, values }
    }

    /// Bits of a few of them by `profile`: enough to tell which of several profiles is for them.
    pub fn bits_of_some(&self, profile: &Profile) -> u32 {
        let some = self.inodes.iter().zip(&self.values).filter(|(inode, _)| inode.is_some()).step_by(SOME);
        some.flat_map(|(_, values)| values.stored()).map(|(field, value)| profile.code(field).bits(value)).sum()
    }

    /// Packs them into `out`; how many bytes they take.
    pub fn pack(&self, profile: &Profile, number: u8, out: &mut [u8; MAX]) -> usize {
        let mut coded = [[0; LONGEST]; PER_BLOCK];
        let mut lengths = [0; PER_BLOCK];
        for (n, inode) in self.inodes.iter().enumerate() {
            if let Some(inode) = inode {
                lengths[n] = put_inode(profile, &self.values[n], inode, &mut coded[n]) as u8;
            }
        }
        let mut at = put_head(number, &self.base, &lengths, out);
        for (coded, len) in coded.iter().zip(lengths) {
            // All of it has room: fewer bytes take longer.
            out[at..at + LONGEST].copy_from_slice(coded);
            at += usize::from(len);
        }
        at
    }
}

fn put_inode(profile: &Profile, values: &Values, inode: &RawInode, coded: &mut [u8; LONGEST]) -> usize {
    let mut w = Writer::new(coded);
    for (field, value) in values.stored() {
        profile.code(field).put(&mut w, value);
    }
    match w.finish() {
        Some(len) if len < PLAIN => len,
        _ => {
            coded[..PLAIN].copy_from_slice(inode.as_bytes());
            PLAIN
        }
    }
}

/// The head before the inodes.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub lengths: [u8; PER_BLOCK],
    /// The number of the profile.
    pub profile: u8,
    base: Base,
    /// Where the inodes begin.
    len: usize,
}

impl Header {
    /// Of a block that begins with `bytes`; [`READ_HEADER`] of them are enough. `None`: it is none.
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Option<Header> {
        match bytes.first_chunk() {
            Some(bytes) => Header::read_in(bytes),
            None => Header::read_short(bytes),
        }
    }

    #[cold]
    fn read_short(bytes: &[u8]) -> Option<Header> {
        let mut room = [0; READ_HEADER];
        room[..bytes.len()].copy_from_slice(bytes);
        Header::read_in(&room).filter(|header| header.len <= bytes.len())
    }

    #[inline(always)]
    fn read_in(bytes: &[u8; READ_HEADER]) -> Option<Header> {
        let [profile, shortest, references, widths @ ..] = bytes.first_chunk::<FIXED>()?;
        let widths = u32::from_le_bytes(*widths);
        let bits = widths >> 29;
        let lengths = take_lengths(*shortest, bits, word(bytes, FIXED), word(bytes, FIXED + bits as usize))?;
        let (base, len) = take_base(widths, References::from_number(*references)?, bytes)?;
        Some(Header { lengths, profile: *profile, base, len })
    }

    /// Where inode `n` lies in the block, if there is one.
    #[inline(always)]
    pub fn place(&self, n: usize) -> Option<std::ops::Range<usize>> {
        let len = usize::from(*self.lengths.get(n)?);
        let before = before(&self.lengths, n);
        (len > 0).then(|| self.len + before..self.len + before + len)
    }

    /// Bytes of the block.
    pub fn bytes(&self) -> usize {
        self.len + self.lengths.iter().map(|len| usize::from(*len)).sum::<usize>()
    }

    /// The inode that lies in its place as `coded`. `None`: it is none. Damaged bytes may give any inode.
    #[inline(always)]
    pub fn inode(&self, profile: &Profile, coded: &[u8]) -> Option<RawInode> {
        self.inode_in(profile, &padded(coded)?, coded.len())
    }

    /// [`inode`](Self::inode) of the first `len` of these bytes, which were read together with the bytes after them.
    #[inline(always)]
    pub fn inode_in(&self, profile: &Profile, bytes: &Padded, len: usize) -> Option<RawInode> {
        let mut inode = NO_INODE;
        self.read_inode(profile, bytes, len, &mut inode).then_some(inode)
    }

    /// The same to where it is wanted; false: it is none, and there is anything.
    #[inline(always)]
    pub fn read_inode(&self, profile: &Profile, bytes: &Padded, len: usize, to: &mut RawInode) -> bool {
        if len == PLAIN {
            return RawInode::read_from_prefix(bytes).is_ok_and(|(inode, _)| {
                *to = inode;
                true
            });
        }
        let Some(mut r) = Reader::of(bytes, len) else { return false };
        *to = Values::read(&self.base, profile, &mut r);
        r.is_whole()
    }
}

/// Inode `n` of the block in `bytes`; `None` if there is none, or if the block is damaged.
pub fn unpack(profile: &Profile, bytes: &[u8], n: usize) -> Option<RawInode> {
    let header = Header::read(bytes)?;
    let place = header.place(n)?;
    match bytes.get(place.start..).and_then(<[u8]>::first_chunk) {
        Some(read) => header.inode_in(profile, read, place.len()),
        None => header.inode(profile, bytes.get(place)?),
    }
}

/// Writes the head before the inodes; returns its length in bytes.
fn put_head(profile: u8, base: &Base, lengths: &[u8; PER_BLOCK], out: &mut [u8; MAX]) -> usize {
    let there = || lengths.iter().copied().filter(|len| *len > 0);
    let shortest = there().min().unwrap_or(1);
    let bits = (there().max().unwrap_or(0) + 1).saturating_sub(shortest).checked_ilog2().map_or(0, |n| n + 1);
    let mut at = FIXED;
    for half in lengths.chunks(HALF) {
        let lengths = half.iter().map(|len| u64::from((len + 1).saturating_sub(shortest)));
        let word = lengths.enumerate().fold(0, |word, (n, len)| word | len << (n as u32 * bits));
        out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += bits as usize;
    }
    let (widths, at) = put_base(base, at, out);
    out[..3].copy_from_slice(&[profile, shortest, base.references.number()]);
    out[3..FIXED].copy_from_slice(&(widths | bits << 29).to_le_bytes());
    at
}

/// The eight bytes from `at` on.
#[inline(always)]
fn word(bytes: &[u8; READ_HEADER], at: usize) -> u64 {
    let at = at.min(MAX_HEADER);
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

#[inline(always)]
fn take_lengths(shortest: u8, bits: u32, low: u64, high: u64) -> Option<[u8; PER_BLOCK]> {
    let less = u64::from(shortest.checked_sub(1).filter(|less| usize::from(*less) < PLAIN)?);
    let mut lengths = [0; PER_BLOCK];
    let mut longest = 0;
    for (part, half) in lengths.chunks_exact_mut(HALF).zip([low, high]) {
        let report = spread(half & mask(bits as usize), bits);
        // Bytes below 128: those that are not 0 carry into their highest bit.
        let there = (report + EACH * 0x7f) >> 7 & EACH;
        let lens = report + there * less;
        longest |= lens + EACH * (0x7f - PLAIN as u64);
        part.copy_from_slice(&lens.to_le_bytes());
    }
    (longest & EACH << 7 == 0).then_some(lengths)
}

/// 1 in each byte.
const EACH: u64 = u64::MAX / 255;

/// Eight numbers of `bits` bits, 7 at most, into a byte each.
#[inline(always)]
fn spread(word: u64, bits: u32) -> u64 {
    let step = |word: u64, count: u32, to: u32, every: u64| {
        let low = ((1u64 << (count * bits)) - 1) * every;
        word & low | (word >> (count * bits) & low) << to
    };
    let halves = step(word, 4, 32, 1);
    let quarters = step(halves, 2, 16, 0x1_0000_0001);
    step(quarters, 1, 8, 0x0001_0001_0001_0001)
}

/// The lengths of the inodes before `n`, together.
#[inline(always)]
fn before(lengths: &[u8; PER_BLOCK], n: usize) -> usize {
    const EVERY_SECOND: u128 = u128::MAX / 0xffff * 0xff;
    let all = u128::from_le_bytes(*lengths) & ((1u128 << (8 * (n % PER_BLOCK))) - 1);
    let pairs = (all & EVERY_SECOND) + ((all >> 8) & EVERY_SECOND);
    let sums = pairs as u64 + (pairs >> 64) as u64;
    (sums.wrapping_mul(0x0001_0001_0001_0001) >> 48) as usize
}

/// Seconds from which whole ones of the base are stored.
const YEAR_2023: i64 = 1_700_000_000;
const SECOND: i64 = 1_000_000_000;

/// Writes the numbers of the base; their widths, and where they end.
fn put_base(base: &Base, mut at: usize, out: &mut [u8; MAX]) -> (u32, usize) {
    let Base { off, mtime, btime, generation, perm, settings, parent, references: _ } = *base;
    // Whole seconds are stored as such: the lowest bit says which.
    let time = |t: i64| match t % SECOND {
        0 => zigzag(t / SECOND - YEAR_2023) << 1,
        _ => zigzag(t) << 1 | 1,
    };
    let far = [mtime, btime].iter().any(|t| zigzag(*t) >> 63 == 1);
    let (mtime, btime) = if far { (zigzag(mtime), zigzag(btime)) } else { (time(mtime), time(btime)) };
    let numbers =
        [off, mtime, btime.wrapping_sub(mtime), u64::from(generation), u64::from(perm), u64::from(settings), parent];
    let mut widths = u32::from(far) << 28;
    for (n, number) in numbers.iter().enumerate() {
        let width = 8 - number.leading_zeros() as usize / 8;
        widths |= (width as u32) << (4 * n);
        out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        at += width;
    }
    (widths, at)
}

/// The base behind the lengths, and where it ends.
#[inline(always)]
fn take_base(widths: u32, references: References, bytes: &[u8; READ_HEADER]) -> Option<(Base, usize)> {
    let mut numbers = [0; NUMBERS];
    let mut at = FIXED + 2 * (widths >> 29) as usize;
    let mut widest = 0;
    for (n, number) in numbers.iter_mut().enumerate() {
        let width = (widths >> (4 * n) & 15) as usize;
        widest = widest.max(width);
        *number = word(bytes, at) & mask(width);
        at += width;
    }
    if widest > 8 {
        return None;
    }
    let [off, mtime, btime, generation, perm, settings, parent] = numbers;
    let btime = btime.wrapping_add(mtime);
    let time = |v: u64| match v & 1 {
        0 => unzigzag(v >> 1).wrapping_add(YEAR_2023).wrapping_mul(SECOND),
        _ => unzigzag(v >> 1),
    };
    let (mtime, btime) = match widths >> 28 & 1 {
        0 => (time(mtime), time(btime)),
        _ => (unzigzag(mtime), unzigzag(btime)),
    };
    let (generation, perm, settings) = (generation as u32, perm as u32, settings as u32);
    Some((Base { off, mtime, btime, generation, perm, settings, parent, references }, at))
}

const MASKS: [u64; 16] = {
    let mut masks = [u64::MAX; 16];
    let mut width = 0;
    while width < 8 {
        masks[width] = (1 << (8 * width)) - 1;
        width += 1;
    }
    masks
};

/// The low `width` bytes.
#[inline(always)]
fn mask(width: usize) -> u64 {
    MASKS[width & 15]
}
