//! Packing buckets, and making them plain again. Each is one step of a transaction, of a caller that holds the directory's lock, as any
//! other change of it.

use pram::{Memory, Tx};

use super::bucket::{self, Record, SPLIT};
use super::grow::put_in_place;
use super::naming::Naming;
use super::packed::{encode, ordered, Owned, Packed};
use super::table::{AnyBucket, Table};
use super::{form, readout, shrink, Dir, Entry, Placed};
use crate::error::Result;
use crate::layout::{tag, Root, PACKED};
use crate::packed::Profile;
use pram::memory::capacity_of;

/// The result for one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes that it took, and takes; 0 if it was left as it was.
    pub before: u64,
    pub after: u64,
    /// Where to go on.
    pub next: Option<u64>,
}

/// Packs the bucket at `index` of the directory's table, or its only one, if that makes it smaller. The caller writes `d` back in
/// the same transaction.
pub(crate) fn pack_next(tx: &mut Tx, h: &impl Naming, d: &mut Dir, index: u64) -> Result<Step> {
    let r = tx.memory();
    let root = Root::unpack(d.root);
    let (bucket, table) = match root.form {
        form::LONE => (AnyBucket::Plain(super::lone(r, root.off)?), None),
        form::TABLE => {
            let table = Table::open(r, root.off, root.depth)?;
            if index >= table.len() {
                return Ok(Step::default());
            }
            let (bucket, first) = table.bucket(r, index)?;
            (bucket, Some((table, first)))
        }
        form::PACKED => (AnyBucket::Packed(Packed::open(r, root.off)?), None),
        _ => return Ok(Step::default()),
    };
    let next = table.map(|(table, first)| first + table.span(bucket.depth())).filter(|next| *next < 1 << root.depth);
    // Packing that changes much of the table is left to a caller that changes the directory anyway.
    if table.is_some_and(|(table, _)| Table::log_needed(table.span(bucket.depth())) > tx.room() / 2) {
        return Ok(Step { next, ..Step::default() });
    }
    let (cap, items) = match &bucket {
        AnyBucket::Plain(bucket) => (bucket.cap, ordered(&bucket.image(tx.memory())?, h)),
        // One from which entries were removed may be smaller by now.
        AnyBucket::Packed(bucket) => (bucket.cap, Some(bucket.copy(tx.memory(), h)?.items()?)),
    };
    let bytes = items.map(|items| smallest(h, bucket.depth(), &items)).transpose()?.flatten();
    let Some(bytes) = bytes.filter(|bytes| capacity_of(bytes.len() as u64) < cap) else {
        return Ok(Step { next, ..Step::default() });
    };
    let made = tx.alloc(tag::BUCKET, bytes.len() as u64)?;
    tx.init_bytes(made.off, &bytes)?;
    match table {
        None => d.set_packed(made.off),
        Some((table, first)) => table.fill(tx, first, table.span(bucket.depth()), made.off | PACKED)?,
    }
    tx.free(bucket.off(), tag::BUCKET)?;
    Ok(Step { before: cap, after: made.cap, next })
}

/// The packed form of a bucket with these entries, by the profile that makes the least of it.
fn smallest(h: &impl Naming, depth: u8, items: &[Owned]) -> Result<Option<Vec<u8>>> {
    let mut best = None::<Vec<u8>>;
    for profile in h.profiles()? {
        let Ok(symbols) = h.symbols(profile) else { continue };
        let packed = encode(symbols, profile, depth, items);
        best = best.into_iter().chain(packed).min_by_key(Vec::len);
    }
    Ok(best)
}

/// A plain bucket takes the place of a packed one, with room for `more` bytes if there can be.
#[cold]
pub(super) fn unpack(tx: &mut Tx, h: &impl Naming, d: &mut Dir, place: &Placed<Packed>, more: u64) -> Result<()> {
    let plain = place.bucket.plain(tx.memory(), h, more)?;
    put_in_place(tx, d, place.table, (place.bucket.off, place.bucket.head.depth), plain)
}

/// Removes an entry of a packed bucket where it lies: no memory is needed for it.
#[cold]
pub(super) fn remove(tx: &mut Tx, h: &impl Naming, d: &mut Dir, place: &Placed<Packed>, n: usize) -> Result<()> {
    let removed = place.bucket.change(tx, h, |items| _ = items.remove(n))?;
    if !removed {
        return Err(super::damaged(place.bucket.off, "packed bucket grows where an entry is removed"));
    }
    d.entries = d.entries.saturating_sub(1);
    match d.entries {
        0 => shrink::free(tx, d),
        _ => Ok(()),
    }
}

/// Calls `bucket` for each packed bucket with its plain size, and with its packed one, in bytes.
pub(crate) fn each_packed(r: &Memory, h: &impl Naming, d: &Dir, bucket: &mut dyn FnMut(u64, u64)) -> Result<()> {
    readout::each_bucket(r, d, 0, &mut |each, _| {
        if let AnyBucket::Packed(packed) = each {
            bucket(capacity_of(packed.plain_size(&packed.copy(r, h)?.items()?, 0)?), packed.cap);
        }
        Ok(true)
    })
}

/// The bytes of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub plain: u64,
    pub packed: u64,
}

/// Bytes of memory that a directory takes with these entries, of inode number, `d_type` and name, when it is written and when it has been
/// packed by `profile`; for estimates. A large one is divided into buckets that are three quarters full.
pub fn packed_entries<'n>(profile: &Profile, entries: impl Iterator<Item = (u64, u8, &'n [u8])>) -> Taken {
    let (mut taken, mut items, mut needed) = (Taken::default(), Vec::new(), bucket::HEADER);
    let mut end = |items: &mut Vec<Owned>, size: u64| {
        if items.is_empty() {
            return;
        }
        let plain = capacity_of(size);
        let packed = encode(profile.symbols(), 0, 0, items).map_or(plain, |bytes| capacity_of(bytes.len() as u64));
        taken.plain += plain;
        taken.packed += packed.min(plain);
        items.clear();
    };
    for (ino, kind, name) in entries {
        let cost = bucket::cost(name);
        if needed + cost > SPLIT {
            // This one, full, would be two.
            let half = items.split_off(items.len() * 3 / 4);
            end(&mut items, SPLIT);
            items = half;
            needed = bucket::HEADER + items.iter().map(|item: &Owned| bucket::cost(item.name())).sum::<u64>();
        }
        items.push(Owned::new(Record { entry: Entry { ino, kind }, sequence: 0, len: name.len() as u8 }, name));
        needed += cost;
    }
    end(&mut items, bucket::size_for(needed).unwrap_or(needed));
    taken
}
