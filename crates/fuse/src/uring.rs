//! Transport FUSE over io_uring: a queue per possible CPU, each served by a thread pinned to that CPU.
//!
//! So a request is handled on the CPU that made it, and one system call sends a reply and waits for the next request.
//! The kernel uses the queues once every one of them has registered.

use std::io;
use std::sync::{mpsc, Arc, Mutex};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::OwnedFd;
use rustix::thread::{sched_setaffinity, CpuSet};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader};
use crate::answer_later::{Carrier, Parked};
use crate::init;
use crate::request::{Answer, Request};
use crate::server::{Served, Server};
use crate::sys::{is_passing, Device, Entry, Event, Queue};
use crate::wait_policy::WaitPolicy;

/// Requests that a queue holds at once: one in service, and those that are answered later, of which 200 may wait for a
/// disk. When all are taken, a further request waits in the kernel. The kernel reuses the last used entry first, so
/// unneeded entries take address space only.
const ENTRIES: usize = 256;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// The number of queues that the kernel wants.
pub fn queues() -> io::Result<u16> {
    let list = std::fs::read_to_string(POSSIBLE)?;
    // For example `0-3` or `0,2-5`; queues are numbered up to the last CPU.
    let last = list.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u16>().ok());
    last.and_then(|n| n.checked_add(1)).ok_or_else(|| io::Error::other(format!("{POSSIBLE} says {list:?}")))
}

/// Serves one queue until the connection ends. Sends to `ready` whether the queue could be registered.
pub fn serve(
    device: &Device,
    number: u16,
    server: &Server,
    policy: &WaitPolicy,
    ready: mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    pin(number);
    let opened = Queue::new(std::os::fd::AsFd::as_fd(device), number, ENTRIES, init::MAX_PAYLOAD);
    let registered = opened.and_then(|mut queue| {
        let answered = Answered::new()?;
        queue.register()?;
        Ok((queue, answered))
    });
    // The receiver is gone only if another queue has failed already.
    let (queue, answered) = match registered {
        Ok(registered) => registered,
        Err(e) => {
            let _ = ready.send(Err(e));
            return Ok(());
        }
    };
    let _ = ready.send(Ok(()));
    drop(ready);
    run(queue, &Arc::new(answered), server, policy)
}

fn pin(cpu: u16) {
    let mut set = CpuSet::new();
    if usize::from(cpu) < CpuSet::MAX_CPU {
        set.set(cpu.into());
        if let Err(e) = sched_setaffinity(None, &set) {
            // This CPU is possible but not present: its queue stays idle.
            tracing::debug!(cpu, "cannot pin the thread: {e}");
        }
    }
}

fn run(mut queue: Queue, answered: &Arc<Answered>, server: &Server, policy: &WaitPolicy) -> io::Result<()> {
    let mut wait = policy.of_queue();
    // All entries may be parked, and then the kernel has none.
    let mut parked = 0;
    while queue.is_live() || parked > 0 {
        queue.wait(wait.prepare())?;
        wait.note();
        while let Some(event) = queue.next() {
            match event {
                Event::Request(mut entry) => match server.serve(&mut request_in(&mut entry)) {
                    (Served::Now(answer), _) => {
                        // A request that wants no reply never comes this way.
                        answer_in(&mut entry, answer.unwrap_or(Ok(0)));
                        queue.commit(entry)?;
                    }
                    (Served::Later(why), begun) => {
                        parked += 1;
                        server.park(Parked::new(Taken { entry, answered: answered.clone() }), why, begun);
                    }
                },
                Event::Woken => {
                    for entry in answered.take() {
                        parked -= 1;
                        queue.commit(entry)?;
                    }
                }
                Event::Refused(entry, e) if is_passing(&e) => queue.commit_again(entry)?,
                Event::Refused(_, e) => tracing::debug!("an entry has ended: {e}"),
            }
            if parked > 0 {
                queue.watch(&answered.wakeup)?;
            }
        }
    }
    Ok(())
}

/// An entry whose request is answered later.
struct Taken {
    entry: Entry,
    answered: Arc<Answered>,
}

impl Carrier for Taken {
    fn request(&mut self) -> Request<'_> {
        request_in(&mut self.entry)
    }

    fn send(mut self: Box<Self>, answer: Answer) {
        answer_in(&mut self.entry, answer);
        self.answered.push(self.entry);
    }
}

/// Entries of a queue that other threads have answered, for its own thread to commit.
struct Answered {
    entries: Mutex<Vec<Entry>>,
    wakeup: OwnedFd,
}

impl Answered {
    fn new() -> io::Result<Answered> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Answered { entries: Mutex::default(), wakeup })
    }

    fn push(&self, entry: Entry) {
        self.entries.lock().unwrap_or_else(|e| e.into_inner()).push(entry);
        // The write fails only if the counter is full: then it is readable anyhow.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Entry> {
        // Read the wake-up first: an entry pushed later wakes again.
        let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
        std::mem::take(&mut *self.entries.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

fn request_in(entry: &mut Entry) -> Request<'_> {
    let (header, data) = entry.parts();
    let (head, _) = InHeader::read_from_prefix(&header.in_out).unwrap_or_default();
    Request { head, args: &header.op_in, data, len: header.entry.payload_size as usize }
}

/// Puts the answer in the place of the request; the buffer holds the reply's content already.
fn answer_in(entry: &mut Entry, answer: Answer) {
    let (header, _) = entry.parts();
    let (head, _) = InHeader::read_from_prefix(&header.in_out).unwrap_or_default();
    let (error, size) = match answer {
        Ok(size) => (0, size),
        Err(e) => (-e.raw_os_error(), 0),
    };
    let out = OutHeader { len: size as u32, error, unique: head.unique };
    header.in_out[..std::mem::size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
    header.entry.payload_size = size as u32;
}
