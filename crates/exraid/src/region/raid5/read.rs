//! Reads: from the member that has the content, and where that fails from all the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::layout::Piece;
use super::{Array, RangeLock};
use crate::device::{Answer, Done, Op, LATE};
use crate::error::{Class, Error, Result};
use crate::region::set::Manner;
use crate::sys::memory::{Aligned, Buffers};

/// The source of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The member with the content, else the others.
    Any,
    Straight,
    Computed,
}

/// A read of several pieces.
struct Reading {
    array: Array,
    into: Buffers,
    pieces: Vec<Piece>,
    manner: Manner,
    from: Source,
    state: Mutex<State>,
}

struct State {
    left: usize,
    /// Computed content, by piece.
    computed: Vec<(usize, Vec<u8>)>,
    /// A member still has memory of the read.
    is_held: bool,
    failed: Option<Error>,
    done: Option<Done>,
}

impl Array {
    pub fn read(&self, op: Op, manner: Manner, done: Done) {
        self.read_from(Source::Any, op, manner, done);
    }

    /// From the members with the content, alone.
    pub fn read_straight(&self, op: Op, manner: Manner, done: Done) {
        self.read_from(Source::Straight, op, manner, done);
    }

    /// From the others and the parity, alone.
    pub fn read_computed(&self, op: Op, manner: Manner, done: Done) {
        self.read_from(Source::Computed, op, manner, done);
    }

    fn read_from(&self, from: Source, op: Op, manner: Manner, done: Done) {
        let pieces = self.geometry().pieces(op.range());
        let into = op.into_buffers().unwrap_or_default();
        if pieces.is_empty() {
            return done(Answer { result: Ok(()), buffers: Some(into) });
        }
        let (left, computed) = (pieces.len(), Vec::new());
        let state = Mutex::new(State { left, computed, is_held: false, failed: None, done: Some(done) });
        let reading = Arc::new(Reading { array: self.clone(), into, pieces, manner, from, state });
        let states = self.set.states().clone();
        for (number, piece) in reading.pieces.iter().enumerate() {
            // A late member is not waited for where the others have its content.
            let is_late = || self.set.part(piece.role).is_some_and(|part| part.device.is_late());
            let goes_round = || from == Source::Any && self.set.can_miss(&states, &[piece.role]) && is_late();
            match from != Source::Computed && Array::has(&states, piece.role, &piece.range) && !goes_round() {
                true => reading.straight(number),
                false if from == Source::Straight => {
                    let e =
                        self.gone(&format!("{} bytes of disk {}", piece.range.end - piece.range.start, piece.role + 1));
                    reading.ended(Err(e));
                }
                false => reading.compute(number, None),
            }
        }
    }
}

impl Reading {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn straight(self: &Arc<Reading>, number: usize) {
        let (reading, piece) = (self.clone(), &self.pieces[number]);
        let into = piece.memory(&self.into);
        let done = move |answer: Answer| {
            reading.lock().is_held |= answer.buffers.is_none();
            drop(answer.buffers);
            match answer.result {
                Err(e) if reading.from == Source::Any && e.class != Class::Invalid => {
                    reading.array.blame(reading.pieces[number].role, &e);
                    reading.compute(number, Some(e));
                }
                result => reading.ended(result),
            }
        };
        let set = &self.array.set;
        let can_miss = self.from == Source::Any && set.can_miss(&set.states(), &[piece.role]);
        let within = self.manner.within.into_iter().chain(can_miss.then_some(LATE)).min();
        let manner = Manner { within, ..self.manner };
        set.send(piece.role, Op::Read { at: piece.range.start, into }, manner, Box::new(done));
    }

    /// `why`: the error of the direct read, returned if the others do not have the content either.
    fn compute(self: &Arc<Reading>, number: usize, why: Option<Error>) {
        let (reading, piece) = (self.clone(), &self.pieces[number]);
        let stripes = self.array.geometry().stripes_of(&piece.range);
        self.array.core.range_locks.ask(stripes, true, move |lock: Result<RangeLock>| {
            let lock = match lock {
                Ok(lock) => lock,
                Err(e) => return reading.ended(Err(why.unwrap_or(e))),
            };
            let (array, manner) = (reading.array.clone(), reading.manner);
            let Piece { role, range, .. } = reading.pieces[number].clone();
            array.compute(role, range, manner, move |computed| {
                drop(lock);
                match computed {
                    Ok(bytes) => {
                        reading.lock().computed.push((number, bytes));
                        reading.ended(Ok(()));
                    }
                    Err(e) => reading.ended(Err(why.unwrap_or(e))),
                }
            });
        });
    }

    fn ended(&self, result: Result<()>) {
        let mut state = self.lock();
        state.left -= 1;
        state.failed = state.failed.take().or(result.err());
        if state.left > 0 {
            return;
        }
        let (computed, is_held) = (std::mem::take(&mut state.computed), state.is_held);
        let (failed, done) = (state.failed.take(), state.done.take());
        drop(state);
        let Some(done) = done else { return };
        let answer = match failed {
            Some(e) => Answer { result: Err(e), buffers: (!is_held).then(|| self.into.clone()) },
            None => Answer { result: Ok(()), buffers: Some(self.filled(&computed, is_held)) },
        };
        done(answer);
    }

    /// The memory of the read with the computed content. If a member still has some of it, other memory: a late answer
    /// would overwrite the content.
    fn filled(&self, computed: &[(usize, Vec<u8>)], is_held: bool) -> Buffers {
        let memory = match is_held {
            true => Buffers::whole(&Aligned::of(&self.into.to_vec())),
            false => self.into.clone(),
        };
        computed.iter().for_each(|(number, bytes)| self.pieces[*number].memory(&memory).copy_from(bytes));
        memory
    }
}

impl Piece {
    /// This piece's part of the memory of the whole.
    fn memory(&self, all: &Buffers) -> Buffers {
        let mut memory = Buffers::new();
        self.of.iter().for_each(|range| memory.join(all.slice(range.clone())));
        memory
    }
}
