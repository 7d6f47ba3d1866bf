//! An attached process: operations, optimistic reads, references, and the death of others.
//!
//! Liveness: a session holds an open-file-description lock on a byte of the region's file (byte = session
//! number); the kernel drops it when the process dies. Attaching, detaching and reaping exclude one
//! another by `flock` on the same file.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::copy::Copy;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::mem::{byte_lock, thread_hint, Mapping};
use crate::off::Off;
use crate::region::{Region, COPY_ROOT, OPEN_ROOT};
use crate::runtime::{self, Runtime, Seen, SESSIONS};
use crate::tx::{self, Tx};

/// How many times a reader tries without a lock before it takes one.
const OPTIMISTIC_TRIES: usize = 50;

/// This process's attachment to a region.
pub struct Session {
    region: Region,
    rt: Runtime,
    shared: Option<Shared>,
    /// The copy of the region on disk, if it has one.
    copy: Option<Copy>,
}

/// What came of the wish for a slot.
enum Entry {
    In,
    /// It belongs to another operation.
    Busy,
    /// Nothing may begin now.
    Frozen,
}

/// What a session on a shared region needs beside the mappings.
struct Shared {
    /// The region's file: locks only.
    file: OwnedFd,
    /// Path of the runtime segment.
    runtime: PathBuf,
    /// `flock` does not exclude threads of one process.
    in_process: Mutex<()>,
}

/// How to attach.
#[derive(Clone, Debug)]
pub struct Attach<'a> {
    /// Where runtime segments lie: a tmpfs, `/dev/shm`.
    pub runtime_dir: &'a Path,
    /// Keys (inode numbers) are below this.
    pub keys: u64,
    /// What the layer above says of this process, shown to others.
    pub role: u64,
    pub label: &'a [u8],
}

impl Session {
    /// Attaches to a region that only this process has: tests, tools. Recovers it.
    pub fn private(region: Region, keys: u64) -> Result<Session> {
        Session::private_with(region, keys, None)
    }

    /// The same for a region with a copy on disk.
    pub fn private_with(region: Region, keys: u64, copy: Option<Copy>) -> Result<Session> {
        let rt = runtime::private(&region, keys)?;
        if let Some(copy) = &copy {
            copy.enter(&rt);
        }
        let session = Session { region, rt, shared: None, copy };
        session.recover_all()?;
        session.rt.enter_session(0, 0, b"");
        session.region.forget_copy()?;
        session.set_open(1)?;
        Ok(session)
    }

    /// Attaches to `region`, whose file nobody else may attach to meanwhile. The first process to come recovers
    /// what the last ones left.
    pub fn attach(region: Region, file: Exclusive, how: &Attach, copy: Option<Copy>) -> Result<Session> {
        let stat = rustix::fs::fstat(&file).map_err(Error::host("region"))?;
        let path = how.runtime_dir.join(shared_name(&region.info.uuid, &stat));
        let (mut region, rt) = attach_locked(region, &file, &path, &stat, how, copy.as_ref())?;
        let copy = copy.filter(|_| rt.is_tracked());
        if copy.is_none() {
            region.untrack();
        }
        let shared = Shared { file: file.release(), runtime: path, in_process: Mutex::new(()) };
        Ok(Session { region, rt, shared: Some(shared), copy })
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// The copy of the region on disk, if it has one.
    pub fn copy(&self) -> Option<&Copy> {
        self.copy.as_ref()
    }

    pub fn heap(&self) -> Heap<'_> {
        Heap { region: &self.region, rt: &self.rt }
    }

    fn recover_all(&self) -> Result<()> {
        recover(&self.region, &self.rt)
    }

    fn set_open(&self, value: u64) -> Result<()> {
        self.region.commit_word(self.region.root(OPEN_ROOT), value)
    }

    // Operations.

