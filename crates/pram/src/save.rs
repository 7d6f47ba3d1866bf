//! Save and restore of a region (Conquest, 3.5; mramfs, 5.1): an image is a file that holds everything a
//! region holds, checksummed, independent of the machine and of where the region was mapped.
//!
//! ```text
//! header   160 bytes, [`RawSave`]
//! chunks   each: offset (8) | length (4) | CRC-32C (4) | bytes
//!          offset and length in the region; length 1 to 65,536; ascending, never overlapping;
//!          the CRC is of offset, length and bytes
//! trailer  32 bytes, [`RawSaveEnd`]; nothing follows
//! ```
//! All numbers are little-endian. Chunks hold the header pages, the root words, the segment tables and every
//! segment that is neither free nor absent, without the stretches of whole KiB that are all zero; free segments stand
//! in the tables as absent. Of segments of blocks they hold the blocks whose content is nowhere else: all that are in use, but on
//! `logged` those that have no place. Transaction slots are left out: no transaction is open when an image is made. What no chunk
//! holds is zero.
//!
//! The last root word is stored as 0 (closed properly) or, if the saved region had leaks or referenced
//! objects, as 1: then whoever opens the restored region sweeps it.
//!
//! Save and restore write beside their target and rename at the end: whatever interrupts them, the old
//! file is whole, and the next try begins afresh.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::blocks::{self, is_saved, BLOCK};
use crate::copy::log::now;
use crate::error::{Error, Result};
use crate::heap::{Meta, SegEntry};
use crate::medium::{Medium, MediumKind};
use crate::mem::Mapping;
use crate::region::{self, fingerprint, Region, GROUP, HEADERS, OPEN_ROOT, SEGMENT, TABLE, TABLE_AT};
use crate::session::{Exclusive, Session};

const MAGIC: [u8; 8] = *b"CQ-IMAGE";
const END_MAGIC: [u8; 8] = *b"CQ-IMEND";
const VERSION: u32 = 2;
/// Most bytes in a chunk.
pub const CHUNK: u64 = 64 << 10;
/// Zeros are left out in pieces of so many bytes.
const GRAIN: usize = 1 << 10;

/// The first bytes of an image.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawSave {
    pub magic: [u8; 8],
    pub version: u32,
    /// Most bytes in a chunk.
    pub chunk: u32,
    /// Of the region, as is the next.
    pub uuid: [u8; 16],
    pub size: u64,
    /// The region's layout fingerprint.
    pub fingerprint: u64,
    /// When the image was made, nanoseconds since the epoch.
    pub saved: i64,
    /// Chunks that follow, at most.
    pub chunks: u64,
    /// Version of what the layer above keeps in the region.
    pub app_version: u32,
    pub reserved: [u8; 88],
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawSave>() == 160);

/// What precedes the bytes of a chunk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawChunk {
    offset: u64,
    len: u32,
    crc: u32,
}

/// The last bytes of an image.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawSaveEnd {
    pub magic: [u8; 8],
    /// Chunks written, and bytes in them.
    pub chunks: u64,
    pub bytes: u64,
    /// CRC-32C of the chunks' CRCs, in order.
    pub sum: u32,
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawSaveEnd>() == 32);

/// What an image says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveInfo {
    pub uuid: [u8; 16],
    /// Bytes of the region.
    pub size: u64,
    pub app_version: u32,
    /// When it was made, nanoseconds since the epoch.
    pub saved: i64,
    pub chunks: u64,
    /// Bytes in chunks.
    pub bytes: u64,
}

/// Called with bytes done and bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Called when all of the new region is right, before the old one is lost, with the file (none: a device stays what it is)
/// and the UUID of the new one. What it returns is held until the old one is replaced.
pub type MakeWay<'a> = &'a mut dyn FnMut(Option<&File>, &[u8; 16]) -> Result<Option<Exclusive>>;

