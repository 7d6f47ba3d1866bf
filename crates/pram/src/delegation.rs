//! Delegation: what processes that work on the memory directly may change without an event for each change.
//!
//! The session that [watches](crate::events) has a kernel behind it, which caches the replies that it gets. Before the first change of
//! a key is done, the watcher *recalls* the key: it makes the kernel forget the key, and its replies let the kernel cache nothing
//! new. A bit beside the watcher's count of [references](Runtime::refs) says that the key is recalled. The next change looks at that
//! bit alone. The watcher takes the key back when it likes, and the change after that brings another recall.
//!
//! ```text
//! kept --begin_recall--> recall begun --end_recall--> recalled --take_back--> kept
//!                             \------------take_back------------------------/
//! ```
//! Ordered steps, the watcher's first, then those of a change:
//! 1. `begin_recall`: replies that are begun from now on let the kernel keep nothing. Replies begun earlier answer requests that the
//!    kernel made before 2: it drops what they say by itself.
//! 2. The kernel forgets.
//! 3. `end_recall`: others go on without an event. Not if the key was taken back since 1: what was read since may be kept.
//! 4. `take_back` comes before the watcher reads what the kernel is to keep: else a change between the two would see the key
//!    recalled, and nobody would be notified.
//! 5. A change can be seen by the watcher's reads before it looks at the word.
//!
//! A session that ends loses its words, and all this with them.

use std::sync::atomic::{fence, Ordering};

use crate::runtime::{References, Runtime};
use crate::session::Session;

pub use crate::runtime::Recall;

/// How often a change looks again whether another one of the same key has ended, before it waits for the watcher.
const LOOKS: u32 = 64;

impl Session {
    /// A key has changed: may the watcher have kept what it was? Call it when the change can be seen.
    #[inline(always)]
    pub fn is_kept(&self, key: u64) -> bool {
        fence(Ordering::SeqCst);
        let refs = self.watcher().and_then(|n| self.runtime().refs(n, key));
        refs.is_some_and(|refs| !refs.change())
    }

    /// Does another thread or process change what has this key, or another one, and has not notified of it yet? `own` are the keys that
    /// this thread has [announced](Self::begin_change) itself. Changes that need no notification end at once.
    #[inline(always)]
    pub fn is_changed_beside(&self, key: u64, own: &[u64]) -> bool {
        let rt = self.runtime();
        let own = own.iter().filter(|own| Runtime::are_announced_as_one(**own, key)).count() as u32;
        fence(Ordering::SeqCst);
        (0..LOOKS).all(|_| {
            let busy = rt.is_changing_beside(key, own);
            if busy {
                std::hint::spin_loop();
            }
            busy
        })
    }

    /// Step 1. The watcher's, as are all that follow.
    pub fn begin_recall(&self, key: u64) {
        self.own(key).into_iter().for_each(References::begin_recall);
    }

    /// Step 3.
    pub fn end_recall(&self, key: u64) {
        self.own(key).into_iter().for_each(References::end_recall);
    }

    /// Step 4.
    #[inline(always)]
    pub fn take_back(&self, key: u64) {
        if let Some(refs) = self.own(key) {
            refs.take_back();
            fence(Ordering::SeqCst);
        }
    }

    /// What this session may not keep of the key.
    #[inline(always)]
    pub fn recall(&self, key: u64) -> Recall {
        self.own(key).map_or(Recall::None, References::recall)
    }

    /// Has the next change of a recalled key noted again.
    pub fn note_changes(&self, key: u64) {
        self.own(key).into_iter().for_each(References::note_changes);
    }

    #[inline(always)]
    fn own(&self, key: u64) -> Option<References<'_>> {
        self.runtime().refs(self.runtime().me(), key)
    }
}