    /// Begins an operation: takes a transaction slot, the one this thread used last if it is free. Waits
    /// while the pool is frozen or all slots are busy.
    #[inline(always)]
    pub fn begin(&self) -> Result<Op<'_>> {
        let slots = self.rt.slots();
        let first = (thread_hint() as u32).wrapping_add(self.rt.me().wrapping_mul(17));
        let first = if first < slots { first } else { first % slots };
        let slot = match self.enter(first) {
            Entry::In => first,
            _ => self.find_slot(first)?,
        };
        Ok(self.operation(slot))
    }

    /// Takes a slot if it is free and nothing is frozen.
    #[inline(always)]
    fn enter(&self, slot: u32) -> Entry {
        if self.rt.frozen() {
            return Entry::Frozen;
        }
        if !self.rt.try_slot(slot) {
            return Entry::Busy;
        }
        // Freezers set their mark first and look at slots second; we take the slot first. All four are
        // sequentially consistent, so one of us sees the other.
        if self.rt.frozen() {
            self.rt.free_slot(slot);
            return Entry::Frozen;
        }
        Entry::In
    }

    /// Takes any slot, those from `first` on before the others; waits until there is one.
    #[cold]
    #[inline(never)]
    fn find_slot(&self, first: u32) -> Result<u32> {
        let slots = self.rt.slots();
        for round in 0u32.. {
            if self.rt.frozen() {
                self.wait_thaw()?;
            }
            for i in 0..slots {
                let slot = (first + i) % slots;
                match self.enter(slot) {
                    Entry::In => return Ok(slot),
                    Entry::Busy => {}
                    Entry::Frozen => break,
                }
            }
            self.region.wait_by(|| runtime::pause(round));
            if round % 100 == 99 {
                self.reap()?;
            }
        }
        unreachable!("the loop ends by returning")
    }

    #[inline(always)]
    fn operation(&self, slot: u32) -> Op<'_> {
        Op { session: self, slot, held: SmallVec::new(), outcome: Outcome::default() }
    }

    /// Begins an operation in this very slot. While it lasts no other operation is under way there.
    pub fn begin_in(&self, slot: u32) -> Result<Op<'_>> {
        for round in 0u32.. {
            if self.rt.frozen() {
                self.wait_thaw()?;
            }
            if let Entry::In = self.enter(slot) {
                return Ok(self.operation(slot));
            }
            self.region.wait_by(|| runtime::pause(round));
            if round % 100 == 99 {
                self.reap()?;
            }
        }
        unreachable!("the loop ends by returning")
    }

    fn wait_thaw(&self) -> Result<()> {
        let mut waits = 0;
        while let Some(by) = self.rt.frozen_by() {
            self.region.wait_by(|| self.rt.wait_frozen());
            waits += 1;
            if waits % 10 == 0 && !self.is_alive(by) {
                self.reap()?;
            }
        }
        Ok(())
    }

    /// Reads without a lock: runs `f` until nobody changed what `key` protects meanwhile. What `f` sees may
    /// be torn, its result then is thrown away; it must not loop or panic on anything it finds.
    ///
    /// After many vain tries it begins an operation and takes the lock, so `f` must not wait for others: not
    /// read another key, not begin an operation. Inside an operation use [`Op::read`].
    #[inline(always)]
    pub fn read<R, E: From<Error>>(&self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        if let Some(result) = self.try_read(key, &mut f) {
            return result;
        }
        self.read_locked(key, f)
    }

    /// [`read`](Self::read) where others change what `key` protects all the time.
    #[cold]
    #[inline(never)]
    fn read_locked<R, E: From<Error>>(&self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        let mut op = self.begin()?;
        op.lock(&[key])?;
        f()
    }

    /// [`read`](Self::read) that gives up where that takes the lock: `f` may read other keys by it.
    #[inline(always)]
    pub fn try_read<R, E: From<Error>>(&self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Option<Result<R, E>> {
        let mut result = None;
        match self.look(key, || result = Some(f())) {
            Ok(seen) => result.filter(|_| seen.is_some()),
            Err(e) => Some(Err(e.into())),
        }
    }

    /// The state of the lock of `key`, if nobody has it: as long as it is the same, nobody has had the lock.
    #[inline(always)]
    pub fn seen(&self, key: u64) -> Option<Seen> {
        let seen = self.rt.lock(Runtime::lock_number(key)).look();
        seen.owner().is_none().then_some(seen)
    }

    /// Calls `f` until nobody has changed what `key` protects meanwhile; the state of the key's lock at that time.
    /// `None` if somebody did again and again.
    #[inline(always)]
    fn look(&self, key: u64, mut f: impl FnMut()) -> Result<Option<Seen>> {
        let lock = self.rt.lock(Runtime::lock_number(key));
        for _ in 0..OPTIMISTIC_TRIES {
            let seen = lock.look();
            if let Some(slot) = seen.owner() {
                std::hint::spin_loop();
                self.wait_for(lock, slot, 20)?;
                continue;
            }
            f();
            if lock.unchanged(seen) {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// Waits for the holder of a lock, first spinning; looks whether it is alive if that takes long.
    #[cold]
    fn wait_for(&self, lock: runtime::KeyLock, mut slot: u32, spins: u32) -> Result<()> {
        for _ in 0..spins {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
            match lock.look().owner() {
                None => return Ok(()),
                Some(s) => slot = s,
            }
        }
        self.region.wait_by(|| lock.wait());
        if lock.look().owner() == Some(slot) {
            let (_, session) = self.rt.slot_state(slot);
            if session.is_some_and(|s| !self.is_alive(s)) {
                self.reap()?;
            }
        }
        Ok(())
    }

    // References.

    /// Takes `n` references to `key`.
    #[inline]
    pub fn retain(&self, key: u64, n: u32) {
        self.rt.refs(self.rt.me(), key).fetch_add(n, Ordering::SeqCst);
    }

    /// Gives back `n` references; returns how many this process has left.
    #[inline]
    pub fn release(&self, key: u64, n: u32) -> u32 {
        let refs = self.rt.refs(self.rt.me(), key);
        let mut now = refs.load(Ordering::Relaxed);
        loop {
            let left = now.saturating_sub(n);
            match refs.compare_exchange_weak(now, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return left,
                Err(seen) => now = seen,
            }
        }
    }

    /// Does any attached process hold a reference to `key`?
    pub fn is_referenced(&self, key: u64) -> bool {
        self.rt.live().any(|s| self.rt.refs(s, key).load(Ordering::SeqCst) > 0)
    }

    // The death of others.

    /// Is the process of session `n` alive?
    pub fn is_alive(&self, n: u32) -> bool {
        match &self.shared {
            _ if n == self.rt.me() => true,
            None => true,
            Some(shared) => self.rt.session_taken(n) && byte_lock::is_held(&shared.file, n).unwrap_or(true),
        }
    }

    /// Cleans up after processes that died: undoes their open transactions, releases their locks, slots and
    /// references. Returns how many there were.
    pub fn reap(&self) -> Result<u32> {
        let Some(shared) = &self.shared else { return Ok(0) };
        let _in_process = self.region.lock_by(&shared.in_process);
        self.lock_shared(shared)?;
        let reaped = self.reap_locked();
        unlock_file(&shared.file);
        reaped
    }

    /// Waits until nobody else attaches, detaches or cleans up.
    fn lock_shared(&self, shared: &Shared) -> Result<()> {
        while !try_lock_file(&shared.file)? {
            let mut locked = None;
            self.region.wait_by(|| locked = Some(lock_file(&shared.file)));
            if let Some(done) = locked {
                return done;
            }
        }
        Ok(())
    }

    fn reap_locked(&self) -> Result<u32> {
        let mut reaped = 0;
        for n in 0..SESSIONS {
            if self.rt.session_taken(n) && !self.is_alive(n) {
                reap_one(&self.region, &self.rt, n)?;
                reaped += 1;
            }
        }
        Ok(reaped)
    }

    /// Takes the role of the one process that does background work; held until this process detaches or
    /// dies. False if another process has it.
    pub fn try_keeper(&self) -> bool {
        match &self.shared {
            Some(shared) => byte_lock::acquire(&shared.file, SESSIONS).unwrap_or(false),
            None => true,
        }
    }

    /// Makes this process the one that `role` names; false if another one, which lives, has it.
    pub(crate) fn take_role(&self, role: &AtomicU64) -> Result<bool> {
        let me = u64::from(self.rt.me() + 1);
        match role.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Ok(true),
            Err(owner) => {
                if owner != me && !self.is_alive(owner as u32 - 1) {
                    self.reap()?;
                }
                Ok(false)
            }
        }
    }

    // Freezing.

    /// Waits until no operation is under way and keeps new ones waiting: everything stands still.
    pub fn freeze(&self) -> Result<Frozen<'_>> {
        while !self.rt.try_freeze() {
            self.wait_thaw()?;
        }
        let frozen = Frozen(self);
        std::sync::atomic::fence(Ordering::SeqCst);
        self.region.step();
        self.drain()?;
        Ok(frozen)
    }

    /// Waits until every operation that is under way now has ended.
    pub fn drain(&self) -> Result<()> {
        for slot in 0..self.rt.slots() {
            let (before, Some(_)) = self.rt.slot_state(slot) else { continue };
            let mut rounds = 0u32;
            while let (now, Some(session)) = self.rt.slot_state(slot) {
                if now != before {
                    break;
                }
                self.region.wait_by(|| runtime::pause(rounds));
                rounds += 1;
                if rounds % 100 == 0 && !self.is_alive(session) {
                    self.reap()?;
                }
            }
        }
        Ok(())
    }
}

/// The pool stands still while this lives.
pub struct Frozen<'a>(&'a Session);

