//! Is the state that a crash left the one before or the one after the operation?

use std::ops::RangeInclusive;
use std::sync::Arc;

use conquest_fs::layout::tag;
use conquest_fs::Fs;
use pram::memory::TAGS;
use pram::{Mapping, MediumKind};

use crate::check::{check, empty_and_use, sweep, work_with};
use crate::crash::mapping;
use crate::fault::Faults;
use crate::history::{Boundary, History};
use crate::medium::Sabotage;
use crate::op::Op;
use crate::scenario::Scenario;
use crate::story::Teller;
use crate::tree::{difference, look, Snapshot};
use crate::world::{Setup, World};

/// Opens the memory that a crash left: this includes recovery.
pub(super) fn open(map: Mapping, kind: MediumKind) -> Result<World, String> {
    World::recover(kind, map, &Arc::default())
}

/// A scenario that has run: its history has two boundaries.
pub(super) struct Run {
    pub history: History,
    /// Bytes by tag before and after, swept.
    usage: [[u64; TAGS]; 2],
}

pub(super) fn run(s: &Scenario, kind: MediumKind, sabotage: Sabotage) -> Result<Run, String> {
    let setup = Setup { atime: s.atime, ..Setup::alone(kind, s.size) };
    let world = World::format_on(setup, &Faults::with(None), &|medium| sabotage.above(medium, s.size))?;
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    if s.modelled {
        teller.expect_all(s.full);
    }
    for op in &s.setup {
        _ = teller.op(op)?;
    }
    let mut failed = None;
    let history = teller.recording(|teller| {
        failed = teller.op(&s.op)?.err();
        Ok(())
    })?;
    let usage = |n: usize| {
        let boundary: &Boundary = &history.boundaries[n];
        let differs = difference(&boundary.seen()?.tree, &boundary.tree).filter(|_| s.modelled);
        differs.map_or(Ok(()), |d| Err(format!("differs from the model at instant {n}: {d}")))?;
        let world = open(mapping(&boundary.bytes), kind)?;
        check(&world.fs, false)?;
        sweep(&world.fs)
    };
    let usage = [usage(0)?, usage(1)?];
    let run = Run { history, usage };
    match failed.and_then(|e| Some((e, run.after().difference(run.before())?))) {
        Some((e, d)) => Err(format!("it failed with {e:?} and changed something: {d}")),
        None => Ok(run),
    }
}

/// Bytes of a page of a file.
const PAGE: usize = 4096;

impl Run {
    pub fn before(&self) -> &Snapshot {
        self.history.boundaries[0].seen().expect("it was seen")
    }

    pub fn after(&self) -> &Snapshot {
        self.history.boundaries[1].seen().expect("it was seen")
    }

    pub fn changes(&self) -> bool {
        self.before() != self.after()
    }

    /// Events of the operation.
    pub fn events(&self) -> usize {
        self.history.boundaries[1].at
    }

    /// Judges one crash state; true if it is the state after the operation.
    pub fn judge(&self, s: &Scenario, fs: &Fs, allowed: RangeInclusive<usize>, work: bool) -> Result<bool, String> {
        check(fs, false)?;
        let mut found = look(fs)?;
        if s.frees_later && found != *self.before() {
            self.free(&mut found);
        }
        // Within one tick of the clock, the state after an operation that only allocates memory looks the same.
        let expanded = s.expands && found != *self.after() && self.is_expanded(&found);
        if expanded {
            found = self.before().clone();
        }
        let is_after = match s.by_page && allowed == (0..=1) && self.is_between(&found) {
            true => false,
            false => self.which(&found, allowed)?,
        };
        let usage = sweep(fs)?;
        if !expanded {
            // Packing goes bucket by bucket and block by block, and which are packed is not visible.
            let in_pieces = s.by_page || s.op == Op::PackInodes;
            self.same_usage(&usage, &self.usage[usize::from(is_after)], in_pieces)?;
        }
        if work {
            if s.full {
                empty_and_use(fs)?;
            } else {
                work_with(fs, &found)?;
            }
        }
        Ok(is_after)
    }

