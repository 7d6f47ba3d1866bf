//! Extended attributes: all of an inode's in one heap object.
//!
//! ```text
//! block:   bytes in use, these 8 included (4) | live records (4) | records
//! record:  length of the value << 8 | length of the name (4) | name | value | padding to 4
//! ```
//! A record whose name has no length is dead: it waits for the block to be built anew.
//!
//! Changes are logged in place where they are small, otherwise the block is built anew and the inode's
//! reference switched. Removing needs no memory: where there is none, the record is declared dead.

use pram::{Memory, Off, Tag, Tx};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::layout::tag;
use crate::setting;

/// Longest name, in bytes (XATTR_NAME_MAX).
pub(crate) const NAME_MAX: usize = 255;
/// Longest value, in bytes (XATTR_SIZE_MAX).
pub(crate) const VALUE_MAX: usize = 65536;
/// Most bytes of all names, each with its zero byte (XATTR_LIST_MAX), but for that of the setting, which is not here.
const LIST_MAX: u64 = 65536 - setting::LISTED;
/// Most bytes of all records of an inode.
const TOTAL_MAX: u64 = 128 << 10;

const HEADER: u64 = 8;
/// Bytes of a record beside name and value.
const RECORD: u64 = 4;
/// Changes up to this size are made in place.
const IN_PLACE: u64 = 2048;
/// Undo log that is left to the caller.
const RESERVE: u64 = 2048;

/// A block, its header read.
#[derive(Clone, Copy)]
struct Block {
    off: u64,
    cap: u64,
    /// Bytes in use.
    used: u64,
    live: u32,
}

/// A record: where in the memory, and its lengths.
#[derive(Clone, Copy)]
struct Record {
    off: u64,
    name: u64,
    value: u64,
}

impl Record {
    fn size_of(name: u64, value: u64) -> u64 {
        RECORD + (name + value).next_multiple_of(4)
    }

    fn size(&self) -> u64 {
        Record::size_of(self.name, self.value)
    }

    fn end(&self) -> u64 {
        self.off + self.size()
    }

    fn is(&self, r: &Memory, name: &[u8]) -> Result<bool> {
        let mut buf = [0; NAME_MAX];
        let buf = &mut buf[..self.name as usize];
        if buf.len() != name.len() {
            return Ok(false);
        }
        r.read_bytes(self.off + RECORD, buf)?;
        Ok(buf == name)
    }
}

impl Block {
    fn open(r: &Memory, off: u64) -> Result<Block> {
        let cap = r.resolve(off, tag::XATTR)?;
        let [used, live] = r.read::<[u32; 2]>(Off::new(off))?;
        let used = u64::from(used);
        if used < HEADER || used > cap || used % 4 != 0 {
            return Err(Error::Corrupt(format!("extended attributes at {off:#x} claim {used} of {cap} bytes")));
        }
        Ok(Block { off, cap, used, live })
    }

    fn end(&self) -> u64 {
        self.off + self.used
    }

