//! The parts of a segment: their bytes, and the one gate through which bytes become a [`Part`].
//!
//! ```text
//! part:    summary (whole blocks) | content (`entries` blocks)
//! summary: RawPart | RawOwner for each block of content | zeros
//! ```
//! Content of programs lies in segments as it is, and never passes for a summary. A summary carries a nonce, a keyed
//! hash of its position; the key is in the labels of the disks and in no file.

use pram::Pod;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::place::{Place, BLOCK, MOST_BLOCKS, SEQUENCES};
use super::storage_class::CODES;
use pram::sip::{NameHash, Sip};

pub const MAGIC: [u8; 8] = *b"CQ-PART\n";
pub const VERSION: u32 = 1;

/// The head of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawPart {
    pub magic: [u8; 8],
    pub version: u32,
    pub crc: u32,
    pub pool: [u8; 16],
    pub nonce: u64,
    pub sequence: u64,
    pub written: i64,
    pub block: u32,
    pub number: u32,
    pub entries: u32,
    pub segment: u32,
    pub head: u32,
    pub class: u32,
    pub reserved: [u32; 4],
}

/// A summary's record of a block of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawOwner {
    pub ino: u64,
    pub page: u64,
    pub version: u64,
    pub generation: u32,
    pub crc: u32,
}

const _: () = assert!(size_of::<RawPart>() == 96 && size_of::<RawOwner>() == 32);
/// Bytes of a summary before its entries, and of each entry.
const HEAD: usize = size_of::<RawPart>();
const ENTRY: usize = size_of::<RawOwner>();
/// Bytes of a summary that its checksum does not cover.
const UNSUMMED: usize = 16;

/// The owner of a block. In their order, the pages of an inode follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub ino: u64,
    /// The inode's generation: numbers are used again.
    pub generation: u32,
    /// The number of the page in the file.
    pub page: u64,
}

/// A block in a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub owner: Owner,
    /// Orders the versions of a page: drawn when the content was first written, and the same after it is moved.
    pub version: u64,
    /// CRC-32C of the content, computed when it was first written.
    pub crc: u32,
}

/// A summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub sequence: u64,
    /// The block of the segment at which the summary begins.
    pub block: u32,
    /// Parts of the segment that were begun before.
    pub number: u32,
    /// Blocks of a segment.
    pub segment: u32,
    pub head: u32,
    /// The code of the segment's class.
    pub class: u32,
    /// Nanoseconds since 1970.
    pub written: i64,
    pub entries: Vec<Entry>,
}

/// The fields that all parts in a region of a log have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub pool: [u8; 16],
    /// The secret of the region, from the labels of its disks.
    pub secret: u64,
}

impl Identity {
    fn nonce(&self, sequence: u64, block: u32) -> u64 {
        Sip::new(self.secret).hash((sequence << 16 | u64::from(block)).as_bytes())
    }
}

/// Blocks of the summary of so many blocks of content.
pub fn summary_blocks(entries: u32) -> u32 {
    (HEAD + entries as usize * ENTRY).div_ceil(BLOCK as usize) as u32
}

/// Most blocks of content of a part that has `blocks` blocks in all.
pub fn content_of(blocks: u32) -> u32 {
    let most = (u64::from(blocks) * BLOCK).saturating_sub(HEAD as u64) / (BLOCK + ENTRY as u64);
    // The summary takes whole blocks.
    (0..=most as u32).rev().find(|n| n + summary_blocks(*n) <= blocks).unwrap_or(0)
}

impl Part {
    pub fn summary_blocks(&self) -> u32 {
        summary_blocks(self.entries.len() as u32)
    }

    /// The block behind the part's last one.
    pub fn end(&self) -> u32 {
        self.first() + self.entries.len() as u32
    }

    /// The part's first block of content.
    pub fn first(&self) -> u32 {
        self.block + self.summary_blocks()
    }

    /// Each block of content with its entry.
    pub fn blocks(&self) -> impl Iterator<Item = (Place, &Entry)> {
        let first = self.first();
        self.entries.iter().zip(first..).map(|(entry, block)| (Place::new(self.sequence, block), entry))
    }

    /// Writes the bytes of the summary, in whole blocks, to `to`.
    pub fn write(&self, identity: &Identity, to: &mut [u8]) {
        let raw = RawPart {
            magic: MAGIC,
            version: VERSION,
            crc: 0,
            pool: identity.pool,
            nonce: identity.nonce(self.sequence, self.block),
            sequence: self.sequence,
            written: self.written,
            block: self.block,
            number: self.number,
            entries: self.entries.len() as u32,
            segment: self.segment,
            head: self.head,
            class: self.class,
            reserved: [0; 4],
        };
        to[..HEAD].copy_from_slice(raw.as_bytes());
        for (entry, to) in self.entries.iter().zip(to[HEAD..].chunks_exact_mut(ENTRY)) {
            let Owner { ino, page, generation } = entry.owner;
            to.copy_from_slice(RawOwner { ino, page, version: entry.version, generation, crc: entry.crc }.as_bytes());
        }
        let end = HEAD + self.entries.len() * ENTRY;
        let crc = crc32c::crc32c(&to[UNSUMMED..end]);
        to[UNSUMMED - 4..UNSUMMED].copy_from_slice(&crc.to_le_bytes());
    }

