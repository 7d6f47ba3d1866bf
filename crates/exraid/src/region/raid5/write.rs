//! Writes of whole stripes; flush, discard and reserve, which work on whole stripes.

use std::ops::Range;
use std::sync::Arc;

use super::{xor, Array, RangeLock};
use crate::device::{Answer, Done, Kind, Op};
use crate::error::Result;
use crate::region::join::{Failures, Join};
use crate::region::set::Manner;
use crate::sys::memory::{Aligned, Buffers};

impl Array {
    pub fn write(&self, op: Op, manner: Manner, done: Done) {
        match op {
            Op::Write { at, from } => self.write_split(at, from, manner, done),
            Op::Discard(range) => self.discard(self.geometry().within(&range), manner, done),
            Op::Reserve(range) => {
                let chunks = self.geometry().chunks(self.geometry().around(&range));
                self.tell_all(Op::Reserve(chunks), manner, answer(done));
            }
            op => self.tell_all(op, manner, answer(done)),
        }
    }

    /// Splits a write into a part of a stripe, whole ones, and a part of one.
    fn write_split(&self, at: u64, from: Buffers, manner: Manner, done: Done) {
        let (stripe, range) = (self.geometry().stripe(), at..at + from.len());
        let whole = self.geometry().within(&range);
        let (first_whole, end_whole) = (whole.start * stripe, whole.end * stripe);
        let mut parts: Vec<Range<u64>> = match whole.is_empty() {
            // In one stripe, or across a boundary.
            true => {
                let border = range.end.min((range.start / stripe + 1) * stripe);
                vec![range.start..border, border..range.end]
            }
            false => vec![range.start..first_whole, first_whole..end_whole, end_whole..range.end],
        };
        parts.retain(|part| !part.is_empty());
        if parts.is_empty() {
            return done(Answer { result: Ok(()), buffers: Some(from) });
        }
        let join = Join::new((0..parts.len()).collect(), Some(from.clone()), |failures, buffers| {
            done(Answer { result: first(failures), buffers });
        });
        for (number, part) in parts.into_iter().enumerate() {
            let (from, done) = (from.slice(part.start - at..part.end - at), join.part(number, true));
            let stripes = self.geometry().around(&part);
            match part.start % stripe == 0 && part.end % stripe == 0 {
                true => self.write_whole(stripes, from, manner, done),
                false => {
                    let base = stripes.start * stripe;
                    self.write_part(stripes.start, part.start - base..part.end - base, from, manner, done);
                }
            }
        }
    }

    /// The parity is computed before locking, on the caller's thread.
    fn write_whole(&self, stripes: Range<u64>, from: Buffers, manner: Manner, done: Done) {
        let parity = self.parity_of(&stripes, &from);
        let array = self.clone();
        self.core.range_locks.ask(stripes.clone(), false, move |lock: Result<RangeLock>| {
            let lock = match lock {
                Ok(lock) => lock,
                Err(e) => return done(Answer { result: Err(e), buffers: Some(from) }),
            };
            // P5.
            match array.core.intent_table.has_intents_of(&stripes) {
                false => array.write_members(&stripes, from, &parity, manner, lock, done),
                true => array.clone().retire(None, move |retired| match retired {
                    Ok(()) => array.write_members(&stripes, from, &parity, manner, lock, done),
                    Err(e) => {
                        drop(lock);
                        done(Answer { result: Err(e), buffers: Some(from) });
                    }
                }),
            }
        });
    }

    /// The parity of stripes, one chunk after the other.
    fn parity_of(&self, stripes: &Range<u64>, from: &Buffers) -> Arc<Aligned> {
        let geometry = self.geometry();
        let mut memory = Aligned::zeroed(((stripes.end - stripes.start) * geometry.chunk) as usize);
        // Nothing else refers to it yet.
        let Some(all) = Arc::get_mut(&mut memory) else { return memory };
        for (n, parity) in all.bytes_mut().chunks_mut(geometry.chunk as usize).enumerate() {
            let chunk = |chunk| self.chunk_of(n as u64, chunk, from);
            xor::sum(&(0..geometry.width()).map(chunk).collect::<Vec<_>>(), parity);
        }
        memory
    }