/// Writes an image of the region to `path`, as of one instant: operations wait meanwhile.
pub fn save(session: &Session, path: &Path, progress: Progress) -> Result<SaveInfo> {
    let target = Target::begin(path, "saving")?;
    let frozen = session.freeze()?;
    let mut out = BufWriter::with_capacity(1 << 20, &target.file);
    let info = write_image(session, &mut out, progress).map_err(|e| target.failed(e))?;
    out.flush().map_err(|e| target.failed(Fail::Io(e)))?;
    drop(out);
    drop(frozen);
    target.finish()?;
    Ok(info)
}

/// Makes a region file for `medium` at `path` from an image, where nobody is attached to what is there.
pub fn restore(image: &Path, path: &Path, medium: MediumKind, progress: Progress) -> Result<SaveInfo> {
    let (target, info) = restore_new(image, path, medium, progress)?;
    target.finish()?;
    Ok(info)
}

/// Makes one that is to be at `path`, and leaves it at `beside`, in the same directory.
pub fn restore_beside(
    image: &Path,
    path: &Path,
    beside: &Path,
    medium: MediumKind,
    progress: Progress,
) -> Result<SaveInfo> {
    let (target, info) = restore_new(image, path, medium, progress)?;
    target.finish_at(beside)?;
    Ok(info)
}

fn restore_new(image: &Path, path: &Path, medium: MediumKind, progress: Progress) -> Result<(Target, SaveInfo)> {
    let mut reader = Reader::open(image)?;
    let target = Target::begin(path, "restoring")?;
    while let Some((offset, bytes)) = reader.next(progress)? {
        target.put(offset, bytes)?;
    }
    let map = target.complete()?;
    region::begin_life(&map)?;
    let mut header = [0; HEADERS];
    map.copy_out(0, &mut header)?;
    blocks::note_restored(&map, &region::header_in(&header)?)?;
    adopt_region(&map, &reader, medium)?;
    region::settle_memory(map, medium)?;
    Ok((target, reader.info))
}

/// Makes a region in `map`, of a device that no other can replace, from an image. All of the image is checked
/// before anything is overwritten. Interrupted, it leaves a region that is refused, and can be repeated:
/// 1. The old header goes. 2. All but the header. 3. The header.
pub fn restore_into(
    image: &Path,
    map: &Mapping,
    medium: &dyn Medium,
    make_way: MakeWay,
    progress: Progress,
) -> Result<SaveInfo> {
    let size = verify(image, &mut |_, _| {})?.size;
    let mut reader = Reader::open(image)?;
    if map.len() < size {
        return Err(reader.bad(format!("its region has {size} bytes, there is room for {}", map.len())));
    }
    let _held = make_way(None, &reader.info.uuid)?;
    let persist = |len| {
        medium.flush(map, 0, len);
        medium.fence(map);
    };
    let mut header = [0; HEADERS];
    map.zero(0, HEADERS as u64)?;
    persist(HEADERS as u64);
    map.zero(0, size)?;
    while let Some((offset, bytes)) = reader.next(progress)? {
        let within = HEADERS.saturating_sub(offset as usize).min(bytes.len());
        if within > 0 {
            header[offset as usize..offset as usize + within].copy_from_slice(&bytes[..within]);
        }
        map.write(offset + within as u64, &bytes[within..])?;
    }
    region::begin_life(map)?;
    blocks::note_restored(map, &region::header_in(&header)?)?;
    persist(size);
    map.write(0, &header)?;
    adopt_region(map, &reader, medium.kind())?;
    persist(HEADERS as u64);
    Ok(reader.info)
}

/// Reads all of an image and checks it.
pub fn verify(image: &Path, progress: Progress) -> Result<SaveInfo> {
    let mut reader = Reader::open(image)?;
    while reader.next(progress)?.is_some() {}
    Ok(reader.info)
}

// Writing.

/// A failure while writing: the region's or the file's.
enum Fail {
    Io(std::io::Error),
    Pram(Error),
}
impl From<std::io::Error> for Fail {
    fn from(e: std::io::Error) -> Self {
        Fail::Io(e)
    }
}
impl From<Error> for Fail {
    fn from(e: Error) -> Self {
        Fail::Pram(e)
    }
}

