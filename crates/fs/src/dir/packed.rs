//! A packed bucket: the entries of a bucket of a directory that has been quiet, in about half the bytes (mramfs, 5.1, for names).
//!
//! ```text
//! 0   header: check (32), bytes behind the header (16), local depth (8), number of the profile (8)
//! 8   entries, base, kinds (8), widths (16): a `Shape`; entries and base are variable-length numbers, seven bits a byte
//! ... fields of the entries, a stream of bits, lowest first: each inode number less the base, number of its kind, length of
//!     the coded name, sequence number if there are any but 0; each of them of the bits that the shape says
//! ... coded names, one behind the other
//! ```
//!
//! Invariants:
//! - P1. Entries are in the order of read-out, so that a cookie means the same as it did in the plain bucket.
//! - P2. A reader copies all of it first, and believes it if it has its check code: it may be another object's memory by then.
//! - P3. It is only ever made smaller where it lies: an entry is removed, or leads elsewhere. A new entry makes it plain first.

use pram::{Memory, Off, Tx};
use smallvec::SmallVec;

use super::bucket::{self, position, Record, HEADER, INO_BITS, SEQUENCE_BITS, SPLIT};
use super::image::{Builder, Bytes, Image, Item};
use super::naming::Naming;
use super::{damaged, Entry};
use crate::attr::{Kind, NAME_MAX};
use crate::error::Result;
use crate::layout::tag;
use crate::packed::names::{Coded, Symbols, CODED_MAX};
use crate::packed::varint;

/// Bytes of the longest packed bucket: an undo log has room for several.
const LONGEST: u64 = 2 * SPLIT;
/// Kinds that entries can be of, by half their `d_type`.
const KINDS: u32 = 8;

/// The bit of a kind among those that there are.
fn kind_bit(kind: u8) -> u32 {
    (u32::from(kind) / 2) % KINDS
}

/// The header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    check: u32,
    bytes: u16,
    pub depth: u8,
    profile: u8,
}

impl Head {
    fn unpack(word: u64) -> Head {
        Head { check: word as u32, bytes: (word >> 32) as u16, depth: (word >> 48) as u8, profile: (word >> 56) as u8 }
    }

    fn pack(self) -> u64 {
        u64::from(self.check)
            | u64::from(self.bytes) << 32
            | u64::from(self.depth) << 48
            | u64::from(self.profile) << 56
    }

    /// With the check code of these bytes and of the rest of the header.
    fn sealed(self, body: &[u8]) -> Head {
        let rest = pram::mem::crc32c(&self.pack().to_le_bytes()[4..]);
        Head { check: pram::mem::crc32c_append(rest, body), ..self }
    }
}

/// A packed bucket whose reference and header have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    pub off: u64,
    /// Bytes of the object.
    pub cap: u64,
    pub head: Head,
}

/// How wide the fields of the entries are.
#[derive(Clone, Copy, Debug, Default)]
struct Shape {
    entries: usize,
    /// The lowest inode number.
    base: u64,
    /// A bit for each kind that there is.
    kinds: u8,
    /// Bits of an inode number less the base, of a length, of a sequence number.
    ino: u32,
    len: u32,
    sequence: u32,
}

impl Shape {
    fn of(items: &[(Record, Coded)]) -> Shape {
        let width = |most: u64| u64::BITS - most.leading_zeros();
        let inos = || items.iter().map(|(record, _)| record.entry.ino);
        let base = inos().min().unwrap_or(0);
        let sequences = items.iter().map(|(record, _)| record.sequence).max().unwrap_or(0);
        Shape {
            entries: items.len(),
            base,
            kinds: items.iter().fold(0, |kinds, (record, _)| kinds | (1 << kind_bit(record.entry.kind))),
            ino: width(inos().max().unwrap_or(0) - base),
            len: width(items.iter().map(|(_, coded)| coded.len() as u64).max().unwrap_or(0)),
            sequence: if sequences == 0 { 0 } else { SEQUENCE_BITS },
        }
    }

