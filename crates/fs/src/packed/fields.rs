//! An inode as numbers that are small if it is like its neighbours, and back.
//!
//! What an inode has in common with the others of its block is told once, by the block's [`Base`] (mramfs: times coded against a
//! common point). What can be told from other fields of the inode itself is not told either: which fields are as expected says its
//! *shape*, one number, with its type and the form of its content. So an inode of no surprises is its shape, size and place.

use super::bits::{unzigzag, zigzag};
use crate::layout::{RawInode, Root};

/// What is coded of an inode, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// Type, form of the content, and which of the other fields follow.
    Shape,
    Size,
    Location,
    Perm,
    Links,
    Settings,
    Extra,
    Xattr,
    Generation,
    Mtime,
    Btime,
    Ctime,
    Atime,
    /// Below a second, where a time is far from what it is coded against: of each of the four.
    MtimeNanos,
    BtimeNanos,
    CtimeNanos,
    AtimeNanos,
}

impl Field {
    pub const COUNT: usize = 17;
    pub const ALL: [Field; Field::COUNT] = [
        Field::Shape,
        Field::Size,
        Field::Location,
        Field::Perm,
        Field::Links,
        Field::Settings,
        Field::Extra,
        Field::Xattr,
        Field::Generation,
        Field::Mtime,
        Field::Btime,
        Field::Ctime,
        Field::Atime,
        Field::MtimeNanos,
        Field::BtimeNanos,
        Field::CtimeNanos,
        Field::AtimeNanos,
    ];

    /// Bits of its largest value.
    pub fn width(self) -> u8 {
        match self {
            Field::Shape => 24 + OPTIONAL as u8,
            Field::Perm | Field::Generation => 33,
            Field::Links => 32,
            Field::Settings => 24,
            Field::MtimeNanos | Field::BtimeNanos | Field::CtimeNanos | Field::AtimeNanos => 31,
            _ => 64,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Field::Shape => "shape",
            Field::Size => "size",
            Field::Location => "location",
            Field::Perm => "permissions",
            Field::Links => "links",
            Field::Settings => "settings",
            Field::Extra => "pages, parent or device",
            Field::Xattr => "attributes",
            Field::Generation => "generation",
            Field::Mtime => "mtime",
            Field::Btime => "btime",
            Field::Ctime => "ctime",
            Field::Atime => "atime",
            Field::MtimeNanos => "mtime, below a second",
            Field::BtimeNanos => "btime, below a second",
            Field::CtimeNanos => "ctime, below a second",
            Field::AtimeNanos => "atime, below a second",
        }
    }
}

/// Fields that the shape may leave out: [`Field::Location`] to [`Field::Atime`].
const OPTIONAL: u32 = 11;
const FIRST_OPTIONAL: usize = Field::Location as usize;
const TIMES: usize = Field::Mtime as usize;
const NANOS: usize = Field::MtimeNanos as usize;

/// What the inodes of a block have in common.
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
}

impl Base {
    /// The base of these inodes.
    pub fn of(inodes: &[RawInode]) -> Base {
        let off = inodes.iter().map(|i| Root::unpack(i.content).off).filter(|off| *off != 0).min().unwrap_or(0);
        Base {
            off,
            mtime: most_common(inodes.iter().map(|i| i.mtime)),
            btime: most_common(inodes.iter().map(|i| i.btime)),
            generation: most_common(inodes.iter().map(|i| i.generation)),
            perm: most_common(inodes.iter().map(|i| i.perm)),
            settings: most_common(inodes.iter().map(settings)),
            parent: most_common(inodes.iter().filter(|i| i.kind == DIR).map(|i| i.extra)),
        }
    }
}

/// Of at most sixteen.
fn most_common<T: Copy + PartialEq + Default>(all: impl Iterator<Item = T> + Clone) -> T {
    let mut found = (0, T::default());
    for one in all.clone() {
        let count = all.clone().filter(|other| *other == one).count();
        if count > found.0 {
            found = (count, one);
        }
    }
    found.1
}

/// `S_IFDIR >> 12`, as [`RawInode::kind`] has it.
const DIR: u8 = 4;
/// [`Root::form`] of a tree of pages.
const TREE: u8 = 2;
const PAGE: u64 = 4096;

fn settings(inode: &RawInode) -> u32 {
    u32::from(inode.settings) | u32::from(inode.delay) << 16
}

/// The number of links that is not told.
fn usual_links(kind: u8) -> u32 {
    1 + u32::from(kind == DIR)
}

/// What the fields of the inode say of its `extra`.
fn usual_extra(kind: u8, form: u8, size: u64, base: &Base) -> u64 {
    match (kind, form) {
        (DIR, _) => base.parent,
        (_, TREE) => size.div_ceil(PAGE),
        _ => 0,
    }
}

/// What each time is coded against, which a profile chooses.
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

impl Against {
    pub const ALL: [Against; 5] = [Against::Mtimes, Against::Btimes, Against::Mtime, Against::Btime, Against::Ctime];

    pub fn from_number(n: u8) -> Option<Against> {
        Against::ALL.get(usize::from(n)).copied()
    }
}

/// What mtime, btime, ctime and atime are coded against.
pub type References = [Against; 4];

