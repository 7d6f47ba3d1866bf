//! The log of intents: writes to parts of stripes, durable there before any member changes.
//!
//! Each member stores its own new content: none is written more than twice, and if one disk is lost, the parity in the
//! others' records replaces the content in its record.
//!
//! | step | what | else, after a power cut with a disk lost |
//! | --- | --- | --- |
//! | 1 | a record in the same slot of each whole member that the write touches: its new content, and which members have records; durable | |
//! | 2 | a member that has not taken its record is out, and the labels record that durably | the others' records count as incomplete, and a partly done step 3 is never finished |
//! | 3 | the members are written | content and parity do not match, and the lost disk's content cannot be computed |
//! | 4 | the slot is used again when the intent was [retired](super::retire) | |
//!
//! An intent is *complete* if each of its members that is whole has its record. When the region is opened, the complete
//! intents that are not retired are done again in order; an incomplete one has changed no member.
//!
//! Several intents become durable together: those that arrive during a write of others wait for it, and are then
//! written at once and flushed once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerocopy::IntoBytes;

use super::intent_table::{IntentTable, Slot};
use super::raw::{RawIntent, HEADER, INTENT_MAGIC, VERSION};
use super::retire::Retirement;
use super::Array;
use crate::device::Op;
use crate::error::Result;
use crate::label::MemberState;
use crate::region::set::Manner;
use crate::sys::memory::{Aligned, Buffers};

/// Bytes per step of computing a checksum.
const SUMMED: usize = 64 << 10;

/// The new content of a member, behind the space for a record's header.
pub struct Change {
    pub role: usize,
    /// The columns of its chunk in the stripe.
    pub columns: Range<u64>,
    memory: Arc<Aligned>,
}

impl Change {
    pub fn new(role: usize, columns: Range<u64>, content: &[u8]) -> Change {
        let mut memory = Aligned::zeroed(HEADER as usize + content.len());
        // Nothing else refers to it yet.
        if let Some(memory) = Arc::get_mut(&mut memory) {
            memory.bytes_mut()[HEADER as usize..].copy_from_slice(content);
        }
        Change { role, columns, memory }
    }

    pub fn content(&self) -> Buffers {
        Buffers::part(&self.memory, HEADER as usize..self.memory.len())
    }

    fn record(&self) -> Buffers {
        Buffers::whole(&self.memory)
    }

    fn seal(&self, header: &RawIntent) {
        let header = RawIntent {
            at: self.columns.start,
            len: self.columns.end - self.columns.start,
            role: self.role as u32,
            ..*header
        };
        let mut crc = header.sum(&[]);
        self.content().pieces(SUMMED, |piece| crc = crc32c::crc32c_append(crc, piece));
        Buffers::part(&self.memory, 0..HEADER as usize).copy_from(RawIntent { crc, ..header }.as_bytes());
    }
}

/// Called when an intent is durable, with its slot.
type Then = Box<dyn FnOnce(Result<usize>, Vec<Change>) + Send>;

/// A write to a part of a stripe.
pub struct Intent {
    pub stripe: u64,
    /// The bytes of the stripe's content.
    pub within: Range<u64>,
    pub changes: Vec<Change>,
    pub manner: Manner,
    pub then: Then,
}

/// An intent with a slot.
struct Record {
    intent: Intent,
    slot: usize,
    /// Members that get it.
    roles: Vec<usize>,
    misses: bool,
}

/// This process's state; the common state is the [table of intents](super::intent_table).
pub struct Log(Mutex<State>);

#[derive(Default)]
pub struct State {
    pub retirement: Retirement,
    /// Intents without a slot.
    pub waiting: VecDeque<Intent>,
    queue: Vec<Record>,
    is_writing: bool,
    /// A task waits for slots whose owners may have died.
    is_looking: bool,
}

impl State {
    /// Gives slots to waiting intents, as far as there are any, and queues them.
    fn admit(&mut self, array: &Array) {
        while let Some(stripe) = self.waiting.front().map(|intent| intent.stripe) {
            let Some(slot) = array.core.intent_table.take_slot(stripe) else { return };
            let Some(intent) = self.waiting.pop_front() else { return };
            let view = array.core.exclusion.view(&array.set);
            let is_whole = |role: &usize| view.states[*role] == MemberState::Whole;
            let roles: Vec<usize> = intent.changes.iter().map(|change| change.role).filter(is_whole).collect();
            let header = RawIntent {
                magic: INTENT_MAGIC,
                version: VERSION,
                crc: 0,
                secret: array.set.secret,
                sequence: array.core.intent_table.take_next(),
                stripe: intent.stripe,
                start: intent.within.start,
                end: intent.within.end,
                at: 0,
                len: 0,
                role: 0,
                roles: roles.iter().fold(0, |bits, role| bits | 1 << role),
                reserved: [0; 4016],
            };
            intent.changes.iter().for_each(|change| change.seal(&header));
            self.queue.push(Record { intent, slot, roles, misses: view.misses });
        }
    }

