//! The check of everything that the memory holds, offline or live, and mark-and-sweep.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the check, the report |
//! | [`pass`] | one pass over the pool |
//! | [`findings`] | what one look at an inode finds |
//! | [`unreadable`] | byte ranges of files that no disk has any more |
//! | [`packed`] | blocks of packed inodes |
//! | [`triples`] | freeing triples that no inode names |
//! | [`mark`] | objects with references; the sweep of those without |
//! | [`repair`] | repairing the damage that the check found |
//! | `lost_found` | names for inodes that have none |
//!
//! A check of a live pool first runs beside the others, inode by inode. An error that it finds may have been
//! a change under way, so if it finds anything it holds up all operations and looks again: a second or so for a million
//! files.

mod findings;
mod lost_found;
pub(crate) mod mark;
mod packed;
mod pass;
mod repair;
mod triples;
mod unreadable;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::inode;
use crate::layout::MAX_INODES;
use crate::node::Fs;
use ilfs::table::Needs;
use mark::Marks;
pub use unreadable::{Look, Lost};

/// The results of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub inodes: u64,
    pub directories: u64,
    pub entries: u64,
    /// Bytes in live objects.
    pub bytes: u64,
    /// Objects and bytes that nothing refers to: left by a crash, harmless, swept by `repair`.
    pub leaked_objects: u64,
    pub leaked_bytes: u64,
    /// Disk slots that a process was discarding when it died: they are in no list; `repair` frees them.
    pub leaked_slots: u64,
    /// Inodes without a name or reference: left by a crash, of open unlinked files.
    pub orphans: u64,
    /// Truncations of large files whose memory is not all free yet: under way, or left by a crash.
    pub truncations: u64,
    /// Damage: each a sentence with the inode or offset. Empty: the pool is clean.
    pub problems: Vec<String>,
    /// How many of them tell of segments that are gone, so that `repair` has nothing to do about them: `lost` has their content by file.
    pub losses: usize,
    /// Content that cannot be read any more, as its place on disk is gone: the segment was used again, or the disk is not there.
    pub lost: Vec<Lost>,
    /// The repairs of them.
    pub repaired: Vec<String>,
}

/// Problems reported in full; the rest are counted.
const REPORTED: usize = 1000;

/// The collection of one pass over the pool.
struct Pass<'a> {
    fs: &'a Fs,
    marks: Marks<'a>,
    report: Report,
    unreported: u64,
    unreported_losses: u64,
    /// By inode number: names found, `kind` in the names, the inode's own fields.
    names: Vec<u32>,
    named_kind: Vec<u8>,
    /// Inodes to which names give different kinds: inode, directory, kind.
    disputed: Vec<(Ino, Ino, u8)>,
    inodes: Vec<Brief>,
    /// Damaged inodes, for repair.
    damaged: Vec<(Ino, Damage)>,
    /// Objects that something refers to and that count as free.
    unallocated: Vec<u64>,
    /// Chunks of the heap whose entry makes no sense.
    lost_chunks: Vec<u64>,
    orphans: Vec<Ino>,
    truncated: Vec<Ino>,
    /// By slot: the inodes that an operation there has reserved.
    reserved: BTreeMap<u32, Vec<Ino>>,
    /// Words of tables that lead nowhere.
    dead: Vec<DeadWord>,
    /// Blocks that were kept for unpacking when this pass began.
    spares: Vec<u64>,
    /// The disk room that files need.
    needs: Needs,
}

/// A word of a table that leads to no object, or to one with another owner.
#[derive(Clone, Copy, Debug)]
struct DeadWord {
    at: pram::Off<u64>,
    /// Of the permission table, which processes cache.
    perms: bool,
}

/// The fields of an inode for the comparison with names.
#[derive(Clone, Copy, Default)]
struct Brief {
    /// 0: free.
    kind: u8,
    nlink: u32,
    subdirs: u32,
    /// [`NOWHERE`] if no inode can have that number.
    parent: u32,
    named_in: u32,
    /// A directory that says that it has entries.
    filled: bool,
}

const NOWHERE: u32 = u32::MAX;
const _: () = assert!(MAX_INODES <= NOWHERE as u64);

