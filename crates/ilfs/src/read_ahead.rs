//! Read-ahead: guesses the next reads of one open file from its last ones, in the memory of this process.
//!
//! *Sequential*: each read begins where the last one ended. The fetched range doubles up to [`MOST`], and the next is
//! asked for when half of it has been read, so that the disk does not idle. *Strided*: reads of one length at one
//! distance.

use std::ops::Range;

/// Pages that are fetched ahead at first, and at most.
pub const FIRST: u64 = 32;
pub const MOST: u64 = 1024;
/// Reads at one distance after which the stride is believed.
const BELIEVED: u32 = 2;
/// Reads of a stride that are fetched ahead.
const STRIDES: u64 = 8;

/// The last reads of an open file.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// The last read, in pages.
    last: Option<Range<u64>>,
    /// The distance from the start of one read to the start of the next.
    stride: i64,
    /// How often the stride was the same.
    same: u32,
    /// The end of the fetched range: a page for a sequential reader; for a strided one the start of the last read
    /// fetched.
    until: u64,
    window: u64,
}

impl Ahead {
    /// Notes that pages are being read; returns the pages to fetch besides.
    pub fn note(&mut self, read: Range<u64>) -> Vec<Range<u64>> {
        let Some(last) = self.last.replace(read.clone()) else {
            // A reader that begins at the beginning nearly always goes on.
            return if read.start == 0 { self.sequential(&read) } else { Vec::new() };
        };
        // A page that was read in two halves is read in sequence.
        if read.start == last.end || (read.start + 1 == last.end && read.end > last.end) {
            (self.stride, self.same) = (0, 0);
            return self.sequential(&read);
        }
        if read == last {
            return Vec::new();
        }
        let stride = read.start.wrapping_sub(last.start) as i64;
        let is_same = stride == self.stride && read.end - read.start == last.end - last.start;
        (self.stride, self.same) = (stride, if is_same { self.same + 1 } else { 0 });
        self.window = 0;
        match self.same {
            0..BELIEVED => {
                self.until = read.start;
                Vec::new()
            }
            _ => self.strided(&read),
        }
    }

    fn sequential(&mut self, read: &Range<u64>) -> Vec<Range<u64>> {
        if self.window == 0 || self.until < read.end {
            (self.window, self.until) = (self.window.max(FIRST / 2), read.end);
        }
        if self.until - read.end > self.window / 2 {
            return Vec::new();
        }
        self.window = (self.window * 2).min(MOST);
        let ahead = self.until..read.end + self.window;
        self.until = ahead.end;
        vec![ahead]
    }

    fn strided(&mut self, read: &Range<u64>) -> Vec<Range<u64>> {
        let len = read.end - read.start;
        let reads = (1..=STRIDES as i64).filter_map(|n| read.start.checked_add_signed(self.stride.checked_mul(n)?));
        let is_new = |start: &u64| if self.stride > 0 { *start > self.until } else { *start < self.until };
        let ahead: Vec<Range<u64>> = reads.filter(is_new).map(|start| start..start.saturating_add(len)).collect();
        self.until = ahead.last().map_or(self.until, |range| range.start);
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which reads had been fetched ahead, and the number of pages fetched.
    fn hits(reads: &[Range<u64>]) -> (Vec<bool>, u64) {
        let (mut ahead, mut fetched) = (Ahead::default(), Vec::<Range<u64>>::new());
        let mut pages = 0;
        let tell = |read: &Range<u64>| {
            let hit = fetched.iter().any(|range| range.start <= read.start && read.end <= range.end);
            for range in ahead.note(read.clone()) {
                assert!(fetched.iter().all(|old| old.end <= range.start || range.end <= old.start), "{range:?} twice");
                pages += range.end - range.start;
                fetched.push(range);
            }
            hit
        };
        (reads.iter().map(tell).collect(), pages)
    }

    #[test]
    fn a_sequential_reader_finds_all_but_the_first_reads() {
        for (start, len) in [(0, 1), (0, 32), (1000, 8), (7, 1)] {
            let reads: Vec<_> = (0..2000).map(|n| start + n * len..start + (n + 1) * len).collect();
            let (hit, pages) = hits(&reads);
            // A read may lie across two fetches.
            let missed = hit.iter().filter(|hit| !**hit).count();
            assert!(missed <= 2 + (pages / MOST) as usize + 8, "{start} by {len}: {missed}");
            assert!(pages <= 2000 * len + 2 * MOST, "no more than it reads, and the window");
        }
    }

    #[test]
    fn strides_are_found_forward_and_backward() {
        for stride in [100i64, -100, 5] {
            let reads: Vec<_> = (0..200).map(|n| (100_000 + stride * n) as u64).map(|at| at..at + 2).collect();
            let (hit, _) = hits(&reads);
            assert!(hit[4..].iter().all(|hit| *hit), "{stride}: {hit:?}");
        }
    }

    #[test]
    fn a_random_reader_gets_nothing() {
        let mut rng = rng::Rng::new(5);
        let reads: Vec<_> = (0..1000).map(|_| 1 + rng.below(1 << 20)).map(|at| at..at + 1).collect();
        assert!(hits(&reads).1 < 200);
    }
}
