//! A queue of FUSE over io_uring: its commands, and the buffers that the kernel fills.
//!
//! Invariants:
//! 1. `memory` maps `entries` strides of a header page and a payload, private to this queue.
//! 2. An entry is the kernel's from REGISTER or COMMIT until its completion is seen, ours from then until
//!    the next COMMIT; `ours[i]` says which. Only what is ours is ever turned into references.
//! 3. The kernel copies into entries in the context of the thread that owns the ring, hence only inside
//!    its calls to io_uring_enter.
//! 4. `memory` is unmapped only when no entry is the kernel's (`live` is 0); otherwise it is leaked.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, squeue, types, IoUring};
use zerocopy::IntoBytes;

use crate::abi::{UringCmd, UringHeader, URING_COMMIT_AND_FETCH, URING_REGISTER};

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A header page before each payload keeps payloads page-aligned.
const HEADER_SPACE: usize = 4096;
/// Where `len` lies in a submission entry.
const SQE_LEN_OFFSET: usize = 24;
/// The device, as the ring knows it.
const DEVICE: types::Fixed = types::Fixed(0);
/// The user data of what is watched; entries have small numbers.
const WATCH: u64 = u64::MAX;

const _: () = assert!(std::mem::size_of::<squeue::Entry128>() == 128);
const _: () = assert!(std::mem::size_of::<UringHeader>() <= HEADER_SPACE);

/// What a completion means.
pub enum Event {
    /// This entry holds a request, and is ours until it is committed.
    Request(usize),
    /// What is [watched](Queue::watch) can be read.
    Woken,
    /// An entry has ended, as a rule since the connection is closing.
    Ended(io::Error),
}

/// One queue: its ring, and the memory of its entries. To be used by the thread that made it.
pub struct Queue {
    ring: Ring,
    queue: u16,
    memory: NonNull<u8>,
    stride: usize,
    ours: Vec<bool>,
    live: usize,
    /// Something is watched.
    watching: bool,
    /// Requests that came while the queue was being registered.
    early: Vec<usize>,
    /// The last caller, and how many requests in a row were its.
    caller: u32,
    in_a_row: u32,
}

/// How long a queue that waits awake gives way to others before it sleeps all the same.
const AWAKE: Duration = Duration::from_micros(100);
/// Requests in a row after which a queue counts as having one caller.
const ALONE: u32 = 64;

/// `IORING_ENTER_GETEVENTS`: run what completions wait for.
const ENTER_GETEVENTS: u32 = 1;

/// Can rings of the kind needed be made here?
pub fn try_ring() -> io::Result<()> {
    ring(1).map(drop)
}

fn ring(entries: u32) -> io::Result<Ring> {
    // Completions are run by the waiting thread itself, woken once; a flag tells it of them while awake.
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    // A child would keep it, and the connection that is registered with it, when we are gone.
    builder.dontfork();
    builder.build(entries)
}

impl Queue {
    pub fn new(device: BorrowedFd, queue: u16, entries: usize, payload: usize) -> io::Result<Queue> {
        // One more than entries: for what is watched.
        let ring = ring(entries as u32 + 1)?;
        ring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        let stride = HEADER_SPACE + payload;
        let ours = vec![true; entries];
        let memory = map(entries * stride)?;
        Ok(Queue {
            ring,
            queue,
            memory,
            stride,
            ours,
            live: 0,
            watching: false,
            early: Vec::new(),
            caller: 0,
            in_a_row: 0,
        })
    }