    /// Retiring intents would help: fewer than half of the slots are free, or an intent waits for one.
    fn is_full(&self, intent_table: &IntentTable) -> bool {
        let free = intent_table.all().filter(|slot| *slot == Slot::Free).count();
        let is_done = |slot: Slot| matches!(slot, Slot::Done { .. });
        (free < intent_table.slots() / 2 || !self.waiting.is_empty()) && intent_table.all().any(is_done)
    }
}

impl Log {
    pub fn new() -> Log {
        Log(Mutex::default())
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Array {
    /// Makes an intent durable.
    pub fn log(&self, intent: Intent) {
        self.core.log.lock().waiting.push_back(intent);
        self.write_log();
    }

    /// Ends an intent: the members have been written, or will not be.
    pub fn logged(&self, slot: usize) {
        if let busy @ Slot::Busy { stripe } = self.core.intent_table.slot(slot) {
            self.core.intent_table.set_slot(slot, busy, Slot::Done { stripe });
        }
        self.write_log();
    }

    /// Writes the queued intents, unless another thread does.
    pub fn write_log(&self) {
        loop {
            let mut state = self.core.log.lock();
            state.admit(self);
            let is_full = state.is_full(&self.core.intent_table) && !state.retirement.is_running();
            // Other processes have all slots.
            let looks = !state.waiting.is_empty() && !is_full && !state.is_looking && self.set.shared_state().is_some();
            state.is_looking |= looks;
            let batch = match state.is_writing {
                true => Vec::new(),
                false => std::mem::take(&mut state.queue),
            };
            state.is_writing |= !batch.is_empty();
            drop(state);
            if is_full {
                self.retire(None, |_| {});
            }
            if looks {
                self.look_after_slots();
            }
            if batch.is_empty() {
                return;
            }
            // The later of two goes on: this loop, where disks answer at once, or else the thread that answers.
            let (is_last, array) = (Arc::new(AtomicBool::new(false)), self.clone());
            let theirs = is_last.clone();
            self.write_batch(batch, move || {
                if theirs.swap(true, Ordering::SeqCst) {
                    array.write_log();
                }
            });
            if !is_last.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Goes on when a slot is not busy any more. Its owner, if alive, releases its lock; otherwise the process that
    /// gets the lock ends the intent.
    fn look_after_slots(&self) {
        let busy = self.core.intent_table.busy(&(0..u64::MAX)).into_iter().next();
        let array = self.clone();
        let again = move || {
            array.core.log.lock().is_looking = false;
            array.write_log();
        };
        match busy {
            Some((_, stripe)) => self.core.range_locks.ask(stripe..stripe + 1, false, move |lock| {
                drop(lock);
                again();
            }),
            // They will be retired.
            None => {
                let mut again = Some(again);
                let mut first = true;
                self.core.range_locks.later(move || {
                    if std::mem::take(&mut first) {
                        return false;
                    }
                    again.take().into_iter().for_each(|again| again());
                    true
                });
            }
        }
    }

    /// Steps 1 and 2 for a batch.
    fn write_batch(&self, batch: Vec<Record>, then: impl FnOnce() + Send + 'static) {
        let within = batch.iter().filter_map(|record| record.intent.manner.within).min();
        let manner = Manner { tag: 0, within, of: None };
        let misses = batch.iter().any(|record| record.misses);
        let ops = batch.iter().flat_map(|record| self.ops_of(record)).collect();
        let mut roles: Vec<usize> = batch.iter().flat_map(|record| record.roles.clone()).collect();
        roles.sort_unstable();
        roles.dedup();
        let array = self.clone();
        self.send_all(ops, manner, move |mut failures| {
            roles.retain(|role| !failures.iter().any(|(failed, _)| failed == role));
            let flushes = roles.into_iter().map(|role| (role, Op::Flush)).collect();
            let next = array.clone();
            array.send_all(flushes, manner, move |unflushed| {
                failures.extend(unflushed);
                let last = next.clone();
                next.finish(misses, failures, move |result| {
                    last.core.log.lock().is_writing = false;
                    batch.into_iter().for_each(|record| last.written(record, result.clone()));
                    then();
                });
            });
        });
    }

    fn ops_of(&self, record: &Record) -> Vec<(usize, Op)> {
        let at = self.geometry().slot_at(record.slot);
        let has = |change: &&Change| record.roles.contains(&change.role);
        let changes = record.intent.changes.iter().filter(has);
        changes.map(|change| (change.role, Op::Write { at, from: change.record() })).collect()
    }

    fn written(&self, record: Record, result: Result<()>) {
        let Record { intent, slot, .. } = record;
        if result.is_err() {
            self.logged(slot);
        }
        (intent.then)(result.map(|()| slot), intent.changes);
    }
}
