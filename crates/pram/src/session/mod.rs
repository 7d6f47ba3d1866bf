//! An attached process: operations, optimistic reads, references, and the death of other processes.
//!
//! Liveness: a session holds an open-file-description lock on a byte of the memory's file (byte = session
//! number); the kernel drops it when the process dies. Attaching, detaching and reaping exclude one
//! another by `flock` on the same file.
//!
//! | part | responsibility |
//! | --- | --- |
//! | this | a session: beginning operations, reading without locks, leaving |
//! | [`backing`] | the backing, as a session knows it |
//! | [`op`] | an operation |
//! | [`epoch`] | how the instants of commits divide changes, and the participants in commits |
//! | [`attach`] | attaching to a memory, and the locks that say which processes are there |
//! | `guest` | an attached process that does no background work, and the one that does it |
//! | `leave` | the end of a session |
//! | `freeze` | all operations stand still |
//! | `references` | the objects that a process holds open |
//! | [`long_lock`] | locks that outlive operations |
//! | [`no_sweep`] | excluding sweeps while a change builds new objects beside the old |
//! | [`stopped`] | processes that stand still in the midst of something |
//! | `supply` | memory from the host: taken ahead of use, given back |
//! | `thread` | the slot that a thread takes first |
//! | [`transfer`] | blocks that a device reads or writes |
//! | [`waiting`] | threads that may not wait for a device |
//! | [`reap`] | cleaning up after processes that died |

mod attach;
mod backing;
pub mod epoch;
mod freeze;
mod guest;
mod leave;
mod long_lock;
mod no_sweep;
mod op;
mod reap;
mod references;
pub mod stopped;
mod supply;
mod thread;
pub mod transfer;
mod waiting;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::medium::BATTERY;
use crate::mem::descriptor::{Kept, Lent};
use crate::mem::{byte_lock, fork, Mapping};
use crate::memory::{Memory, EPOCH_ROOT, GROUPS_ROOT, OPEN_ROOT};
use crate::off::Off;
use crate::runtime::{self, Hold, Runtime, Sequence};
use attach::{attach_locked, lock_file, try_lock_file, unlock_file, SessionLock};
use epoch::Participants;
use guest::Guest;
use reap::{end_transfers, reap_one, recover};
use thread::thread_hint;
use waiting::Inside;

pub use attach::{has_transfers, in_use, shared_name, shared_prefix, Exclusive};
pub use backing::Backing;
pub use epoch::{Epochs, Participant};
pub use freeze::Frozen;
pub use long_lock::LongLock;
pub use no_sweep::NoSweep;
pub use op::Op;
pub use references::Unfinished;
pub use supply::Supply;
pub use thread::set_thread_hint;
pub use transfer::Transfer;
pub use waiting::assert_may_wait;

/// How long a thread that waits for a thaw sleeps between looks.
const GLANCE: Duration = Duration::from_millis(10);
/// How many times a reader tries without a lock before it takes one.
const OPTIMISTIC_TRIES: usize = 50;

/// This process's attachment to a memory.
pub struct Session {
    memory: Memory,
    rt: Runtime,
    shared: Option<Shared>,
    /// The backing of the memory, if there is one.
    backing: Option<Box<dyn Backing>>,
    participants: Participants,
    clock: Clock,
    guest: Option<Guest>,
    lock: SessionLock,
    /// The process whose session it is: see [`fork`].
    generation: u64,
}

/// The result of trying to take a slot.
enum Entry {
    In,
    /// The slot belongs to another operation.
    Busy,
    /// No operation may begin now.
    Frozen,
}

/// The files and locks of a session on a shared memory.
struct Shared {
    /// The memory's file: locks only.
    file: Kept,
    /// Path of the runtime file.
    runtime: PathBuf,
    /// `flock` does not exclude threads of one process.
    in_process: Mutex<()>,
    /// The open file that is locked as long as a transfer may be under way, once there has been one.
    transfers: Mutex<Option<Arc<OwnedFd>>>,
}

/// How to attach.
#[derive(Clone, Debug)]
pub struct Attach<'a> {
    /// Where runtime files lie: a tmpfs, `/dev/shm`.
    pub runtime_dir: &'a Path,
    /// Keys (inode numbers) are below this.
    pub keys: u64,
    /// The role of this process, defined by the layer above and shown to others.
    pub role: u64,
    pub label: &'a [u8],
    pub kind: Kind,
    /// A child of `fork` has the lock that says that the session lives: for those who end it by another descriptor.
    pub is_inherited: bool,
}

