//! FORMAT.md against the constants and structures of the code.

use std::mem::{offset_of, size_of};

use backing::image::{RawAnew, RawEntry, RawImage};
use backing::log::{RawLog, RawRecord};
use backing::save::{RawSave, RawSaveEnd};
use conquest_fs::layout::{
    self, AccessTimes, InodeBlock, RawCompressed, RawDictionary, RawInode, RawPacked, RawPerm, RawProfile,
    RawStreamChunk, Super,
};
use ilfs::content_stream::{RawCarried, RawCarriedPart, RawCarriedRegion, RawCarriedSegment};
use ilfs::part::{RawOwner, RawPart};
use ilfs::table::{RawSegment, RawTable, RawTableRegion};
use pram::memory::{ChunkEntry, Class, Descriptor, Geometry, RawHeader, CLASSES};

use crate::reader::name_hash;
use crate::tables::{number, Page};

/// The offsets of all fields of a structure, against its table.
macro_rules! same_fields {
    ($page:expr, $type:ident: $($field:ident)+) => {{
        let page = $page.structure(stringify!($type));
        assert_eq!(page.size, size_of::<$type>() as u64, "size of {}", stringify!($type));
        let names: Vec<&str> = page.fields.iter().map(|f| f.0.as_str()).collect();
        assert_eq!(names, [$(stringify!($field)),+], "fields of {}", stringify!($type));
        $(assert_eq!(
            page.field(stringify!($field)).0,
            offset_of!($type, $field) as u64,
            "{}.{}", stringify!($type), stringify!($field)
        );)+
    }};
}

#[test]
fn structures_lie_as_documented() {
    let page = Page::open("FORMAT.md");
    same_fields!(page, RawHeader: magic version medium fingerprint uuid size slots created app_version crc);
    same_fields!(page, Super: magic inodes perms hash_key);
    same_fields!(page, RawInode: content size extra mtime ctime atime btime xattr perm nlink generation kind delay settings);
    same_fields!(page, InodeBlock: lengths inodes);
    same_fields!(page, RawPacked: atimes check bytes);
    same_fields!(page, AccessTimes: times);
    same_fields!(page, RawProfile: len reserved);
    same_fields!(page, RawCompressed: size stored check dictionary codec reserved);
    same_fields!(page, RawStreamChunk: end check);
    same_fields!(page, RawDictionary: older number reserved len check of);
    same_fields!(page, RawPerm: uid gid mode);
    same_fields!(page, RawSave: magic version chunk uuid size fingerprint saved chunks app_version holds content reserved crc);
    same_fields!(page, RawSaveEnd: magic chunks bytes sum crc);
    same_fields!(page, RawLog: magic version line uuid fingerprint generation first capacity nonce lineage crc);
    same_fields!(page, RawRecord: magic crc generation commit time len extents before part flags writer nonce);
    same_fields!(page, RawImage: magic version page uuid fingerprint generation commit time root last crc);
    same_fields!(page, RawAnew: magic lineage generation crc reserved);
    same_fields!(page, RawEntry: slot crc);
    same_fields!(page, RawTable: magic directory regions chains count changes buckets blocks end slots sequence limit clock
        version freed last_freed waiting spare held bad live promised recovered mirrored heads tasks rate scrubbed scrub_began);
    same_fields!(page, RawTableRegion: number standing first slots free fresh reserved spare held bad whole since domain cause mark raising);
    same_fields!(page, RawSegment: state stamp link replicas);
    same_fields!(page, RawPart: magic version crc pool nonce sequence written block number entries segment head class reserved);
    same_fields!(page, RawOwner: ino page version generation crc);
    same_fields!(page, RawCarried: magic version blocks regions reserved);
    same_fields!(page, RawCarriedRegion: number slots);
    same_fields!(page, RawCarriedSegment: sequence parts blocks);
    same_fields!(page, RawCarriedPart: written block number entries head class reserved);
    same_fields!(page, Descriptor: place epoch owner);
    assert_eq!(page.structure("ChunkEntry").size, size_of::<ChunkEntry>() as u64);
    assert_eq!(page.structure("UndoRecord").size, pram::tx::RECORD);
}

