//! Mending what the check found, with everybody held up. Nothing that can be read is thrown away: what has
//! lost its name goes to `lost+found`, what cannot be read is cut off and named in the report.

use pram::session::Frozen;
use pram::{Op, Tx};

use super::{Damage, DeadWord, Pass, Report};
use crate::attr::{Ino, Kind};
use crate::dir::{self, Entry};
use crate::error::Result;
use crate::file;
use crate::inode;
use crate::layout::{RawPerm, INODE, PER_BLOCK};
use crate::node::{Fs, Node};
use crate::ROOT;

const LOST_FOUND: &[u8] = b"lost+found";

/// Repairs until a pass finds nothing more, at most this often: mending one thing uncovers another.
const ROUNDS: usize = 4;

pub fn repair(fs: &Fs, first: Pass, frozen: &Frozen) -> Result<Report> {
    let mut repaired = Vec::new();
    let problems = first.report.problems.clone();
    let mut pass = first;
    for _ in 0..ROUNDS {
        // Of content that counts as free nobody knows whether the reference or the bitmap is damaged; without
        // its tables the pool is lost, so these are believed.
        for off in std::mem::take(&mut pass.unallocated) {
            fs.session().heap().adopt(off)?;
            repaired.push(format!("object {off:#x} of the tables counted as free, taken"));
        }
        // Once nothing else is wrong nothing refers to these any more, and their memory can be used again.
        if pass.report.problems.len() == pass.lost_segments.len() {
            for segment in std::mem::take(&mut pass.lost_segments) {
                fs.session().heap().reset_segment(segment)?;
                repaired.push(format!("segment {segment}: what it held could not be told, freed"));
            }
        }
        let mut damaged = std::mem::take(&mut pass.damaged);
        damaged.sort_by_key(|(ino, d)| (order(*d), *ino));
        damaged.dedup();
        let pass_names = std::mem::take(&mut pass.names);
        let briefs = std::mem::take(&mut pass.inodes);
        repaired.extend(clear_dead(fs, std::mem::take(&mut pass.dead))?);
        let mut marks = pass.marks;
        for (ino, damage) in damaged {
            let names = pass_names.get(ino as usize).copied().unwrap_or(0);
            let subdirs = briefs.get(ino as usize).map_or(0, |b| b.subdirs);
            let named_in = briefs.get(ino as usize).map_or(0, |b| u64::from(b.named_in));
            let mut op = frozen.begin()?;
            match mend(fs, &mut op, ino, damage, names, subdirs, named_in) {
                Ok(text) => repaired.push(text),
                Err(e) => repaired.push(format!("inode {ino}: could not be repaired: {e}")),
            }
        }
        marks.reset();
        pass = fs.check_pass(marks, &mut |_, _| {})?;
        if pass.report.problems.is_empty() {
            break;
        }
    }
    // What is still damaged may refer to what looks like leaks.
    if pass.report.problems.is_empty() {
        pass.marks.unmarked(Some(&|| frozen.begin()))?;
        free_reserved(fs, &pass)?;
    }
    let mut report = pass.report;
    // What remains is reported as remaining, after what was found.
    let remaining = std::mem::take(&mut report.problems);
    report.problems = problems;
    report.problems.extend(remaining.into_iter().map(|p| format!("still: {p}")));
    report.repaired = repaired;
    Ok(report)
}

/// With everybody held up, no reservation is anybody's.
fn free_reserved(fs: &Fs, pass: &Pass) -> Result<()> {
    for (slot, inodes) in &pass.reserved {
        for ino in inodes {
            if let Some(place) = fs.table().place(*ino)? {
                fs.region().install_byte(place.length, inode::reserved_by(*slot), 0)?;
            }
        }
    }
    Ok(())
}

