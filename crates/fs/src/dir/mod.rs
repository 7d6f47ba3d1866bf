//! Directories: extendible hash tables of names (Conquest, 3.3.2).
//!
//! An empty directory has no object, a small one a lone bucket that grows with it, a large one a table of
//! buckets indexed by the top bits of the name's hash. A bucket that overflows is split in two by the next
//! bit; if no bit is left, the table doubles. Buckets that became nearly empty are merged, the table is
//! halved, and in the end one bucket alone remains.
//!
//! ```text
//! inode: content (root word), size (entries) → bucket
//!                                            → table → buckets
//! ```
//!
//! Buckets of a quiet directory are packed, one by one; adding an entry to one makes it plain.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`naming`] | hashes of names, and the codes of packed ones |
//! | [`bucket`] | entries in one object: find, add, remove |
//! | [`image`] | copies of buckets: reading them through, making new ones |
//! | [`packed`] | packed buckets |
//! | [`table`] | offsets of buckets |
//! | `grow` | making room: larger buckets, splits, doubling |
//! | `shrink` | giving room back: merges, halving; never needs memory |
//! | `pack` | packing and unpacking buckets |
//! | `readout` | listing, in the order of the hash |
//! | `check` | the invariants, for fsck, and every object, for the sweep |
//!
//! Read-out follows the order of the hash, which splits, merges and doubling keep; a cookie is a place in
//! that order, so it stays right however the table changes between two calls.
//!
//! Readers take no lock: they check everything that they find in persistent RAM, and their caller throws the
//! result away if a change came in between. Writers hold the directory's lock.

mod bucket;
mod check;
mod grow;
mod image;
mod naming;
mod pack;
mod packed;
mod readout;
mod shrink;
mod table;
#[cfg(test)]
mod tests;

use pram::{Memory, Tx};
use rustix::io::Errno;

use crate::attr::NAME_MAX;
use crate::error::{Error, Result};
use crate::layout::{RawInode, Root};
use bucket::{Bucket, Found, Look};
use image::Builder;
use packed::Packed;
use table::{AnyBucket, Table};

pub(crate) use naming::Naming;
pub(crate) use pack::{each_packed, pack_next};
pub use pack::{packed_entries, Taken};

/// The fields of a directory's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dir {
    /// A packed [`Root`] of one of the forms below.
    pub root: u64,
    pub entries: u64,
}

/// Forms of the root.
pub(crate) mod form {
    /// No entries, no object.
    pub const EMPTY: u8 = 0;
    /// One bucket of local depth 0.
    pub const LONE: u8 = 1;
    /// A table of the depth that the root says.
    pub const TABLE: u8 = 2;
    /// One packed bucket of local depth 0.
    pub const PACKED: u8 = 3;
}

impl Dir {
    pub const EMPTY: Dir = Dir { root: 0, entries: 0 };

    /// Of the inode of a directory.
    #[inline(always)]
    pub fn of(raw: &RawInode) -> Dir {
        Dir { root: raw.content, entries: raw.size }
    }

    fn set_lone(&mut self, off: u64) {
        self.root = Root { off, form: form::LONE, depth: 0 }.pack();
    }

    fn set_packed(&mut self, off: u64) {
        self.root = Root { off, form: form::PACKED, depth: 0 }.pack();
    }

    fn set_table(&mut self, table: &Table) {
        self.root = Root { off: table.off, form: form::TABLE, depth: table.depth }.pack();
    }
}

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Inode number, 40 bits.
    pub ino: u64,
    /// `d_type`.
    pub kind: u8,
}

/// Looks a name up.
#[inline]
pub(crate) fn lookup(r: &Memory, names: &impl Naming, d: &Dir, name: &[u8]) -> Result<Option<Entry>> {
    if name.len() > NAME_MAX {
        return Ok(None);
    }
    let hash = names.hash(name);
    let root = Root::unpack(d.root);
    // `place_of` without the parts for writers.
    let bucket = match root.form {
        form::EMPTY => return Ok(None),
        form::LONE => AnyBucket::Plain(lone(r, root.off)?),
        form::TABLE => {
            let table = Table::open(r, root.off, root.depth)?;
            table.bucket(r, table.index(hash))?.0
        }
        form::PACKED => AnyBucket::Packed(Packed::open(r, root.off)?),
        _ => return Err(unknown_form(&root)),
    };
    match bucket {
        AnyBucket::Plain(bucket) => Ok(bucket.find(r, hash, name)?.found().map(|f| f.entry())),
        AnyBucket::Packed(bucket) => Ok(bucket.find(r, names, name)?.map(|(_, entry)| entry)),
    }
}

