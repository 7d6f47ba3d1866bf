//! Attaching to a memory and leaving it: its file's locks, and the runtime file beside it.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::reap::{end_transfers, reap_one, recover};
use super::stopped::{namespace_of_guest, GoesOn};
use super::{transfer, Attach, Backing, Kind};
use crate::error::{Error, Result};
use crate::mem::descriptor::Kept;
use crate::mem::{byte_lock, Mapping};
use crate::memory::{Memory, EPOCH_ROOT, OPEN_ROOT};
use crate::runtime::{pause, Attendant, Runtime, FULL, SESSIONS};

/// The file whose locks say which processes are attached to a memory, held so that none attaches or detaches meanwhile.
pub struct Exclusive(Option<OwnedFd>);

impl Exclusive {
    /// Waits for processes that attach or detach.
    pub fn over(file: OwnedFd) -> Result<Exclusive> {
        lock_file(&file)?;
        Ok(Exclusive(Some(file)))
    }

    /// `None` if a process attaches or detaches just now.
    pub fn try_over(file: OwnedFd) -> Result<Option<Exclusive>> {
        Ok(try_lock_file(&file)?.then_some(Exclusive(Some(file))))
    }

    pub(super) fn release(mut self) -> Result<Kept> {
        let file = self.0.take().expect("held until released");
        unlock_file(&file);
        kept(file)
    }
}

impl AsFd for Exclusive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("held until released").as_fd()
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            unlock_file(file);
        }
    }
}

/// The path of the marks of the memory with the runtime file `runtime`.
fn marks_beside(runtime: &Path) -> PathBuf {
    let mut path = runtime.as_os_str().to_owned();
    path.push("-marks");
    path.into()
}

/// The name of the pool's files in shared memory: from the memory's UUID, and from the file with its locks, since
/// a copy of a pool has the same UUID.
pub fn shared_name(uuid: &[u8; 16], stat: &Stat) -> String {
    format!("{}{:x}-{:x}", shared_prefix(uuid), stat.st_dev, stat.st_ino)
}

/// The beginning of all those names, at any place of the pool.
pub fn shared_prefix(uuid: &[u8; 16]) -> String {
    let uuid: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("conquest-{uuid}-")
}

/// Does any process work on the memory in `file`?
pub fn in_use(file: impl AsFd) -> Result<bool> {
    byte_lock::is_any_held(file, 0..SESSIONS).map_err(Error::host("looking for attached processes"))
}

/// May a device still work on a request that any process made for the memory in `file`? The kernel may hold the open
/// files of a process that has ended.
pub fn has_transfers(file: impl AsFd) -> Result<bool> {
    transfer::is_any_under_way(file)
}

/// The lock that says that a session lives.
pub(super) enum SessionLock {
    /// Of the open file whose `flock` keeps others from attaching: a child of `fork` has it too.
    Common,
    /// Of an open file that only this mapping has, which no child inherits.
    Own { _map: Mapping },
    /// The same where such a file cannot be mapped: a child has it too.
    Apart { _file: Kept },
}

impl SessionLock {
    fn over(file: OwnedFd) -> Result<SessionLock> {
        match Mapping::of_open_file(&file) {
            Ok(_map) => Ok(SessionLock::Own { _map }),
            Err(_) => Ok(SessionLock::Apart { _file: kept(file)? }),
        }
    }
}

/// Keeps a file open for as long as the session lasts.
fn kept(file: OwnedFd) -> Result<Kept> {
    Kept::new(file).map_err(Error::host("keeping a file of the memory open"))
}

