//! The agreement of the processes that have one region open: words that all of them have mapped, and locks that end
//! with their owner.
//!
//! Both are in a file that the client provides ([`Common`]), the same for all regions of a pool. Per region:
//!
//! | lock on | held by |
//! | --- | --- |
//! | presence | each process that has it open, shared; exclusively: the first process, while it makes the words anew |
//! | opening | a process that opens it, until the consequences of a crash are repaired |
//! | labels | a process that changes labels, from before it reads them until after it has written them |
//! | log | the process that retires intents |
//! | mending | a process that finishes the work of a dead one |
//! | gate | a process that wants a lock on all stripes: no other takes a lock meanwhile |
//! | stripes | the process that has these stripes locked |
//!
//! | word | |
//! | --- | --- |
//! | version | goes up before labels change the members' states: a process that knows another version reads the labels first |
//! | epoch | that of the membership, once labels have it: a process that finds no label of it must not trust the labels that it found |
//! | gate | not zero: check whether a process has the gate |
//! | throttle | the users of the region, and how fast background work may be ([`super::throttle`]) |
//! | others | those of the log of intents ([`super::raid5`]) |
//!
//! The measurements of a region and of each of its members ([`crate::meter`]) lie further on in the file, a few pages
//! each. They survive the process that took them. Each process that has the region open has one of a few slots in them,
//! by a lock of its own:
//!
//! | lock on | held by |
//! | --- | --- |
//! | slot n | the process that counts its requests in slot n |
//!
//! An uncontended lock takes a call of a microsecond. A process may wait for a disk while it holds one of the first
//! five: that delays only processes that want the same lock, and no thread that answers requests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::SHIFT;
use crate::error::{Class, Error, Result};
use crate::meter;
use crate::meter::shared::{self, Meters};
use crate::sys::shared::{is_excluded, lock, Lock, Words};

/// Words per region.
const WORDS: usize = 1024;
const BYTES: u64 = (WORDS * size_of::<AtomicU64>()) as u64;
/// The most regions whose locks fit into a file.
const REGIONS: u64 = (1 << (63 - SHIFT)) - 1;

const VERSION: usize = 0;
const GATED: usize = 1;
const EPOCH: usize = 2;
/// The words by which background work gives way ([`super::throttle`]).
pub const THROTTLE: usize = 8;
const THROTTLE_WORDS: Range<usize> = 4..4 + THROTTLE;
/// The words of the log of intents: the rest of the first page but its end, and the second one.
const LOG_WORDS: Range<usize> = 16..WORDS;

const _: () = assert!(THROTTLE_WORDS.end <= LOG_WORDS.start);

const PRESENCE: u64 = 0;
const OPENING: u64 = 1;
const LABELS: u64 = 2;
const LOG: u64 = 3;
const MENDING: u64 = 4;
const GATE: u64 = 5;
const SLOTS: u64 = 64;
const STRIPES: u64 = 4096;

/// Where the meters lie: behind the words of all regions.
const METERS_AT: u64 = 1 << 31;
const _: () = assert!(REGIONS * BYTES <= METERS_AT && SLOTS + meter::PROCESSES as u64 <= STRIPES);

/// The longest time for another process to open a region.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSES: Range<Duration> = Duration::from_micros(100)..Duration::from_millis(5);

/// A file by which processes agree. Each opens it for itself; its content counts only while a process has it open.
#[derive(Clone)]
pub struct Common {
    file: Arc<File>,
    /// By region: locks belong to the description, so a process that opens a region twice through one has one slot in
    /// its meters.
    meters: Arc<Mutex<BTreeMap<u32, Weak<Meters>>>>,
}

impl Common {
    pub fn of(file: File) -> Common {
        Common { file: Arc::new(file), meters: Arc::default() }
    }

    /// The disks should [hold](crate::disk::Options::held) it open. Otherwise transfers of a killed process may happen
    /// after others have taken its locks for free.
    pub fn held(&self) -> io::Result<Arc<OwnedFd>> {
        Ok(Arc::new(self.file.try_clone()?.into()))
    }

    /// The meters of a region for a process that opens it and measures. None if others have all slots.
    pub fn meters(&self, opening: &Opening) -> io::Result<Option<Arc<Meters>>> {
        let number = ((opening.shared_state.base >> SHIFT) - 1) as u32;
        let mut known = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meters) = known.get(&number).and_then(Weak::upgrade) {
            return Ok(Some(meters));
        }
        let meters = Meters::join(&self.file, meters_at(number), opening.is_alone)?.map(Arc::new);
        if let Some(meters) = &meters {
            known.insert(number, Arc::downgrade(meters));
        }
        Ok(meters)
    }

    /// The same, for a process that only looks at others' measurements.
    pub fn look_at_meters(&self, number: u32) -> Arc<Meters> {
        Arc::new(Meters::look(&self.file, meters_at(number)))
    }
}

fn base(number: u32) -> u64 {
    (u64::from(number) + 1) << SHIFT
}

/// The state of one region.
pub struct SharedState {
    file: Arc<File>,
    base: u64,
    words: Words,
    /// Locks belong to the process; these exclude its threads from one another.
    labels: Mutex<()>,
    mending: Mutex<()>,
}

/// A lock held by one thread of one process.
pub struct Held<'b> {
    shared_state: &'b SharedState,
    at: u64,
    _thread: MutexGuard<'b, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared_state.unlock(self.at);
    }
}

/// Keeps others from opening the region until it is dropped.
pub struct Opening {
    shared_state: Arc<SharedState>,
    pub is_alone: bool,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.shared_state.unlock(OPENING);
    }
}