/// Constants that other tests here check: by reading memory, or by trying.
const TRIED: [&str; 40] = [
    "MEMORY_VERSION",
    "SAVE_VERSION",
    "POOL_VERSION",
    "FINGERPRINT",
    "HEADER_A",
    "HEADER_B",
    "ROOTS_AT",
    "SLOTS_AT",
    "MAX_SLOTS",
    "LOG_AT",
    "RESERVED_INODE",
    "FILE_DIRECT",
    "FILE_TREE",
    "FILE_COMPRESSED",
    "COMPRESSED_ALONE",
    "FILE_TRIAL_AT",
    "FILE_LARGE",
    "FILE_MOVED",
    "ENTRY_BLOCK",
    "ENTRY_DISK",
    "ENTRY_COMPACT",
    "FILE_CUT",
    "PAGE",
    "FANOUT",
    "MAX_HEIGHT",
    "MAX_FILE",
    "ENTRY_KIND_AT",
    "ENTRY_CODE_AT",
    "ENTRY_NODE",
    "ENTRY_PAGE",
    "ENTRY_RESERVED",
    "DIR_LONE",
    "DIR_TABLE",
    "DIR_PACKED",
    "MAX_DEPTH",
    "SPLIT",
    "XATTR_NAME_MAX",
    "XATTR_VALUE_MAX",
    "XATTR_TOTAL_MAX",
    "ROOT_INODE",
];

#[test]
fn constants_are_as_documented() {
    let page = Page::open("FORMAT.md");
    assert_eq!(page.constant("BLOCK"), pram::memory::BLOCK, "in memory as on disk");
    let code = [
        ("LAYOUT_VERSION", u64::from(layout::VERSION)),
        ("MIN_SIZE", pram::memory::MIN_SIZE),
        ("MAX_SIZE", pram::memory::MAX_SIZE),
        ("ROOTS", pram::memory::ROOTS),
        ("SLOT", pram::memory::SLOT),
        ("HEAP_CHUNK", pram::CHUNK),
        ("GROUP", pram::memory::GROUP),
        ("TABLE_AT", pram::memory::TABLE_AT),
        ("ROOT_SUPER", layout::root::SUPER),
        ("ROOT_LOG", layout::root::LOG),
        ("ROOT_FOLLOWED", layout::root::FOLLOWED),
        ("ROOT_FOLLOWED_SIZE", layout::root::FOLLOWED_SIZE),
        ("ROOT_SPARE", layout::root::SPARE),
        ("ROOT_PROFILES", layout::root::PROFILES),
        ("PACKED", layout::PACKED),
        ("PROFILES", layout::PROFILES as u64),
        ("CHUNK", ilfs::table::CHUNK),
        ("HEADS", ilfs::table::HEADS as u64),
        ("BUCKETS", ilfs::table::BUCKETS),
        ("BLOCK", ilfs::place::BLOCK),
        ("BLOCK_BITS", ilfs::place::BLOCK_BITS.into()),
        ("SEQUENCE_BITS", ilfs::place::SEQUENCE_BITS.into()),
        ("PART_VERSION", ilfs::part::VERSION.into()),
        ("ROOT_GROUPS", pram::session::USER_ROOTS),
        ("ROOT_RECOVERED", pram::session::USER_ROOTS + 1),
        ("ROOT_EPOCH", pram::session::USER_ROOTS + 2),
        ("ROOT_LINEAGE", pram::session::USER_ROOTS + 3),
        ("ROOT_BEGUN", pram::session::USER_ROOTS + 4),
        ("ROOT_BACKING", pram::session::USER_ROOTS + 5),
        ("ROOT_OPEN", pram::session::USER_ROOTS + 6),
        ("LOG_CAPACITY", pram::tx::LOG_CAPACITY),
        ("RECORD", pram::tx::RECORD),
        ("TABLE", layout::TABLE),
        ("PER_BLOCK", layout::PER_BLOCK),
        ("MAX_INODES", layout::MAX_INODES),
        ("PERM_CHUNK", layout::PERM_CHUNK),
        ("PERM_CHUNKS", layout::PERM_CHUNKS),
        ("THRESHOLD_AT", conquest_fs::setting::THRESHOLD_AT.into()),
        ("THRESHOLD_LEAST", conquest_fs::setting::THRESHOLD_LEAST.into()),
        ("THRESHOLD_NONE", conquest_fs::setting::THRESHOLD_NONE.into()),
        ("REDUNDANCY_AT", conquest_fs::setting::REDUNDANCY_AT.into()),
        ("PRIORITY_AT", conquest_fs::setting::PRIORITY_AT.into()),
        ("COMPRESSION_AT", conquest_fs::setting::COMPRESSION_AT.into()),
        ("TIMES_AT", conquest_fs::setting::TIMES_AT.into()),
        ("ROOT_DICTIONARIES", layout::root::DICTIONARIES[0]),
        ("COMPRESSED_MOST", conquest_fs::codec::MOST),
        ("COMPRESSED_CHUNK", conquest_fs::codec::CHUNK as u64),
        ("COMPRESSED_LZ4", conquest_fs::codec::Codec::Lz4 as u64),
        ("COMPRESSED_ZSTD", conquest_fs::codec::Codec::Zstd as u64),
        ("DELAY_MINUTES", conquest_fs::setting::DELAY_MINUTES.into()),
        ("DELAY_HOURS", conquest_fs::setting::DELAY_HOURS.into()),
        ("DELAY_MOST", conquest_fs::setting::DELAY_MOST.into()),
        ("NAME_MAX", conquest_fs::attr::NAME_MAX as u64),
    ];
    for (name, value) in code {
        assert_eq!(page.constant(name), value, "{name}");
    }
    for name in page.constant_names() {
        let known = TRIED.contains(&name) || code.iter().any(|(n, _)| *n == name);
        assert!(known, "`{name}` in FORMAT.md is compared with nothing");
    }
    assert_eq!(page.constant("ROOT_INODE"), conquest_fs::ROOT);
    assert_eq!(page.constant("LOG_AT") + page.constant("LOG_CAPACITY"), page.constant("SLOT"));
    assert_eq!(page.constant("MAX_FILE"), i64::MAX as u64);
}

