//! The incremental image of a memory: its pages (4 KiB) as of exactly one commit, in a file of its own.
//!
//! An update replaces the image atomically by shadow paging: changed pages go to slots that nothing refers to,
//! then one header makes all of it the image. Every byte that counts is under a checksum, and each checksum
//! under that of the table above it, up to the header: stale bytes are noticed as surely as damaged ones.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this one | the file: headers, opening, reading |
//! | `compare` | slots that are wrong in a copy |
//! | `read` | slots in large reads; the loss when one is damaged |
//! | `table` | the tables in memory |
//! | `slots` | the slots that are taken |
//! | `update` | writing; the ordered steps |
//!
//! ```text
//! 0       header, copy 0     4 KiB, [`RawImage`]
//! 4096    header, copy 1     4 KiB, the same, or of the generation before
//! 8192    slots              4 KiB each: pages of the memory, and tables, in any order
//!
//! A header may be followed by a [`RawAnew`]: the image was made anew from memory, and the logs do not count.
//!
//! header → table → … → table → page      tables have 512 entries, [`RawEntry`]
//! ```
//! A slot's number is its offset divided by 4096, so that 0 can say that nothing is stored: all pages below are
//! zero. There are 4 levels of tables, whatever the memory's size.
//!
//! Ordered steps of an update:
//! 1. Changed pages and the tables above them are written to slots that the image does not use. (Else a crash
//!    would leave an image that is partly old and partly new.)
//! 2. Flush. (Else the header could be durable before what it refers to.)
//! 3. The header is written over the copy that the image was *not* read from or last made durable in. (A torn
//!    write leaves the other, and with it the old image.)
//! 4. Flush. Only then is the new image durable, and only then are the slots that it does not use free. (Else
//!    the next update could write over the old image while it still is the one that counts.)
//! 5. The header is written over the other copy too; the next flush makes that durable. (It names the
//!    same image, so that a sector that goes bad under one header loses nothing. If it is torn, the first is
//!    durable already.)
//!
//! Only the image of the newest header stays whole: the slots of the one before are reused at once. Keeping
//! them would give an older image, but the redo log no longer has the commits that follow it. Step 5 gives the same
//! safety against a bad sector, with the newest image.
//!
//! A write or flush that failed is not tried again, as in [`crate::log`]: the image refuses every change after it.
//! It can still be read; the disk holds the image before, or the new one, whole.

mod compare;
mod read;
mod slots;
mod table;
mod update;

use std::io;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::disk::{read_places, Attempts, Disk};
use crate::log::{Identity, Instant};
use pram::error::{Error, Result};
use pram::memory::{fingerprint, MAX_SIZE};

use read::Source;
use slots::Slots;
use table::{Tables, Wanted, FANOUT};

pub use compare::Suspect;
pub use update::Update;

/// Bytes of a page and of a slot.
pub const PAGE: u64 = 4096;

const HEADER_AT: [u64; 2] = [0, PAGE];
/// The first slot, behind the headers.
const FIRST: u32 = 2;
const MAGIC: [u8; 8] = *b"CQ-PAGES";
const VERSION: u32 = 2;
const ANEW: u32 = u32::from_le_bytes(*b"CQAN");
/// Most bytes of one read or write.
const RUN: usize = 1 << 20;
/// Pages that are sorted by their slots at a time when all are read: 16 bytes of memory each.
const BATCH: usize = 1 << 20;

/// The header, as it lies at offsets 0 and 4096. A [`RawAnew`] may follow; the rest of the 4 KiB is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawImage {
    pub magic: [u8; 8],
    pub version: u32,
    /// Bytes per page.
    pub page: u32,
    /// Of the memory, as is the fingerprint.
    pub uuid: [u8; 16],
    pub fingerprint: u64,
    /// Goes up by one with each update.
    pub generation: u64,
    /// The commit that the image is as of, and its instant.
    pub commit: u64,
    pub time: i64,
    /// The uppermost table.
    pub root: RawEntry,
    /// No slot after this one is used, and the file is at least so long.
    pub last: u32,
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawImage>() == 80);

