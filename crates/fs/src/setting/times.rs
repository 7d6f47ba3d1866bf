//! How finely the times of an inode are kept once it is packed (mramfs, future work: most old files need no nanoseconds).
//!
//! | value | |
//! | --- | --- |
//! | `exact` | as they are: in effect if nothing is set, and nothing is stored for it |
//! | `seconds` | to the second that they are in, all four, from the time on when the inode is packed |
//!
//! The rules for `seconds`:
//! 1. No time becomes a later one, and two that are equal stay so, as do two in order, which may become equal. (Otherwise a search for
//!    files newer than some time would find older ones.)
//! 2. A rounded time stays as it is, however often it is packed again.
//! 3. An inode is packed only once the second of its last change is over, for every clock. (A further change in that second would be
//!    rounded to the time before it, and a comparison of times would take the file for unchanged.)

use crate::layout::RawInode;

const SECOND: i64 = 1_000_000_000;
/// By how much the clock of inodes is behind others, at most: it is by a tick, of 10 ms or less.
const LAG: i64 = 100_000_000;

/// How finely times are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Times {
    #[default]
    Exact = 0,
    Seconds = 1,
}

impl Times {
    /// As it is written in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Times::Exact => "exact",
            Times::Seconds => "seconds",
        }
    }

    /// From its name.
    pub fn from_name(name: &[u8]) -> Option<Times> {
        [Times::Exact, Times::Seconds].into_iter().find(|times| times.name().as_bytes() == name)
    }

    /// The inode with its times as they are packed.
    pub fn packed(self, raw: &RawInode) -> RawInode {
        let RawInode { mtime, ctime, atime, btime, .. } = *raw;
        match self {
            Times::Exact => *raw,
            Times::Seconds => {
                let [mtime, ctime, atime, btime] = [mtime, ctime, atime, btime].map(whole);
                RawInode { mtime, ctime, atime, btime, ..*raw }
            }
        }
    }

    /// Was the last change, at `ctime`, before `since`, so that it differs from all that come?
    pub(crate) fn is_before(self, ctime: i64, since: i64) -> bool {
        match self {
            Times::Exact => ctime < since,
            Times::Seconds => ctime < whole(since.saturating_sub(LAG)),
        }
    }
}

/// The second that a time is in; of the first there is, which began before all times, the time itself.
fn whole(time: i64) -> i64 {
    time.checked_sub(time.rem_euclid(SECOND)).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn some(rng: &mut rng::Rng) -> i64 {
        match rng.below(5) {
            0 => rng.next() as i64,
            1 => [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX][rng.below(6) as usize],
            2 => (rng.below(5) as i64 - 2) * SECOND + rng.below(3) as i64 - 1,
            3 => i64::MIN + rng.below(3 * SECOND as u64) as i64,
            _ => rng.below(1 << 62) as i64,
        }
    }

    fn inode(rng: &mut rng::Rng) -> RawInode {
        let [mtime, ctime, atime, btime] = [some(rng), some(rng), some(rng), some(rng)];
        RawInode { mtime, ctime, atime, btime, size: rng.next(), ..RawInode::new_zeroed() }
    }

    #[test]
    fn no_time_becomes_later_or_moves_twice() {
        let mut rng = rng::Rng::new(3);
        for _ in 0..100_000 {
            let raw = inode(&mut rng);
            assert_eq!(Times::Exact.packed(&raw), raw);
            let packed = Times::Seconds.packed(&raw);
            assert_eq!(Times::Seconds.packed(&packed), packed);
            assert_eq!(packed.size, raw.size);
            let [was, is] = [raw, packed].map(|raw| [raw.mtime, raw.ctime, raw.atime, raw.btime]);
            for (was, is) in was.into_iter().zip(is) {
                assert!(is <= was && was.abs_diff(is) < SECOND as u64, "{was} {is}");
                assert!(is % SECOND == 0 || is < i64::MIN + SECOND, "{was} {is}");
            }
            for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
                assert!(was[a] != was[b] || is[a] == is[b]);
                assert!(was[a] > was[b] || is[a] <= is[b]);
            }
        }
    }

    #[test]
    fn the_second_of_the_last_change_is_over() {
        let at = |seconds: i64, millis: i64| seconds * SECOND + millis * 1_000_000;
        for (ctime, since, exact, seconds) in [
            (at(5, 300), at(5, 300), false, false),
            (at(5, 300), at(5, 400), true, false),
            (at(5, 300), at(6, 0), true, false),
            (at(5, 999), at(6, 99), true, false),
            (at(5, 999), at(6, 100), true, true),
            (at(5, 0), at(6, 100), true, true),
            (at(-1, 300), at(0, 100), true, true),
            (at(-1, 300), at(-1, 900), true, false),
            (at(5, 0), i64::MAX, true, true),
            (at(5, 0), i64::MIN, false, false),
        ] {
            assert_eq!(Times::Exact.is_before(ctime, since), exact, "{ctime} {since}");
            assert_eq!(Times::Seconds.is_before(ctime, since), seconds, "{ctime} {since}");
        }
    }
}
