//! Transfers between blocks and a device, with nothing in between: the device reads or writes the memory itself.
//!
//! A [`Transfer`] is that memory, as a slice of atomics that the driver of the device keeps for as long as the device
//! uses it. It may live longer than the session that began it, and keeps the memory mapped. While it lives its blocks
//! are *pinned*: a block that is freed meanwhile becomes free when the transfer has ended, and is not handed out
//! before.
//!
//! A process that is killed ends at once; its requests to a disk do not. Its pins stay, in the runtime file, and its
//! blocks are in quarantine until its transfers have provably ended. The end of the process proves nothing. Before the
//! kernel closes the open files of a dying process (`exit_files`), it waits only for those requests to io_uring that
//! are about rings themselves (`io_uring_files_cancel`, `tctx_inflight` of io_uring/cancel.c). It takes a ring down
//! later, from a workqueue (`io_ring_exit_work` of io_uring/io_uring.c). So the lock on the memory's file that shows a
//! living process may be gone while a disk still writes to memory that the process had mapped.
//!
//! A lock that the ring holds does prove it. A file that is registered with a ring (`IORING_REGISTER_FILES`) is put
//! when the ring is freed (`io_ring_ctx_free`, `io_sqe_files_unregister`). That is after the last request has given up
//! its reference to the ring (`ref_comp`), when its direct I/O is over. A lock of an open file (`F_OFD_SETLK`) goes
//! with the last reference to that (`__fput`, `locks_remove_file` of fs/locks.c). So [`Session::transfer_lock`] gives
//! an open file of its own, with such a lock on a byte of the memory's file: *each ring that transfers blocks must have
//! it registered*. For threads that call read(2) or write(2) it is enough that the file is open: a thread inside of
//! such a call keeps the process's table of open files alive. As long as the lock is held, no other process gets that
//! session's number, and a process that attaches after all others have died waits for the lock. A child of `fork` that
//! keeps the file open holds the lock too: that makes the quarantine longer, and is not wrong.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU8;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::Session;
use crate::error::{Error, Result};
use crate::mem::{byte_lock, Stretch};
use crate::memory::{BLOCK, CHUNK, PER_CHUNK};
use crate::runtime::{Pinned, FULL, SESSIONS};

/// The byte of the memory's file that says that the first session has transfers under way; after those of the sessions
/// themselves and of the one with the background work.
const FIRST: u32 = SESSIONS + 1;
/// How long a process that attaches waits for transfers of processes that died.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between its looks.
const GLANCE: Duration = Duration::from_millis(10);

/// The memory of blocks that lie one behind the other, for a device to read or write. Dropping it ends the transfer.
pub struct Transfer {
    memory: Stretch,
    // Dropped after the memory, and the lock last.
    _pinned: Pinned,
    _lock: Option<Arc<OwnedFd>>,
}

impl AsRef<[AtomicU8]> for Transfer {
    fn as_ref(&self) -> &[AtomicU8] {
        self.memory.as_ref()
    }
}

impl Session {
    /// Begins a transfer of `count` blocks from `block` on, all of one chunk; `None` if one of them is under transfer
    /// already. The caller has the lock of their owner, in an operation, or has just allocated them and linked them
    /// nowhere. It calls the device when the operation has ended. A caller that allocates a block in one operation and
    /// links it in a later one, as for a fetch, is [`unfinished`](Session::unfinished) in between. On `dax`, the
    /// device's stores count after [`Memory::persist_content`](crate::Memory::persist_content).
    ///
    /// # Errors
    /// [`Error::NotAllocated`] for a block that is free; [`Error::BadAddress`] where they are not in one chunk of blocks;
    /// [`Error::Host`] where the memory's file cannot be locked.
    pub fn transfer(&self, block: u64, count: u64) -> Result<Option<Arc<Transfer>>> {
        let memory = self.memory();
        if count == 0 || count > PER_CHUNK - block % CHUNK / BLOCK {
            return Err(Error::BadAddress { off: block, len: count.saturating_mul(BLOCK) });
        }
        memory.block(block)?;
        for at in (0..count).map(|n| block + n * BLOCK) {
            if !memory.is_allocated(at)? {
                return Err(Error::NotAllocated { off: at });
            }
        }
        let memory = memory.map().stretch(block, count * BLOCK)?;
        let _lock = self.transfer_lock()?;
        let pinned = self.runtime().pin_blocks(block, count)?;
        Ok(pinned.map(|_pinned| Arc::new(Transfer { memory, _pinned, _lock })))
    }

