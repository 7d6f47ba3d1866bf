//! Repairing the damage that the check found, while all operations are held up. No readable content is thrown away: inodes that
//! have lost their names go to `lost+found`, unreadable parts are cut off and named in the report.

use std::collections::HashSet;

use pram::runtime::LOCKS;
use pram::session::Frozen;
use pram::{Op, Session, Tx};
use zerocopy::FromZeros;

use super::lost_found::to_lost_found;
use super::{Damage, DeadWord, Pass, Report};
use crate::attr::{Ino, Kind, SYMLINK_MAX};
use crate::dir::{self, Dir, Entry};
use crate::error::{Error, Result};
use crate::file;
use crate::inode;
use crate::inode::Block;
use crate::layout::{RawInode, RawPerm, INODE, PER_BLOCK};
use crate::node::{Fs, Node};
use crate::retry::{self, Provides};
use crate::ROOT;
use ilfs::table::{self, Needs};

/// Repairs until a pass finds nothing more, at most this often: mending one thing uncovers another.
const ROUNDS: usize = 16;

/// An inode to be mended, by its names and other fields.
#[derive(Clone, Copy)]
struct Names {
    names: u32,
    /// The type in the names; 0 without any.
    kind: u8,
    subdirs: u32,
    /// A directory that names it.
    named_in: Ino,
}

/// Names that are no more, or lead elsewhere.
pub type Gone = Vec<(Ino, Vec<u8>)>;

pub fn repair(fs: &Fs, first: Pass, frozen: &Frozen, gone: &mut Gone) -> Result<Report> {
    let mut repaired = Vec::new();
    let problems = first.report.problems.clone();
    let mut pass = first;
    let mut failed = HashSet::new();
    for _ in 0..ROUNDS {
        // It is unknown whether the reference or the bitmap is damaged. The reference is believed: repairs
        // allocate, and would overwrite the object that it leads to.
        let unallocated = std::mem::take(&mut pass.unallocated);
        for off in &unallocated {
            fs.session().heap().adopt(*off)?;
            repaired.push(format!("object {off:#x} counted as free, taken"));
        }
        // Once nothing else is wrong nothing refers to these any more, and their memory can be used again.
        if pass.report.problems.len() == pass.lost_chunks.len() {
            for chunk in std::mem::take(&mut pass.lost_chunks) {
                fs.session().heap().reset_chunk(chunk)?;
                repaired.push(format!("chunk {chunk} of the heap: what it held is unknown, freed"));
            }
        }
        if !unallocated.is_empty() {
            pass.damaged.clear();
        }
        let (damaged, next) = next_of(std::mem::take(&mut pass.damaged), &failed);
        let cleared = clear_dead(fs, std::mem::take(&mut pass.dead))?;
        let torn = !cleared.is_empty() || damaged.iter().any(|(_, d)| *d == Damage::Table);
        repaired.extend(cleared);
        for (ino, damage) in damaged {
            match mend_plain(fs, frozen, ino, damage, names_of(&pass, ino), gone) {
                Ok(text) => repaired.push(text),
                Err(e) => {
                    failed.insert((ino, damage));
                    repaired.push(format!("inode {ino}: could not be repaired: {e}"));
                }
            }
        }
        if torn {
            tear_looks(frozen)?;
        }
        // Counts of the disks mean nothing before the files are repaired.
        if next.is_none() {
            repaired.extend(mend_log(&pass.needs, frozen)?);
        }
        let mut marks = pass.marks;
        marks.reset();
        pass = fs.check_pass(marks, &mut |_, _| {})?;
        if pass.report.problems.is_empty() {
            break;
        }
    }
    // Damage that remains may refer to objects that look like leaks.
    if pass.report.problems.is_empty() {
        pass.marks.unmarked(Some(&|| frozen.begin()))?;
        free_reserved(fs, &pass)?;
    }
    let mut report = pass.report;
    // The rest is reported as remaining, after the findings.
    let remaining = std::mem::take(&mut report.problems);
    report.problems = problems;
    report.problems.extend(remaining.into_iter().map(|p| format!("still: {p}")));
    report.repaired = repaired;
    Ok(report)
}

