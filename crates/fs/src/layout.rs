//! The layout of the memory: every structure of the file system, byte by byte. `docs/FORMAT.md` tells the
//! same; a test holds the two together.

use pram::{Off, Tag};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of this layout, in the memory header.
pub const VERSION: u32 = 9;

/// Object types in the heap.
pub mod tag {
    use super::Tag;

    pub const SUPER: Tag = Tag(1);
    /// First and second level of the inode table.
    pub const INODE_TABLE: Tag = Tag(2);
    /// Sixteen inodes.
    pub const INODE_BLOCK: Tag = Tag(3);
    /// Directory entries.
    pub const BUCKET: Tag = Tag(4);
    /// Offsets of buckets, by hash prefix.
    pub const BUCKET_TABLE: Tag = Tag(5);
    /// File content and symlink targets.
    pub const DATA: Tag = Tag(6);
    /// Entries that lead to pages or to further index nodes.
    pub const INDEX: Tag = Tag(7);
    pub const XATTR: Tag = Tag(8);
    /// Permission triples.
    pub const PERM: Tag = Tag(9);
    /// The log of segments: its head, and the table of segments.
    pub const LOG: Tag = ilfs::table::TAG;
    /// Compressed content of files.
    pub const COMPRESSED: Tag = Tag(11);
    /// The codecs of compressed content.
    pub const DICTIONARY: Tag = Tag(12);
    /// Up to sixteen inodes, packed.
    pub const PACKED: Tag = Tag(13);
    /// Objects beside those: access times of ones that have been read since, and profiles.
    pub const PACKING: Tag = Tag(14);

    /// Names, by number, for reports. 0 stands for blocks, which are no objects; those without a name are not used.
    pub const NAMES: [&str; pram::memory::TAGS] = [
        "block",
        "superblock",
        "inode table",
        "inode block",
        "bucket",
        "bucket table",
        "data",
        "index node",
        "xattr",
        "permissions",
        "segment table",
        "compressed",
        "dictionary",
        "packed inodes",
        "packing",
        "block table",
    ];
}

/// Root words of the memory.
pub mod root {
    /// Offset of the superblock.
    pub const SUPER: u64 = 0;
    /// Offset of the head of the log of segments, or 0.
    pub const LOG: u64 = ilfs::table::ROOT;
    /// The threshold that all files have followed, in bytes; or 0: some may have to; or 1: a walk is under way.
    pub const FOLLOWED: u64 = 2;
    /// The size of the memory when they had.
    pub const FOLLOWED_SIZE: u64 = 3;
    /// Offsets of the newest dictionary: one copy of it, and the other; or 0.
    pub const DICTIONARIES: [u64; 2] = [4, 5];
    /// Offset of the first of the plain inode blocks that are kept for unpacking where memory is full, or 0.
    pub const SPARE: u64 = 31;
    /// Offsets of profiles, by number, or 0: the codes of packed inodes.
    pub const PROFILES: u64 = 32;
}

/// Entries of each inode table level.
pub const TABLE: u64 = 4096;
/// Inodes per block.
pub const PER_BLOCK: u64 = 16;
/// Inode numbers are below this.
pub const MAX_INODES: u64 = TABLE * TABLE * PER_BLOCK;
/// Permission triples per chunk, and chunks.
pub const PERM_CHUNK: u64 = 256;
pub const PERM_CHUNKS: u64 = 2048;

/// The superblock: where everything begins.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Super {
    pub magic: u64,
    /// First level of the inode table: `TABLE` offsets of second levels.
    pub inodes: Off<u64>,
    /// `PERM_CHUNKS` offsets of chunks of permission triples.
    pub perms: Off<u64>,
    /// Key of the name hash, made at format: no user can choose names that collide.
    pub hash_key: u64,
}
const _: () = assert!(size_of::<Super>() == 32);
pub const SUPER_MAGIC: u64 = u64::from_le_bytes(*b"CQ-SUPER");

/// An inode in its plain form. The first 40 bytes change with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawInode {
    /// A [`Root`]: block or tree of a file, bucket or table of a directory, target of a symlink.
    pub content: u64,
    /// Bytes of a file or symlink target; entries of a directory.
    pub size: u64,
    /// Pages of a file's tree; parent of a directory; device number of a special file.
    pub extra: u64,
    /// Times in nanoseconds since the epoch.
    pub mtime: i64,
    pub ctime: i64,
    pub atime: i64,
    pub btime: i64,
    /// Offset of the extended attributes, or 0.
    pub xattr: u64,
    /// Index of the (uid, gid, mode) triple; the mode includes the type bits.
    pub perm: u32,
    pub nlink: u32,
    pub generation: u32,
    /// The type again (`S_IFMT >> 12`).
    pub kind: u8,
    /// A delay that belongs to `settings`.
    pub delay: u8,
    /// Policy of the inode: see [`crate::setting`].
    pub settings: u16,
}
pub const INODE: u64 = size_of::<RawInode>() as u64;
/// Bytes at the start of an inode that change with content: `content` to `ctime`.
pub const INODE_HOT: usize = std::mem::offset_of!(RawInode, atime);
const _: () = assert!(INODE == 80 && INODE_HOT == 40);

