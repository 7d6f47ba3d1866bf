//! The API by inode number, which every front end uses.
//!
//! Every call is safe from many threads and several processes, and is atomic under a crash. It is durable when it
//! returns on `battery` and `dax`, and on `logged` where the inodes that it changes or the process's policy say so
//! ([`Durability`]). Reads take no lock.
//!
//! References: an inode whose last name is gone lives on while any attached process holds a reference
//! ([`Fs::retain`]); a process that dies loses its references.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `lookup` | names and attributes; reading without locks |
//! | `lost_to_holes` | pages whose content is lost become holes |
//! | `create` | new inodes and further names |
//! | `shortage` | lack of memory or room: how much there is, and ways to make more |
//! | `remove` | unlink, rmdir, references and the end of inodes |
//! | `truncate` | freeing the pages that large files lose, piece by piece |
//! | `rename` | rename, in its four ways |
//! | `attrs` | setattr |
//! | `content` | read, write, seek |
//! | `copy_range` | `copy_file_range` |
//! | `allocate` | `fallocate` |
//! | `piece` | changes of several pieces |
//! | `compress` | compressing quiet files, reading them, making them plain again |
//! | `dictionaries` | the dictionaries of cold content |
//! | `names` | hash and symbols of names, for directories |
//! | `packing` | packing and unpacking inodes |
//! | `pack_names` | packing names of directories |
//! | `prepare` | fetching content from disk, for readers and for changes of a part of it |
//! | `shift` | collapse and insert in large files, piece by piece |
//! | `access_time` | when reading updates access times: relatime and the like |
//! | `readdir` | reading directories |
//! | `xattrs` | extended attributes and ACLs |
//! | `statfs` | sizes of the pool |
//! | `times` | the times of changes |
//! | `usage` | the memory and disk room of an inode, and the replicas of its content |
//! | `durable` | waits for a commit |
//! | `update` | the path of every change: notifying others, waiting until it is durable |
//! | `watch` | notifying processes that cache |
//! | `may_wait` | threads that must not wait for a disk |

mod access_time;
mod allocate;
mod attrs;
pub(crate) mod compress;
mod content;
mod copy_range;
mod create;
pub(crate) mod dictionaries;
mod durable;
mod lookup;
mod lost_to_holes;
pub(crate) mod may_wait;
mod names;
mod pack_names;
pub(crate) mod packing;
mod piece;
mod prepare;
mod readdir;
mod remove;
mod rename;
mod shift;
pub(crate) mod shortage;
mod statfs;
mod times;
mod truncate;
mod update;
mod usage;
mod watch;
mod xattrs;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;

use pram::{Off, Session};
use rustix::fs::FallocateFlags;

use crate::attr::{Caller, Ino, Kind, Time};
use crate::bytes;
use crate::error::{Error, Result};
use crate::file::{Disks, Edit};
use crate::inode::{self, Allocator, Known, Table};
use crate::layout::{root, tag, RawInode, RawPerm, Super, SUPER_MAGIC};
use crate::perm::{self, Perms};
use crate::setting::Durability;
use crate::ubj::{Inodes, Union};

pub(crate) use crate::inode::{content_of, At, Node};
pub use crate::xattr::SetXattr;
use shortage::MakesRoom;

pub use access_time::Atime;
pub use pack_names::PackedNames;
pub use packing::Packed;
pub use statfs::StatFs;
pub(crate) use update::Aside;
pub use usage::Usage;
pub use watch::Recall;

/// An attached pool: one per process and pool; share it by reference or `Arc`.
pub struct Fs {
    session: Session,
    sup: Super,
    perms: Perms,
    pub(crate) found_nothing: perm::FoundNothing,
    inodes: Allocator,
    known: Known,
    policy: PolicyCell,
    stop_watching: std::sync::atomic::AtomicBool,
    /// Files that this process has appended to and that may have unused tails.
    tails: std::sync::Mutex<Vec<Ino>>,
    census: statfs::Census,
    dictionaries: dictionaries::Dictionaries,
    heat: compress::Heat,
    pub(crate) shortage: shortage::Shortage,
    /// The way to make room where there is too little.
    above: &'static dyn MakesRoom,
    /// Content on disks, if the pool has any.
    union: Option<Arc<Union>>,
    /// The key of this pool in [`recent`](crate::recent).
    pub(crate) serial: crate::recent::Serial,
}

