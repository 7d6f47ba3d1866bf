//! A note: bytes of a region's client beside its labels, where a process with only the disks finds them.
//!
//! Each member has the note twice, [`AT`] bytes behind either copy of its label. The intact copy of the highest
//! generation counts. A note is replaced in place, like a label:
//!
//! | step | what | else, after a power cut |
//! | --- | --- | --- |
//! | 1 | a copy that is damaged, or older, is written from the newer one; durable | step 2 tears the only intact one |
//! | 2 | the first copy is written; durable | step 3 may reach the disk before it, and both be torn |
//! | 3 | the last copy is written; durable | there is one copy until the note is replaced again |
//!
//! After step 2 the new note counts. One process at a time does this: clients of notes have a lock for that.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::device::{Device, Op, Request, PATIENCE};
use crate::error::{Class, Error, Result};
use crate::label::{Uuid, END};
use crate::sys::memory::{Aligned, Buffers};

/// Its offset from the beginning of either end of a disk.
pub const AT: u64 = 64 << 10;
/// Bytes of the longest note.
pub const MOST: u64 = (512 << 10) - HEAD as u64;

const MAGIC: [u8; 8] = *b"CQ-NOTE\n";
const VERSION: u32 = 1;
const HEAD: usize = size_of::<RawNote>();
/// It is written in multiples of this.
const UNIT: usize = 4096;

const _: () = assert!(AT + MOST + (HEAD as u64) <= END);

/// The head of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawNote {
    pub magic: [u8; 8],
    pub version: u32,
    /// Bytes of the note.
    pub len: u32,
    /// Goes up with each note.
    pub generation: u64,
    /// The disk to which it belongs.
    pub device: [u8; 16],
    /// The offset of this copy from the start of the disk.
    pub place: u64,
    pub reserved: [u8; 12],
    /// CRC-32C of the head before it, and of the note.
    pub crc: u32,
}

const _: () = assert!(HEAD == 64);

/// A note that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub generation: u64,
    pub bytes: Vec<u8>,
}

/// The two places on a disk of `size` bytes by its label.
fn places(size: u64) -> [u64; 2] {
    [AT, size - END + AT]
}

/// The note of a disk; `None` where no copy is intact and readable.
pub fn read(device: &dyn Device, uuid: Uuid, size: u64) -> Option<Note> {
    let found = places(size).map(|place| read_at(device, uuid, place));
    found.into_iter().flatten().max_by_key(|note| note.generation)
}

/// Are both copies of a disk's note the same, or none?
pub fn is_whole(device: &dyn Device, uuid: Uuid, size: u64) -> bool {
    let [first, last] = places(size).map(|place| read_at(device, uuid, place));
    first == last
}

fn read_at(device: &dyn Device, uuid: Uuid, place: u64) -> Option<Note> {
    let head = get(device, HEAD, place)?;
    let raw = RawNote::read_from_bytes(&head).ok()?;
    let is_one = raw.magic == MAGIC && raw.version == VERSION && u64::from(raw.len) <= MOST;
    if !is_one || raw.device != uuid.0 || raw.place != place {
        return None;
    }
    let bytes = get(device, HEAD + raw.len as usize, place)?.split_off(HEAD);
    (raw.crc == sum(&raw, &bytes)).then_some(Note { generation: raw.generation, bytes })
}

fn sum(raw: &RawNote, bytes: &[u8]) -> u32 {
    let head = crc32c::crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawNote, crc)]);
    crc32c::crc32c_append(head, bytes)
}

/// Replaces the note of a disk; see the [module](self) for the steps.
pub fn write(device: &dyn Device, uuid: Uuid, size: u64, note: &Note) -> Result<()> {
    if note.bytes.len() as u64 > MOST {
        let what = format!("a note of {} bytes; it has room for {MOST}", note.bytes.len());
        return Err(Error::new(Class::Invalid, device.name(), what));
    }
    // 1.
    let places = places(size);
    let found = places.map(|place| read_at(device, uuid, place));
    if let Some(newest) = found.iter().flatten().max_by_key(|note| note.generation) {
        for (copy, place) in found.iter().zip(places) {
            if copy.as_ref() != Some(newest) {
                write_at(device, uuid, place, newest)?;
            }
        }
    }
    // 2., 3.
    places.into_iter().try_for_each(|place| write_at(device, uuid, place, note))
}

/// Overwrites all notes with zeros, durably.
pub fn erase(device: &dyn Device, size: u64) -> Result<()> {
    for place in places(size) {
        let is_zero = get(device, HEAD, place).is_some_and(|head| head.iter().all(|byte| *byte == 0));
        if !is_zero {
            device.write_at(&vec![0; MOST as usize + HEAD], place)?;
            device.flush()?;
        }
    }
    Ok(())
}

/// Writes one copy, durably.
fn write_at(device: &dyn Device, uuid: Uuid, place: u64, note: &Note) -> Result<()> {
    let mut raw = RawNote {
        magic: MAGIC,
        version: VERSION,
        len: note.bytes.len() as u32,
        generation: note.generation,
        device: uuid.0,
        place,
        reserved: [0; 12],
        crc: 0,
    };
    raw.crc = sum(&raw, &note.bytes);
    let mut all = raw.as_bytes().to_vec();
    all.extend_from_slice(&note.bytes);
    all.resize(all.len().next_multiple_of(UNIT.max(device.properties().block as usize)), 0);
    let room = Op::Reserve(place..place + all.len() as u64);
    let write = Request::write(place, Buffers::whole(&Aligned::of(&all)));
    let steps = [room.into(), write, Request::flush()];
    steps.into_iter().try_for_each(|step| device.ask(step, PATIENCE).result)
}

/// Reads `len` bytes of a disk that may hang.
fn get(device: &dyn Device, len: usize, place: u64) -> Option<Vec<u8>> {
    let whole = len.next_multiple_of(UNIT.max(device.properties().block as usize));
    let mut bytes = crate::label::read_within(device, whole, place, PATIENCE).ok()?;
    bytes.truncate(len);
    Some(bytes)
}
