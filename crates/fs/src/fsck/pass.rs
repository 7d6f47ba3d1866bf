//! One pass over the pool: tables, inodes, names; the errors that it finds, and unreferenced objects.

use std::collections::BTreeMap;

use ilfs::table::{self, Needs};

use super::findings::Findings;
use super::mark::{self, Marks};
use super::{Brief, Damage, DeadWord, Pass, Report, NOWHERE, REPORTED};
use crate::attr::{Ino, Kind};
use crate::error::Result;
use crate::file;
use crate::inode::{self, reserver, Block};
use crate::layout::{tag, RawInode, INODE, PERM_CHUNKS, PER_BLOCK, TABLE};
use crate::node::{content_of, dictionaries, Fs};
use crate::ROOT;

impl<'a> Pass<'a> {
    pub(super) fn begin(fs: &'a Fs, marks: Marks<'a>) -> Pass<'a> {
        Pass {
            fs,
            marks,
            report: Report::default(),
            unreported: 0,
            unreported_losses: 0,
            names: Vec::new(),
            named_kind: Vec::new(),
            disputed: Vec::new(),
            inodes: Vec::new(),
            damaged: Vec::new(),
            unallocated: Vec::new(),
            lost_chunks: Vec::new(),
            orphans: Vec::new(),
            truncated: Vec::new(),
            reserved: BTreeMap::new(),
            dead: Vec::new(),
            spares: Vec::new(),
            needs: Needs::default(),
        }
    }

    pub(super) fn problem(&mut self, text: String) {
        if self.report.problems.len() < REPORTED {
            self.report.problems.push(text);
        } else {
            self.unreported += 1;
        }
    }

    /// A problem about which nothing can be done.
    pub(super) fn loss(&mut self, text: String) {
        match self.report.problems.len() < REPORTED {
            true => self.report.losses += 1,
            false => self.unreported_losses += 1,
        }
        self.problem(text);
    }

    pub(super) fn mark(&mut self, off: u64, tag: pram::Tag, what: &dyn Fn() -> String) -> bool {
        let marked = self.marks.mark(off, tag);
        if let Err(why) = &marked {
            let text = format!("{}: {why}", what());
            self.problem(text);
            if self.note_unallocated(off, tag) {
                return true;
            }
        }
        marked.is_ok()
    }

    /// Notes an object of the right type that the heap takes for free; false if it is something else.
    pub(super) fn note_unallocated(&mut self, off: u64, tag: pram::Tag) -> bool {
        let memory = self.fs.memory();
        let lost = memory.resolve(off, tag).is_ok() && matches!(memory.is_allocated(off), Ok(false));
        if lost {
            self.unallocated.push(off);
        }
        lost
    }

    /// Marks the objects above inodes: superblock, permission table, the levels of the inode table.
    pub(super) fn mark_tables(&mut self) -> Result<()> {
        let memory = self.fs.memory();
        let super_at = memory.load(memory.root(crate::layout::root::SUPER))?;
        self.mark(super_at, tag::SUPER, &|| "superblock".into());
        let table = self.fs.table();
        self.mark(table.top.raw(), tag::INODE_TABLE, &|| "inode table".into());
        for n in 0..TABLE {
            let level2 = memory.load(table.top.index(n))?;
            if level2 != 0 {
                let marked = self.mark(level2, tag::INODE_TABLE, &|| format!("inode table {n}"));
                self.note_dead(marked, table.top.index(n), false);
                if memory.resolve(level2, tag::INODE_TABLE).is_err() {
                    self.damaged.push((n * TABLE * PER_BLOCK, Damage::Table));
                }
            }
        }
        match ilfs::Log::objects(self.fs.session()) {
            Ok(objects) => objects.into_iter().for_each(|off| {
                self.mark(off, tag::LOG, &|| "segment table".into());
            }),
            Err(e) => self.problem(format!("segment table: {e}")),
        }
        for text in self.marks.mark_block_tables()? {
            self.problem(text);
        }
        self.mark_packing()?;
        self.dictionaries()?;
        let perms = self.fs.super_block().perms;
        self.mark(perms.raw(), tag::PERM, &|| "permission table".into());
        for n in 0..PERM_CHUNKS {
            let chunk = memory.load(perms.index(n))?;
            if chunk != 0 {
                let marked = self.mark(chunk, tag::PERM, &|| format!("permission chunk {n}"));
                self.note_dead(marked, perms.index(n), true);
            }
        }
        Ok(())
    }

    /// The dictionaries of cold content.
    fn dictionaries(&mut self) -> Result<()> {
        let found = dictionaries::survey(self.fs.session())?;
        for off in found.objects {
            if !self.mark(off, tag::DICTIONARY, &|| "dictionary".into()) {
                self.damaged.push((ROOT, Damage::Dictionaries));
            }
        }
        for problem in found.problems {
            self.problem(problem);
            self.damaged.push((ROOT, Damage::Dictionaries));
        }
        Ok(())
    }

    pub(super) fn note_dead(&mut self, alive: bool, at: pram::Off<u64>, perms: bool) {
        if !alive {
            self.dead.push(DeadWord { at, perms });
        }
    }

    /// Goes over all inodes; with `names`, over the entries of directories too.
    pub(super) fn inodes(&mut self, progress: &mut dyn FnMut(u64, u64), names: bool) -> Result<()> {
        let memory = self.fs.memory();
        let table = self.fs.table();
        let top = inode::max_inodes(memory.size());
        for n in 0..top.div_ceil(TABLE * PER_BLOCK) {
            // `mark_tables` has reported references that lead nowhere.
            if !matches!(table.block_word(n * TABLE), Ok(Some(_))) {
                continue;
            }
            for block in n * TABLE..(n + 1) * TABLE {
                match table.block_outside(block) {
                    Ok(Block::None) => {}
                    Ok(Block::Packed(_)) => self.packed_block(block, names)?,
                    Ok(Block::Plain(off)) => {
                        let marked = self.is_spare_no_more(off)?
                            || self.mark(off, tag::INODE_BLOCK, &|| format!("inode block {block}"));
                        if let (false, Some(word)) = (marked, table.block_word(block)?) {
                            self.note_dead(false, word, false);
                            continue;
                        }
                        self.block(block, off, names)?;
                    }
                    Err(e) => {
                        self.problem(format!("inode block {block}: {e}"));
                        self.damaged.push((block * PER_BLOCK, Damage::Table));
                    }
                }
            }
            progress(((n + 1) * TABLE * PER_BLOCK).min(top), top);
        }
        Ok(())
    }

    fn block(&mut self, block: u64, off: u64, names: bool) -> Result<()> {
        let lengths: [u8; PER_BLOCK as usize] = self.fs.memory().read(pram::Off::new(off))?;
        for n in 0..PER_BLOCK {
            let ino = block * PER_BLOCK + n;
            match lengths[n as usize] {
                0 => {}
                l if u64::from(l) == INODE => self.inode(ino, names)?,
                l => match reserver(l) {
                    Some(slot) => self.reserved.entry(slot).or_default().push(ino),
                    None => {
                        self.problem(format!("inode {ino}: impossible length {l}"));
                        self.damaged.push((ino, Damage::Inode));
                    }
                },
            }
        }
        Ok(())
    }

    pub(super) fn inode(&mut self, ino: Ino, names: bool) -> Result<()> {
        let mut seen = Findings::default();
        let (fs, marks) = (self.fs, &self.marks);
        let read = fs.session().read(ino, || -> Result<Option<RawInode>> {
            seen.clear();
            let Some(raw) = fs.table().get(ino)? else { return Ok(None) };
            seen.look(fs, ino, &raw, names);
            // Inside the section too: an instant later another process may have freed them.
            seen.check_objects(|off, tag| marks.check(off, tag));
            Ok(Some(raw))
        });
        let raw = match read {
            Ok(Some(raw)) => raw,
            Ok(None) => return Ok(()),
            Err(e) => {
                self.problem(format!("inode {ino}: {e}"));
                return Ok(());
            }
        };
        self.report.inodes += 1;
        if names && seen.problems.is_empty() && raw.kind == Kind::Regular as u8 {
            self.decode(ino, &raw, &mut seen);
        }
        for (damage, why) in std::mem::take(&mut seen.problems) {
            self.problem(format!("inode {ino}: {why}"));
            self.damaged.push((ino, damage));
        }
        for (off, tag, cap) in &seen.objects {
            let marked = cap.as_ref().map_err(String::clone).and_then(|cap| self.marks.set(*off, *cap));
            if let Err(why) = marked {
                self.problem(format!("inode {ino}: {why}"));
                self.damaged.push((ino, if *tag == tag::XATTR { Damage::Xattr } else { Damage::Content }));
                self.note_unallocated(*off, *tag);
            }
        }
        if raw.nlink == 0 && (ino == ROOT || is_filled(&raw)) {
            // No crash leaves that; with the names known, `compare_links` tells it.
            if !names {
                self.problem(format!("directory {ino} has no links"));
            }
        } else if raw.nlink == 0 && !fs.session().is_referenced(ino) {
            self.orphans.push(ino);
            self.report.orphans += 1;
        } else if raw.kind == Kind::Regular as u8 && content_of(ino, &raw).is_cut() {
            self.truncated.push(ino);
            self.report.truncations += 1;
        }
        self.needs.add_all(&seen.needs);
        self.note(ino, &raw, &seen);
        Ok(())
    }

    /// Compressed content decodes, outside of the section.
    fn decode(&self, ino: Ino, raw: &RawInode, seen: &mut Findings) {
        if file::is_compressed(&content_of(ino, raw)) {
            if let Err(e) = self.fs.check_compressed(ino) {
                seen.problems.push((Damage::Content, e.to_string()));
            }
        }
    }

    fn note(&mut self, ino: Ino, raw: &RawInode, seen: &Findings) {
        let grow = |len: usize, at: u64| (at as usize >= len).then(|| (at as usize + 1).next_power_of_two());
        if let Some(n) = grow(self.inodes.len(), ino) {
            self.inodes.resize(n, Brief::default());
        }
        let is_dir = raw.is_dir();
        let brief = &mut self.inodes[ino as usize];
        brief.kind = raw.kind;
        brief.nlink = raw.nlink;
        brief.parent = if is_dir { u32::try_from(raw.extra).unwrap_or(NOWHERE) } else { 0 };
        brief.filled = is_filled(raw);
        self.report.directories += u64::from(is_dir);
        self.report.entries += seen.entries.len() as u64;
        let mut subdirs = 0;
        for (target, kind) in &seen.entries {
            // The number of counts is bounded by the blocks that exist, not by a damaged entry.
            let known = (*target as usize) < self.inodes.len().min(self.names.len());
            if *target == 0
                || (!known && !self.fs.table().block_outside(*target / PER_BLOCK).is_ok_and(Block::is_there))
            {
                self.problem(format!("directory {ino}: an entry refers to inode {target}, which does not exist"));
                self.damaged.push((ino, Damage::Entries));
                continue;
            }
            if let Some(n) = grow(self.names.len(), *target) {
                self.names.resize(n, 0);
                self.named_kind.resize(n, 0);
            }
            let t = *target as usize;
            if self.names[t] > 0 && self.named_kind[t] != *kind {
                let first = self.inodes.get(t).map_or(0, |b| u64::from(b.named_in));
                self.disputed.push((*target, first, self.named_kind[t]));
                self.disputed.push((*target, ino, *kind));
            }
            self.names[t] += 1;
            self.named_kind[t] = *kind;
            if *kind == Kind::Directory as u8 {
                subdirs += 1;
                if let Some(n) = grow(self.inodes.len(), *target) {
                    self.inodes.resize(n, Brief::default());
                }
                self.inodes[t].named_in = ino as u32;
            } else if self.inodes.get(t).is_none_or(|b| b.named_in == 0) {
                if let Some(n) = grow(self.inodes.len(), *target) {
                    self.inodes.resize(n, Brief::default());
                }
                self.inodes[t].named_in = ino as u32;
            }
        }
        self.inodes[ino as usize].subdirs = subdirs;
    }

    /// Names against inodes: link counts, kinds, parents.
    pub(super) fn compare(&mut self) {
        for (ino, dir, kind) in std::mem::take(&mut self.disputed) {
            if self.inodes.get(ino as usize).is_some_and(|b| b.kind != 0 && b.kind != kind) {
                self.problem(format!("directory {dir}: an entry gives inode {ino} another type than other entries do"));
                self.damaged.push((dir, Damage::Entries));
            }
        }
        if self.inodes.get(ROOT as usize).is_none_or(|b| b.kind != Kind::Directory as u8) {
            self.problem("there is no root directory".into());
            self.damaged.push((ROOT, Damage::Inode));
        }
        for ino in 1..self.inodes.len().max(self.names.len()) as u64 {
            let b = self.inodes.get(ino as usize).copied().unwrap_or_default();
            let names = self.names.get(ino as usize).copied().unwrap_or(0);
            let kind = self.named_kind.get(ino as usize).copied().unwrap_or(0);
            if b.kind == 0 {
                if names > 0 {
                    self.problem(format!("directory {}: an entry refers to inode {ino}, which is free", b.named_in));
                    self.damaged.push((u64::from(b.named_in), Damage::Entries));
                }
                continue;
            }
            if names > 0 && kind != b.kind {
                self.problem(format!("directory {}: an entry gives inode {ino} another type", b.named_in));
                self.damaged.push((u64::from(b.named_in), Damage::Entries));
            }
            self.compare_links(ino, b, names);
        }
        self.cycles();
    }

    fn compare_links(&mut self, ino: Ino, b: Brief, names: u32) {
        let is_dir = b.kind == Kind::Directory as u8;
        if b.nlink > 0 && names == 0 && ino != ROOT {
            self.problem(format!("inode {ino} has no name but {} links", b.nlink));
            self.damaged.push((ino, Damage::Unnamed));
            return;
        }
        if b.filled && names == 0 && ino != ROOT {
            self.problem(format!("directory {ino} has no name but entries"));
            self.damaged.push((ino, Damage::Unnamed));
            return;
        }
        let expected = match is_dir {
            true if b.nlink == 0 && names == 0 && ino != ROOT => 0,
            true => 2 + b.subdirs,
            false => names,
        };
        if b.nlink != expected {
            self.problem(format!("inode {ino} has {} links, should have {expected}", b.nlink));
            self.damaged.push((ino, Damage::Links));
        }
        if is_dir && ino == ROOT && u64::from(b.parent) != ROOT {
            self.problem("the root directory has a parent".into());
            self.damaged.push((ino, Damage::Parent));
        }
        if is_dir && ino != ROOT && names > 0 && b.parent != b.named_in {
            self.problem(format!("directory {ino} takes {} for its parent, is named in {}", b.parent, b.named_in));
            self.damaged.push((ino, Damage::Parent));
        }
        if is_dir && names > 1 {
            self.problem(format!("directory {ino} has {names} names"));
            self.damaged.push((ino, Damage::Names));
        }
        if ino == ROOT && names > 0 {
            self.problem("the root directory has a name".into());
            self.damaged.push((ino, Damage::Names));
        }
    }

    /// Directories that lead to themselves and not to the root: each would otherwise look right.
    fn cycles(&mut self) {
        // On the way up now; known to lead to the root, or reported.
        const WALKING: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![0u8; self.inodes.len()];
        for start in 2..self.inodes.len() {
            let mut way = Vec::new();
            let mut at = start;
            while at > ROOT as usize && state.get(at) == Some(&0) && self.inodes[at].kind == Kind::Directory as u8 {
                state[at] = WALKING;
                way.push(at);
                at = self.inodes[at].named_in as usize;
            }
            if state.get(at) == Some(&WALKING) {
                self.problem(format!("directory {at} is below itself"));
                self.damaged.push((at as Ino, Damage::Cycle));
            }
            way.into_iter().for_each(|n| state[n] = DONE);
        }
    }

    /// The table of chunks itself.
    pub(super) fn chunks(&mut self) -> Result<()> {
        for (lost, text) in mark::check_chunks(self.fs.memory())? {
            self.problem(text);
            self.lost_chunks.extend(lost);
        }
        Ok(())
    }

    /// Compares the log of segments with the files.
    pub(super) fn log(&mut self) -> Result<()> {
        let session = self.fs.session();
        let found = session.read(ilfs::KEY, || {
            let mut found = table::compare(session.memory(), &self.needs)?;
            found.wrong.splice(0..0, table::check(session.memory())?);
            Ok::<_, ilfs::Error>(found)
        })?;
        found.wrong.into_iter().for_each(|text| self.problem(text));
        if let Some(union) = self.fs.union() {
            self.report.leaked_slots = union.log().orphans(session)?.len() as u64;
        }
        found.lost.into_iter().for_each(|text| self.loss(text));
        Ok(())
    }

    /// Counts objects without a reference.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.fs.session().drain()?;
        let (objects, bytes) = self.marks.unmarked(None)?;
        self.report.leaked_objects = objects;
        self.report.leaked_bytes = bytes;
        self.report.bytes = self.marks.bytes();
        if self.unreported > 0 {
            let more = format!("and {} more", self.unreported);
            self.report.problems.push(more);
            self.report.losses += usize::from(self.unreported == self.unreported_losses);
        }
        Ok(())
    }

    /// Frees everything without a reference: inodes first, then objects.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let fs = self.fs;
        for ino in std::mem::take(&mut self.orphans) {
            let mut op = fs.session().begin()?;
            op.lock(&[ino])?;
            if let Ok(node) = fs.node(ino) {
                if node.raw.nlink == 0 && !fs.session().is_referenced(ino) {
                    fs.end(&mut op, node)?;
                }
            }
        }
        for ino in std::mem::take(&mut self.truncated) {
            let mut op = fs.session().begin()?;
            op.lock(&[ino])?;
            if let Some(mut node) = fs.node(ino).ok().filter(|n| n.raw.kind == Kind::Regular as u8) {
                fs.cut_off(&mut op, &mut node)?;
            }
        }
        // Operations that were under way have ended: their frees are done, and their reservations are in use.
        fs.session().drain()?;
        for (slot, reserved) in std::mem::take(&mut self.reserved) {
            // No reservation of this slot is in use while this pass has it.
            let there = slot < fs.session().runtime().slots();
            let _op = if there { fs.session().begin_in(slot)? } else { fs.session().begin()? };
            for ino in reserved {
                if let Some(place) = fs.table().place(ino)? {
                    fs.memory().install_byte(place.length, inode::reserved_by(slot), 0)?;
                }
            }
        }
        let (objects, bytes) = self.marks.unmarked(Some(&|| fs.session().begin()))?;
        self.report.leaked_objects = objects;
        self.report.leaked_bytes = bytes;
        Ok(())
    }
}

/// Is it a directory that says that it has entries? Such a one cannot be removed.
fn is_filled(raw: &RawInode) -> bool {
    raw.is_dir() && raw.size > 0
}