/// A part of a region that an image holds.
struct Part {
    at: u64,
    len: u64,
    /// It is a table, in which no segment that is free has memory.
    is_table: bool,
}

/// The parts of a region that an image holds, ascending.
fn parts(region: &Region) -> Result<Vec<Part>> {
    let mut parts = vec![Part { at: 0, len: TABLE_AT, is_table: false }];
    for group in 0..region.groups() {
        parts.push(Part { at: group * GROUP + TABLE_AT, len: TABLE, is_table: true });
        for n in region.segments_of(group) {
            match region.meta(n)? {
                Meta::Free | Meta::Absent => {}
                Meta::Blocks => parts.extend(kept_blocks(region, n)?),
                _ => parts.push(Part { at: region.geo.segment(n), len: SEGMENT, is_table: false }),
            }
        }
    }
    Ok(parts)
}

/// The blocks of a segment whose content an image holds.
fn kept_blocks(region: &Region, segment: u64) -> Result<Vec<Part>> {
    let mut kept = Vec::new();
    // Damage, if it fails: nobody finds content there without its descriptor.
    let Ok(blocks) = region.blocks_of(segment) else { return Ok(kept) };
    for (at, descriptor) in blocks {
        if is_saved(region.info.medium as u32, &descriptor) {
            kept.push(Part { at, len: BLOCK, is_table: false });
        }
    }
    Ok(kept)
}

fn write_image(session: &Session, out: &mut impl Write, progress: Progress) -> Result<SaveInfo, Fail> {
    let region = session.region();
    let parts = parts(region)?;
    let total: u64 = parts.iter().map(|p| p.len).sum();
    let mut raw = RawSave {
        magic: MAGIC,
        version: VERSION,
        chunk: CHUNK as u32,
        uuid: region.info.uuid,
        size: region.size(),
        fingerprint: fingerprint(),
        saved: now(),
        chunks: parts.iter().map(|p| p.len.div_ceil(GRAIN as u64)).sum(),
        app_version: region.info.app_version,
        reserved: [0; 88],
        crc: 0,
    };
    raw.crc = crc_of(&raw);
    out.write_all(raw.as_bytes())?;

    let mark = u64::from(session.runtime().leaks_pending() || session.runtime().any_reference()?);
    let open_word = region.root(OPEN_ROOT).raw();
    let mut end = RawSaveEnd { magic: END_MAGIC, chunks: 0, bytes: 0, sum: 0, crc: 0 };
    let mut buf = vec![0; CHUNK as usize];
    let mut done = 0;
    for Part { at, len, is_table } in parts {
        for offset in (at..at + len).step_by(CHUNK as usize) {
            let bytes = &mut buf[..CHUNK.min(at + len - offset) as usize];
            region.read_bytes(offset, bytes)?;
            if is_table {
                forget_free(bytes);
            }
            if let Some(word) = open_word.checked_sub(offset).and_then(|at| bytes.get_mut(at as usize..at as usize + 8))
            {
                word.copy_from_slice(&mark.to_le_bytes());
            }
            write_stretches(out, offset, bytes, &mut end)?;
            done += bytes.len() as u64;
            progress(done, total);
        }
    }
    end.crc = crc_of(&end);
    out.write_all(end.as_bytes())?;
    let RawSave { uuid, size, app_version, saved, .. } = raw;
    Ok(SaveInfo { uuid, size, app_version, saved, chunks: end.chunks, bytes: end.bytes })
}

/// What is made of an image has memory for what is in use only.
fn forget_free(table: &mut [u8]) {
    for entry in table.chunks_exact_mut(size_of::<SegEntry>()) {
        let word = u64::from_le_bytes(std::array::from_fn(|i| entry[i]));
        if Meta::decode(word) == Meta::Free {
            entry.fill(0);
        }
    }
}