/// What an attached process does beside its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It puts the memory in order if it is the first, and commits.
    Full,
    /// Nothing: see [`Session::attend`].
    Guest,
}

impl Shared {
    fn file(&self) -> Result<Lent<'_>> {
        self.file.lend().map_err(Error::host("looking at the memory's file, which the program has closed"))
    }

    /// Does the lock of session `n` say that its process is alive? So it is where that cannot be told.
    fn is_held(&self, n: u32) -> bool {
        self.file.lend().and_then(|file| byte_lock::is_held(file, n)).unwrap_or(true)
    }

    fn unlock(&self) {
        if let Ok(file) = self.file.lend() {
            unlock_file(file);
        }
    }
}

impl Session {
    /// On an empty memory of `size` bytes in this process's own memory, with 64 keys: tests, tools.
    pub fn in_memory(size: u64) -> Result<Session> {
        let map = Mapping::anonymous(size).map_err(Error::host("memory"))?;
        let memory = Memory::format(map, Box::new(BATTERY), [7; 16], 1, 0)?;
        Session::private(memory, 64)
    }

    /// Attaches to a memory that no other process has: tests, tools. Recovers it.
    pub fn private(memory: Memory, keys: u64) -> Result<Session> {
        Session::private_backed(memory, keys, None)
    }

    /// The same for a memory with a backing.
    pub fn private_with(memory: Memory, keys: u64, backing: Option<impl Backing>) -> Result<Session> {
        Session::private_backed(memory, keys, backing.map(|backing| Box::new(backing) as Box<dyn Backing>))
    }

    fn private_backed(memory: Memory, keys: u64, backing: Option<Box<dyn Backing>>) -> Result<Session> {
        let rt = runtime::private(&memory, keys)?;
        memory.marks().map_or(Ok(()), |marks| marks.take_groups(memory.groups()))?;
        match &backing {
            Some(backing) => backing.enter(&memory, &rt)?,
            None => rt.note_durable(memory.load(memory.root(EPOCH_ROOT))?),
        }
        let session = Session {
            memory,
            rt,
            shared: None,
            backing,
            participants: Participants::default(),
            clock: Clock::default(),
            guest: None,
            lock: SessionLock::Common,
            generation: fork::generation(),
        };
        session.recover_all()?;
        session.rt.enter_session(0, 0, b"", 0);
        session.memory.forget_backing()?;
        session.set_open(1)?;
        session.supply_first()?;
        Ok(session)
    }

    /// Attaches to `memory`; `file` prevents others from attaching meanwhile. The first process to attach recovers
    /// the memory.
    pub fn attach(memory: Memory, file: Exclusive, how: &Attach, backing: Option<impl Backing>) -> Result<Session> {
        let backing = backing.map(|backing| Box::new(backing) as Box<dyn Backing>);
        let stat = rustix::fs::fstat(&file).map_err(Error::host("memory"))?;
        let path = how.runtime_dir.join(shared_name(&memory.info.uuid, &stat));
        let generation = fork::generation();
        let (mut memory, rt, lock) = attach_locked(memory, &file, &path, &stat, how, backing.as_deref())?;
        let backing = backing.filter(|_| rt.is_tracked());
        if backing.is_none() {
            memory.untrack();
        }
        let shared =
            Shared { file: file.release()?, runtime: path, in_process: Mutex::new(()), transfers: Mutex::default() };
        let session = Session {
            memory,
            rt,
            shared: Some(shared),
            backing,
            participants: Participants::default(),
            clock: Clock::default(),
            guest: (how.kind == Kind::Guest).then(Guest::default),
            lock,
            generation,
        };
        match how.kind {
            Kind::Full => session.supply_first()?,
            Kind::Guest => {}
        }
        Ok(session)
    }

    /// Takes memory before the first operation.
    fn supply_first(&self) -> Result<()> {
        match self.memory.map().growing_file() {
            Some(_) => self.supply_soon().map(drop),
            None => Ok(()),
        }
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// The clock of this process for all its work on this memory.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The backing of the memory, if it is a `B`.
    #[inline(always)]
    pub fn backing<B: Backing>(&self) -> Option<&B> {
        self.backing.as_ref()?.as_any().downcast_ref()
    }

    /// Has the memory a backing?
    pub fn is_backed(&self) -> bool {
        self.backing.is_some()
    }

    /// The memory's file, and the place for the open file that is locked while transfers are under way.
    pub(crate) fn lock_files(&self) -> Option<(&Kept, &Mutex<Option<Arc<OwnedFd>>>)> {
        self.shared.as_ref().map(|shared| (&shared.file, &shared.transfers))
    }

    pub fn heap(&self) -> Heap<'_> {
        Heap { memory: &self.memory, rt: &self.rt }
    }