    /// A chunk of the nth of several stripes.
    fn chunk_of(&self, nth: u64, chunk: u64, from: &Buffers) -> Buffers {
        let at = nth * self.geometry().stripe() + chunk * self.geometry().chunk;
        from.slice(at..at + self.geometry().chunk)
    }

    /// One request for each member, with its chunks of all stripes.
    fn write_members(
        &self,
        stripes: &Range<u64>,
        from: Buffers,
        parity: &Arc<Aligned>,
        manner: Manner,
        lock: RangeLock,
        done: Done,
    ) {
        let view = self.core.exclusion.view(&self.set);
        let roles = view.used();
        let memory = self.memory_by_role(stripes, &from, parity);
        let (array, misses) = (self.clone(), view.misses);
        let without = self.set.without(manner);
        let join = Join::without_late(roles.clone(), without, Some(from), move |failures, buffers| {
            array.finish(misses, failures, move |result| {
                drop(lock);
                done(Answer { result, buffers });
            });
        });
        let at = self.geometry().chunks(stripes.clone()).start;
        for role in roles {
            let from = memory[role].clone();
            self.set.send_with_late(role, Op::Write { at, from }, manner, join.part(role, true), join.late(role));
        }
    }

    fn memory_by_role(&self, stripes: &Range<u64>, from: &Buffers, parity: &Arc<Aligned>) -> Vec<Buffers> {
        let geometry = self.geometry();
        let mut memory = vec![Buffers::new(); geometry.members as usize];
        let size = geometry.chunk as usize;
        for (nth, stripe) in stripes.clone().enumerate() {
            memory[geometry.parity(stripe)].push(parity, nth * size..(nth + 1) * size);
            for chunk in 0..geometry.width() {
                memory[geometry.role(stripe, chunk)].join(self.chunk_of(nth as u64, chunk, from));
            }
        }
        memory
    }

    /// Discards whole stripes only: the parity of a partly discarded one is still needed.
    fn discard(&self, stripes: Range<u64>, manner: Manner, done: Done) {
        if stripes.is_empty() {
            return done(Answer { result: Ok(()), buffers: None });
        }
        let array = self.clone();
        self.core.range_locks.ask(stripes.clone(), false, move |lock: Result<RangeLock>| {
            let lock = match lock {
                Ok(lock) => lock,
                Err(e) => return done(Answer { result: Err(e), buffers: None }),
            };
            let chunks = array.geometry().chunks(stripes.clone());
            let go_on = move |array: &Array, retired: Result<()>| match retired {
                Ok(()) => array.tell_all(Op::Discard(chunks), manner, move |result| {
                    drop(lock);
                    answer(done)(result);
                }),
                Err(e) => {
                    drop(lock);
                    answer(done)(Err(e));
                }
            };
            // P5: replayed later, they would put back some of the discarded content.
            match array.core.intent_table.has_intents_of(&stripes) {
                false => go_on(&array, Ok(())),
                true => array.clone().retire(None, move |retired| go_on(&array, retired)),
            }
        });
    }

    /// Sends a request without memory to all members.
    pub fn tell_all(&self, op: Op, manner: Manner, then: impl FnOnce(Result<()>) + Send + 'static) {
        let view = self.core.exclusion.view(&self.set);
        let ops: Vec<(usize, Op)> = view.used().into_iter().map(|role| (role, op.clone())).collect();
        let (array, all) = (self.clone(), ops.len());
        self.send_all(ops, manner, move |failures| match op.kind() {
            // A discard that some members have not done counts as done.
            Kind::Discard if failures.len() < all => then(Ok(())),
            Kind::Discard => then(first(failures)),
            _ => array.finish(view.misses, failures, then),
        });
    }
}

fn answer(done: Done) -> impl FnOnce(Result<()>) + Send {
    move |result| done(Answer { result, buffers: None })
}

fn first(failures: Failures) -> Result<()> {
    failures.into_iter().next().map_or(Ok(()), |(_, e)| Err(e))
}