    /// Was a summary of that segment written at `block`, where `bytes` lie now? It may be damaged.
    pub fn was_written(identity: &Identity, sequence: u64, block: u32, bytes: &[u8]) -> bool {
        first_of::<RawPart>(bytes).is_some_and(|raw| raw.nonce == identity.nonce(sequence, block))
    }

    /// Reads the summary that begins at `block` of a segment; `bytes` begin there.
    pub fn read(identity: &Identity, block: u32, bytes: &[u8]) -> Found {
        let Some(raw) = first_of::<RawPart>(bytes) else { return Found::Nothing };
        let known = raw.magic == MAGIC && raw.version == VERSION && raw.pool == identity.pool;
        let fits = raw.block == block
            && raw.sequence != 0
            && raw.sequence < SEQUENCES
            && raw.segment <= MOST_BLOCKS
            && raw.class < CODES
            && raw.entries <= content_of(raw.segment.saturating_sub(block));
        if !known || !fits || raw.nonce != identity.nonce(raw.sequence, block) {
            return Found::Nothing;
        }
        let end = HEAD + raw.entries as usize * ENTRY;
        let Some(summed) = bytes.get(UNSUMMED..end) else { return Found::More(end) };
        if crc32c::crc32c(summed) != raw.crc {
            return Found::Nothing;
        }
        let entries = bytes[HEAD..end].chunks_exact(ENTRY).filter_map(first_of::<RawOwner>).map(|raw| Entry {
            owner: Owner { ino: raw.ino, generation: raw.generation, page: raw.page },
            version: raw.version,
            crc: raw.crc,
        });
        let RawPart { sequence, block, number, segment, head, class, written, .. } = raw;
        Found::Part(Part { sequence, block, number, segment, head, class, written, entries: entries.collect() })
    }
}

fn first_of<T: Pod>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

/// The result of looking for a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Part(Part),
    /// So many bytes are needed to tell.
    More(usize),
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { pool: [9; 16], secret: 0x1234_5678 };

    fn part(entries: u32) -> Part {
        let entry = |n: u32| Entry {
            owner: Owner { ino: 7, generation: 3, page: u64::from(n) * 10 },
            version: 1000 + u64::from(n),
            crc: n ^ 0xffff,
        };
        Part {
            sequence: 77,
            block: 5,
            number: 2,
            segment: 1024,
            head: 1,
            class: 4,
            written: -5,
            entries: (0..entries).map(entry).collect(),
        }
    }

    fn bytes(part: &Part) -> Vec<u8> {
        let mut bytes = vec![0; part.summary_blocks() as usize * BLOCK as usize];
        part.write(&IDENTITY, &mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for entries in [0, 1, 124, 125, 126, 1000] {
            let part = part(entries);
            let bytes = bytes(&part);
            assert_eq!(Part::read(&IDENTITY, 5, &bytes), Found::Part(part.clone()), "{entries}");
            if bytes.len() > 4096 {
                let needed = 96 + entries as usize * 32;
                assert_eq!(Part::read(&IDENTITY, 5, &bytes[..4096]), Found::More(needed));
            }
        }
    }

    #[test]
    fn as_much_content_fits_as_its_summary_allows() {
        for blocks in 0..=MOST_BLOCKS {
            let most = content_of(blocks);
            assert!(most == 0 || most + summary_blocks(most) <= blocks);
            assert!(most + 1 + summary_blocks(most + 1) > blocks, "{blocks}: {most}");
        }
        assert_eq!((content_of(1), content_of(2), content_of(1024)), (0, 1, 1016));
    }

    /// Flips each bit: a summary that is damaged, lies elsewhere, or belongs to another pool or region, is none.
    #[test]
    fn anything_else_is_no_summary() {
        let good = bytes(&part(3));
        for bit in 0..(96 + 3 * 32) * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = Part::read(&IDENTITY, 5, &bad);
            assert!(!matches!(found, Found::Part(_)), "bit {bit}");
        }
        assert_eq!(Part::read(&IDENTITY, 6, &good), Found::Nothing, "it lies elsewhere");
        let others = [Identity { pool: [8; 16], ..IDENTITY }, Identity { secret: 1, ..IDENTITY }];
        for other in others {
            assert_eq!(Part::read(&other, 5, &good), Found::Nothing);
        }
        assert_eq!(Part::read(&IDENTITY, 5, &[0; 4096]), Found::Nothing);
    }

    /// A summary with everything right but the secret, which programs do not have.
    #[test]
    fn content_that_looks_like_a_summary_is_none() {
        let mut forged = vec![0; 4096];
        part(3).write(&Identity { secret: 0, ..IDENTITY }, &mut forged);
        assert_eq!(Part::read(&IDENTITY, 5, &forged), Found::Nothing);
    }
}