impl<'a> Frozen<'a> {
    /// Begins an operation in spite of the freeze: for whoever froze the pool.
    pub fn begin(&self) -> Result<Op<'a>> {
        let session = self.0;
        (0..session.rt.slots())
            .find(|slot| session.rt.try_slot(*slot))
            .map(|slot| session.operation(slot))
            .ok_or_else(|| Error::Unusable("all transaction slots are taken while the pool is frozen".into()))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.rt.thaw();
    }
}

impl Session {
    /// Marks the region as closed, and lets the copy know. With nobody else attached.
    fn close(&self) {
        if !self.rt.leaks_pending() {
            let _ = self.set_open(0);
        }
        let Some(copy) = &self.copy else { return };
        if let Err(e) = copy.wait(self).and_then(|()| copy.close(self)) {
            tracing::error!("closing the pool: {e}; its memory holds what could not be written");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let me = self.rt.me();
        let Some(shared) = &self.shared else { return self.close() };
        if self.lock_shared(shared).is_err() {
            return;
        }
        self.rt.clear_refs(me);
        let others = (0..SESSIONS).any(|n| n != me && self.rt.session_taken(n));
        let dead = (0..SESSIONS).any(|n| n != me && self.rt.session_taken(n) && !self.is_alive(n));
        if !others {
            self.close();
            let _ = rustix::fs::unlink(&shared.runtime);
        } else if dead {
            // Whoever attaches next finds the dead and the mark "open".
            self.rt.set_leaks_pending(true);
        }
        self.region.step();
        self.rt.leave_session(me);
        self.region.step();
        let _ = byte_lock::release(&shared.file, me);
        unlock_file(&shared.file);
    }
}

/// The file whose locks say who is attached to a region, while nobody else attaches or detaches.
pub struct Exclusive(Option<OwnedFd>);

impl Exclusive {
    /// Waits for those who attach or detach.
    pub fn over(file: OwnedFd) -> Result<Exclusive> {
        lock_file(&file)?;
        Ok(Exclusive(Some(file)))
    }

