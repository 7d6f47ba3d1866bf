//! Compact leaves: pages that were written in order take a word for each run of places, instead of one for each page.
//!
//! ```text
//! bits 0–46    the place of the run's first page; 0: its pages are holes
//! bits 47–55   that page, from the first one of the leaf on; 0 in the first word
//! bits 56–63   a check code of the bits below, the file and the leaf
//! ```
//! Words are in the order of their pages; a run goes on to the next one's, or to the end of the leaf. A word of 0 behind the first ends
//! them. All in a compact leaf is on disk: any other entry makes an ordinary one of it first.

use pram::Memory;
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::entry::{Entry, Spot};
use super::{Node, FANOUT};
use crate::error::{Error, Result};
use crate::file::edit::Edit;
use crate::layout::tag;
use ilfs::place::PLACE_BITS;
use ilfs::Place;

/// Most words of a compact leaf: one is left free where it is made, for a truncation that cuts one in two.
pub(super) const MOST: usize = 8;
const START_AT: u32 = PLACE_BITS;
const CODE_AT: u32 = 56;
const _: () = assert!(FANOUT == 1 << (CODE_AT - START_AT));

/// Pages from one of a leaf on, and where the first of them lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    place: Option<Place>,
}

type Runs = SmallVec<[Run; MOST]>;

fn seal(node: &Node, run: Run) -> u64 {
    let bits = run.place.map_or(0, Place::word) | run.start << START_AT;
    bits | node.spot(0).code(bits, CODE_AT)
}

/// The runs of a compact leaf.
fn read(r: &Memory, node: &Node) -> Result<Runs> {
    let mut words = [0u64; MOST];
    let words = &mut words[..node.words as usize];
    r.read_bytes(node.off, words.as_mut_bytes())?;
    parse(node, words)
}

fn parse(node: &Node, words: &[u64]) -> Result<Runs> {
    let mut runs = Runs::new();
    // The first may be of holes, with a check code of 0.
    for word in words.iter().enumerate().take_while(|(n, word)| *n == 0 || **word != 0).map(|(_, word)| word) {
        let bits = word & ((1 << CODE_AT) - 1);
        let (start, place) = (bits >> START_AT, bits & ((1 << PLACE_BITS) - 1));
        let run = Run { start, place: Place::from_word(place) };
        let follows = runs.last().map_or(start == 0, |last: &Run| start > last.start);
        if seal(node, run) != *word || !follows || run.place.is_none() != (place == 0) {
            return Err(Error::Corrupt(format!("the word {word:#x} of a compact index node is damaged")));
        }
        runs.push(run);
    }
    Ok(runs)
}

/// The meaning of page `i` of the leaf, by its runs.
fn entry(runs: &Runs, i: u64) -> Entry {
    match runs.iter().rev().find(|run| run.start <= i) {
        Some(Run { start, place: Some(place) }) => {
            let block = u64::from(place.block()) + i - start;
            // Damage, where the run leaves its segment: nothing lies there.
            match block < u64::from(ilfs::place::MOST_BLOCKS) {
                true => Entry::Disk(Place::new(place.sequence(), block as u32)),
                false => Entry::Hole,
            }
        }
        _ => Entry::Hole,
    }
}

/// Entries of a compact leaf, from the `first`th on.
pub(super) fn load(r: &Memory, node: &Node, first: u64, entries: &mut [Entry]) -> Result<()> {
    let runs = read(r, node)?;
    for (i, to) in entries.iter_mut().enumerate() {
        *to = entry(&runs, first + i as u64);
    }
    Ok(())
}

/// Entry `i` of a compact leaf.
pub(super) fn get(r: &Memory, node: &Node, i: u64) -> Result<Entry> {
    Ok(entry(&read(r, node)?, i))
}

/// The runs of these entries, which are those of a leaf; none if there are too many, or anything else is in it.
fn of(entries: &[Entry]) -> Option<Runs> {
    let mut runs = Runs::new();
    for (i, is) in entries.iter().enumerate() {
        let place = match is {
            Entry::Disk(place) => Some(*place),
            Entry::Hole => None,
            _ => return None,
        };
        let goes_on = !runs.is_empty() && entry(&runs, i as u64) == *is;
        if !goes_on {
            if runs.len() == MOST - 1 {
                return None;
            }
            runs.push(Run { start: i as u64, place });
        }
    }
    Some(runs)
}

