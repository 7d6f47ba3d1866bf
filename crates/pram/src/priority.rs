//! Before or after whom a thread runs that others wait for.

use crate::host_cpus::{Host, Looks};
use crate::mem::priority::set_priority;

pub use crate::mem::priority::{may_come_last, Priority};

/// Calls of [`ThreadPriority::review`] from one look to the next.
const CALLS: u32 = 4;

/// The priority of a thread that sleeps until there is work: before other threads where all processors are busy.
/// Elsewhere such a priority would make it move from one processor to the other (a request over /dev/fuse took twice as
/// long).
#[derive(Default)]
pub struct ThreadPriority {
    host: Host,
    looks: Looks,
    calls: u32,
    now: Option<Priority>,
}

impl ThreadPriority {
    /// The thread that owns it calls this now and then.
    pub fn review(&mut self) {
        self.calls = self.calls.wrapping_add(1);
        if self.calls % CALLS != 0 {
            return;
        }
        let priority = if self.looks.add(self.host.all_busy()) { Priority::First } else { Priority::Shared };
        self.set(priority);
    }

    /// The thread works for long now, and nobody waits for it.
    pub fn come_among_others(&mut self) {
        self.set(Priority::Shared);
    }

    fn set(&mut self, priority: Priority) {
        if self.now.replace(priority) != Some(priority) {
            set(priority);
        }
    }
}

/// Lets the calling thread precede all others, for short work that other processes and their callers wait for.
/// Otherwise it would get no processor for seconds, beside callers and queues that wake each other all the time.
pub fn come_first() {
    set(Priority::First);
}

/// Gives the calling thread the usual priority, for long work.
pub fn come_among_others() {
    set(Priority::Shared);
}

/// Gives the calling thread a priority, if it may have it.
pub fn set(priority: Priority) {
    if let Err(e) = set_priority(priority) {
        tracing::debug!(?priority, "the priority stays as it is: {e}");
    }
}
