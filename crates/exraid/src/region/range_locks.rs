//! Range locks: exclusive or shared locks on stripes.
//!
//! Each operation that changes a stripe, or needs its content and parity to match, holds a range lock on it. Locks that
//! exclude one another are granted in the order of asking. Each operation asks once for all stripes that it needs, so
//! there is no deadlock. (For a mirror, a stripe is one piece of a rebuild.)
//!
//! Where other processes have the region open, a range lock is also a [lock](super::shared_state) among them. If
//! another process holds it, a thread tries again; the thread also does work that waits for disks before a lock
//! ([`Preparation`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use super::shared_state::{failed, SharedState};
use crate::error::Result;

type Go = Box<dyn FnOnce(Result<RangeLock>) + Send>;
/// Run by the thread, again and again until it returns true.
type Later = Box<dyn FnMut() -> bool + Send>;

/// The pause of the thread between two tries.
const PAUSES: Range<Duration> = Duration::from_micros(50)..Duration::from_millis(2);

/// Work before a lock is granted, where other processes have the region open.
pub trait Preparation: Send + Sync {
    /// Is there no such work? Does not wait.
    fn is_ready(&self, stripes: &Range<u64>) -> bool;

    /// Does the work.
    fn prepare(&self, stripes: &Range<u64>) -> Result<()>;
}

pub struct RangeLocks {
    state: Mutex<State>,
    shared: Option<Shared>,
}

struct Shared {
    name: Arc<str>,
    shared_state: Arc<SharedState>,
    preparation: OnceLock<Weak<dyn Preparation>>,
    thread: Mutex<Sender<Later>>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Granted and waiting locks, by order.
    asked: BTreeMap<u64, Asked>,
}

/// A lock that is asked for.
#[derive(Clone, PartialEq, Eq)]
struct Wish {
    stripes: Range<u64>,
    is_shared: bool,
    /// All later ones wait, also in other processes.
    is_all: bool,
}

struct Asked {
    wish: Wish,
    /// None once it has its lock.
    go: Option<Go>,
}

/// A range lock; it ends when this is dropped.
pub struct RangeLock {
    range_locks: Arc<RangeLocks>,
    number: u64,
}

impl Wish {
    fn excludes(&self, other: &Wish) -> bool {
        let overlap = self.stripes.start < other.stripes.end && other.stripes.start < self.stripes.end;
        overlap && !(self.is_shared && other.is_shared)
    }
}

impl State {
    fn can_go(&self, number: u64, one: &Asked) -> bool {
        !self.asked.range(..number).any(|(_, before)| before.wish.excludes(&one.wish))
    }

    /// Takes those that can be granted now.
    fn ready(&mut self) -> Vec<(u64, Wish, Go)> {
        let waits = self.asked.iter().filter(|(_, asked)| asked.go.is_some());
        let ready: Vec<u64> = waits.filter(|(number, one)| self.can_go(**number, one)).map(|(n, _)| *n).collect();
        let go = |number: u64| {
            let asked = self.asked.get_mut(&number)?;
            Some((number, asked.wish.clone(), asked.go.take()?))
        };
        ready.into_iter().filter_map(go).collect()
    }

    /// The parts of these stripes on which no other granted lock lies.
    fn uncovered(&self, stripes: &Range<u64>) -> Vec<Range<u64>> {
        let mut left = vec![stripes.clone()];
        for asked in self.asked.values().filter(|asked| asked.go.is_none()) {
            let other = &asked.wish.stripes;
            let parts = |range: Range<u64>| {
                [range.start..range.end.min(other.start.max(range.start)), range.start.max(other.end)..range.end]
            };
            left = left.into_iter().flat_map(parts).filter(|range| !range.is_empty()).collect();
        }
        left
    }
}

impl RangeLocks {
    /// `name` is for the thread, if there is one.
    pub fn new(name: &str, shared_state: Option<Arc<SharedState>>) -> std::io::Result<RangeLocks> {
        let Some(shared_state) = shared_state else { return Ok(RangeLocks { state: Mutex::default(), shared: None }) };
        let (send, tasks) = channel();
        Builder::new().name(name.into()).spawn(move || serve(&tasks))?;
        let shared = Shared { name: name.into(), shared_state, preparation: OnceLock::new(), thread: Mutex::new(send) };
        Ok(RangeLocks { state: Mutex::default(), shared: Some(shared) })
    }

    /// Sets the preparation.
    pub fn prepare_by(&self, preparation: Weak<dyn Preparation>) {
        if let Some(shared) = &self.shared {
            let _ = shared.preparation.set(preparation);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `go` when these stripes are free: at once, or on the thread that unlocks them. Shared locks do not exclude
    /// one another.
    pub fn ask(
        self: &Arc<RangeLocks>,
        stripes: Range<u64>,
        is_shared: bool,
        go: impl FnOnce(Result<RangeLock>) + Send + 'static,
    ) {
        self.ask_for(Wish { stripes, is_shared, is_all: false }, Box::new(go));
    }

    fn ask_for(self: &Arc<RangeLocks>, wish: Wish, go: Go) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.asked.insert(number, Asked { wish, go: Some(go) });
        self.go_on(state);
    }

    /// The same, waiting for the lock. Every lock is granted in time.
    pub fn wait(self: &Arc<RangeLocks>, stripes: Range<u64>) -> Option<Result<RangeLock>> {
        self.wait_for(Wish { stripes, is_shared: false, is_all: false })
    }

    /// A lock on all stripes; no other operation begins until it has been granted and released.
    pub fn wait_for_all(self: &Arc<RangeLocks>, stripes: Range<u64>) -> Option<Result<RangeLock>> {
        self.wait_for(Wish { stripes, is_shared: false, is_all: true })
    }

    fn wait_for(self: &Arc<RangeLocks>, wish: Wish) -> Option<Result<RangeLock>> {
        let (send, receive) = channel();
        let go = move |lock| {
            // The receiver waits for it.
            let _ = send.send(lock);
        };
        self.ask_for(wish, Box::new(go));
        receive.recv().ok()
    }

    /// Runs a task on the thread until it is done; false where there is no thread.
    pub fn later(&self, task: impl FnMut() -> bool + Send + 'static) -> bool {
        let Some(shared) = &self.shared else { return false };
        shared.thread.lock().unwrap_or_else(PoisonError::into_inner).send(Box::new(task)).is_ok()
    }

    fn go_on(self: &Arc<RangeLocks>, mut state: MutexGuard<'_, State>) {
        let ready = state.ready();
        drop(state);
        for (number, wish, go) in ready {
            let lock = RangeLock { range_locks: self.clone(), number };
            match &self.shared {
                None => go(Ok(lock)),
                Some(shared) => shared.come(lock, wish, go),
            }
        }
    }
}

impl Shared {
    fn preparation(&self) -> Option<Arc<dyn Preparation>> {
        self.preparation.get()?.upgrade()
    }