/// Behind the header of an image that was made anew from memory; zeros behind any other. One sector holds both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawAnew {
    /// `CQAN`; 0: the image was not made anew.
    pub magic: u32,
    /// Of the logs that do not count, if their generations are at most the one below.
    pub lineage: u32,
    pub generation: u64,
    /// CRC-32C of the header and the bytes before.
    pub crc: u32,
    /// 0.
    pub reserved: u32,
}
const _: () = assert!(size_of::<RawAnew>() == 24);

/// A header and the [`RawAnew`] that follows it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Header {
    raw: RawImage,
    anew: RawAnew,
}
const _: () = assert!(size_of::<Header>() == 104);

impl Header {
    fn of(raw: RawImage, anew: Option<Anew>) -> Header {
        let mut header = Header { raw, anew: RawAnew::default() };
        header.raw.crc = header_crc(&header.raw);
        if let Some(Anew { lineage, generation }) = anew {
            header.anew = RawAnew { magic: ANEW, lineage, generation, crc: 0, reserved: 0 };
            header.anew.crc = header.anew_crc();
        }
        header
    }

    fn is_whole(&self) -> bool {
        self.raw.magic == MAGIC && self.raw.crc == header_crc(&self.raw)
    }

    fn anew(&self) -> Option<Anew> {
        let RawAnew { magic, lineage, generation, crc, .. } = self.anew;
        (magic == ANEW && crc == self.anew_crc()).then_some(Anew { lineage, generation })
    }

    fn anew_crc(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[..size_of::<RawImage>() + std::mem::offset_of!(RawAnew, crc)])
    }

    fn page(&self) -> [u8; PAGE as usize] {
        let mut page = [0; PAGE as usize];
        page[..size_of::<Header>()].copy_from_slice(self.as_bytes());
        page
    }
}

/// The logs that do not count, since the image was made anew from memory when they existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anew {
    pub lineage: u32,
    /// The newest of them.
    pub generation: u64,
}

/// The place of a page or table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawEntry {
    /// 0: nowhere, it is all zero.
    pub slot: u32,
    /// CRC-32C of the slot.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawEntry>() as u64 * FANOUT == PAGE);

impl RawEntry {
    fn is_stored(self) -> bool {
        self.slot != 0
    }
}

/// An image that can be read and updated.
pub struct Image<D> {
    disk: D,
    id: Identity,
    generation: u64,
    /// The copy of the header that is known to be durable.
    copy: usize,
    at: Instant,
    anew: Option<Anew>,
    tables: Tables,
    slots: Slots,
    /// Pages that are not all zero.
    stored: u64,
    attempts: Attempts,
}

impl<D: Disk> Image<D> {
    /// Makes an image as of `at` whose pages are all zero.
    pub fn create(disk: D, id: Identity, at: Instant) -> Result<Image<D>> {
        let (tables, slots) = (Tables::empty(RawEntry::default()), Slots::new(0));
        let mut pages = Image {
            disk,
            id,
            generation: 1,
            copy: 0,
            at,
            anew: None,
            tables,
            slots,
            stored: 0,
            attempts: Attempts::default(),
        };
        // Both at once: an earlier header must not look like the other copy.
        let header = pages.header(1, at, None, RawEntry::default());
        let both = [header, header].concat();
        let written = pages.disk.write_all_at(&both, 0).and_then(|()| pages.disk.flush());
        pages.attempts.ended("making the image", written)?;
        Ok(pages)
    }

    /// The memory and the instant of the image, by its header alone.
    pub fn peek(disk: &D) -> Result<(Identity, Instant)> {
        let (Header { raw, .. }, _) = read_header(disk, None)?;
        Ok((Identity { uuid: raw.uuid }, Instant { commit: raw.commit, time: raw.time }))
    }

    /// How often it was updated, by its header alone.
    pub fn generation(disk: &D) -> Result<u64> {
        Ok(read_header(disk, None)?.0.raw.generation)
    }

    /// The logs that do not count, since the image was made anew when they existed, by its header alone.
    pub fn anew(disk: &D) -> Result<Option<Anew>> {
        Ok(read_header(disk, None)?.0.anew())
    }

    /// Bytes of the image's file that are, or were, used, by its header alone.
    pub fn extent(disk: &D) -> Result<u64> {
        Ok((u64::from(read_header(disk, None)?.0.raw.last) + 1) * PAGE)
    }

