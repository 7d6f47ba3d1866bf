//! Putting a member back: its content is computed from all the others, stripe by stripe.
//!
//! Content or parity, it is the same sum. Stripes are locked while they are put back. Before the member counts as
//! whole, all stripes are locked and all intents are retired: it has no records of older intents, and may have outdated
//! ones of its own.

use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::Arc;

use super::{Array, RangeLock};
use crate::device::{Device, Op};
use crate::error::Result;
use crate::label::Uuid;
use crate::region::rebuild::{begin, finish, note, reached, run, Going, NOTED};

impl Array {
    /// Reserves the log of intents: a write must not fail for lack of storage there.
    pub fn reserve_log(&self, role: usize) -> Result<()> {
        run(&self.set, role, Op::Reserve(0..self.geometry().data_at())).result
    }

    pub fn restore(
        &self,
        role: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        live: &mut dyn FnMut() -> Vec<Range<u64>>,
        going: &mut Going<'_>,
    ) -> Result<bool> {
        let can_miss = self.set.can_miss(&self.set.states(), &[role]);
        if !can_miss || self.set.tolerated().is_none() {
            return Err(self.gone(&format!("rebuilding disk {}", role + 1)));
        }
        let Some(from) = begin(&self.set, role, spare)? else { return Ok(true) };
        self.reserve_log(role)?;
        let (geometry, stripes) = (*self.geometry(), self.stripes_of_live(&live(), from));
        let mut left: u64 = stripes.iter().map(|range| (range.end - range.start) * geometry.chunk).sum();
        let mut noted = from;
        for range in stripes {
            let mut at = range.start;
            while at < range.end {
                let reached = geometry.chunks(at..at).start;
                if !(going.go_on)(left) {
                    note(&self.set, role, reached)?;
                    return Ok(false);
                }
                if reached.saturating_sub(noted) >= NOTED {
                    note(&self.set, role, reached)?;
                    noted = reached;
                }
                let end = range.end.min(at + (going.piece() / geometry.chunk).max(1));
                going.copy((end - at) * geometry.chunk, || self.restore_stripes(role, at..end))?;
                (left, at) = (left - (end - at) * geometry.chunk, end);
            }
        }
        self.make_whole(role)?;
        Ok(true)
    }

    /// The stripes with live content that a member with `rebuilt` bytes of its share still lacks.
    fn stripes_of_live(&self, live: &[Range<u64>], rebuilt: u64) -> Vec<Range<u64>> {
        let geometry = self.geometry();
        let from = rebuilt.saturating_sub(geometry.data_at()) / geometry.chunk;
        let mut around: Vec<Range<u64>> =
            live.iter().filter(|range| !range.is_empty()).map(|range| geometry.around(range)).collect();
        around.sort_by_key(|range| range.start);
        let mut next = from;
        let mut stripes: Vec<Range<u64>> = Vec::new();
        for range in around {
            let rest = range.start.max(next)..range.end;
            if rest.is_empty() {
                continue;
            }
            next = rest.end;
            match stripes.last_mut().filter(|last| last.end == rest.start) {
                Some(last) => last.end = rest.end,
                None => stripes.push(rest),
            }
        }
        stripes
    }

    fn lock(&self, stripes: Range<u64>) -> Result<RangeLock> {
        self.core.range_locks.wait(stripes).unwrap_or_else(|| Err(self.gone("waiting for a range lock")))
    }

    fn restore_stripes(&self, role: usize, stripes: Range<u64>) -> Result<()> {
        let _lock = self.lock(stripes.clone())?;
        let range = self.geometry().chunks(stripes);
        run(&self.set, role, Op::Reserve(range.clone())).result?;
        self.even(role, range.clone())?;
        reached(&self.set, role, range.end)
    }

    fn make_whole(&self, role: usize) -> Result<()> {
        let all = self.core.range_locks.wait_for_all(0..self.geometry().stripes(self.set.share));
        let _lock = all.unwrap_or_else(|| Err(self.gone("waiting for a range lock")))?;
        let (send, retired) = channel();
        self.retire(Some(role), move |result| {
            // The receiver waits for it.
            let _ = send.send(result);
        });
        retired.recv().unwrap_or_else(|_| Err(self.gone("retiring intents")))?;
        finish(&self.set, role)
    }
}