/// Makes the leaf compact that entry `i` of `above` leads to, if it can be; true if it did.
pub(super) fn compact(tx: &mut Edit, above: Node, i: u64) -> Result<bool> {
    let r = tx.memory();
    let Some(leaf) = above.child(r, i)?.filter(|leaf| leaf.height == 1 && !leaf.is_compact()) else { return Ok(false) };
    let mut entries = [Entry::Hole; FANOUT as usize];
    for (n, some) in entries[..leaf.len as usize].chunks_mut(super::BATCH).enumerate() {
        leaf.load(r, (n * super::BATCH) as u64, some)?;
        if some.iter().any(|is| !matches!(is, Entry::Disk(_) | Entry::Hole)) {
            return Ok(false);
        }
    }
    let Some(runs) = of(&entries) else { return Ok(false) };
    let block = tx.alloc(tag::INDEX, (runs.len() as u64 + 1) * 8)?;
    let node = Node { off: block.off, words: (block.cap / 8).min(MOST as u64) as u8, ..leaf };
    store(tx, &node, &runs, true)?;
    tx.set(above.at(i), &above.compact_word(i, node.off))?;
    tx.free(leaf.off, tag::INDEX)?;
    Ok(true)
}

fn store(tx: &mut Edit, node: &Node, runs: &Runs, fresh: bool) -> Result<()> {
    let mut words = [0u64; MOST];
    for (word, run) in words.iter_mut().zip(runs) {
        *word = seal(node, *run);
    }
    let bytes = words[..node.words as usize].as_bytes();
    match fresh {
        true => tx.init_bytes(node.off, bytes)?,
        false => tx.set_bytes(node.off, bytes)?,
    }
    Ok(())
}

/// Makes holes of entries `from..to` of a compact leaf, where its words suffice for that; else false. Needs no memory.
pub(super) fn clear(tx: &mut Edit, node: &Node, from: u64, to: u64) -> Result<bool> {
    let old = read(tx.memory(), node)?;
    let mut runs = Runs::new();
    let starts = old.iter().map(|run| run.start).chain([from, to]).filter(|start| *start < FANOUT);
    let mut starts: SmallVec<[u64; MOST]> = starts.collect();
    starts.sort_unstable();
    starts.dedup();
    for start in starts {
        let is = if (from..to).contains(&start) { Entry::Hole } else { entry(&old, start) };
        let goes_on = !runs.is_empty() && entry(&runs, start) == is;
        if !goes_on {
            let place = if let Entry::Disk(place) = is { Some(place) } else { None };
            runs.push(Run { start, place });
        }
    }
    if runs.len() > node.words as usize {
        return Ok(false);
    }
    store(tx, node, &runs, false)?;
    Ok(true)
}

impl Node {
    /// Is it a leaf of runs?
    pub fn is_compact(&self) -> bool {
        self.words > 0
    }

    /// The word that leads from entry `i` to a compact leaf at `off`.
    fn compact_word(&self, i: u64, off: u64) -> u64 {
        super::entry::encode_compact(off, self.spot(i))
    }
}

/// Checks that a compact leaf lies at `off`, and opens it, otherwise like `like`.
pub(super) fn open(r: &Memory, off: u64, like: Node) -> Result<Node> {
    let cap = r.resolve(off, tag::INDEX)?;
    match like.height {
        1 => Ok(Node { off, len: FANOUT, words: (cap / 8).min(MOST as u64) as u8, ..like }),
        _ => Err(Error::Corrupt(format!("the compact index node {off:#x} is no leaf"))),
    }
}

impl Spot {
    /// A code of `bits`, for the bits from `at` on.
    fn code(self, bits: u64, at: u32) -> u64 {
        self.mix(bits) >> at << at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_they_were_whatever_their_check_codes() {
        let (mut zeros, place) = (0, Place::new(77, 3));
        for base in (0..4000).map(|n| n * FANOUT) {
            let node = Node { off: 64, height: 1, base, owner: 5, len: FANOUT, words: 3 };
            let runs: Runs =
                [Run { start: 0, place: None }, Run { start: 508, place: Some(place) }].into_iter().collect();
            let words = [seal(&node, runs[0]), seal(&node, runs[1]), 0];
            zeros += u32::from(words[0] == 0);
            assert_eq!(parse(&node, &words).expect("they are whole"), runs);
        }
        assert!(zeros > 0, "one in 256 codes is 0");
    }
}
