//! An inode as numbers that are small if it is like its neighbours, and back.
//!
//! Values that an inode shares with the others of its block are stored once, in the block's [`Base`] (mramfs: times coded
//! against a common point). Values that follow from other fields of the inode itself are not stored either: one number, the *shape*,
//! tells which fields are as expected, with its type and the form of its content. So an inode of no surprises is
//! its shape, size and place.

use super::bits::{unzigzag, zigzag, Reader};
use super::fields::{Field, OPTIONAL};
use super::profile::Profile;
use super::PER_BLOCK;
use crate::file::PAGE;
use crate::layout::form::TREE;
use crate::layout::{RawInode, Root};
use crate::Kind;

const FIRST_OPTIONAL: usize = Field::Location as usize;
const TIMES: usize = Field::Mtime as usize;
const NANOS: usize = Field::MtimeNanos as usize;

/// The values that the inodes of a block share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Lowest offset of content.
    pub off: u64,
    /// The most common of each.
    pub mtime: i64,
    pub btime: i64,
    pub generation: u32,
    pub perm: u32,
    pub settings: u32,
    /// The most common parent of directories.
    pub parent: u64,
    /// The references of times, as is best for these inodes.
    pub references: References,
}

impl Base {
    /// The base of these inodes, sixteen at most.
    pub fn of(inodes: &[RawInode]) -> Base {
        let off = inodes.iter().map(|i| Root::unpack(i.content).off).filter(|off| *off != 0).min().unwrap_or(0);
        let mut base = Base {
            off,
            mtime: most_common(inodes, |i| i.mtime),
            btime: most_common(inodes, |i| i.btime),
            generation: most_common(inodes, |i| i.generation),
            perm: most_common(inodes, |i| i.perm),
            settings: most_common(inodes, settings),
            parent: parents(inodes),
            references: References::default(),
        };
        base.references = References::of(inodes, &base);
        if !base.references.0.contains(&Against::Btimes) {
            base.btime = base.mtime;
        }
        base
    }
}

/// Of at most sixteen inodes.
#[inline(always)]
fn most_common<T: Copy + PartialEq + Default>(inodes: &[RawInode], field: impl Fn(&RawInode) -> T) -> T {
    let mut all = [T::default(); PER_BLOCK];
    all.iter_mut().zip(inodes).for_each(|(to, inode)| *to = field(inode));
    most_common_of(&all[..inodes.len().min(PER_BLOCK)])
}

#[inline(always)]
fn most_common_of<T: Copy + PartialEq + Default>(all: &[T]) -> T {
    let mut found = (0, T::default());
    for (n, one) in all.iter().enumerate() {
        // None behind is more common.
        if all.len() - n <= found.0 {
            break;
        }
        let count = all[n..].iter().filter(|other| *other == one).count();
        if count > found.0 {
            found = (count, *one);
        }
    }
    found.1
}

fn parents(inodes: &[RawInode]) -> u64 {
    let (mut all, mut count) = ([0; PER_BLOCK], 0);
    for (dir, to) in inodes.iter().filter(|i| i.kind == DIR).zip(&mut all) {
        *to = dir.extra;
        count += 1;
    }
    most_common_of(&all[..count])
}

const DIR: u8 = Kind::Directory as u8;
const FILE: u8 = Kind::Regular as u8;

fn settings(inode: &RawInode) -> u32 {
    u32::from(inode.settings) | u32::from(inode.delay) << 16
}

/// The number of links that is not stored.
fn usual_links(kind: u8) -> u32 {
    1 + u32::from(kind == DIR)
}

/// The `extra` that follows from the inode's other fields.
fn usual_extra(kind: u8, form: u8, size: u64, base: &Base) -> u64 {
    match (kind, form) {
        (DIR, _) => base.parent,
        (_, TREE) => size.div_ceil(PAGE),
        _ => 0,
    }
}

/// The reference of a coded time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Against {
    /// The block's mtime.
    Mtimes,
    /// The block's btime.
    Btimes,
    /// The mtime of the inode, for all that are coded behind it.
    Mtime,
    Btime,
    Ctime,
}

