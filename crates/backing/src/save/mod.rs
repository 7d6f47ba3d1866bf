//! Save and restore of a memory (Conquest, 3.5; mramfs, 5.1): an image is a file with the whole content of a memory,
//! checksummed, independent of the machine and of where the memory was mapped. Content that the layer above stores
//! elsewhere may follow.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the format; save and restore |
//! | [`snapshot`] | a memory as of one instant, in a file of its own, while operations go on |
//! | [`write`] | writing an image |
//! | [`read`] | reading one, trusting nothing in it |
//! | [`target`] | a file that replaces another when it is complete |
//!
//! ```text
//! header   160 bytes, [`RawSave`]
//! chunks   each: offset (8) | length (4) | CRC-32C (4) | bytes
//!          offset and length in the memory; length 1 to 65,536; ascending, never overlapping;
//!          the CRC is of offset, length and bytes
//! content  chunks like these, whose offsets count from [`CONTENT`] on, without a gap: content that the layer above stores elsewhere
//! trailer  32 bytes, [`RawSaveEnd`]; nothing follows
//! ```
//! All numbers are little-endian. The chunks of an image hold the header pages, the root words, the heap's chunk tables
//! and every chunk of the heap that is neither free nor absent, without the stretches of whole KiB that are all zero.
//! Free chunks of the heap stand in the tables as absent. Of chunks of blocks they hold the used blocks, or only those
//! without a place if the header says so ([`UNPLACED`]). Transaction slots are left out: no transaction is open when an
//! image is made. All other bytes of the memory are zero.
//!
//! The last root word is stored as 0 (closed properly) or, if the saved memory had leaks or referenced
//! objects, as 1: then the process that opens the restored memory sweeps it.
//!
//! Save and restore write files without a name, which get one at the end: after any interruption the old
//! file is whole, and nothing else is left.

pub mod read;
pub mod snapshot;
mod target;
pub mod write;

use std::fs::File;
use std::path::Path;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use pram::error::{Error, Result};
use pram::medium::{Medium, MediumKind};
use pram::mem::Mapping;
use pram::memory::{self, CHUNK, HEADERS};
use pram::session::{Exclusive, Session};

pub use read::{info, is_foreign, verify, Content};
pub(crate) use target::nameless;
pub use target::{is_at, written_at};
pub(crate) use target::{Fail, Target};

use read::Reader;
use snapshot::Snapshot;
use write::Writer;

const MAGIC: [u8; 8] = *b"CQ-IMAGE";
const END_MAGIC: [u8; 8] = *b"CQ-IMEND";
const VERSION: u32 = 3;
/// The oldest that is read: it has neither [`RawSave::holds`] nor content.
const OLDEST: u32 = 2;
/// Most bytes in a chunk.
pub const IMAGE_CHUNK: u64 = 64 << 10;
/// In [`RawSave::holds`]: content of the layer above follows.
pub const WITH_CONTENT: u32 = 1;
/// In [`RawSave::holds`]: content only of blocks without a place.
pub const UNPLACED: u32 = 2;
/// Added to the offsets of chunks of content.
pub const CONTENT: u64 = 1 << 63;
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
    /// Of the memory, as is the size.
    pub uuid: [u8; 16],
    pub size: u64,
    /// The memory's layout fingerprint.
    pub fingerprint: u64,
    /// When the image was made, nanoseconds since the epoch.
    pub saved: i64,
    /// Chunks of the memory that follow, at most.
    pub chunks: u64,
    /// Version of the layer above's data in the memory.
    pub app_version: u32,
    /// Flags: [`WITH_CONTENT`], [`UNPLACED`].
    pub holds: u32,
    /// Bytes of content that follow, about.
    pub content: u64,
    pub reserved: [u8; 76],
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawSave>() == 160);

/// The head of a chunk, before its bytes.
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

/// The description of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SaveInfo {
    pub uuid: [u8; 16],
    /// Bytes of the memory.
    pub size: u64,
    pub app_version: u32,
    /// When it was made, nanoseconds since the epoch.
    pub saved: i64,
    pub chunks: u64,
    /// Bytes in chunks.
    pub bytes: u64,
    /// Content of the layer above is in it.
    pub with_content: bool,
    /// It has content only of blocks without a place.
    unplaced: bool,
}

