//! A bucket: some of a directory's entries, in one heap object of 64 bytes to 32 KiB.
//!
//! ```text
//! 0      header: slots (16 bits), start of the records (16), live bytes (16), local depth (8), zero (8)
//! 8      slots, growing up: position of the record (16), hash bits 16 to 31 (16); 0 for a removed entry
//! ...    free
//! start  records, growing down from the end: inode number (40), sequence number (12), type (4),
//!        length of the name (8), name; not aligned
//! ```
//! Live bytes are those of the records that are not removed, with their slots.
//!
//! Invariants:
//! - B1. Bytes between the slots and the records are unused, and have been since the bucket was made:
//!   both only grow, so one transaction may remove and insert, and storing there needs no undo. An insertion
//!   is published by one store, of the header. (Removed entries give their bytes back when the bucket is
//!   rebuilt elsewhere.)
//! - B2. Entries whose hashes agree in the bits that a cookie holds have different sequence numbers.

use pram::{Memory, Off, Tx};
use smallvec::SmallVec;

use super::{damaged, Entry};
use crate::attr::NAME_MAX;
use crate::error::Result;
use crate::layout::{tag, MAX_INODES};
use pram::sip::NameHash;

/// Bytes of the header, of a slot, and of a record beside its name.
pub const HEADER: u64 = 8;
pub const SLOT: u64 = 4;
pub const RECORD: u64 = 8;
/// Sizes of a bucket. One that outgrows [`SPLIT`] is split; the sizes above are for names whose hashes
/// agree too far to part them.
pub const SIZES: [u64; 15] = [64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768];
/// Bytes of an ordinary bucket of a table.
pub const SPLIT: u64 = 2048;
pub const MAX: u64 = SIZES[SIZES.len() - 1];

/// Low bits of the hash that a cookie does not hold, and bits of a sequence number.
const DROPPED: u32 = 14;
pub const SEQUENCE_BITS: u32 = 12;
pub const INO_BITS: u32 = 40;
const _: () = assert!(MAX_INODES <= 1 << INO_BITS);

/// Where an entry stands in the order of read-out: its hash, then its sequence number.
#[inline(always)]
pub fn position(hash: u64, sequence: u16) -> u64 {
    (hash >> DROPPED) << SEQUENCE_BITS | u64::from(sequence)
}

/// The table index, at depth `depth`, of the bucket that holds `position`.
#[inline(always)]
pub fn index_of_position(position: u64, depth: u8) -> u64 {
    (position >> SEQUENCE_BITS).checked_shr(64 - DROPPED - u32::from(depth)).unwrap_or(0)
}

/// The hash bits that a slot keeps.
#[inline(always)]
pub fn hash_tag(hash: u64) -> u32 {
    (hash >> 16) as u32 & 0xffff
}

/// Bytes that an entry takes in a bucket.
#[inline(always)]
pub fn cost(name: &[u8]) -> u64 {
    SLOT + RECORD + name.len() as u64
}

/// The size of the smallest bucket of `bytes` bytes or more.
pub fn size_for(bytes: u64) -> Option<u64> {
    SIZES.into_iter().find(|s| *s >= bytes)
}

/// A record's fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub entry: Entry,
    pub sequence: u16,
    pub len: u8,
}

impl Record {
    #[inline(always)]
    pub fn unpack(word: u64) -> Record {
        Record {
            entry: Entry { ino: word & ((1 << INO_BITS) - 1), kind: (word >> (INO_BITS + SEQUENCE_BITS)) as u8 & 15 },
            sequence: (word >> INO_BITS) as u16 & ((1 << SEQUENCE_BITS) - 1),
            len: (word >> 56) as u8,
        }
    }

    #[inline(always)]
    pub fn pack(self) -> u64 {
        self.entry.ino
            | u64::from(self.sequence) << INO_BITS
            | u64::from(self.entry.kind & 15) << 52
            | u64::from(self.len) << 56
    }
}

/// The header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub slots: u16,
    pub start: u16,
    pub live: u16,
    pub depth: u8,
    /// Must be zero.
    pub spare: u8,
}

impl Head {
    #[inline(always)]
    fn unpack(word: u64) -> Head {
        Head {
            slots: word as u16,
            start: (word >> 16) as u16,
            live: (word >> 32) as u16,
            depth: (word >> 48) as u8,
            spare: (word >> 56) as u8,
        }
    }

    #[inline(always)]
    pub fn pack(self) -> u64 {
        u64::from(self.slots)
            | u64::from(self.start) << 16
            | u64::from(self.live) << 32
            | u64::from(self.depth) << 48
            | u64::from(self.spare) << 56
    }

