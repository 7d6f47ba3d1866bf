//! The messages of the FUSE protocol, as Linux defines them in `include/uapi/linux/fuse.h` (7.45).
//!
//! Names follow the kernel's, without the `fuse_` and `FUSE_` prefixes. Every structure is plain bytes
//! (`zerocopy`), and its size is asserted at compile time.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol version this crate speaks.
pub const VERSION: (u32, u32) = (7, 45);
/// The oldest kernel protocol accepted: 7.36 (Linux 5.17) brought `flags2` to INIT.
pub const MIN_MINOR: u32 = 36;

/// The node id of the root directory.
pub const ROOT_ID: u64 = 1;

/// Declares structures of plain bytes with their sizes.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        const _: () = assert!(std::mem::size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}

/// Numbers the opcodes, and gives the size of the fixed argument that opens each request.
macro_rules! opcodes {
    ($($name:ident = $code:literal: $args:expr;)*) => {
        /// The operation of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Opcode { $($name = $code),* }

        impl Opcode {
            pub fn from_code(code: u32) -> Option<Opcode> {
                Some(match code { $($code => Opcode::$name,)* _ => return None })
            }

            /// The length in bytes of the fixed argument; the payload (names, data, values) follows it.
            pub fn args_size(self) -> usize {
                match self { $(Opcode::$name => $args,)* }
            }
        }
    };
}

const fn of<T>() -> usize {
    std::mem::size_of::<T>()
}

opcodes! {
    Lookup = 1: 0;
    Forget = 2: of::<ForgetIn>();
    Getattr = 3: of::<GetattrIn>();
    Setattr = 4: of::<SetattrIn>();
    Readlink = 5: 0;
    Symlink = 6: 0;
    Mknod = 8: of::<MknodIn>();
    Mkdir = 9: of::<MkdirIn>();
    Unlink = 10: 0;
    Rmdir = 11: 0;
    Rename = 12: of::<RenameIn>();
    Link = 13: of::<LinkIn>();
    Open = 14: of::<OpenIn>();
    Read = 15: of::<ReadIn>();
    Write = 16: of::<WriteIn>();
    Statfs = 17: 0;
    Release = 18: of::<ReleaseIn>();
    Fsync = 20: of::<FsyncIn>();
    Setxattr = 21: of::<SetxattrIn>();
    Getxattr = 22: of::<GetxattrIn>();
    Listxattr = 23: of::<GetxattrIn>();
    Removexattr = 24: 0;
    Flush = 25: of::<FlushIn>();
    Init = 26: of::<InitIn>();
    Opendir = 27: of::<OpenIn>();
    Readdir = 28: of::<ReadIn>();
    Releasedir = 29: of::<ReleaseIn>();
    Fsyncdir = 30: of::<FsyncIn>();
    Access = 34: of::<AccessIn>();
    Create = 35: of::<CreateIn>();
    Interrupt = 36: of::<InterruptIn>();
    Destroy = 38: 0;
    Ioctl = 39: of::<IoctlIn>();
    BatchForget = 42: of::<BatchForgetIn>();
    Fallocate = 43: of::<FallocateIn>();
    Readdirplus = 44: of::<ReadIn>();
    Rename2 = 45: of::<Rename2In>();
    Lseek = 46: of::<LseekIn>();
    CopyFileRange = 47: of::<CopyFileRangeIn>();
    Syncfs = 50: of::<SyncfsIn>();
    Tmpfile = 51: of::<CreateIn>();
    Statx = 52: of::<StatxIn>();
    CopyFileRange64 = 53: of::<CopyFileRangeIn>();
}

wire! {
    /// Opens every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        /// Bytes of extensions at the end of the request, in units of 8.
        total_extlen: u16,
        padding: u16,
    }
    /// Opens every reply and notification (for those `unique` is 0 and `error` the code).
    OutHeader = 16 { len: u32, error: i32, unique: u64 }

    InitIn = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32,
        max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    WireAttr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: WireAttr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: WireAttr }
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }

    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    SxTime = 16 { sec: i64, nsec: u32, reserved: i32 }
    WireStatx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: WireStatx }

    ForgetIn = 8 { nlookup: u64 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }

    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }

    OpenIn = 8 { flags: u32, open_flags: u32 }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    AccessIn = 8 { mask: u32, padding: u32 }
    InterruptIn = 8 { unique: u64 }
    SyncfsIn = 8 { padding: u64 }

    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut = 8 { size: u32, padding: u32 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut = 8 { offset: u64 }
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut = 8 { bytes_copied: u64 }

    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }

    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    /// The reply to an IOCTL that returns nothing else.
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// The reply to an IOCTL that returns a word of 4 bytes.
    IoctlFlagsOut = 20 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, value: u32 }
    /// The same for a `struct fsxattr`.
    IoctlXattrOut = 44 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, fsxattr: [u32; 7] }
    GetxattrIn = 8 { size: u32, padding: u32 }
    GetxattrOut = 8 { size: u32, padding: u32 }

    /// Followed by the name, padded to 8 bytes.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }

    /// Opens an extension, here of type [`EXT_GROUPS`]: then come a count and that many group ids.
    ExtHeader = 8 { size: u32, kind: u32 }

    NotifyInvalInode = 24 { ino: u64, off: i64, len: i64 }
    NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32 }
    /// Comes before `size` bytes of content.
    NotifyStore = 24 { ino: u64, offset: u64, size: u32, padding: u32 }
    /// Before so many inodes.
    NotifyPrune = 16 { count: u32, padding: u32, spare: u64 }

    /// The head of an io_uring entry: a request on fetch, a reply on commit.
    UringHeader = 288 { in_out: [u8; 128], op_in: [u8; 128], entry: UringEntry }
    UringEntry = 32 { flags: u64, commit_id: u64, payload_size: u32, padding: u32, reserved: u64 }
    /// The command area of an io_uring submission.
    UringCmd = 24 { flags: u64, commit_id: u64, queue: u16, padding: [u8; 6] }
}

/// Commands of FUSE over io_uring.
pub const URING_REGISTER: u32 = 1;
pub const URING_COMMIT_AND_FETCH: u32 = 2;

/// Capabilities, negotiated by INIT.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of [`SetattrIn::valid`].
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// The bits that name a change.
    pub const CHANGES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW | CTIME | KILL_SUIDGID;
}

/// The user and group of a request that makes no inode, once [`init::ALLOW_IDMAP`] is agreed: the kernel then does not
/// name the caller.
pub const NO_CALLER: u32 = u32::MAX;

pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// The type of the extension that carries the caller's supplementary groups.
pub const EXT_GROUPS: u32 = 32;

pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
pub const NOTIFY_STORE: i32 = 4;
/// Since 7.44: makes the kernel look up every cached name again.
pub const NOTIFY_INC_EPOCH: i32 = 8;
/// The protocol version that brought [`NOTIFY_INC_EPOCH`].
pub const INC_EPOCH_MINOR: u32 = 44;
/// Since 7.45: makes the kernel forget inodes that nobody uses.
pub const NOTIFY_PRUNE: i32 = 9;
/// The protocol version that brought [`NOTIFY_PRUNE`].
pub const PRUNE_MINOR: u32 = 45;

/// Flags of [`OpenOut`].
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// The write comes from the page cache: its handle and flags are guesses.
pub const WRITE_CACHE: u32 = 1 << 0;