/// The references of mtime, btime, ctime and atime; a block chooses for all its inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct References([Against; 4]);

/// The possible references of each.
const CHOICES: [&[Against]; 4] = [
    &[Against::Mtimes],
    &[Against::Mtime, Against::Btimes, Against::Mtimes],
    &[Against::Mtime, Against::Btime, Against::Btimes],
    &[Against::Mtime, Against::Btime, Against::Ctime, Against::Btimes],
];
/// Bits that the block's btime takes, about.
const BTIMES: u32 = 40;

impl Default for References {
    fn default() -> References {
        References(CHOICES.map(|choices| choices[0]))
    }
}

impl References {
    /// Two bits for each but the first, which has no choice.
    pub fn number(self) -> u8 {
        let choice = |n: usize| CHOICES[n].iter().position(|c| *c == self.0[n]).unwrap_or(0) as u8;
        choice(1) | choice(2) << 2 | choice(3) << 4
    }

    #[inline(always)]
    pub fn from_number(number: u8) -> Option<References> {
        const ALL: [Option<References>; 256] = {
            let mut all = [None; 256];
            let mut n = 0;
            while n < 64 {
                let (btime, ctime, atime) = (n & 3, n >> 2 & 3, n >> 4);
                if btime < CHOICES[1].len() && ctime < CHOICES[2].len() {
                    all[n] = Some(References([CHOICES[0][0], CHOICES[1][btime], CHOICES[2][ctime], CHOICES[3][atime]]));
                }
                n += 1;
            }
            all
        };
        ALL[usize::from(number)]
    }

    /// Those against which the times of these inodes are nearest.
    fn of(inodes: &[RawInode], base: &Base) -> References {
        let mut best = References::default();
        let mut costs_base = base.btime != base.mtime;
        for (time, choices) in CHOICES.iter().enumerate().skip(1) {
            let mut least = u32::MAX;
            for against in *choices {
                let of_base = if costs_base && *against == Against::Btimes { BTIMES } else { 0 };
                let cost = of_base + inodes.iter().map(|inode| distance(inode, base, time, *against)).sum::<u32>();
                if cost < least {
                    (least, best.0[time]) = (cost, *against);
                }
                if least == 0 {
                    break;
                }
            }
            costs_base &= best.0[time] != Against::Btimes;
        }
        best
    }
}

/// Bits by which a time is apart from another one.
#[inline(always)]
fn distance(inode: &RawInode, base: &Base, time: usize, against: Against) -> u32 {
    let times = [inode.mtime, inode.btime, inode.ctime, inode.atime];
    let apart = times[time].wrapping_sub(reference(against, base, &times)).unsigned_abs();
    64 - apart.leading_zeros()
}

#[inline(always)]
fn reference(of: Against, base: &Base, times: &[i64; 4]) -> i64 {
    [base.mtime, base.btime, times[0], times[1], times[2]][of as usize]
}

/// The fields of an inode; which there are, its shape says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values {
    pub values: [u64; Field::COUNT],
    /// Bit `n`: field `n` is stored.
    pub stored: u32,
}

impl Values {
    #[inline(always)]
    fn set(&mut self, field: usize, value: u64) {
        self.values[field] = value;
        self.stored |= 1 << field;
    }

    /// As [`set`](Self::set), unless it has the expected value.
    #[inline(always)]
    fn set_unless_zero(&mut self, field: Field, value: u64) {
        if value != 0 {
            self.set(field as usize, value);
        }
    }

