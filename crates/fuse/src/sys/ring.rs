//! A queue of FUSE over io_uring: its commands, and the buffers that the kernel fills.
//!
//! Invariants:
//! 1. `Memory` maps `entries` strides of a header page and a payload, private to this queue.
//! 2. An entry is the kernel's from REGISTER or COMMIT until its completion is seen, ours from then until the next
//!    COMMIT.
//!    While it is ours there is one [`Entry`] of it, and no other way to its memory; while it is the kernel's there is none.
//! 3. The kernel copies into entries in the context of the thread that owns the ring, hence only inside
//!    its calls to io_uring_enter.
//! 4. `Memory` is unmapped only when the queue and all its `Entry`s are gone, and no entry is the kernel's (`live` is 0);
//!    otherwise it is leaked.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
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
/// The user data of the watched descriptor; entries have small numbers.
const WATCH: u64 = u64::MAX;

const _: () = assert!(std::mem::size_of::<squeue::Entry128>() == 128);
const _: () = assert!(std::mem::size_of::<UringHeader>() <= HEADER_SPACE);

/// The meaning of a completion.
pub enum Event {
    /// This entry holds a request, and is ours until it is committed.
    Request(Entry),
    /// The [watched](Queue::watch) descriptor is readable.
    Woken,
    /// The kernel has not taken the reply in this entry, as a rule because the connection is closing.
    Refused(Entry, io::Error),
}

/// One queue: its ring, and the memory of its entries. Only the thread that made it may use it.
pub struct Queue {
    ring: Ring,
    queue: u16,
    memory: Arc<Memory>,
    /// The entries of the kernel: they are stored here so that nothing else has them.
    kernels: Vec<Option<Entry>>,
    /// A descriptor is watched.
    watching: bool,
    /// Requests that came while the queue was being registered.
    early: Vec<Entry>,
}

/// A request, and the buffer for its reply. Until it is committed it is ours alone, and any thread may fill it.
pub struct Entry {
    memory: Arc<Memory>,
    index: usize,
}

/// The memory of a queue's entries.
struct Memory {
    at: NonNull<u8>,
    stride: usize,
    entries: usize,
    /// The number of entries that the kernel has.
    live: AtomicUsize,
}

/// How long an awake queue yields to others before it sleeps all the same.
const AWAKE: Duration = Duration::from_micros(100);
/// How long a queue rests when the kernel lacks memory or space for a request.
const SHORT_OF_MEMORY: Duration = Duration::from_millis(1);

/// `IORING_ENTER_GETEVENTS`: run the task work of completions.
const ENTER_GETEVENTS: u32 = 1;

/// Fails if the required kind of ring cannot be made here.
pub fn try_ring() -> io::Result<()> {
    ring(1).map(drop)
}

fn ring(entries: u32) -> io::Result<Ring> {
    // The waiting thread itself runs completions and is woken once; while it is awake, a flag reports them.
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    // After our end a child would still hold the ring, and the connection registered with it.
    builder.dontfork();
    builder.build(entries)
}

impl Queue {
    pub fn new(device: BorrowedFd, queue: u16, entries: usize, payload: usize) -> io::Result<Queue> {
        // One more than entries: for the watched descriptor.
        let ring = ring(entries as u32 + 1)?;
        ring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        let memory = Arc::new(Memory::map(entries, HEADER_SPACE + payload)?);
        let kernels = (0..entries).map(|_| None).collect();
        Ok(Queue { ring, queue, memory, kernels, watching: false, early: Vec::new() })
    }

