//! Writes of a part of a stripe.
//!
//! | step | what |
//! | --- | --- |
//! | 1 | lock the stripe |
//! | 2 | read the rest of the touched columns: from the others and the parity where a member lacks it |
//! | 3 | compute the parity of these columns from all content (P2) |
//! | 4 | make the new content durable as an [intent](super::log) |
//! | 5 | write the members; one that fails is out, durably |
//! | 6 | unlock the stripe, answer the write |
//!
//! The content is copied first: so parity and content are of the same bytes even if the client's memory changes
//! meanwhile, and no member has that memory after the answer.

use std::ops::Range;

use super::log::{Change, Intent};
use super::{xor, Array, Filled, RangeLock};
use crate::device::{Answer, Done, Op};
use crate::error::{Class, Error, Result};
use crate::label::MemberState;
use crate::region::join::Failures;
use crate::region::rebuild::OWN;
use crate::region::set::Manner;
use crate::sys::memory::{Aligned, Buffers};

/// A write under way.
struct Partial {
    array: Array,
    stripe: u64,
    /// The bytes of the stripe's content.
    within: Range<u64>,
    content: Vec<u8>,
    manner: Manner,
    lock: RangeLock,
    done: Box<dyn FnOnce(Result<()>) + Send>,
}

impl Array {
    /// Writes a part of the content of a stripe.
    pub fn write_part(&self, stripe: u64, within: Range<u64>, from: Buffers, manner: Manner, done: Done) {
        let (array, content) = (self.clone(), from.to_vec());
        let done = Box::new(move |result| done(Answer { result, buffers: Some(from) }));
        let done: Box<dyn FnOnce(Result<()>) + Send> = done;
        self.core.range_locks.ask(stripe..stripe + 1, false, move |lock| match lock {
            Ok(lock) => Partial { array, stripe, within, content, manner, lock, done }.read(None),
            Err(e) => done(Err(e)),
        });
    }
}

impl Partial {
    /// Step 2. `failed`: this member could not be read.
    fn read(self, failed: Option<usize>) {
        let geometry = *self.array.geometry();
        let hull = geometry.hull(&self.within);
        let range = geometry.columns(self.stripe, &hull);
        let states = self.array.set.states().clone();
        let has = |role: &usize| Some(*role) != failed && Array::has(&states, *role, &range);
        let is_kept = |chunk: &u64| geometry.touched(&self.within, *chunk) != hull;
        let kept = (0..geometry.width()).filter(is_kept).map(|chunk| geometry.role(self.stripe, chunk));
        let (mut roles, lacking): (Vec<usize>, Vec<usize>) = kept.partition(has);
        let lacks = lacking.first().copied();
        if let Some(lacks) = lacks {
            roles = (0..states.len()).filter(|role| *role != lacks).collect();
            if !roles.iter().all(has) {
                let e = self.array.gone("a write of a part of a stripe");
                return self.end(Err(e));
            }
        }
        let (array, manner) = (self.array.clone(), self.manner);
        array.gather(&roles, range, array.set.without(manner), manner, move |filled| match filled {
            Ok(filled) => self.compute(&hull, lacks, &filled),
            Err(failures) => self.read_without(failed, failures),
        });
    }

    /// Does without a member that cannot be read there, once.
    fn read_without(self, failed: Option<usize>, failures: Failures) {
        failures.iter().for_each(|(role, e)| self.array.blame(*role, e));
        match (&failures[..], failed) {
            ([(role, e)], None) if e.class != Class::Invalid => self.read(Some(*role)),
            _ => {
                let first = failures.into_iter().next().map_or(Ok(()), |(_, e)| Err(e));
                self.end(first);
            }
        }
    }