/// How this process uses the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    pub read_only: bool,
    pub atime: Atime,
    /// Directories' access times stay as they are, in spite of `atime`.
    pub nodiratime: bool,
    /// `Strict`: for everything that this process changes; `Fsync`: unless an inode's setting is `Strict`.
    pub durability: Durability,
}

/// The policy, which a remount changes while operations run.
#[derive(Debug, Default)]
struct PolicyCell {
    read_only: AtomicBool,
    atime: AtomicU8,
    nodiratime: AtomicBool,
    strict: AtomicBool,
}

impl PolicyCell {
    fn set(&self, policy: Policy) {
        self.read_only.store(policy.read_only, Ordering::Relaxed);
        self.atime.store(policy.atime as u8, Ordering::Relaxed);
        self.nodiratime.store(policy.nodiratime, Ordering::Relaxed);
        self.strict.store(policy.durability == Durability::Strict, Ordering::Relaxed);
    }

    #[inline(always)]
    fn get(&self) -> Policy {
        let atime = match self.atime.load(Ordering::Relaxed) {
            n if n == Atime::Never as u8 => Atime::Never,
            n if n == Atime::Always as u8 => Atime::Always,
            _ => Atime::Relative,
        };
        let durability = if self.is_strict() { Durability::Strict } else { Durability::Fsync };
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        Policy { read_only: is(&self.read_only), atime, nodiratime: is(&self.nodiratime), durability }
    }

    #[inline(always)]
    fn is_strict(&self) -> bool {
        self.strict.load(Ordering::Relaxed)
    }
}

/// Cookies up to this fit 31 bits, as most do; the 2^16 numbers beyond that do are never any.
pub const SHORT_COOKIES: u64 = crate::dir::SHORT_MAX;

/// One entry of a directory, as [`Fs::readdir`] hands it out.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    pub kind: Kind,
    pub name: &'a [u8],
    /// Where to go on after this entry; stays valid while the table grows, shrinks or splits.
    pub cookie: u64,
}

/// How [`Fs::rename`] treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    /// Replace it, atomically.
    Replace,
    /// Fail with EEXIST.
    NoReplace,
    /// Exchange the two names.
    Exchange,
    /// Leave a whiteout under the old name: union file systems take that for a removed file. With or without
    /// replacing a file of the new name.
    Whiteout { replace: bool },
}

/// Options of [`Fs::read_as`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFlags {
    /// Leave the access time (O_NOATIME).
    pub unnoted: bool,
    /// The caller caches what it reads, as a kernel does in its page cache: the union cache gains nothing by it.
    pub caller_caches: bool,
}

/// The place and the side effects of a [`Fs::write`].
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteFlags {
    /// At the end of the file, at any offset (O_APPEND), atomically.
    pub append: bool,
    /// Clear set-id bits (the caller lacks CAP_FSETID).
    pub kill_suidgid: bool,
    /// Take `security.capability` away, as any user's write does.
    pub kill_capability: bool,
    /// The kernel gives back bytes that were stored to its pages, and will not ask again: where the room does not suffice, each page that
    /// has memory is written all the same.
    pub write_back: bool,
}

impl WriteFlags {
    /// Where a write at `offset` goes in a file of `size` bytes.
    #[inline(always)]
    fn start(self, offset: u64, size: u64) -> u64 {
        match self.append {
            true => size,
            false => offset,
        }
    }
}

/// The modes of `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    Allocate { keep_size: bool },
    PunchHole,
    ZeroRange { keep_size: bool },
    CollapseRange,
    InsertRange,
}

impl Fallocate {
    /// The mode of `fallocate(2)`, if it is one of these.
    pub fn of_flags(mode: FallocateFlags) -> Option<Fallocate> {
        let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
        Some(match mode.difference(FallocateFlags::KEEP_SIZE) {
            FallocateFlags::PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            FallocateFlags::ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            FallocateFlags::COLLAPSE_RANGE if !keep_size => Fallocate::CollapseRange,
            FallocateFlags::INSERT_RANGE if !keep_size => Fallocate::InsertRange,
            rest if rest.is_empty() => Fallocate::Allocate { keep_size },
            _ => return None,
        })
    }

    /// Can it make a file longer?
    pub(crate) fn may_grow(self) -> bool {
        matches!(
            self,
            Fallocate::Allocate { keep_size: false }
                | Fallocate::ZeroRange { keep_size: false }
                | Fallocate::InsertRange
        )
    }
}

