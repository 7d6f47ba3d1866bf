//! Buckets as copies in ordinary memory: to read them all through, and to make new ones.

use pram::{Memory, Tx};
use smallvec::SmallVec;

use super::bucket::{cost, hash_tag, Bucket, Head, Record, HEADER, MAX, RECORD, SLOT, SPLIT};
use super::damaged;
use crate::error::Result;
use crate::layout::tag;

/// The bytes of a bucket, on the stack if it is an ordinary one.
pub type Bytes = SmallVec<[u8; SPLIT as usize]>;

/// A copy of a bucket.
pub struct Image {
    off: u64,
    pub head: Head,
    bytes: Bytes,
}

/// An entry in an image.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    pub pos: u16,
    pub slot_tag: u32,
    pub record: Record,
    pub name: &'a [u8],
    /// Record and name, as they lie in the bucket.
    pub bytes: &'a [u8],
}

impl Item<'_> {
    pub fn tag_is_of(&self, hash: u64) -> bool {
        self.slot_tag == hash_tag(hash)
    }
}

impl Image {
    pub fn of(bucket: &Bucket, bytes: Bytes) -> Image {
        Image { off: bucket.off, head: bucket.head, bytes }
    }

    /// The live entries, in the order of their slots; an error for each slot that makes no sense.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = Result<Item<'_>>> {
        let slots = self.bytes[HEADER as usize..].chunks_exact(SLOT as usize).take(usize::from(self.head.slots));
        let slots = slots.map(|s| [u16::from_le_bytes([s[0], s[1]]), u16::from_le_bytes([s[2], s[3]])]);
        slots.filter(|[pos, _]| *pos != 0).map(|[pos, bits]| {
            self.item(pos, u32::from(bits)).ok_or_else(|| damaged(self.off, "bucket's slot points outside"))
        })
    }

    /// The entry whose record is at `pos`, if it is in bounds.
    #[inline(always)]
    fn item(&self, pos: u16, slot_tag: u32) -> Option<Item<'_>> {
        let rest = self.bytes.get(usize::from(pos)..)?;
        let record = Record::unpack(u64::from_le_bytes(*rest.first_chunk()?));
        let bytes = rest.get(..RECORD as usize + usize::from(record.len))?;
        Some(Item { pos, slot_tag, record, name: &bytes[RECORD as usize..], bytes })
    }

    /// The record at `pos` and its name, if it is in bounds.
    pub fn entry_at(&self, pos: u16) -> Option<(Record, &[u8])> {
        self.item(pos, 0).map(|i| (i.record, i.name))
    }
}

impl Bucket {
    /// Copies the whole bucket out.
    pub fn image(&self, r: &Memory) -> Result<Image> {
        let mut bytes = SmallVec::from_elem(0, self.cap as usize);
        r.read_bytes(self.off, &mut bytes)?;
        Ok(Image::of(self, bytes))
    }

    /// Adds all entries of another bucket, for which there must be room.
    pub fn add_all(&mut self, tx: &mut Tx, image: &Image) -> Result<()> {
        let mut head = self.head;
        for item in image.entries() {
            let item = item?;
            if head.slots_end() + cost(item.name) > u64::from(head.start) {
                return Err(damaged(self.off, "bucket's live bytes are miscounted"));
            }
            let pos = self.claim(tx, &mut head, item.slot_tag, item.bytes.len() as u64)?;
            tx.init_bytes(self.off + pos, item.bytes)?;
        }
        self.set_head(tx, head)
    }
}

/// A bucket in the making.
pub struct Builder {
    bytes: Bytes,
    /// Bytes up to the end of the slots; start of the records.
    slots: usize,
    start: usize,
}

impl Builder {
    /// For a bucket of `size` bytes, one of the sizes of buckets.
    #[inline]
    pub fn new(size: u64) -> Builder {
        let size = size.min(MAX) as usize;
        Builder { bytes: SmallVec::from_elem(0, size), slots: HEADER as usize, start: size }
    }

    #[inline]
    pub fn push(&mut self, item: &Item) -> Result<()> {
        let slot = SLOT as usize;
        if self.slots + slot + item.bytes.len() > self.start {
            return Err(damaged(u64::from(item.pos), "bucket's live bytes are miscounted"));
        }
        self.start -= item.bytes.len();
        self.bytes[self.start..self.start + item.bytes.len()].copy_from_slice(item.bytes);
        let word = self.start as u32 | item.slot_tag << 16;
        self.bytes[self.slots..self.slots + slot].copy_from_slice(&word.to_le_bytes());
        self.slots += slot;
        Ok(())
    }

    pub fn push_all(&mut self, image: &Image) -> Result<()> {
        image.entries().try_for_each(|item| self.push(&item?))
    }

    /// Makes it a heap object of local depth `depth`.
    pub fn store(mut self, tx: &mut Tx, depth: u8) -> Result<Bucket> {
        let (slots, start) = (self.slots, self.start);
        let live = (slots - HEADER as usize + self.bytes.len() - start) as u16;
        let count = (slots - HEADER as usize) / SLOT as usize;
        let head = Head { slots: count as u16, start: start as u16, live, depth, spare: 0 };
        self.bytes[..HEADER as usize].copy_from_slice(&head.pack().to_le_bytes());
        let block = tx.alloc(tag::BUCKET, self.bytes.len() as u64)?;
        tx.init_bytes(block.off, &self.bytes[..slots])?;
        tx.init_bytes(block.off + start as u64, &self.bytes[start..])?;
        Ok(Bucket { off: block.off, cap: block.cap, head })
    }
}