/// The damage to mend next, and its stage: until inodes are whole again, the state of names and links
/// means nothing.
fn next_of(mut damaged: Vec<(Ino, Damage)>, failed: &HashSet<(Ino, Damage)>) -> (Vec<(Ino, Damage)>, Option<u8>) {
    let next = damaged.iter().filter(|d| !failed.contains(*d)).map(|(_, d)| stage(*d)).min();
    damaged.retain(|(_, d)| next.is_none_or(|next| stage(*d) == next));
    damaged.sort_by_key(|(ino, d)| (order(*ino, *d), *ino));
    damaged.dedup();
    (damaged, next)
}

/// The findings of a pass on an inode elsewhere.
fn names_of(pass: &Pass, ino: Ino) -> Names {
    let ino = ino as usize;
    let brief = pass.inodes.get(ino).copied().unwrap_or_default();
    Names {
        names: pass.names.get(ino).copied().unwrap_or(0),
        kind: pass.named_kind.get(ino).copied().unwrap_or(0),
        subdirs: brief.subdirs,
        named_in: u64::from(brief.named_in),
    }
}

/// Makes the log count the blocks that files need.
fn mend_log(needs: &Needs, frozen: &Frozen) -> Result<Vec<String>> {
    let mut change = |work: table::Work<'_>| {
        let mut op = frozen.begin()?;
        op.lock(&[ilfs::KEY])?;
        let mut tx = op.tx()?;
        work(&mut tx)?;
        Ok(tx.commit()?)
    };
    Ok(table::mend(needs, &mut change)?)
}

/// A reader without locks that has found an inode before the table's reference to it was cleared looks again: the inode's
/// memory may be reused. It is unknown which inodes these are, so this tears all looks.
fn tear_looks(frozen: &Frozen) -> Result<()> {
    let mut op = frozen.begin()?;
    for key in 0..LOCKS {
        op.lock(&[key])?;
        op.unlock();
    }
    Ok(())
}

/// While all operations are held up, no reservation is in use.
fn free_reserved(fs: &Fs, pass: &Pass) -> Result<()> {
    for (slot, inodes) in &pass.reserved {
        for ino in inodes {
            if let Some(place) = fs.table().place(*ino)? {
                fs.memory().install_byte(place.length, inode::reserved_by(*slot), 0)?;
            }
        }
    }
    Ok(())
}

/// The repairs before another look: the inodes and their types, the content of each,
/// and references to them.
fn stage(damage: Damage) -> u8 {
    match damage {
        Damage::Table | Damage::Packed | Damage::Inode | Damage::Dictionaries => 0,
        Damage::Permissions | Damage::Settings | Damage::Xattr | Damage::Content => 1,
        Damage::Entries | Damage::Names | Damage::Cycle | Damage::Unnamed | Damage::Parent | Damage::Links => 2,
    }
}

/// Inodes before their content, content before names, names before counts.
fn order(ino: Ino, damage: Damage) -> u8 {
    match damage {
        // Without links the root takes no `lost+found`.
        Damage::Links if ino == ROOT => 3,
        Damage::Table | Damage::Packed | Damage::Inode | Damage::Dictionaries => 0,
        Damage::Permissions => 1,
        Damage::Settings | Damage::Xattr => 2,
        Damage::Content => 3,
        Damage::Entries => 4,
        Damage::Names | Damage::Cycle => 5,
        Damage::Unnamed => 6,
        Damage::Parent => 7,
        Damage::Links => 8,
    }
}

/// [`mend`], again where an inode had to be unpacked for it, which it learns before anything has changed.
fn mend_plain(fs: &Fs, frozen: &Frozen, ino: Ino, damage: Damage, names: Names, gone: &mut Gone) -> Result<String> {
    retry::run(&mut Held { fs, frozen }, |_| mend(fs, &mut frozen.begin()?, ino, damage, names, gone))
}

/// Provides a repair, while all other processes are held up, with plain inodes alone.
struct Held<'r> {
    fs: &'r Fs,
    frozen: &'r Frozen<'r>,
}

impl Provides for Held<'_> {
    fn session(&self) -> &Session {
        self.fs.session()
    }

    fn memory(&mut self) -> Result<()> {
        Err(Error::MustGrow)
    }

    fn plain(&mut self, ino: Ino) -> Result<()> {
        self.fs.unpack_held(self.frozen.begin()?, ino)
    }
}