    fn release(mut self) -> OwnedFd {
        let file = self.0.take().expect("held until released");
        unlock_file(&file);
        file
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

/// Where the marks of a region are, whose runtime segment is at `runtime`.
fn marks_beside(runtime: &Path) -> PathBuf {
    let mut path = runtime.as_os_str().to_owned();
    path.push("-marks");
    path.into()
}

/// What the pool's files in shared memory are called: by the region's UUID, and by the file with its locks, since
/// a copy of a pool has the same UUID.
pub fn shared_name(uuid: &[u8; 16], stat: &Stat) -> String {
    format!("{}{:x}-{:x}", shared_prefix(uuid), stat.st_dev, stat.st_ino)
}

/// What the names of all those begin with, wherever the pool lies.
pub fn shared_prefix(uuid: &[u8; 16]) -> String {
    let uuid: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("conquest-{uuid}-")
}

/// Does any process work on the region in `file`?
pub fn in_use(file: impl AsFd) -> Result<bool> {
    for n in 0..SESSIONS {
        if byte_lock::is_held(&file, n).map_err(Error::host("looking for attached processes"))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Undoes what was open, finds the free segments. With nobody else attached.
fn recover(region: &Region, rt: &Runtime) -> Result<()> {
    let mut undone = 0;
    for slot in 0..region.geo.slots as u32 {
        undone += u32::from(tx::roll_back(region, slot)?);
    }
    if undone > 0 {
        tracing::info!("undid {undone} transactions that were open");
    }
    let was_open = region.load(region.root(OPEN_ROOT))? != 0;
    rt.set_leaks_pending(was_open);
    Heap { region, rt }.index()
}

fn reap_one(region: &Region, rt: &Runtime, n: u32) -> Result<()> {
    let mine: Vec<u32> = (0..rt.slots()).filter(|s| rt.slot_state(*s).1 == Some(n)).collect();
    // 1. Undo, under the dead process's locks.
    for slot in &mine {
        tx::roll_back(region, *slot)?;
    }
    // 2. Release its locks: their takers find a consistent state.
    if !mine.is_empty() {
        for number in 0..runtime::LOCKS as u32 {
            let lock = rt.lock(number);
            if lock.look().owner().is_some_and(|slot| mine.contains(&slot)) {
                lock.unlock();
            }
        }
    }
    region.step();
    // 3. Its segments, its slots, and what nobody can refer to any more.
    Heap { region, rt }.salvage(&mine)?;
    mine.iter().for_each(|slot| rt.free_slot(*slot));
    region.step();
    if rt.frozen_by() == Some(n) {
        rt.thaw();
    }
    rt.abandon_sweep(n);
    region.step();
    rt.abandon_copy(n);
    region.step();
    rt.clear_refs(n);
    rt.set_leaks_pending(true);
    region.step();
    rt.leave_session(n);
    tracing::info!("cleaned up after a process that died (session {n})");
    Ok(())
}

fn lock_file(file: impl AsFd) -> Result<()> {
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Error::Host { what: "locking the region".into(), errno }),
        }
    }
}

fn try_lock_file(file: impl AsFd) -> Result<bool> {
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::Host { what: "locking the region".into(), errno }),
    }
}