/// A block of sixteen inodes: the header gives the length of each, 0 for a free one (mramfs, 5.1); plain
/// inodes have length [`INODE`] and lie at fixed places. Shorter lengths are kept for packed ones.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeBlock {
    pub lengths: [u8; PER_BLOCK as usize],
    pub inodes: [RawInode; PER_BLOCK as usize],
}
const _: () = assert!(size_of::<InodeBlock>() == 1296);

/// Profiles are numbered below this.
pub const PROFILES: usize = 16;

/// The head of a profile: its bytes follow, and then again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawProfile {
    /// Bytes of each copy.
    pub len: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<RawProfile>() == 8);

/// In a word that leads to a block of inodes or to a bucket: it is packed. Offsets are multiples of 16.
pub const PACKED: u64 = 1;

/// The head of packed inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawPacked {
    /// Offset of the [`AccessTimes`] of those that were read since they were packed, or 0.
    pub atimes: u64,
    /// CRC-32C of the coded bytes.
    pub check: u32,
    /// How many there are.
    pub bytes: u32,
}
const _: () = assert!(size_of::<RawPacked>() == 16);

/// Access times of packed inodes; 0: the one that is packed with the inode.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccessTimes {
    pub times: [i64; PER_BLOCK as usize],
}
const _: () = assert!(size_of::<AccessTimes>() == 128);

/// A permission triple. Mode 0 marks a free place: real modes have type bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawPerm {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}
const _: () = assert!(size_of::<RawPerm>() == 12);

impl RawPerm {
    /// The highest number stands for none, and a kernel refuses to work with such files.
    pub(crate) fn has_owner(&self) -> bool {
        self.uid != u32::MAX && self.gid != u32::MAX
    }
}

/// How compressed content begins. Behind it lie, where there are several chunks, a [`RawStreamChunk`] for each; then, where one object does
/// not hold it, the offsets of the objects that have the stream; else the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawCompressed {
    /// Bytes of the file.
    pub size: u32,
    /// Bytes of the stream: the compressed chunks, one behind the other.
    pub stored: u32,
    /// Checksum of the inode's number, of all this with 0 in its place, of the tables, and of a stream of one chunk.
    pub check: u32,
    /// The number of the dictionary that it was compressed with, or 0.
    pub dictionary: u16,
    /// See [`Codec`](crate::codec::Codec).
    pub codec: u8,
    pub reserved: u8,
}
const _: () = assert!(size_of::<RawCompressed>() == 16);

/// One chunk of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawStreamChunk {
    /// Where it ends in the stream.
    pub end: u32,
    /// Checksum of its part of the stream.
    pub check: u32,
}
const _: () = assert!(size_of::<RawStreamChunk>() == 8);

/// How a dictionary begins; its bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawDictionary {
    /// The same copy of the dictionary made before it, or 0.
    pub older: Off<RawDictionary>,
    pub number: u16,
    pub reserved: u16,
    /// Bytes that follow.
    pub len: u32,
    /// Checksum of number, length and bytes.
    pub check: u32,
    /// MiB of small files that there were when it was made.
    pub of: u32,
}
const _: () = assert!(size_of::<RawDictionary>() == 24);

/// Forms of a file's content, of [`Root::form`].
pub mod form {
    /// One object.
    pub const DIRECT: u8 = 1;
    /// Pages under index nodes.
    pub const TREE: u8 = 2;
    /// Compressed as a whole.
    pub const COMPRESSED: u8 = 3;
}

/// Bytes of a page of content.
pub const PAGE: u64 = 4096;

/// Where content begins, in one word, so that one store switches it: offset (48 bits), form (8), depth (8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    pub off: u64,
    /// The type of the object there; its meaning belongs to `file` or `dir`. 0 with offset 0: nothing.
    pub form: u8,
    /// Height of a page tree (and a bit, see `file`), or global depth of a bucket table.
    pub depth: u8,
}

impl Root {
    pub const EMPTY: Root = Root { off: 0, form: 0, depth: 0 };

    #[inline(always)]
    pub fn unpack(word: u64) -> Root {
        Root { off: word & ((1 << 48) - 1), form: (word >> 48) as u8, depth: (word >> 56) as u8 }
    }

    #[inline(always)]
    pub const fn pack(self) -> u64 {
        self.off | (self.form as u64) << 48 | (self.depth as u64) << 56
    }
}

/// The value of a constant that FORMAT.md tells, for tests beside constants that only their module sees.
#[cfg(test)]
pub(crate) fn documented(name: &str) -> u64 {
    let page = include_str!("../../../docs/FORMAT.md");
    let row = page.lines().find_map(|l| l.strip_prefix(&format!("| `{name}` | "))).expect("FORMAT.md tells it");
    row.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

#[cfg(test)]
mod tests {
    #[test]
    fn reservations_are_as_documented() {
        assert_eq!(u64::from(crate::inode::reserved_by(0)), super::documented("RESERVED_INODE"));
        assert_eq!(u64::from(crate::inode::reserved_by(5)), super::documented("RESERVED_INODE") + 5);
    }
}