fn mend(fs: &Fs, op: &mut Op, ino: Ino, damage: Damage, names: Names, gone: &mut Gone) -> Result<String> {
    if damage == Damage::Table {
        fs.table().forget(ino)?;
        return Ok(format!("inodes {ino} to {}: could not be found, removed", ino + PER_BLOCK - 1));
    }
    if damage == Damage::Dictionaries {
        let kept = fs.mend_dictionaries(op)?;
        return Ok(format!("dictionaries: {kept} could be read, and are there twice again"));
    }
    if damage == Damage::Packed {
        return fs.salvage_held(op, ino / PER_BLOCK);
    }
    if matches!(fs.table().block(ino / PER_BLOCK), Ok(Block::Packed(_))) {
        return Err(Error::Packed(ino));
    }
    if damage == Damage::Inode && ino == ROOT {
        return mend_root(fs, op);
    }
    if damage == Damage::Inode {
        return mend_inode(fs, op, ino, names);
    }
    let mut node = fs.node(ino)?;
    // No other operation changes anything, but there are readers: the lock tells them that their look is torn.
    if !matches!(damage, Damage::Permissions | Damage::Unnamed | Damage::Names | Damage::Cycle) {
        op.lock(&[ino])?;
    }
    match damage {
        Damage::Permissions => {
            let kind = u32::from(node.raw.kind) << 12;
            let mode = if node.is_dir() { 0o700 } else { 0o600 };
            set_perm(fs, op, &mut node, RawPerm { uid: 0, gid: 0, mode: kind | mode })?;
            Ok(format!("inode {ino}: owner and mode were lost; now root's"))
        }
        Damage::Xattr => {
            node.raw.xattr = 0;
            save(op, &node)?;
            Ok(format!("inode {ino}: extended attributes were lost"))
        }
        Damage::Settings => {
            (node.raw.delay, node.raw.settings) = (0, 0);
            save(op, &node)?;
            Ok(format!("inode {ino}: settings were lost"))
        }
        // Done above.
        Damage::Dictionaries => Ok(String::new()),
        Damage::Content => cut_content(fs, op, node),
        Damage::Entries => drop_entries(fs, op, node, gone),
        Damage::Names => drop_names(fs, op, ino, Some(node.raw.extra).filter(|_| ino != ROOT), gone),
        Damage::Cycle => drop_names(fs, op, ino, None, gone),
        Damage::Unnamed => to_lost_found(fs, op, node, names.subdirs),
        Damage::Parent => {
            node.raw.extra = if ino == ROOT { ROOT } else { names.named_in };
            save(op, &node)?;
            Ok(format!("directory {ino}: parent corrected"))
        }
        _ => {
            node.raw.nlink = if node.is_dir() { 2 + names.subdirs } else { names.names };
            save(op, &node)?;
            Ok(format!("inode {ino}: link count corrected"))
        }
    }
}

/// The rest of the root is taken for a directory again; if there is none, it becomes an empty one, and entries that
/// were in it turn up as unnamed.
fn mend_root(fs: &Fs, op: &mut Op) -> Result<String> {
    crate::inode::make_block_of(op, fs.table(), ROOT)?;
    let Some(place) = fs.table().place(ROOT)? else { return Ok("the root directory: no place for it".into()) };
    let length = fs.memory().read(place.length)?;
    let mut raw: RawInode = fs.memory().read(place.inode)?;
    let lost = length != INODE as u8 && raw.kind != Kind::Directory as u8;
    if lost {
        raw = RawInode { generation: raw.generation, ..RawInode::new_zeroed() };
    }
    let kind = (Kind::Directory as u32) << 12;
    let perm = fs.perms().get(fs.session(), raw.perm).ok().filter(|p| p.mode >> 12 == kind >> 12 && !lost);
    if perm.is_none() {
        raw.perm = fs.perms().intern(op, RawPerm { uid: 0, gid: 0, mode: kind | 0o755 })?;
    }
    (raw.kind, raw.extra, raw.nlink) = (Kind::Directory as u8, ROOT, raw.nlink.max(2));
    op.lock(&[ROOT])?;
    let mut tx = op.tx()?;
    tx.set(place.inode, &raw)?;
    tx.set(place.length, &(INODE as u8))?;
    tx.commit()?;
    Ok(match lost {
        true => "the root directory: lost, made anew",
        false => "the root directory: taken for a directory again",
    }
    .into())
}

