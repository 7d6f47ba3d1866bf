//! Whose turn it is: of two processes, which are threads here, one runs at a time, and where the turn passes on a seed
//! decides. So what happened happens again.
//!
//! The turn can pass at each store, write and flush, and does where one waits for the other. A process dies at one of
//! these: its thread stops for good, with all that it holds, and the other goes on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

use fs::Fs;
use rng::Rng;

/// The processes.
pub const PLAYERS: usize = 2;

/// Waits without anything else happening after which somebody waits for ever.
const FOR_EVER: u64 = 20_000;

/// Where a process dies: at so many of its stores, writes and flushes, or of its waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    Event(u64),
    Wait(u64),
}

/// How much of the write or flush at which it dies is done. (A store is; then it dies.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Before,
    Half,
    After,
}

/// The death of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Death {
    pub victim: usize,
    pub at: At,
    pub how: How,
}

/// A use of a transaction slot, which tells operations apart: slot, and its word.
pub type Use = (u32, u64);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Before and after: nobody is directed.
    Quiet,
    Playing,
    /// One is alone, and must not wait for ever.
    Alone,
    /// Threads of the dead end.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Player {
    Plays,
    Finished,
    Dead,
}

struct State {
    mode: Mode,
    turn: usize,
    players: [Player; PLAYERS],
    rng: Rng,
    /// The turn passes at one event in so many.
    odds: u64,
    death: Option<Death>,
    /// Waits since anything happened.
    idle: u64,
    stuck: bool,
    /// Of each, by event: is it a write or flush?
    events: [Vec<bool>; PLAYERS],
    waits: [u64; PLAYERS],
    /// The operations that a store belongs to, by the number of its event.
    stores: BTreeMap<usize, Vec<Use>>,
    /// What the dead one had under way.
    left: Vec<Use>,
}

/// A thread that ends since its process is dead.
struct Gone;

thread_local! {
    /// Is this thread one of the processes?
    static PLAYS: Cell<bool> = const { Cell::new(false) };
}

/// Directs two processes.
pub struct Stage {
    state: Mutex<State>,
    bell: Condvar,
    /// Their file systems, once they are attached, which refer to this.
    pub fs: [OnceLock<Weak<Fs>>; PLAYERS],
    /// What the kernel does when a process dies.
    bury: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
}