fn unlock_file(file: impl AsFd) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Attaches while the region's file is locked.
fn attach_locked(
    region: Region,
    file: &Exclusive,
    path: &Path,
    stat: &Stat,
    how: &Attach,
    copy: Option<&Copy>,
) -> Result<(Region, Runtime)> {
    let alive = (0..SESSIONS)
        .map(|n| byte_lock::is_held(file, n))
        .collect::<Result<Vec<bool>, _>>()
        .map_err(Error::host("looking for attached processes"))?;
    let rt = if alive.contains(&true) {
        let rt = join_runtime(&region, path, how.keys)?;
        // Stores that are not marked would be missing in the copy for ever.
        if rt.is_tracked() && copy.is_none() {
            return Err(Error::Unusable("the pool is in use with a copy on disk, which cannot be opened here".into()));
        }
        rt
    } else {
        let made = make_runtime(&region, path, stat, how.keys).and_then(|rt| {
            rt.set_tracked(copy.is_some());
            match copy {
                Some(copy) => copy.enter(&rt),
                // Whatever they say will not be true any more.
                None => _ = std::fs::remove_file(marks_beside(path)),
            }
            recover(&region, &rt).map(|()| rt)
        });
        if made.is_err() {
            let _ = rustix::fs::unlink(path);
        }
        made?
    };
    let me = (0..SESSIONS)
        .find(|n| !alive[*n as usize])
        .ok_or_else(|| Error::Unusable(format!("{SESSIONS} processes are attached already; end one")))?;
    if rt.session_taken(me) {
        reap_one(&region, &rt, me)?;
    }
    if !byte_lock::acquire(file, me).map_err(Error::host("locking the region"))? {
        return Err(Error::Unusable("the region's file does not support locks".into()));
    }
    region.step();
    rt.enter_session(me, how.role, how.label);
    region.step();
    region.forget_copy()?;
    region.commit_word(region.root(OPEN_ROOT), 1)?;
    Ok((region, rt))
}

fn make_runtime(region: &Region, path: &Path, stat: &Stat, keys: u64) -> Result<Runtime> {
    let what = format!("making the runtime segment {}", path.display());
    let _ = rustix::fs::unlink(path);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(Error::host(&what))?;
    // Who may open the region may open its runtime segment.
    let owner = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _ = rustix::fs::fchown(&file, Some(owner.0), Some(owner.1));
    let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o666));
    let size = Runtime::size(&region.geo, keys);
    rustix::fs::ftruncate(&file, size).map_err(Error::host(&what))?;
    let map = Mapping::file(&file, size).map_err(Error::host(&what))?;
    Runtime::create(map, Some(file), &region.geo, keys)
}

fn join_runtime(region: &Region, path: &Path, keys: u64) -> Result<Runtime> {
    let hint = "the pool is in use by a process whose shared memory is not visible here (another container?)";
    let file = match rustix::fs::open(path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(f) => f,
        Err(Errno::NOENT) => return Err(Error::Unusable(hint.into())),
        Err(errno) => return Err(Error::Host { what: format!("opening {}", path.display()), errno }),
    };
    let size = Runtime::size(&region.geo, keys);
    let there = rustix::fs::fstat(&file).map_err(Error::host("runtime segment"))?.st_size as u64;
    if there != size {
        return Err(Error::Unusable("the pool is in use by another version of this program".into()));
    }
    let map = Mapping::file(&file, size).map_err(Error::host("mapping the runtime segment"))?;
    Runtime::join(map, file, &region.geo, keys)
}

/// An operation under way: a transaction slot, and the locks it takes.
pub struct Op<'s> {
    session: &'s Session,
    slot: u32,
    held: SmallVec<[u32; 8]>,
    outcome: Outcome,
}

