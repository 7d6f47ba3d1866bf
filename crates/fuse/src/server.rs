//! Serves requests from the file system: one entry for every opcode, the same over both transports.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use conquest::{Caller, Fs, Pool, Ticket};
use conquest_fs::Ino;
use rustix::io::Errno;

use crate::abi::{Opcode, NO_CALLER};
use crate::answer_later::Parked;
use crate::convert::{errno, serving, FOREVER};
use crate::cookies::Cookies;
use crate::deferred_replies::Deferred;
use crate::enospc::{Removals, Retry};
use crate::notify::Notifier;
use crate::operations::{Begun, Counters};
use crate::options::MountOptions;
use crate::privileges::Privileges;
use crate::process::{self, Process};
use crate::recalls::Recalls;
use crate::request::{Answer, Groups, Request};
use crate::seeks::Seeks;
use crate::workers::Workers;

/// The server of requests; all threads share it, and none changes it.
pub struct Server {
    pub(crate) pool: Arc<Pool>,
    /// An operation that has returned is durable: the kernel need not ask for more.
    durable: bool,
    has_xattrs: bool,
    pub(crate) notifier: Notifier,
    pub(crate) removals: Removals,
    pub(crate) privileges: Privileges,
    pub(crate) cookies: Cookies,
    pub(crate) deferred: Deferred,
    pub(crate) workers: Workers,
    pub(crate) seeks: Seeks,
    recalls: Recalls,
    pub(crate) counters: Arc<Counters>,
    /// The number of the file system in the kernel's mount table; empty if unknown.
    file_system: String,
}

/// The result of serving a request.
pub enum Served {
    /// It is done. `None`: it wants no reply.
    Now(Option<Answer>),
    /// It is to be [parked](Server::park).
    Later(Later),
}

/// Why a request is answered later.
pub enum Later {
    /// It is done, and the answer must wait until it is durable.
    Durable(Answer, Ticket),
    /// It would take long, or wait for a disk. A thread that may wait serves it again from the beginning.
    Long,
    /// It found no space and changed nothing. It is to be served again after a pause.
    NoSpace(Retry, Duration),
    /// The kernel must first write back the stores of programs in a hole.
    WriteBack,
}

