//! Room for a region in shared memory, made while the region is filled: clearing a gigabyte takes a third of a second,
//! which then is spent while a disk is read.

use crate::error::Result;
use rustix::fs::{fallocate, fstatvfs, FallocateFlags};
use rustix::io::Errno;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::Builder;

/// Bytes that are made at a time.
const STEP: u64 = 16 << 20;

/// Room that is being made, from the beginning on.
#[derive(Default)]
pub struct Preallocation {
    /// Bytes for which there will be room.
    len: u64,
    /// Bytes for which there is.
    made: AtomicU64,
    /// Why there will be no more.
    failed: Mutex<Option<Errno>>,
    grown: Condvar,
    /// Nobody needs it any more.
    in_vain: AtomicBool,
}

impl Preallocation {
    /// Waits until there is room for everything before byte `end`. For what is behind the end of the file there never is.
    pub fn wait(&self, end: u64) -> Result<(), Errno> {
        if end > self.len {
            return Err(Errno::FBIG);
        }
        if self.made.load(Ordering::Acquire) >= end {
            return Ok(());
        }
        let mut failed = self.lock();
        while self.made.load(Ordering::Acquire) < end {
            match *failed {
                Some(errno) => return Err(errno),
                None => failed = self.grown.wait(failed).unwrap_or_else(|e| e.into_inner()),
            }
        }
        Ok(())
    }

    /// Makes it.
    fn grow(&self, file: &File) {
        for at in (0..self.len).step_by(STEP as usize) {
            if self.in_vain.load(Ordering::Relaxed) {
                return;
            }
            let step = STEP.min(self.len - at);
            let made = allocate(file, at, step);
            let mut failed = self.lock();
            match made {
                Ok(()) => self.made.store(at + step, Ordering::Release),
                Err(errno) => *failed = Some(errno),
            }
            self.grown.notify_all();
            if made.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Errno>> {
        self.failed.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Fails where there is less room than that, as far as the file system knows: nobody else loses memory to an attempt.
fn refuse_too_much(file: &File, len: u64) -> Result<(), Errno> {
    match fstatvfs(file) {
        // Of one without a limit no blocks are told.
        Ok(found) if found.f_blocks > 0 && len > found.f_bavail.saturating_mul(found.f_frsize) => Err(Errno::NOSPC),
        _ => Ok(()),
    }
}

fn allocate(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    loop {
        match fallocate(file, FallocateFlags::empty(), at, len) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Makes room for `len` bytes of a file while `fill` has it, and returns when there is all of it; an error is one of
/// making room, whatever became of `fill`.
pub fn make<R>(file: &File, len: u64, fill: impl FnOnce(&Preallocation) -> Result<R>) -> Result<Result<R>, Errno> {
    refuse_too_much(file, len)?;
    let room = Preallocation { len, ..Preallocation::default() };
    std::thread::scope(|scope| {
        if Builder::new().name("making room".into()).spawn_scoped(scope, || room.grow(file)).is_err() {
            room.grow(file);
        }
        let filled = fill(&room);
        match &filled {
            Ok(_) => room.wait(len)?,
            Err(_) => {
                room.in_vain.store(true, Ordering::Relaxed);
                if let Some(errno) = *room.lock() {
                    return Err(errno);
                }
            }
        }
        Ok(filled)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::error::Error;

    /// More than any disk of a test.
    const TOO_MUCH: u64 = 1 << 50;

    #[test]
    fn there_is_room_where_one_has_waited_and_in_the_end_everywhere() {
        let (file, len) = (tempfile::tempfile_in("/dev/shm").expect("a file"), 3 * STEP + 4096);
        let blocks = || file.metadata().expect("it is there").blocks() * 512;
        let filled = make(&file, len, |room| {
            room.wait(STEP + 1)?;
            assert!(blocks() >= 2 * STEP);
            Ok(7)
        });
        assert!(matches!(filled, Ok(Ok(7))));
        assert_eq!(blocks(), len);
    }

    #[test]
    fn what_fails_in_between_is_told() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        let filled = make(&file, 2 * STEP, |_| Err::<(), _>(Error::from(Errno::IO)));
        assert!(filled.expect("room").is_err_and(|e| e.errno() == Errno::IO));
    }

    #[test]
    fn no_room_is_told_to_who_waits_and_to_who_does_not() {
        let file = File::open("/dev/null").expect("it is there");
        let filled = make(&file, 1, |room| Ok(room.wait(1)?));
        assert!(filled.is_err());
        assert!(make(&file, 1, |_| Ok(())).is_err());
    }

    #[test]
    fn what_can_never_be_there_takes_no_memory() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        let (mut begun, blocks) = (false, || file.metadata().expect("it is there").blocks());
        let filled = make(&file, TOO_MUCH, |_| {
            begun = true;
            Ok(())
        });
        assert!(matches!(filled, Err(Errno::NOSPC)));
        assert_eq!((begun, blocks()), (false, 0));
    }

    #[test]
    fn nobody_waits_for_what_is_behind_the_end() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        let filled = make(&file, 4096, |room| Ok(room.wait(4097)?));
        assert!(filled.expect("room").is_err_and(|e| e.errno() == Errno::FBIG));
        assert!(matches!(make(&file, 4096, |room| Ok(room.wait(4096)?)), Ok(Ok(()))));
    }
}