/// Settles which type an inode has, and that it is one.
fn mend_inode(fs: &Fs, op: &mut Op, ino: Ino, names: Names) -> Result<String> {
    let Some(place) = fs.table().place(ino)? else { return Ok(format!("inode {ino}: gone")) };
    if fs.memory().read(place.length)? != INODE as u8 {
        let raw: RawInode = fs.memory().read(place.inode)?;
        let known = names.names > 0 && names.kind == raw.kind;
        op.lock(&[ino])?;
        fs.memory().commit_byte(place.length, if known { INODE as u8 } else { 0 })?;
        let done = if known { "its length was lost, taken for an inode" } else { "could not be read, removed" };
        return Ok(format!("inode {ino}: {done}"));
    }
    let mut node = fs.node(ino)?;
    let perm = fs.perms().get(fs.session(), node.raw.perm).ok();
    let kind = most_likely([node.raw.kind, names.kind, perm.map_or(0, |p| (p.mode >> 12) as u8)]);
    node.raw.kind = kind as u8;
    match perm.filter(|p| p.mode >> 12 != kind as u32) {
        // The owner of that mode is unknown: it gives no user another's rights.
        Some(p) => set_perm(fs, op, &mut node, RawPerm { mode: (kind as u32) << 12 | p.mode & 0o777, ..p })?,
        None => {
            op.lock(&[ino])?;
            save(op, &node)?;
        }
    }
    Ok(format!("inode {ino}: its type was in doubt, taken for {kind:?}"))
}

/// The type that an inode has by its own field, its names, and its mode: two of
/// these, or else the first that is one.
fn most_likely(hints: [u8; 3]) -> Kind {
    let [own, named, mode] = hints.map(Kind::from_type);
    let agreed = named.filter(|n| Some(*n) == mode);
    agreed.or(own).or(named).or(mode).unwrap_or(Kind::Regular)
}

fn set_perm(fs: &Fs, op: &mut Op, node: &mut Node, perm: RawPerm) -> Result<()> {
    node.raw.perm = fs.perms().intern(op, perm)?;
    op.lock(&[node.ino])?;
    save(op, node)
}

fn save(op: &mut Op, node: &Node) -> Result<()> {
    let mut tx: Tx = op.tx()?;
    node.save(&mut tx)?;
    Ok(tx.commit()?)
}

/// Keeps the readable parts of a file or directory.
fn cut_content(fs: &Fs, op: &mut Op, mut node: Node) -> Result<String> {
    let ino = node.ino;
    if node.is_dir() {
        return rebuild_dir(fs, op, node);
    }
    let size = node.raw.size;
    match node.kind()? {
        Kind::Regular => {}
        Kind::Symlink => node.raw.size = size.min(SYMLINK_MAX as u64),
        kind => {
            (node.raw.content, node.raw.size) = (0, 0);
            node.raw.extra = if kind.is_device() { node.raw.extra } else { 0 };
            save(op, &node)?;
            return Ok(format!("inode {ino}: content that its type does not have is cleared"));
        }
    }
    let mut c = node.content();
    let decoded = fs.salvage_compressed(&c);
    let mut tx = op.tx()?;
    let mut edit = fs.edit(&mut tx);
    let cut = match decoded {
        Some((plain, lost)) => {
            file::replace(&mut edit, &mut c, &plain)?;
            lost
        }
        None => file::salvage(&mut edit, &mut c)?,
    };
    edit.finish()?;
    node.set_content(&c);
    node.save(&mut tx)?;
    tx.commit()?;
    Ok(format!("inode {ino}: {cut} of {size} bytes could not be read and are now a hole"))
}

/// Puts the entries of a directory that can be read into a new table; lost ones turn up as unnamed.
///
/// 1. The table is built beside the old one, a transaction for each entry: nothing refers to it yet, so a crash, or
///    a lack of memory, leaves the directory as it was.
/// 2. One transaction, of the inode alone, makes it the directory's. The old one is swept.
fn rebuild_dir(fs: &Fs, op: &mut Op, mut node: Node) -> Result<String> {
    let mut kept = Vec::new();
    dir::check(fs.memory(), &fs.names(), &node.dir(), &mut |_| {}, &mut |name, e| {
        kept.push((name.to_vec(), e));
    });
    let mut fresh = Dir::EMPTY;
    for (name, entry) in &kept {
        if let Err(e) = add_beside(fs, op, &mut fresh, name, *entry) {
            free_beside(fs, op, fresh)?;
            return Err(e);
        }
    }
    node.set_dir(&fresh);
    save(op, &node)?;
    Ok(format!("directory {}: rebuilt from the {} entries that could be read", node.ino, kept.len()))
}

