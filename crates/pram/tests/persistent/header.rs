//! Damaged, foreign and truncated memories are refused or mended.

use pram::medium::BATTERY;
use pram::{Error, Mapping, MediumKind, Memory};
use rng::Rng;

use crate::rig::{self, MIB};

/// The bytes of one header copy that mean something, and where the second copy begins.
const HEADER: usize = 72;
const SECOND: usize = 4096;

fn fresh() -> Vec<u8> {
    let session = rig::private(MIB);
    rig::bytes_of(&session)
}

fn refusal(bytes: &[u8]) -> String {
    match Memory::open(rig::mapping_of(bytes), Box::new(BATTERY)) {
        Ok(_) => panic!("a bad memory was opened"),
        Err(Error::Unusable(text)) => text,
        Err(e) => panic!("not a clear error: {e}"),
    }
}

#[test]
fn a_fresh_region_opens_and_says_what_it_is() {
    let session = rig::reopen(&fresh()).unwrap();
    let info = session.memory().info;
    assert_eq!((info.uuid, info.app_version, info.created, session.memory().size()), (rig::UUID, 7, 42, MIB));
}

#[test]
fn any_flipped_byte_of_one_copy_is_mended_from_the_other() {
    let good = fresh();
    for copy in [0, SECOND] {
        for at in copy..copy + HEADER {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            let memory = Memory::open(rig::mapping_of(&bytes), Box::new(BATTERY)).unwrap();
            let mut mended = vec![0; 2 * SECOND];
            memory.read_bytes(0, &mut mended).unwrap();
            assert_eq!(mended, good[..2 * SECOND], "byte {at}");
        }
    }
}

#[test]
fn any_flipped_byte_of_both_copies_is_refused() {
    let good = fresh();
    for at in 0..HEADER {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes[SECOND + at] ^= 0x10;
        assert!(!refusal(&bytes).is_empty(), "byte {at}");
    }
}

/// Changes both copies and makes their checksums right, as another version of the program would.
fn reworked(at: usize, word: &[u8]) -> Vec<u8> {
    let mut bytes = fresh();
    for copy in [0, SECOND] {
        bytes[copy + at..copy + at + word.len()].copy_from_slice(word);
        let crc = crc32c::crc32c(&bytes[copy..copy + HEADER - 4]);
        bytes[copy + HEADER - 4..copy + HEADER].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

#[test]
fn other_versions_layouts_and_media_are_named() {
    assert!(refusal(&reworked(8, &9u32.to_le_bytes())).contains("version 9"));
    assert!(refusal(&reworked(12, &77u32.to_le_bytes())).contains("medium 77"));
    assert!(refusal(&reworked(16, &1u64.to_le_bytes())).contains("other constants"));
    assert!(refusal(&reworked(0, b"NOTPRAM\n")).contains("magic"));
    assert!(refusal(&reworked(40, &(2 * MIB).to_le_bytes())).contains("truncated"));
    assert!(refusal(&reworked(48, &65u64.to_le_bytes())).contains("65 slots"));
    assert!(refusal(&reworked(48, &64u64.to_le_bytes())).contains("geometry"));
    assert!(refusal(&reworked(40, &u64::MAX.to_le_bytes())).contains("TiB"));
}

#[test]
fn truncated_empty_and_tiny_regions_are_refused() {
    let good = fresh();
    assert!(refusal(&good[..good.len() - 4096]).contains("truncated"));
    assert!(refusal(&good[..8192]).contains("truncated"));
    assert!(refusal(&vec![0; MIB as usize]).contains("empty"));
    assert!(Memory::probe(&good[..40]).is_err());
    assert_eq!(Memory::probe(&good[..8192]).unwrap(), (MIB, MediumKind::Battery));
    for size in [4096, MIB - 4096] {
        let map = Mapping::anonymous(size).unwrap();
        let refused = Memory::format(map, Box::new(BATTERY), rig::UUID, 1, 0).err().expect("too small").to_string();
        assert!(refused.contains("too few"), "{refused}");
    }
}

#[test]
fn every_size_has_a_geometry_whose_parts_do_not_overlap() {
    use pram::memory::{Geometry, PER_GROUP};
    let heap_of = |g: &Geometry, group: u64, size: u64| {
        let end = (size / pram::CHUNK).min((group + 1) * PER_GROUP);
        end.saturating_sub((group * PER_GROUP + 1).max(if group == 0 { g.first } else { 0 }))
    };
    let mut rng = Rng::new(1);
    let sizes = (0..20_000).map(|i| MIB + i * 16).chain((0..20_000).map(|_| MIB + rng.below(1 << 40)));
    for size in sizes {
        let g = Geometry::of(size).unwrap();
        assert!(
            g.slots >= 2 && g.undo_logs().end <= g.heap() && g.entry(PER_GROUP - 1).raw() + 16 <= g.undo_logs().start
        );
        assert!(g.groups(size) > 0 && g.heap_chunks(size) > 0, "chunks of {size}");
        let ends = [g.heap_chunks(size), (0..g.groups(size)).map(|n| heap_of(&g, n, size)).sum()];
        assert_eq!(ends[0], ends[1], "chunks of {size}");
    }
}

#[test]
fn a_region_that_was_not_closed_says_so_until_swept() {
    let session = rig::private(MIB);
    let open = rig::bytes_of(&session);
    drop(session);
    let again = rig::reopen(&open).unwrap();
    assert!(again.runtime().leaks_pending());
    again.runtime().set_leaks_pending(false);
    drop(again);
}