    /// Bytes up to the end of the slots.
    #[inline(always)]
    pub fn slots_end(&self) -> u64 {
        HEADER + SLOT * u64::from(self.slots)
    }
}

/// A bucket whose reference and header have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub off: u64,
    /// Bytes of the object.
    pub cap: u64,
    pub head: Head,
}

/// Where an entry is in its bucket.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    slot: u64,
    pos: u64,
    record: Record,
}

impl Found {
    pub fn entry(&self) -> Entry {
        self.record.entry
    }
}

/// Slots looked at in one go: a cache line of them.
const CHUNK: u64 = 16;

/// The result of a look-up of a name.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    Found(Found),
    /// Not there, and no other entry has its hash bits.
    Alone,
    /// Not there, but others have its hash bits.
    Among,
}

impl Look {
    #[inline(always)]
    pub fn found(self) -> Option<Found> {
        match self {
            Look::Found(found) => Some(found),
            _ => None,
        }
    }
}

/// A pass over the slots of a bucket that have the wanted hash bits.
struct Hits {
    want: u32,
    slots: u64,
    /// Slots before this have been looked at; which of the last few of them are still to come.
    next: u64,
    hits: u16,
}

impl Hits {
    /// The next one's number, and the position of its record.
    #[inline(always)]
    fn next(&mut self, bucket: &Bucket, r: &Memory) -> Result<Option<(u64, u64)>> {
        loop {
            while self.hits != 0 {
                let slot = self.next - CHUNK + u64::from(self.hits.trailing_zeros());
                self.hits &= self.hits - 1;
                let pos = u64::from(bucket.slot(r, slot)? & 0xffff);
                if pos != 0 {
                    return Ok(Some((slot, pos)));
                }
            }
            if self.next >= self.slots {
                return Ok(None);
            }
            let beyond = (self.next + CHUNK).saturating_sub(self.slots);
            self.hits = bucket.hits(r, self.want, self.next)? & u16::MAX >> (beyond & 15);
            self.next += CHUNK;
        }
    }
}

impl Bucket {
    #[inline(always)]
    pub fn open(r: &Memory, off: u64) -> Result<Bucket> {
        let cap = r.resolve(off, tag::BUCKET)?;
        let head = Head::unpack(r.load(Off::new(off))?);
        if cap > MAX || u64::from(head.start) > cap || head.slots_end() > u64::from(head.start) {
            return Err(damaged(off, "bucket's header is out of bounds"));
        }
        Ok(Bucket { off, cap, head })
    }

    pub fn is_empty(&self) -> bool {
        self.head.live == 0
    }

    /// Bytes that a bucket of these live entries alone would need.
    pub fn needed(&self) -> u64 {
        HEADER + u64::from(self.head.live)
    }

    /// Is there room for `bytes` more of slots and records?
    #[inline(always)]
    pub fn fits(&self, bytes: u64) -> bool {
        self.head.slots_end() + bytes <= u64::from(self.head.start)
    }

    /// The slots that have these hash bits.
    #[inline(always)]
    fn hits_of(&self, hash: u64) -> Hits {
        Hits { want: hash_tag(hash), slots: u64::from(self.head.slots), next: 0, hits: 0 }
    }

    /// Which of the next slots from `first` on have these hash bits; beyond the last slot anything.
    #[inline(always)]
    fn hits(&self, r: &Memory, want: u32, first: u64) -> Result<u16> {
        // Reads beyond a small bucket, into its neighbour; for the last of all there is none.
        match r.upper_halves(self.off + HEADER + first * SLOT, want as u16) {
            Ok(hits) => Ok(hits),
            Err(_) => self.hits_one_by_one(r, want, first),
        }
    }

    #[cold]
    #[inline(never)]
    fn hits_one_by_one(&self, r: &Memory, want: u32, first: u64) -> Result<u16> {
        let slots = first..(first + CHUNK).min(u64::from(self.head.slots));
        slots.zip(0..).try_fold(0, |hits, (slot, i)| Ok(hits | u16::from(self.slot(r, slot)? >> 16 == want) << i))
    }

    #[inline(always)]
    fn slot(&self, r: &Memory, slot: u64) -> Result<u32> {
        Ok(u32::from_le(r.read(Off::new(self.off + HEADER + slot * SLOT))?))
    }

    #[inline(always)]
    fn record(&self, r: &Memory, pos: u64) -> Result<Record> {
        let mut word = [0; RECORD as usize];
        if pos + RECORD > self.cap {
            return Err(damaged(self.off, "bucket's slot points outside"));
        }
        r.read_bytes(self.off + pos, &mut word)?;
        let record = Record::unpack(u64::from_le_bytes(word));
        if pos + RECORD + u64::from(record.len) > self.cap {
            return Err(damaged(self.off, "bucket's record reaches outside"));
        }
        Ok(record)
    }