/// An open file of its own on what `file` has open.
fn open_again(file: impl AsFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Waits for others that come or go. One that is stopped meanwhile does not hold this up: see [`stopped`](super::stopped).
pub(super) fn lock_file(file: impl AsFd) -> Result<()> {
    let mut goes_on: Option<GoesOn> = None;
    for round in 0u32.. {
        if try_lock_file(&file)? {
            break;
        }
        match round {
            0..100 => pause(round),
            // There may be thousands that wait.
            _ => std::thread::sleep(Duration::from_millis(u64::from(round / 100).min(10))),
        }
        match &goes_on {
            Some(holder) if !holder.has_lock(&file) => goes_on = None,
            None if round > 100 && round % 20 == 0 => goes_on = GoesOn::with_lock(&file),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn try_lock_file(file: impl AsFd) -> Result<bool> {
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::Host { what: "locking the memory".into(), errno }),
    }
}

pub(super) fn unlock_file(file: impl AsFd) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Attaches while the memory's file is locked.
pub(super) fn attach_locked(
    memory: Memory,
    file: &Exclusive,
    path: &Path,
    stat: &Stat,
    how: &Attach,
    backing: Option<&dyn Backing>,
) -> Result<(Memory, Runtime, SessionLock)> {
    let rt = match how.kind {
        Kind::Guest => join_attended(&memory, file, path)?,
        Kind::Full if in_use(file)? => join_runtime(&memory, path)?,
        Kind::Full => begin_runtime(&memory, file, path, stat, how, backing)?,
    };
    // Unmarked stores would be missing in the backing for ever.
    if rt.is_tracked() && backing.is_none() {
        return Err(Error::Unusable("the pool is in use with a backing, which cannot be opened here".into()));
    }
    let apart = if how.is_inherited { None } else { open_again(file) };
    let lock = apart.as_ref().map_or(file.as_fd(), AsFd::as_fd);
    let me = match how.kind {
        Kind::Full => {
            let me = choose(&memory, &rt, file, lock, 0..FULL)?;
            end_transfers(&rt, file)?;
            rt.take_held(me)?;
            rt.take_reports(me)?;
            me
        }
        Kind::Guest => choose(&memory, &rt, file, lock, FULL..SESSIONS)?,
    };
    rt.take_record(me)?;
    memory.marks().map_or(Ok(()), |marks| marks.take_groups(memory.groups()))?;
    memory.step();
    let namespace = if how.kind == Kind::Guest { namespace_of_guest() } else { 0 };
    rt.enter_session(me, how.role, how.label, namespace);
    memory.step();
    memory.forget_backing()?;
    memory.commit_word(memory.root(OPEN_ROOT), 1)?;
    Ok((memory, rt, apart.map_or(Ok(SessionLock::Common), SessionLock::over)?))
}

/// A number that no session has, and its lock. A record of a dead process stays until the reaper cleans up, so that `status` can show it: it
/// is taken if no other is free.
fn choose(memory: &Memory, rt: &Runtime, file: &Exclusive, lock: BorrowedFd, among: Range<u32>) -> Result<u32> {
    let take = |n| -> Result<bool> {
        // Pins of blocks that the last process began to transfer have its number.
        let is_free = n >= FULL || !transfer::is_under_way(file, n)?;
        Ok(is_free && byte_lock::acquire(lock, n).map_err(Error::host("locking the memory"))?)
    };
    for n in among.clone().filter(|n| !rt.session_taken(*n)) {
        if take(n)? {
            return Ok(n);
        }
    }
    for n in rt.live().filter(|n| among.contains(n)) {
        if !byte_lock::is_held(file, n).map_err(Error::host("looking for attached processes"))? && take(n)? {
            reap_one(memory, rt, n)?;
            return Ok(n);
        }
    }
    Err(Error::Unusable(format!("{} processes are attached already; end one", among.len())))
}

/// The runtime file of those who are attached, if one of them does the background work.
fn join_attended(memory: &Memory, file: &Exclusive, path: &Path) -> Result<Runtime> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Error::Unattended),
        _ => {}
    }
    let rt = join_runtime(memory, path)?;
    let is_alive = |n| byte_lock::is_held(file, n).map_err(Error::host("looking for attached processes"));
    match rt.attendant() {
        Attendant::Session(n) if is_alive(n)? => Ok(rt),
        _ => Err(Error::Unattended),
    }
}

/// A new runtime file, with nobody else attached; puts in order what the last ones left.
fn begin_runtime(
    memory: &Memory,
    file: &Exclusive,
    path: &Path,
    stat: &Stat,
    how: &Attach,
    backing: Option<&dyn Backing>,
) -> Result<Runtime> {
    transfer::wait_for_all(file)?;
    let made = make_runtime(memory, path, stat, how.keys).and_then(|rt| {
        rt.set_tracked(backing.is_some());
        match backing {
            Some(backing) => backing.enter(memory, &rt)?,
            // Stores from now on make the marks wrong.
            None => {
                let _ = std::fs::remove_file(marks_beside(path));
                rt.note_durable(memory.load(memory.root(EPOCH_ROOT))?);
            }
        }
        recover(memory, &rt).map(|()| rt)
    });
    if made.is_err() {
        let _ = rustix::fs::unlink(path);
    }
    made
}

fn make_runtime(memory: &Memory, path: &Path, stat: &Stat, keys: u64) -> Result<Runtime> {
    let what = format!("making the runtime file {}", path.display());
    let _ = rustix::fs::unlink(path);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(Error::host(&what))?;
    // The runtime file has the memory's owner and permissions.
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _ = rustix::fs::fchown(&file, Some(owner.0), Some(owner.1));
    let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o666));
    let limit = memory.map().reserved();
    let size = Runtime::size(&memory.geo, limit, keys);
    rustix::fs::ftruncate(&file, size).map_err(Error::host(&what))?;
    let map = Mapping::file(&file, size).map_err(Error::host(&what))?;
    Runtime::create(map, Some(kept(file)?), &memory.geo, limit, keys)
}

fn join_runtime(memory: &Memory, path: &Path) -> Result<Runtime> {
    let hint = "the pool is in use by a process whose shared memory is not visible here (another container?)";
    let file = match rustix::fs::open(path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(f) => f,
        Err(Errno::NOENT) => return Err(Error::Unusable(hint.into())),
        Err(errno) => return Err(Error::Host { what: format!("opening {}", path.display()), errno }),
    };
    let (limit, keys) = Runtime::laid_out_for(&file)?;
    if memory.map().reserved() < limit {
        return Err(Error::Unusable(
            "this process may not set aside the address space that others of the pool have (a limit, `ulimit -v`?)"
                .into(),
        ));
    }
    let size = Runtime::size(&memory.geo, limit, keys);
    let there = rustix::fs::fstat(&file).map_err(Error::host("runtime file"))?.st_size as u64;
    if there != size {
        return Err(Error::Unusable("the pool is in use by another version of this program".into()));
    }
    let map = Mapping::file(&file, size).map_err(Error::host("mapping the runtime file"))?;
    Ok(Runtime::join(map, kept(file)?, &memory.geo, limit, keys))
}