/// Where a name is.
#[derive(Clone, Copy)]
pub(crate) enum EntryPlace {
    Plain(Placed<Bucket>, Found),
    /// With its number in the packed bucket.
    Packed(Placed<Packed>, usize, Entry),
}

impl EntryPlace {
    #[inline(always)]
    pub fn entry(&self) -> Entry {
        match self {
            EntryPlace::Plain(_, found) => found.entry(),
            EntryPlace::Packed(_, _, entry) => *entry,
        }
    }
}

/// Where a name would go that is not there.
#[derive(Clone, Copy)]
pub(crate) struct Vacancy {
    hash: u64,
    /// Its bucket, if that is plain, and whether no other entry there has its hash bits.
    place: Option<(Placed<Bucket>, bool)>,
}

pub(crate) use check::check;
pub use readout::SHORT_MAX;
pub(crate) use readout::{read, visit};
pub(crate) use shrink::free;

/// About how many bytes the directory occupies: exact for a lone bucket, else from the number of entries.
pub(crate) fn allocated(r: &Memory, d: &Dir) -> Result<u64> {
    let root = Root::unpack(d.root);
    Ok(match root.form {
        form::EMPTY => 0,
        form::LONE | form::PACKED => r.resolve(root.off, crate::layout::tag::BUCKET)?,
        _ => (8u64 << root.depth.min(32)).saturating_add(d.entries.saturating_mul(32)),
    })
}

/// A bucket and how it is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<B> {
    bucket: B,
    /// The table and the first of its entries that refer to the bucket; `None` for a lone bucket.
    table: Option<(Table, u64)>,
}

type BucketPlace = Placed<Bucket>;

/// The bucket where a hash belongs, if the directory has any.
#[inline(always)]
fn place_of(r: &Memory, d: &Dir, hash: u64) -> Result<Option<Placed<AnyBucket>>> {
    let root = Root::unpack(d.root);
    let (bucket, table) = match root.form {
        form::EMPTY => return Ok(None),
        form::LONE => (AnyBucket::Plain(lone(r, root.off)?), None),
        form::TABLE => {
            let table = Table::open(r, root.off, root.depth)?;
            let (bucket, first) = table.bucket(r, table.index(hash))?;
            (bucket, Some((table, first)))
        }
        form::PACKED => (AnyBucket::Packed(Packed::open(r, root.off)?), None),
        _ => return Err(unknown_form(&root)),
    };
    Ok(Some(Placed { bucket, table }))
}

/// The bucket of a directory that has no other.
#[inline(always)]
fn lone(r: &Memory, off: u64) -> Result<Bucket> {
    let bucket = Bucket::open(r, off)?;
    if bucket.head.depth != 0 {
        return Err(damaged(bucket.off, "bucket is deeper than its table"));
    }
    Ok(bucket)
}

#[cold]
fn unknown_form(root: &Root) -> Error {
    damaged(root.off, "directory's form is unknown")
}

/// Looks for the place of a name.
#[inline(always)]
pub(crate) fn spot(r: &Memory, h: &impl Naming, d: &Dir, name: &[u8]) -> Result<Option<EntryPlace>> {
    if name.len() > NAME_MAX {
        return Ok(None);
    }
    let hash = h.hash(name);
    let Some(Placed { bucket, table }) = place_of(r, d, hash)? else { return Ok(None) };
    Ok(match bucket {
        AnyBucket::Plain(bucket) => {
            bucket.find(r, hash, name)?.found().map(|found| EntryPlace::Plain(Placed { bucket, table }, found))
        }
        AnyBucket::Packed(bucket) => {
            bucket.find(r, h, name)?.map(|(n, entry)| EntryPlace::Packed(Placed { bucket, table }, n, entry))
        }
    })
}

/// Removes the name there, with the directory as it was then; works on a full pool. The caller writes `d` back in
/// the same transaction.
#[inline]
pub(crate) fn take(tx: &mut Tx, h: &impl Naming, d: &mut Dir, spot: EntryPlace) -> Result<()> {
    match spot {
        EntryPlace::Plain(mut place, found) => {
            place.bucket.remove(tx, &found)?;
            d.entries = d.entries.saturating_sub(1);
            shrink::give_back(tx, d, place)
        }
        EntryPlace::Packed(place, n, _) => pack::remove(tx, h, d, &place, n),
    }
}