    /// Calls `f` with every live record until it returns something.
    fn find<T>(&self, r: &Memory, mut f: impl FnMut(Record) -> Result<Option<T>>) -> Result<Option<T>> {
        let mut at = self.off + HEADER;
        while at < self.end() {
            let word = r.read::<u32>(Off::new(at))?;
            let record = Record { off: at, name: u64::from(word & 0xff), value: u64::from(word >> 8) };
            if record.end() > self.end() {
                return Err(Error::Corrupt(format!("extended attribute at {at:#x} reaches beyond its block")));
            }
            at = record.end();
            if record.name > 0 {
                if let Some(found) = f(record)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    fn named(&self, r: &Memory, name: &[u8]) -> Result<Option<Record>> {
        self.find(r, |record| Ok(record.is(r, name)?.then_some(record)))
    }

    fn set_header(&self, tx: &mut Tx, used: u64, live: u32) -> Result<()> {
        Ok(tx.set(Off::new(self.off), &[used as u32, live])?)
    }
}

fn open(r: &Memory, off: u64) -> Result<Option<Block>> {
    match off {
        0 => Ok(None),
        _ => Block::open(r, off).map(Some),
    }
}

fn has_room(tx: &Tx, len: u64) -> bool {
    len + 4 * pram::tx::RECORD + RESERVE <= tx.room()
}

/// The value of attribute `name` of the block at `off` (0: none). Needs no lock, as [`crate::file::read`].
pub(crate) fn get(r: &Memory, off: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(block) = open(r, off)? else { return Ok(None) };
    let Some(record) = block.named(r, name)? else { return Ok(None) };
    let mut value = vec![0; record.value as usize];
    r.read_bytes(record.off + RECORD + record.name, &mut value)?;
    Ok(Some(value))
}

/// All names, each followed by a zero byte.
pub(crate) fn list(r: &Memory, off: u64) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let Some(block) = open(r, off)? else { return Ok(names) };
    block.find(r, |record| {
        let start = names.len();
        names.resize(start + record.name as usize, 0);
        r.read_bytes(record.off + RECORD, &mut names[start..])?;
        names.push(0);
        Ok(None::<()>)
    })?;
    Ok(names)
}

/// The bytes that [`list`] returns.
#[cold]
fn names_of(r: &Memory, block: &Block) -> Result<u64> {
    let mut len = 0;
    block.find(r, |record| {
        len += record.name + 1;
        Ok(None::<()>)
    })?;
    Ok(len)
}

/// How [`setxattr`](crate::Fs::setxattr) treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    Any,
    /// XATTR_CREATE: EEXIST if it exists.
    Create,
    /// XATTR_REPLACE: ENODATA if it does not.
    Replace,
}

/// Sets an attribute; `off` is the inode's reference, which the caller writes back.
pub(crate) fn set(tx: &mut Tx, off: &mut u64, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE.into());
    }
    if value.len() > VALUE_MAX {
        return Err(Errno::TOOBIG.into());
    }
    let block = open(tx.memory(), *off)?;
    let old = match &block {
        Some(b) => b.named(tx.memory(), name)?,
        None => None,
    };
    match how {
        SetXattr::Create if old.is_some() => return Err(Errno::EXIST.into()),
        SetXattr::Replace if old.is_none() => return Err(Errno::NODATA.into()),
        _ => {}
    }
    let bytes = encode(name, value);
    if let Some(block) = block.filter(|b| old.is_none() && b.used + name.len() as u64 >= LIST_MAX) {
        // More could not be listed.
        if names_of(tx.memory(), &block)? + name.len() as u64 + 1 > LIST_MAX {
            return Err(Errno::NOSPC.into());
        }
    }
    let Some(block) = block else {
        return build(tx, off, None, None, Some(&bytes));
    };
    if set_in_place(tx, &block, old, &bytes, IN_PLACE)? {
        return Ok(());
    }
    match build(tx, off, Some(block), old, Some(&bytes)) {
        Err(Error::Posix(Errno::NOSPC)) if set_in_place(tx, &block, old, &bytes, u64::MAX)? => Ok(()),
        done => done,
    }
}

/// Removes an attribute; ENODATA if it is not there. Works on a full memory.
pub(crate) fn remove(tx: &mut Tx, off: &mut u64, name: &[u8]) -> Result<()> {
    let nodata = || Error::from(Errno::NODATA);
    let block = open(tx.memory(), *off)?.ok_or_else(nodata)?;
    let record = block.named(tx.memory(), name)?.ok_or_else(nodata)?;
    if block.live <= 1 {
        return free(tx, off);
    }
    if close_gap(tx, &block, record, IN_PLACE)? {
        return block.set_header(tx, block.used - record.size(), block.live - 1);
    }
    match build(tx, off, Some(block), Some(record), None) {
        Err(Error::Posix(Errno::NOSPC)) => {
            bury(tx, record)?;
            block.set_header(tx, block.used, block.live - 1)
        }
        done => done,
    }
}

/// Frees all attributes.
pub(crate) fn free(tx: &mut Tx, off: &mut u64) -> Result<()> {
    if *off != 0 {
        tx.free(*off, tag::XATTR)?;
        *off = 0;
    }
    Ok(())
}

/// Calls `object` with the heap object at `off`, if there is one.
pub(crate) fn visit(r: &Memory, off: u64, object: &mut dyn FnMut(u64, Tag)) -> Result<()> {
    if off != 0 {
        r.resolve(off, tag::XATTR)?;
        object(off, tag::XATTR);
    }
    Ok(())
}