    /// Bits that tell kinds apart.
    fn kind(&self) -> u32 {
        self.kinds.count_ones().max(1).next_power_of_two().trailing_zeros()
    }

    /// Bits of an entry.
    fn bits(&self) -> u32 {
        self.ino + self.kind() + self.len + self.sequence
    }

    fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.entries as u64);
        varint::put(out, self.base);
        out.push(self.kinds);
        let widths = (self.ino | self.len << 6 | u32::from(self.sequence != 0) << 10) as u16;
        out.extend(widths.to_le_bytes());
    }

    fn take(from: &mut &[u8]) -> Option<Shape> {
        let (entries, base) = (varint::take(from)?, varint::take(from)?);
        let ([kinds, low, high], rest) = from.split_first_chunk()?;
        *from = rest;
        let widths = u32::from(u16::from_le_bytes([*low, *high]));
        let shape = Shape {
            entries: entries.min(LONGEST) as usize,
            base,
            kinds: *kinds,
            ino: widths & 63,
            len: widths >> 6 & 15,
            sequence: if widths >> 10 & 1 == 0 { 0 } else { SEQUENCE_BITS },
        };
        let is_sound = shape.base >> INO_BITS == 0 && shape.ino <= INO_BITS && shape.len <= 9 && widths >> 11 == 0;
        is_sound.then_some(shape)
    }

    /// The kind of this number among those that there are, and the number of a kind.
    fn kind_of(&self, number: u32) -> Option<u8> {
        let nth = (0..KINDS).filter(|kind| self.kinds >> kind & 1 == 1).nth(number as usize)?;
        Some(if nth == 0 { 1 } else { 2 * nth as u8 })
    }

    fn number_of(&self, kind: u8) -> u64 {
        u64::from((u32::from(self.kinds) & ((1 << kind_bit(kind)) - 1)).count_ones())
    }
}

/// A copy of a packed bucket.
pub struct Contents<'s> {
    off: u64,
    bytes: Bytes,
    symbols: &'s Symbols,
    shape: Shape,
    /// Where fields and names begin, in `bytes`.
    fields: usize,
    names: usize,
}

/// An entry of a packed bucket.
#[derive(Clone, Copy, Debug)]
struct CodedEntry {
    record: Record,
    /// Where its coded name begins, and its length.
    at: usize,
    len: usize,
}

impl Packed {
    #[inline]
    pub fn open(r: &Memory, off: u64) -> Result<Packed> {
        let cap = r.resolve(off, tag::BUCKET)?;
        let head = Head::unpack(r.load(Off::new(off))?);
        if cap > LONGEST || HEADER + u64::from(head.bytes) > cap {
            return Err(damaged(off, "packed bucket is longer than its object"));
        }
        Ok(Packed { off, cap, head })
    }

    /// Has it no entries?
    pub fn is_empty(&self, r: &Memory) -> Result<bool> {
        Ok(self.head.bytes == 0 || r.read::<u8>(Off::new(self.off + HEADER))? == 0)
    }

