//! The log of intents: what is about to be written to parts of stripes, durable before any member is touched.
//!
//! Each member keeps what is to be written to itself: no content is written more than twice, and with any one disk lost
//! the parity in the others' records stands for what was in its.
//!
//! | step | what | else, after a power cut with a disk lost |
//! | --- | --- | --- |
//! | 1 | a record in the same slot of each member that is whole and will be touched: what is to be written there, and which members have records; durable | |
//! | 2 | one that has not taken its record is out, and the labels say so, durably | the others' records count as not complete, and step 3 is not undone and not done |
//! | 3 | the members are written | content and parity do not belong together, and what was on the lost disk cannot be known |
//! | 4 | the slot is used again when the intent was [retired](super::retire) | |
//!
//! An intent is *complete* when all members have it that should, as far as they are whole. When the region is opened, those
//! that are complete and not retired are done again in order; of the others no member was touched.
//!
//! Several intents become durable together: those that come while others are being written wait for these, and are then
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

/// Bytes of which a checksum is computed at a time.
const SUMMED: usize = 64 << 10;

/// What is to be written to a member, behind room for the header of a record.
pub struct Change {
    pub role: usize,
    /// Of its chunk in the stripe.
    pub columns: Range<u64>,
    memory: Arc<Aligned>,
}

impl Change {
    pub fn new(role: usize, columns: Range<u64>, content: &[u8]) -> Change {
        let mut memory = Aligned::zeroed(HEADER as usize + content.len());
        // It is not shared yet.
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

/// What is about to be written.
pub struct Intent {
    pub stripe: u64,
    /// Of the stripe's content.
    pub within: Range<u64>,
    pub changes: Vec<Change>,
    pub manner: Manner,
    pub then: Then,
}

/// One that has a slot.
struct Record {
    intent: Intent,
    slot: usize,
    /// Members that are to have it.
    roles: Vec<usize>,
    misses: bool,
}

/// What this process has of it; what all know is in the [table of intents](super::intent_table).
pub struct Log(Mutex<State>);

#[derive(Default)]
pub struct State {
    pub retirement: Retirement,
    /// Those that have no slot yet.
    pub waiting: VecDeque<Intent>,
    queue: Vec<Record>,
    is_writing: bool,
    /// Somebody looks after slots whose owners may have died.
    is_looking: bool,
}

impl State {
    /// Slots for as many as there are; they are written next.
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

    /// Half of the slots could be free and are not, or somebody waits for one.
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
    /// Makes it durable.
    pub fn log(&self, intent: Intent) {
        self.core.log.lock().waiting.push_back(intent);
        self.write_log();
    }

    /// The members have been written, or will not be.
    pub fn logged(&self, slot: usize) {
        if let busy @ Slot::Busy { stripe } = self.core.intent_table.slot(slot) {
            self.core.intent_table.set_slot(slot, busy, Slot::Done { stripe });
        }
        self.write_log();
    }

    /// Writes what waits to be written, unless somebody does.
    pub fn write_log(&self) {
        loop {
            let mut state = self.core.log.lock();
            state.admit(self);
            let is_full = state.is_full(&self.core.intent_table) && !state.retirement.is_running();
            // Other processes have them all.
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
            // Whoever comes last goes on: this loop, where disks answer at once, or else who answers.
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

    /// Goes on when a slot is not busy any more: its owner, if he lives, ends his lock, and else whoever gets that ends it for him.
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
            // Somebody retires them.
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

    /// Steps 1 and 2 for all of them.
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