/// Writes what is not zero of some bytes of the region, a chunk for each stretch.
fn write_stretches(out: &mut impl Write, offset: u64, bytes: &[u8], end: &mut RawSaveEnd) -> std::io::Result<()> {
    let mut start = 0;
    while start < bytes.len() {
        let zero = |grain: &&[u8]| grain.iter().all(|b| *b == 0);
        let skip = bytes[start..].chunks(GRAIN).take_while(zero).count() * GRAIN;
        start += skip;
        let Some(rest) = bytes.get(start..).filter(|r| !r.is_empty()) else { break };
        let len = rest.chunks(GRAIN).take_while(|g| !zero(g)).map(<[u8]>::len).sum::<usize>();
        write_chunk(out, offset + start as u64, &rest[..len], end)?;
        start += len;
    }
    Ok(())
}

fn write_chunk(out: &mut impl Write, offset: u64, bytes: &[u8], end: &mut RawSaveEnd) -> std::io::Result<()> {
    let mut chunk = RawChunk { offset, len: bytes.len() as u32, crc: 0 };
    chunk.crc = chunk_crc(&chunk, bytes);
    end.chunks += 1;
    end.bytes += bytes.len() as u64;
    end.sum = crc32c::crc32c_append(end.sum, &chunk.crc.to_le_bytes());
    out.write_all(chunk.as_bytes())?;
    out.write_all(bytes)
}

fn chunk_crc(chunk: &RawChunk, bytes: &[u8]) -> u32 {
    let head = crc32c::crc32c(&chunk.as_bytes()[..std::mem::offset_of!(RawChunk, crc)]);
    crc32c::crc32c_append(head, bytes)
}

/// The CRC of a structure whose last four bytes are its CRC.
fn crc_of(raw: &(impl IntoBytes + Immutable)) -> u32 {
    let bytes = raw.as_bytes();
    crc32c::crc32c(&bytes[..bytes.len() - 4])
}

// Reading.

/// Goes through an image and trusts nothing in it.
struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    info: SaveInfo,
    expected: u64,
    /// Where the next chunk may begin.
    floor: u64,
    sum: u32,
    buf: Vec<u8>,
}

impl Reader {
    fn open(path: &Path) -> Result<Reader> {
        let file = File::open(path).map_err(|e| host(path, "opening", e))?;
        let mut reader = Reader {
            path: path.into(),
            file: BufReader::with_capacity(1 << 20, file),
            info: SaveInfo { uuid: [0; 16], size: 0, app_version: 0, saved: 0, chunks: 0, bytes: 0 },
            expected: 0,
            floor: 0,
            sum: 0,
            buf: vec![0; CHUNK as usize],
        };
        let mut raw = RawSave::new_zeroed();
        reader.fill(raw.as_mut_bytes())?;
        reader.trust(&raw)?;
        Ok(reader)
    }