/// The words of a segment's entry, and a summary, from the page's tables alone.
#[test]
fn segments_are_as_documented() {
    use ilfs::part::{Entry, Found, Identity, Owner, Part};
    use ilfs::table::{Segment, SlotState};
    let page = Page::open("FORMAT.md");
    let segment = Segment {
        sequence: 0x9_8765_4321,
        live: 1017,
        state: SlotState::Cleaning,
        failed: true,
        head: 1,
        class: 5,
        partial: true,
        priority: 2,
        stamp: 77,
        next: Some(12344),
        used: 2048,
        parts: 9,
        replica: Some(4),
        due: 99,
    };
    let [state, stamp, link, replicas] = segment.to_raw();
    let (s, l, c) = (page.structure("SegmentState"), page.structure("SegmentLink"), page.structure("SegmentReplicas"));
    let fields = ["sequence", "live", "state", "failed", "head", "class", "partial", "priority", "spare"];
    let fields = fields.map(|field| s.bits(state, field));
    assert_eq!((fields, stamp), ([0x9_8765_4321, 1017, 3, 1, 1, 5, 1, 2, 0], 77));
    assert_eq!(["replica", "due"].map(|field| c.bits(replicas, field)), [5, 99]);
    assert_eq!(["next", "used", "parts"].map(|field| l.bits(link, field)), [12345, 2048, 9]);

    let entry = |page| Entry { owner: Owner { ino: 5, generation: 2, page }, version: 40 + page, crc: 0xabcd };
    let part = Part {
        sequence: 3,
        block: 7,
        number: 1,
        segment: 256,
        head: 0,
        class: 2,
        written: 123,
        entries: (0..130).map(entry).collect(),
    };
    let identity = Identity { pool: [8; 16], secret: 0x0706_0504_0302_0100 };
    let mut bytes = vec![0; 2 * page.constant("BLOCK") as usize];
    part.write(&identity, &mut bytes);
    assert_eq!(Part::read(&identity, 7, &bytes), Found::Part(part));
    let reader = crate::reader::Reader { page: &page, bytes: &bytes };
    let raw = reader.at("RawPart", 0);
    assert_eq!((raw.bytes("magic"), raw.bytes("pool")), (&b"CQ-PART\n"[..], &[8; 16][..]));
    let fields = ["version", "sequence", "written", "block", "number", "entries", "segment", "head", "class"]
        .map(|f| raw.get(f));
    assert_eq!(fields, [1, 3, 123, 7, 1, 130, 256, 0, 2]);
    assert_eq!(raw.get("nonce"), name_hash(identity.secret, &(3u64 << 16 | 7).to_le_bytes()));
    let (head, each) = (page.structure("RawPart").size, page.structure("RawOwner").size);
    let summed = reader.slice(16, head + 130 * each - 16);
    assert_eq!(raw.get("crc"), u64::from(crate::reader::crc32c(summed)));
    let last = reader.at("RawOwner", head + 129 * each);
    assert_eq!(["ino", "page", "version", "generation", "crc"].map(|f| last.get(f)), [5, 129, 169, 2, 0xabcd]);
}

