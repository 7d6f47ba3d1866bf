//! Chunks and their content: from the chunk table to the objects, and from an offset to its object.

use super::class::{valid_bits, BLOCK_CLASS, CLASSES};
use super::geometry::{CHUNK, PER_GROUP};
use super::Memory;
use crate::error::{Error, Result};
use crate::off::Off;

/// The type of an object, 1 to 15; the layer above gives the numbers their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u8);

/// Number of tags, 0 included, which objects do not have.
pub const TAGS: usize = 16;

/// In the place of a tag: blocks, which take memory as objects of [`BLOCK_CLASS`] do.
pub const BLOCKS: Tag = Tag(0);

/// The decoded `meta` word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// No memory has been taken for the chunk.
    Absent,
    /// The chunk has memory and is empty.
    Free,
    /// Objects of one class and tag.
    Small { tag: Tag, class: u8 },
    /// First of `len` chunks of one object.
    RunHead { tag: Tag, len: u32 },
    /// Follows its head at `dist` chunks' distance.
    RunBody { dist: u32 },
    /// Sixteen blocks, see `blocks`.
    Blocks,
    /// Not a state this version writes: damage.
    Bad,
}

/// The state of a chunk of small objects, as [`Meta`] is stored.
const SMALL: u8 = 1;

impl Meta {
    #[inline(always)]
    pub fn decode(word: u64) -> Meta {
        let (state, tag, class, len) = (word as u8, (word >> 8) as u8, (word >> 16) as u16, (word >> 32) as u32);
        let tag_ok = tag > 0 && usize::from(tag) < TAGS;
        match state {
            0 if word == 0 => Meta::Absent,
            SMALL if tag_ok && usize::from(class) < CLASSES.len() => Meta::Small { tag: Tag(tag), class: class as u8 },
            2 if tag_ok && len > 0 => Meta::RunHead { tag: Tag(tag), len },
            3 if len > 0 => Meta::RunBody { dist: len },
            4 if word == 4 => Meta::Free,
            5 if word == 5 => Meta::Blocks,
            _ => Meta::Bad,
        }
    }

    pub(crate) fn encode(self) -> u64 {
        match self {
            Meta::Absent => 0,
            Meta::Free => 4,
            Meta::Small { tag, class } => 1 | u64::from(tag.0) << 8 | u64::from(class) << 16,
            Meta::RunHead { tag, len } => 2 | u64::from(tag.0) << 8 | u64::from(len) << 32,
            Meta::RunBody { dist } => 3 | u64::from(dist) << 32,
            Meta::Blocks => 5,
            Meta::Bad => 0xff,
        }
    }

    /// The state of a chunk that is shared by objects of this tag and class, or by [`BLOCKS`].
    pub(crate) fn shared(tag: Tag, class: usize) -> Meta {
        match tag {
            BLOCKS => Meta::Blocks,
            tag => Meta::Small { tag, class: class as u8 },
        }
    }

    /// Tag and class of the objects that share a chunk. The tag of blocks is 0.
    #[inline(always)]
    pub fn sharers(self) -> Option<(Tag, u8)> {
        match self {
            Meta::Small { tag, class } => Some((tag, class)),
            Meta::Blocks => Some((BLOCKS, BLOCK_CLASS as u8)),
            _ => None,
        }
    }
}

/// The place of one object in its chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub chunk: u64,
    pub tag: Tag,
    /// Class and index, or `None` for a run.
    pub slot: Option<(u8, u32)>,
    pub cap: u64,
}

impl Memory {
    #[inline(always)]
    pub fn meta(&self, chunk: u64) -> Result<Meta> {
        Ok(Meta::decode(self.load(self.geo.entry(chunk).field(0))?))
    }

    #[inline(always)]
    pub(crate) fn place(&self, off: u64) -> Result<Place> {
        match self.small(off) {
            Some((chunk, tag, class, index)) => {
                let cap = u64::from(CLASSES[usize::from(class)].size);
                Ok(Place { chunk, tag, slot: Some((class, index)), cap })
            }
            None => self.run(off),
        }
    }

