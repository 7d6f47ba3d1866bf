//! The inodes that the server asks the kernel to forget unless a program uses them. An inode that the kernel has forgotten needs no
//! notification of its next change. The server names the inode that another process has changed. Where changes go from inode to inode, as
//! those of `rm -r` do, it names neighbours too, four times as many with each change.

use std::time::{Duration, Instant};

use conquest_fs::{Fs, Ino};

/// Most inodes at once: that many the kernel takes in one piece.
pub const MOST: usize = 512;
/// Numbers looked at for each neighbour.
const SPARSE: u64 = 4;
/// Changes that come later than this after one another have nothing to do with each other.
const TOGETHER: Duration = Duration::from_millis(200);
/// Inodes that were changed last: one that is changed again and again says nothing of its neighbours.
const RECENT: usize = 8;

#[derive(Default)]
pub struct Window {
    recent: [Ino; RECENT],
    changes: usize,
    size: usize,
    last: Option<Instant>,
}

impl Window {
    /// The inodes to forget after a change of `ino`.
    pub fn after(&mut self, fs: &Fs, ino: Ino) -> Vec<Ino> {
        let size = self.widen(ino, Instant::now());
        let neighbours = (1..SPARSE * size as u64).map(|n| ino + n).filter(|ino| fs.is_retained(*ino));
        std::iter::once(ino).chain(neighbours).take(size).collect()
    }

    /// How many inodes after a change of `ino`.
    fn widen(&mut self, ino: Ino, now: Instant) -> usize {
        let together = self.last.replace(now).is_some_and(|last| now.duration_since(last) < TOGETHER);
        self.size = match (together, self.recent.contains(&ino)) {
            (false, _) | (_, true) => 1,
            (true, false) => (self.size * 4).min(MOST),
        };
        self.recent[self.changes % RECENT] = ino;
        self.changes += 1;
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_changes_widens_it_and_the_same_inode_does_not() {
        let (mut window, start) = (Window::default(), Instant::now());
        let sizes: Vec<_> = (1..=7).map(|ino| window.widen(ino, start)).collect();
        assert_eq!(sizes, [1, 4, 16, 64, 256, 512, 512]);
        assert_eq!(window.widen(7, start), 1, "the same one");
        assert_eq!(window.widen(20, start + TOGETHER / 2), 4);
        assert_eq!(window.widen(21, start + TOGETHER * 2), 1, "later");
    }
}
