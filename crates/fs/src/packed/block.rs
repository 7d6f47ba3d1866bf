//! Up to sixteen inodes, packed (mramfs, 5.1).
//!
//! ```text
//! lengths   16 bytes: of each inode; 0 none; 80: that inode plain
//! profile   1 byte: the number of the profile that it was packed with
//! widths    4 bytes: of each number of the base, 4 bits each
//! base      the numbers of the base, as many bytes each as they need
//! inodes    one behind the other
//! ```
//! Each inode is coded against the base and against itself alone: to read one, no other is read.

use super::bits::{unzigzag, zigzag, Reader, Writer, LONGEST};
use super::fields::{Base, Values};
use super::profile::Profile;
use crate::layout::{RawInode, INODE};
use zerocopy::{transmute, FromBytes, IntoBytes};

/// Inodes in a block.
pub const PER_BLOCK: usize = crate::layout::PER_BLOCK as usize;
/// Bytes before the numbers of the base.
const FIXED: usize = PER_BLOCK + 1 + 4;
/// Numbers of the base, of 8 bytes at most.
const NUMBERS: usize = 7;
/// Bytes before the first inode, at most.
pub const MAX_HEADER: usize = FIXED + NUMBERS * 8;
/// Bytes of a block, at most.
pub const MAX: usize = MAX_HEADER + PER_BLOCK * INODE as usize;
const NO_INODE: RawInode = transmute!([0u8; INODE as usize]);
/// A length: the inode is not coded.
const PLAIN: usize = INODE as usize;

/// Packs the inodes that there are into `out`; how many bytes they take.
pub fn pack(profile: &Profile, number: u8, inodes: &[Option<RawInode>; PER_BLOCK], out: &mut [u8; MAX]) -> usize {
    let mut there = [NO_INODE; PER_BLOCK];
    let mut count = 0;
    for inode in inodes.iter().flatten() {
        there[count] = *inode;
        count += 1;
    }
    let base = Base::of(&there[..count]);
    let mut at = put_base(number, &base, out);
    for (n, inode) in inodes.iter().enumerate() {
        let len = match inode {
            Some(inode) => put_inode(profile, &base, inode, &mut out[at..]),
            None => 0,
        };
        out[n] = len as u8;
        at += len;
    }
    at
}

fn put_inode(profile: &Profile, base: &Base, inode: &RawInode, out: &mut [u8]) -> usize {
    let mut coded = [0; super::bits::LONGEST];
    let mut w = Writer::new(&mut coded);
    for (field, value) in Values::of(inode, base, &profile.references).told() {
        profile.code(field).put(&mut w, value);
    }
    match w.finish() {
        Some(len) if len < PLAIN => {
            out[..len].copy_from_slice(&coded[..len]);
            len
        }
        _ => {
            out[..PLAIN].copy_from_slice(inode.as_bytes());
            PLAIN
        }
    }
}

/// What comes before the inodes.
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
    /// Of a block that begins with `bytes`; [`MAX_HEADER`] of them are enough. `None`: it is none.
    #[inline(always)]
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let (lengths, rest) = bytes.split_first_chunk::<PER_BLOCK>()?;
        let (&profile, rest) = rest.split_first()?;
        let (widths, rest) = rest.split_first_chunk::<4>()?;
        if lengths.iter().any(|len| usize::from(*len) > PLAIN) {
            return None;
        }
        let (base, len) = take_base(u32::from_le_bytes(*widths), rest)?;
        Some(Header { lengths: *lengths, profile, base, len: FIXED + len })
    }

    /// Where inode `n` lies in the block, if there is one.
    #[inline(always)]
    pub fn place(&self, n: usize) -> Option<std::ops::Range<usize>> {
        let len = usize::from(*self.lengths.get(n)?);
        let before: usize = self.lengths[..n].iter().map(|len| usize::from(*len)).sum();
        (len > 0).then(|| self.len + before..self.len + before + len)
    }

    /// Bytes of the block.
    pub fn bytes(&self) -> usize {
        self.len + self.lengths.iter().map(|len| usize::from(*len)).sum::<usize>()
    }

    /// [`inode`](Self::inode) of the first `len` of these bytes, which were read together with what lies behind them.
    #[inline(always)]
    pub fn inode_in(&self, profile: &Profile, bytes: [u8; LONGEST + 8], len: usize) -> Option<RawInode> {
        if len == PLAIN {
            return RawInode::read_from_bytes(bytes.get(..PLAIN)?).ok();
        }
        let mut r = Reader::of(bytes, len)?;
        let inode = Values::read(&self.base, &profile.references, |field| profile.code(field).take(&mut r));
        r.is_whole().then_some(inode)
    }

    /// The inode that lies in its place as `coded`. `None`: it is none. What comes of damaged bytes may be any inode.
    #[inline(always)]
    pub fn inode(&self, profile: &Profile, coded: &[u8]) -> Option<RawInode> {
        if coded.len() == PLAIN {
            return RawInode::read_from_bytes(coded).ok();
        }
        let mut r = Reader::new(coded)?;
        let inode = Values::read(&self.base, &profile.references, |field| profile.code(field).take(&mut r));
        r.is_whole().then_some(inode)
    }
}