    /// All of it, which has its check code (P2).
    pub fn copy<'s>(&self, r: &Memory, names: &'s impl Naming) -> Result<Contents<'s>> {
        let mut bytes: Bytes = SmallVec::from_elem(0, usize::from(self.head.bytes));
        r.read_bytes(self.off + HEADER, &mut bytes)?;
        if self.head.sealed(&bytes) != self.head {
            return Err(damaged(self.off, "packed bucket is not what was packed"));
        }
        let symbols = names.symbols(self.head.profile)?;
        let mut rest = bytes.as_slice();
        let shape = Shape::take(&mut rest).ok_or_else(|| damaged(self.off, "packed bucket's shape makes no sense"))?;
        let fields = bytes.len() - rest.len();
        let names = fields + (shape.entries * shape.bits() as usize).div_ceil(8);
        if names > bytes.len() {
            return Err(damaged(self.off, "packed bucket is shorter than its entries"));
        }
        Ok(Contents { off: self.off, bytes, symbols, shape, fields, names })
    }

    /// Looks a name up.
    #[cold]
    pub fn find(&self, r: &Memory, names: &impl Naming, name: &[u8]) -> Result<Option<(usize, Entry)>> {
        let copy = self.copy(r, names)?;
        let coded = copy.symbols.encode(name);
        let mut fields = copy.fields().enumerate();
        let found = fields.find(|(_, f)| f.len == coded.len() && copy.bytes[f.at..f.at + f.len] == coded[..]);
        Ok(found.map(|(n, field)| (n, field.record.entry)))
    }

    /// The size that the plain bucket of its entries has, with room for `more` bytes if an ordinary one has that.
    pub fn plain_size(&self, items: &[Owned], more: u64) -> Result<u64> {
        let needed = HEADER + items.iter().map(|item| bucket::cost(item.name())).sum::<u64>();
        let size = bucket::size_for(needed + more).filter(|size| *size <= SPLIT).or_else(|| bucket::size_for(needed));
        size.ok_or_else(|| damaged(self.off, "packed bucket has too many entries"))
    }

    /// The plain bucket of the same entries, of the smallest size that has room for `more` bytes.
    pub fn plain(&self, r: &Memory, names: &impl Naming, more: u64) -> Result<Builder> {
        let items = self.copy(r, names)?.items()?;
        let mut builder = Builder::new(self.plain_size(&items, more)?);
        for item in &items {
            builder.push(&item.plain(names))?;
        }
        Ok(builder)
    }

    /// Replaces its entries in place by the result of `change`; false, and nothing has changed, if they have no room.
    pub fn change(&self, tx: &mut Tx, names: &impl Naming, change: impl FnOnce(&mut Vec<Owned>)) -> Result<bool> {
        let mut items = self.copy(tx.memory(), names)?.items()?;
        change(&mut items);
        let profile = self.head.profile;
        let Some(bytes) = encode(names.symbols(profile)?, profile, self.head.depth, &items) else { return Ok(false) };
        let len = bytes.len() as u64;
        if len > self.cap || len + pram::tx::RECORD > tx.room() {
            return Ok(false);
        }
        tx.set_bytes(self.off, &bytes)?;
        Ok(true)
    }
}

impl Contents<'_> {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.shape.entries
    }

    /// The entries up to the first one that makes no sense.
    fn fields(&self) -> impl Iterator<Item = CodedEntry> + '_ {
        let shape = self.shape;
        let mut at = self.names;
        (0..shape.entries).map_while(move |n| {
            let mut bit = n * shape.bits() as usize;
            let mut take = |count: u32| {
                let value = self.bits(bit, count);
                bit += count as usize;
                value
            };
            let (ino, kind, len) = (shape.base + take(shape.ino), take(shape.kind()), take(shape.len) as usize);
            let sequence = take(shape.sequence) as u16;
            let begin = at;
            at += len;
            let entry = Entry { ino, kind: shape.kind_of(kind as u32)? };
            let record = Record { entry, sequence, len: 0 };
            (ino >> INO_BITS == 0 && at <= self.bytes.len()).then_some(CodedEntry { record, at: begin, len })
        })
    }

    /// `count` bits of the fields from `bit` on, at most 40.
    #[inline(always)]
    fn bits(&self, bit: usize, count: u32) -> u64 {
        let from = &self.bytes[(self.fields + bit / 8).min(self.names)..self.names];
        let word = match from.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word >> (bit % 8) & ((1 << count) - 1)
    }

    /// All entries with their names.
    ///
    /// # Errors
    /// One of them makes no sense.
    pub fn items(&self) -> Result<Vec<Owned>> {
        let mut items = Vec::with_capacity(self.shape.entries);
        for field in self.fields() {
            let mut name = [0; NAME_MAX];
            let Some(name) = self.symbols.decode(&self.bytes[field.at..field.at + field.len], &mut name) else { break };
            let record = Record { len: name.len() as u8, ..field.record };
            items.push(Owned::new(record, name));
        }
        match items.len() == self.shape.entries {
            true => Ok(items),
            false => Err(damaged(self.off, "packed bucket's entries make no sense")),
        }
    }
}

