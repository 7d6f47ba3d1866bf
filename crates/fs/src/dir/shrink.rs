//! Giving room back after removals. Memory for it is used if there is some, never needed.

use pram::{Tag, Tx};
use smallvec::SmallVec;

use super::bucket::{self, Bucket, HEADER, SIZES, SPLIT};
use super::image::Builder;
use super::table::{AnyBucket, Table};
use super::{damaged, form, grow, readout, BucketPlace, Dir};
use crate::error::{Error, Result};
use crate::layout::{tag, Root};
use rustix::io::Errno;

/// Looks whether the bucket, from which something was removed, can be made smaller, merged or freed.
#[inline]
pub fn give_back(tx: &mut Tx, d: &mut Dir, place: BucketPlace) -> Result<()> {
    if d.entries == 0 {
        return free(tx, d);
    }
    let needed = place.bucket.needed();
    match place.table {
        None if needed <= place.bucket.cap / 4 && place.bucket.cap > SIZES[0] => smaller(tx, d, &place),
        Some((table, first)) => {
            if needed <= place.bucket.cap / 4 {
                merge(tx, d, place)?;
            }
            // At numbers of entries that come seldom: looking may take a pass over the table.
            if d.entries < table.len() * 4 && (d.entries % 256 == 0 || d.entries.is_power_of_two()) {
                halve(tx, d, first)?;
            }
            Ok(())
        }
        None => Ok(()),
    }
}

/// Rebuilds a lone bucket in half as much again as it needs.
fn smaller(tx: &mut Tx, d: &mut Dir, place: &BucketPlace) -> Result<()> {
    let needed = place.bucket.needed();
    match bucket::size_for(needed + needed / 2) {
        Some(size) if size < place.bucket.cap => if_space(grow::rebuild(tx, d, place, size)).map(|_| ()),
        _ => Ok(()),
    }
}

/// `None` instead of an error if there was no memory.
fn if_space<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Posix(Errno::NOSPC)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Merges a bucket with its buddy, the one that a split would part it from, and the result with its
/// buddy, and so on, as long as it is at most half full.
#[cold]
fn merge(tx: &mut Tx, d: &mut Dir, mut place: BucketPlace) -> Result<()> {
    while let Some((table, first)) = place.table {
        let depth = place.bucket.head.depth;
        if depth == 0 {
            // One bucket stands in the whole table.
            tx.free(table.off, tag::BUCKET_TABLE)?;
            d.set_lone(place.bucket.off);
            return Ok(());
        }
        let span = table.span(depth);
        let (buddy, buddy_first) = table.bucket(tx.memory(), first ^ span)?;
        let AnyBucket::Plain(buddy) = buddy else { return Ok(()) };
        if buddy.head.depth != depth || Table::log_needed(2 * span) > tx.room() / 2 {
            return Ok(());
        }
        let Some(merged) = merge_two(tx, place.bucket, buddy)? else { return Ok(()) };
        let first = first.min(buddy_first);
        for (at, old) in
            [(first, table.word(tx.memory(), first)?), (first + span, table.word(tx.memory(), first + span)?)]
        {
            if old != merged.off {
                table.fill(tx, at, span, merged.off)?;
                tx.free(old, tag::BUCKET)?;
            }
        }
        place = BucketPlace { bucket: merged, table: Some((table, first)) };
    }
    Ok(())
}

/// A bucket of one less depth with the entries of both: one of the two, or a new one; `None` if they
/// should stay apart.
fn merge_two(tx: &mut Tx, a: Bucket, b: Bucket) -> Result<Option<Bucket>> {
    let total = a.needed() + b.needed() - HEADER;
    if !a.is_empty() && !b.is_empty() && total > SPLIT / 2 {
        return Ok(None);
    }
    let depth = a.head.depth - 1;
    for (from, mut to) in [(a, b), (b, a)] {
        if to.fits(from.needed() - HEADER) {
            if !from.is_empty() {
                let image = from.image(tx.memory())?;
                to.add_all(tx, &image)?;
            }
            to.set_depth(tx, depth)?;
            return Ok(Some(to));
        }
    }
    let mut both = Builder::new(SPLIT);
    for bucket in [a, b] {
        both.push_all(&bucket.image(tx.memory())?)?;
    }
    if_space(both.store(tx, depth))
}

/// Halves the table as often as its buckets and the memory allow.
#[cold]
fn halve(tx: &mut Tx, d: &mut Dir, near: u64) -> Result<()> {
    loop {
        let root = Root::unpack(d.root);
        if root.form != form::TABLE || root.depth <= 1 {
            return Ok(());
        }
        let table = Table::open(tx.memory(), root.off, root.depth)?;
        if !table.can_halve(tx.memory(), near & (table.len() - 1))? {
            return Ok(());
        }
        let Some(half) = if_space(table.halve(tx))? else { return Ok(()) };
        tx.free(table.off, tag::BUCKET_TABLE)?;
        d.set_table(&half);
    }
}

/// Frees all objects of an empty directory.
pub(crate) fn free(tx: &mut Tx, d: &mut Dir) -> Result<()> {
    let mut objects: SmallVec<[(u64, Tag); 8]> = SmallVec::new();
    let r = tx.memory();
    readout::visit_with(r, d, &mut |off, tag| objects.push((off, tag)), &mut |bucket| {
        let is_empty = match bucket {
            AnyBucket::Plain(bucket) => bucket.is_empty(),
            AnyBucket::Packed(bucket) => bucket.is_empty(r)?,
        };
        is_empty.then_some(()).ok_or_else(|| damaged(bucket.off(), "empty directory has entries"))
    })?;
    for (off, tag) in objects {
        tx.free(off, tag)?;
    }
    *d = Dir::EMPTY;
    Ok(())
}