    /// Opens the image that the newest whole header names, after checking its tables. It must be of the memory
    /// `id`; with `None`, of any.
    pub fn open(disk: D, id: Option<Identity>) -> Result<Image<D>> {
        let (header, copy) = read_header(&disk, id)?;
        let at = Instant { commit: header.raw.commit, time: header.raw.time };
        let source = Source { disk: &disk, at };
        source.check_length(header.raw.last)?;
        let (tables, slots) = load(&source, &header.raw)?;
        Ok(Image::of(disk, (header, copy), tables, slots))
    }

    /// Opens an image whose tables cannot be read, to make it anew: all of its slots are taken until then.
    pub fn open_unread(disk: D, id: Identity) -> Result<Image<D>> {
        let (header, copy) = read_header(&disk, Some(id))?;
        let mut slots = Slots::new(header.raw.last);
        (FIRST..=header.raw.last).for_each(|slot| _ = slots.claim(slot));
        Ok(Image::of(disk, (header, copy), Tables::empty(RawEntry::default()), slots))
    }

    fn of(disk: D, (header, copy): (Header, usize), tables: Tables, slots: Slots) -> Image<D> {
        let (raw, anew) = (header.raw, header.anew());
        Image {
            id: Identity { uuid: raw.uuid },
            generation: raw.generation,
            copy,
            at: Instant { commit: raw.commit, time: raw.time },
            anew,
            stored: tables.count(),
            tables,
            slots,
            attempts: Attempts::default(),
            disk,
        }
    }

    /// The memory that this is an image of.
    pub fn id(&self) -> Identity {
        self.id
    }

    /// The commit that this is an image as of.
    pub fn instant(&self) -> Instant {
        self.at
    }

    /// Pages that are stored: those that are not all zero.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Bytes of the file that are, or were, used.
    pub fn bytes(&self) -> u64 {
        (u64::from(self.slots.last()) + 1) * PAGE
    }

    /// Reads a page. One that is not stored is all zero, and `false` is returned.
    pub fn read(&self, page: u64, buf: &mut [u8]) -> Result<bool> {
        self.check(page, buf.len())?;
        let entry = self.tables.entry(0, page);
        if entry.is_stored() {
            self.source().read(&Wanted { entry, key: page }, 0, buf)?;
        } else {
            buf.fill(0);
        }
        Ok(entry.is_stored())
    }

    /// The CRC-32C of a page that is stored.
    pub fn crc(&self, page: u64) -> Option<u32> {
        let entry = self.tables.entry(0, page);
        entry.is_stored().then_some(entry.crc)
    }

    /// The first page from `from` on that is stored.
    pub fn next_stored(&self, from: u64) -> Option<u64> {
        self.tables.stored_from(from).next().map(|found| found.key)
    }

    /// Gives every stored page to `put(page, bytes)`, in the order that is fastest to read.
    pub fn read_all(&self, put: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut stored = self.tables.stored_from(0);
        loop {
            let mut batch: Vec<Wanted> = stored.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.source().read_many(&mut batch, 0, put)?;
        }
    }

    /// Makes sure that the image is durable, also if its writer died before, or could not flush it: steps 3
    /// and 4 again, with the same image. Its pages are durable, since steps 1 and 2 come before a header can be read.
    pub fn settle(&mut self) -> Result<()> {
        self.refuse_failed()?;
        let header = self.header(self.generation, self.at, self.anew, self.tables.root);
        let at = HEADER_AT[self.copy];
        let written = self.disk.write_all_at(&header, at).and_then(|()| self.disk.flush());
        self.attempts.ended("writing the image's header", written)?;
        Image::settle_copies(&self.disk)
    }

    /// If the disk has several copies, writes the header that was found to both places of all of them. (Else a copy
    /// could have the header of an image whose pages are about to be overwritten.)
    pub fn settle_copies(disk: &D) -> Result<()> {
        if disk.copies() < 2 {
            return Ok(());
        }
        let (header, copy) = read_header(disk, None)?;
        let page = header.page();
        let again = || -> io::Result<()> {
            for at in [copy, 1 - copy] {
                disk.write_all_at(&page, HEADER_AT[at])?;
                disk.flush()?;
            }
            Ok(())
        };
        again().map_err(|e| Error::of_io("writing the image's header again", &e))
    }