/// What the committed transactions of an operation leave to whoever began it.
#[derive(Debug, Default)]
pub struct Outcome {
    changed: Cell<bool>,
    urgent: Cell<bool>,
}

impl Outcome {
    /// A transaction that changed something was committed.
    pub(crate) fn note(&self, urgent: bool) {
        self.changed.set(true);
        self.urgent.set(self.urgent.get() | urgent);
    }
}

impl<'s> Op<'s> {
    /// Takes the locks of all `keys`, in an order that cannot deadlock. An operation takes all its locks in
    /// one call; to take others it [`unlock`](Op::unlock)s first.
    #[inline(always)]
    pub fn lock(&mut self, keys: &[u64]) -> Result<()> {
        debug_assert!(self.held.is_empty(), "all locks are taken at once");
        match *keys {
            [key] => self.take(Runtime::lock_number(key)),
            [a, b] => {
                let (a, b) = (Runtime::lock_number(a), Runtime::lock_number(b));
                self.take(a.min(b))?;
                if a == b {
                    return Ok(());
                }
                self.take(a.max(b))
            }
            _ => self.lock_many(keys),
        }
    }

    fn lock_many(&mut self, keys: &[u64]) -> Result<()> {
        let mut numbers: SmallVec<[u32; 8]> = keys.iter().map(|k| Runtime::lock_number(*k)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().try_for_each(|number| self.take(number))
    }

    /// Takes a lock, above all that are held.
    #[inline(always)]
    fn take(&mut self, number: u32) -> Result<()> {
        let lock = self.session.rt.lock(number);
        if !lock.try_lock(self.slot) {
            self.wait(lock)?;
        }
        self.held.push(number);
        Ok(())
    }

    /// Waits for a lock until it is ours.
    #[cold]
    #[inline(never)]
    fn wait(&self, lock: runtime::KeyLock) -> Result<()> {
        while !lock.try_lock(self.slot) {
            if let Some(slot) = lock.look().owner() {
                self.session.wait_for(lock, slot, 20)?;
            }
        }
        Ok(())
    }

    /// [`Session::read`], for an operation that holds no locks: where it must lock it does so in its own slot.
    /// (A second operation could wait for ever: for a slot while all hold one, for a thaw that waits for us.)
    #[inline(always)]
    pub fn read<R, E: From<Error>>(&mut self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        if let Some(result) = self.session.try_read(key, &mut f) {
            return result;
        }
        self.lock(&[key])?;
        let result = f();
        self.unlock();
        result
    }

    /// Calls `f` until it has seen one state of what `key` protects. That state, if it can be told from later ones:
    /// see [`is_as_seen`](Self::is_as_seen).
    #[inline(always)]
    pub fn look(&mut self, key: u64, mut f: impl FnMut()) -> Result<Option<Seen>> {
        let seen = self.session.look(key, &mut f)?;
        if seen.is_none() {
            self.lock(&[key])?;
            f();
            self.unlock();
        }
        Ok(seen)
    }

    /// Has nobody had the lock of `key`, which the operation holds, since it was seen?
    #[inline(always)]
    pub fn is_as_seen(&self, key: u64, seen: Option<Seen>) -> bool {
        seen.is_some_and(|seen| self.session.rt.lock(Runtime::lock_number(key)).follows(seen))
    }

    /// Gives up all locks.
    #[inline(always)]
    pub fn unlock(&mut self) {
        while let Some(number) = self.held.pop() {
            self.session.rt.lock(number).unlock();
        }
    }

    /// Begins a transaction. One at a time: it borrows the operation.
    #[inline(always)]
    pub fn tx(&mut self) -> Result<Tx<'_>> {
        Tx::begin(&self.session.region, &self.session.rt, self.slot, &self.outcome)
    }

    /// Has it changed anything?
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.outcome.changed.get()
    }

    /// Has it changed anything that [was to be durable](Tx::urge) when it is told done?
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.outcome.urgent.get()
    }

    pub fn slot(&self) -> u32 {
        self.slot
    }

    pub fn session(&self) -> &'s Session {
        self.session
    }
}

impl Drop for Op<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.unlock();
        self.session.rt.free_slot(self.slot);
    }
}

/// The region's root words that the layer above may use: all but the last two.
pub const USER_ROOTS: u64 = COPY_ROOT;

/// A user root word.
pub fn user_root(region: &Region, n: u64) -> Off<u64> {
    region.root(n.min(USER_ROOTS - 1))
}
