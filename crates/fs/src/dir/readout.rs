//! Listing a directory, in the order of the hash; and naming every object of it.

use pram::{Memory, Tag};
use smallvec::SmallVec;

use super::bucket::{self, Bucket};
use super::naming::Naming;
use super::packed::{Owned, Packed};
use super::table::{AnyBucket, Table};
use super::{damaged, form, Dir, Entry};
use crate::error::Result;
use crate::layout::{tag, Root};
use pram::sip::NameHash;

/// Cookies up to this mean the start.
const RESERVED: u64 = 2;

/// Cookies up to this are *short*: they leave out the low bits of a position. They fit the `off_t` of 32-bit programs, and beyond
/// them are 2^16 numbers that do and are no cookies: front ends may use these as they like.
pub const SHORT_MAX: u64 = FITS - (1 << 16);
const LEFT_OUT: u32 = 31;
const FITS: u64 = i32::MAX as u64;

/// On a long cookie that would look like a short one: there are none as high otherwise.
const LONG: u64 = 1 << 62;

/// The cookie to go on from after the entry at `position`: a short one, unless the `next` entry, or one that is the next by then, would
/// be left out with it. Cookies never change: entries added later in between were not there throughout.
fn cookie_after(position: u64, next: Option<u64>) -> u64 {
    let short = (position >> LEFT_OUT) + 1 + RESERVED;
    if short <= SHORT_MAX && next.is_none_or(|next| next >> LEFT_OUT != position >> LEFT_OUT) {
        return short;
    }
    match position + 1 + RESERVED {
        long if long <= FITS => long | LONG,
        long => long,
    }
}

/// The first position that is to be read after `cookie`.
fn position_of(cookie: u64) -> u64 {
    match cookie {
        0..=RESERVED => 0,
        _ if cookie <= SHORT_MAX => (cookie - RESERVED) << LEFT_OUT,
        _ if cookie > LONG + RESERVED => cookie - LONG - RESERVED,
        _ => cookie - RESERVED,
    }
}

/// Hands out the entries from `cookie` on (0 to 2: all), each with the cookie to go on from after it,
/// until `f` returns false. Cookies are between 3 and 2^62 + 2^31, and short but for where hashes are hard to tell apart.
pub fn read(
    r: &Memory,
    h: &impl Naming,
    d: &Dir,
    cookie: u64,
    f: &mut dyn FnMut(u64, &[u8], Entry) -> bool,
) -> Result<()> {
    let start = position_of(cookie);
    each_bucket(r, d, start, &mut |bucket, _| match bucket {
        AnyBucket::Plain(bucket) => read_bucket(r, h, bucket, start, f),
        AnyBucket::Packed(bucket) => read_packed(r, h, bucket, start, f),
    })
}

/// Hands out the entries of a packed bucket, which are in order, from position `start` on; false if `f` wants no more.
fn read_packed(
    r: &Memory,
    h: &impl Naming,
    bucket: &Packed,
    start: u64,
    f: &mut dyn FnMut(u64, &[u8], Entry) -> bool,
) -> Result<bool> {
    let place = |item: &Owned| bucket::position(h.hash(item.name()), item.record.sequence);
    let copy = bucket.copy(r, h)?;
    let items = copy.items()?;
    let places: SmallVec<[u64; 128]> = items.iter().map(place).collect();
    for (n, (item, position)) in items.iter().zip(&places).enumerate() {
        let (position, next) = (*position, places.get(n + 1).copied());
        if position >= start && !f(cookie_after(position, next), item.name(), item.record.entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Hands out the entries of a bucket from position `start` on; false if `f` wants no more.
fn read_bucket(
    r: &Memory,
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
    for (n, (position, pos)) in order.iter().enumerate() {
        let Some((record, name)) = image.entry_at(*pos) else { continue };
        let next = order.get(n + 1).map(|(next, _)| *next);
        if !f(cookie_after(*position, next), name, record.entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Calls `f` with each bucket, from the one that holds position `start` on, and its first index, until `f`
/// returns false.
pub fn each_bucket(r: &Memory, d: &Dir, start: u64, f: &mut dyn FnMut(&AnyBucket, u64) -> Result<bool>) -> Result<()> {
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
pub(crate) fn visit(r: &Memory, d: &Dir, object: &mut dyn FnMut(u64, Tag)) -> Result<()> {
    visit_with(r, d, object, &mut |_| Ok(()))
}

/// The same, with a look at each bucket before it is named.
pub fn visit_with(
    r: &Memory,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_leads_to_what_comes_after_it() {
        let last = (1 << 62) - 1;
        let positions = [0, 1, 2, 1 << 31, (1 << 31) + 1, 5 << 31, (5 << 31) + 7, 6 << 31, last - 1, last];
        for (n, position) in positions.into_iter().enumerate() {
            let next = positions.get(n + 1).copied();
            let start = position_of(cookie_after(position, next));
            assert!(start > position && next.is_none_or(|next| start <= next), "{position:#x}: {start:#x}");
        }
        assert_eq!(cookie_after(5 << 31, Some(6 << 31)), 8, "fits 31 bits");
        assert_eq!([0, 1, 2].map(position_of), [0; 3]);
        assert_eq!(position_of((9 << 40) + 3), (9 << 40) + 1, "as long cookies always were");
    }
}