    /// The place of an object that has its chunks for itself.
    #[cold]
    #[inline(never)]
    fn run(&self, off: u64) -> Result<Place> {
        let bad = || Err(Error::BadAddress { off, len: 1 });
        let chunk = self.geo.chunk_of(off);
        let within = off - self.geo.chunk(chunk);
        let room = PER_GROUP - chunk % PER_GROUP;
        match self.meta(chunk)? {
            Meta::RunHead { tag, len } if within == 0 && u64::from(len) <= room => {
                Ok(Place { chunk, tag, slot: None, cap: u64::from(len) * CHUNK })
            }
            _ => bad(),
        }
    }

    /// Checks that an object of type `tag` begins at `off`, before the reference is followed; returns the
    /// bytes that it may hold.
    #[inline(always)]
    pub fn resolve(&self, off: u64, tag: Tag) -> Result<u64> {
        match self.resolve_small(off, tag) {
            Some(cap) => Ok(cap),
            None => self.resolve_any(off, tag),
        }
    }

    /// [`resolve`](Self::resolve) of a right reference to an object that shares its chunk, as nearly all are.
    #[inline(always)]
    fn resolve_small(&self, off: u64, tag: Tag) -> Option<u64> {
        let word = self.load(self.geo.entry(self.geo.chunk_of(off)).field(0)).ok()?;
        if word as u16 != u16::from_le_bytes([SMALL, tag.0]) {
            return None;
        }
        let class = CLASSES.get(usize::from((word >> 16) as u16))?;
        class.index_of(off).map(|_| u64::from(class.size))
    }

    /// The place of an object that shares its chunk: chunk, tag, class and index.
    #[inline(always)]
    fn small(&self, off: u64) -> Option<(u64, Tag, u8, u32)> {
        let chunk = self.geo.chunk_of(off);
        let (tag, class) = self.meta(chunk).ok()?.sharers()?;
        Some((chunk, tag, class, CLASSES[usize::from(class)].index_of(off)?))
    }

    #[cold]
    #[inline(never)]
    fn resolve_any(&self, off: u64, tag: Tag) -> Result<u64> {
        let place = self.place(off)?;
        if place.tag != tag {
            return Err(Error::WrongType { off, expected: tag.0, found: place.tag.0 });
        }
        Ok(place.cap)
    }

    /// Is the object at `off` allocated? For checks; `resolve` is the fast one.
    pub fn is_allocated(&self, off: u64) -> Result<bool> {
        match self.place(off)? {
            Place { chunk, slot: Some((class, index)), .. } => {
                let word = self.load(Off::new(self.bitmap(chunk, class) + u64::from(index / 64) * 8))?;
                Ok(word >> (index % 64) & 1 == 1)
            }
            _ => Ok(true),
        }
    }

    /// Word `w` of the bitmap of a chunk of small objects of `class`.
    pub fn taken(&self, chunk: u64, class: u8, w: u32) -> Result<u64> {
        let word = self.load(Off::new(self.bitmap(chunk, class) + u64::from(w) * 8))?;
        Ok(word & valid_bits(CLASSES[usize::from(class)].count, w))
    }

    /// Bytes in allocated objects by tag, and as number 0 in blocks, leaked ones included. For checks, while no operation runs.
    pub fn allocated(&self) -> Result<[u64; TAGS]> {
        let mut bytes = [0; TAGS];
        for s in self.chunks() {
            let meta = self.meta(s)?;
            if let Some((tag, class)) = meta.sharers() {
                let c = &CLASSES[usize::from(class)];
                let mut objects = 0;
                for w in 0..c.count.div_ceil(64) {
                    objects += self.taken(s, class, w)?.count_ones();
                }
                bytes[usize::from(tag.0)] += u64::from(objects) * u64::from(c.size);
            } else if let Meta::RunHead { tag, len } = meta {
                bytes[usize::from(tag.0)] += u64::from(len) * CHUNK;
            }
        }
        Ok(bytes)
    }

    /// Bytes in allocated objects and blocks.
    pub fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.allocated()?.iter().sum())
    }

    /// Offset of the bitmap of a chunk of small objects.
    #[inline(always)]
    pub(crate) fn bitmap(&self, chunk: u64, class: u8) -> u64 {
        if CLASSES[usize::from(class)].base == 0 {
            self.geo.entry(chunk).raw() + 8
        } else {
            self.geo.chunk(chunk)
        }
    }

    pub(crate) fn set_meta(&self, chunk: u64, meta: Meta) -> Result<()> {
        let at = self.geo.entry(chunk).raw();
        self.store_word(at, meta.encode())?;
        self.persist(at, 8);
        Ok(())
    }
}