/// Called with bytes done and bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Called when all of the new memory is right, before the old one is lost, with the new file (`None` for a device,
/// which stays) and the UUID of the new memory. The result is held until the old one is replaced.
pub type MakeWay<'a> = &'a mut dyn FnMut(Option<&File>, &[u8; 16]) -> Result<Option<Exclusive>>;

/// Writes an image of the memory alone to `path`, as of one instant.
pub fn save(session: &Session, path: &Path, progress: Progress) -> Result<SaveInfo> {
    let mut writer = Writer::begin(path)?;
    let snapshot = Snapshot::take(session, path)?;
    writer.memory(&snapshot, None, progress)?;
    writer.finish()
}

/// Makes a memory file for `medium` at `path` from an image, while nobody is attached to a memory there.
pub fn restore(image: &Path, path: &Path, medium: MediumKind, progress: Progress) -> Result<Content> {
    let (target, content) = restore_new(image, path, medium, progress)?;
    target.finish()?;
    Ok(content)
}

/// Makes a memory file that is to be at `path`, and leaves it at `beside`, in the same directory.
pub fn restore_beside(
    image: &Path,
    path: &Path,
    beside: &Path,
    medium: MediumKind,
    progress: Progress,
) -> Result<Content> {
    let (target, content) = restore_new(image, path, medium, progress)?;
    target.finish_at(beside)?;
    Ok(content)
}

fn restore_new(image: &Path, path: &Path, medium: MediumKind, progress: Progress) -> Result<(Target, Content)> {
    let mut reader = Reader::open(image)?;
    let target = Target::begin(path, "restoring")?;
    while let Some((offset, bytes)) = reader.next_of_memory(progress)? {
        target.put(offset, bytes)?;
    }
    let map = target.complete()?;
    memory::begin_life(&map)?;
    let mut header = [0; HEADERS];
    map.copy_out(0, &mut header)?;
    memory::note_restored(&map, &memory::header_in(&header)?, reader.info.unplaced)?;
    adopt_memory(&map, &reader, medium)?;
    memory::settle_memory(map, medium)?;
    Ok((target, reader.content()))
}

/// Makes a memory in `map`, of a device, which no other can replace, from an image. All of the image is checked
/// before anything is overwritten. Interrupted, it leaves a memory that is refused, and can be repeated:
/// 1. The old header goes. 2. All but the header. 3. The header.
pub fn restore_into(
    image: &Path,
    map: &Mapping,
    medium: &dyn Medium,
    make_way: MakeWay,
    progress: Progress,
) -> Result<Content> {
    let size = verify(image, &mut |_, _| {})?.size;
    let mut reader = Reader::open(image)?;
    if map.len() < size {
        return Err(reader.bad(format!("its memory has {size} bytes, there is room for {}", map.len())));
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
    while let Some((offset, bytes)) = reader.next_of_memory(progress)? {
        let within = HEADERS.saturating_sub(offset as usize).min(bytes.len());
        if within > 0 {
            header[offset as usize..offset as usize + within].copy_from_slice(&bytes[..within]);
        }
        map.write(offset + within as u64, &bytes[within..])?;
    }
    memory::begin_life(map)?;
    memory::note_restored(map, &memory::header_in(&header)?, reader.info.unplaced)?;
    persist(size);
    map.write(0, &header)?;
    adopt_memory(map, &reader, medium.kind())?;
    persist(HEADERS as u64);
    Ok(reader.content())
}

/// Gives a restored memory its medium, if it has the size and UUID in the image's header.
fn adopt_memory(map: &Mapping, reader: &Reader, medium: MediumKind) -> Result<()> {
    let (info, _) = memory::adopt(map, medium)?;
    if (map.len() / CHUNK, info.uuid) != (reader.info.size / CHUNK, reader.info.uuid) {
        return Err(reader.bad("its header and its content are of different memories"));
    }
    Ok(())
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

fn host(path: &Path, what: &str, e: std::io::Error) -> Error {
    Error::Host { what: format!("{what} {}", path.display()), errno: Errno::from_io_error(&e).unwrap_or(Errno::IO) }
}