/// The damage of an inode, for the repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Damage {
    Content,
    Xattr,
    /// Owner and mode, or their type bits.
    Permissions,
    /// Settings that do not exist.
    Settings,
    Links,
    Unnamed,
    Parent,
    /// The inode table refers to no block where this inode is the first.
    Table,
    /// A directory with more than one name.
    Names,
    /// A directory below itself.
    Cycle,
    /// A packed block, of which this inode is the first, is not as it was packed.
    Packed,
    /// It cannot be read at all, or its type is in doubt.
    Inode,
    /// A directory that holds names of inodes that do not exist, or of another kind.
    Entries,
    /// Of the lists of dictionaries; no inode's.
    Dictionaries,
}

impl Fs {
    /// Checks everything; with `repair`, repairs the damage and sweeps leaks. Others may be working on
    /// the pool meanwhile. `progress(done, total)` in inodes.
    pub fn fsck(&self, repair: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        self.fsck_with(repair, Look::Content, progress)
    }

    /// The same, with the content of large files looked at as is said.
    pub fn fsck_with(&self, repair: bool, look: Look, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        let mut report = self.check_and_repair(repair, progress)?;
        report.lost = self.lost_telling(look, &mut |_, _| {})?;
        Ok(report)
    }

    fn check_and_repair(&self, repair: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        let mut pass = self.check_pass(Marks::begin(self.session())?, progress)?;
        // Before repair takes names away.
        let named = self.name_packed(&pass);
        if pass.report.problems.is_empty() {
            if repair {
                pass.sweep()?;
                self.adopt_slots()?;
            }
            return Ok(pass.report);
        }
        // Something looked wrong: look again with all operations held up. Marking stays ours, so that no
        // process that is held up holds it.
        let mut marks = pass.marks;
        let frozen = self.session().freeze()?;
        marks.reset();
        let pass = self.check_pass(marks, progress)?;
        if !repair || pass.report.problems.is_empty() {
            return Ok(packed::with_names(pass.report, &named));
        }
        let mut gone = Vec::new();
        let repaired = repair::repair(self, pass, &frozen, &mut gone);
        // The watcher may have to wait for operations before it can take notice.
        drop(frozen);
        self.tell_repaired(&gone);
        let report = repaired?;
        self.adopt_slots()?;
        Ok(packed::with_names(report, &named))
    }

    /// Discards the disk slots that a dead process was discarding.
    fn adopt_slots(&self) -> Result<()> {
        if let Some(union) = self.union() {
            union.log().adopt_orphans(self.session())?;
        }
        Ok(())
    }

    /// Frees the leaks of crashes, while others work on the pool. Returns objects and bytes freed.
    ///
    /// Objects of a damaged inode look like leaks, so a damaged pool is not swept: `fsck --repair`
    /// saves the readable ones first.
    pub fn sweep(&self) -> Result<(u64, u64)> {
        let rt = self.session().runtime();
        // 1. Its death from now on is followed by a sweep.
        let mut pass = Pass::begin(self, Marks::begin(self.session())?);
        // 2. Before looking: a process that dies meanwhile leaves objects that this may have passed already.
        rt.set_leaks_pending(false);
        let swept = self.try_sweep(&mut pass);
        // 3. Before the marks end, and with them 1.
        if swept.is_err() {
            rt.set_leaks_pending(true);
        }
        swept
    }

    fn try_sweep(&self, pass: &mut Pass) -> Result<(u64, u64)> {
        pass.mark_tables()?;
        pass.inodes(&mut |_, _| {}, false)?;
        if let Some(first) = pass.report.problems.first() {
            return Err(Error::Corrupt(format!("{first}; nothing was swept")));
        }
        pass.sweep()?;
        // Not now: a disk may take its time, and a sweep has to see which other processes die.
        if let Some(union) = self.union() {
            union.log().look_for_orphans();
        }
        self.give_back_marked()?;
        Ok((pass.report.leaked_objects, pass.report.leaked_bytes))
    }

    /// Gives empty inode blocks back to the heap, while others work on the pool; returns how many.
    pub fn give_back(&self) -> Result<u64> {
        // Sweeps and checks must not see blocks go.
        let _marks = Marks::begin(self.session())?;
        self.give_back_marked()
    }

    fn give_back_marked(&self) -> Result<u64> {
        inode::give_back(self.session(), self.table(), self.inode_allocator())
    }

    fn check_pass<'a>(&'a self, marks: Marks<'a>, progress: &mut dyn FnMut(u64, u64)) -> Result<Pass<'a>> {
        let mut pass = Pass::begin(self, marks);
        pass.mark_tables()?;
        pass.inodes(progress, true)?;
        pass.compare();
        pass.chunks()?;
        pass.log()?;
        pass.finish()?;
        Ok(pass)
    }
}