impl Server {
    pub fn new(
        pool: Arc<Pool>,
        notifier: Notifier,
        file_system: String,
        options: &MountOptions,
    ) -> conquest_fs::Result<Server> {
        // The kernel has the root without ever looking it up.
        pool.retain(conquest_fs::ROOT, 1)?;
        let durable = pool.durable_at_return();
        Ok(Server {
            pool,
            durable,
            has_xattrs: !options.noxattr,
            notifier,
            removals: Removals::default(),
            privileges: Privileges::default(),
            cookies: Cookies::default(),
            deferred: Deferred::default(),
            workers: Workers::default(),
            seeks: Seeks::default(),
            recalls: Recalls::default(),
            counters: Arc::default(),
            file_system,
        })
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

    /// Serves one request, for a thread that may not wait: a request that takes long, or has to wait, is for later.
    pub fn serve(&self, req: &mut Request) -> (Served, Begun) {
        let begun = Begun::now(req);
        let served = self.serve_at_once(req);
        if let Served::Now(Some(answer)) = &served {
            self.counters.end(begun, answer);
        }
        (served, begun)
    }

    fn serve_at_once(&self, req: &mut Request) -> Served {
        if self.is_long(req) {
            return Served::Later(Later::Long);
        }
        if self.may_hide_stores(req) {
            return Served::Later(Later::WriteBack);
        }
        match self.fs().without_waiting(|| self.serve_whole(req, None)) {
            (_, true) => Served::Later(Later::Long),
            (served, false) => served,
        }
    }

    /// Serves a request whole, also one that found no space before.
    #[inline(always)]
    fn serve_whole(&self, req: &mut Request, retry: Option<Retry>) -> Served {
        let (answer, ticket) = match self.durable {
            true => (self.attempt(req), None),
            false => self.fs().deferring(|| self.attempt(req)),
        };
        match (answer, ticket) {
            (Some(answer), Some(ticket)) => {
                if req.head.opcode == Opcode::Write as u32 {
                    self.notifier.stale.prolong(req.head.nodeid, req.head.pid);
                }
                Served::Later(Later::Durable(answer, ticket))
            }
            (Some(Err(Errno::NOSPC)), None) => self.retry_later(retry),
            (answer, _) => Served::Now(answer),
        }
    }

    #[cold]
    fn retry_later(&self, retry: Option<Retry>) -> Served {
        let mut retry = retry.unwrap_or_else(|| self.removals.retry(self.is_alone()));
        match self.removals.next_pause(&mut retry) {
            Some(pause) => Served::Later(Later::NoSpace(retry, pause)),
            None => Served::Now(Some(Err(Errno::NOSPC))),
        }
    }

    /// Has other threads answer a request later.
    pub fn park(&self, request: Parked, why: Later, begun: Begun) {
        self.park_again(request.counted(begun, self.counters.clone()), why);
    }

    fn park_again(&self, request: Parked, why: Later) {
        match why {
            Later::Durable(answer, ticket) => self.deferred.add(ticket, answer, request),
            Later::Long => self.workers.add(request),
            Later::NoSpace(retry, pause) => self.workers.add_after(pause, retry, request),
            Later::WriteBack => self.seeks.add(request),
        }
    }

    /// Serves parked requests until there are no more. Each worker runs this.
    pub fn work(&self) {
        while let Some(mut job) = self.workers.next() {
            match self.serve_whole(&mut job.request.request(), job.retry) {
                Served::Now(answer) => job.request.reply(answer.unwrap_or(Ok(0))),
                Served::Later(why) => self.park_again(job.request, why),
            }
        }
    }

    /// Serves the requests that wait for the kernel's write-back, until there are no more.
    pub fn seek_all(&self) {
        while let Some(mut request) = self.seeks.next() {
            let mut req = request.request();
            let written = catch_unwind(AssertUnwindSafe(|| self.write_back_holes(&req)));
            let answer = match written.unwrap_or(Err(Errno::IO)) {
                Ok(()) => self.attempt(&mut req).unwrap_or(Ok(0)),
                Err(e) => Err(e),
            };
            request.reply(answer);
        }
    }

    /// Ends the serving of requests: the threads for parked requests may end.
    pub fn stop(&self) {
        self.deferred.stop();
        self.workers.stop();
        self.seeks.stop();
    }

    /// For how many seconds the kernel may cache attributes that are read from now on.
    #[inline(always)]
    pub(crate) fn read_valid(&self, ino: Ino) -> u64 {
        match self.may_keep(ino) {
            true => FOREVER,
            false => 0,
        }
    }

    /// The same for attributes that come with a looked-up entry. A notification does not
    /// reach the kernel before it has the inode.
    pub(crate) fn found_valid(&self, ino: Ino) -> u64 {
        self.read_valid(ino).min(if self.is_alone() { FOREVER } else { 1 })
    }

    /// The same for attributes that come with the reply to a change. It takes them for new
    /// in spite of notifications that came meanwhile, and the reply may have to wait for a disk.
    pub(crate) fn made_valid(&self, ino: Ino) -> u64 {
        self.read_valid(ino).min(if self.is_alone() { FOREVER } else { 0 })
    }

    /// May the kernel cache what is read of the inode from now on?
    #[inline(always)]
    pub(crate) fn may_keep(&self, ino: Ino) -> bool {
        self.recalls.may_keep(self.fs(), ino)
    }

    /// The kernel is about to cache content of a file: changes by other processes need notifications again.
    #[inline(always)]
    pub(crate) fn take_back(&self, ino: Ino) {
        self.fs().session().take_back(ino);
    }

    /// Does no other process use the pool?
    pub(crate) fn is_alone(&self) -> bool {
        self.fs().session().runtime().live().nth(1).is_none()
    }

    /// Performs a change that only owners may make. If the kernel wrongly took the caller for an owner, it is refused,
    /// unless it has the capability to act for `owners`: their users, and their groups where these count.
    pub(crate) fn as_owners(
        &self,
        req: &Request,
        act: impl Fn(&Caller) -> conquest_fs::Result<()>,
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

    /// `None`: the request wants no reply.
    pub(crate) fn attempt(&self, req: &mut Request) -> Option<Answer> {
        let Some(opcode) = Opcode::from_code(req.head.opcode) else { return Some(Err(Errno::NOSYS)) };
        tracing::trace!(?opcode, node = req.head.nodeid, len = req.len, "request");
        serving(&req.head);
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
            // The kernel asks no more.
            Getxattr | Setxattr | Listxattr | Removexattr if !self.has_xattrs => Err(Errno::NOSYS),
            Getxattr => self.getxattr(req),
            Setxattr => self.setxattr(req),
            Listxattr => self.listxattr(req),
            Removexattr => self.removexattr(req),
            Read => self.read(req),
            Write => self.write(req),
            Fallocate => self.fallocate(req),
            Lseek => self.lseek(req),
            Ioctl => self.ioctl(req),
            CopyFileRange | CopyFileRange64 => self.copy_file_range(opcode, req),
            Fsync | Fsyncdir => self.fsync(req),
            // The last message of a mount as a block device: `umount` waits for the answer.
            Syncfs | Destroy => self.syncfs(),
            Statfs => self.statfs(req),
            Readdir => self.readdir(req),
            Readdirplus => self.readdirplus(req),
            // CREATE and TMPFILE make the kernel send a message at closing, until it knows that there is no OPEN.
            Release | Releasedir => Ok(0),
            Opendir => self.opendir(req),
            // The kernel remembers the answer "not here": it then opens and closes files without a message, checks
            // permissions by the attributes it has, and sends no more interrupts, for which no request here waits long
            // enough.
            Open | Flush | Access | Interrupt => Err(Errno::NOSYS),
            // INIT comes once, before there is a server.
            Init => Err(Errno::IO),
        })
    }
}

/// The caller of a request that makes an inode: groups and umask matter.
pub(crate) fn creator<'a>(req: &Request, groups: &'a Groups, umask: u32) -> Caller<'a> {
    Caller { uid: req.head.uid, gid: req.head.gid, groups: groups.as_slice(), umask, checked: true, owns: &[] }
}

/// The caller of any other request: the kernel has checked its permissions, as far as it knows them. Where the kernel
/// does not name the caller, that check has to do.
pub(crate) fn caller(req: &Request) -> Caller<'static> {
    if req.head.uid == NO_CALLER {
        return Caller { checked: true, ..Caller::root() };
    }
    Caller { uid: req.head.uid, gid: req.head.gid, groups: &[], umask: 0, checked: true, owns: &[] }
}

/// Is this the refusal of a caller that is not the owner?
pub(crate) fn is_refused(e: Errno) -> bool {
    matches!(e, Errno::PERM | Errno::ACCESS)
}
