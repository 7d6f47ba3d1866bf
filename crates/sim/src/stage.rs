//! Scheduling: the threads of several processes are threads of this process, of which one runs at a time. A seed decides
//! where the turn passes, and to which thread, so that a run can be repeated.
//!
//! The turn can pass at each store, write, flush and step, and passes where a thread waits for another. A process dies
//! at one of these points: its threads stop for good, with all locks that they hold, and the others go on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

use conquest_fs::Fs;
use rng::Rng;

/// After so many waits without any other event, a thread waits for ever.
const FOR_EVER: u64 = 20_000;

/// Where a process dies: at so many of its stores, writes and flushes, of its waits, or of its other steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    Event(u64),
    Wait(u64),
    Step(u64),
}

/// How much of the write or flush at which it dies is done. (A store is always done first.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Before,
    Half,
    After,
    /// It does not die: the disk fails.
    Fails,
}

impl How {
    pub const ALL: [How; 4] = [How::Before, How::Half, How::After, How::Fails];
}

/// The death of one process, or the failure of a disk at one of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mishap {
    pub victim: usize,
    pub at: At,
    pub how: How,
}

/// A death: the process and thread that died, whether that thread was waiting, and how many other threads were.
#[derive(Clone, Copy, Debug)]
pub struct Fall {
    pub process: usize,
    pub player: usize,
    pub waiting: bool,
    pub others: usize,
}

/// The points at which a process can die.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// For each store, write or flush: is it one of the latter two?
    pub events: Vec<bool>,
    pub waits: u64,
    pub steps: u64,
}

/// A use of an undo slot, which tells operations apart: the runtime file, the slot, and its word.
pub type Use = (u64, u32, u64);

/// The file system of a process while it is attached, and its runtime file: the last process that leaves deletes that.
type Attached = (Weak<Fs>, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Before and after: no thread is directed.
    Quiet,
    Playing,
    /// One thread is alone, and must not wait for ever.
    Alone,
    /// Threads of dead processes end.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Player {
    Plays,
    Waits,
    Finished,
    Dead,
}

impl Player {
    fn is_active(self) -> bool {
        matches!(self, Player::Plays | Player::Waits)
    }
}

struct State {
    mode: Mode,
    turn: usize,
    players: Vec<Player>,
    rng: Rng,
    /// The turn passes at one event in so many.
    odds: u64,
    deaths: Vec<Mishap>,
    /// Waits since the last event.
    idle: u64,
    stuck: bool,
    /// By process.
    counts: Vec<Counts>,
    /// The operations that a store belongs to, by the number of its event.
    stores: BTreeMap<usize, Vec<Use>>,
    /// The operations that the dead had under way.
    left: Vec<Use>,
    falls: Vec<Fall>,
    /// A disk has failed.
    failed: bool,
}

/// The panic of a thread that ends because its process is dead.
struct Gone;