    /// Is everything as before the operation, except that compressed content is plain?
    fn is_expanded(&self, found: &Snapshot) -> bool {
        let before = self.before();
        let mut as_before = found.clone();
        for (path, attr) in &mut as_before.attrs {
            let Some(old) = before.attrs.get(path) else { return false };
            if attr.blocks > old.blocks {
                attr.blocks = old.blocks;
            }
        }
        as_before == *before && found != before
    }

    /// Takes memory as freed that changed files may not have freed yet.
    fn free(&self, found: &mut Snapshot) {
        for (path, attr) in &mut found.attrs {
            let (Some(old), Some(new)) = (self.before().attrs.get(path), self.after().attrs.get(path)) else {
                continue;
            };
            if attr.mtime == new.mtime && (new.blocks..=old.blocks).contains(&attr.blocks) {
                attr.blocks = new.blocks;
            }
        }
    }

    /// Are the first pages of a file as after the operation, and everything else as before?
    fn is_between(&self, found: &Snapshot) -> bool {
        let (before, after) = (self.before(), self.after());
        let mut whole = found.clone();
        for (path, seen) in &mut whole.tree {
            let (Some(old), Some(new)) = (before.tree.get(path), after.tree.get(path)) else { return false };
            let (old, new, now) = (&old.content, &new.content, &seen.content);
            if now == new || old.len() != new.len() || now.len() != new.len() {
                continue;
            }
            let done = (PAGE..now.len()).step_by(PAGE).find(|done| now[*done..] == old[*done..]);
            if done.is_some_and(|done| now[..done] == new[..done]) {
                seen.content = new.clone();
                // The times are those of the last written page, and memory goes with the pages.
                if let (Some(attr), Some(first), Some(last)) =
                    (whole.attrs.get_mut(path), before.attrs.get(path), after.attrs.get(path))
                {
                    if !(first.blocks.min(last.blocks)..=first.blocks.max(last.blocks)).contains(&attr.blocks) {
                        return false;
                    }
                    (attr.mtime, attr.ctime, attr.blocks) = (last.mtime, last.ctime, last.blocks);
                }
            }
        }
        whole == *after && found != after
    }

    /// True if this is visible after the operation.
    pub fn which(&self, found: &Snapshot, allowed: RangeInclusive<usize>) -> Result<bool, String> {
        // An operation that changes nothing has not happened.
        if allowed.contains(&0) && found == self.before() {
            return Ok(false);
        }
        self.history.which_seen(allowed, found).map(|n| n == 1)
    }

    /// Tables that grow outside transactions may have grown already, and an operation in pieces may be done in part;
    /// everything else is as without a crash.
    fn same_usage(&self, found: &[u64; TAGS], wanted: &[u64; TAGS], in_pieces: bool) -> Result<(), String> {
        // Inodes that are about to change may already be plain.
        let tables =
            [tag::INODE_TABLE, tag::INODE_BLOCK, tag::PACKED, tag::PACKING, tag::PERM].map(|t| usize::from(t.0));
        let [before, after] = &self.usage;
        let packs = [before, after].iter().any(|usage| usage[usize::from(tag::PACKED.0)] > 0);
        for (t, bytes) in found.iter().enumerate() {
            let (low, high) = (before[t].min(after[t]), before[t].max(after[t]));
            // A plain block of packed inodes may not have been reserved yet for unpacking.
            let low = if t == usize::from(tag::INODE_BLOCK.0) && packs { 0 } else { low };
            let right = match in_pieces || tables.contains(&t) {
                true => (low..=high).contains(bytes),
                false => *bytes == wanted[t],
            };
            if !right {
                let name = tag::NAMES.get(t).unwrap_or(&"?");
                return Err(format!("{bytes} bytes of {name}, should be {}", wanted[t]));
            }
        }
        Ok(())
    }
}
