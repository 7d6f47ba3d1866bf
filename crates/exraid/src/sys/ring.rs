//! io_uring: calls go out with their memory, and come back with it.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{cqueue, opcode, squeue, IoUring};
use rustix::io::Errno;

use super::memory::Buffers;

/// The user data of the watch; calls have small numbers.
const WATCH: u64 = u64::MAX;

/// A call to the kernel.
pub enum Call {
    Read { at: u64, into: Buffers },
    Write { at: u64, from: Buffers },
    Sync,
    Allocate { at: u64, len: u64, mode: i32 },
}

/// An event from the kernel.
pub enum Event<J> {
    /// The call has ended with so many bytes.
    Ended(J, Call, Result<u32, Errno>),
    /// The watched descriptor can be read.
    Woken,
}

/// A ring, and the calls that the kernel has (invariants 3, 4). Each call carries a `J`.
pub struct Ring<J> {
    io: IoUring,
    /// A `Box` each: the kernel holds pointers into it.
    sent: Vec<Option<Box<Sent<J>>>>,
    free: Vec<usize>,
    watched: Arc<OwnedFd>,
    stays: PhantomData<*const ()>,
}

struct Sent<J> {
    job: J,
    call: Call,
    /// Stays open as long as the kernel may need its number.
    file: Arc<File>,
}

/// Tests whether rings can be made; a container may forbid them.
pub fn try_ring() -> io::Result<()> {
    make(2).map(drop)
}

fn make(entries: u32) -> io::Result<IoUring> {
    // The waiting thread itself runs completions, woken once. Linux before 6.1 lacks this.
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all().dontfork();
    builder.build(entries).or_else(|_| IoUring::builder().dontfork().build(entries))
}

impl<J> Ring<J> {
    /// A ring for up to `calls` at a time. `watched` is a descriptor: [`Event::Woken`] tells that it can be read. The
    /// kernel keeps `held` open until the last call is done, even after the death of this process.
    pub fn new(calls: usize, watched: Arc<OwnedFd>, held: &[Arc<OwnedFd>]) -> io::Result<Ring<J>> {
        let io = make(calls as u32 + 1)?;
        if !held.is_empty() {
            let held: Vec<_> = held.iter().map(|held| held.as_raw_fd()).collect();
            io.submitter().register_files(&held)?;
        }
        let sent = std::iter::repeat_with(|| None).take(calls).collect();
        let mut ring = Ring { io, sent, free: (0..calls).rev().collect(), watched, stays: PhantomData };
        ring.watch()?;
        Ok(ring)
    }

    fn watch(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(Fd(self.watched.as_raw_fd()), libc::POLLIN as u32).build().user_data(WATCH);
        // SAFETY: it names no memory; the descriptor is open as long as the ring.
        unsafe { self.push(&poll) }
    }

    /// Puts an entry into the queue.
    ///
    /// # Safety
    /// The memory that it names stays valid until its completion (invariant 3).
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.io.submission().push(entry) }.map_err(|_| io::Error::other("the ring is full"))
    }

    /// Calls that may still be sent.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Has the kernel no call?
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.sent.len()
    }

    /// Submits a call with the next [`wait`](Ring::wait).
    ///
    /// # Panics
    /// If there is no [room](Ring::room).
    pub fn send(&mut self, file: &Arc<File>, call: Call, job: J) {
        let number = self.free.pop().expect("the caller has looked for room");
        let sent = Box::new(Sent { job, call, file: file.clone() });
        let entry = sent.entry().user_data(number as u64);
        self.sent[number] = Some(sent);
        // SAFETY: the entry names memory that the buffers in `sent` keep, their list of parts, which lies in a `Box`,
        // and a file that is open; all of it stays there until the completion is seen (invariant 3).
        unsafe { self.push(&entry) }.expect("the queue has an entry for each call");
    }

    /// Submits new calls, and waits for at least so many events, at most for `time`.
    pub fn wait(&mut self, at_least: usize, time: Option<Duration>) -> io::Result<()> {
        let entered = match time {
            None => self.io.submit_and_wait(at_least),
            Some(time) => {
                let time = Timespec::from(time);
                self.io.submitter().submit_with_args(at_least, &SubmitArgs::new().timespec(&time))
            }
        };
        match entered.map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(errno) => Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
        }
    }

    /// The next event.
    pub fn next(&mut self) -> Option<Event<J>> {
        let completion: cqueue::Entry = self.io.completion().next()?;
        if completion.user_data() == WATCH {
            // Without the watch no new requests would be noticed, so a failure ends the program.
            self.watch().expect("the queue has an entry for what is watched");
            return Some(Event::Woken);
        }
        let number = completion.user_data() as usize;
        let sent = self.sent[number].take().expect("the kernel gives back what it was given, once");
        self.free.push(number);
        let Sent { job, call, .. } = *sent;
        let result = u32::try_from(completion.result()).map_err(|_| Errno::from_raw_os_error(-completion.result()));
        Some(Event::Ended(job, call, result))
    }
}

impl<J> Sent<J> {
    fn entry(&self) -> squeue::Entry {
        let fd = Fd(self.file.as_raw_fd());
        match &self.call {
            Call::Read { at, into } => match into.parts() {
                [one] => opcode::Read::new(fd, one.0.iov_base.cast(), one.len() as u32).offset(*at).build(),
                parts => opcode::Readv::new(fd, parts.as_ptr().cast(), parts.len() as u32).offset(*at).build(),
            },
            Call::Write { at, from } => match from.parts() {
                [one] => opcode::Write::new(fd, one.0.iov_base.cast(), one.len() as u32).offset(*at).build(),
                parts => opcode::Writev::new(fd, parts.as_ptr().cast(), parts.len() as u32).offset(*at).build(),
            },
            Call::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Call::Allocate { at, len, mode } => opcode::Fallocate::new(fd, *len).offset(*at).mode(*mode).build(),
        }
    }
}

impl<J> Drop for Ring<J> {
    fn drop(&mut self) {
        if !self.is_empty() {
            // Invariant 3: the kernel may still use it after the ring is gone.
            return std::mem::forget(std::mem::take(&mut self.sent));
        }
        // The kernel takes a ring down later, from a workqueue. Until then it would hold these files, and keep the file
        // system that they lie on from being unmounted. It fails where there are none.
        let _ = self.io.submitter().unregister_files();
    }
}
