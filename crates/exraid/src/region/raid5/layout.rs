//! Where content and parity lie on the members.
//!
//! ```text
//! a member's share:  heads | slots of the log of intents | chunk of stripe 0 | chunk of stripe 1 | ...
//!
//! stripe 0   D0  D1  D2  D3  P        left-symmetric: parity goes from the last member to the first, one
//! stripe 1   D1  D2  D3  P   D0       stripe after the other, and content begins behind it; so any members - 1
//! stripe 2   D2  D3  P   D0  D1       chunks in order are on as many members, and all members are read alike
//! ```

use std::ops::Range;

use super::raw::{HEAD, HEADER, LEAST_SLOTS, LOG, SLOTS};

/// The numbers from which the layout of a region follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub members: u64,
    /// Bytes, a power of two from 4096 to [`MOST_CHUNK`](super::raw::MOST_CHUNK).
    pub chunk: u64,
}

/// The part of a stretch of the region that lies on one member, one byte after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub role: usize,
    /// Of the member's share.
    pub range: Range<u64>,
    /// The same bytes, as parts of the whole stretch.
    pub of: Vec<Range<u64>>,
}

impl Geometry {
    /// Chunks of content in a stripe.
    pub fn width(&self) -> u64 {
        self.members - 1
    }

    /// Bytes of content in a stripe.
    pub fn stripe(&self) -> u64 {
        self.chunk * self.width()
    }

    /// The number of slots for intents.
    pub fn slots(&self) -> usize {
        (LOG / self.slot()).clamp(LEAST_SLOTS as u64, SLOTS as u64) as usize
    }

    /// Bytes of a slot: a header, and the new content of one chunk.
    fn slot(&self) -> u64 {
        HEADER + self.chunk
    }

    /// Where a slot begins in a member's share.
    pub fn slot_at(&self, slot: usize) -> u64 {
        2 * HEAD + slot as u64 * self.slot()
    }

    /// Where a copy of the head begins: there are two.
    pub fn head_at(&self, copy: usize) -> u64 {
        copy as u64 * HEAD
    }

    /// Where stripes begin in a member's share.
    pub fn data_at(&self) -> u64 {
        self.slot_at(self.slots()).next_multiple_of(self.chunk)
    }

    /// Stripes that fit into members of so many bytes.
    pub fn stripes(&self, share: u64) -> u64 {
        share.saturating_sub(self.data_at()) / self.chunk
    }

    /// The member with the parity of a stripe.
    pub fn parity(&self, stripe: u64) -> usize {
        (self.members - 1 - stripe % self.members) as usize
    }

    /// The member with a chunk of a stripe, 0 to `width` - 1.
    pub fn role(&self, stripe: u64, chunk: u64) -> usize {
        ((self.parity(stripe) as u64 + 1 + chunk) % self.members) as usize
    }

    /// Where the chunks of these stripes lie in each member's share.
    pub fn chunks(&self, stripes: Range<u64>) -> Range<u64> {
        self.data_at() + stripes.start * self.chunk..self.data_at() + stripes.end * self.chunk
    }

    /// Where these columns of a stripe lie in each member's share.
    pub fn columns(&self, stripe: u64, columns: &Range<u64>) -> Range<u64> {
        let at = self.chunks(stripe..stripe).start;
        at + columns.start..at + columns.end
    }

    /// The stripes of a stretch of a member's share that lies behind the log.
    pub fn stripes_of(&self, range: &Range<u64>) -> Range<u64> {
        (range.start - self.data_at()) / self.chunk..(range.end - self.data_at()).div_ceil(self.chunk)
    }

    /// The stripes in which a stretch of the region lies.
    pub fn around(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.stripe()..range.end.div_ceil(self.stripe())
    }

    /// The stripes that lie wholly in a stretch of the region.
    pub fn within(&self, range: &Range<u64>) -> Range<u64> {
        let (first, end) = (range.start.div_ceil(self.stripe()), range.end / self.stripe());
        first..end.max(first)
    }

    /// The columns of a chunk that a stretch of the content of a stripe touches.
    pub fn touched(&self, within: &Range<u64>, chunk: u64) -> Range<u64> {
        let base = chunk * self.chunk;
        let (low, high) = (within.start.max(base), within.end.min(base + self.chunk));
        match low < high {
            true => low - base..high - base,
            false => 0..0,
        }
    }

    /// The columns of all bytes in a stretch of a stripe's content.
    pub fn hull(&self, within: &Range<u64>) -> Range<u64> {
        match within.start / self.chunk == within.end.saturating_sub(1) / self.chunk {
            true => self.touched(within, within.start / self.chunk),
            false => 0..self.chunk,
        }
    }

    /// The columns that a write of a stretch of the content of a stripe changes on a member: in a chunk those that it
    /// touches, in the parity all of the hull.
    pub fn changed(&self, stripe: u64, within: &Range<u64>, role: usize) -> Range<u64> {
        match (0..self.width()).find(|chunk| self.role(stripe, *chunk) == role) {
            Some(chunk) => self.touched(within, chunk),
            None => self.hull(within),
        }
    }

