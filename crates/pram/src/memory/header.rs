//! The header, in two copies: made by `format`, and a gate for every memory that is opened.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::class::CLASSES;
use super::geometry::{
    check_size, groups_in, ChunkEntry, Geometry, BACKING_ROOT, BEGUN_ROOT, CHUNK, EPOCH_ROOT, GROUP, GROUPS_ROOT,
    HEADER_AT, LINEAGE_ROOT, MAX_SLOTS, RECOVERED_ROOT, ROOTS, ROOTS_AT, SLOT,
};
use crate::error::{Error, Result};
use crate::medium::MediumKind;
use crate::mem::{crc32c, Mapping};
use crate::random;

pub(super) const MAGIC: [u8; 8] = *b"CQ-PRAM\n";
pub(super) const VERSION: u32 = 3;

/// The header, as it lies at offsets 0 and 4096.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawHeader {
    pub magic: [u8; 8],
    pub version: u32,
    pub medium: u32,
    /// Over all constants that fix the layout: a build with other constants is refused.
    pub fingerprint: u64,
    pub uuid: [u8; 16],
    /// Bytes that the memory may take at most. Changed when it grows, one copy after the other.
    pub size: u64,
    pub slots: u64,
    /// Nanoseconds since the epoch.
    pub created: i64,
    /// Version of the layer above's data in the memory.
    pub app_version: u32,
    /// CRC-32C of the bytes before.
    pub crc: u32,
}
const _: () = assert!(size_of::<RawHeader>() == 72);
/// Where the size is in a header.
pub(super) const SIZE_AT: u64 = std::mem::offset_of!(RawHeader, size) as u64;

/// A number that changes with every constant of this layout.
pub fn fingerprint() -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |n: u64| h = (h ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    for n in [CHUNK, GROUP, SLOT, ROOTS, MAX_SLOTS, size_of::<RawHeader>() as u64, size_of::<ChunkEntry>() as u64] {
        add(n);
    }
    CLASSES.iter().for_each(|c| add(u64::from(c.size) << 32 | u64::from(c.base)));
    h
}

/// The header's description of a memory.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    pub uuid: [u8; 16],
    pub medium: MediumKind,
    pub created: i64,
    pub app_version: u32,
}

pub(super) fn too_short() -> Error {
    Error::Unusable("the memory is too short to hold a header: it is truncated or not a memory".into())
}

pub(super) fn medium_of(raw: &RawHeader) -> Result<MediumKind> {
    MediumKind::from_number(raw.medium)
        .ok_or_else(|| Error::Unusable(format!("medium {} is unknown to this version", raw.medium)))
}

/// The header of the memory in `map`, and where a damaged copy of it lies.
pub(super) fn find_header(map: &Mapping) -> Result<(RawHeader, Option<u64>)> {
    match HEADER_AT.map(|at| map.read::<RawHeader>(at).map_err(|_| too_short()).and_then(check_header)) {
        [Ok(a), Ok(b)] if a.as_bytes() == b.as_bytes() => Ok((a, None)),
        [Ok(a), _] => Ok((a, Some(HEADER_AT[1]))),
        [_, Ok(b)] => Ok((b, Some(HEADER_AT[0]))),
        [Err(e), _] => Err(e),
    }
}

/// The header at the start of `bytes`, of which [`HEADERS`](super::HEADERS) are enough: the first of its two copies that is right.
pub fn header_in(bytes: &[u8]) -> Result<RawHeader> {
    let mut last = too_short();
    for at in HEADER_AT {
        let Some((raw, _)) = bytes.get(at as usize..).and_then(|b| RawHeader::read_from_prefix(b).ok()) else {
            continue;
        };
        match check_header(raw) {
            Ok(raw) => return Ok(raw),
            Err(e) if at == 0 => last = e,
            Err(_) => {}
        }
    }
    Err(last)
}

/// The content of a header, checked against the memory that it heads.
pub(super) fn examine(map: &Mapping, raw: &RawHeader) -> Result<(Geometry, Info)> {
    check_size(raw.size)?;
    let geo = Geometry::with(raw.slots)?;
    if geo.groups(raw.size) == 0 || geo.heap() > raw.size {
        return Err(Error::Unusable("the memory's geometry is not one this program makes".into()));
    }
    if map.len() < raw.size {
        return Err(Error::Unusable(format!(
            "the memory is truncated: {} of {} bytes are there; restore it from an image (`conquest restore`)",
            map.len(),
            raw.size
        )));
    }
    let RawHeader { uuid, created, app_version, .. } = *raw;
    Ok((geo, Info { uuid, medium: medium_of(raw)?, created, app_version }))
}

