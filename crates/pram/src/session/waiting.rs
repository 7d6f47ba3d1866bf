//! No thread waits for a device inside an operation, or inside a section that a sequence counter watches: an operation
//! holds one of a few slots, and each commit waits for all of them. A thread that is about to wait for a device says
//! so; with debug assertions, as in every build of the tests, it fails inside of either.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    /// Operations and sections that this thread is inside of.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// This thread is inside of an operation or a section while this lives. One that ends on another thread than it began
/// on is counted where it began, for ever.
pub(super) struct Inside(());

impl Inside {
    #[inline(always)]
    pub fn enter() -> Inside {
        #[cfg(debug_assertions)]
        INSIDE.with(|n| n.set(n.get() + 1));
        Inside(())
    }
}

#[cfg(debug_assertions)]
impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|n| n.set(n.get().saturating_sub(1)));
    }
}

/// For a thread that is about to wait for a device.
///
/// # Panics
///
/// In builds with debug assertions, if this thread is inside an operation or a section.
#[inline]
#[track_caller]
pub fn assert_may_wait() {
    #[cfg(debug_assertions)]
    assert_eq!(INSIDE.with(Cell::get), 0, "a wait for a device inside an operation or a section");
}
