//! Transport FUSE over io_uring: a queue per possible CPU, each served by a thread pinned to that CPU.
//!
//! A request is then handled on the CPU that made it, and a reply and the wait for the next request are
//! one system call. The kernel uses the queues once every one of them has registered.

use std::io;
use std::sync::mpsc;

use rustix::thread::{sched_setaffinity, CpuSet};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader};
use crate::init;
use crate::request::Request;
use crate::server::Server;
use crate::sys::{Device, Event, Queue};

/// Requests a queue can hold at once. One is in service; the others save the kernel a wait.
const ENTRIES: usize = 4;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// How many queues the kernel wants.
pub fn queues() -> io::Result<u16> {
    let list = std::fs::read_to_string(POSSIBLE)?;
    // Such as `0-3` or `0,2-5`; queues are numbered up to the last.
    let last = list.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u16>().ok());
    last.and_then(|n| n.checked_add(1)).ok_or_else(|| io::Error::other(format!("{POSSIBLE} says {list:?}")))
}

/// Serves one queue until the connection ends. Whether it could be registered is told to `ready`.
pub fn serve(device: &Device, number: u16, server: &Server, ready: mpsc::Sender<io::Result<()>>) {
    pin(number);
    let opened = Queue::new(std::os::fd::AsFd::as_fd(device), number, ENTRIES, init::MAX_PAYLOAD);
    let registered = opened.and_then(|mut queue| {
        queue.register()?;
        Ok(queue)
    });
    let queue = match registered {
        Ok(queue) => queue,
        // Nobody listens only if another queue has failed already.
        Err(e) => return drop(ready.send(Err(e))),
    };
    let _ = ready.send(Ok(()));
    drop(ready);
    if let Err(e) = run(queue, server) {
        tracing::error!(queue = number, "the queue has stopped: {e}");
    }
}

fn pin(cpu: u16) {
    let mut set = CpuSet::new();
    if usize::from(cpu) < CpuSet::MAX_CPU {
        set.set(cpu.into());
        if let Err(e) = sched_setaffinity(None, &set) {
            // A CPU that is possible but not there: its queue stays idle.
            tracing::debug!(cpu, "cannot pin the thread: {e}");
        }
    }
}

fn run(mut queue: Queue, server: &Server) -> io::Result<()> {
    while queue.is_live() {
        queue.wait()?;
        while let Some(event) = queue.next() {
            match event {
                Event::Request(entry) => {
                    serve_entry(&mut queue, entry, server);
                    queue.commit(entry)?;
                }
                Event::Ended(e) => tracing::debug!("an entry has ended: {e}"),
            }
        }
    }
    Ok(())
}

/// Serves the request in an entry and leaves the reply in its place.
fn serve_entry(queue: &mut Queue, entry: usize, server: &Server) {
    let (header, data) = queue.entry(entry);
    let (head, _) = InHeader::read_from_prefix(&header.in_out).unwrap_or_default();
    let len = header.entry.payload_size as usize;
    let mut req = Request { head, args: &header.op_in, data, len };
    // What wants no reply never comes this way.
    let answer = server.handle(&mut req).unwrap_or(Ok(0));
    let (error, size) = match answer {
        Ok(size) => (0, size),
        Err(e) => (-e.raw_os_error(), 0),
    };
    let out = OutHeader { len: size as u32, error, unique: head.unique };
    header.in_out[..std::mem::size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
    header.entry.payload_size = size as u32;
    queue.note_caller(head.pid);
}