    /// Those that are stored, in the order of [`Field`].
    #[inline(always)]
    pub fn stored(&self) -> impl Iterator<Item = (Field, u64)> + '_ {
        let mut left = self.stored;
        std::iter::from_fn(move || {
            let n = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            Field::ALL.get(n).map(|field| (*field, self.values[n]))
        })
    }

    /// Of an inode of a block with `base`.
    #[inline(always)]
    pub fn of(inode: &RawInode, base: &Base) -> Values {
        let mut v = Values::default();
        let root = Root::unpack(inode.content);
        v.set(Field::Size as usize, inode.size);
        if root.off != 0 {
            v.set(Field::Location as usize, behind(root.off, base.off));
        }
        v.set_unless_zero(Field::Perm, zigzag(i64::from(inode.perm) - i64::from(base.perm)));
        if inode.nlink != usual_links(inode.kind) {
            v.set(Field::Links as usize, u64::from(inode.nlink));
        }
        if settings(inode) != base.settings {
            v.set(Field::Settings as usize, u64::from(settings(inode)));
        }
        let extra = usual_extra(inode.kind, root.form, inode.size, base);
        v.set_unless_zero(Field::Extra, zigzag(inode.extra.wrapping_sub(extra) as i64));
        if inode.xattr != 0 {
            v.set(Field::Xattr as usize, place(inode.xattr, base.off));
        }
        v.set_unless_zero(Field::Generation, zigzag(i64::from(inode.generation) - i64::from(base.generation)));
        let times = [inode.mtime, inode.btime, inode.ctime, inode.atime];
        for (n, time) in times.iter().enumerate() {
            let (near, nanos) = time_value(*time, reference(base.references.0[n], base, &times));
            if near != 0 {
                v.set(TIMES + n, near);
            }
            if let Some(nanos) = nanos {
                v.set(NANOS + n, nanos);
            }
        }
        let shape = u64::from(v.stored >> FIRST_OPTIONAL & ((1 << OPTIONAL) - 1));
        v.set(Field::Shape as usize, shape | kind_and_form(inode.kind, root.form, root.depth) << OPTIONAL);
        v
    }

    /// The inode whose fields `r` tells.
    #[inline(always)]
    pub fn read(base: &Base, profile: &Profile, r: &mut Reader) -> RawInode {
        let shape = profile.code(Field::Shape).take(r);
        let (kind, form, depth) = apart(shape >> OPTIONAL);
        let size = profile.code(Field::Size).take(r);
        let mut stored = Stored { shape, profile, r };
        let off = match stored.take(Field::Location) {
            Some(v) => v.rotate_left(UNIT_BITS).wrapping_add(base.off) & OFFSETS,
            None => 0,
        };
        let perm = stored.take(Field::Perm).map_or(base.perm, |v| base.perm.wrapping_add(unzigzag(v) as u32));
        let nlink = stored.take(Field::Links).map_or(usual_links(kind), |v| v as u32);
        let settings = stored.take(Field::Settings).map_or(base.settings, |v| v as u32);
        let extra = usual_extra(kind, form, size, base).wrapping_add(unzigzag(stored.or_zero(Field::Extra)) as u64);
        let xattr = stored.take(Field::Xattr).map_or(0, |place| unplace(place, base.off));
        let generation = base.generation.wrapping_add(unzigzag(stored.or_zero(Field::Generation)) as u32);
        let near = [
            stored.or_zero(Field::Mtime),
            stored.or_zero(Field::Btime),
            stored.or_zero(Field::Ctime),
            stored.or_zero(Field::Atime),
        ];
        // By the numbers of [`Against`], as they become known.
        let mut known = [base.mtime, base.btime, 0, 0, 0, 0, 0, 0];
        for n in 0..4 {
            let of = known[base.references.0[n] as usize];
            known[Against::Mtime as usize + n] = match near[n] {
                near if near < FAR => of.wrapping_add(unzigzag(near)),
                far => far_time(far, of, profile.code(Field::ALL[NANOS + n]).take(stored.r)),
            };
        }
        let [_, _, mtime, btime, ctime, atime, ..] = known;
        let content = Root { off, form, depth }.pack();
        let (delay, settings) = ((settings >> 16) as u8, settings as u16);
        RawInode {
            content,
            size,
            extra,
            mtime,
            ctime,
            atime,
            btime,
            xattr,
            perm,
            nlink,
            generation,
            kind,
            delay,
            settings,
        }
    }
}

