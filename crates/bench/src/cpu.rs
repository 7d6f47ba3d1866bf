//! Pinning threads to processors.

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use crate::error::{joined, Error};

/// The processors this thread may run on, in ascending order.
pub fn allowed() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Pins the calling thread, and the threads it starts later, to one processor.
pub fn pin(cpu: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs `f` on a thread pinned to `cpu`, so that the caller's own affinity stays.
pub fn pinned<T: Send>(cpu: usize, f: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        joined(scope.spawn(move || {
            pin(cpu)?;
            f()
        }))
    })
}