    fn bad(&self, why: impl std::fmt::Display) -> Error {
        Error::Unusable(format!("the image {} cannot be used: {why}", self.path.display()))
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact(buf).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.bad("it is truncated; take another copy"),
            _ => host(&self.path, "reading", e),
        })
    }

    /// The gate where the header becomes trusted.
    fn trust(&mut self, raw: &RawSave) -> Result<()> {
        if raw.magic != MAGIC {
            return Err(self.bad("it is not an image of a Conquest region"));
        }
        if raw.version != VERSION {
            return Err(
                self.bad(format!("it has format version {}, this program reads version {VERSION}", raw.version))
            );
        }
        if raw.crc != crc_of(raw) {
            return Err(self.bad("its header is damaged; take another copy"));
        }
        if raw.fingerprint != fingerprint() || u64::from(raw.chunk) != CHUNK {
            return Err(self.bad("it was made by a build with another layout; use that build"));
        }
        region::check_size(raw.size)?;
        let RawSave { uuid, size, app_version, saved, .. } = *raw;
        self.info = SaveInfo { uuid, size, app_version, saved, chunks: 0, bytes: 0 };
        self.expected = raw.chunks;
        Ok(())
    }

    /// The next chunk, checked; `None` after the trailer, checked too.
    fn next(&mut self, progress: Progress) -> Result<Option<(u64, &[u8])>> {
        let mut chunk = RawChunk::new_zeroed();
        self.fill(chunk.as_mut_bytes())?;
        if chunk.as_bytes()[..8] == END_MAGIC {
            self.end(&chunk)?;
            return Ok(None);
        }
        let end = chunk.offset.checked_add(u64::from(chunk.len));
        let fits = chunk.offset >= self.floor && end.is_some_and(|e| e <= self.info.size);
        if !fits || chunk.len == 0 || u64::from(chunk.len) > CHUNK {
            return Err(self.bad("it is damaged (a chunk has an impossible place); take another copy"));
        }
        let mut buf = std::mem::take(&mut self.buf);
        let read = self.fill(&mut buf[..chunk.len as usize]);
        self.buf = buf;
        read?;
        let bytes = &self.buf[..chunk.len as usize];
        if chunk.crc != chunk_crc(&chunk, bytes) {
            let why = format!("it is damaged (checksum of the chunk for {:#x}); take another copy", chunk.offset);
            return Err(self.bad(why));
        }
        self.floor = chunk.offset + u64::from(chunk.len);
        self.sum = crc32c::crc32c_append(self.sum, &chunk.crc.to_le_bytes());
        self.info.chunks += 1;
        self.info.bytes += u64::from(chunk.len);
        progress(self.floor, self.info.size);
        Ok(Some((chunk.offset, bytes)))
    }

    fn end(&mut self, first: &RawChunk) -> Result<()> {
        let mut raw = RawSaveEnd::new_zeroed();
        raw.as_mut_bytes()[..16].copy_from_slice(first.as_bytes());
        self.fill(&mut raw.as_mut_bytes()[16..])?;
        let SaveInfo { chunks, bytes, .. } = self.info;
        let right = raw.crc == crc_of(&raw) && (raw.chunks, raw.bytes, raw.sum) == (chunks, bytes, self.sum);
        if !right || chunks > self.expected {
            return Err(self.bad("it is damaged (chunks are missing or its end is wrong); take another copy"));
        }
        let more = self.file.read(&mut [0]).map_err(|e| host(&self.path, "reading", e))?;
        if more > 0 {
            return Err(self.bad("something follows its end; take another copy"));
        }
        Ok(())
    }
}

/// Gives what has been restored its medium, if it is a region of the size and name that the image's header says.
fn adopt_region(map: &Mapping, reader: &Reader, medium: MediumKind) -> Result<()> {
    let (info, _) = region::adopt(map, medium)?;
    if (map.len() / SEGMENT, info.uuid) != (reader.info.size / SEGMENT, reader.info.uuid) {
        return Err(reader.bad("its header and its content are of different regions"));
    }
    Ok(())
}

// Files.

fn host(path: &Path, what: &str, e: std::io::Error) -> Error {
    Error::Host { what: format!("{what} {}", path.display()), errno: Errno::from_io_error(&e).unwrap_or(Errno::IO) }
}

/// Where an image that is to be at `path` is written first; `None` if that names no file.
pub fn written_at(path: &Path) -> Option<PathBuf> {
    path.file_name().map(|name| beside(path, name))
}

fn beside(path: &Path, name: &std::ffi::OsStr) -> PathBuf {
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    path.with_file_name(hidden)
}

/// A file that replaces `path` when it is complete.
pub(crate) struct Target {
    path: PathBuf,
    temporary: PathBuf,
    pub file: File,
    what: &'static str,
    done: bool,
}

