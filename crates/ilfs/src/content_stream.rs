//! Carrying content elsewhere: the live content of a log as a stream of bytes, and a log whose segments are written from
//! one.
//!
//! ```text
//! stream:  RawCarried | RawCarriedRegion for each region | segments | RawCarriedSegment of sequence 0
//! segment: RawCarriedSegment | parts | the blocks of content that are carried, in their order
//! part:    RawCarriedPart | RawOwner for each block of content; one that is not carried has inode 0
//! ```
//! Segments keep their numbers, and blocks their positions in them, so that a restored memory leads to the restored
//! blocks. One replica of each segment is carried; it is written to all slots that the table gives the segment. Each block
//! is verified when it is read and when it is written, by the checksum that it got when it was first written. Dead and
//! unreadable blocks are not carried.
//!
//! The caller that stores the stream and gives it back has to ensure that it is complete.

use std::collections::BTreeMap;

use exraid::{Aligned, Buffers};
use pram::session::assert_may_wait;
use pram::{Pod, Session};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::error::{Error, Result};
use super::files::Files;
use super::live::Contents;
use super::part::{content_of, Entry, Owner, Part, RawOwner};
use super::place::{Place, Run, BLOCK, MOST_BLOCKS};
use super::table::{Segment, KEY};
use super::Log;

const MAGIC: [u8; 8] = *b"CQ-CARRY";
const VERSION: u32 = 1;
/// Most regions of a stream.
const REGIONS: u32 = 1 << 16;
/// Blocks that are read or written at once.
const PIECE: u32 = 256;

/// The head of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawCarried {
    pub magic: [u8; 8],
    pub version: u32,
    /// Blocks of a segment.
    pub blocks: u32,
    /// How many regions follow.
    pub regions: u32,
    pub reserved: u32,
}

/// A region of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawCarriedRegion {
    pub number: u32,
    pub slots: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawCarriedSegment {
    /// 0: the end; no segment follows.
    pub sequence: u64,
    /// How many parts follow, and then blocks; in the last record, `blocks` is the number of blocks that could not be
    /// read.
    pub parts: u32,
    pub blocks: u32,
}

/// A part, as in its summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawCarriedPart {
    pub written: i64,
    pub block: u32,
    pub number: u32,
    pub entries: u32,
    pub head: u32,
    pub class: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<RawCarried>() == 24 && size_of::<RawCarriedRegion>() == 8);
const _: () = assert!(size_of::<RawCarriedSegment>() == 16 && size_of::<RawCarriedPart>() == 32);

/// The result of carrying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub blocks: u64,
    /// Live blocks that could not be read.
    pub unread: u64,
}

/// The head of a stream, with its regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carries {
    /// Blocks of a segment.
    pub blocks: u32,
    pub regions: Vec<RawCarriedRegion>,
}

impl Carries {
    /// Bytes that a region must have at least.
    pub fn size_of(&self, region: &RawCarriedRegion) -> u64 {
        u64::from(region.slots) * u64::from(self.blocks) * BLOCK
    }
}

/// Takes the bytes of a stream.
pub type Put<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// The bytes of a stream, as they are given back.
pub trait Source {
    /// The next bytes; `None` at the end.
    fn next_bytes(&mut self) -> Result<Option<&[u8]>>;

    /// The error to return if the bytes make no sense.
    fn bad(&self, why: &str) -> Error;
}

impl Log {
    /// About how many bytes of content would be carried.
    pub fn carries_about(&self, session: &Session) -> Result<u64> {
        Ok(self.head(session)?.live * BLOCK)
    }

