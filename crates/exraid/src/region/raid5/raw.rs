//! The bytes of the log of intents, as docs/FORMAT.md describes them, and their verification.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const INTENT_MAGIC: [u8; 8] = *b"CQ-INTNT";
pub const FLOORS_MAGIC: [u8; 8] = *b"CQ-FLOOR";
pub const VERSION: u32 = 1;
/// Bytes of a copy of the head.
pub const HEAD: u64 = 4096;
/// Bytes of the header of an intent.
pub const HEADER: u64 = 4096;
/// Slots of a log, at least and at most.
pub const LEAST_SLOTS: usize = 16;
pub const SLOTS: usize = 256;
/// Bytes of all slots of a log, if their number stays within those bounds.
pub const LOG: u64 = 4 << 20;
/// Bytes of a chunk, at most: the bytes of a stripe on all members are counted in 32 bits.
pub const MOST_CHUNK: u64 = 16 << 20;

/// The header of a slot; the member's new content follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawIntent {
    pub magic: [u8; 8],
    pub version: u32,
    pub crc: u32,
    pub secret: u64,
    pub sequence: u64,
    pub stripe: u64,
    pub start: u64,
    pub end: u64,
    pub at: u64,
    pub len: u64,
    pub role: u32,
    pub roles: u32,
    pub reserved: [u8; 4016],
}

/// A copy of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawFloors {
    pub magic: [u8; 8],
    pub version: u32,
    pub crc: u32,
    pub secret: u64,
    pub floors: [u64; SLOTS],
    pub reserved: [u8; 2024],
}

const _: () = assert!(size_of::<RawIntent>() as u64 == HEADER && size_of::<RawFloors>() as u64 == HEAD);

/// The checksum covers the bytes from here on.
const SUMMED: usize = 16;

impl RawIntent {
    /// Sets the checksum of the header and the new content.
    #[must_use]
    pub fn sealed(mut self, content: &[u8]) -> RawIntent {
        self.crc = self.sum(content);
        self
    }

    /// An intent of the region with this secret, if the header is one; does not verify its checksum.
    pub fn read(bytes: &[u8], secret: u64) -> Option<RawIntent> {
        let raw = RawIntent::read_from_bytes(bytes).ok()?;
        (raw.magic == INTENT_MAGIC && raw.version == VERSION && raw.secret == secret).then_some(raw)
    }

    pub fn sum(&self, content: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.as_bytes()[SUMMED..]), content)
    }
}

impl RawFloors {
    pub fn new(secret: u64, of: &[u64]) -> RawFloors {
        let mut floors = [0; SLOTS];
        floors[..of.len()].copy_from_slice(of);
        let mut raw = RawFloors { magic: FLOORS_MAGIC, version: VERSION, crc: 0, secret, floors, reserved: [0; 2024] };
        raw.crc = raw.sum();
        raw
    }

    /// An intact head of the region with this secret.
    pub fn read(bytes: &[u8], secret: u64) -> Option<RawFloors> {
        let raw = RawFloors::read_from_bytes(bytes).ok()?;
        let is_ours = raw.magic == FLOORS_MAGIC && raw.version == VERSION && raw.secret == secret;
        (is_ours && raw.crc == raw.sum()).then_some(raw)
    }

    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[SUMMED..])
    }
}