/// Fields that the shape says are stored.
struct Stored<'a, 'b> {
    shape: u64,
    profile: &'a Profile,
    r: &'a mut Reader<'b>,
}

impl Stored<'_, '_> {
    #[inline(always)]
    fn take(&mut self, field: Field) -> Option<u64> {
        let is_stored = self.shape >> (field as usize - FIRST_OPTIONAL) & 1 == 1;
        is_stored.then(|| self.profile.code(field).take(self.r))
    }

    #[inline(always)]
    fn or_zero(&mut self, field: Field) -> u64 {
        self.take(field).unwrap_or(0)
    }
}

/// One number: the usual value is in its low bits, so that it is small then.
#[inline(always)]
fn kind_and_form(kind: u8, form: u8, depth: u8) -> u64 {
    let [kind, form, depth] = [kind ^ FILE, form, depth].map(u64::from);
    form & 3 | (kind & 15) << 2 | (depth & 7) << 6 | (form >> 2) << 9 | (kind >> 4) << 15 | (depth >> 3) << 19
}

#[inline(always)]
fn apart(v: u64) -> (u8, u8, u8) {
    let kind = v >> 2 & 15 | (v >> 15 & 15) << 4;
    let form = v & 3 | (v >> 9 & 63) << 2;
    let depth = v >> 6 & 7 | (v >> 19 & 31) << 3;
    (kind as u8 ^ FILE, form as u8, depth as u8)
}

const OFFSETS: u64 = (1 << 48) - 1;

/// Differences below this many nanoseconds, either way, are stored as such.
const NEAR: i64 = 1 << 30;
/// From here on a time's number tells the difference in seconds, and another one the rest.
const FAR: u64 = 2 * NEAR as u64;
const SECOND: i64 = 1_000_000_000;
/// Numbers of the rest of a time: 0 none, 1 that of the other time, then whole milliseconds, whole microseconds,
/// nanoseconds.
const MILLIS: u64 = 2;
const MICROS: u64 = MILLIS + 1000;
const REST: u64 = MICROS + 1_000_000;

/// The numbers of `time` against `of`.
#[inline(always)]
fn time_value(time: i64, of: i64) -> (u64, Option<u64>) {
    let near = time.wrapping_sub(of);
    if (1 - NEAR..NEAR).contains(&near) {
        return (zigzag(near), None);
    }
    let (second, rest) = (time.div_euclid(SECOND), time.rem_euclid(SECOND));
    let of_rest = of.rem_euclid(SECOND);
    let number = match rest as u64 {
        0 => 0,
        _ if rest == of_rest => 1,
        rest if rest % 1_000_000 == 0 => MILLIS + rest / 1_000_000,
        rest if rest % 1000 == 0 => MICROS + rest / 1000,
        rest => REST + rest,
    };
    (FAR + zigzag(second - of.div_euclid(SECOND)), Some(number))
}

/// The time so far from `of`, with this number of its rest.
#[inline(always)]
fn far_time(value: u64, of: i64, rest: u64) -> i64 {
    let second = of.div_euclid(SECOND).wrapping_add(unzigzag(value - FAR));
    let rest = match rest {
        0 => 0,
        1 => of.rem_euclid(SECOND) as u64,
        n if n < MICROS => (n - MILLIS) * 1_000_000,
        n if n < REST => (n - MICROS) * 1000,
        n => n - REST,
    };
    second.wrapping_mul(SECOND).wrapping_add(rest as i64)
}

/// Objects lie at multiples of so many bytes.
const UNIT_BITS: u32 = 4;

/// An offset behind another.
#[inline(always)]
fn behind(off: u64, base: u64) -> u64 {
    off.wrapping_sub(base).rotate_right(UNIT_BITS)
}

/// An offset against another: small if it is near and they are multiples of the unit.
#[inline(always)]
fn place(off: u64, base: u64) -> u64 {
    zigzag(behind(off, base) as i64)
}

#[inline(always)]
fn unplace(v: u64, base: u64) -> u64 {
    (unzigzag(v) as u64).rotate_left(UNIT_BITS).wrapping_add(base)
}
