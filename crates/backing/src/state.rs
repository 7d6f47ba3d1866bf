//! The positions of the logs, in the memory that also holds the marks. The next process to commit goes on from there. A
//! process that opens the pool after all others were killed need not read the logs.
//!
//! Two copies, written in turn: a death while one is written leaves the other whole.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::log::{Identity, Position};
use pram::error::Result;
use pram::marks::Marks;

const MAGIC: u64 = u64::from_le_bytes(*b"CQ-COPY\x05");
/// Where the copies lie among the notes.
const AT: [u64; 2] = [0, 512];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The log that commits go to.
    pub active: usize,
    /// The other log is being begun anew, to take over: on disk it may be the old one or the new one.
    pub swapping: bool,
    pub logs: [Position; 2],
    /// Epochs before this one are durable, see [`pram::session::epoch`].
    pub durable: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: u64,
    uuid: [u8; 16],
    /// Counts writes: the higher one of two is current.
    version: u64,
    active: u64,
    logs: [Position; 2],
    durable: u64,
    swapping: u32,
    /// CRC-32C of the bytes before.
    crc: u32,
}
const _: () = assert!(size_of::<Raw>() == 184);

impl State {
    /// The state in the notes of `marks`, if there is one: else the marks mean nothing.
    pub fn read(marks: &Marks, id: Identity) -> Result<Option<State>> {
        Ok(newest(marks)?.filter(|raw| raw.uuid == id.uuid && raw.active < 2).map(|raw| State {
            active: raw.active as usize,
            swapping: raw.swapping != 0,
            logs: raw.logs,
            durable: raw.durable,
        }))
    }

    /// Replaces the state.
    pub fn write(&self, marks: &Marks, id: Identity) -> Result<()> {
        let version = newest(marks)?.map_or(1, |raw| raw.version + 1);
        let Identity { uuid } = id;
        let (active, swapping) = (self.active as u64, u32::from(self.swapping));
        let mut raw =
            Raw { magic: MAGIC, uuid, version, active, logs: self.logs, durable: self.durable, swapping, crc: 0 };
        raw.crc = crc_of(&raw);
        marks.set_note(AT[(version % 2) as usize], &raw)
    }
}

fn newest(marks: &Marks) -> Result<Option<Raw>> {
    let copies = [marks.note::<Raw>(AT[0])?, marks.note(AT[1])?];
    Ok(copies.into_iter().filter(|raw| raw.magic == MAGIC && raw.crc == crc_of(raw)).max_by_key(|raw| raw.version))
}

fn crc_of(raw: &Raw) -> u32 {
    pram::mem::crc32c(&raw.as_bytes()[..std::mem::offset_of!(Raw, crc)])
}
