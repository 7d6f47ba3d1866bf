//! Packing blocks whose inodes have all been quiet, and unpacking those of which one is to change (mramfs, 5.1).
//!
//! One word of the table leads to a block of inodes, plain or packed. Both forms hold the same, but for times that are
//! [kept coarser](crate::setting::Times) in the packed one, and neither changes once it is left. Steps of packing, for some blocks at a time:
//! 1. Blocks are looked at without locks: is each inode in them quiet, and which generation has it?
//! 2. Operations under way are waited for. (Else an inode might be one that is being created, and undone later: in a block that
//!    is gone by then. One that has the same generation after this was created before it.)
//! 3. The locks of all sixteen numbers of a block are taken, and it is looked at again. (No operation is changing them then; and a
//!    reader that located an inode before step 6 finds its look torn, whatever the memory holds by then.) No long lock of one may be
//!    held either: its holder is between two pieces of a change.
//! 4. Its free numbers are reserved. (Else an operation could create a file in memory that is about to be freed.) They are free again in
//!    the packed form, which is not given out.
//! 5. The packed form is written, durably. A crash from step 4 on leaves it, which mark-and-sweep finds as it does the reservations.
//! 6. One word leads to it. From here on a crash leaks the plain form. (A reader finds the times of one form or of the other: never some
//!    of each, as it would if they were made coarser in place.)
//! 7. Operations under way are waited for: they may have located the block before step 6.
//! 8. The plain form is freed, or [kept](spare) for unpacking where memory is full.
//!
//! Steps of unpacking, after an operation that has to change a packed inode, and that then begins anew:
//! 1. The locks of all sixteen are taken. (As in 3; and no reader notes an access time meanwhile, which would be lost.)
//! 2. All is decoded and compared with its check code. (Else damage would become changes that look sound.)
//! 3. The plain form is written, durably. A crash leaks it.
//! 4. One word leads to it. From here on a crash leaks the packed form and its access times.
//! 5. Operations under way are waited for, as in 7.
//! 6. The packed form and its access times are freed.
//!
//! Sweeps and checks look at each word under the locks' counters. The caller keeps out other packing, as for blocks that are given back.

use std::ops::Range;

use pram::{Off, Op, Session};
use serde::Serialize;
use zerocopy::{FromZeros, IntoBytes};

use super::give_back::{close, reopen};
use super::packed::{Whole, CODED};
use super::{place_in, spare, Block, Table};
use crate::error::{Error, Result};
use crate::file::Content;
use crate::layout::{tag, InodeBlock, RawInode, RawPacked, INODE, PER_BLOCK};
use crate::packed::block::MAX;
use crate::retry::with_memory;
use crate::{Ino, Kind};

/// The reason for unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Change,
    /// Something is removed, or goes to disk: the spare blocks are for this, and others must not use them up.
    Removal,
}

/// Blocks that are waited for together.
const BATCH: usize = 64;
/// Blocks that are looked at before it is asked whether to go on.
const LOOK: usize = 1024;
const N: usize = PER_BLOCK as usize;

/// Counts of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Packed {
    pub blocks: u64,
    pub inodes: u64,
    /// Bytes of these blocks in plain form.
    pub plain_bytes: u64,
    /// And in packed form, with access times.
    pub packed_bytes: u64,
}

impl std::ops::AddAssign for Packed {
    fn add_assign(&mut self, other: Packed) {
        self.blocks += other.blocks;
        self.inodes += other.inodes;
        self.plain_bytes += other.plain_bytes;
        self.packed_bytes += other.packed_bytes;
    }
}

/// Objects that nothing leads to any more.
#[derive(Default)]
pub struct Left(Vec<(u64, pram::Tag)>);

impl Left {
    /// The last two steps.
    pub fn free(&mut self, session: &Session) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        session.drain()?;
        self.free_in(&mut session.begin()?)
    }

    /// The last step, where no operation is under way.
    pub fn free_in(&mut self, op: &mut Op) -> Result<()> {
        let (blocks, others): (Vec<_>, Vec<_>) = self.0.drain(..).partition(|(_, tag)| *tag == tag::INODE_BLOCK);
        self.0 = others;
        let blocks = spare::store(op, blocks.into_iter().map(|(off, _)| off).collect())?;
        self.0.extend(blocks.into_iter().map(|off| (off, tag::INODE_BLOCK)));
        let mut tx = op.tx()?;
        for (off, tag) in self.0.drain(..) {
            tx.free(off, tag)?;
        }
        Ok(tx.commit()?)
    }
}

