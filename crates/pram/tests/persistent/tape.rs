//! A disk that remembers its requests, and fails on demand.

use std::io;
use std::sync::{Arc, Mutex};

use backing::log::{Disk, SECTOR};
use rng::Rng;
use rustix::io::Errno;

#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<State>>);

#[derive(Clone, Default)]
pub struct State {
    pub bytes: Vec<u8>,
    pub events: Vec<Event>,
    /// Calls that still succeed, and the error of the others. A write that fails is done by half.
    pub fuse: Option<(usize, Errno)>,
    /// Calls that still succeed, before one fails with EIO, done by half.
    pub fail_once: Option<usize>,
    pub bad_sector: Option<u64>,
    /// Calls to read.
    pub reads: usize,
    /// The number of parallel reads that it asks for; 0 is one.
    pub reads_at_once: usize,
}

#[derive(Clone)]
pub enum Event {
    Write(u64, Vec<u8>),
    Flush,
    /// Everything before was acknowledged.
    Acknowledged,
}

impl Tape {
    pub fn of(bytes: Vec<u8>) -> Tape {
        Tape(Arc::new(Mutex::new(State { bytes, ..State::default() })))
    }

    /// Another disk with the same bytes.
    pub fn copy(&self) -> Tape {
        Tape::of(self.bytes())
    }

    /// Another disk like it, of which several pieces are read at once.
    pub fn read_at_once(&self) -> Tape {
        let state = self.with(|s| State { reads_at_once: 3, events: Vec::new(), ..s.clone() });
        Tape(Arc::new(Mutex::new(state)))
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.with(|s| s.bytes.clone())
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap())
    }

    fn call(&self, event: Event) -> io::Result<()> {
        self.with(|s| {
            match &mut s.fuse {
                Some((0, errno)) => {
                    let errno = *errno;
                    if let Event::Write(at, bytes) = &event {
                        put(&mut s.bytes, *at, &bytes[..bytes.len() / 2]);
                    }
                    return Err(errno.into());
                }
                Some((n, _)) => *n -= 1,
                None => {}
            }
            match s.fail_once.take() {
                Some(0) => {
                    if let Event::Write(at, bytes) = &event {
                        put(&mut s.bytes, *at, &bytes[..bytes.len() / 2]);
                    }
                    return Err(Errno::IO.into());
                }
                left => s.fail_once = left.map(|n| n - 1),
            }
            if let Event::Write(at, bytes) = &event {
                put(&mut s.bytes, *at, bytes);
            }
            s.events.push(event);
            Ok(())
        })
    }
}

impl Disk for Tape {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.with(|s| {
            s.reads += 1;
            let end = at + buf.len() as u64;
            if s.bad_sector.is_some_and(|bad| bad < end && at < bad + SECTOR) {
                return Err(Errno::IO.into());
            }
            buf.copy_from_slice(s.bytes.get(at as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.call(Event::Write(at, bytes.to_vec()))
    }
    fn flush(&self) -> io::Result<()> {
        self.call(Event::Flush)
    }
    fn reads_at_once(&self) -> usize {
        self.with(|s| s.reads_at_once.max(1))
    }
}

/// The content of a disk when the power is cut after `events`, and how many of them were acknowledged. With seed 0
/// unflushed writes are lost, with 1 they stay, else each sector of them is one or the other, or with odd seeds
/// neither.
pub fn after_cut(base: &[u8], events: &[Event], seed: u64) -> (Vec<u8>, usize) {
    let (mut durable, mut pending, mut acknowledged) = (base.to_vec(), Vec::new(), 0);
    let mut rng = Rng::new(seed);
    for event in events {
        match event {
            Event::Write(at, bytes) => pending.push((*at, bytes)),
            Event::Flush => pending.drain(..).for_each(|(at, bytes)| put(&mut durable, at, bytes)),
            Event::Acknowledged => acknowledged += 1,
        }
    }
    for (at, bytes) in pending {
        for (i, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            let at = at + i as u64 * SECTOR;
            match (seed, rng.below(2 + seed % 2)) {
                (1, _) | (2.., 0) => put(&mut durable, at, sector),
                (0, _) | (_, 1) => (),
                _ => put(&mut durable, at, &sector.iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>()),
            }
        }
    }
    (durable, acknowledged)
}

/// Writes, and grows a disk that is too short.
fn put(disk: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if disk.len() < end {
        disk.resize(end, 0);
    }
    disk[at..end].copy_from_slice(bytes);
}
