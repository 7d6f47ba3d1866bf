//! Packing inodes that nobody has changed for a while, some each tick.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::attr::Time;
use crate::node::{now, Fs};

/// Inodes that have not changed for so long are packed.
pub const PACKED_AFTER: Duration = Duration::from_secs(600);
/// Time for it in a tick of a second: some percent of a processor.
const SHARE: Duration = Duration::from_millis(50);
/// Ticks between the end of a walk over the table and the next.
const REST: u32 = 30;

/// How far the walk over the table is.
#[derive(Default)]
pub struct Packing {
    left: Range<u64>,
    rest: u32,
}

impl Packing {
    pub fn work(&mut self, fs: &Fs) {
        let since = Time(now().0.saturating_sub(PACKED_AFTER.as_nanos() as i64));
        if self.left.is_empty() {
            match self.rest.checked_sub(1) {
                Some(rest) => return self.rest = rest,
                None => (self.left, self.rest) = (0..fs.inode_blocks(), REST),
            }
            if let Err(e) = fs.train_first_profile(since) {
                tracing::debug!("a profile of the pool's inodes: {e}");
            }
        }
        let start = Instant::now();
        match fs.pack_some(&mut self.left, since, &|| start.elapsed() < SHARE) {
            Ok(packed) if packed.blocks > 0 => tracing::debug!("{} inodes packed", packed.inodes),
            Ok(_) => {}
            Err(e) => {
                tracing::debug!("packing inodes: {e}");
                self.left = 0..0;
            }
        }
    }
}