#[test]
fn size_classes_are_as_documented() {
    let page = Page::open("FORMAT.md");
    let rows = page.rows(&["class", "size", "count", "base"]);
    assert_eq!(rows.len(), CLASSES.len());
    for (i, (row, Class { size, count, base, .. })) in rows.iter().zip(CLASSES).enumerate() {
        let documented: Vec<u64> = row.iter().map(|c| number(c)).collect();
        assert_eq!(documented, [i as u64, size.into(), count.into(), base.into()]);
    }
    assert_eq!(CLASSES[CLASSES.len() - 1].size as u64, pram::memory::MAX_SMALL);
}

#[test]
fn tags_are_as_documented() {
    let page = Page::open("FORMAT.md");
    let rows = page.rows(&["tag", "name", "object"]);
    let documented: Vec<(u64, &str)> = rows.iter().map(|r| (number(&r[0]), r[1].as_str())).collect();
    let names = layout::tag::NAMES.iter().enumerate().map(|(i, n)| (i as u64, *n)).skip(1);
    let code: Vec<(u64, &str)> = names.filter(|(_, name)| !name.is_empty()).collect();
    assert!(code.contains(&(u64::from(pram::memory::BLOCK_TABLE.0), "block table")));
    assert_eq!(documented, code);
}

#[test]
fn geometry_is_as_documented() {
    let page = Page::open("FORMAT.md");
    for row in page.rows(&["size", "slots", "first", "chunks with objects"]) {
        let documented: Vec<u64> = row.iter().map(|c| number(c)).collect();
        let g = Geometry::of(documented[0]).unwrap();
        assert_eq!(documented, [documented[0], g.slots, g.first, g.heap_chunks(documented[0])]);
    }
    let reader = crate::reader::Reader { page: &page, bytes: &[] };
    for size in (1..200).map(|i| (1 << 20) + i * 733_184).chain([1 << 33, 1 << 40, 1 << 47]) {
        let code = Geometry::of(size).unwrap();
        assert_eq!(code.slots, (size / 524288).clamp(2, page.constant("MAX_SLOTS")));
        assert_eq!(reader.first(code.slots), code.first);
        for segment in [code.first, 1023, 1025, 5000] {
            assert_eq!(reader.entry(segment), code.entry(segment).raw());
        }
    }
}

#[test]
fn the_fingerprint_is_as_documented() {
    let page = Page::open("FORMAT.md");
    let c = |name| page.constant(name);
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |n: u64| h = (h ^ n).wrapping_mul(0x100_0000_01b3).rotate_left(17);
    let sizes = ["RawHeader", "ChunkEntry"].map(|s| page.structure(s).size);
    [c("HEAP_CHUNK"), c("GROUP"), c("SLOT"), c("ROOTS"), c("MAX_SLOTS"), sizes[0], sizes[1]]
        .into_iter()
        .for_each(&mut add);
    for row in page.rows(&["class", "size", "count", "base"]) {
        add(number(&row[1]) << 32 | number(&row[3]));
    }
    assert_eq!(h, c("FINGERPRINT"));
}

/// `memory`, which reads directories, shows that the program's hashes are the same.
#[test]
fn hashes_are_as_documented() {
    for row in Page::open("FORMAT.md").rows(&["key", "name", "hash"]) {
        assert_eq!(name_hash(number(&row[0]), row[1].trim_matches('`').as_bytes()), number(&row[2]), "{}", row[1]);
    }
}

#[test]
fn pool_toml_is_as_documented() {
    let page = Page::open("FORMAT.md");
    let (_, rest) = page.text.split_once("```toml\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.toml");
    std::fs::write(&path, example).unwrap();
    let config = conquest::config::Config::read(dir.path()).unwrap().unwrap();
    assert_eq!(u64::from(config.version), page.constant("POOL_VERSION"));
    assert_eq!(config.nvram.as_deref(), Some(std::path::Path::new("nvram")));
    config.write(dir.path()).unwrap();
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(written.trim(), example.trim(), "the program writes what the page shows");
    std::fs::write(&path, format!("{example}colour = \"blue\"\n")).unwrap();
    assert!(conquest::config::Config::read(dir.path()).is_err(), "a key that is not there is an error");
}
