//! SEEK_DATA and SEEK_HOLE where the kernel may have data that the pool lacks. The stores of programs through a mapping
//! reach the pool when the kernel writes them back, up to half a minute later, and `cp` would skip them as a hole.
//!
//! So an answer with a hole waits until the kernel has written back its pages there. The kernel drops these pages,
//! which are useless to it where the hole is real. It has pages in a hole only of files that it has read: requests for
//! other files do not wait.
//!
//! [`workers`](crate::workers) may have to serve these writes, and therefore must not wait for them: a thread of its
//! own does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use conquest_fs::Ino;

use crate::answer_later::Parked;

/// Files are identified by their numbers modulo this.
const SLOTS: u64 = 1 << 16;

/// Requests that wait for a write-back, and the files of which the kernel has read content.
pub struct Seeks {
    waiting: Mutex<Waiting>,
    wakeup: Condvar,
    /// A bit for each file.
    read: Box<[AtomicU64]>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Parked>,
    stopped: bool,
}

impl Default for Seeks {
    fn default() -> Seeks {
        let read = (0..SLOTS / u64::from(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        Seeks { waiting: Mutex::default(), wakeup: Condvar::new(), read }
    }
}

impl Seeks {
    /// Records that the kernel is about to read content of the file. It may do so also for a mapping of a file that was
    /// opened with O_DIRECT.
    #[inline(always)]
    pub fn note_read(&self, ino: Ino) {
        let (word, bit) = self.bit_of(ino);
        // As a rule the bit is set already; then the cache line stays shared.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// May the kernel have pages with stores in a hole of this file?
    pub fn was_read(&self, ino: Ino) -> bool {
        let (word, bit) = self.bit_of(ino);
        word.load(Ordering::SeqCst) & bit != 0
    }

    fn bit_of(&self, ino: Ino) -> (&AtomicU64, u64) {
        let slot = ino % SLOTS;
        (&self.read[(slot / u64::from(u64::BITS)) as usize], 1 << (slot % u64::from(u64::BITS)))
    }

    pub fn add(&self, request: Parked) {
        let mut waiting = self.lock();
        // After the stop a request is answered by being dropped, outside of the lock.
        if waiting.stopped {
            return drop(waiting);
        }
        waiting.requests.push_back(request);
        self.wakeup.notify_one();
    }

    /// Lets the thread end. Requests not yet begun fail.
    pub fn stop(&self) {
        let mut waiting = self.lock();
        waiting.stopped = true;
        let left = std::mem::take(&mut waiting.requests);
        drop(waiting);
        self.wakeup.notify_one();
        drop(left);
    }

    /// The next request. Waits until there is one; `None` after the stop.
    pub fn next(&self) -> Option<Parked> {
        let until = |w: &mut Waiting| w.requests.is_empty() && !w.stopped;
        let mut waiting = self.wakeup.wait_while(self.lock(), until).unwrap_or_else(|e| e.into_inner());
        waiting.requests.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::io::Errno;

    use super::*;
    use crate::answer_later::tests::Answering;

    #[test]
    fn files_are_distinguished_and_none_is_forgotten() {
        let seeks = Seeks::default();
        let noted = [1, 64, 65, SLOTS - 1];
        noted.iter().for_each(|ino| seeks.note_read(*ino));
        assert!((0..SLOTS).all(|ino| seeks.was_read(ino) == noted.contains(&ino)));
        assert!(seeks.was_read(SLOTS + 64), "by the same bit: asked for once too often, not once too seldom");
    }

    #[test]
    fn what_has_not_been_begun_is_answered_at_the_end() {
        let (sender, answers) = mpsc::channel();
        let parked = || Parked::new(Answering { data: Vec::new(), sender: sender.clone() });
        let seeks = Seeks::default();
        seeks.add(parked());
        seeks.add(parked());
        seeks.next().expect("the first").reply(Ok(1));
        seeks.stop();
        seeks.add(parked());
        assert!(seeks.next().is_none());
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [Ok(1), Err(Errno::IO), Err(Errno::IO)]);
    }
}