/// Calls `problem` with a sentence for everything that is wrong with the attributes.
pub(crate) fn check(r: &Memory, off: u64, problem: &mut dyn FnMut(String)) {
    let mut live = 0;
    let result = open(r, off).and_then(|block| {
        let Some(block) = block else { return Ok(()) };
        if !r.is_allocated(off)? {
            problem(format!("its extended attributes {off:#x} are free"));
        }
        block.find(r, |record| {
            live += 1;
            let mut name = vec![0; record.name as usize];
            r.read_bytes(record.off + RECORD, &mut name)?;
            if name.contains(&0) {
                problem("an extended attribute has a name with a zero byte".into());
            }
            Ok(None::<()>)
        })?;
        if live != block.live || live == 0 {
            problem(format!("it says that it has {} extended attributes, and has {live}", block.live));
        }
        Ok(())
    });
    if let Err(e) = result {
        problem(e.to_string());
    }
}

/// The bytes of a record.
fn encode(name: &[u8], value: &[u8]) -> Vec<u8> {
    let size = Record::size_of(name.len() as u64, value.len() as u64) as usize;
    let word = (value.len() as u32) << 8 | name.len() as u32;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&word.to_le_bytes());
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(value);
    bytes.resize(size, 0);
    bytes
}

/// Sets a record inside the block, if no more than `limit` bytes change and the undo log has room for them.
fn set_in_place(tx: &mut Tx, block: &Block, old: Option<Record>, bytes: &[u8], limit: u64) -> Result<bool> {
    let size = bytes.len() as u64;
    if let Some(old) = old.filter(|o| o.size() == size) {
        let fits = size <= limit && has_room(tx, size);
        if fits {
            tx.set_bytes(old.off, bytes)?;
        }
        return Ok(fits);
    }
    let freed = old.map_or(0, |o| o.size());
    let moved = old.map_or(0, |o| block.end() - o.end());
    let used = block.used - freed + size;
    if used > block.cap || moved + size > limit || !has_room(tx, moved + size) {
        return Ok(false);
    }
    if let Some(old) = old {
        close_gap(tx, block, old, limit)?;
    }
    // Logged, although it is beyond the used part: an earlier removal may be part of the transaction.
    tx.set_bytes(block.off + used - size, bytes)?;
    block.set_header(tx, used, block.live + u32::from(old.is_none()))?;
    Ok(true)
}

/// Moves the records after one over it, if they have no more than `limit` bytes.
fn close_gap(tx: &mut Tx, block: &Block, record: Record, limit: u64) -> Result<bool> {
    let moved = block.end() - record.end();
    if moved > limit || !has_room(tx, moved) {
        return Ok(false);
    }
    if moved > 0 {
        tx.set_copy(record.end(), record.off, moved)?;
    }
    Ok(true)
}

/// Declares a record dead.
fn bury(tx: &mut Tx, record: Record) -> Result<()> {
    let word = ((record.name + record.value) as u32) << 8;
    Ok(tx.set(Off::new(record.off), &word)?)
}