    /// Begins an update, which replaces the image when [`Update::finish`] returns.
    pub fn begin(&mut self) -> Update<'_, D> {
        Update::new(self, None)
    }

    /// Begins an update that reads nothing of this image: unwritten pages are all zero. The logs of `anew` do not count
    /// once it is finished.
    pub fn begin_anew(&mut self, anew: Anew) -> Update<'_, D> {
        Update::new(self, Some(anew))
    }

    fn source(&self) -> Source<'_, D> {
        Source { disk: &self.disk, at: self.at }
    }

    /// Fails unless there is such a page, and its buffer has the right length.
    fn check(&self, page: u64, len: usize) -> Result<()> {
        match page < MAX_SIZE / PAGE && len as u64 == PAGE {
            true => Ok(()),
            false => Err(Error::BadAddress { off: page.saturating_mul(PAGE), len: len as u64 }),
        }
    }

    fn header(&self, generation: u64, at: Instant, anew: Option<Anew>, root: RawEntry) -> [u8; PAGE as usize] {
        let raw = RawImage {
            magic: MAGIC,
            version: VERSION,
            page: PAGE as u32,
            uuid: self.id.uuid,
            fingerprint: fingerprint(),
            generation,
            commit: at.commit,
            time: at.time,
            root,
            last: self.slots.last(),
            crc: 0,
        };
        Header::of(raw, anew).page()
    }

    fn refuse_failed(&self) -> Result<()> {
        self.attempts.refuse_failed("the image could not be written earlier; it cannot be changed any more")
    }
}

/// The gate where the header becomes trusted: the newer of two copies, and which one it is.
fn read_header(disk: &impl Disk, id: Option<Identity>) -> Result<(Header, usize)> {
    let (places, unread) = read_places::<Header>(disk, HEADER_AT, "reading the image's header");
    let is_whole = |(_, header): &&(usize, Header)| header.is_whole();
    let Some((copy, header)) = places.iter().filter(is_whole).max_by_key(|(_, header)| header.raw.generation) else {
        return Err(unread.unwrap_or_else(|| bad("it has no header; put the pool's own image back")));
    };
    let raw = &header.raw;
    if raw.version != VERSION {
        return Err(bad(format!("it has format version {}, this program reads version {VERSION}", raw.version)));
    }
    if id.is_some_and(|id| id.uuid != raw.uuid) {
        return Err(bad("it belongs to another pool; put the pool's own image back"));
    }
    if raw.fingerprint != fingerprint() || u64::from(raw.page) != PAGE {
        return Err(bad("it was made by a build with another layout"));
    }
    Ok((*header, *copy))
}

/// The gate where tables become trusted: read level by level from the uppermost down, each slot named once.
fn load<D: Disk>(source: &Source<D>, raw: &RawImage) -> Result<(Tables, Slots)> {
    let (mut tables, mut slots) = (Tables::empty(raw.root), Slots::new(raw.last));
    let pages = MAX_SIZE / PAGE;
    let mut claim = |found: &Wanted, level: u32| {
        let inside = found.key << (level * FANOUT.ilog2()) < pages;
        match inside && found.entry.slot <= raw.last && slots.claim(found.entry.slot) {
            true => Ok(()),
            false => Err(bad("its tables contradict each other; put a whole copy of it back")),
        }
    };
    for level in (1..=tables.height()).rev() {
        let mut wanted = tables.stored(level);
        wanted.iter().try_for_each(|found| claim(found, level))?;
        source.read_many(&mut wanted, level, &mut |key, bytes| {
            tables.put(level, key, table::block_of(bytes));
            Ok(())
        })?;
    }
    tables.stored_from(0).try_for_each(|found| claim(&found, 0))?;
    Ok((tables, slots))
}

fn header_crc(raw: &RawImage) -> u32 {
    crc32c::crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawImage, crc)])
}

fn bad(why: impl Into<String>) -> Error {
    Error::Unusable(format!("the image cannot be used: {}", why.into()))
}