    /// Hands all entries to the kernel. Fails if it refuses one.
    pub fn register(&mut self) -> io::Result<()> {
        for index in 0..self.kernels.len() {
            let entry = Entry { memory: self.memory.clone(), index };
            let (header, payload) = self.memory.pointers(index);
            let parts = [
                libc::iovec { iov_base: header.as_ptr().cast(), iov_len: std::mem::size_of::<UringHeader>() },
                libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: self.memory.stride - HEADER_SPACE },
            ];
            let mut command = self.command(index, URING_REGISTER, 0, Some(parts.as_ptr() as u64));
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
                Event::Refused(_, error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the committed entries and waits for the next completion; if `awake`, it stays awake for a while.
    pub fn wait(&mut self, awake: bool) -> io::Result<()> {
        if !self.early.is_empty() {
            return self.enter(0);
        }
        if awake && self.poll()? {
            return Ok(());
        }
        self.enter(1)
    }

    /// Sends the committed entries and looks for a completion as long as that is worth while. Is one there?
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

    /// Sends the committed entries, and sleeps until `want` completions are there.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        let sent = self.ring.submit_and_wait(want);
        go_on(sent)
    }

    /// Sends the committed entries, and runs the task work of completions.
    fn run(&mut self) -> io::Result<()> {
        let to_submit = self.ring.submission().len() as u32;
        // SAFETY: every entry in the queue is valid for as long as the kernel has it (`push`), and no further
        // argument is passed.
        let sent = unsafe { self.ring.submitter().enter::<libc::sigset_t>(to_submit, 0, ENTER_GETEVENTS, None) };
        go_on(sent)
    }

    /// The next completion, if one is there.
    pub fn next(&mut self) -> Option<Event> {
        self.early.pop().map(Event::Request).or_else(|| self.completed())
    }

    fn completed(&mut self) -> Option<Event> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == WATCH {
                self.watching = false;
                return Some(Event::Woken);
            }
            // An entry that the kernel did not have gets no completion.
            let Some(entry) = self.kernels.get_mut(completion.user_data() as usize).and_then(Option::take) else {
                continue;
            };
            self.memory.live.fetch_sub(1, Ordering::Relaxed);
            return Some(match completion.result() {
                error if error < 0 => Event::Refused(entry, io::Error::from_raw_os_error(-error)),
                _ => Event::Request(entry),
            });
        }
    }

    /// Reports once, by [`Event::Woken`], that `what` is readable. It must stay open as long as the queue.
    pub fn watch(&mut self, what: &impl AsFd) -> io::Result<()> {
        if std::mem::replace(&mut self.watching, true) {
            return Ok(());
        }
        let poll = opcode::PollAdd::new(types::Fd(what.as_fd().as_raw_fd()), libc::POLLIN as u32);
        // SAFETY: names no memory; a descriptor that is closed would end the wait with an error, no more.
        unsafe { self.ring.submission().push(&poll.build().user_data(WATCH).into()) }
            .map_err(|_| io::Error::other("the ring is full"))
    }

    /// Are any entries still with the kernel?
    pub fn is_live(&self) -> bool {
        self.memory.live.load(Ordering::Relaxed) > 0
    }

    /// Queues the reply in this entry, which the next [`wait`](Self::wait) sends; its header's `entry` still names the
    /// request.
    pub fn commit(&mut self, mut entry: Entry) -> io::Result<()> {
        let id = entry.parts().0.entry.commit_id;
        let command = self.command(entry.index, URING_COMMIT_AND_FETCH, id, None);
        self.push(entry, &command)
    }

    /// Commits an entry again that was refused for want of memory.
    pub fn commit_again(&mut self, entry: Entry) -> io::Result<()> {
        std::thread::sleep(SHORT_OF_MEMORY);
        self.commit(entry)
    }

    fn command(&self, entry: usize, op: u32, commit_id: u64, addr: Option<u64>) -> squeue::Entry128 {
        let request = UringCmd { flags: 0, commit_id, queue: self.queue, padding: [0; 6] };
        let mut cmd = [0; 80];
        cmd[..std::mem::size_of::<UringCmd>()].copy_from_slice(request.as_bytes());
        opcode::UringCmd80::new(DEVICE, op).cmd(cmd).addr(addr).build().user_data(entry as u64)
    }

    /// Gives the entry to the kernel.
    fn push(&mut self, entry: Entry, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the buffers the command names stay mapped while the kernel has them (invariant 4).
        unsafe { self.ring.submission().push(command) }.map_err(|_| io::Error::other("the ring is full"))?;
        self.memory.live.fetch_add(1, Ordering::Relaxed);
        let index = entry.index;
        self.kernels[index] = Some(entry);
        Ok(())
    }
}

/// Does this error pass by itself? The kernel lacks memory, or first wants completions to be taken.
pub fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM))
}

/// The next call sends the entries that were not sent.
fn go_on(sent: io::Result<usize>) -> io::Result<()> {
    match sent {
        Err(e) if is_passing(&e) => std::thread::sleep(SHORT_OF_MEMORY),
        Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
        _ => {}
    }
    Ok(())
}

impl Entry {
    pub fn parts(&mut self) -> (&mut UringHeader, &mut [u8]) {
        let (header, payload) = self.memory.pointers(self.index);
        // SAFETY: by invariants 1, 2 and 4 the memory is mapped, disjoint and this entry's alone as long as `self` is
        // borrowed. It is the kernel's only while `Queue` has the entry in `kernels`, where this is not called. Any
        // bytes are a valid `UringHeader`; pages are aligned.
        unsafe {
            let payload = std::slice::from_raw_parts_mut(payload.as_ptr(), self.memory.stride - HEADER_SPACE);
            (header.cast().as_mut(), payload)
        }
    }
}

// SAFETY: the pointer is to a mapping of this process that lives as long as the value; only the owner of an `Entry`
// reads and writes it, and each part of the mapping has at most one `Entry` (invariant 2).
unsafe impl Send for Memory {}
// SAFETY: as above; all shared parts are constant except an atomic counter.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps zeroed private memory, page-aligned; pages take memory when first used.
    fn map(entries: usize, stride: usize) -> io::Result<Memory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (len, how) = (entries * stride, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, how, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Memory { at, stride, entries, live: AtomicUsize::new(0) })
    }

    /// The addresses of an entry's header and payload.
    fn pointers(&self, index: usize) -> (NonNull<u8>, NonNull<u8>) {
        assert!(index < self.entries);
        // SAFETY: inside the mapping (invariant 1).
        unsafe {
            let header = self.at.byte_add(index * self.stride);
            (header, header.byte_add(HEADER_SPACE))
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if *self.live.get_mut() == 0 {
            // SAFETY: mapped by `map` with this length; the kernel has no entry (invariant 4), and references from an
            // `Entry` cannot outlive it, which keeps this.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.entries * self.stride) };
        }
    }
}
