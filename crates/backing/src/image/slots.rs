//! The slots that are taken: a bitmap, made from the tables when an image is opened.
//!
//! Slots are handed out in ascending order from the start of the file, so that it does not grow while there is room.
//! But they come only from stretches of 64 that are at least half free, so that an update is written in large pieces. A
//! stretch that was passed over is more than half full: the file never has more than two slots, and one stretch, for
//! each that was in use at once.

use super::FIRST;

const STRETCH: u32 = u64::BITS;
/// As slot numbers have 32 bits.
const MAX_STRETCHES: usize = 1 << 26;

pub struct Slots {
    /// A bit per slot, a word per stretch.
    taken: Vec<u64>,
}

/// How far an update has come.
#[derive(Clone, Copy, Default)]
pub struct Cursor {
    stretch: usize,
    /// Slots are taken from this stretch until it is full.
    chosen: bool,
}

impl Slots {
    /// None is taken; the highest will be `last`.
    pub fn new(last: u32) -> Slots {
        let mut taken = vec![0; (last / STRETCH) as usize + 1];
        taken[0] = (1 << FIRST) - 1;
        Slots { taken }
    }

    /// Takes this one; `false` if it is taken, or no slot.
    pub fn claim(&mut self, slot: u32) -> bool {
        let Some(word) = self.taken.get_mut((slot / STRETCH) as usize) else { return false };
        let bit = 1 << (slot % STRETCH);
        let was_free = *word & bit == 0;
        *word |= bit;
        was_free
    }

    /// Takes the next one; `None` if numbers are used up.
    pub fn take(&mut self, cursor: &mut Cursor) -> Option<u32> {
        loop {
            let end = self.taken.len();
            if cursor.stretch == end {
                if end == MAX_STRETCHES {
                    return None;
                }
                self.taken.push(0);
            }
            let word = &mut self.taken[cursor.stretch];
            // At the end of the file nothing is gained by leaving a gap.
            cursor.chosen |= word.count_ones() <= STRETCH / 2 || cursor.stretch + 1 >= end;
            if cursor.chosen && *word != u64::MAX {
                let bit = word.trailing_ones();
                *word |= 1 << bit;
                return Some(cursor.stretch as u32 * STRETCH + bit);
            }
            *cursor = Cursor { stretch: cursor.stretch + 1, chosen: false };
        }
    }

    pub fn free(&mut self, slot: u32) {
        if let Some(word) = self.taken.get_mut((slot / STRETCH) as usize) {
            *word &= !(1 << (slot % STRETCH));
        }
    }

    /// The highest one that is taken, or the last of the headers.
    pub fn last(&self) -> u32 {
        let top = self.taken.iter().rposition(|word| *word != 0).unwrap_or(0);
        top as u32 * STRETCH + self.taken[top].checked_ilog2().unwrap_or(0)
    }
}