    /// Splits a stretch of the region by member.
    pub fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / self.chunk + 1) * self.chunk);
            let (number, column) = (at / self.chunk, at % self.chunk);
            let (stripe, chunk) = (number / self.width(), number % self.width());
            let role = self.role(stripe, chunk);
            let there = self.columns(stripe, &(column..column + end - at));
            let of = at - range.start..end - range.start;
            match pieces.iter_mut().rev().find(|piece| piece.role == role).filter(|p| p.range.end == there.start) {
                Some(piece) => {
                    piece.range.end = there.end;
                    piece.of.push(of);
                }
                None => pieces.push(Piece { role, range: there, of: vec![of] }),
            }
            at = end;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [Geometry; 4] = [
        Geometry { members: 3, chunk: 4096 },
        Geometry { members: 4, chunk: 65536 },
        Geometry { members: 5, chunk: 8192 },
        Geometry { members: 32, chunk: 4096 },
    ];

    /// Each chunk has one place, each place one chunk or a parity, and each member as many parities as any other.
    #[test]
    fn every_chunk_of_every_member_is_used_once() {
        for g in ALL {
            let stripes = g.members * 3;
            let mut places = BTreeSet::new();
            let mut parities = vec![0; g.members as usize];
            for stripe in 0..stripes {
                parities[g.parity(stripe)] += 1;
                assert!(places.insert((g.parity(stripe), stripe)));
                for chunk in 0..g.width() {
                    assert!(places.insert((g.role(stripe, chunk), stripe)), "{g:?}: {stripe}, {chunk}");
                }
            }
            assert_eq!(places.len() as u64, stripes * g.members);
            assert!(parities.iter().all(|count| *count == 3), "{parities:?}");
        }
    }

    /// Chunks in order go round the members: as many in a row as there are members are on as many.
    #[test]
    fn any_members_in_a_row_are_different_ones() {
        for g in ALL {
            let roles: Vec<usize> = (0..g.width() * 7).map(|n| g.role(n / g.width(), n % g.width())).collect();
            for row in roles.windows(g.members as usize) {
                assert_eq!(row.iter().collect::<BTreeSet<_>>().len() as u64, g.members, "{g:?}");
            }
        }
    }

    #[test]
    fn pieces_lie_where_their_bytes_do() {
        let g = Geometry { members: 4, chunk: 4096 };
        let place = |at: u64| {
            let (stripe, within) = (at / g.stripe(), at % g.stripe());
            let at = g.columns(stripe, &(within % g.chunk..within % g.chunk)).start;
            (g.role(stripe, within / g.chunk), at)
        };
        for start in (0..g.stripe() * 3).step_by(1024) {
            for end in (start..g.stripe() * 6).step_by(3072) {
                let mut seen = vec![false; (end - start) as usize / 512];
                for piece in g.pieces(start..end) {
                    let bytes = piece.of.iter().flat_map(|of| of.clone().step_by(512));
                    assert_eq!(
                        piece.of.iter().map(|of| of.end - of.start).sum::<u64>(),
                        piece.range.end - piece.range.start
                    );
                    for (there, byte) in piece.range.clone().step_by(512).zip(bytes) {
                        assert_eq!(place(start + byte), (piece.role, there));
                        assert!(!std::mem::replace(&mut seen[byte as usize / 512], true));
                    }
                }
                assert!(seen.iter().all(|seen| *seen));
            }
        }
    }

    /// The heads and slots do not overlap, and stripes begin at multiples of a chunk.
    #[test]
    fn the_log_lies_in_front_of_the_stripes() {
        for chunk in (12..=24).map(|bits| 1 << bits) {
            let g = Geometry { members: 3, chunk };
            assert!((16..=256).contains(&g.slots()), "{chunk}");
            assert!(g.head_at(1) + HEAD <= g.slot_at(0) && g.data_at() % chunk == 0);
            assert!(g.slot_at(g.slots() - 1) + HEADER + chunk <= g.data_at());
            assert_eq!(g.stripes(g.data_at() + chunk - 1), 0);
            assert_eq!(g.stripes(g.data_at() + 5 * chunk), 5);
        }
    }

    #[test]
    fn what_a_write_changes_is_in_its_hull() {
        let g = Geometry { members: 4, chunk: 4096 };
        for (within, hull) in [(0..512, 0..512), (4608..8192, 512..4096), (4096..8704, 0..4096), (3584..4608, 0..4096)]
        {
            assert_eq!(g.hull(&within), hull, "{within:?}");
            let parity = g.parity(5);
            assert_eq!(g.changed(5, &within, parity), hull);
            let changed: u64 = (0..4)
                .filter(|role| *role != parity)
                .map(|role| {
                    let columns = g.changed(5, &within, role);
                    assert!(columns.is_empty() || columns.start >= hull.start && columns.end <= hull.end);
                    columns.end - columns.start
                })
                .sum();
            assert_eq!(changed, within.end - within.start);
        }
    }
}