/// Makes the closed memory in `map`, perhaps of an image from another medium, one for the medium `kind`; true if the
/// medium differed. Not flushed.
pub fn adopt(map: &Mapping, kind: MediumKind) -> Result<(Info, bool)> {
    let (mut raw, _) = find_header(map)?;
    let other = raw.medium != kind as u32;
    if other {
        raw.medium = kind as u32;
        raw.crc = header_crc(&raw);
        for at in HEADER_AT {
            map.write(at, raw.as_bytes())?;
        }
    }
    Ok((examine(map, &raw)?.1, other))
}

/// Notes in a memory that was made from the backing or image of an earlier one which epoch was running there. Sets the
/// running epoch far beyond, since the earlier memory may have gone on. Not flushed.
pub fn begin_life(map: &Mapping) -> Result<()> {
    let at = |root: u64| ROOTS_AT + root * 8;
    let recovered: u64 = map.read(at(EPOCH_ROOT))?;
    let far = FAR + u64::from_le_bytes(random::bytes()?) % FAR;
    map.write(at(RECOVERED_ROOT), &recovered.max(1).to_le_bytes())?;
    map.write(at(EPOCH_ROOT), &(recovered + far).to_le_bytes())
}

/// The geometry of the memory in `map` with the header `raw`, the chunk behind its last one, and its running epoch.
pub fn survey(map: &Mapping, raw: &RawHeader) -> Result<(Geometry, u64, u64)> {
    let word = |root: u64| map.read::<u64>(ROOTS_AT + root * 8);
    let groups = groups_in(word(GROUPS_ROOT)?).unwrap_or(0);
    Ok((Geometry::with(raw.slots)?, raw.size.min(groups * GROUP) / CHUNK, word(EPOCH_ROOT)?))
}

/// Least distance from the epochs of one memory to those of the next one made from it, and the most that is added at
/// random. It is more than any memory has, and seldom the same twice.
const FAR: u64 = 1 << 40;

/// Notes in a memory that was made from a backing its position relative to that.
pub fn note_made(map: &Mapping, lineage: u32, commit: u64) -> Result<()> {
    for (root, value) in [(LINEAGE_ROOT, u64::from(lineage)), (BEGUN_ROOT, commit), (BACKING_ROOT, 0)] {
        map.write(ROOTS_AT + root * 8, &value.to_le_bytes())?;
    }
    begin_life(map)
}

pub(super) fn header_crc(raw: &RawHeader) -> u32 {
    crc32c(&raw.as_bytes()[..std::mem::offset_of!(RawHeader, crc)])
}

fn other_version(found: u32) -> String {
    format!(
        "the memory has format version {found}, this program reads version {VERSION}: copy its files elsewhere with the \
         version that made it, and make the pool anew (`conquest format`)"
    )
}

/// The gate where header bytes become trusted.
pub(super) fn check_header(raw: RawHeader) -> Result<RawHeader> {
    let bad = |why: String| Err(Error::Unusable(why));
    if raw.as_bytes() == RawHeader::new_zeroed().as_bytes() {
        return bad(
            "the memory is empty: never formatted, or its memory was lost; `conquest restore` makes it from an image, \
             `conquest import` from its backing"
                .into(),
        );
    }
    if raw.magic != MAGIC {
        return bad("not a Conquest memory (wrong magic number)".into());
    }
    if raw.crc != header_crc(&raw) && raw.version != VERSION {
        return bad(format!("{}; or its header is damaged", other_version(raw.version)));
    }
    if raw.crc != header_crc(&raw) {
        return bad(
            "both copies of the memory's header are damaged; restore it from an image (`conquest restore`)".into()
        );
    }
    if raw.version != VERSION {
        return bad(other_version(raw.version));
    }
    if raw.fingerprint != fingerprint() {
        return bad(
            "the memory was laid out by a build with other constants; use that build, or save and restore".into()
        );
    }
    Ok(raw)
}
