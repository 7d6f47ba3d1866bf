//! Requests about names: look up, make, link, rename, remove; and the references the kernel holds.

use conquest_fs::node::{Recall, Rename};
use conquest_fs::{Attr, Caller, Ino};
use rustix::fs::RenameFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{
    BatchForgetIn, CreateIn, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, OpenOut, Rename2In, RenameIn,
    FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, ROOT_ID,
};
use crate::absent;
use crate::convert::{decode_dev, entry_out, errno, kind_and_perm};
use crate::request::{Answer, Request};
use crate::server::{caller, creator, Server};

const WHITEOUT_NOREPLACE: RenameFlags = RenameFlags::WHITEOUT.union(RenameFlags::NOREPLACE);

/// The answer of CREATE and TMPFILE: files are as those opened without a message.
const OPENED: OpenOut = OpenOut { fh: 0, open_flags: FOPEN_KEEP_CACHE | FOPEN_NOFLUSH, backing_id: 0 };

impl Server {
    pub(crate) fn lookup(&self, req: &mut Request) -> Answer {
        let (dir, name) = (req.head.nodeid, req.name()?);
        let may_keep = self.may_keep(dir);
        let found = match name {
            b"." => self.find_again(dir),
            name => self.look_up(dir, name, &caller(req)),
        };
        let entry = match found {
            // Node 0: the kernel remembers that there is no such name.
            Err(Errno::NOENT) => EntryOut { entry_valid: self.absent_valid(dir, name, may_keep), ..Default::default() },
            found => {
                let (attr, valid) = found?;
                entry_out(&attr, valid)
            }
        };
        req.reply(&entry)
    }

    /// An inode of any kind that the kernel has forgotten and finds again by a file handle (NFS). One
    /// without a name is about to be freed, a FORGET is on its way, unless another process has it open: that makes
    /// a descriptor of the mount of it.
    fn find_again(&self, ino: Ino) -> Result<(Attr, u64), Errno> {
        let found = self.fs().getattr(ino).map_err(errno)?;
        match self.hold(&found)? {
            (attr, _) if attr.nlink == 0 && !self.fs().session().is_referenced_by_others(ino) => {
                self.fs().release(ino, 1);
                Err(Errno::STALE)
            }
            held => Ok(held),
        }
    }

    /// Takes the reference that an entry in a reply gives the kernel. STALE: another process has freed the inode since
    /// it was seen.
    fn hold(&self, seen: &Attr) -> Result<(Attr, u64), Errno> {
        self.fs().retain(seen.ino, 1).map_err(errno)?;
        self.held(seen.ino, seen.generation)
    }

    /// The inode of a name, with that reference, and for how many seconds the kernel may cache its attributes. The reference
    /// is taken while the name exists: a process that removes the name then sees that the kernel may have it.
    pub(crate) fn look_up(&self, dir: Ino, name: &[u8], caller: &Caller) -> Result<(Attr, u64), Errno> {
        let found = self.fs().lookup_retain(dir, name, caller).map_err(errno)?;
        self.held(found.ino, found.generation)
    }

    /// The attributes of an inode after the reference was taken: a process that changes them since sees it.
    fn held(&self, ino: Ino, generation: u32) -> Result<(Attr, u64), Errno> {
        let valid = self.found_valid(ino);
        match self.fs().getattr(ino) {
            Ok(now) if now.generation == generation => Ok((now, valid)),
            _ => {
                self.fs().release(ino, 1);
                Err(Errno::STALE)
            }
        }
    }

    /// For how many seconds the kernel may cache that a name does not exist. A recall of the directory either finds the name
    /// among those that the kernel is to forget, or has begun before this looks.
    fn absent_valid(&self, dir: Ino, name: &[u8], may_keep: bool) -> u64 {
        let kept = may_keep && self.notifier.absent.add(dir, name);
        match kept && self.fs().session().recall(dir) == Recall::None {
            true if self.notifier.knows_epochs() => absent::VALID,
            // If events were lost, nothing would make the kernel forget it.
            true => 1,
            false => 0,
        }
    }

