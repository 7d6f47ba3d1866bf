//! The label's bytes, and their verification before they become a [`Label`](super::Label).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAGIC: [u8; 8] = *b"CQ-LABEL";
pub const VERSION: u32 = 2;
/// Members of a region, at most.
pub const MEMBERS: usize = 32;
/// Bytes of a lease, at most.
pub const LEASE: usize = 1280;
/// Epochs with a stamp in a label, its own included.
pub const STAMPS: usize = 32;

/// A member of the region, in a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawMember {
    pub uuid: [u8; 16],
    pub state: u32,
    pub reserved: u32,
    pub rebuilt: u64,
}

/// A label, as docs/FORMAT.md describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawLabel {
    pub magic: [u8; 8],
    pub version: u32,
    pub kind: u32,
    pub pool: [u8; 16],
    pub device: [u8; 16],
    pub region: u32,
    pub role: u32,
    pub members: u32,
    pub chunk: u32,
    pub place: u64,
    pub size: u64,
    pub data: u64,
    pub generation: u64,
    pub epoch: u64,
    pub sequence: u64,
    pub created: u64,
    pub written: u64,
    pub stamps: [u64; STAMPS],
    pub table: [RawMember; MEMBERS],
    pub secret: u64,
    pub lease_len: u32,
    pub lease: [u8; LEASE],
    pub reserved: [u8; 4],
    pub high_water: u64,
    pub unused: [u8; 1380],
    pub crc: u32,
}

const _: () = assert!(size_of::<RawLabel>() == 4096);

/// The reason why bytes are no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLabel {
    /// Something else, or nothing.
    Other,
    /// A damaged label.
    Damaged,
    /// One of another version of this program.
    Version(u32),
}

impl RawLabel {
    /// Verifies that the bytes are a label; [`super::Label`] verifies its content.
    pub fn read(bytes: &[u8]) -> Result<RawLabel, NoLabel> {
        let raw = RawLabel::read_from_bytes(bytes).map_err(|_| NoLabel::Other)?;
        match () {
            () if raw.magic != MAGIC => Err(NoLabel::Other),
            () if raw.crc != raw.sum() => Err(NoLabel::Damaged),
            () if raw.version != VERSION => Err(NoLabel::Version(raw.version)),
            () => Ok(raw),
        }
    }

    /// Sets its checksum.
    pub fn sealed(mut self) -> RawLabel {
        self.crc = self.sum();
        self
    }

    fn sum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c(&bytes[..bytes.len() - std::mem::size_of_val(&self.crc)])
    }
}