    fn recover_all(&self) -> Result<()> {
        recover(&self.memory, &self.rt)
    }

    fn set_open(&self, value: u64) -> Result<()> {
        self.memory.commit_word(self.memory.root(OPEN_ROOT), value)
    }

    // Operations.

    /// Begins an operation: takes a transaction slot, always the same one for a thread if it is free. Waits
    /// while the pool is frozen or all slots are busy.
    #[inline(always)]
    pub fn begin(&self) -> Result<Op<'_>> {
        if self.guest.is_some() {
            self.expect_attendant()?;
        }
        if self.rt.is_demanded() {
            self.supply_ahead();
        }
        self.begin_unsupplied()
    }

    /// The same, also where little memory is left.
    #[inline(always)]
    pub(crate) fn begin_unsupplied(&self) -> Result<Op<'_>> {
        Ok(self.operation(self.take_slot()?))
    }

    #[inline(always)]
    fn take_slot(&self) -> Result<u32> {
        self.expect_own()?;
        let slots = self.rt.slots();
        let first = (thread_hint() as u32).wrapping_add(self.rt.me().wrapping_mul(17));
        let first = if first < slots { first } else { first % slots };
        match self.enter(first) {
            Entry::In => Ok(first),
            _ => self.find_slot(first),
        }
    }

    /// Takes a slot if it is free and the pool is not frozen.
    #[inline(always)]
    fn enter(&self, slot: u32) -> Entry {
        if self.rt.held() {
            return Entry::Frozen;
        }
        if !self.rt.try_slot(slot) {
            return Entry::Busy;
        }
        // Freezers set their mark first and look at slots second; we take the slot first. All four are
        // sequentially consistent, so one of us sees the other.
        if self.rt.held() {
            if self.rt.free_slot(slot) {
                self.heed_slot(slot);
            }
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
            if self.rt.held() {
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
            self.memory.wait_by(|| runtime::pause(round));
            if round % 100 == 99 {
                self.reap()?;
                self.urge_all();
            }
        }
        unreachable!("the loop ends by returning")
    }

    #[inline(always)]
    fn operation(&self, slot: u32) -> Op<'_> {
        Op::in_slot(self, slot)
    }

    /// Begins an operation in this very slot. While it lasts no other operation is under way there.
    pub fn begin_in(&self, slot: u32) -> Result<Op<'_>> {
        self.expect_own()?;
        for round in 0u32.. {
            if self.rt.held() {
                self.wait_thaw()?;
            }
            if let Entry::In = self.enter(slot) {
                return Ok(self.operation(slot));
            }
            self.memory.wait_by(|| runtime::pause(round));
            if round % 100 == 99 {
                self.reap()?;
                self.urge_slot(slot);
            }
        }
        unreachable!("the loop ends by returning")
    }

    fn wait_thaw(&self) -> Result<()> {
        let mut waits = 0;
        loop {
            match self.rt.hold() {
                Hold::Nothing => return Ok(()),
                Hold::Frozen(by) => {
                    self.memory.wait_by(|| _ = self.rt.wait_held(GLANCE));
                    waits += 1;
                    if waits % 10 == 0 && !self.is_alive(by) {
                        self.reap()?;
                    }
                }
                Hold::Paused(time) => {
                    let mut over = false;
                    if self.memory.wait_by(|| over = self.rt.wait_held(time)) || over {
                        self.rt.end_pause();
                    }
                }
            }
        }
    }

    /// Reads without a lock: runs `f` until no process has changed the data of `key` meanwhile. `f` may see torn data;
    /// its result is then thrown away. It must not loop or panic on anything it finds.
    ///
    /// After many failed tries it begins an operation and takes the lock, so `f` must not wait for others: not
    /// read another key, not begin an operation. Inside an operation use [`Op::read`].
    #[inline(always)]
    pub fn read<R, E: From<Error>>(&self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        if let Some(result) = self.try_read(key, &mut f) {
            return result;
        }
        self.read_locked(key, f)
    }

    /// [`read`](Self::read) where others change the data of `key` all the time.
    #[cold]
    #[inline(never)]
    fn read_locked<R, E: From<Error>>(&self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        let mut op = self.begin()?;
        op.lock(&[key])?;
        f()
    }

    /// [`read`](Self::read), except that it returns `None` instead of taking the lock. So `f` may read other keys by
    /// it.
    #[inline(always)]
    pub fn try_read<R, E: From<Error>>(&self, key: u64, mut f: impl FnMut() -> Result<R, E>) -> Option<Result<R, E>> {
        let mut result = None;
        match self.look(key, || result = Some(f())) {
            Ok(seen) => result.filter(|_| seen.is_some()),
            Err(e) => Some(Err(e.into())),
        }
    }

    /// The state of the lock of `key`, if it is free: as long as the state is the same, nobody has had the lock.
    #[inline(always)]
    pub fn seen(&self, key: u64) -> Option<Sequence> {
        let seen = self.rt.lock(Runtime::lock_number(key)).look();
        seen.owner().is_none().then_some(seen)
    }

    /// After reading the data of `key`: was all of it read of the state in which the lock was `seen`?
    #[inline(always)]
    pub fn is_unchanged(&self, key: u64, seen: Sequence) -> bool {
        self.rt.lock(Runtime::lock_number(key)).unchanged(seen)
    }

    /// Calls `f` until nobody has changed the data of `key` meanwhile; returns the state of the key's lock then, or
    /// `None` if the data changed again and again.
    #[inline(always)]
    fn look(&self, key: u64, mut f: impl FnMut()) -> Result<Option<Sequence>> {
        self.expect_own()?;
        let lock = self.rt.lock(Runtime::lock_number(key));
        for _ in 0..OPTIMISTIC_TRIES {
            let seen = lock.look();
            if let Some(slot) = seen.owner() {
                std::hint::spin_loop();
                self.wait_for(lock, slot, 20)?;
                continue;
            }
            {
                let _inside = Inside::enter();
                f();
            }
            if lock.unchanged(seen) {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// Waits for the holder of a lock, first spinning; after a long wait checks that the holder is alive and not stopped.
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
        self.memory.wait_by(|| lock.wait());
        if lock.look().owner() == Some(slot) {
            let (_, session) = self.rt.slot_state(slot);
            match session.is_none_or(|s| self.is_alive(s)) {
                true => self.urge_slot(slot),
                false => _ = self.reap()?,
            }
        }
        Ok(())
    }

    // The death of other processes.

    /// Is the process of session `n` alive?
    pub fn is_alive(&self, n: u32) -> bool {
        match &self.shared {
            _ if n == self.rt.me() => true,
            None => true,
            Some(shared) => self.rt.session_taken(n) && shared.is_held(n),
        }
    }

    /// Cleans up after processes that died: undoes their open transactions, releases their locks, slots and
    /// references. Returns how many there were.
    pub fn reap(&self) -> Result<u32> {
        let Some(shared) = &self.shared else { return Ok(0) };
        let _in_process = self.memory.lock_by(&shared.in_process);
        self.lock_shared(shared)?;
        let reaped = self.reap_locked();
        shared.unlock();
        reaped
    }

    /// Fails in a child of `fork`, whose parent the session is of.
    #[inline(always)]
    pub fn expect_own(&self) -> Result<()> {
        match fork::generation() == self.generation {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    /// Waits until nobody else attaches, detaches or cleans up.
    fn lock_shared(&self, shared: &Shared) -> Result<()> {
        while !try_lock_file(shared.file()?)? {
            let mut locked = None;
            self.memory.wait_by(|| locked = Some(shared.file().and_then(lock_file)));
            if let Some(done) = locked {
                return done;
            }
        }
        Ok(())
    }

    fn reap_locked(&self) -> Result<u32> {
        let mut reaped = 0;
        for n in self.rt.live() {
            if !self.is_alive(n) {
                reap_one(&self.memory, &self.rt, n)?;
                reaped += 1;
            }
        }
        if let Some(shared) = &self.shared {
            end_transfers(&self.rt, shared.file()?)?;
        }
        Ok(reaped)
    }

    /// Takes the role of the one process that does background work; held until this process detaches or
    /// dies. False if another process has it.
    pub fn try_maintenance(&self) -> bool {
        let (word, me) = (self.rt.maintainer(), u64::from(self.rt.me()) + 1);
        self.shared.is_none() || word.load(Ordering::SeqCst) == me || self.take_role(word).unwrap_or(false)
    }

    /// Gives this process the role that the word `role` stands for; false if another process has it.
    pub fn take_role(&self, role: &AtomicU64) -> Result<bool> {
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
}

/// The memory's root words that the layer above may use: all but the last seven.
pub const USER_ROOTS: u64 = GROUPS_ROOT;

/// A user root word.
pub fn user_root(memory: &Memory, n: u64) -> Off<u64> {
    memory.root(n.min(USER_ROOTS - 1))
}