    /// Replies with the inode that the request has made or linked. If another process has changed the name since, the kernel
    /// is to look it up again.
    fn reply_entry(&self, req: &mut Request, made: &Attr) -> Answer {
        let (dir, name) = (req.head.nodeid, req.name()?);
        self.notifier.absent.remove(dir, name);
        let attr_valid = self.made_valid(made.ino);
        let entry = match self.look_up(dir, name, &Caller::root()) {
            Ok((attr, _)) if (attr.ino, attr.generation) == (made.ino, made.generation) => entry_out(&attr, attr_valid),
            other => {
                other.into_iter().for_each(|(attr, _)| self.fs().release(attr.ino, 1));
                EntryOut { entry_valid: 0, ..entry_out(&self.hold(made)?.0, attr_valid) }
            }
        };
        req.reply(&entry)
    }

    pub(crate) fn forget(&self, req: &Request) {
        if let Ok(args) = req.args::<ForgetIn>() {
            self.release(req.head.nodeid, args.nlookup);
        }
    }

    pub(crate) fn batch_forget(&self, req: &Request) {
        let Ok(args) = req.args::<BatchForgetIn>() else { return };
        let ones = req.data[..req.len].chunks_exact(std::mem::size_of::<ForgetOne>());
        for one in ones.take(args.count as usize) {
            if let Ok(one) = ForgetOne::read_from_bytes(one) {
                self.release(one.nodeid, one.nlookup);
            }
        }
    }