    /// Step 3.
    fn compute(self, hull: &Range<u64>, lacks: Option<usize>, filled: &Filled) {
        let geometry = *self.array.geometry();
        let len = (hull.end - hull.start) as usize;
        let states = self.array.set.states().clone();
        let range = geometry.columns(self.stripe, hull);
        // A member that is still to be rebuilt here gets all these columns, not only its touched ones, so that they are
        // even.
        let takes_all =
            |role: usize| matches!(states[role], MemberState::Rebuilding { .. }) && !Array::has(&states, role, &range);
        let mut parity = vec![0; len];
        let mut changes = Vec::new();
        for chunk in 0..geometry.width() {
            let role = geometry.role(self.stripe, chunk);
            let mut content = vec![0; len];
            match filled.iter().find(|(other, _)| *other == role) {
                Some((_, memory)) => Buffers::whole(memory).copy_to(&mut content),
                None if lacks == Some(role) => {
                    let all: Vec<Buffers> = filled.iter().map(|(_, memory)| Buffers::whole(memory)).collect();
                    xor::sum(&all, &mut content);
                }
                // The write covers it.
                None => {}
            }
            let touched = geometry.touched(&self.within, chunk);
            if !touched.is_empty() {
                let from = (chunk * geometry.chunk + touched.start - self.within.start) as usize;
                let to = (touched.start - hull.start) as usize;
                let count = (touched.end - touched.start) as usize;
                content[to..to + count].copy_from_slice(&self.content[from..from + count]);
            }
            xor::add(&mut parity, &content);
            let columns = if takes_all(role) { hull.clone() } else { touched };
            if !columns.is_empty() {
                let of = (columns.start - hull.start) as usize..(columns.end - hull.start) as usize;
                changes.push(Change::new(role, columns, &content[of]));
            }
        }
        changes.push(Change::new(geometry.parity(self.stripe), hull.clone(), &parity));
        self.log(changes);
    }

    /// Step 4.
    fn log(self, changes: Vec<Change>) {
        let array = self.array.clone();
        let (stripe, within, manner) = (self.stripe, self.within.clone(), self.manner);
        let then = Box::new(move |slot: Result<usize>, changes| match slot {
            Ok(slot) => self.write(slot, changes),
            Err(e) => self.end(Err(e)),
        });
        array.log(Intent { stripe, within, changes, manner, then });
    }

    /// Step 5.
    fn write(self, slot: usize, changes: Vec<Change>) {
        let array = self.array.clone();
        let view = array.core.exclusion.view(&array.set);
        let op = |change: &Change| {
            let at = array.geometry().columns(self.stripe, &change.columns).start;
            (change.role, Op::Write { at, from: change.content() })
        };
        let is_used = |change: &&Change| view.states[change.role] != MemberState::Out;
        let ops = changes.iter().filter(is_used).map(op).collect();
        let (next, manner) = (array.clone(), self.manner);
        array.send_all(ops, manner, move |failures| {
            let last = next.clone();
            next.finish(view.misses, failures, move |result| match result {
                Ok(()) => {
                    last.logged(slot);
                    self.end(Ok(()));
                }
                Err(e) => self.mend(slot, e),
            });
        });
    }

    /// A member did not take the write, as its host had no storage left, and stays in use. This recomputes the parity
    /// from the present content, so that a disk lost later takes no other content with it.
    fn mend(self, slot: usize, e: Error) {
        let (array, geometry, stripe) = (self.array.clone(), *self.array.geometry(), self.stripe);
        let range = geometry.columns(stripe, &geometry.hull(&self.within));
        let roles: Vec<usize> = (0..geometry.width()).map(|chunk| geometry.role(stripe, chunk)).collect();
        let states = array.set.states().clone();
        let end = move |array: &Array| {
            array.logged(slot);
            self.end(Err(e));
        };
        if !roles.iter().all(|role| Array::has(&states, *role, &range)) {
            return end(&array);
        }
        let (next, at) = (array.clone(), range.start);
        array.gather(&roles, range.clone(), array.set.without(OWN), OWN, move |filled| {
            let Ok(filled) = filled else { return end(&next) };
            let all: Vec<Buffers> = filled.iter().map(|(_, memory)| Buffers::whole(memory)).collect();
            let mut parity = vec![0; (range.end - range.start) as usize];
            xor::sum(&all, &mut parity);
            let from = Buffers::whole(&Aligned::of(&parity));
            let last = next.clone();
            let parity = geometry.parity(stripe);
            next.send_all(vec![(parity, Op::Write { at, from })], OWN, move |failures| {
                // It has a wrong parity that cannot be corrected.
                for (role, e) in failures {
                    last.core.exclusion.out(&last.set, role, &e.to_string());
                }
                end(&last);
            });
        });
    }

    /// Step 6: unlocks first, so that the client's next request does not wait behind this one.
    fn end(self, result: Result<()>) {
        let Partial { lock, done, .. } = self;
        drop(lock);
        done(result);
    }
}
