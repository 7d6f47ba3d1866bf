//! The invariants of a directory.

use std::collections::HashSet;

use pram::Memory;
use smallvec::SmallVec;

use super::bucket::{self, Bucket};
use super::image::{Image, Item};
use super::naming::Naming;
use super::packed::Packed;
use super::table::{AnyBucket, Table};
use super::{form, Dir, Entry};
use crate::attr::Kind;
use crate::error::Error;
use crate::layout::{Root, MAX_INODES};

/// Calls `problem` with a clause for each fault of the directory, and `entry` with each
/// entry that makes sense in itself: from these the directory can be made anew.
pub fn check(
    r: &Memory,
    h: &impl Naming,
    d: &Dir,
    problem: &mut dyn FnMut(String),
    entry: &mut dyn FnMut(&[u8], Entry),
) {
    let mut check = Check { r, h, problem, entry, entries: 0 };
    let root = Root::unpack(d.root);
    match root.form {
        form::EMPTY if d.root == 0 => {}
        form::LONE if root.depth == 0 => match Bucket::open(r, root.off) {
            Ok(bucket) => check.bucket(&bucket, 0, 0),
            Err(e) => check.fail(e),
        },
        form::PACKED if root.depth == 0 => match Packed::open(r, root.off) {
            Ok(bucket) => check.packed(&bucket, 0, 0),
            Err(e) => check.fail(e),
        },
        form::TABLE => match Table::open(r, root.off, root.depth) {
            Ok(table) => check.table(&table),
            Err(e) => check.fail(e),
        },
        _ => check.tell(format_args!("its root {:#x} makes no sense", d.root)),
    }
    let entries = check.entries;
    if entries != d.entries {
        problem(format!("it says that it has {} entries, and has {entries}", d.entries));
    }
}

struct Check<'a, H> {
    r: &'a Memory,
    h: &'a H,
    problem: &'a mut dyn FnMut(String),
    entry: &'a mut dyn FnMut(&[u8], Entry),
    entries: u64,
}