impl Stage {
    pub fn new(seed: u64, death: Option<Death>) -> Arc<Stage> {
        let mut rng = Rng::new(seed);
        let odds = [2, 5, 20, 100][rng.below(4) as usize];
        let turn = rng.below(PLAYERS as u64) as usize;
        let state = State {
            mode: Mode::Quiet,
            turn,
            players: [Player::Plays; PLAYERS],
            rng,
            odds,
            death,
            idle: 0,
            stuck: false,
            events: Default::default(),
            waits: [0; PLAYERS],
            stores: BTreeMap::new(),
            left: Vec::new(),
        };
        Arc::new(Stage {
            state: Mutex::new(state),
            bell: Condvar::new(),
            fs: Default::default(),
            bury: OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.lock();
        (state.mode, state.idle) = (mode, 0);
        self.bell.notify_all();
    }

    /// Begins; `bury` is called with the number of whoever dies.
    pub fn begin(&self, bury: Box<dyn Fn(usize) + Send + Sync>) {
        let _ = self.bury.set(bury);
        self.set_mode(Mode::Playing);
    }

    /// Waits until nobody plays any more; whoever is left is alone from then on. Fails if they wait for ever.
    pub fn watch(&self) -> Result<(), String> {
        let mut state = self.lock();
        while state.players.contains(&Player::Plays) && !state.stuck {
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

    /// Lets the threads of the dead end.
    pub fn end(&self) {
        self.set_mode(Mode::Over);
    }

    /// Stores, writes and flushes of each, and waits of each; of the former, which are at disks.
    pub fn counts(&self) -> ([Vec<bool>; PLAYERS], [u64; PLAYERS]) {
        let state = self.lock();
        (state.events.clone(), state.waits)
    }

    /// Who died.
    pub fn dead(&self) -> Option<usize> {
        self.lock().players.iter().position(|p| *p == Player::Dead)
    }

    /// The operations that each store belongs to.
    pub fn stores(&self) -> BTreeMap<usize, Vec<Use>> {
        std::mem::take(&mut self.lock().stores)
    }

    /// Is it over for this thread, so that what it does counts no more?
    pub fn is_over(&self) -> bool {
        self.lock().mode == Mode::Over
    }

    // What the players call.

    /// Ends the calling thread, if it is one of the processes and is not ending already.
    pub fn leave(&self) {
        if PLAYS.get() && !std::thread::panicking() {
            resume_unwind(Box::new(Gone));
        }
    }

    /// Waits for the first turn.
    pub fn enter(&self, me: usize) {
        PLAYS.set(true);
        self.await_turn(self.lock(), me);
    }

    /// Has done everything.
    pub fn finish(&self, me: usize) {
        let mut state = self.lock();
        if state.players[me] == Player::Plays {
            state.players[me] = Player::Finished;
            self.hand_over(&mut state, me);
        }
    }

    /// Counts an event of `me`, at a disk or not; how it dies there, if it does.
    pub fn count(&self, me: usize, disk: bool) -> Option<How> {
        let mut state = self.lock();
        state.idle = 0;
        if state.mode != Mode::Playing {
            return None;
        }
        let at = At::Event(state.events[me].len() as u64);
        state.events[me].push(disk);
        state.death.filter(|death| (death.victim, death.at) == (me, at)).map(|death| death.how)
    }

    /// Notes the store with which event `number` came about.
    pub fn note_store(&self, me: usize, number: usize) {
        let mut uses = self.uses(me);
        let mut state = self.lock();
        // Until it is undone, what the dead one had begun is under way: who undoes it does it.
        if let Some(there) = self.fs(me) {
            let rt = there.session().runtime();
            state.left.retain(|(slot, word)| rt.slot_state(*slot).0 == *word);
        }
        uses.extend(&state.left);
        state.stores.insert(number, uses);
    }

    fn fs(&self, me: usize) -> Option<Arc<Fs>> {
        self.fs[me].get().and_then(Weak::upgrade)
    }

    /// The slots that `me` uses.
    fn uses(&self, me: usize) -> Vec<Use> {
        let Some(there) = self.fs(me) else { return Vec::new() };
        let rt = there.session().runtime();
        let used = (0..rt.slots()).map(|slot| (slot, rt.slot_state(slot)));
        used.filter(|(_, state)| state.1 == Some(rt.me())).map(|(slot, state)| (slot, state.0)).collect()
    }

    /// After an event, or before one: it may be the other's turn.
    pub fn pass(&self, me: usize) {
        let mut state = self.lock();
        if state.mode == Mode::Playing {
            let odds = state.odds;
            if state.rng.below(odds) == 0 {
                self.hand_over(&mut state, me);
            }
            self.await_turn(state, me);
        }
    }

    /// `me` waits for the other; true if it is all the waiting that there is to do.
    pub fn waits(&self, me: usize) -> bool {
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
        let at = At::Wait(state.waits[me]);
        state.waits[me] += 1;
        if state.idle >= FOR_EVER {
            state.stuck = true;
            self.bell.notify_all();
        }
        if state.death.is_some_and(|death| (death.victim, death.at) == (me, at)) {
            drop(state);
            self.die(me);
        }
        self.hand_over(&mut state, me);
        self.await_turn(state, me);
        true
    }

    /// `me` dies here and now.
    pub fn die(&self, me: usize) -> ! {
        let left = self.uses(me);
        if let Some(bury) = self.bury.get() {
            bury(me);
        }
        let mut state = self.lock();
        (state.players[me], state.left, state.idle) = (Player::Dead, left, 0);
        self.hand_over(&mut state, me);
        while state.mode != Mode::Over {
            state = self.bell.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        drop(state);
        resume_unwind(Box::new(Gone));
    }

    fn hand_over(&self, state: &mut State, me: usize) {
        if state.players[1 - me] == Player::Plays {
            state.turn = 1 - me;
        }
        self.bell.notify_all();
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.turn != me && state.mode != Mode::Over {
            state = self.bell.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        if state.mode == Mode::Over {
            drop(state);
            self.leave();
        }
    }
}
