//! From requests to the file system: one entry for every opcode, the same over both transports.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use fs::{Caller, Fs, Pool, Ticket};
use rustix::io::Errno;

use crate::abi::Opcode;
use crate::convert::FOREVER;
use crate::notify::Notifier;
use crate::process::{self, Process};
use crate::request::{Answer, Groups, Request};
use crate::room::Room;

/// What serves requests; shared by all threads, changed by none.
pub struct Server {
    pool: Arc<Pool>,
    /// What has returned is durable: the kernel need not ask for more.
    durable: bool,
    pub(crate) notifier: Notifier,
    pub(crate) room: Room,
    /// What the kernel's mount table calls the file system; empty if that is not known.
    file_system: String,
}

impl Server {
    pub fn new(pool: Arc<Pool>, notifier: Notifier, file_system: String) -> Server {
        // The kernel has the root without ever looking it up.
        pool.retain(fs::ROOT, 1);
        Server { durable: pool.durable_at_return(), pool, notifier, room: Room::default(), file_system }
    }

    pub(crate) fn fs(&self) -> &Fs {
        &self.pool
    }

    pub(crate) fn file_system(&self) -> &str {
        &self.file_system
    }

    pub(crate) fn durable(&self) -> bool {
        self.durable
    }

    /// Serves one request. `None`: it wants no reply. With a ticket the reply must wait until that is durable; who
    /// has nobody else to serve may wait here instead.
    ///
    /// Without room for it, the answer is ENOSPC at once: the request is still whole then, and may be served again.
    pub fn try_serve(&self, req: &mut Request, wait: bool) -> Option<(Answer, Option<Ticket>)> {
        self.serve_by(req, wait, Server::attempt)
    }

    /// The same for who has time to wait until there is room.
    pub fn serve(&self, req: &mut Request) -> Option<(Answer, Option<Ticket>)> {
        self.serve_by(req, false, Server::handle)
    }

    #[inline(always)]
    fn serve_by(
        &self,
        req: &mut Request,
        wait: bool,
        handle: impl Fn(&Server, &mut Request) -> Option<Answer>,
    ) -> Option<(Answer, Option<Ticket>)> {
        if self.durable || wait {
            return handle(self, req).map(|answer| (answer, None));
        }
        let (answer, ticket) = self.fs().deferring(|| handle(self, req));
        if ticket.is_some() && req.head.opcode == Opcode::Write as u32 {
            self.notifier.growth.prolong(req.head.nodeid, req.head.pid);
        }
        answer.map(|answer| (answer, ticket))
    }

    /// How many seconds the kernel may keep attributes that come with an entry that was looked up. What another process
    /// changes before the kernel has the inode, it cannot be told of.
    pub(crate) fn found_valid(&self) -> u64 {
        self.valid(1)
    }

    /// The same of attributes that come with what it asked to be made or changed: it takes them for new whatever it was told
    /// meanwhile, and the reply may have to wait for a disk.
    pub(crate) fn made_valid(&self) -> u64 {
        self.valid(0)
    }

    /// For ever, or so long where others change things too.
    fn valid(&self, beside_others: u64) -> u64 {
        if self.is_alone() {
            FOREVER
        } else {
            beside_others
        }
    }

    /// Does no other process use the pool?
    pub(crate) fn is_alone(&self) -> bool {
        self.fs().session().runtime().live().count() < 2
    }

    pub(crate) fn handle(&self, req: &mut Request) -> Option<Answer> {
        match self.attempt(req) {
            Some(Err(Errno::NOSPC)) => self.room.retry(Some(Err(Errno::NOSPC)), self.is_alone(), || self.attempt(req)),
            answer => answer,
        }
    }

    /// Does what is for owners to do. Who the kernel took for one, and is none, is refused, unless it has the capability to
    /// act for `owners`: their numbers, and their groups' where these count.
    pub(crate) fn as_owners(
        &self,
        req: &Request,
        act: impl Fn(&Caller) -> fs::Result<()>,
        owners: impl FnOnce() -> Vec<(u32, Option<u32>)>,
    ) -> Result<(), Errno> {
        let caller = caller(req);
        match act(&caller).map_err(errno) {
            Err(e) if is_refused(e) && caller.uid != 0 => {}
            done => return done,
        }
        let process = Process::behind(&req.head);
        let rules = |(uid, gid): (u32, Option<u32>)| process.rules(process::FOWNER, uid, gid).then_some(uid);
        let owns: Vec<u32> = owners().into_iter().filter_map(rules).collect();
        act(&Caller { owns: &owns, ..caller }).map_err(errno)
    }