impl<H: Naming> Check<'_, H> {
    fn tell(&mut self, what: impl std::fmt::Display) {
        (self.problem)(what.to_string());
    }

    fn fail(&mut self, e: Error) {
        match e {
            Error::Corrupt(what) => self.tell(what),
            e => self.tell(e),
        }
    }

    fn allocated(&mut self, off: u64) {
        match self.r.is_allocated(off) {
            Ok(true) => {}
            Ok(false) => self.tell(format_args!("its object {off:#x} is not allocated")),
            Err(e) => self.fail(e.into()),
        }
    }

    /// Each bucket stands in all the entries that its depth gives it, and in no others.
    fn table(&mut self, table: &Table) {
        self.allocated(table.off);
        let mut seen = HashSet::new();
        let mut index = 0;
        while index < table.len() {
            let word = table.word(self.r, index).unwrap_or(0);
            let same = self.run(table, index, word);
            match table.bucket(self.r, index) {
                Err(e) => {
                    self.tell(format_args!("entry {index} of its table is damaged"));
                    self.fail(e);
                }
                Ok((bucket, first)) => {
                    let span = table.span(bucket.depth());
                    if (first, span) != (index, same) || !seen.insert(bucket.off()) {
                        self.tell(format_args!(
                            "its bucket {:#x} of depth {} stands in {same} entries of its table from {index} on",
                            bucket.off(),
                            bucket.depth()
                        ));
                    }
                    match &bucket {
                        AnyBucket::Plain(bucket) => self.bucket(bucket, table.depth, index),
                        AnyBucket::Packed(bucket) => self.packed(bucket, table.depth, index),
                    }
                }
            }
            index += same;
        }
    }

    /// How many entries from `index` on hold `word`.
    fn run(&self, table: &Table, index: u64, word: u64) -> u64 {
        let differs = |i: &u64| table.word(self.r, *i).ok() != Some(word);
        (index + 1..table.len()).find(differs).unwrap_or(table.len()) - index
    }

    /// A bucket that stands at `index` in a table of depth `depth`; 0 and 0 for a lone one.
    fn bucket(&mut self, bucket: &Bucket, depth: u8, index: u64) {
        self.allocated(bucket.off);
        let head = bucket.head;
        if head.spare != 0 || head.depth > depth {
            self.tell(format_args!("its bucket {:#x} has a header that makes no sense", bucket.off));
        }
        let image = match bucket.image(self.r) {
            Ok(image) => image,
            Err(e) => return self.fail(e),
        };
        let items = self.sound(&image, |hash| belongs(hash, (depth, head.depth), index));
        let live: u64 = items.iter().map(|(_, i)| bucket::cost(i.name)).sum();
        if live != u64::from(head.live) {
            self.tell(format_args!("its bucket {:#x} says that {} bytes live, and {live} do", bucket.off, head.live));
        }
        self.overlaps(bucket, &items);
        self.unique(bucket, items);
    }

    /// The same of a packed one, of which all is believed or nothing.
    fn packed(&mut self, bucket: &Packed, depth: u8, index: u64) {
        self.allocated(bucket.off);
        let items = match bucket.copy(self.r, self.h).and_then(|copy| copy.items()) {
            Ok(items) => items,
            Err(e) => return self.fail(e),
        };
        let mut last = None;
        for item in items {
            let (name, record) = (item.name(), item.record);
            let hash = self.h.hash(name);
            let position = bucket::position(hash, record.sequence);
            if let Some(what) = nonsense(name, record.entry) {
                self.tell(format_args!("its entry \"{}\" has {what}", name.escape_ascii()));
                continue;
            }
            if !belongs(hash, (depth, bucket.head.depth), index) || last >= Some(position) {
                self.tell(format_args!("its entry \"{}\" is not where its hash says", name.escape_ascii()));
            }
            last = last.max(Some(position));
            self.entries += 1;
            (self.entry)(name, record.entry);
        }
    }

    /// The entries of a bucket that make sense, with their hashes.
    fn sound<'i>(&mut self, image: &'i Image, belongs: impl Fn(u64) -> bool) -> Vec<(u64, Item<'i>)> {
        let mut items = Vec::with_capacity(usize::from(image.head.slots));
        for item in image.entries() {
            let item = match item {
                Ok(item) => item,
                Err(e) => {
                    self.fail(e);
                    continue;
                }
            };
            let hash = self.h.hash(item.name);
            let unplaced = (item.pos < image.head.start).then_some("a record outside of the records");
            if let Some(what) = unplaced.or_else(|| nonsense(item.name, item.record.entry)) {
                self.tell(format_args!("its entry \"{}\" has {what}", item.name.escape_ascii()));
                continue;
            }
            if !item.tag_is_of(hash) || !belongs(hash) {
                self.tell(format_args!("its entry \"{}\" is not where its hash says", item.name.escape_ascii()));
            }
            items.push((hash, item));
        }
        items
    }

    fn overlaps(&mut self, bucket: &Bucket, items: &[(u64, Item)]) {
        let mut places: SmallVec<[(u64, u64); 128]> =
            items.iter().map(|(_, i)| (u64::from(i.pos), bucket::cost(i.name) - bucket::SLOT)).collect();
        places.sort_unstable();
        if places.windows(2).any(|p| p[0].0 + p[0].1 > p[1].0) {
            self.tell(format_args!("its bucket {:#x} has records that overlap", bucket.off));
        }
    }

    /// No two entries have the same name or the same place in the order of read-out. Hands out the entries.
    fn unique(&mut self, bucket: &Bucket, mut items: Vec<(u64, Item)>) {
        items.sort_unstable_by_key(|(hash, i)| (*hash, i.name));
        for (n, (hash, item)) in items.iter().enumerate() {
            if n > 0 && items[n - 1].1.name == item.name {
                self.tell(format_args!("it has \"{}\" twice", item.name.escape_ascii()));
                continue;
            }
            self.entries += 1;
            (self.entry)(item.name, item.record.entry);
            let position = bucket::position(*hash, item.record.sequence);
            let clash =
                items[..n].iter().rev().take_while(|(h, _)| bucket::position(*h, 0) == bucket::position(*hash, 0));
            if clash.clone().any(|(h, i)| bucket::position(*h, i.record.sequence) == position) {
                self.tell(format_args!("its bucket {:#x} has entries with the same cookie", bucket.off));
            }
        }
    }
}

/// Does an entry with this hash belong into a bucket at `index` of its table, of these depths of table and bucket?
fn belongs(hash: u64, (depth, local): (u8, u8), index: u64) -> bool {
    let unused = u32::from(depth.saturating_sub(local));
    let here = hash.checked_shr(64 - u32::from(depth)).unwrap_or(0);
    here >> unused == index >> unused
}

/// Errors of an entry in itself.
fn nonsense(name: &[u8], Entry { ino, kind }: Entry) -> Option<&'static str> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/')) {
        Some("a name that is none")
    } else if Kind::from_type(kind).is_none() {
        Some("a type that is none")
    } else if ino == 0 || ino >= MAX_INODES {
        Some("an inode number that is out of range")
    } else {
        None
    }
}
