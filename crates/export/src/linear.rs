//! Regions one after the other, as one linear device.
//!
//! Addresses are those of [`exraid::Space`]; a request that crosses a boundary becomes one for each side.
//!
//! A request waits for a disk that does not answer, as for a block device, unless its region can do without it: the
//! file system above would give up after an error of a write or a flush.

mod discard;

use std::ops::Range;
use std::sync::Arc;

use exraid::{Aligned, Buffers, Class, Error, Op, Region, Request, Result, Space, Ticket};

use crate::device::BlockDevice;
use crate::marks::{Marked, Marks};
use crate::range_locks::RangeLocks;

/// Zeros per write, in bytes.
const ZEROS: u64 = 1 << 20;
/// Sizes are multiples of a block that suits any disk.
const WHOLE: u64 = 4096;

/// A region in the line.
struct Part {
    /// Its first byte in the line.
    start: u64,
    size: u64,
    /// Its first address in the space.
    address: u64,
    region: Arc<dyn Region>,
}

/// A piece of a request, in one region.
struct Piece {
    part: usize,
    /// The offset in the region.
    at: u64,
    /// The bytes of the request.
    of: Range<u64>,
}

/// The device; see the [module](self).
pub struct Linear {
    name: Arc<str>,
    space: Space,
    parts: Vec<Part>,
    size: u64,
    block: u64,
    preferred: u32,
    discards: bool,
    range_locks: RangeLocks,
    marks: Option<Marks>,
}

impl Linear {
    /// Of regions in ascending order of their numbers. `discards`: a stretch that its members have discarded reads as
    /// zeros.
    pub fn new(name: &str, regions: Vec<Arc<dyn Region>>, discards: bool) -> Result<Linear> {
        let name: Arc<str> = name.into();
        let (mut parts, mut size, space) = (Vec::new(), 0, Space::default());
        let (mut block, mut preferred) = (512, 0);
        for region in regions {
            let properties = region.properties();
            let own = properties.size / WHOLE * WHOLE;
            let address = exraid::space::addresses(region.number(), own).start;
            (block, preferred) = (block.max(u64::from(properties.block)), preferred.max(properties.preferred));
            let twice = |region: Arc<dyn Region>| {
                let what = format!("there are two regions with the number {}", region.number());
                Error::new(Class::Invalid, &name, what)
            };
            space.add(region.clone()).map_err(twice)?;
            parts.push(Part { start: size, size: own, address, region });
            size += own;
        }
        Ok(Linear {
            name,
            space,
            parts,
            size,
            block,
            preferred,
            discards,
            range_locks: RangeLocks::default(),
            marks: None,
        })
    }

    /// Adds an intent map, where writes are marked before they begin.
    #[must_use]
    pub fn marked(self, marks: Marks) -> Linear {
        Linear { marks: Some(marks), ..self }
    }

    pub fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    pub fn regions(&self) -> Vec<Arc<dyn Region>> {
        self.space.regions()
    }

    /// The place of each region in the line.
    pub fn places(&self) -> Vec<(Range<u64>, Arc<dyn Region>)> {
        self.parts.iter().map(|part| (part.start..part.start + part.size, part.region.clone())).collect()
    }

    fn check(&self, what: &str, range: &Range<u64>) -> Result<()> {
        match range.start <= range.end && range.end <= self.size {
            true => Ok(()),
            false => {
                let (from, to) = (range.start, range.end);
                let what = format!("{what} of bytes {from} to {to}: the volume has {}", self.size);
                Err(Error::new(Class::Invalid, &self.name, what))
            }
        }
    }

