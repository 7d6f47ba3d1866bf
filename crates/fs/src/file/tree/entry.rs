//! Entries of index nodes: words that locate the content of a file.
//!
//! ```text
//! bits 0–46    where: an offset in the memory
//! bits 47–49   kind           1 index node   2 page   3 reserved page   4 block   5 place on disk
//!                             6 compact leaf
//! bits 50–63   a check code of the bits below, the file, the place in it and the height of the node
//! ```
//! Where a reserved page is at 0 it has no memory, and its room is promised by the log of segments. A place is a number of
//! 47 bits ([`Place::word`]). A word of 0 is a hole. The code tells a word that has been damaged from one that was stored there: also one that
//! leads to an object of the right type which is another file's.

use pram::Memory;

use crate::error::{Error, Result};
use ilfs::place::PLACE_BITS;
use ilfs::Place;

/// The meaning of an entry of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum Entry {
    /// Zeros, without memory.
    Hole,
    /// A heap object of [`PAGE`](crate::file::PAGE) bytes.
    Page(u64),
    /// The same, and nothing has been written to it yet: zeros, with any bytes in it. At 0: without memory, of a file whose
    /// content goes to disk.
    Reserved(u64),
    /// A block of the union cache; where its [descriptor](pram::memory::Descriptor) is void, content that is at its place alone.
    Block(u64),
    /// A page that is not in memory.
    Disk(Place),
}

const NODE: u64 = 1;
const PAGE: u64 = 2;
const RESERVED: u64 = 3;
const BLOCK: u64 = 4;
const DISK: u64 = 5;
const COMPACT: u64 = 6;

const OFFSET_BITS: u32 = 47;
const KIND_BITS: u32 = 3;
const CODE_AT: u32 = OFFSET_BITS + KIND_BITS;
const _REACHES: () = assert!(pram::memory::MAX_SIZE == 1 << OFFSET_BITS && PLACE_BITS <= OFFSET_BITS);

/// The factor of check codes: odd, and no bits shifted out of it leave a row of 14 that are equal.
const OF_OWNER: u64 = 0x8cb9_2ba7_2f3d_8dd7;
const OF_PAGE: u64 = 0xd1b5_4a32_d192_ed03;
const OF_WORD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where an entry belongs, as its check code knows it.
#[derive(Clone, Copy)]
pub(in crate::file) struct Spot(u64);

impl Spot {
    /// In a node of this height in the file of inode `owner`, for the pages from `page` on.
    #[inline(always)]
    pub fn new(owner: u64, height: u8, page: u64) -> Spot {
        Spot(owner.wrapping_mul(OF_OWNER).wrapping_add(page.wrapping_mul(OF_PAGE)).wrapping_add(u64::from(height)))
    }

    #[inline(always)]
    pub fn mix(self, bits: u64) -> u64 {
        (bits ^ self.0).wrapping_mul(OF_WORD)
    }

    #[inline(always)]
    fn seal(self, bits: u64) -> u64 {
        bits | self.mix(bits) >> CODE_AT << CODE_AT
    }

    /// Kind and offset of a word that is not 0.
    #[inline(always)]
    fn unseal(self, word: u64) -> Result<(u64, u64)> {
        let bits = word & ((1 << CODE_AT) - 1);
        match self.seal(bits) == word {
            true => Ok((bits >> OFFSET_BITS, bits & ((1 << OFFSET_BITS) - 1))),
            false => Err(damaged(word)),
        }
    }
}

/// After memory was lost.
fn block_as_it_is(r: &Memory, block: u64) -> Result<Entry> {
    let descriptor = r.descriptor(block)?;
    match descriptor.is_void(r.recovered()?) {
        false => Ok(Entry::Block(block)),
        true => Place::from_word(descriptor.place)
            .map(Entry::Disk)
            .ok_or_else(|| Error::Corrupt(format!("block {block:#x} has the place {:#x}", descriptor.place))),
    }
}

#[cold]
#[inline(never)]
fn damaged(word: u64) -> Error {
    Error::Corrupt(format!("the index entry {word:#x} has a wrong check code"))
}

#[cold]
#[inline(never)]
fn unknown(word: u64, kind: u64) -> Error {
    Error::Corrupt(format!("the index entry {word:#x} is of a kind that there is not: {kind}"))
}

impl Entry {
    /// The same, except that the content of a block that lost its memory is at its place.
    #[inline]
    pub fn as_it_is(self, r: &Memory) -> Result<Entry> {
        match self {
            Entry::Block(block) if r.recovered()? != 0 => block_as_it_is(r, block),
            entry => Ok(entry),
        }
    }