    fn try_lock(&self, wish: &Wish) -> Result<bool> {
        let locked = match wish.is_all {
            true => self.shared_state.try_everything(&wish.stripes),
            false => self.shared_state.try_lock_range(&wish.stripes, wish.is_shared),
        };
        locked.map_err(|e| failed(&self.name, &e))
    }

    /// The lock has been granted in this process.
    fn come(&self, lock: RangeLock, wish: Wish, go: Go) {
        match self.try_lock(&wish) {
            Ok(true) if self.preparation().is_none_or(|preparation| preparation.is_ready(&wish.stripes)) => {
                return go(Ok(lock))
            }
            Err(e) => {
                drop(lock);
                return go(Err(e));
            }
            Ok(_) => {}
        }
        let mut waits = Some((lock, go));
        let range_locks = waits.as_ref().map(|(lock, _)| lock.range_locks.clone());
        let Some(range_locks) = range_locks else { return };
        let theirs = range_locks.clone();
        range_locks.later(move || {
            let Some(shared) = &theirs.shared else { return true };
            let came = match shared.try_lock(&wish) {
                Ok(false) => return false,
                Ok(true) => shared.preparation().map_or(Ok(()), |preparation| preparation.prepare(&wish.stripes)),
                Err(e) => Err(e),
            };
            if let Some((lock, go)) = waits.take() {
                go(came.map(|()| lock));
            }
            true
        });
    }

    fn end(&self, state: &State, wish: &Wish) {
        state.uncovered(&wish.stripes).iter().for_each(|range| self.shared_state.unlock_range(range));
        if wish.is_all {
            self.shared_state.end_gate();
        }
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        let mut state = self.range_locks.lock();
        let ended = state.asked.remove(&self.number);
        // With the state locked: the next holder that shares stripes locks them afterwards.
        if let (Some(shared), Some(ended)) = (&self.range_locks.shared, ended) {
            shared.end(&state, &ended.wish);
        }
        self.range_locks.go_on(state);
    }
}

/// Tries unfinished tasks again, in order, as long as the region is open.
fn serve(tasks: &Receiver<Later>) {
    let (mut waiting, mut pause): (Vec<Later>, Duration) = (Vec::new(), PAUSES.start);
    loop {
        let next = match waiting.is_empty() {
            true => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => tasks.recv_timeout(pause),
        };
        match next {
            Ok(task) => waiting.push(task),
            Err(RecvTimeoutError::Disconnected) if waiting.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(pause),
            Err(RecvTimeoutError::Timeout) => {}
        }
        waiting.extend(tasks.try_iter());
        let before = waiting.len();
        waiting.retain_mut(|task| !task());
        pause = if waiting.len() < before { PAUSES.start } else { (pause * 2).min(PAUSES.end) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_exclude_one_another_in_order() {
        let range_locks = Arc::new(RangeLocks::new("range locks", None).expect("no thread"));
        let (send, receive) = channel();
        let ask = |name: char, stripes: Range<u64>, is_shared| {
            let send = send.clone();
            range_locks.ask(stripes, is_shared, move |lock| drop(send.send((name, lock))));
        };
        let gone = || receive.try_iter().collect::<Vec<_>>();
        let names =
            |range_locks: &[(char, Result<RangeLock>)]| range_locks.iter().map(|(name, _)| *name).collect::<String>();
        ask('a', 0..2, false);
        ask('b', 2..3, true);
        ask('c', 2..3, true);
        ask('d', 1..3, false);
        ask('e', 2..3, true);
        ask('f', 5..6, false);
        let mut first = gone();
        assert_eq!(names(&first), "abcf", "e comes after d, which waits");
        drop(first.remove(0));
        drop(first.remove(0));
        assert_eq!(names(&gone()), "");
        drop(first.remove(0));
        let second = gone();
        assert_eq!(names(&second), "d");
        drop(second);
        assert_eq!(names(&gone()), "e");
    }

    #[test]
    fn what_others_share_stays_locked() {
        let mut state = State::default();
        let mut has = |number, stripes| {
            let wish = Wish { stripes, is_shared: true, is_all: false };
            state.asked.insert(number, Asked { wish, go: None });
        };
        has(1, 2..4);
        has(2, 6..7);
        assert_eq!(state.uncovered(&(0..10)), [0..2, 4..6, 7..10]);
        assert_eq!(state.uncovered(&(3..9)), [4..6, 7..9]);
        assert!(state.uncovered(&(2..4)).is_empty());
    }
}