    /// Hands all entries to the kernel. A refusal is told here.
    pub fn register(&mut self) -> io::Result<()> {
        for entry in 0..self.ours.len() {
            let (header, payload) = self.pointers(entry);
            let parts = [
                libc::iovec { iov_base: header.as_ptr().cast(), iov_len: std::mem::size_of::<UringHeader>() },
                libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: self.stride - HEADER_SPACE },
            ];
            let mut command = self.command(entry, URING_REGISTER, 0, Some(parts.as_ptr() as u64));
            // SAFETY: `Entry128` is `repr(C)` over the kernel's 128-byte submission entry (asserted above),
            // whose u32 `len` lies at this offset, aligned.
            unsafe { std::ptr::from_mut(&mut command).byte_add(SQE_LEN_OFFSET).cast::<u32>().write(2) };
            self.push(entry, &command)?;
            // The kernel reads `parts` during this call.
            self.ring.submit()?;
        }
        while let Some(event) = self.completed() {
            match event {
                Event::Request(entry) => self.early.push(entry),
                Event::Woken => {}
                Event::Ended(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends what was committed and waits for the next completion, for a while `awake` if wanted.
    pub fn wait(&mut self, awake: bool) -> io::Result<()> {
        if !self.early.is_empty() {
            return self.enter(0);
        }
        if awake && self.poll()? {
            return Ok(());
        }
        self.enter(1)
    }

    /// Sends what was committed and looks for a completion as long as that is worth while; is one there?
    fn poll(&mut self) -> io::Result<bool> {
        self.run()?;
        let start = Instant::now();
        while self.ring.completion().is_empty() {
            rustix::thread::sched_yield();
            // SAFETY: this thread alone uses the submission queue, here for a flag of it.
            if unsafe { self.ring.submission_shared() }.taskrun() {
                self.run()?;
            } else if start.elapsed() > AWAKE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends what was committed, and sleeps until as many completions are there.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// Sends what was committed, and runs what completions wait for.
    fn run(&mut self) -> io::Result<()> {
        let to_submit = self.ring.submission().len() as u32;
        // SAFETY: every entry in the queue is valid for as long as the kernel has it (`push`), and no further
        // argument is passed.
        let sent = unsafe { self.ring.submitter().enter::<libc::sigset_t>(to_submit, 0, ENTER_GETEVENTS, None) };
        match sent {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// The next completion that is there.
    pub fn next(&mut self) -> Option<Event> {
        self.early.pop().map(Event::Request).or_else(|| self.completed())
    }

    fn completed(&mut self) -> Option<Event> {
        let completion = self.ring.completion().next()?;
        if completion.user_data() == WATCH {
            self.watching = false;
            return Some(Event::Woken);
        }
        let entry = completion.user_data() as usize;
        self.ours[entry] = true;
        self.live -= 1;
        Some(match completion.result() {
            error if error < 0 => Event::Ended(io::Error::from_raw_os_error(-error)),
            _ => Event::Request(entry),
        })
    }

    /// Tells by [`Event::Woken`], once, when `what` can be read. It must stay open as long as the queue.
    pub fn watch(&mut self, what: &impl AsFd) -> io::Result<()> {
        if std::mem::replace(&mut self.watching, true) {
            return Ok(());
        }
        let poll = opcode::PollAdd::new(types::Fd(what.as_fd().as_raw_fd()), libc::POLLIN as u32);
        // SAFETY: names no memory; a descriptor that is closed would end the wait with an error, no more.
        unsafe { self.ring.submission().push(&poll.build().user_data(WATCH).into()) }
            .map_err(|_| io::Error::other("the ring is full"))
    }

    /// Notes whose request is being served (a thread's number).
    pub fn note_caller(&mut self, caller: u32) {
        self.in_a_row = if caller == self.caller { self.in_a_row.saturating_add(1) } else { 0 };
        self.caller = caller;
    }

    /// Have the last requests all been one caller's?
    pub fn has_one_caller(&self) -> bool {
        self.in_a_row >= ALONE
    }

    /// Are any entries still with the kernel?
    pub fn is_live(&self) -> bool {
        self.live > 0
    }

    /// Header and payload of an entry that is ours.
    pub fn entry(&mut self, entry: usize) -> (&mut UringHeader, &mut [u8]) {
        assert!(self.ours[entry], "an entry that is the kernel's");
        let (header, payload) = self.pointers(entry);
        // SAFETY: by invariants 1 and 2 the memory is mapped, disjoint and ours alone as long as `self` is
        // borrowed, since `commit` needs `self` too; any bytes are a valid `UringHeader`; pages are aligned.
        unsafe {
            (header.cast().as_mut(), std::slice::from_raw_parts_mut(payload.as_ptr(), self.stride - HEADER_SPACE))
        }
    }

    /// Queues the reply in this entry, to be sent by the next [`wait`](Self::wait); its header's `entry`
    /// still names the request.
    pub fn commit(&mut self, entry: usize) -> io::Result<()> {
        let id = self.entry(entry).0.entry.commit_id;
        let command = self.command(entry, URING_COMMIT_AND_FETCH, id, None);
        self.push(entry, &command)
    }

    fn command(&self, entry: usize, op: u32, commit_id: u64, addr: Option<u64>) -> squeue::Entry128 {
        let request = UringCmd { flags: 0, commit_id, queue: self.queue, padding: [0; 6] };
        let mut cmd = [0; 80];
        cmd[..std::mem::size_of::<UringCmd>()].copy_from_slice(request.as_bytes());
        opcode::UringCmd80::new(DEVICE, op).cmd(cmd).addr(addr).build().user_data(entry as u64)
    }

    fn push(&mut self, entry: usize, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the buffers the command names stay mapped while the kernel has them (invariant 4).
        unsafe { self.ring.submission().push(command) }.map_err(|_| io::Error::other("the ring is full"))?;
        self.ours[entry] = false;
        self.live += 1;
        Ok(())
    }

    /// Where header and payload of an entry lie.
    fn pointers(&self, entry: usize) -> (NonNull<u8>, NonNull<u8>) {
        assert!(entry < self.ours.len());
        // SAFETY: inside the mapping (invariant 1).
        unsafe {
            let header = self.memory.byte_add(entry * self.stride);
            (header, header.byte_add(HEADER_SPACE))
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.live == 0 {
            // SAFETY: mapped by `map` with this length; the kernel has no entry (invariant 4), and references
            // from `entry` cannot outlive `self`.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), self.ours.len() * self.stride) };
        }
    }
}

/// Zeroed private memory, page-aligned; pages take up room when first used.
fn map(len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
}