/// Inodes before their content, content before names, names before counts.
fn order(damage: Damage) -> u8 {
    match damage {
        Damage::Table | Damage::Inode => 0,
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

fn mend(fs: &Fs, op: &mut Op, ino: Ino, damage: Damage, names: u32, subdirs: u32, named_in: Ino) -> Result<String> {
    if damage == Damage::Table {
        fs.table().forget(ino)?;
        return Ok(format!("inodes {ino} to {}: could not be found, removed", ino + PER_BLOCK - 1));
    }
    if damage == Damage::Inode && ino == ROOT {
        return mend_root(fs, op);
    }
    if damage == Damage::Inode {
        let Some(place) = fs.table().place(ino)? else { return Ok(format!("inode {ino}: gone")) };
        let readable = fs.region().read(place.length)? == INODE as u8;
        if readable {
            op.lock(&[ino])?;
            let mut tx = op.tx()?;
            let mut node = fs.node(ino)?;
            // The mode says the type again.
            let mode = fs.perms().get(fs.region(), node.raw.perm).map_or(0, |p| p.mode);
            let kind = Kind::from_mode(mode).unwrap_or(Kind::Regular);
            node.raw.kind = kind as u8;
            node.save(&mut tx)?;
            tx.commit()?;
            return Ok(format!("inode {ino}: its type was lost, taken for {kind:?}"));
        }
        fs.region().commit_byte(place.length, 0)?;
        return Ok(format!("inode {ino}: could not be read, removed"));
    }
    let mut node = fs.node(ino)?;
    // Nobody else changes anything, but there are readers: the lock tells them that their look is torn.
    if !matches!(damage, Damage::Permissions | Damage::Unnamed | Damage::Names | Damage::Cycle) {
        op.lock(&[ino])?;
    }
    match damage {
        Damage::Permissions => {
            let kind = u32::from(node.raw.kind) << 12;
            let mode = if node.is_dir() { 0o700 } else { 0o600 };
            node.raw.perm = fs.perms().intern(op, RawPerm { uid: 0, gid: 0, mode: kind | mode })?;
            op.lock(&[ino])?;
            save(op, &node)?;
            Ok(format!("inode {ino}: owner and mode were lost; now root's"))
        }
        Damage::Xattr => {
            node.raw.xattr = 0;
            save(op, &node)?;
            Ok(format!("inode {ino}: extended attributes were lost"))
        }
        Damage::Settings => {
            (node.raw.reserved, node.raw.settings) = (0, 0);
            save(op, &node)?;
            Ok(format!("inode {ino}: settings were lost"))
        }
        Damage::Content => cut_content(fs, op, node),
        Damage::Entries => drop_entries(fs, op, node),
        Damage::Names => drop_names(fs, op, ino, Some(node.raw.extra).filter(|_| ino != ROOT)),
        Damage::Cycle => drop_names(fs, op, ino, None),
        Damage::Unnamed => to_lost_found(fs, op, node),
        Damage::Parent => {
            node.raw.extra = named_in;
            save(op, &node)?;
            Ok(format!("directory {ino}: parent corrected"))
        }
        _ => {
            node.raw.nlink = if node.is_dir() { 2 + subdirs } else { names };
            save(op, &node)?;
            Ok(format!("inode {ino}: link count corrected"))
        }
    }
}

/// What is left of the root is taken for a directory again; if nothing is, it becomes an empty one, and what
/// was in it turns up as unnamed.
fn mend_root(fs: &Fs, op: &mut Op) -> Result<String> {
    crate::inode::make_block_of(op, fs.table(), ROOT)?;
    let Some(place) = fs.table().place(ROOT)? else { return Ok("the root directory: no place for it".into()) };
    let length = fs.region().read(place.length)?;
    let mut raw = fs.region().read(place.inode)?;
    let told = match length == INODE as u8 {
        true => "the root directory: taken for a directory again",
        false => {
            (raw.content, raw.size, raw.xattr, raw.nlink) = (0, 0, 0, 2);
            let mode = (Kind::Directory as u32) << 12 | 0o755;
            raw.perm = fs.perms().intern(op, RawPerm { uid: 0, gid: 0, mode })?;
            "the root directory: lost, made anew"
        }
    };
    (raw.kind, raw.extra) = (Kind::Directory as u8, ROOT);
    let mut tx = op.tx()?;
    tx.set(place.inode, &raw)?;
    tx.set(place.length, &(INODE as u8))?;
    tx.commit()?;
    Ok(told.into())
}

fn save(op: &mut Op, node: &Node) -> Result<()> {
    let mut tx: Tx = op.tx()?;
    node.save(&mut tx)?;
    Ok(tx.commit()?)
}

/// Keeps of a file or directory what can be read.
fn cut_content(fs: &Fs, op: &mut Op, mut node: Node) -> Result<String> {
    let ino = node.ino;
    if node.is_dir() {
        // Entries that can be read are put into a fresh table; what is lost turns up as unnamed.
        let mut kept = Vec::new();
        let old = node.dir();
        dir::check(fs.region(), fs.super_block().hash_key, &old, &mut |_| {}, &mut |name, e| {
            kept.push((name.to_vec(), e));
        });
        node.set_dir(&dir::Dir { root: 0, entries: 0 });
        save(op, &node)?;
        let total = kept.len();
        for (name, entry) in kept {
            add_entry(fs, op, &mut node, &name, entry)?;
        }
        return Ok(format!("directory {ino}: rebuilt from the {total} entries that could be read"));
    }
    let size = node.raw.size;
    let mut c = node.content();
    let mut tx = op.tx()?;
    let cut = file::salvage(&mut tx, &mut c)?;
    node.set_content(&c);
    node.save(&mut tx)?;
    tx.commit()?;
    Ok(format!("inode {ino}: {cut} of {size} bytes could not be read and are now a hole"))
}

fn add_entry(fs: &Fs, op: &mut Op, node: &mut Node, name: &[u8], entry: Entry) -> Result<()> {
    let mut d = node.dir();
    if dir::lookup(fs.region(), fs.super_block().hash_key, &d, name)?.is_some() {
        return Ok(());
    }
    let mut tx = op.tx()?;
    dir::insert(&mut tx, fs.super_block().hash_key, &mut d, name, entry)?;
    node.set_dir(&d);
    node.save(&mut tx)?;
    Ok(tx.commit()?)
}

/// Removes entries of inodes that do not exist; corrects the type in others.
fn drop_entries(fs: &Fs, op: &mut Op, mut node: Node) -> Result<String> {
    let key = fs.super_block().hash_key;
    let mut all = Vec::new();
    dir::check(fs.region(), key, &node.dir(), &mut |_| {}, &mut |name, e| all.push((name.to_vec(), e)));
    let (mut dropped, mut corrected) = (0, 0);
    for (name, entry) in all {
        let target = fs.table().get(entry.ino)?;
        let mut tx = op.tx()?;
        match target {
            Some((_, raw)) if raw.kind == entry.kind => continue,
            Some((_, raw)) => {
                dir::replace(&mut tx, key, &node.dir(), &name, Entry { kind: raw.kind, ..entry })?;
                corrected += 1;
            }
            None => {
                let mut d = node.dir();
                dir::remove(&mut tx, key, &mut d, &name)?;
                node.set_dir(&d);
                node.save(&mut tx)?;
                dropped += 1;
            }
        }
        tx.commit()?;
    }
    Ok(format!("directory {}: {dropped} entries of lost inodes removed, {corrected} corrected", node.ino))
}

/// Removes the names of a directory, but one in `keep`. If none is left, the next round finds it unnamed.
fn drop_names(fs: &Fs, op: &mut Op, ino: Ino, keep: Option<Ino>) -> Result<String> {
    let key = fs.super_block().hash_key;
    let (mut kept, mut dropped) = (false, 0);
    for dir in 1..crate::inode::max_inodes(fs.region().geo.size) {
        let Ok(mut node) = fs.node(dir) else { continue };
        if !node.is_dir() {
            continue;
        }
        let mut names = Vec::new();
        dir::check(fs.region(), key, &node.dir(), &mut |_| {}, &mut |name, e| {
            if e.ino == ino {
                names.push(name.to_vec());
            }
        });
        if !names.is_empty() {
            op.lock(&[dir])?;
        }
        for name in names {
            if keep == Some(dir) && !std::mem::replace(&mut kept, true) {
                continue;
            }
            let mut d = node.dir();
            let mut tx = op.tx()?;
            dir::remove(&mut tx, key, &mut d, &name)?;
            node.set_dir(&d);
            node.save(&mut tx)?;
            tx.commit()?;
            dropped += 1;
        }
        op.unlock();
    }
    Ok(format!("directory {ino}: {dropped} names too many removed"))
}

/// Clears words of tables that lead nowhere; what they led to is lost.
fn clear_dead(fs: &Fs, dead: Vec<DeadWord>) -> Result<Vec<String>> {
    let alone = fs.session().runtime().sessions().len() == 1;
    let mut told = Vec::new();
    for DeadWord { at, perms } in dead {
        if perms && !alone {
            told.push("permission table: can be repaired only while no other process uses the pool".into());
            continue;
        }
        fs.region().commit_word(at, 0)?;
        match perms {
            true => fs.perms().forget(),
            false => fs.table().look_again(),
        }
        told.push(format!(
            "{}: a reference that led nowhere is cleared",
            if perms { "permission table" } else { "inode table" }
        ));
    }
    Ok(told)
}

/// Gives an inode without name the name `#number` in `lost+found`.
fn to_lost_found(fs: &Fs, op: &mut Op, mut node: Node) -> Result<String> {
    let mut home = lost_found(fs, op)?;
    let name = format!("#{}", node.ino);
    op.lock(&[home.ino, node.ino])?;
    add_entry(fs, op, &mut home, name.as_bytes(), Entry { ino: node.ino, kind: node.raw.kind })?;
    if node.is_dir() {
        node.raw.extra = home.ino;
        home.raw.nlink += 1;
        save(op, &home)?;
    } else {
        node.raw.nlink = 1;
    }
    save(op, &node)?;
    Ok(format!("inode {}: named /lost+found/{name}", node.ino))
}

fn lost_found(fs: &Fs, op: &mut Op) -> Result<Node> {
    let root = fs.node(ROOT)?;
    let found = dir::lookup(fs.region(), fs.super_block().hash_key, &root.dir(), LOST_FOUND)?;
    match found {
        Some(e) if e.kind == Kind::Directory as u8 => fs.node(e.ino),
        _ => fs.node(fs.mkdir_in(op, ROOT, LOST_FOUND, 0o700)?),
    }
}