/// `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Something another process changed that a front end may have cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Attributes, and content unless `attr_only`. `grown`: a file may be longer than it was.
    Inode { ino: Ino, attr_only: bool, grown: bool },
    /// The binding of a name in a directory, and with it the directory. `old`: what it led to, of which attributes have changed
    /// too, if this process holds references to it.
    Entry { parent: Ino, name: Vec<u8>, old: Option<Ino> },
    /// A directory: its attributes, and names that were not there may be now.
    Directory(Ino),
    /// Everything (events were lost).
    All,
}

impl Drop for Fs {
    /// A front end that ends may hold references still; nothing else would give them back.
    fn drop(&mut self) {
        self.release_all();
    }
}

impl Fs {
    /// Makes an empty file system in memory that was just formatted. `root`: owner, group and mode of `/`.
    pub fn format(session: &Session, root: (u32, u32, u32), hash_key: u64) -> Result<()> {
        let mut op = session.begin()?;
        let inodes = inode::format(&mut op)?;
        let perms = perm::format(&mut op)?;
        let sup = Super { magic: SUPER_MAGIC, inodes, perms, hash_key };
        let known = Known::default();
        let table = inode::table(session, &sup, &known);
        let (uid, gid, mode) = root;
        let perm = RawPerm { uid, gid, mode: (Kind::Directory as u32) << 12 | mode & 0o7777 };
        let perm = Perms::new(perms).intern(&mut op, perm)?;
        let alloc = Allocator::new(1);
        let (ino, place) = alloc.reserve(&mut op, table)?;
        if ino != crate::ROOT {
            return Err(Error::Corrupt("the region is not empty".into()));
        }
        let mut tx = op.tx()?;
        let mut raw = lookup::fresh(Kind::Directory, perm, 1, now());
        raw.nlink = 2;
        raw.extra = crate::ROOT;
        tx.init(place.inode, &raw)?;
        tx.set(place.length, &(crate::layout::INODE as u8))?;
        let block = tx.alloc(tag::SUPER, size_of::<Super>() as u64)?;
        tx.init(Off::new(block.off), &sup)?;
        tx.set(session.memory().root(root::SUPER), &block.off)?;
        Ok(tx.commit()?)
    }

    /// The file system in the memory that `session` is attached to, for which this makes room.
    pub(crate) fn below(session: Session, policy: Policy, above: &'static dyn MakesRoom) -> Result<Fs> {
        let memory = session.memory();
        let at = memory.load(memory.root(root::SUPER))?;
        if at == 0 {
            return Err(Error::Pool(
                "the memory holds no file system: its format was interrupted; format it again".into(),
            ));
        }
        memory.resolve(at, tag::SUPER)?;
        let sup: Super = memory.read(Off::new(at))?;
        if sup.magic != SUPER_MAGIC {
            return Err(Error::Corrupt("the superblock is not one".into()));
        }
        memory.resolve(sup.inodes.raw(), tag::INODE_TABLE)?;
        // Chunks of triples have the same type, and are smaller.
        if memory.resolve(sup.perms.raw(), tag::PERM)? < crate::layout::PERM_CHUNKS * 8 {
            return Err(Error::Corrupt("the superblock does not refer to the permission table".into()));
        }
        let inodes = Allocator::new(memory.geo.slots as u32);
        let stop_watching = std::sync::atomic::AtomicBool::new(false);
        let fs = Fs {
            perms: Perms::new(sup.perms),
            found_nothing: Default::default(),
            sup,
            inodes,
            known: Known::default(),
            session,
            policy: PolicyCell::default(),
            stop_watching,
            tails: Default::default(),
            census: statfs::Census::default(),
            dictionaries: Default::default(),
            heat: Default::default(),
            shortage: Default::default(),
            above,
            union: None,
            serial: Default::default(),
        };
        fs.set_policy(policy);
        Ok(fs)
    }

    /// The same, with the content of large files on disks: before its first use.
    pub fn with_union(mut self, union: Option<Arc<Union>>) -> Fs {
        self.union = union;
        self
    }

    /// The union cache, if the pool has disks.
    pub fn union(&self) -> Option<&Arc<Union>> {
        self.union.as_ref()
    }

    /// A change of content by this transaction, by which no file becomes large.
    #[inline(always)]
    pub(crate) fn edit<'a, 'o>(&'a self, tx: &'a mut pram::Tx<'o>) -> Edit<'a, 'o> {
        self.edit_up_to(tx, |_| u64::MAX)
    }