/// What each may be coded against.
pub const CHOICES: [&[Against]; 4] = [
    &[Against::Mtimes, Against::Btimes],
    &[Against::Btimes, Against::Mtimes, Against::Mtime],
    &[Against::Mtime, Against::Btime, Against::Btimes],
    &[Against::Mtime, Against::Btime, Against::Ctime, Against::Btimes],
];

#[inline(always)]
fn reference(of: Against, base: &Base, times: &[i64; 4]) -> i64 {
    match of {
        Against::Mtimes => base.mtime,
        Against::Btimes => base.btime,
        Against::Mtime => times[0],
        Against::Btime => times[1],
        Against::Ctime => times[2],
    }
}

/// The fields of an inode; which there are, its shape says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values {
    pub values: [u64; Field::COUNT],
    /// Bit `n`: field `n` is told.
    pub told: u32,
}

impl Values {
    #[inline(always)]
    fn set(&mut self, field: usize, value: u64) {
        self.values[field] = value;
        self.told |= 1 << field;
    }

    /// As [`set`](Self::set), unless it is what is expected.
    #[inline(always)]
    fn set_unless_zero(&mut self, field: Field, value: u64) {
        if value != 0 {
            self.set(field as usize, value);
        }
    }

    /// Those that are told, in the order of [`Field`].
    pub fn told(&self) -> impl Iterator<Item = (Field, u64)> + '_ {
        Field::ALL.into_iter().filter(|f| self.told >> *f as u32 & 1 == 1).map(|f| (f, self.values[f as usize]))
    }

    /// Of an inode of a block with `base`.
    #[inline(always)]
    pub fn of(inode: &RawInode, base: &Base, references: &References) -> Values {
        let mut v = Values::default();
        let root = Root::unpack(inode.content);
        v.set(Field::Size as usize, inode.size);
        if root.off != 0 {
            v.set(Field::Location as usize, place(root.off, base.off));
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
            let (near, nanos) = time_value(*time, reference(references[n], base, &times));
            if near != 0 {
                v.set(TIMES + n, near);
            }
            if let Some(nanos) = nanos {
                v.set(NANOS + n, nanos);
            }
        }
        let shape = u64::from(v.told >> FIRST_OPTIONAL & ((1 << OPTIONAL) - 1));
        let form = u64::from(inode.kind) | u64::from(root.form) << 8 | u64::from(root.depth) << 16;
        v.set(Field::Shape as usize, shape << 24 | form);
        v
    }

    /// The inode that `next` tells the fields of, one after the other.
    #[inline(always)]
    pub fn read(base: &Base, references: &References, mut next: impl FnMut(Field) -> u64) -> RawInode {
        let shape = next(Field::Shape);
        let (kind, form, depth) = (shape as u8, (shape >> 8) as u8, (shape >> 16) as u8);
        let told = shape >> 24;
        let size = next(Field::Size);
        let is_told = |f: Field| told >> (f as usize - FIRST_OPTIONAL) & 1 == 1;
        let mut read = |f: Field, usual: u64| if is_told(f) { next(f) } else { usual };
        let off = match is_told(Field::Location) {
            true => unplace(read(Field::Location, 0), base.off) & OFFSETS,
            false => 0,
        };
        let perm = i64::from(base.perm).wrapping_add(unzigzag(read(Field::Perm, 0))) as u32;
        let nlink = read(Field::Links, u64::from(usual_links(kind))) as u32;
        let settings = read(Field::Settings, u64::from(base.settings)) as u32;
        let extra = usual_extra(kind, form, size, base).wrapping_add(unzigzag(read(Field::Extra, 0)) as u64);
        let xattr = match is_told(Field::Xattr) {
            true => unplace(read(Field::Xattr, 0), base.off),
            false => 0,
        };
        let generation = i64::from(base.generation).wrapping_add(unzigzag(read(Field::Generation, 0))) as u32;
        let told_times = [0, 1, 2, 3].map(|n| match told >> (TIMES + n - FIRST_OPTIONAL) & 1 {
            1 => next(Field::ALL[TIMES + n]),
            _ => 0,
        });
        let mut times = [0; 4];
        for n in 0..4 {
            let of = reference(references[n], base, &times);
            times[n] = time(told_times[n], of, || next(Field::ALL[NANOS + n]));
        }
        let [mtime, btime, ctime, atime] = times;
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

const OFFSETS: u64 = (1 << 48) - 1;

/// Differences below this many nanoseconds, either way, are told as such.
const NEAR: i64 = 1 << 30;
/// From here on a time's number tells the difference in seconds, and another one the rest.
const FAR: u64 = 2 * NEAR as u64;
const SECOND: i64 = 1_000_000_000;
/// Numbers of the rest of a time: 0 none, 1 that of the other time, then whole milliseconds, whole microseconds, nanoseconds.
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

#[inline(always)]
fn time(value: u64, of: i64, rest: impl FnOnce() -> u64) -> i64 {
    if value < FAR {
        return of.wrapping_add(unzigzag(value));
    }
    let second = of.div_euclid(SECOND).wrapping_add(unzigzag(value - FAR));
    let rest = match rest() {
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

/// An offset against another: small if it is near and they are multiples of the unit.
#[inline(always)]
fn place(off: u64, base: u64) -> u64 {
    zigzag(off.wrapping_sub(base).rotate_right(UNIT_BITS) as i64)
}

#[inline(always)]
fn unplace(v: u64, base: u64) -> u64 {
    (unzigzag(v) as u64).rotate_left(UNIT_BITS).wrapping_add(base)
}