    /// Carries the live content as `session` sees it. No process may change that memory, and segments must stay where
    /// they are meanwhile. `progress`: blocks that were carried, and about how many there are.
    pub fn carry(
        &self,
        session: &Session,
        files: &dyn Files,
        put: Put,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Carried> {
        assert_may_wait();
        self.refresh(session)?;
        let table = self.at.table(session.memory());
        let (live, regions) = session.read(KEY, || Ok::<_, Error>((table.head()?.live, table.regions()?)))?;
        let head = RawCarried {
            magic: MAGIC,
            version: VERSION,
            blocks: self.blocks,
            regions: regions.len() as u32,
            reserved: 0,
        };
        put(head.as_bytes())?;
        for (_, region) in regions {
            put(RawCarriedRegion { number: region.number, slots: region.slots }.as_bytes())?;
        }
        let mut carried = Carried::default();
        for slot in session.read(KEY, || table.used_slots())? {
            let segment = session.read(KEY, || table.get(slot))?;
            self.carry_one(session, files, (slot, &segment), put, &mut carried)?;
            progress(carried.blocks, live.max(carried.blocks));
        }
        let unread = u32::try_from(carried.unread).unwrap_or(u32::MAX);
        put(RawCarriedSegment { sequence: 0, parts: 0, blocks: unread }.as_bytes())?;
        Ok(carried)
    }

    fn carry_one(
        &self,
        session: &Session,
        files: &dyn Files,
        (slot, segment): (u32, &Segment),
        put: Put,
        carried: &mut Carried,
    ) -> Result<()> {
        if segment.live == 0 {
            return Ok(());
        }
        let contents = match self.contents(session, slot, segment) {
            Ok(contents) => contents,
            // None of it can be read, here or after it was carried.
            Err(Error::Missing(_) | Error::Device(_)) => {
                carried.unread += u64::from(segment.live);
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let live = contents.live(files).map(|live| Ok(live?.place)).collect::<Result<Vec<Place>>>()?;
        let blocks = self.read_all(session, &live)?;
        // Blocks of a summary that cannot be read are not among those found.
        let unknown = if contents.is_whole { 0 } else { u64::from(segment.live).saturating_sub(live.len() as u64) };
        carried.unread += unknown + (live.len() - blocks.len()) as u64;
        carried.blocks += blocks.len() as u64;
        if !blocks.is_empty() {
            put(&record(segment.sequence, &contents, &blocks))?;
        }
        Ok(())
    }

    /// The content of those of these places that can be read.
    fn read_all(&self, session: &Session, places: &[Place]) -> Result<BTreeMap<Place, Vec<u8>>> {
        let mut blocks = BTreeMap::new();
        for run in Run::of(places.iter().copied(), PIECE) {
            match self.read_run(session, run) {
                Ok(bytes) => {
                    blocks.extend(
                        (0..run.blocks).map(|n| run.place(n)).zip(bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec)),
                    );
                }
                // One by one.
                Err(Error::Damaged { .. } | Error::Device(_) | Error::Missing(_) | Error::Lost(_)) => {
                    for place in (0..run.blocks).map(|n| run.place(n)) {
                        if let Ok(bytes) = self.read_run(session, Run::one(place)) {
                            blocks.insert(place, bytes);
                        }
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(blocks)
    }

    fn read_run(&self, session: &Session, run: Run) -> Result<Vec<u8>> {
        let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * BLOCK as usize));
        Ok(self.read(session, run, memory)?.wait(self, session)?.to_vec())
    }
}

/// The bytes of a segment in the stream.
fn record(sequence: u64, contents: &Contents, blocks: &BTreeMap<Place, Vec<u8>>) -> Vec<u8> {
    let raw = RawCarriedSegment { sequence, parts: contents.parts.len() as u32, blocks: blocks.len() as u32 };
    let mut bytes = raw.as_bytes().to_vec();
    for part in &contents.parts {
        let Part { written, block, number, head, class, .. } = *part;
        let entries = part.entries.len() as u32;
        bytes.extend(RawCarriedPart { written, block, number, entries, head, class, reserved: 0 }.as_bytes());
        for (place, Entry { owner, version, crc }) in part.blocks() {
            let raw = RawOwner {
                ino: owner.ino,
                page: owner.page,
                version: *version,
                generation: owner.generation,
                crc: *crc,
            };
            bytes.extend(if blocks.contains_key(&place) { raw } else { RawOwner::new_zeroed() }.as_bytes());
        }
    }
    blocks.values().for_each(|block| bytes.extend(block));
    bytes
}

/// A stream that is read, piece by piece.
pub struct Stream<'s> {
    source: &'s mut dyn Source,
    rest: Vec<u8>,
    at: usize,
}

impl<'s> Stream<'s> {
    /// Reads the head of the stream; `None` if the stream is empty.
    pub fn open(source: &'s mut dyn Source) -> Result<Option<(Stream<'s>, Carries)>> {
        let mut stream = Stream { source, rest: Vec::new(), at: 0 };
        let Some(head) = stream.first::<RawCarried>()? else { return Ok(None) };
        let fits = head.magic == MAGIC && head.blocks <= MOST_BLOCKS && head.regions <= REGIONS;
        if !fits || head.version != VERSION {
            return Err(stream.source.bad("its content has another format than this program reads"));
        }
        let regions = (0..head.regions).map(|_| stream.value()).collect::<Result<Vec<_>>>()?;
        Ok(Some((stream, Carries { blocks: head.blocks, regions })))
    }

    /// So many bytes; `None` at the end of the stream.
    fn bytes(&mut self, len: usize) -> Result<Option<&[u8]>> {
        if self.at > 0 && self.rest.len() - self.at < len {
            self.rest.drain(..self.at);
            self.at = 0;
        }
        while self.rest.len() - self.at < len {
            match self.source.next_bytes()? {
                Some(more) => self.rest.extend_from_slice(more),
                None if self.rest.len() == self.at => return Ok(None),
                None => return Err(self.source.bad("its content ends too early")),
            }
        }
        self.at += len;
        Ok(Some(&self.rest[self.at - len..self.at]))
    }

    fn first<T: Pod>(&mut self) -> Result<Option<T>> {
        let bytes = self.bytes(size_of::<T>())?;
        Ok(bytes.and_then(|bytes| T::read_from_bytes(bytes).ok()))
    }

    fn value<T: Pod>(&mut self) -> Result<T> {
        match self.first()? {
            Some(value) => Ok(value),
            None => Err(self.source.bad("its content ends too early")),
        }
    }

    fn bad(&self, why: &str) -> Error {
        self.source.bad(why)
    }

    /// Fails if anything follows.
    pub fn end(mut self) -> Result<()> {
        match self.bytes(1)? {
            None => Ok(()),
            Some(_) => Err(self.bad("something follows the end of its content")),
        }
    }

    /// The next segment and its parts; the last record has none.
    fn segment(&mut self, blocks: u32) -> Result<(RawCarriedSegment, Vec<Part>)> {
        let raw: RawCarriedSegment = self.value()?;
        let (mut parts, mut end) = (Vec::new(), 0);
        for _ in 0..raw.parts {
            let part: RawCarriedPart = self.value()?;
            if part.block < end || part.entries > content_of(blocks.saturating_sub(part.block)) {
                return Err(self.bad("its content contradicts itself"));
            }
            let owners = (0..part.entries).map(|_| self.value()).collect::<Result<Vec<RawOwner>>>()?;
            let entry = |raw: RawOwner| Entry {
                owner: Owner { ino: raw.ino, generation: raw.generation, page: raw.page },
                version: raw.version,
                crc: raw.crc,
            };
            let RawCarriedPart { written, block, number, head, class, .. } = part;
            let entries = owners.into_iter().map(entry).collect();
            let part = Part { sequence: raw.sequence, block, number, segment: blocks, head, class, written, entries };
            end = part.end();
            parts.push(part);
        }
        Ok((raw, parts))
    }
}

impl Log {
    /// Writes the content of a stream to the slots where this table has its segments; durable when it returns. The
    /// regions must be empty. `progress`: blocks that were written.
    pub fn write_stream(
        &self,
        session: &Session,
        stream: &mut Stream<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Carried> {
        assert_may_wait();
        self.refresh(session)?;
        let (mut carried, limit) = (Carried::default(), self.head(session)?.limit);
        loop {
            let (raw, parts) = stream.segment(self.blocks)?;
            if raw.sequence == 0 {
                carried.unread = raw.blocks.into();
                break;
            }
            let place = (raw.sequence < super::place::SEQUENCES).then(|| Place::new(raw.sequence, 0));
            let found = place.map(|place| self.find(session, place)).transpose();
            let Ok(Some((slot, segment))) = found else {
                return Err(stream.bad("it has content that its memory does not lead to"));
            };
            let mut bytes = vec![0; segment.used as usize * BLOCK as usize];
            carried.blocks += fill(stream, &raw, &parts, &mut bytes)?;
            let table = self.at.table(session.memory());
            let replicas = session.read(KEY, || table.replicas(slot, &segment))?;
            for (replica, _) in replicas.into_iter().filter(|(_, entry)| !entry.partial) {
                self.write_carried(session, replica, &parts, &mut bytes)?;
            }
            progress(carried.blocks);
        }
        for region in self.regions() {
            region.flush().map_err(Error::from)?;
            region.raise_sequence(limit).map_err(Error::from)?;
        }
        Ok(carried)
    }

    /// Writes one replica of a segment, with the summaries of the region that it lies in.
    fn write_carried(&self, session: &Session, slot: u32, parts: &[Part], bytes: &mut [u8]) -> Result<()> {
        let lies = self.lies(session, slot)?;
        let at = |block: u32| block as usize * BLOCK as usize;
        for part in parts {
            part.write(&lies.identity, &mut bytes[at(part.block)..at(part.first())]);
            let carried = part.blocks().filter(|(_, entry)| entry.owner.ino != 0).map(|(place, _)| place);
            let summary = (part.block..part.first()).map(|block| Place::new(part.sequence, block));
            for run in Run::of(summary.chain(carried), PIECE) {
                let from = run.first.block();
                lies.region.write_at(&bytes[at(from)..at(from + run.blocks)], lies.at + u64::from(from) * BLOCK)?;
            }
        }
        Ok(())
    }
}

/// Reads the blocks of a segment into its bytes; returns how many.
fn fill(stream: &mut Stream<'_>, raw: &RawCarriedSegment, parts: &[Part], bytes: &mut [u8]) -> Result<u64> {
    let mut left = raw.blocks;
    for part in parts {
        if part.end() as usize * BLOCK as usize > bytes.len() {
            return Err(stream.bad("its content contradicts its memory"));
        }
        for (place, entry) in part.blocks().filter(|(_, entry)| entry.owner.ino != 0) {
            let at = place.block() as usize * BLOCK as usize;
            let to = &mut bytes[at..at + BLOCK as usize];
            match stream.bytes(BLOCK as usize)? {
                Some(block) if left > 0 && crc32c::crc32c(block) == entry.crc => to.copy_from_slice(block),
                _ => return Err(stream.bad("its content has a block whose checksum is wrong")),
            }
            left -= 1;
        }
    }
    match left {
        0 => Ok(raw.blocks.into()),
        _ => Err(stream.bad("its content contradicts itself")),
    }
}