    /// A change of content of this inode by this transaction. The file becomes large where it reaches beyond its threshold.
    #[inline(always)]
    pub(crate) fn edit_of<'a, 'o>(&'a self, tx: &'a mut pram::Tx<'o>, raw: &RawInode) -> Edit<'a, 'o> {
        self.edit_up_to(tx, |union| raw.threshold_or(union.threshold()))
    }

    #[inline(always)]
    fn edit_up_to<'a, 'o>(&'a self, tx: &'a mut pram::Tx<'o>, threshold: impl Fn(&Union) -> u64) -> Edit<'a, 'o> {
        let disks = |union: &'a Arc<Union>| Disks {
            log: union.log(),
            session: &self.session,
            threshold: threshold(union),
            executables: union.executables(),
            in_place: union.changes_in_place(),
        };
        Edit::new(tx, self.union.as_ref().map(disks))
    }

    /// How this process uses the pool from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.set(policy);
    }

    /// How this process uses the pool.
    pub fn policy(&self) -> Policy {
        self.policy.get()
    }

    /// The attachment below.
    pub fn session(&self) -> &Session {
        &self.session
    }

    #[inline(always)]
    pub fn memory(&self) -> &pram::Memory {
        self.session.memory()
    }

    /// The first inode that is in use from `from` on.
    pub fn next_used(&self, from: Ino) -> Result<Option<Ino>> {
        self.table().next_used(from)
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> Table<'_> {
        inode::table(&self.session, &self.sup, &self.known)
    }

    pub(crate) fn inode_allocator(&self) -> &Allocator {
        &self.inodes
    }

    pub(crate) fn perms(&self) -> &Perms {
        &self.perms
    }

    pub(crate) fn super_block(&self) -> &Super {
        &self.sup
    }

    #[inline(always)]
    pub(crate) fn writable(&self) -> Result<()> {
        // If the backing counts, do nothing that cannot reach it.
        if self.policy.get().read_only || (self.session.runtime().backing_failed() && !self.durable_at_return()) {
            return Err(self.why_not_writable().into());
        }
        Ok(())
    }

    /// A full disk gets room again.
    #[cold]
    fn why_not_writable(&self) -> rustix::io::Errno {
        match !self.policy.get().read_only && self.session.runtime().backing_full() {
            true => rustix::io::Errno::NOSPC,
            false => rustix::io::Errno::ROFS,
        }
    }
}

impl Inodes for Fs {
    fn session(&self) -> &Session {
        self.session()
    }

    fn union(&self) -> Option<&Arc<Union>> {
        self.union()
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        Fs::node(self, ino)
    }

    fn edit<'a, 'o>(&'a self, tx: &'a mut pram::Tx<'o>) -> Edit<'a, 'o> {
        Fs::edit(self, tx)
    }

    fn writable(&self) -> Result<()> {
        Fs::writable(self)
    }
}

/// The kernel's time at the resolution of its tick. For the times in inodes see [`times`].
#[inline(always)]
pub fn now() -> Time {
    Time(pram::clock::now())
}

/// Is `name` one that an entry may have?
#[inline(always)]
fn check_name(name: &[u8]) -> Result<()> {
    use rustix::io::Errno;
    match name {
        b"" => Err(Errno::NOENT.into()),
        b"." | b".." => Err(Errno::INVAL.into()),
        n if n.len() > crate::attr::NAME_MAX => Err(Errno::NAMETOOLONG.into()),
        n if bytes::contains(n, b'/') || bytes::contains(n, 0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// The numeric bits of an access check.
pub(crate) mod want {
    pub const READ: u32 = 4;
    pub const WRITE: u32 = 2;
    pub const EXEC: u32 = 1;
}

impl Caller<'_> {
    /// Is the caller in this group?
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller may do what only this owner may do.
    #[inline(always)]
    pub(crate) fn acts_for(&self, owner: u32) -> bool {
        self.uid == owner || self.uid == 0 || self.owns.contains(&owner)
    }
}

impl RawInode {
    #[inline(always)]
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == Kind::Directory as u8
    }

    #[inline(always)]
    pub(crate) fn file_kind(&self) -> Result<Kind> {
        Kind::from_type(self.kind).ok_or_else(|| Error::Corrupt("an inode has no type".into()))
    }
}
