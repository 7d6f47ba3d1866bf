//! Turns: who may change which stripes.
//!
//! Whatever changes a stripe, or needs its content and its parity to belong together, has a turn for it. Turns come in the
//! order in which they were asked for, as far as they exclude one another; each asks once for all stripes that it
//! needs, so nobody waits in a circle.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Go = Box<dyn FnOnce(Turn) + Send>;

#[derive(Default)]
pub struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// Those that have a turn, and those that wait for one, by order.
    asked: BTreeMap<u64, Asked>,
}

struct Asked {
    stripes: Range<u64>,
    is_shared: bool,
    /// Gone once it has its turn.
    go: Option<Go>,
}

/// A turn; it ends when this is dropped.
pub struct Turn {
    turns: Arc<Turns>,
    number: u64,
}

impl Asked {
    fn excludes(&self, other: &Asked) -> bool {
        let overlap = self.stripes.start < other.stripes.end && other.stripes.start < self.stripes.end;
        overlap && !(self.is_shared && other.is_shared)
    }
}

impl State {
    fn can_go(&self, number: u64, one: &Asked) -> bool {
        !self.asked.range(..number).any(|(_, before)| before.excludes(one))
    }

    /// Those that can go now and have not gone yet.
    fn ready(&mut self) -> Vec<(u64, Go)> {
        let waits = self.asked.iter().filter(|(_, asked)| asked.go.is_some());
        let ready: Vec<u64> = waits.filter(|(number, one)| self.can_go(**number, one)).map(|(n, _)| *n).collect();
        let go = |number: u64| Some((number, self.asked.get_mut(&number)?.go.take()?));
        ready.into_iter().filter_map(go).collect()
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `go` when these stripes are free: perhaps at once, perhaps on the thread of whoever had them before. Those
    /// that share do not exclude one another.
    pub fn ask(self: &Arc<Turns>, stripes: Range<u64>, is_shared: bool, go: impl FnOnce(Turn) + Send + 'static) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.asked.insert(number, Asked { stripes, is_shared, go: Some(Box::new(go)) });
        self.go_on(state);
    }

    /// The same, for who can wait. Every turn comes.
    pub fn wait(self: &Arc<Turns>, stripes: Range<u64>) -> Option<Turn> {
        let (send, receive) = channel();
        self.ask(stripes, false, move |turn| {
            // Whoever asked waits for it.
            let _ = send.send(turn);
        });
        receive.recv().ok()
    }

    fn go_on(self: &Arc<Turns>, mut state: MutexGuard<'_, State>) {
        let ready = state.ready();
        drop(state);
        for (number, go) in ready {
            go(Turn { turns: self.clone(), number });
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.asked.remove(&self.number);
        self.turns.go_on(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_exclude_one_another_in_order() {
        let turns = Arc::<Turns>::default();
        let (send, receive) = channel();
        let ask = |name: char, stripes: Range<u64>, is_shared| {
            let send = send.clone();
            turns.ask(stripes, is_shared, move |turn| drop(send.send((name, turn))));
        };
        let gone = || receive.try_iter().collect::<Vec<_>>();
        let names = |turns: &[(char, Turn)]| turns.iter().map(|(name, _)| *name).collect::<String>();
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
}