/// An entry with its name.
#[derive(Clone, Debug)]
pub struct Owned {
    pub record: Record,
    /// Record and name, as they lie in a plain bucket.
    bytes: SmallVec<[u8; 40]>,
}

impl Owned {
    pub fn new(record: Record, name: &[u8]) -> Owned {
        let mut bytes = SmallVec::from_slice(&record.pack().to_le_bytes());
        bytes.extend_from_slice(name);
        Owned { record, bytes }
    }

    pub fn name(&self) -> &[u8] {
        &self.bytes[bucket::RECORD as usize..]
    }

    pub fn lead_to(&mut self, entry: Entry) {
        self.record.entry = entry;
        self.bytes[..bucket::RECORD as usize].copy_from_slice(&self.record.pack().to_le_bytes());
    }

    /// As in an image of a plain bucket.
    fn plain(&self, names: &impl Naming) -> Item<'_> {
        let slot_tag = bucket::hash_tag(names.hash(self.name()));
        Item { pos: 0, slot_tag, record: self.record, name: self.name(), bytes: &self.bytes }
    }
}

/// The entries of a plain bucket in the order of read-out; `None` if it is damaged, which is for fsck to tell.
pub fn ordered(image: &Image, names: &impl Naming) -> Option<Vec<Owned>> {
    let mut items = Vec::with_capacity(usize::from(image.head.slots));
    let mut live = 0;
    for item in image.entries() {
        let item = item.ok()?;
        let hash = names.hash(item.name);
        Kind::from_type(item.record.entry.kind).filter(|_| item.tag_is_of(hash))?;
        live += bucket::cost(item.name);
        items.push((position(hash, item.record.sequence), Owned::new(item.record, item.name)));
    }
    items.sort_by_key(|(place, _)| *place);
    (live == u64::from(image.head.live)).then(|| items.into_iter().map(|(_, item)| item).collect())
}

/// The packed bucket of these entries, which are in the order of read-out; `None` if it would be too long.
pub fn encode(symbols: &Symbols, profile: u8, depth: u8, items: &[Owned]) -> Option<Vec<u8>> {
    let coded: Vec<(Record, Coded)> = items.iter().map(|item| (item.record, symbols.encode(item.name()))).collect();
    let shape = Shape::of(&coded);
    let mut out = vec![0; HEADER as usize];
    shape.put(&mut out);
    let (mut held, mut count) = (0u128, 0);
    for (record, name) in &coded {
        let Record { entry, sequence, .. } = *record;
        let parts = [
            (entry.ino - shape.base, shape.ino),
            (shape.number_of(entry.kind), shape.kind()),
            (name.len() as u64, shape.len),
            (u64::from(sequence), shape.sequence),
        ];
        for (value, bits) in parts {
            held |= u128::from(value) << count;
            count += bits;
        }
        while count >= 8 {
            out.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        out.push(held as u8);
    }
    coded.iter().for_each(|(_, name)| out.extend_from_slice(name));
    if out.len() as u64 > LONGEST {
        return None;
    }
    let (head, body) = out.split_at_mut(HEADER as usize);
    let bytes = body.len() as u16;
    head.copy_from_slice(&Head { check: 0, bytes, depth, profile }.sealed(body).pack().to_le_bytes());
    Some(out)
}

/// Gives any bytes of a packed bucket the check code that makes readers believe them.
#[cfg(test)]
pub fn reseal(bucket: &mut [u8]) {
    let (head, body) = bucket.split_first_chunk_mut().expect("a header");
    let word = Head::unpack(u64::from_le_bytes(*head));
    let body = &body[..body.len().min(usize::from(word.bytes))];
    *head = word.sealed(body).pack().to_le_bytes();
}

const _: () = assert!(CODED_MAX < 1 << 9);