impl Target {
    pub fn begin(path: &Path, what: &'static str) -> Result<Target> {
        // What a link leads to is replaced, not the link.
        let path = &path.canonicalize().unwrap_or_else(|_| path.into());
        let name = path.file_name().ok_or_else(|| Error::Unusable(format!("{} names no file", path.display())))?;
        if path.is_dir() {
            return Err(Error::Unusable(format!("{} is a directory: name a file in it", path.display())));
        }
        if path.exists() && !path.is_file() {
            return Err(Error::Unusable(format!("{} is no regular file, and stays: name another", path.display())));
        }
        let temporary = beside(path, name);
        let file = loop {
            let opened = open_new(&temporary)?;
            if lock_new(&opened, &temporary, path)? {
                break opened;
            }
        };
        let target = Target { path: path.into(), temporary, file, what, done: false };
        target.file.set_len(0).map_err(|e| target.failed(Fail::Io(e)))?;
        Ok(target)
    }

    fn failed(&self, e: Fail) -> Error {
        match e {
            Fail::Io(e) => host(&self.path, self.what, e),
            Fail::Pram(e) => e,
        }
    }

    /// Writes a part of a region; where nothing is written there is no memory.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => self.no_room(&e),
            _ => self.failed(Fail::Io(e)),
        })
    }

    /// The region that has been written, as long as its header says.
    pub fn complete(&self) -> Result<Mapping> {
        let mut head = vec![0; HEADERS];
        let read = self.file.read_at(&mut head, 0).map_err(|e| self.failed(Fail::Io(e)))?;
        let size = Region::probe(&head[..read])?.0;
        self.file.set_len(size).map_err(|e| self.failed(Fail::Io(e)))?;
        Mapping::growing(&self.file, size, crate::mem::Sync::No, Region::told_len)
            .map_err(Error::host("mapping the region"))
    }

    fn no_room(&self, e: &std::io::Error) -> Error {
        Error::Unusable(format!(
            "{}: no room ({e}); what is there stays until all of the new one is: make room beside it, or remove it first",
            self.path.display()
        ))
    }

    /// 1. The content is durable before the name points to it. 2. The name. 3. The directory.
    pub fn finish(self) -> Result<()> {
        let path = self.path.clone();
        self.finish_at(&path)
    }

    /// The same under another name in the same directory.
    fn finish_at(mut self, path: &Path) -> Result<()> {
        self.file.sync_all().map_err(|e| self.failed(Fail::Io(e)))?;
        std::fs::rename(&self.temporary, path).map_err(|e| self.failed(Fail::Io(e)))?;
        self.done = true;
        let dir = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(dir).and_then(|d| d.sync_all());
        synced.map_err(|e| self.failed(Fail::Io(e)))
    }
}

fn open_new(temporary: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(temporary, flags, Mode::RUSR | Mode::WUSR);
    Ok(opened.map_err(Error::host(format!("making {}", temporary.display())))?.into())
}

/// One at a time writes what replaces `path`; the lock goes with its process, so what a killed one left does not matter.
/// False if `file` is not at `temporary` any more: whoever had the lock has finished it, and it is what counts at `path`.
fn lock_new(file: &File, temporary: &Path, path: &Path) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err(Error::Unusable(format!("{} is being written by another process", path.display())))
        }
        Err(errno) => Err(Error::host(format!("locking {}", temporary.display()))(errno)),
        Ok(()) => is_at(file, temporary),
    }
}

/// Is `file` what `path` leads to?
pub fn is_at(file: impl AsFd, path: &Path) -> Result<bool> {
    let host = |errno| Error::Host { what: path.display().to_string(), errno };
    let own = rustix::fs::fstat(file).map_err(host)?;
    match rustix::fs::stat(path) {
        Ok(found) => Ok((found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(host(errno)),
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between opening and locking the file, another process may have finished with it.
    #[test]
    fn a_file_that_was_finished_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("saved");
        let temporary = dir.path().join(".saved.new");
        let other = Target::begin(&path, "saving").expect("the first");
        let late = open_new(&temporary).expect("another process");
        assert!(lock_new(&late, &temporary, &path).is_err(), "one at a time");
        (&other.file).write_all(b"whole").expect("written");
        other.finish().expect("finished");
        assert!(!lock_new(&late, &temporary, &path).expect("free by now"), "it is what counts");
        drop(Target::begin(&path, "saving").expect("another"));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"whole");
    }
}