impl SharedState {
    /// Joins the region's users; the only one makes the words anew. Waits while another process opens the region.
    pub fn join(common: &Common, number: u32) -> io::Result<(Arc<SharedState>, Opening)> {
        if u64::from(number) >= REGIONS {
            return Err(io::Error::other(format!("region {number}: processes can share {REGIONS}")));
        }
        let words = Words::of(&common.file, u64::from(number) * BYTES, WORDS)?;
        let (labels, mending) = (Mutex::default(), Mutex::default());
        let shared_state =
            Arc::new(SharedState { file: common.file.clone(), base: base(number), words, labels, mending });
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSES.start;
        while !shared_state.try_lock(OPENING, Lock::Exclusive)? {
            if Instant::now() > until {
                return Err(io::Error::other("another process has been opening the region for two minutes"));
            }
            wait(&mut pause);
        }
        let is_alone = shared_state.try_lock(PRESENCE, Lock::Exclusive)?;
        if is_alone {
            shared_state.words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        }
        // No other process opens it now, and those that have it open share the lock.
        let is_in = shared_state.try_lock(PRESENCE, Lock::Shared)?;
        let opening = Opening { shared_state: shared_state.clone(), is_alone };
        match is_in {
            true => Ok((shared_state, opening)),
            false => Err(io::Error::other("somebody has the region for himself")),
        }
    }

    fn try_lock(&self, at: u64, how: Lock) -> io::Result<bool> {
        lock(&self.file, &(self.base + at..self.base + at + 1), how)
    }

    fn unlock(&self, at: u64) {
        // The file is there: unlocking cannot fail.
        let _ = self.try_lock(at, Lock::None);
    }

    fn have<'b>(&'b self, at: u64, thread: &'b Mutex<()>, name: &Arc<str>) -> Result<Held<'b>> {
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pause = PAUSES.start;
        while !self.try_lock(at, Lock::Exclusive).map_err(|e| failed(name, &e))? {
            wait(&mut pause);
        }
        Ok(Held { shared_state: self, at, _thread: thread })
    }

    /// Locks the labels; waits for another holder.
    pub fn labels(&self, name: &Arc<str>) -> Result<Held<'_>> {
        self.have(LABELS, &self.labels, name)
    }

    pub fn mending(&self, name: &Arc<str>) -> Result<Held<'_>> {
        self.have(MENDING, &self.mending, name)
    }

    /// For the thread of this process that retires intents.
    pub fn try_log(&self) -> io::Result<bool> {
        self.try_lock(LOG, Lock::Exclusive)
    }

    pub fn end_log(&self) {
        self.unlock(LOG);
    }

    pub fn version(&self) -> u64 {
        self.words[VERSION].load(Ordering::SeqCst)
    }

    /// Labels are about to change; returns the new version.
    pub fn change(&self) -> u64 {
        self.words[VERSION].fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The number of the last epoch that was written to labels.
    pub fn epoch(&self) -> u64 {
        self.words[EPOCH].load(Ordering::SeqCst)
    }

    /// Labels have this epoch.
    pub fn tell_epoch(&self, number: u64) {
        self.words[EPOCH].fetch_max(number, Ordering::SeqCst);
    }

    /// The words of the log of intents.
    pub fn log_words(&self) -> &[AtomicU64] {
        &self.words[LOG_WORDS]
    }

    pub fn throttle_words(&self) -> &[AtomicU64] {
        &self.words[THROTTLE_WORDS]
    }

    fn stripes(&self, stripes: &Range<u64>) -> Range<u64> {
        self.base + STRIPES + stripes.start..self.base + STRIPES + stripes.end
    }

    /// Locks stripes; false where another holder has them, or has the gate.
    pub fn try_lock_range(&self, stripes: &Range<u64>, is_shared: bool) -> io::Result<bool> {
        if stripes.is_empty() {
            return Ok(true);
        }
        if self.words[GATED].load(Ordering::SeqCst) != 0 {
            let gate = self.base + GATE..self.base + GATE + 1;
            if is_excluded(&self.file, &gate, Lock::Shared)? {
                return Ok(false);
            }
        }
        lock(&self.file, &self.stripes(stripes), if is_shared { Lock::Shared } else { Lock::Exclusive })
    }

    /// Locks all of them: first the gate, so that no others begin.
    pub fn try_everything(&self, stripes: &Range<u64>) -> io::Result<bool> {
        if !self.try_lock(GATE, Lock::Exclusive)? {
            return Ok(false);
        }
        self.words[GATED].store(1, Ordering::SeqCst);
        lock(&self.file, &self.stripes(stripes), Lock::Exclusive)
    }

    pub fn unlock_range(&self, stripes: &Range<u64>) {
        if !stripes.is_empty() {
            // As in `unlock`.
            let _ = lock(&self.file, &self.stripes(stripes), Lock::None);
        }
    }

    pub fn end_gate(&self) {
        self.words[GATED].store(0, Ordering::SeqCst);
        self.unlock(GATE);
    }
}

/// Where the meters of a region are.
fn meters_at(number: u32) -> shared::Place {
    let words = (u64::from(number) < REGIONS).then(|| METERS_AT + u64::from(number) * shared::BYTES);
    shared::Place { number, locks: base(number) + SLOTS, words }
}

fn wait(pause: &mut Duration) {
    std::thread::sleep(*pause);
    *pause = (*pause * 2).min(PAUSES.end);
}

/// The error for processes that cannot agree.
pub fn failed(name: &Arc<str>, e: &io::Error) -> Error {
    Error::new(Class::Transient, name, format!("locking the region among processes: {e}"))
}