/// Looks for the place of a new name; `None` if it is there already.
#[inline(always)]
pub(crate) fn vacancy(r: &Memory, h: &impl Naming, d: &Dir, name: &[u8]) -> Result<Option<Vacancy>> {
    let hash = h.hash(name);
    let Some(Placed { bucket, table }) = place_of(r, d, hash)? else { return Ok(Some(Vacancy { hash, place: None })) };
    let bucket = match bucket {
        AnyBucket::Plain(bucket) => bucket,
        AnyBucket::Packed(bucket) => {
            let is_there = bucket.find(r, h, name)?.is_some();
            return Ok((!is_there).then_some(Vacancy { hash, place: None }));
        }
    };
    let alone = match bucket.find(r, hash, name)? {
        Look::Found(_) => return Ok(None),
        Look::Alone => true,
        Look::Among => false,
    };
    Ok(Some(Vacancy { hash, place: Some((Placed { bucket, table }, alone)) }))
}

/// Adds a name that is known to be absent. The caller writes `d` back in the same transaction.
pub(crate) fn insert(tx: &mut Tx, h: &impl Naming, d: &mut Dir, name: &[u8], e: Entry) -> Result<()> {
    check_name(name)?;
    add(tx, h, d, h.hash(name), name, e)
}

#[inline(always)]
fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::INVAL.into()),
        n if n > NAME_MAX => Err(Errno::NAMETOOLONG.into()),
        _ => Ok(()),
    }
}

/// Adds a name where there is room for it, with the directory as it was then. The caller writes `d` back in the
/// same transaction.
#[inline(always)]
pub(crate) fn fill(tx: &mut Tx, h: &impl Naming, d: &mut Dir, at: Vacancy, name: &[u8], e: Entry) -> Result<()> {
    check_name(name)?;
    if let Some((mut place, alone)) = at.place {
        if place.bucket.add(tx, h, (at.hash, alone), name, e)? {
            d.entries += 1;
            return Ok(());
        }
    }
    add(tx, h, d, at.hash, name, e)
}

/// Adds a name to the bucket where it belongs, and makes room there first if there is none.
#[cold]
#[inline(never)]
fn add(tx: &mut Tx, h: &impl Naming, d: &mut Dir, hash: u64, name: &[u8], e: Entry) -> Result<()> {
    // Each round that does not add the entry makes a bucket plain, larger or deeper, and each has a limit.
    for _ in 0..1 + bucket::SIZES.len() + 2 * usize::from(table::MAX_DEPTH) {
        match place_of(tx.memory(), d, hash)? {
            Some(Placed { bucket: AnyBucket::Plain(bucket), table }) => {
                let mut place = Placed { bucket, table };
                if place.bucket.add(tx, h, (hash, false), name, e)? {
                    d.entries += 1;
                    return Ok(());
                }
                grow::make_room(tx, h, d, &place, bucket::cost(name))?;
            }
            Some(Placed { bucket: AnyBucket::Packed(bucket), table }) => {
                pack::unpack(tx, h, d, &Placed { bucket, table }, bucket::cost(name))?;
            }
            None => {
                let size = bucket::size_for(bucket::HEADER + bucket::cost(name)).unwrap_or(bucket::SPLIT);
                d.set_lone(Builder::new(size).store(tx, 0)?.off);
            }
        }
    }
    Err(pram::Error::NoSpace.into())
}

/// Removes a name; works on a full pool. The caller writes `d` back in the same transaction.
#[inline]
pub(crate) fn remove(tx: &mut Tx, h: &impl Naming, d: &mut Dir, name: &[u8]) -> Result<Option<Entry>> {
    let Some(spot) = spot(tx.memory(), h, d, name)? else { return Ok(None) };
    take(tx, h, d, spot)?;
    Ok(Some(spot.entry()))
}

/// Lets a name lead elsewhere; returns where it led. Works on a full pool where the bucket is plain. The caller writes `d` back
/// in the same transaction.
pub(crate) fn replace(tx: &mut Tx, h: &impl Naming, d: &mut Dir, name: &[u8], e: Entry) -> Result<Option<Entry>> {
    let Some(spot) = spot(tx.memory(), h, d, name)? else { return Ok(None) };
    match spot {
        EntryPlace::Plain(place, found) => place.bucket.replace(tx, &found, e)?,
        EntryPlace::Packed(place, n, _) => {
            if !place.bucket.change(tx, h, |items| items[n].lead_to(e))? {
                pack::unpack(tx, h, d, &place, 0)?;
                return replace(tx, h, d, name, e);
            }
        }
    }
    Ok(Some(spot.entry()))
}

#[cold]
fn damaged(off: u64, what: &str) -> Error {
    Error::Corrupt(format!("{what} (at {off:#x})"))
}