/// Builds the block anew, without record `drop` and with record `add`.
fn build(tx: &mut Tx, off: &mut u64, old: Option<Block>, drop: Option<Record>, add: Option<&[u8]>) -> Result<()> {
    let r = tx.memory();
    let dropped = |record: &Record| drop.is_some_and(|d| d.off == record.off);
    let mut size = HEADER + add.map_or(0, |a| a.len() as u64);
    if let Some(old) = &old {
        old.find(r, |record| {
            size += if dropped(&record) { 0 } else { record.size() };
            Ok(None::<()>)
        })?;
    }
    if size > TOTAL_MAX {
        return Err(Errno::NOSPC.into());
    }
    let new = tx.alloc(tag::XATTR, size)?.off;
    let (mut at, mut live) = (new + HEADER, 0u32);
    if let Some(old) = &old {
        old.find(r, |record| {
            if !dropped(&record) {
                tx.init_copy(record.off, at, record.size())?;
                at += record.size();
                live += 1;
            }
            Ok(None::<()>)
        })?;
        tx.free(old.off, tag::XATTR)?;
    }
    if let Some(bytes) = add {
        tx.init_bytes(at, bytes)?;
        live += 1;
    }
    tx.init(Off::new(new), &[size as u32, live])?;
    *off = new;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pram::Session;
    use rng::Rng;

    use super::*;

    type Done = std::result::Result<(), Errno>;

    fn change(s: &Session, off: &mut u64, keep: bool, f: impl FnOnce(&mut Tx, &mut u64) -> Result<()>) -> Done {
        let mut op = s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let mut new = *off;
        f(&mut tx, &mut new).map_err(|e| e.errno())?;
        if keep {
            tx.commit().unwrap();
            *off = new;
        }
        Ok(())
    }

    fn put(s: &Session, off: &mut u64, name: &[u8], value: &[u8], how: SetXattr) -> Done {
        change(s, off, true, |tx, off| set(tx, off, name, value, how))
    }

    fn compare(r: &Memory, off: u64, model: &BTreeMap<Vec<u8>, Vec<u8>>, what: &str) {
        for (name, value) in model {
            assert_eq!(get(r, off, name).unwrap().as_ref(), Some(value), "{what}");
        }
        let mut names: Vec<Vec<u8>> = list(r, off).unwrap().split(|b| *b == 0).map(|n| n.to_vec()).collect();
        names.pop();
        names.sort();
        assert!(names.iter().eq(model.keys()), "names after {what}");
        assert_eq!(off == 0, model.is_empty(), "{what}");
        check(r, off, &mut |p| panic!("{what}: {p}"));
    }

    #[test]
    fn random_changes_match_the_model() {
        let mut rng = Rng::new(1);
        let mut below = |n: u64| rng.below(n);
        let s = pram::Session::in_memory(4 << 20).unwrap();
        let (mut off, mut model) = (0, BTreeMap::new());
        for step in 0..4000 {
            let name = format!("user.{}", "n".repeat(1 + below(12) as usize * 5)).into_bytes();
            let len = [below(8), below(100), below(3000), below(20_000)][below(4) as usize];
            let value = vec![step as u8; len as usize];
            let removing = below(3) == 0;
            let what = format!("step {step}: {} bytes, removing {removing}", value.len());
            let act = |tx: &mut Tx, off: &mut u64| match removing {
                true => remove(tx, off, &name),
                false => set(tx, off, &name, &value, SetXattr::Any),
            };
            let undone = change(&s, &mut off, false, act);
            compare(s.memory(), off, &model, &format!("undone {what}"));
            assert_eq!(change(&s, &mut off, true, act), undone, "{what}");
            match undone {
                Ok(()) if removing => assert!(model.remove(&name).is_some(), "{what}"),
                Ok(()) => drop(model.insert(name, value)),
                Err(Errno::NODATA) => assert!(removing && !model.contains_key(&name), "{what}"),
                Err(e) => assert_eq!(e, Errno::NOSPC, "{what}"),
            }
            compare(s.memory(), off, &model, &what);
        }
    }

    #[test]
    fn several_changes_in_one_transaction_are_undone_together() {
        let s = pram::Session::in_memory(1 << 20).unwrap();
        let mut off = 0;
        let model: BTreeMap<Vec<u8>, Vec<u8>> = [("user.a", 40), ("user.b", 80), ("user.c", 10)]
            .map(|(n, len)| (n.as_bytes().to_vec(), vec![len as u8; len]))
            .into();
        for (name, value) in &model {
            put(&s, &mut off, name, value, SetXattr::Any).unwrap();
        }
        change(&s, &mut off, false, |tx, off| {
            remove(tx, off, b"user.b")?;
            set(tx, off, b"user.d", &[9; 60], SetXattr::Any)?;
            set(tx, off, b"user.a", &[8; 41], SetXattr::Any)?;
            remove(tx, off, b"user.c")
        })
        .unwrap();
        compare(s.memory(), off, &model, "undoing");
    }

    #[test]
    fn limits_and_conditions_are_those_of_setxattr() {
        let s = pram::Session::in_memory(2 << 20).unwrap();
        let mut off = 0;
        assert_eq!(put(&s, &mut off, b"", b"", SetXattr::Any), Err(Errno::RANGE));
        assert_eq!(put(&s, &mut off, &[b'n'; 256], b"", SetXattr::Any), Err(Errno::RANGE));
        assert_eq!(put(&s, &mut off, b"user.a", &vec![1; 65537], SetXattr::Any), Err(Errno::TOOBIG));
        assert_eq!(put(&s, &mut off, b"user.a", b"", SetXattr::Replace), Err(Errno::NODATA));
        assert_eq!(put(&s, &mut off, &[b'n'; 255], &vec![1; 65536], SetXattr::Create), Ok(()));
        assert_eq!(get(s.memory(), off, &[b'n'; 255]).unwrap().map(|v| v.len()), Some(65536));
        assert_eq!(put(&s, &mut off, &[b'n'; 255], b"", SetXattr::Create), Err(Errno::EXIST));
        assert_eq!(put(&s, &mut off, b"user.b", &vec![1; 65536], SetXattr::Any), Err(Errno::NOSPC));
        assert_eq!(put(&s, &mut off, b"user.empty", b"", SetXattr::Any), Ok(()));
        assert_eq!(get(s.memory(), off, b"user.empty").unwrap(), Some(vec![]));
        assert_eq!(change(&s, &mut off, true, |tx, off| remove(tx, off, b"user.c")), Err(Errno::NODATA));
    }

    #[test]
    fn there_are_no_more_names_than_can_be_listed() {
        let s = pram::Session::in_memory(2 << 20).unwrap();
        let mut off = 0;
        let name = |i: u32| format!("user.{i:0>200}").into_bytes();
        let full = (0..1000).find(|i| put(&s, &mut off, &name(*i), b"", SetXattr::Any) == Err(Errno::NOSPC));
        let listed = list(s.memory(), off).unwrap().len() as u64;
        assert_eq!(full, Some(LIST_MAX as u32 / 206));
        assert_eq!(listed, LIST_MAX / 206 * 206);
        assert_eq!(put(&s, &mut off, &name(0), b"value", SetXattr::Replace), Ok(()), "no new name");
        let rest = vec![b'n'; (LIST_MAX - listed) as usize];
        assert_eq!(put(&s, &mut off, &rest, b"", SetXattr::Any), Err(Errno::NOSPC));
        assert_eq!(put(&s, &mut off, &rest[1..], b"", SetXattr::Any), Ok(()));
        change(&s, &mut off, true, |tx, off| remove(tx, off, &name(1))).unwrap();
        assert_eq!(put(&s, &mut off, &name(1), b"", SetXattr::Any), Ok(()));
    }

    #[test]
    fn removing_works_in_a_full_region() {
        let s = pram::Session::in_memory(1 << 20).unwrap();
        let (mut off, mut model) = (0, BTreeMap::new());
        for i in 0..16u8 {
            let (name, value) = (format!("user.{i}").into_bytes(), vec![i; 3000]);
            put(&s, &mut off, &name, &value, SetXattr::Any).unwrap();
            model.insert(name, value);
        }
        let mut others = Vec::new();
        for size in [32768, 4096, 512, 64, 16] {
            let mut other = 0;
            while put(&s, &mut other, b"n", &vec![0; size - 16], SetXattr::Any).is_ok() {
                others.push(std::mem::take(&mut other));
            }
        }
        assert!(others.len() > 3);
        while let Some(name) = model.keys().next().cloned() {
            change(&s, &mut off, true, |tx, off| remove(tx, off, &name)).unwrap();
            model.remove(&name);
            compare(s.memory(), off, &model, "removing");
        }
    }

    #[test]
    fn damaged_blocks_are_refused() {
        let s = pram::Session::in_memory(1 << 20).unwrap();
        let mut off = 0;
        put(&s, &mut off, b"user.a", b"value", SetXattr::Any).unwrap();
        for (at, word) in [(0, 4u32), (0, 1 << 20), (0, 13), (4, 7), (8, u32::MAX)] {
            let mut op = s.begin().unwrap();
            let mut tx = op.tx().unwrap();
            tx.set(Off::new(off + at), &word).unwrap();
            let mut found = Vec::new();
            check(s.memory(), off, &mut |p| found.push(p));
            assert!(!found.is_empty(), "{word} at {at}");
            let _ = get(s.memory(), off, b"user.zz");
        }
        let mut found = 0;
        check(s.memory(), off + 16, &mut |_| found += 1);
        assert_eq!(found, 1);
    }
}