/// Inode `n` of the block in `bytes`; `None` if there is none, or if the block is damaged.
pub fn unpack(profile: &Profile, bytes: &[u8], n: usize) -> Option<RawInode> {
    let header = Header::read(bytes)?;
    header.inode(profile, bytes.get(header.place(n)?)?)
}

fn put_base(profile: u8, base: &Base, out: &mut [u8; MAX]) -> usize {
    let Base { off, mtime, btime, generation, perm, settings, parent } = *base;
    let second = 1_000_000_000;
    // Whole seconds are told as such: the lowest bit says which.
    let time = |t: i64| match t % second {
        0 => zigzag(t / second) << 1,
        _ => zigzag(t) << 1 | 1,
    };
    let far = [mtime, btime].iter().any(|t| zigzag(*t) >> 63 == 1);
    let (mtime, btime) = if far { (zigzag(mtime), zigzag(btime)) } else { (time(mtime), time(btime)) };
    let numbers =
        [off, mtime, btime.wrapping_sub(mtime), u64::from(generation), u64::from(perm), u64::from(settings), parent];
    let mut widths = u32::from(far) << 28;
    let mut at = FIXED;
    for (n, number) in numbers.iter().enumerate() {
        let width = 8 - number.leading_zeros() as usize / 8;
        widths |= (width as u32) << (4 * n);
        out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        at += width;
    }
    out[PER_BLOCK] = profile;
    out[PER_BLOCK + 1..FIXED].copy_from_slice(&widths.to_le_bytes());
    at
}

#[inline(always)]
fn take_base(widths: u32, from: &[u8]) -> Option<(Base, usize)> {
    let mut numbers = [0; NUMBERS];
    let mut at = 0;
    for (n, number) in numbers.iter_mut().enumerate() {
        let width = (widths >> (4 * n) & 15) as usize;
        if width > 8 {
            return None;
        }
        let mut word = [0; 8];
        match from.get(at..at + 8) {
            Some(eight) => word.copy_from_slice(eight),
            None => {
                let rest = from.get(at..at + width)?;
                word[..width].copy_from_slice(rest);
            }
        }
        *number = u64::from_le_bytes(word) & mask(width);
        at += width;
    }
    let [off, mtime, btime, generation, perm, settings, parent] = numbers;
    let btime = btime.wrapping_add(mtime);
    let time = |v: u64| match v & 1 {
        0 => unzigzag(v >> 1).wrapping_mul(1_000_000_000),
        _ => unzigzag(v >> 1),
    };
    let (mtime, btime) = match widths >> 28 {
        0 => (time(mtime), time(btime)),
        1 => (unzigzag(mtime), unzigzag(btime)),
        _ => return None,
    };
    let (generation, perm, settings) = (generation as u32, perm as u32, settings as u32);
    Some((Base { off, mtime, btime, generation, perm, settings, parent }, at))
}

/// The low `width` bytes.
#[inline(always)]
fn mask(width: usize) -> u64 {
    match width {
        0 => 0,
        _ => u64::MAX >> (64 - 8 * width),
    }
}