    /// Looks a name up.
    #[inline(always)]
    pub fn find(&self, r: &Memory, hash: u64, name: &[u8]) -> Result<Look> {
        let mut look = Look::Alone;
        let mut hits = self.hits_of(hash);
        while let Some((slot, pos)) = hits.next(self, r)? {
            look = Look::Among;
            let record = self.record(r, pos)?;
            if usize::from(record.len) == name.len() && r.equals(self.off + pos + RECORD, name)? {
                return Ok(Look::Found(Found { slot, pos, record }));
            }
        }
        Ok(look)
    }

    /// A sequence number for a new entry (B2): 0 unless others share the hash bits of its cookie.
    #[cold]
    #[inline(never)]
    fn sequence(&self, r: &Memory, h: &impl NameHash, hash: u64) -> Result<u16> {
        let mut taken: SmallVec<[u16; 8]> = SmallVec::new();
        let mut hits = self.hits_of(hash);
        while let Some((_, pos)) = hits.next(self, r)? {
            let record = self.record(r, pos)?;
            let mut name = [0; NAME_MAX];
            let name = &mut name[..usize::from(record.len)];
            r.read_bytes(self.off + pos + RECORD, name)?;
            if h.hash(name) >> DROPPED == hash >> DROPPED {
                taken.push(record.sequence);
            }
        }
        taken.sort_unstable();
        let free = taken.iter().zip(0..).find(|(t, i)| **t != *i).map_or(taken.len() as u16, |(_, i)| i);
        if free >> SEQUENCE_BITS != 0 {
            return Err(pram::Error::NoSpace.into());
        }
        Ok(free)
    }

    #[inline(always)]
    pub(super) fn set_head(&mut self, tx: &mut Tx, head: Head) -> Result<()> {
        tx.set(Off::new(self.off), &head.pack())?;
        self.head = head;
        Ok(())
    }

    pub fn set_depth(&mut self, tx: &mut Tx, depth: u8) -> Result<()> {
        self.set_head(tx, Head { depth, ..self.head })
    }

    /// Takes `len` of the free bytes (B1) for a record, stores its slot and counts it in `head`; the caller has
    /// checked that it fits, stores the record where this says, and publishes the header.
    #[inline(always)]
    pub(super) fn claim(&self, tx: &mut Tx, head: &mut Head, slot_tag: u32, len: u64) -> Result<u64> {
        let pos = head.start - len as u16;
        tx.init_bytes(self.off + head.slots_end(), &(u32::from(pos) | slot_tag << 16).to_le_bytes())?;
        let live = head.live + SLOT as u16 + len as u16;
        *head = Head { slots: head.slots + 1, start: pos, live, ..*head };
        Ok(u64::from(pos))
    }

    /// Adds an entry, if there is room; returns whether. `alone`: no other entry has its hash bits.
    #[inline(always)]
    pub fn add(
        &mut self,
        tx: &mut Tx,
        h: &impl NameHash,
        (hash, alone): (u64, bool),
        name: &[u8],
        entry: Entry,
    ) -> Result<bool> {
        if !self.fits(cost(name)) {
            return Ok(false);
        }
        let sequence = if alone { 0 } else { self.sequence(tx.memory(), h, hash)? };
        let record = Record { entry, sequence, len: name.len() as u8 };
        let mut head = self.head;
        let pos = self.claim(tx, &mut head, hash_tag(hash), RECORD + name.len() as u64)?;
        tx.init_pair(self.off + pos, &record.pack().to_le_bytes(), name)?;
        self.set_head(tx, head)?;
        Ok(true)
    }

    pub fn remove(&mut self, tx: &mut Tx, found: &Found) -> Result<()> {
        let gone = SLOT + RECORD + u64::from(found.record.len);
        let live = u64::from(self.head.live)
            .checked_sub(gone)
            .ok_or_else(|| damaged(self.off, "bucket's live bytes are miscounted"))?;
        // The word that holds two slots: whole words are what a transaction saves fastest.
        let pair = Off::<u64>::new((self.off + HEADER + found.slot * SLOT) & !7);
        let other = u64::from(u32::MAX) << (32 * (1 - found.slot % 2));
        tx.set(pair, &(tx.memory().load(pair)? & other))?;
        self.set_head(tx, Head { live: live as u16, ..self.head })
    }

    /// Gives an entry another inode; its place in the order of read-out stays.
    pub fn replace(&self, tx: &mut Tx, found: &Found, entry: Entry) -> Result<()> {
        let record = Record { entry, ..found.record };
        Ok(tx.set_bytes(self.off + found.pos, &record.pack().to_le_bytes())?)
    }
}