    fn attempt(&self, req: &mut Request) -> Option<Answer> {
        let Some(opcode) = Opcode::from_code(req.head.opcode) else { return Some(Err(Errno::NOSYS)) };
        tracing::trace!(?opcode, node = req.head.nodeid, len = req.len, "request");
        self.guarded(opcode, req)
    }

    /// A panic below is a defect; it fails one request and not the mount.
    fn guarded(&self, opcode: Opcode, req: &mut Request) -> Option<Answer> {
        catch_unwind(AssertUnwindSafe(|| self.dispatch(opcode, req))).unwrap_or_else(|_| {
            tracing::error!(?opcode, node = req.head.nodeid, "the request failed by a panic");
            Some(Err(Errno::IO))
        })
    }

    fn dispatch(&self, opcode: Opcode, req: &mut Request) -> Option<Answer> {
        use Opcode::*;
        Some(match opcode {
            Forget => {
                self.forget(req);
                return None;
            }
            BatchForget => {
                self.batch_forget(req);
                return None;
            }
            Lookup => self.lookup(req),
            Mknod => self.mknod(req),
            Create => self.create(req),
            Mkdir => self.mkdir(req),
            Symlink => self.symlink(req),
            Link => self.link(req),
            Tmpfile => self.tmpfile(req),
            Unlink => self.unlink(req),
            Rmdir => self.rmdir(req),
            Rename => self.rename(req),
            Rename2 => self.rename2(req),
            Readlink => self.readlink(req),
            Getattr => self.getattr(req),
            Setattr => self.setattr(req),
            Statx => self.statx(req),
            Getxattr => self.getxattr(req),
            Setxattr => self.setxattr(req),
            Listxattr => self.listxattr(req),
            Removexattr => self.removexattr(req),
            Read => self.read(req),
            Write => self.write(req),
            Fallocate => self.fallocate(req),
            Lseek => self.lseek(req),
            CopyFileRange | CopyFileRange64 => self.copy_file_range(opcode, req),
            Fsync | Fsyncdir => self.fsync(req),
            // The last message of a mount as a block device: `umount` waits for the answer.
            Syncfs | Destroy => self.syncfs(),
            Statfs => self.statfs(req),
            Readdir => self.readdir(req),
            Readdirplus => self.readdirplus(req),
            // Files opened by CREATE and TMPFILE are closed by a message until the kernel knows that OPEN is not here.
            Release | Releasedir => Ok(0),
            Opendir => self.opendir(req),
            // "Not here" is an answer the kernel remembers: it then opens and closes files without a
            // message, checks permissions by the attributes it has, and sends no more interrupts, which nothing here
            // waits long enough for.
            Open | Flush | Access | Interrupt => Err(Errno::NOSYS),
            // Comes once, before there is a server.
            Init => Err(Errno::IO),
        })
    }
}

/// The caller of a request that makes something new: groups and umask matter.
pub(crate) fn creator<'a>(req: &Request, groups: &'a Groups, umask: u32) -> Caller<'a> {
    Caller { uid: req.head.uid, gid: req.head.gid, groups: groups.as_slice(), umask, checked: true, owns: &[] }
}

/// The caller of any other request: the kernel has checked what it may, by what it knows.
pub(crate) fn caller(req: &Request) -> Caller<'static> {
    Caller { uid: req.head.uid, gid: req.head.gid, groups: &[], umask: 0, checked: true, owns: &[] }
}

/// Is that what who is not the owner is told?
pub(crate) fn is_refused(e: Errno) -> bool {
    matches!(e, Errno::PERM | Errno::ACCESS)
}

/// The errno of a failure; those that are nobody's doing are logged too.
pub(crate) fn errno(error: fs::Error) -> Errno {
    if !matches!(error, fs::Error::Posix(_)) {
        tracing::error!("{error}");
    }
    error.errno()
}