    fn release(&self, ino: Ino, count: u64) {
        // The root is never looked up, so there is no reference to give back.
        if ino != ROOT_ID {
            self.fs().release(ino, u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn mknod(&self, req: &mut Request) -> Answer {
        let args: MknodIn = req.args()?;
        let (kind, perm) = kind_and_perm(args.mode).ok_or(Errno::INVAL)?;
        let made = self.make(req, kind, perm, decode_dev(args.rdev), args.umask)?;
        self.reply_entry(req, &made)
    }

    fn make(&self, req: &Request, kind: conquest_fs::Kind, perm: u32, rdev: u64, umask: u32) -> Result<Attr, Errno> {
        let groups = req.groups();
        let made = self.fs().create(req.head.nodeid, req.name()?, kind, perm, rdev, &creator(req, &groups, umask));
        match made.map_err(errno) {
            // Another process made it since the kernel looked. The open(2) behind this may want that file all the same:
            // ESTALE makes the kernel look again and then decide.
            Err(Errno::EXIST) => Err(Errno::STALE),
            made => made,
        }
    }

    pub(crate) fn create(&self, req: &mut Request) -> Answer {
        let args: CreateIn = req.args()?;
        let made = self.make(req, conquest_fs::Kind::Regular, args.mode & 0o7777, 0, args.umask)?;
        let entry = self.reply_entry(req, &made)?;
        reply_open(req, entry)
    }

    pub(crate) fn mkdir(&self, req: &mut Request) -> Answer {
        let args: MkdirIn = req.args()?;
        let groups = req.groups();
        let caller = creator(req, &groups, args.umask);
        let perm = args.mode & 0o7777;
        let attr = self.fs().create(req.head.nodeid, req.name()?, conquest_fs::Kind::Directory, perm, 0, &caller);
        self.reply_entry(req, &attr.map_err(errno)?)
    }

    pub(crate) fn symlink(&self, req: &mut Request) -> Answer {
        let groups = req.groups();
        let (name, target) = req.names()?;
        let attr = self.fs().symlink(req.head.nodeid, name, target, &creator(req, &groups, 0));
        self.reply_entry(req, &attr.map_err(errno)?)
    }

    pub(crate) fn link(&self, req: &mut Request) -> Answer {
        let args: LinkIn = req.args()?;
        let attr = self.fs().link(args.oldnodeid, req.head.nodeid, req.name()?, &caller(req));
        self.reply_entry(req, &attr.map_err(errno)?)
    }

    /// Makes a file without a name and opens it; the caller gets a reference to it.
    pub(crate) fn tmpfile(&self, req: &mut Request) -> Answer {
        let args: CreateIn = req.args()?;
        let groups = req.groups();
        let caller = creator(req, &groups, args.umask);
        let attr = self.fs().tmpfile(req.head.nodeid, args.mode & 0o7777, &caller).map_err(errno)?;
        let entry = req.reply(&entry_out(&attr, self.made_valid(attr.ino)))?;
        reply_open(req, entry)
    }

    pub(crate) fn unlink(&self, req: &Request) -> Answer {
        let entry = (req.head.nodeid, req.name()?);
        self.removing(req, &[entry], |caller| self.fs().unlink(entry.0, entry.1, caller))?;
        self.removals.note();
        Ok(0)
    }

    pub(crate) fn rmdir(&self, req: &Request) -> Answer {
        let entry = (req.head.nodeid, req.name()?);
        self.removing(req, &[entry], |caller| self.fs().rmdir(entry.0, entry.1, caller))?;
        self.removals.note();
        Ok(0)
    }

    pub(crate) fn rename(&self, req: &Request) -> Answer {
        let args: RenameIn = req.args()?;
        self.rename_as(req, args.newdir, Rename::Replace)
    }

    pub(crate) fn rename2(&self, req: &Request) -> Answer {
        let args: Rename2In = req.args()?;
        let how = match RenameFlags::from_bits_retain(args.flags) {
            RenameFlags::NOREPLACE => Rename::NoReplace,
            RenameFlags::EXCHANGE => Rename::Exchange,
            RenameFlags::WHITEOUT => Rename::Whiteout { replace: true },
            WHITEOUT_NOREPLACE => Rename::Whiteout { replace: false },
            flags if flags.is_empty() => Rename::Replace,
            _ => return Err(Errno::INVAL),
        };
        self.rename_as(req, args.newdir, how)
    }

    fn rename_as(&self, req: &Request, newdir: Ino, how: Rename) -> Answer {
        let (old, new) = req.names()?;
        let (from, to) = ((req.head.nodeid, old), (newdir, new));
        self.removing(req, &[from, to], |caller| self.fs().rename(from, to, how, caller))?;
        self.notifier.absent.remove(newdir, new);
        self.removals.note();
        Ok(0)
    }

    /// Removes names from directories. In a sticky directory only owners may.
    fn removing(
        &self,
        req: &Request,
        entries: &[(Ino, &[u8])],
        remove: impl Fn(&Caller) -> conquest_fs::Result<()>,
    ) -> Result<(), Errno> {
        let lookup = |(dir, name): &(Ino, &[u8])| self.fs().lookup(*dir, name, &caller(req)).ok();
        let thread = req.head.pid;
        // The kernel counts links down when this returns, even if attributes with the new count came meanwhile.
        let linked: SmallVec<[Ino; 2]> = entries.iter().filter_map(lookup).filter(has_links).map(|a| a.ino).collect();
        for ino in &linked {
            self.notifier.stale.begin(*ino, thread);
            // Only a notification of another process's change ends that early.
            self.take_back(*ino);
        }
        let done = self.as_owners(req, remove, || {
            entries.iter().filter_map(lookup).map(|attr| (attr.uid, Some(attr.gid))).collect()
        });
        linked.iter().for_each(|ino| self.notifier.stale.end(*ino, thread));
        done
    }

    pub(crate) fn readlink(&self, req: &mut Request) -> Answer {
        let target = self.fs().readlink(req.head.nodeid).map_err(errno)?;
        req.reply_bytes(&target)
    }
}

/// Does this file still exist without one of its names?
fn has_links(attr: &Attr) -> bool {
    attr.nlink > 1 && attr.kind != conquest_fs::Kind::Directory
}

/// Appends a handle to the entry that is the reply so far.
fn reply_open(req: &mut Request, entry: usize) -> Answer {
    let size = std::mem::size_of_val(&OPENED);
    let place = req.data.get_mut(entry..entry + size).ok_or(Errno::NOBUFS)?;
    place.copy_from_slice(OPENED.as_bytes());
    Ok(entry + size)
}