/// A block and its state when it was looked at without locks.
struct Candidate {
    block: u64,
    generations: [Option<u32>; N],
}

/// Packs the quiet ones of these blocks: none of their inodes has changed since `quiet_since`, or been read, as far as that was noted since
/// they were packed. Stops when `go_on` says so.
pub fn pack(
    session: &Session,
    table: Table,
    mut blocks: Range<u64>,
    quiet_since: i64,
    go_on: &dyn Fn() -> bool,
) -> Result<Packed> {
    let mut packed = Packed::default();
    while go_on() {
        // 1.
        let (mut candidates, mut looked) = (Vec::new(), 0);
        while looked < LOOK && !blocks.is_empty() {
            let next = table.next_block(blocks.start)?.filter(|block| *block < blocks.end);
            blocks.start = next.map_or(blocks.end, |block| block + 1);
            let Some(block) = next else { break };
            looked += 1;
            // An unreadable block may be in the midst of being unpacked; or it is damaged, and fsck reports it.
            if let Ok(Some(inodes)) = look(table, block, quiet_since) {
                candidates.push(Candidate { block, generations: generations(&inodes) });
            }
            if candidates.len() == BATCH {
                break;
            }
        }
        if candidates.is_empty() {
            match blocks.is_empty() {
                true => break,
                false => continue,
            }
        }
        // Only packing needs memory for a profile.
        match super::profiles::make_first(session, table) {
            Err(e) if e.is_full() => return Ok(packed),
            made => made?,
        }
        // 2.
        session.drain()?;
        // 3 to 6.
        let mut left = Left::default();
        let mut done = Ok(());
        for candidate in &candidates {
            match pack_one(session, table, candidate, quiet_since, &mut left) {
                Ok(one) => packed += one.unwrap_or_default(),
                // One that takes less may find room.
                Err(e) if e.is_full() => done = Err(e),
                Err(e) => {
                    done = Err(e);
                    break;
                }
            }
        }
        // 7 and 8.
        left.free(session)?;
        match done {
            // No room for the packed form of some: the others stay packed.
            Err(e) if e.is_full() && packed.blocks > 0 => break,
            Err(e) if e.is_full() => {}
            done => done?,
        }
    }
    Ok(packed)
}

fn generations(inodes: &[Option<RawInode>; N]) -> [Option<u32>; N] {
    inodes.map(|inode| inode.map(|raw| raw.generation))
}

/// The inodes of a block that may be packed, or packed again.
fn look(table: Table, block: u64, quiet_since: i64) -> Result<Option<[Option<RawInode>; N]>> {
    match table.block(block)? {
        Block::Plain(off) => look_plain(table, off, quiet_since),
        // A damaged one stays as it is.
        Block::Packed(off) if table.memory.load(Off::new(off))? != 0 => {
            Ok(table.whole(off)?.filter(|it| it.is_whole && read_before(table, it, quiet_since)).map(|it| it.inodes))
        }
        _ => Ok(None),
    }
}

fn look_plain(table: Table, off: u64, quiet_since: i64) -> Result<Option<[Option<RawInode>; N]>> {
    let lengths: [u8; N] = table.memory.read(Off::new(off))?;
    let mut inodes = [None; N];
    for (n, inode) in inodes.iter_mut().enumerate() {
        match lengths[n] {
            0 => continue,
            length if u64::from(length) == INODE => {}
            // Another process is about to use it.
            _ => return Ok(None),
        }
        let raw: RawInode = table.memory.read(place_in(off, n as u64).inode)?;
        if !is_quiet(&raw, quiet_since) {
            return Ok(None);
        }
        *inode = Some(raw);
    }
    Ok(inodes.iter().any(Option::is_some).then_some(inodes))
}

