//! Transport FUSE over io_uring: a queue per possible CPU, each served by a thread pinned to that CPU.
//!
//! A request is then handled on the CPU that made it, and a reply and the wait for the next request are
//! one system call. The kernel uses the queues once every one of them has registered.

use std::collections::HashMap;
use std::io;
use std::sync::{mpsc, Arc, Mutex};
use std::time::Duration;

use fs::Ticket;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::{sched_setaffinity, CpuSet};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, Opcode, OutHeader, UringHeader};
use crate::init;
use crate::promises::Promises;
use crate::request::{Answer, Request};
use crate::rhythm::Rhythm;
use crate::room::Wait;
use crate::server::Server;
use crate::sys::{Device, Event, Queue};

/// Requests a queue can hold at once. One is in service, the others save the kernel a wait; and replies that wait
/// until something is durable keep theirs.
const ENTRIES: usize = 32;

/// Entries that may wait for room at a time.
const WAIT_FOR_ROOM: usize = ENTRIES * 3 / 4;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// How many queues the kernel wants.
pub fn queues() -> io::Result<u16> {
    let list = std::fs::read_to_string(POSSIBLE)?;
    // Such as `0-3` or `0,2-5`; queues are numbered up to the last.
    let last = list.trim().rsplit([',', '-']).next().and_then(|n| n.parse::<u16>().ok());
    last.and_then(|n| n.checked_add(1)).ok_or_else(|| io::Error::other(format!("{POSSIBLE} says {list:?}")))
}

/// Serves one queue until the connection ends. Whether it could be registered is told to `ready`.
pub fn serve(
    device: &Device,
    number: u16,
    server: &Server,
    promises: &Promises,
    rhythm: &Rhythm,
    ready: mpsc::Sender<io::Result<()>>,
) {
    pin(number);
    let opened = Queue::new(std::os::fd::AsFd::as_fd(device), number, ENTRIES, init::MAX_PAYLOAD);
    let registered = opened.and_then(|mut queue| {
        let kept = Kept::new()?;
        queue.register()?;
        Ok((queue, kept))
    });
    let (queue, kept) = match registered {
        Ok(registered) => registered,
        // Nobody listens only if another queue has failed already.
        Err(e) => return drop(ready.send(Err(e))),
    };
    let _ = ready.send(Ok(()));
    drop(ready);
    if let Err(e) = run(queue, Arc::new(kept), server, promises, rhythm) {
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

fn run(mut queue: Queue, kept: Arc<Kept>, server: &Server, promises: &Promises, rhythm: &Rhythm) -> io::Result<()> {
    let mut beat = rhythm.beat();
    // Entries whose replies wait: all of them may, and then none is with the kernel.
    let mut waiting = 0;
    let mut begun = Vec::new();
    let mut full = HashMap::new();
    while queue.is_live() || waiting > 0 {
        queue.wait(beat.prepare())?;
        beat.note();
        while let Some(event) = queue.next() {
            match event {
                Event::Request(entry) => begun.push(entry),
                Event::Woken => {
                    for (entry, end) in kept.take() {
                        waiting -= 1;
                        match end {
                            // The mount has ended: nobody waits for the answer.
                            End::Again if !queue.is_live() => {}
                            End::Again => begun.push(entry),
                            End::Reply(outcome) => {
                                if let Err(e) = outcome {
                                    fail(&mut queue, entry, e);
                                }
                                queue.commit(entry)?;
                            }
                        }
                    }
                    queue.watch(&kept.bell)?;
                }
                Event::Ended(e) => tracing::debug!("an entry has ended: {e}"),
            }
            while let Some(entry) = begun.pop() {
                match serve_entry(&mut queue, entry, server, &mut full) {
                    Served::Now => {
                        queue.commit(entry)?;
                        continue;
                    }
                    Served::Promised(ticket) => {
                        let desk = kept.clone();
                        promises.add(ticket, move |outcome| desk.push(entry, End::Reply(outcome)));
                    }
                    Served::Full(pause) => {
                        let desk = kept.clone();
                        server.room.call_after(pause, move || desk.push(entry, End::Again));
                    }
                }
                waiting += 1;
                queue.watch(&kept.bell)?;
            }
        }
    }
    Ok(())
}

/// What has become of a request.
enum Served {
    /// The reply may go.
    Now,
    /// The reply must wait for this.
    Promised(Ticket),
    /// It found no room, and is to be served again after a pause.
    Full(Duration),
}

/// What an entry has waited for.
enum End {
    Reply(Result<(), Errno>),
    Again,
}

/// Entries of a queue that need wait no longer.
struct Kept {
    entries: Mutex<Vec<(usize, End)>>,
    bell: OwnedFd,
}

impl Kept {
    fn new() -> io::Result<Kept> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Kept { entries: Mutex::default(), bell })
    }

    fn push(&self, entry: usize, end: End) {
        self.entries.lock().unwrap_or_else(|e| e.into_inner()).push((entry, end));
        // Fails only if the counter is full: then it is readable anyhow.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<(usize, End)> {
        // The bell first: an entry pushed after it was silenced rings it again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.entries.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

/// Serves the request in an entry and leaves the reply in its place. `full`: entries that wait for room.
fn serve_entry(queue: &mut Queue, entry: usize, server: &Server, full: &mut HashMap<usize, Wait>) -> Served {
    // Handing the reply to another thread and back costs two wake-ups, some 70 us.
    let wait = queue.has_one_caller();
    let (header, data) = queue.entry(entry);
    let (head, _) = InHeader::read_from_prefix(&header.in_out).unwrap_or_default();
    let len = header.entry.payload_size as usize;
    let mut req = Request { head, args: &header.op_in, data, len };
    // What wants no reply never comes this way.
    let (answer, ticket) = server.try_serve(&mut req, wait).unwrap_or((Ok(0), None));
    if answer == Err(Errno::NOSPC) && ticket.is_none() {
        if let Some(pause) = pause_of(entry, server, full) {
            return Served::Full(pause);
        }
    }
    if !full.is_empty() {
        full.remove(&entry);
    }
    answer_with(header, head.unique, answer);
    // Nobody waits for that, and it names nobody.
    if head.opcode != Opcode::Releasedir as u32 {
        queue.note_caller(head.pid);
    }
    ticket.map_or(Served::Now, Served::Promised)
}

/// How long an entry that found no room shall wait; some entries are left to those who need none.
#[cold]
fn pause_of(entry: usize, server: &Server, full: &mut HashMap<usize, Wait>) -> Option<Duration> {
    if full.len() >= WAIT_FOR_ROOM && !full.contains_key(&entry) {
        return None;
    }
    server.room.next_pause(full.entry(entry).or_insert_with(|| server.room.wait(server.is_alone())))
}

/// The reply in an entry is to be an error after all.
fn fail(queue: &mut Queue, entry: usize, e: Errno) {
    let (header, _) = queue.entry(entry);
    let (out, _) = OutHeader::read_from_prefix(&header.in_out).unwrap_or_default();
    answer_with(header, out.unique, Err(e));
}

fn answer_with(header: &mut UringHeader, unique: u64, answer: Answer) {
    let (error, size) = match answer {
        Ok(size) => (0, size),
        Err(e) => (-e.raw_os_error(), 0),
    };
    let out = OutHeader { len: size as u32, error, unique };
    header.in_out[..std::mem::size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
    header.entry.payload_size = size as u32;
}
