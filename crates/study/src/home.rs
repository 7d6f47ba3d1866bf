//! Inodes as those of a server with many users' files: many owners, full nanosecond times that are independent of each
//! other.

use conquest_fs::layout::RawInode;
use rng::Rng;

use crate::scan::Heap;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
const OWNERS: u64 = 60;

/// `count` inodes; the same ones for the same seed.
pub fn inodes(count: usize, seed: u64) -> Vec<RawInode> {
    let mut rng = Rng::new(seed);
    let mut heap = Heap::new();
    let mut all = Vec::with_capacity(count);
    let now = 1_780_000_000 * SECOND;
    while all.len() < count {
        // A directory of one owner, with files that came over years or all at once.
        let owner = rng.below(OWNERS) as u32;
        let begun = now - rng.below(2000) * DAY - rng.below(DAY);
        let lasts = if rng.below(3) == 0 { 60 * SECOND } else { (now - begun) / 2 + 1 };
        let parent = all.len() as u64 + 1;
        for n in 0..1 + rng.below(40) {
            let is_dir = n == 0;
            let born = begun + rng.below(lasts);
            let written = if rng.below(10) < 7 { born + rng.below(SECOND / 10) } else { born + rng.below(now - born) };
            let changed = if rng.below(10) < 8 { written } else { written + rng.below(now - written) };
            let read = if rng.below(10) < 4 { born } else { written + rng.below(now - written) };
            let scale = rng.below(18);
            let size = rng.below(64 << scale);
            let (content, pages) = if is_dir { (heap.content(600).0, 0) } else { heap.content(size) };
            all.push(RawInode {
                content,
                size: if is_dir { 20 } else { size },
                extra: if is_dir { parent } else { pages },
                mtime: written as i64,
                ctime: changed as i64,
                atime: read as i64,
                btime: born as i64,
                xattr: 0,
                perm: 4 * owner + u32::from(is_dir) + 2 * u32::from(rng.below(8) == 0),
                nlink: 1 + u32::from(is_dir),
                generation: 1,
                kind: if is_dir { 4 } else { 8 },
                delay: 0,
                settings: 0,
            });
        }
    }
    all.truncate(count);
    all
}