thread_local! {
    /// The player that this thread is, if it is one.
    static PLAYER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The calling thread's number among the players.
pub fn player() -> Option<usize> {
    PLAYER.get()
}

/// The kernel's part in the death of a process: called with its number.
pub type Undertaker = Box<dyn Fn(usize) + Send + Sync>;

/// Directs the threads of several processes.
pub struct Stage {
    state: Mutex<State>,
    bell: Condvar,
    /// The process of each player.
    cast: Vec<usize>,
    /// The file systems of processes while they are attached; weak, since they refer to this.
    fs: Mutex<Vec<Attached>>,
    bury: OnceLock<Undertaker>,
}

impl Stage {
    /// `cast`: the process of each player.
    pub fn new(seed: u64, deaths: &[Mishap], cast: Vec<usize>) -> Arc<Stage> {
        let mut rng = Rng::new(seed);
        let odds = [2, 5, 20, 100][rng.below(4) as usize];
        let turn = rng.below(cast.len() as u64) as usize;
        let processes = cast.iter().max().map_or(0, |last| last + 1);
        let state = State {
            mode: Mode::Quiet,
            turn,
            players: vec![Player::Plays; cast.len()],
            rng,
            odds,
            deaths: deaths.into(),
            idle: 0,
            stuck: false,
            counts: vec![Counts::default(); processes],
            stores: BTreeMap::new(),
            left: Vec::new(),
            falls: Vec::new(),
            failed: false,
        };
        let fs = Mutex::new(vec![(Weak::new(), 0); processes]);
        Arc::new(Stage { state: Mutex::new(state), bell: Condvar::new(), cast, fs, bury: OnceLock::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.lock();
        (state.mode, state.idle) = (mode, 0);
        self.bell.notify_all();
    }

    /// `process` is attached, with this runtime file.
    pub fn attached(&self, process: usize, fs: &Arc<Fs>, runtime: u64) {
        self.fs.lock().unwrap_or_else(|e| e.into_inner())[process] = (Arc::downgrade(fs), runtime);
    }

    /// Begins; `bury` is called with the number of each process that dies.
    pub fn begin(&self, bury: Undertaker) {
        let _ = self.bury.set(bury);
        self.set_mode(Mode::Playing);
    }

    /// Waits until no thread plays any more; the remaining one is alone from then on. Fails if they wait for ever.
    pub fn watch(&self) -> Result<(), String> {
        let mut state = self.lock();
        while state.players.iter().any(|p| p.is_active()) && !state.stuck {
            state = self.bell.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        let stuck = state.stuck;
        drop(state);
        self.set_mode(if stuck { Mode::Over } else { Mode::Alone });
        if stuck {
            return Err("whoever is alive waits for ever".into());
        }
        Ok(())
    }

    /// Lets the threads of dead processes end.
    pub fn end(&self) {
        self.set_mode(Mode::Over);
    }

    /// The points at which each process could have died.
    pub fn counts(&self) -> Vec<Counts> {
        self.lock().counts.clone()
    }

    /// The deaths.
    pub fn falls(&self) -> Vec<Fall> {
        self.lock().falls.clone()
    }

    /// Notes that a disk fails and reports it.
    pub fn note_failure(&self) {
        self.lock().failed = true;
    }

    /// Has a disk failed?
    pub fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// The operations that each store belongs to.
    pub fn stores(&self) -> BTreeMap<usize, Vec<Use>> {
        std::mem::take(&mut self.lock().stores)
    }

    /// Is the play over, so that this thread's actions count no more?
    pub fn is_over(&self) -> bool {
        self.lock().mode == Mode::Over
    }

    // Called by the players.

    /// Ends the calling thread, if it is a player and is not ending already.
    pub fn leave(&self) {
        if player().is_some() && !std::thread::panicking() {
            resume_unwind(Box::new(Gone));
        }
    }

    /// Makes the calling thread this player; waits for its first turn.
    pub fn enter(&self, me: usize) {
        PLAYER.set(Some(me));
        self.await_turn(self.lock(), me);
    }

    /// Notes that the player has ended.
    pub fn finish(&self, me: usize) {
        let mut state = self.lock();
        if state.players[me].is_active() {
            state.players[me] = Player::Finished;
            self.hand_over(&mut state, me);
        }
    }

    /// Counts an event of `process`, at a disk or not; returns how it dies there, if it does.
    pub fn count(&self, process: usize, disk: bool) -> Option<How> {
        let mut state = self.lock();
        state.idle = 0;
        if state.mode != Mode::Playing {
            return None;
        }
        let at = At::Event(state.counts[process].events.len() as u64);
        state.counts[process].events.push(disk);
        // After another mishap it may be a store, which cannot fail.
        state.death(process, at).filter(|how| disk || *how != How::Fails)
    }

    /// Notes that event `number` is a store of `process`.
    pub fn note_store(&self, process: usize, number: usize) {
        self.note_undone(process);
        let mut uses = self.uses(process);
        let mut state = self.lock();
        uses.extend(&state.left);
        state.stores.insert(number, uses);
    }

    /// Forgets the operations of dead processes that were undone. Until then they are under way, and stores that undo
    /// them belong to them.
    fn note_undone(&self, process: usize) {
        // A process that is attaching has no slots to look at yet: another process's are used.
        let seen = self.fs_of(process).or_else(|| self.living().find_map(|process| self.fs_of(process)));
        if let Some((there, runtime)) = seen {
            let rt = there.session().runtime();
            self.lock().left.retain(|(its, slot, word)| *its == runtime && rt.slot_state(*slot).0 == *word);
        }
    }

    fn living(&self) -> impl Iterator<Item = usize> {
        let (dead, all) = (self.falls(), self.lock().counts.len());
        (0..all).filter(move |process| dead.iter().all(|fall| fall.process != *process))
    }

    fn fs_of(&self, process: usize) -> Option<(Arc<Fs>, u64)> {
        let (fs, runtime) = &self.fs.lock().unwrap_or_else(|e| e.into_inner())[process];
        Some((fs.upgrade()?, *runtime))
    }

    /// The slots that `process` uses.
    fn uses(&self, process: usize) -> Vec<Use> {
        let Some((there, runtime)) = self.fs_of(process) else { return Vec::new() };
        let rt = there.session().runtime();
        let used = (0..rt.slots()).map(|slot| (slot, rt.slot_state(slot)));
        used.filter(|(_, state)| state.1 == Some(rt.me())).map(|(slot, state)| (runtime, slot, state.0)).collect()
    }

    /// After an event, or before one: the turn may pass.
    pub fn pass(&self) {
        let Some(me) = player() else { return };
        let mut state = self.lock();
        if state.mode == Mode::Playing {
            let odds = state.odds;
            if state.rng.below(odds) == 0 {
                self.hand_over(&mut state, me);
            }
            self.await_turn(state, me);
        }
    }

    /// Between two steps of a commit and the like.
    pub fn step(&self) {
        let Some(me) = player() else { return };
        let mut state = self.lock();
        match state.mode {
            Mode::Over => {
                drop(state);
                return self.leave();
            }
            Mode::Playing => {}
            Mode::Quiet | Mode::Alone => return,
        }
        let process = self.cast[me];
        let at = At::Step(state.counts[process].steps);
        state.counts[process].steps += 1;
        let dies = state.death(process, at).is_some();
        drop(state);
        self.note_undone(process);
        match dies {
            true => self.die(me),
            false => self.pass(),
        }
    }

    /// The calling thread waits for others; false if it must really sleep.
    pub fn waits(&self) -> bool {
        let mut state = self.lock();
        state.idle += 1;
        match state.mode {
            Mode::Quiet => return false,
            Mode::Over => {
                drop(state);
                self.leave();
                return false;
            }
            Mode::Alone => {
                assert!(state.idle < FOR_EVER, "whoever is left waits for ever");
                return true;
            }
            Mode::Playing => {}
        }
        let Some(me) = player() else { return false };
        let process = self.cast[me];
        let at = At::Wait(state.counts[process].waits);
        state.counts[process].waits += 1;
        state.players[me] = Player::Waits;
        if state.idle >= FOR_EVER {
            state.stuck = true;
            self.bell.notify_all();
        }
        if state.death(process, at).is_some() {
            drop(state);
            self.die(me);
        }
        self.hand_over(&mut state, me);
        self.await_turn(state, me);
        true
    }

    /// The process of the calling thread dies here and now.
    pub fn die_here(&self) {
        if let Some(me) = player() {
            self.die(me);
        }
    }

    fn die(&self, me: usize) -> ! {
        let process = self.cast[me];
        self.note_undone(process);
        let left = self.uses(process);
        if let Some(bury) = self.bury.get() {
            bury(process);
        }
        let mut state = self.lock();
        let waiting = state.players[me] == Player::Waits;
        let others =
            (0..self.cast.len()).filter(|other| *other != me && state.players[*other] == Player::Waits).count();
        state.falls.push(Fall { process, player: me, waiting, others });
        state.left.extend(left);
        state.idle = 0;
        for (player, _) in self.cast.iter().enumerate().filter(|(_, its)| **its == process) {
            state.players[player] = Player::Dead;
        }
        self.hand_over(&mut state, me);
        while state.mode != Mode::Over {
            state = self.bell.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        drop(state);
        resume_unwind(Box::new(Gone));
    }

    /// Passes the turn to another player, if there is one.
    fn hand_over(&self, state: &mut State, me: usize) {
        let others: Vec<usize> = (0..self.cast.len()).filter(|p| *p != me && state.players[*p].is_active()).collect();
        match others[..] {
            [] => {}
            [other] => state.turn = other,
            _ => state.turn = others[state.rng.below(others.len() as u64) as usize],
        }
        self.bell.notify_all();
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.turn != me && state.mode != Mode::Over {
            state = self.bell.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        if state.mode == Mode::Over {
            drop(state);
            return self.leave();
        }
        if state.players[me] == Player::Waits {
            state.players[me] = Player::Plays;
        }
    }
}

impl State {
    /// How `process` dies at this point, if it does.
    fn death(&self, process: usize, at: At) -> Option<How> {
        self.deaths.iter().find(|death| (death.victim, death.at) == (process, at)).map(|death| death.how)
    }
}
