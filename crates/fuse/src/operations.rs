//! Counts the operations that are served, by kind, and the times until their answers.
//!
//! Each thread counts in words of its own, as far as there are enough; who asks adds them up.

use std::array;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::time::Instant;

use conquest::operations::{Kind, Operations, BUCKETS};
use exraid::meter::buckets;
use rustix::io::Errno;

use crate::abi::Opcode;
use crate::request::{Answer, Request};

/// More than the largest number of a request.
const KINDS: usize = 64;
/// More threads than these share words.
const SHARDS: usize = 64;

type Shard = [Counts; KINDS];

pub struct Counters {
    begun: Instant,
    shards: [OnceLock<Box<Shard>>; SHARDS],
}

struct Counts {
    latencies: [AtomicU64; BUCKETS],
    failures: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

/// A request that is being served.
#[derive(Clone, Copy)]
pub struct Begun {
    opcode: u32,
    /// Bytes of content, if it is a write.
    written: u64,
    at: Instant,
}

impl Begun {
    pub fn now(req: &Request) -> Begun {
        let written = if req.head.opcode == Opcode::Write as u32 { req.len as u64 } else { 0 };
        Begun { opcode: req.head.opcode, written, at: Instant::now() }
    }
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { begun: Instant::now(), shards: array::from_fn(|_| OnceLock::new()) }
    }
}

impl Default for Counts {
    fn default() -> Counts {
        let zero = || AtomicU64::new(0);
        Counts { latencies: array::from_fn(|_| zero()), failures: zero(), bytes: zero(), nanos: zero() }
    }
}

/// Which words a thread uses.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
    MINE.with(|mine| *mine)
}

impl Counters {
    /// Its answer is known.
    pub fn end(&self, begun: Begun, answer: &Answer) {
        let shard = self.shards[shard()].get_or_init(|| Box::new(array::from_fn(|_| Counts::default())));
        let Some(counts) = shard.get(begun.opcode as usize) else { return };
        let took = begun.at.elapsed();
        let add = |to: &AtomicU64, more: u64| _ = to.fetch_add(more, Ordering::Relaxed);
        add(&counts.latencies[buckets::of(took, BUCKETS)], 1);
        add(&counts.nanos, took.as_nanos() as u64);
        match answer {
            Ok(bytes) if begun.opcode == Opcode::Read as u32 => add(&counts.bytes, *bytes as u64),
            Ok(_) if begun.written > 0 => add(&counts.bytes, begun.written),
            Err(Errno::IO | Errno::NOSPC | Errno::ROFS) => add(&counts.failures, 1),
            _ => {}
        }
    }

    /// The sum of all threads, each word as it is.
    pub fn tell(&self) -> Operations {
        let kinds = (0..KINDS as u32).filter_map(|code| {
            let name = format!("{:?}", Opcode::from_code(code)?).to_lowercase();
            let mut sum = Kind { name, ..Kind::default() };
            self.shards.iter().filter_map(OnceLock::get).for_each(|shard| sum.add(&shard[code as usize].kind()));
            (sum.requests > 0).then_some(sum)
        });
        Operations {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            seconds: self.begun.elapsed().as_secs_f64(),
            kinds: kinds.collect(),
        }
    }
}

impl Counts {
    fn kind(&self) -> Kind {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let latencies = self.latencies.iter().map(get).enumerate().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        Kind {
            requests: latencies.iter().map(|(_, count)| count).sum(),
            failures: get(&self.failures),
            bytes: get(&self.bytes),
            nanos: get(&self.nanos),
            latencies,
            ..Kind::default()
        }
    }
}