    /// The open file that each ring for block transfers has registered (see the [module](self)), the same each time;
    /// none if the memory is this process's alone.
    ///
    /// # Errors
    /// [`Error::Host`] where the memory's file cannot be opened anew, by /proc, or locked.
    pub fn transfer_lock(&self) -> Result<Option<Arc<OwnedFd>>> {
        let Some((file, made)) = self.lock_files() else { return Ok(None) };
        let mut made = self.memory().lock_by(made);
        if made.is_none() {
            let what = "locking the memory's file for transfers";
            let file = file.lend().map_err(Error::host(what))?;
            let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let lock = rustix::fs::open(path, flags, Mode::empty()).map_err(Error::host(what))?;
            if !byte_lock::acquire(&lock, FIRST + self.runtime().me()).map_err(Error::host(what))? {
                return Err(Error::Unusable(
                    "the number of this process has transfers of another one under way".into(),
                ));
            }
            *made = Some(Arc::new(lock));
        }
        Ok(made.clone())
    }

    /// May a disk still work on a request of another process that holds its [lock](Self::transfer_lock)? A killed
    /// process's request stays in the kernel for as long as the disk takes, and the lock alone tells.
    ///
    /// # Errors
    /// [`Error::Host`] where the locks cannot be looked at.
    pub fn may_others_transfer(&self) -> Result<bool> {
        let me = self.runtime().me();
        self.may_transfer(&mut (0..FULL).filter(|n| *n != me))
    }

    /// The same for processes that are gone: nobody cancels their requests.
    ///
    /// # Errors
    /// As above.
    pub fn may_the_gone_transfer(&self) -> Result<bool> {
        self.may_transfer(&mut (0..FULL).filter(|n| !self.runtime().session_taken(*n)))
    }

    fn may_transfer(&self, sessions: &mut dyn Iterator<Item = u32>) -> Result<bool> {
        let Some((file, _)) = self.lock_files() else { return Ok(false) };
        let file = file.lend().map_err(Error::host(LOOKING))?;
        for n in sessions {
            if is_under_way(&file, n)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Frees blocks that were freed during a transfer that has ended since, also by the death of its process; returns
    /// their number. For background work, outside an operation.
    pub fn free_ended(&self) -> Result<u64> {
        let rt = self.runtime();
        if (0..FULL).any(|n| !rt.session_taken(n) && rt.has_pinned(n)) {
            self.reap()?;
        }
        let op = self.begin_unsupplied()?;
        self.heap().free_ended(op.slot())
    }
}

/// May transfers be under way that a process with this session number began?
pub(crate) fn is_under_way(file: impl AsFd, session: u32) -> Result<bool> {
    byte_lock::is_held(file, FIRST + session).map_err(Error::host(LOOKING))
}

/// May any be under way, of whatever process?
pub(crate) fn is_any_under_way(file: impl AsFd) -> Result<bool> {
    byte_lock::is_any_held(file, FIRST..FIRST + FULL).map_err(Error::host(LOOKING))
}

const LOOKING: &str = "looking for transfers under way";

/// Waits until no transfer of any process is under way. With nobody attached, so none begins meanwhile.
pub(crate) fn wait_for_all(file: impl AsFd) -> Result<()> {
    let start = Instant::now();
    while is_any_under_way(&file)? {
        if start.elapsed() > PATIENCE {
            return Err(Error::Unusable(
                "a process that died has asked a disk for something, and the disk has not answered yet: it may still \
                 write to the pool's memory. Try again when the disk works, or start the machine anew"
                    .into(),
            ));
        }
        std::thread::sleep(GLANCE);
    }
    Ok(())
}