/// Adds an entry to a directory that nothing refers to yet, unless it has one of that name.
fn add_beside(fs: &Fs, op: &mut Op, fresh: &mut Dir, name: &[u8], entry: Entry) -> Result<()> {
    let names = &fs.names();
    if dir::lookup(fs.memory(), names, fresh, name)?.is_some() {
        return Ok(());
    }
    let mut larger = *fresh;
    let mut tx = op.tx()?;
    dir::insert(&mut tx, names, &mut larger, name, entry)?;
    tx.commit()?;
    *fresh = larger;
    Ok(())
}

/// Frees a directory that nothing refers to.
fn free_beside(fs: &Fs, op: &mut Op, fresh: Dir) -> Result<()> {
    let mut objects = Vec::new();
    dir::visit(fs.memory(), &fresh, &mut |off, tag| objects.push((off, tag)))?;
    let mut tx = op.tx()?;
    objects.into_iter().try_for_each(|(off, tag)| tx.free(off, tag))?;
    Ok(tx.commit()?)
}

/// Removes entries of inodes that do not exist; corrects the type in others.
fn drop_entries(fs: &Fs, op: &mut Op, mut node: Node, gone: &mut Gone) -> Result<String> {
    let names = &fs.names();
    let mut all = Vec::new();
    dir::check(fs.memory(), names, &node.dir(), &mut |_| {}, &mut |name, e| all.push((name.to_vec(), e)));
    let (mut dropped, mut corrected) = (0, 0);
    for (name, entry) in all {
        let target = fs.table().get(entry.ino)?;
        let mut tx = op.tx()?;
        match target {
            Some(raw) if raw.kind == entry.kind => continue,
            Some(raw) => {
                let mut d = node.dir();
                dir::replace(&mut tx, names, &mut d, &name, Entry { kind: raw.kind, ..entry })?;
                if d != node.dir() {
                    node.set_dir(&d);
                    node.save(&mut tx)?;
                }
                corrected += 1;
            }
            None => {
                let mut d = node.dir();
                dir::remove(&mut tx, names, &mut d, &name)?;
                node.set_dir(&d);
                node.save(&mut tx)?;
                dropped += 1;
            }
        }
        tx.commit()?;
        gone.push((node.ino, name));
    }
    Ok(format!("directory {}: {dropped} entries of lost inodes removed, {corrected} corrected", node.ino))
}

/// Removes the names of a directory, but one in `keep`. If none is left, the next round finds it unnamed.
fn drop_names(fs: &Fs, op: &mut Op, ino: Ino, keep: Option<Ino>, gone: &mut Gone) -> Result<String> {
    let names = &fs.names();
    let (mut kept, mut dropped) = (false, 0);
    for dir in 1..crate::inode::max_inodes(fs.memory().size()) {
        let Ok(mut node) = fs.node(dir) else { continue };
        if !node.is_dir() {
            continue;
        }
        let mut found = Vec::new();
        dir::check(fs.memory(), names, &node.dir(), &mut |_| {}, &mut |name, e| {
            if e.ino == ino {
                found.push(name.to_vec());
            }
        });
        if !found.is_empty() {
            op.lock(&[dir])?;
        }
        for name in found {
            if keep == Some(dir) && !std::mem::replace(&mut kept, true) {
                continue;
            }
            let mut d = node.dir();
            let mut tx = op.tx()?;
            dir::remove(&mut tx, names, &mut d, &name)?;
            node.set_dir(&d);
            node.save(&mut tx)?;
            tx.commit()?;
            gone.push((dir, name));
            dropped += 1;
        }
        op.unlock();
    }
    Ok(format!("directory {ino}: {dropped} names too many removed"))
}

/// Clears words of tables that lead nowhere; their targets are lost.
fn clear_dead(fs: &Fs, dead: Vec<DeadWord>) -> Result<Vec<String>> {
    let mut repaired = Vec::new();
    for DeadWord { at, perms } in dead {
        fs.memory().commit_word(at, 0)?;
        if perms {
            fs.session().runtime().renumber();
        }
        repaired.push(format!(
            "{}: a reference that led nowhere is cleared",
            if perms { "permission table" } else { "inode table" }
        ));
    }
    Ok(repaired)
}
