//! Making room in a bucket: by rebuilding it without removed entries, larger, or split in two.

use pram::Tx;

use super::bucket::{self, Bucket, HEADER, SIZES, SPLIT};
use super::image::Builder;
use super::table::{Table, MAX_DEPTH};
use super::{BucketPlace, Dir};
use crate::error::{Error, Result};
use crate::layout::tag;
use pram::sip::NameHash;
use rustix::io::Errno;

/// Brings the entry of `cost` bytes that the bucket has no room for nearer to having it. The caller looks
/// again where the entry belongs.
#[cold]
pub fn make_room(tx: &mut Tx, h: &impl NameHash, d: &mut Dir, place: &BucketPlace, cost: u64) -> Result<()> {
    let bucket = &place.bucket;
    let need = bucket.needed() + cost;
    // Rebuilding in the same size pays if it frees an eighth: each entry then is copied eight times at most
    // for each byte that is used anew.
    if need <= bucket.cap - bucket.cap / 8 {
        return rebuild(tx, d, place, bucket.cap);
    }
    if let Some(size) = SIZES.into_iter().find(|s| *s > bucket.cap && *s >= need && *s <= SPLIT) {
        return rebuild(tx, d, place, size);
    }
    match split(tx, h, d, place) {
        Err(Error::Posix(Errno::NOSPC)) => match larger(bucket.cap, need) {
            Some(size) => rebuild(tx, d, place, size),
            None => Err(pram::Error::NoSpace.into()),
        },
        other => other,
    }
}

/// The size of a bucket that should be split but cannot.
fn larger(cap: u64, need: u64) -> Option<u64> {
    SIZES.into_iter().find(|s| *s > cap && *s >= need)
}

/// A copy of the bucket with `size` bytes takes its place.
pub fn rebuild(tx: &mut Tx, d: &mut Dir, place: &BucketPlace, size: u64) -> Result<()> {
    let mut builder = Builder::new(size);
    builder.push_all(&place.bucket.image(tx.memory())?)?;
    put_in_place(tx, d, place.table, (place.bucket.off, place.bucket.head.depth), builder)
}

/// A new bucket takes the place of an old one, at `old`, of this local depth.
pub fn put_in_place(
    tx: &mut Tx,
    d: &mut Dir,
    table: Option<(Table, u64)>,
    (old, depth): (u64, u8),
    new: Builder,
) -> Result<()> {
    let writable = match table {
        None => None,
        Some((table, first)) => Some((writable(tx, &table, depth)?, first)),
    };
    let fresh = new.store(tx, depth)?;
    match writable {
        None => d.set_lone(fresh.off),
        Some((writable, first)) => {
            writable.fill(tx, first, writable.span(depth), fresh.off)?;
            adopt(tx, d, table, &writable)?;
        }
    }
    Ok(tx.free(old, tag::BUCKET)?)
}

/// Two buckets take the place of one, parted by the next bit of the hash. ENOSPC, and nothing changed, if
/// that would take a table out of proportion or memory that is not there.
fn split(tx: &mut Tx, h: &impl NameHash, d: &mut Dir, place: &BucketPlace) -> Result<()> {
    let depth = place.bucket.head.depth;
    // An entry per bucket is reached only where hashes agree too far: then a larger bucket is better.
    let table_can_grow = |t: &Table| t.depth < MAX_DEPTH && d.entries >= t.len();
    if place.table.is_some_and(|(t, _)| depth >= t.depth && !table_can_grow(&t)) {
        return Err(pram::Error::NoSpace.into());
    }
    // 1. Everything that needs memory, so that nothing is changed if there is none.
    let [low, high] = halves(tx, h, &place.bucket)?;
    let low = low.store(tx, depth + 1)?;
    let high = high.store(tx, depth + 1);
    let high = or_free(tx, high, &[low.off])?;
    let table = match place.table {
        None => Table::alloc(tx, 1),
        Some((table, _)) if depth < table.depth => writable(tx, &table, depth),
        Some((table, _)) => table.copy(tx, table.depth + 1),
    };
    let table = or_free(tx, table, &[low.off, high.off])?;
    // 2. The change.
    let (span, first) = match place.table {
        None => (1, 0),
        Some((old, first)) => (table.span(depth + 1), first << (table.depth - old.depth)),
    };
    table.fill(tx, first, span, low.off)?;
    table.fill(tx, first + span, span, high.off)?;
    adopt(tx, d, place.table, &table)?;
    Ok(tx.free(place.bucket.off, tag::BUCKET)?)
}

/// Gives buckets that are not needed after all back if `result` is an error.
fn or_free<T>(tx: &mut Tx, result: Result<T>, buckets: &[u64]) -> Result<T> {
    if result.is_err() {
        for off in buckets {
            tx.free(*off, tag::BUCKET)?;
        }
    }
    result
}

/// The entries of a bucket, parted by the bit of the hash that its depth comes to.
fn halves(tx: &Tx, h: &impl NameHash, bucket: &Bucket) -> Result<[Builder; 2]> {
    let image = bucket.image(tx.memory())?;
    let side = |name: &[u8]| (h.hash(name) >> (63 - u32::from(bucket.head.depth)) & 1) as usize;
    let mut bytes = [bucket.needed().min(SPLIT); 2];
    if bucket.needed() > SPLIT {
        bytes = [HEADER; 2];
        image.entries().flatten().for_each(|item| bytes[side(item.name)] += bucket::cost(item.name));
    }
    // Ordinary buckets unless one needs more.
    let mut halves = bytes.map(|b| Builder::new(bucket::size_for(b).unwrap_or(SPLIT).max(SPLIT)));
    for item in image.entries() {
        let item = item?;
        halves[side(item.name)].push(&item)?;
    }
    Ok(halves)
}

/// The table itself if the undo log can take the entries of a bucket of local depth `depth`, leaving as
/// much for the rest of the transaction; a copy if not.
fn writable(tx: &mut Tx, table: &Table, depth: u8) -> Result<Table> {
    if Table::log_needed(table.span(depth)) <= tx.room() / 2 {
        Ok(*table)
    } else {
        table.copy(tx, table.depth)
    }
}

/// Makes `table` the directory's, in place of the one it was reached by.
fn adopt(tx: &mut Tx, d: &mut Dir, old: Option<(Table, u64)>, table: &Table) -> Result<()> {
    if let Some((old, _)) = old {
        if old.off != table.off {
            tx.free(old.off, tag::BUCKET_TABLE)?;
        }
    }
    d.set_table(table);
    Ok(())
}