/// Nothing changes it in time to come, as far as it shows. (When it was changed last `ctime` says: any user can set the others.)
fn is_quiet(raw: &RawInode, since: i64) -> bool {
    let content = Content { root: raw.content, size: raw.size, pages: raw.extra, owner: 0 };
    raw.nlink > 0 && raw.times().is_before(raw.ctime, since) && !(raw.kind == Kind::Regular as u8 && content.is_cut())
}

fn read_before(table: Table, it: &Whole, since: i64) -> bool {
    let times = (0..PER_BLOCK).map(|n| table.memory.load(Off::<u64>::new(it.atimes).index(n)).unwrap_or(0));
    times.max().is_none_or(|newest| (newest as i64) < since)
}

/// Steps 3 to 6 for one block; the later ones for the objects in `left`.
fn pack_one(
    session: &Session,
    table: Table,
    candidate: &Candidate,
    quiet_since: i64,
    left: &mut Left,
) -> Result<Option<Packed>> {
    with_memory(session, || pack_in(&mut session.begin()?, table, candidate, quiet_since, left))
}

fn pack_in(
    op: &mut Op,
    table: Table,
    candidate: &Candidate,
    quiet_since: i64,
    left: &mut Left,
) -> Result<Option<Packed>> {
    // 3.
    let numbers = numbers(candidate.block);
    op.lock(&numbers)?;
    let Some(inodes) = look(table, candidate.block, quiet_since)? else { return Ok(None) };
    let is_other = generations(&inodes) != candidate.generations;
    if is_other || numbers.iter().any(|ino| op.is_long_locked(*ino)) {
        return Ok(None);
    }
    // 4.
    let old = table.block(candidate.block)?;
    let free = inodes.iter().rev().fold(0, |mask, inode| mask << 1 | u16::from(inode.is_none()));
    if let Block::Plain(off) = old {
        if !close(op, table, off, free)? {
            return Ok(None);
        }
    }
    // 5 and 6.
    let inodes = inodes.map(|inode| inode.map(|raw| raw.times().packed(&raw)));
    let swung = write_packed(op, table, &inodes).and_then(|(new, bytes)| {
        left.lead(op, table, candidate.block, old, Block::Packed(new)).map(|led| led.then_some(bytes))
    });
    match (swung, old) {
        (Ok(Some(bytes)), _) => Ok(Some(Packed {
            blocks: 1,
            inodes: u64::from(free.count_zeros()),
            plain_bytes: size_of::<InodeBlock>() as u64,
            packed_bytes: bytes,
        })),
        (failed, Block::Plain(off)) => reopen(op, table, off, free).and(failed.map(|_| None)),
        (failed, _) => failed.map(|_| None),
    }
}

impl Left {
    /// Has the table lead from one form of a block to the other; leaves the old one, or the new one if another process was first.
    fn lead(&mut self, op: &mut Op, table: Table, block: u64, old: Block, new: Block) -> Result<bool> {
        let led = match table.block_word(block)? {
            Some(word) => table.memory.install_word(word, old.word(), new.word())?,
            None => false,
        };
        match if led { old } else { new } {
            Block::Plain(off) => self.0.push((off, tag::INODE_BLOCK)),
            Block::Packed(off) => {
                let atimes = op.session().memory().load(Off::new(off))?;
                self.0.push((off, tag::PACKED));
                self.0.extend((atimes != 0).then_some((atimes, tag::PACKING)));
            }
            Block::None => {}
        }
        Ok(led)
    }
}

/// The packed form of these inodes: its offset, and the bytes that it takes.
fn write_packed(op: &mut Op, table: Table, inodes: &[Option<RawInode>; N]) -> Result<(u64, u64)> {
    let mut packed = [0; MAX];
    let len = table.pack(inodes, &mut packed)?;
    let coded = &packed[..len];
    let head = RawPacked { atimes: 0, check: pram::mem::crc32c(coded), bytes: len as u32 };
    let mut tx = op.tx()?;
    let made = tx.alloc(tag::PACKED, CODED + len as u64)?;
    tx.init_bytes(made.off, head.as_bytes())?;
    tx.init_bytes(made.off + CODED, coded)?;
    let bytes = tx.memory().resolve(made.off, tag::PACKED)?;
    tx.commit()?;
    Ok((made.off, bytes))
}

