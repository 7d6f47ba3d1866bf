//! The counters of `conquest run --check`.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use direct::counts::{Counts, BYTES, VARIABLE};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{mmap, MapFlags, ProtFlags};

use crate::env;

/// Null: calls are not counted.
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(std::ptr::null_mut());

fn counts() -> Option<&'static Counts> {
    // SAFETY: [`begin`] has set it; the mapping stays.
    unsafe { COUNTS.load(Ordering::Relaxed).as_ref() }
}

/// Maps the file that the environment names, if it names one.
pub fn begin() {
    let Some(path) = env::value(VARIABLE) else { return };
    let Ok(file) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file that `conquest run` has made so large, and that nobody cuts.
    if let Ok(at) = unsafe { mmap(std::ptr::null_mut(), BYTES, rw, MapFlags::SHARED, &file, 0) } {
        // It is as large, stays, and holds nothing but counters.
        COUNTS.store(at.cast(), Ordering::Relaxed);
    }
}

pub fn are_kept() -> bool {
    counts().is_some()
}

#[inline]
pub fn add(nr: u32, is_direct: bool) {
    if let Some(counts) = counts() {
        counts.add(nr, is_direct);
    }
}

/// Says why a process uses the mount, where calls are counted.
pub fn report_refusal(dir: &[u8], why: &str) {
    if counts().is_some() {
        let text = format!("conquest: no direct access to {}: {why}\n", String::from_utf8_lossy(dir));
        // SAFETY: the descriptor is borrowed for one call, which fails if there is none.
        _ = rustix::io::write(unsafe { BorrowedFd::borrow_raw(2) }, text.as_bytes());
    }
}