    /// The meaning of the word of a leaf at `spot`.
    #[inline(always)]
    pub fn decode(word: u64, spot: Spot) -> Result<Entry> {
        if word == 0 {
            return Ok(Entry::Hole);
        }
        match spot.unseal(word)? {
            (PAGE, off) => Ok(Entry::Page(off)),
            (RESERVED, off) => Ok(Entry::Reserved(off)),
            (BLOCK, off) => Ok(Entry::Block(off)),
            (DISK, bits) => Place::from_word(bits).map(Entry::Disk).ok_or_else(|| damaged(word)),
            (kind, _) => Err(unknown(word, kind)),
        }
    }

    /// The word that says so in a leaf at `spot`.
    #[inline(always)]
    pub fn encode(self, spot: Spot) -> u64 {
        match self {
            Entry::Hole => 0,
            Entry::Page(off) => spot.seal(off | PAGE << OFFSET_BITS),
            Entry::Reserved(off) => spot.seal(off | RESERVED << OFFSET_BITS),
            Entry::Block(off) => spot.seal(off | BLOCK << OFFSET_BITS),
            Entry::Disk(place) => spot.seal(place.word() | DISK << OFFSET_BITS),
        }
    }
}

/// The target of the word of a higher node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum Below {
    Nothing,
    /// An index node.
    Node(u64),
    /// A compact leaf.
    Compact(u64),
}

/// The target of the word of a higher node at `spot`.
#[inline(always)]
pub(in crate::file) fn decode_node(word: u64, spot: Spot) -> Result<Below> {
    if word == 0 {
        return Ok(Below::Nothing);
    }
    match spot.unseal(word)? {
        (NODE, off) => Ok(Below::Node(off)),
        (COMPACT, off) => Ok(Below::Compact(off)),
        (kind, _) => Err(unknown(word, kind)),
    }
}

/// The word that leads from a higher node at `spot` to the compact leaf at `off`.
pub(in crate::file) fn encode_compact(off: u64, spot: Spot) -> u64 {
    spot.seal(off | COMPACT << OFFSET_BITS)
}

/// The word that leads from a higher node at `spot` to the index node at `off`.
#[inline(always)]
pub(in crate::file) fn encode_node(off: u64, spot: Spot) -> u64 {
    spot.seal(off | NODE << OFFSET_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPOTS: [(u64, u8, u64); 5] = [(0, 1, 0), (1, 1, 0), (17, 1, 5), (17, 2, 512), (1 << 27, 6, 1 << 45)];

    /// A code of 14 bits misses one word of 16,384 that is wrong altogether, and none in which one bit has changed.
    #[test]
    fn a_changed_bit_is_seen_always() {
        for (owner, height, page) in SPOTS {
            let spot = Spot::new(owner, height, page);
            for off in [0x12_3450, 1 << 46, (1 << 47) - 16] {
                let word = Entry::Page(off).encode(spot);
                assert_eq!(Entry::decode(word, spot).unwrap(), Entry::Page(off));
                for bit in 0..64 {
                    assert!(Entry::decode(word ^ 1 << bit, spot).is_err(), "bit {bit} of {word:#x}");
                }
                let link = encode_node(off, spot);
                assert_eq!(decode_node(link, spot).unwrap(), Below::Node(off));
                assert!(decode_node(word, spot).is_err() && Entry::decode(link, spot).is_err());
            }
        }
    }

    #[test]
    fn an_entry_counts_in_its_place_only() {
        let words = SPOTS.map(|(owner, height, page)| Entry::Page(0x5_0000).encode(Spot::new(owner, height, page)));
        for (i, (owner, height, page)) in SPOTS.into_iter().enumerate() {
            for (j, word) in words.into_iter().enumerate() {
                assert_eq!(Entry::decode(word, Spot::new(owner, height, page)).is_ok(), i == j);
            }
        }
    }

    #[test]
    fn entries_are_as_documented() {
        use crate::layout::documented;
        assert_eq!(
            (documented("ENTRY_NODE"), documented("ENTRY_PAGE"), documented("ENTRY_RESERVED")),
            (NODE, PAGE, RESERVED)
        );
        assert_eq!(
            (documented("ENTRY_BLOCK"), documented("ENTRY_DISK"), documented("ENTRY_COMPACT")),
            (BLOCK, DISK, COMPACT)
        );
        assert_eq!((documented("ENTRY_KIND_AT"), documented("ENTRY_CODE_AT")), (OFFSET_BITS.into(), CODE_AT.into()));
    }
}