fn numbers(block: u64) -> [Ino; N] {
    std::array::from_fn(|n| block * PER_BLOCK + n as u64)
}

/// Where the memory of a plain form comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Heap,
    /// The spare blocks.
    Spare,
}

/// Steps 1 to 4 of unpacking the block of `ino`; the later ones for the objects in `left`. It may be plain already.
pub fn unpack(op: &mut Op, table: Table, ino: Ino, memory: Memory, left: &mut Left) -> Result<()> {
    let block = ino / PER_BLOCK;
    // 1.
    match memory {
        Memory::Heap => op.lock(&numbers(block))?,
        Memory::Spare => op.lock(&[&numbers(block)[..], &[spare::KEY]].concat())?,
    }
    let Block::Packed(off) = table.block(block)? else { return Ok(()) };
    // 2.
    let damaged = || Error::Corrupt(format!("packed inode block {block}, with inode {ino}, is not what was packed"));
    let whole = table.whole(off)?.filter(|it| it.is_whole).ok_or_else(damaged)?;
    unpack_whole(op, table, (block, off), &whole, memory, left)
}

/// The same for a damaged block, while all operations are held up: the decodable inodes stay. Returns a report.
pub fn salvage(op: &mut Op, table: Table, block: u64) -> Result<String> {
    op.lock(&numbers(block))?;
    let Block::Packed(off) = table.block(block)? else { return Ok(format!("packed inode block {block}: gone")) };
    let (first, last) = (block * PER_BLOCK, (block + 1) * PER_BLOCK - 1);
    let Some(whole) = table.whole(off)? else {
        // The sweep frees the old one.
        table.block_word(block)?.map_or(Ok(()), |word| table.memory.commit_word(word, 0))?;
        return Ok(format!("packed inode block {block}: inodes {first} to {last} could not be read, removed"));
    };
    // The owners of the objects that a damaged form leads to are unknown: the sweep decides.
    unpack_whole(op, table, (block, off), &whole, Memory::Heap, &mut Left::default())?;
    let kept = whole.inodes.iter().flatten().count();
    Ok(format!("packed inode block {block}: {kept} inodes could be read, {} were lost", whole.lost.len()))
}

fn unpack_whole(
    op: &mut Op,
    table: Table,
    (block, off): (u64, u64),
    whole: &Whole,
    memory: Memory,
    left: &mut Left,
) -> Result<()> {
    // 3.
    let mut plain = InodeBlock::new_zeroed();
    for (n, raw) in whole.inodes.iter().enumerate().filter_map(|(n, inode)| inode.map(|raw| (n, raw))) {
        plain.lengths[n] = INODE as u8;
        plain.inodes[n] = raw;
    }
    let spare = match memory {
        Memory::Heap => None,
        Memory::Spare => Some(spare::take(table.memory)?.ok_or(rustix::io::Errno::NOSPC)?),
    };
    let mut tx = op.tx()?;
    let made = match spare {
        Some(off) => off,
        None => tx.alloc(tag::INODE_BLOCK, size_of::<InodeBlock>() as u64)?.off,
    };
    tx.init_bytes(made, plain.as_bytes())?;
    tx.commit()?;
    // 4.
    left.lead(op, table, block, Block::Packed(off), Block::Plain(made))?;
    Ok(())
}

/// The packed inodes.
pub fn count(table: Table) -> Result<Packed> {
    let (mut packed, mut from) = (Packed::default(), 0);
    while let Some(block) = table.next_block(from)? {
        from = block + 1;
        let Block::Packed(off) = table.block_outside(block)? else { continue };
        // Others may unpack it meanwhile.
        let Ok(bytes) = table.memory.resolve(off, tag::PACKED) else { continue };
        let atimes = match table.memory.load(Off::new(off))? {
            0 => 0,
            _ => size_of::<crate::layout::AccessTimes>() as u64,
        };
        packed += Packed {
            blocks: 1,
            inodes: u64::from(table.used_of(block).unwrap_or(0).count_ones()),
            plain_bytes: size_of::<InodeBlock>() as u64,
            packed_bytes: bytes + atimes,
        };
    }
    Ok(packed)
}