    fn pieces(&self, range: &Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let (from, to) = (range.start.max(part.start), range.end.min(part.start + part.size));
            if from < to {
                pieces.push(Piece { part: number, at: from - part.start, of: from - range.start..to - range.start });
            }
        }
        pieces
    }

    fn start(&self, part: usize, op: Op) -> Ticket {
        let at = self.parts[part].address + op.range().start;
        let (done, ticket) = Ticket::new();
        self.space.submit(op.at(at).into(), done);
        ticket
    }

    /// The blocks around these bytes.
    fn around(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.block * self.block..range.end.div_ceil(self.block) * self.block
    }

    /// Can the regions take it as it is, aligned?
    fn fits(&self, at: u64, memory: &Buffers) -> bool {
        let block = self.block;
        at % block == 0 && memory.layout().all(|(at, len)| at % exraid::ALIGNED == 0 && len as u64 % block == 0)
    }

    fn read_blocks(&self, at: u64, into: Buffers) -> Result<Buffers> {
        let range = at..at + into.len();
        let read = |piece: Piece| {
            let into = into.slice(piece.of.clone());
            self.start(piece.part, Op::Read { at: piece.at, into })
        };
        let tickets: Vec<Ticket> = self.pieces(&range).into_iter().map(read).collect();
        let mut all = Buffers::new();
        let mut failed = None;
        for answer in tickets.into_iter().map(Ticket::wait) {
            match answer.result {
                Ok(()) => all.join(answer.buffers.unwrap_or_default()),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(all), Err)
    }

    fn write_blocks(&self, at: u64, from: &Buffers) -> Result<()> {
        let range = at..at + from.len();
        let write = |piece: Piece| {
            let from = from.slice(piece.of.clone());
            self.start(piece.part, Op::Write { at: piece.at, from })
        };
        self.all(self.pieces(&range).into_iter().map(write).collect())
    }

    fn all(&self, tickets: Vec<Ticket>) -> Result<()> {
        let ended = tickets.into_iter().map(|ticket| ticket.wait().result);
        // Waits for all of them, even after a failure.
        ended.fold(Ok(()), Result::and)
    }

    /// Reads bytes at any place, through memory of its own.
    fn read_around(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let around = self.around(range);
        let memory = Aligned::zeroed((around.end - around.start) as usize);
        let found = self.read_blocks(around.start, Buffers::whole(&memory))?;
        Ok(found.slice(range.start - around.start..range.end - around.start).to_vec())
    }

    /// The caller holds a lock on the blocks around it.
    fn write_around(&self, at: u64, from: &Buffers) -> Result<()> {
        let range = at..at + from.len();
        let around = self.around(&range);
        let mut bytes = vec![0; (around.end - around.start) as usize];
        let last = around.end - self.block;
        if range.start != around.start {
            bytes[..self.block as usize]
                .copy_from_slice(&self.read_around(&(around.start..around.start + self.block))?);
        }
        if range.end != around.end && (last != around.start || range.start == around.start) {
            let place = (last - around.start) as usize;
            bytes[place..].copy_from_slice(&self.read_around(&(last..around.end))?);
        }
        let own = (range.start - around.start) as usize..(range.end - around.start) as usize;
        from.copy_to(&mut bytes[own]);
        self.write_blocks(around.start, &Buffers::whole(&Aligned::of(&bytes)))
    }

    fn mark(&self, range: &Range<u64>) -> Result<Option<Marked<'_>>> {
        let refused = |e: crate::Error| Error::new(Class::NoSpace, &self.name, e.to_string());
        self.marks.as_ref().map(|marks| marks.begin(range).map_err(refused)).transpose()
    }

    fn flush_regions(&self) -> Result<()> {
        self.all((0..self.parts.len()).map(|part| self.start_flush(part)).collect())
    }

    fn start_flush(&self, part: usize) -> Ticket {
        self.parts[part].region.start(Request::flush())
    }

    /// Flushes, and clears the marks of stretches without recent writes. To be called now and then.
    pub fn tidy(&self) -> Result<()> {
        let Some(marks) = &self.marks else { return Ok(()) };
        let quiet = marks.quiet();
        if quiet.is_empty() {
            return Ok(());
        }
        self.flush_regions()?;
        marks.clear(&quiet).map_err(|e| Error::new(Class::NoSpace, &self.name, e.to_string()))
    }

    /// Ends its use: all writes are durable, and the next opening needs no resync.
    pub fn close(&self) -> Result<()> {
        self.flush_regions()?;
        match &self.marks {
            Some(marks) => marks.close().map_err(|e| Error::new(Class::NoSpace, &self.name, e.to_string())),
            None => Ok(()),
        }
    }

    /// The number of failures of all members. A region does not report failed discards otherwise.
    fn failures(&self) -> u64 {
        let of = |part: &Part| part.region.members().iter().flat_map(|member| member.performance.errors).sum::<u64>();
        self.parts.iter().map(of).sum()
    }

    /// The caller holds a lock.
    fn write_zeros(&self, range: Range<u64>) -> Result<()> {
        let zeros = Aligned::zeroed(ZEROS.min(range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let len = ZEROS.min(range.end - at);
            let from = Buffers::part(&zeros, 0..len as usize);
            match self.fits(at, &from) {
                true => self.write_blocks(at, &from)?,
                false => self.write_around(at, &from)?,
            }
            at += len;
        }
        Ok(())
    }
}

impl BlockDevice for Linear {
    fn size(&self) -> u64 {
        self.size
    }

    fn block(&self) -> u32 {
        self.block as u32
    }

    fn preferred(&self) -> u32 {
        self.preferred
    }

    fn read(&self, at: u64, into: Buffers) -> Result<Buffers> {
        let range = at..at.saturating_add(into.len());
        self.check("a read", &range)?;
        if self.fits(at, &into) {
            return self.read_blocks(at, into);
        }
        into.copy_from(&self.read_around(&range)?);
        Ok(into)
    }

    fn write(&self, at: u64, from: Buffers) -> Result<()> {
        let range = at..at.saturating_add(from.len());
        self.check("a write", &range)?;
        if range.is_empty() {
            return Ok(());
        }
        let _lock = self.range_locks.take(self.around(&range));
        let _marked = self.mark(&range)?;
        match self.fits(at, &from) {
            true => self.write_blocks(at, &from),
            false => self.write_around(at, &from),
        }
    }

    fn flush(&self) -> Result<()> {
        self.flush_regions()
    }

    fn discards(&self) -> bool {
        self.discards
    }

    fn discard(&self, range: Range<u64>) -> Result<()> {
        self.discard_range(range)
    }

    fn zero(&self, range: Range<u64>) -> Result<()> {
        self.check("zeros", &range)?;
        let _lock = self.range_locks.take(self.around(&range));
        let _marked = self.mark(&range)?;
        self.write_zeros(range)
    }

    fn reserve(&self, range: Range<u64>) -> Result<()> {
        self.check("room", &range)?;
        let around = self.around(&range);
        let reserve = |piece: Piece| {
            let end = piece.at + (piece.of.end - piece.of.start);
            self.start(piece.part, Op::Reserve(piece.at..end))
        };
        self.all(self.pieces(&around).into_iter().map(reserve).collect())
    }
}
