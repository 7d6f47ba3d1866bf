//! Listing a directory, in the order of the hash; and naming every object of it.

use pram::{Region, Tag};
use smallvec::SmallVec;

use super::bucket::{self, Bucket};
use super::hash::NameHash;
use super::naming::Naming;
use super::packed::Packed;
use super::table::{AnyBucket, Table};
use super::{damaged, form, Dir, Entry};
use crate::error::Result;
use crate::layout::{tag, Root};

/// Cookies up to this mean the start; the cookie after the entry at position `p` is `p` + 1 + this.
const RESERVED: u64 = 2;

/// Hands out the entries from `cookie` on (0 to 2: all), each with the cookie to go on from after it,
/// until `f` returns false. Cookies are between 3 and 2^62 + 2.
pub fn read(
    r: &Region,
    h: &impl Naming,
    d: &Dir,
    cookie: u64,
    f: &mut dyn FnMut(u64, &[u8], Entry) -> bool,
) -> Result<()> {
    let start = cookie.saturating_sub(RESERVED);
    each_bucket(r, d, start, &mut |bucket, _| match bucket {
        AnyBucket::Plain(bucket) => read_bucket(r, h, bucket, start, f),
        AnyBucket::Packed(bucket) => read_packed(r, h, bucket, start, f),
    })
}

/// Hands out the entries of a packed bucket, which are in order, from position `start` on; false if `f` wants no more.
fn read_packed(
    r: &Region,
    h: &impl Naming,
    bucket: &Packed,
    start: u64,
    f: &mut dyn FnMut(u64, &[u8], Entry) -> bool,
) -> Result<bool> {
    for item in bucket.copy(r, h)?.items()? {
        let position = bucket::position(h.hash(item.name()), item.record.sequence);
        if position >= start && !f(position + 1 + RESERVED, item.name(), item.record.entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Hands out the entries of a bucket from position `start` on; false if `f` wants no more.
fn read_bucket(
    r: &Region,
    h: &impl NameHash,
    bucket: &Bucket,
    start: u64,
    f: &mut dyn FnMut(u64, &[u8], Entry) -> bool,
) -> Result<bool> {
    let image = bucket.image(r)?;
    let mut order: SmallVec<[(u64, u16); 128]> = SmallVec::new();
    for item in image.entries() {
        let item = item?;
        let position = bucket::position(h.hash(item.name), item.record.sequence);
        if position >= start {
            order.push((position, item.pos));
        }
    }
    order.sort_unstable();
    for (position, pos) in order {
        let Some((record, name)) = image.entry_at(pos) else { continue };
        if !f(position + 1 + RESERVED, name, record.entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Calls `f` with each bucket, from the one that holds position `start` on, and its first index, until `f`
/// returns false.
pub fn each_bucket(r: &Region, d: &Dir, start: u64, f: &mut dyn FnMut(&AnyBucket, u64) -> Result<bool>) -> Result<()> {
    let root = Root::unpack(d.root);
    match root.form {
        form::EMPTY => Ok(()),
        form::LONE => f(&AnyBucket::Plain(Bucket::open(r, root.off)?), 0).map(|_| ()),
        form::PACKED => f(&AnyBucket::Packed(Packed::open(r, root.off)?), 0).map(|_| ()),
        form::TABLE => {
            let table = Table::open(r, root.off, root.depth)?;
            let mut index = bucket::index_of_position(start, table.depth);
            while index < table.len() {
                let (bucket, first) = table.bucket(r, index)?;
                if !f(&bucket, first)? {
                    break;
                }
                index = first + table.span(bucket.depth());
            }
            Ok(())
        }
        _ => Err(damaged(root.off, "directory's form is unknown")),
    }
}

/// Names every heap object of the directory.
pub(crate) fn visit(r: &Region, d: &Dir, object: &mut dyn FnMut(u64, Tag)) -> Result<()> {
    visit_with(r, d, object, &mut |_| Ok(()))
}

/// The same, with a look at each bucket before it is named.
pub fn visit_with(
    r: &Region,
    d: &Dir,
    object: &mut dyn FnMut(u64, Tag),
    look: &mut dyn FnMut(&AnyBucket) -> Result<()>,
) -> Result<()> {
    let root = Root::unpack(d.root);
    if root.form == form::TABLE {
        object(root.off, tag::BUCKET_TABLE);
    }
    each_bucket(r, d, 0, &mut |bucket, _| {
        look(bucket)?;
        object(bucket.off(), tag::BUCKET);
        Ok(true)
    })
}
