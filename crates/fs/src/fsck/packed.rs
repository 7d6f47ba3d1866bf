//! The check of packed inode blocks: the one pass that looks at their check codes. Which files are in one that is damaged, the
//! report says by name, before repair takes names of lost inodes away.

use std::collections::HashMap;

use pram::Off;

use super::{Damage, Pass, Report};
use crate::attr::Ino;
use crate::error::Result;
use crate::inode::{profiles, spare, Block};
use crate::layout::{root, tag, PER_BLOCK};
use crate::node::Fs;

/// Paths of inodes in damaged blocks, by the block's number.
pub type Named = HashMap<u64, Vec<String>>;

/// The findings of one look at a packed block.
struct Seen {
    /// Objects with their bytes, or their errors.
    objects: Vec<(u64, Result<u64, String>)>,
    used: u16,
    /// It is not as it was packed.
    damaged: bool,
}

impl Pass<'_> {
    /// Marks the objects that packing needs beside the blocks.
    pub(super) fn mark_packing(&mut self) -> Result<()> {
        let memory = self.fs.memory();
        for (n, word) in profiles::lost(memory)? {
            self.problem(format!("the profile {n} of packed inodes is damaged"));
            self.note_dead(false, word, false);
        }
        for off in profiles::objects(memory)? {
            self.mark(off, tag::PACKING, &|| "profile of packed inodes".into());
        }
        let first = memory.root(root::SPARE);
        self.spares = spare::objects(memory)?;
        if self.spares.is_empty() && memory.load(first)? != 0 {
            self.problem("what is kept for unpacking inodes cannot be found".into());
            self.note_dead(false, first, false);
        }
        for off in self.spares.clone() {
            let marked = self.mark(off, tag::INODE_BLOCK, &|| "a block kept for unpacking inodes".into());
            self.note_dead(marked, first, false);
        }
        Ok(())
    }

    /// Was this plain block kept for unpacking, and marked so, and used since?
    pub(super) fn is_spare_no_more(&self, off: u64) -> Result<bool> {
        Ok(self.spares.contains(&off) && !spare::objects(self.fs.memory())?.contains(&off))
    }

    /// A packed block and its inodes.
    pub(super) fn packed_block(&mut self, block: u64, names: bool) -> Result<()> {
        let (fs, marks) = (self.fs, &self.marks);
        // Unpacking holds the lock of its first inode too.
        let seen = fs.session().read(block * PER_BLOCK, || -> Result<_> {
            let Block::Packed(off) = fs.table().block(block)? else { return Ok(None) };
            let mut seen = Seen { objects: vec![(off, marks.check(off, tag::PACKED))], used: 0, damaged: true };
            if let (Ok(_), Ok(Some(whole))) = (&seen.objects[0].1, fs.table().whole(off)) {
                (seen.damaged, seen.used) = (!whole.is_whole, fs.table().used_of(block)?);
            }
            match fs.memory().load(Off::new(off))? {
                0 => {}
                atimes => seen.objects.push((atimes, marks.check(atimes, tag::PACKING))),
            }
            Ok(Some(seen))
        })?;
        // It has become plain: new objects need no marks, and inodes that were locked are looked at below.
        let Some(mut seen) = seen else { return self.inodes_of(block, u16::MAX, names) };
        for (off, checked) in &seen.objects {
            if let Err(why) = checked.clone().and_then(|cap| self.marks.set(*off, cap)) {
                self.problem(format!("packed inode block {block}: {why}"));
                if !self.note_unallocated(*off, tag::PACKED) && !self.note_unallocated(*off, tag::PACKING) {
                    seen.damaged = true;
                }
            }
        }
        if seen.damaged {
            let (first, last) = (block * PER_BLOCK, (block + 1) * PER_BLOCK - 1);
            self.problem(format!("packed inode block {block}: inodes {first} to {last} are not what was packed"));
            self.damaged.push((first, Damage::Packed));
        }
        self.inodes_of(block, seen.used, names)
    }

    fn inodes_of(&mut self, block: u64, used: u16, names: bool) -> Result<()> {
        (0..PER_BLOCK).filter(|n| used >> n & 1 == 1).try_for_each(|n| self.inode(block * PER_BLOCK + n, names))
    }
}

impl Fs {
    /// Paths of inodes in blocks that this pass has found damaged.
    pub(super) fn name_packed(&self, pass: &Pass) -> Named {
        let damaged =
            pass.damaged.iter().filter(|(_, damage)| *damage == Damage::Packed).map(|(ino, _)| ino / PER_BLOCK);
        let mut named: Named = damaged.map(|block| (block, Vec::new())).collect();
        if named.is_empty() {
            return named;
        }
        let inodes: Vec<Ino> = named.keys().flat_map(|block| block * PER_BLOCK..(block + 1) * PER_BLOCK).collect();
        for (ino, path) in self.paths_of(inodes.into_iter()) {
            named.entry(ino / PER_BLOCK).or_default().push(path);
        }
        named
    }
}

/// The report, with the names of inodes in damaged blocks.
pub(super) fn with_names(mut report: Report, named: &Named) -> Report {
    if report.problems.is_empty() {
        return report;
    }
    let mut all: Vec<_> = named.iter().filter(|(_, paths)| !paths.is_empty()).collect();
    all.sort();
    for (block, paths) in all {
        let mut paths = paths.clone();
        paths.sort();
        report.problems.push(format!("packed inode block {block} holds {}", paths.join(", ")));
    }
    report
}
