//! What one process tells the others that cache: a ring of events in the runtime segment.
//!
//! A publisher writes an event and waits until every watching session has seen it, so that nobody who
//! learns that an operation is done can find a stale cache. Watchers that die are noticed.

use std::sync::atomic::{fence, Ordering};

use crate::error::Result;
use crate::runtime::{wait, wake, H_EVENT_BELL, H_EVENT_HEAD, S_ACTING, S_CURSOR, S_CURSOR_BELL, S_LEFT, S_PUBLISHING};
use crate::session::Session;

/// Events in the ring.
pub(crate) const RING: u64 = 1024;
/// Bytes per event: sequence, origin, two words, length, payload.
pub(crate) const EVENT: u64 = 320;
const HEAD: u64 = 40;
/// Longest payload of an event, bytes.
pub const PAYLOAD: usize = (EVENT - HEAD) as usize;

/// How long a publisher sleeps at a time, in nanoseconds, while a watcher does not move.
const ROUND: i64 = 1_000_000;
/// Rounds without a move until a watcher is left behind: one that is stopped or stuck must not stop the pool; it
/// learns of the event when it goes on, and until then nobody waits for it again.
const PATIENCE: u32 = 5000;
/// Rounds from one look to the next whether a watcher is alive.
const PULSE: u32 = 50;
/// Rounds without a move until a knot is believed, see [`Session::is_knotted`]: where our own watcher acts on the very
/// key that we publish, and where it does not. Counted in rounds, not in time: where many want the CPU, watchers
/// that merely wait for it get it while the publisher does.
const KNOT: (u32, u32) = (1, 30);
/// What a watcher acts on that knows no key.
const NO_KEY: u64 = u64::MAX;

/// Something that others may have cached has changed; its meaning is the layer above's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: u64,
    pub key: u64,
    pub payload: Vec<u8>,
}

/// What a watcher receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Event(Event),
    /// So many events happened, but what they were is lost: their publisher died, or the ring has gone round since.
    Lost(u64),
    /// Nothing for a while.
    Idle,
}

impl Seen {
    /// How many events that is, for the next call of [`next_event`](Session::next_event).
    pub fn events(&self) -> u64 {
        match self {
            Seen::Idle => 0,
            Seen::Event(_) => 1,
            Seen::Lost(events) => *events,
        }
    }
}

impl Session {
    /// Does any other process watch?
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        let watchers = self.runtime().watchers().load(Ordering::Acquire);
        watchers != 0 && watchers != 1 << self.runtime().me()
    }

    /// Does session `n` watch?
    pub fn is_watching(&self, n: u32) -> bool {
        self.runtime().watchers().load(Ordering::Acquire) >> n & 1 != 0
    }

    /// Other sessions that watch and hold references to `key`.
    pub fn watchers_of(&self, key: u64) -> bool {
        let rt = self.runtime();
        rt.live().any(|n| n != rt.me() && self.is_watching(n) && rt.refs(n, key).load(Ordering::Acquire) > 0)
    }

    /// Announces a change of what has this key, before anybody can see it: until [`end_change`](Self::end_change), which
    /// is to follow when every watcher has been told, who sees it may see what its cache does not know of.
    pub fn begin_change(&self, key: u64) {
        self.runtime().changing(self.runtime().me(), key).fetch_add(1, Ordering::SeqCst);
    }

    pub fn end_change(&self, key: u64) {
        self.runtime().changing(self.runtime().me(), key).fetch_sub(1, Ordering::SeqCst);
    }

    /// Does another process change what has this key, and has not told everybody yet? Perhaps what has another one.
    #[inline(always)]
    pub fn is_changing(&self, key: u64) -> bool {
        let rt = self.runtime();
        fence(Ordering::SeqCst);
        rt.live().any(|n| n != rt.me() && rt.changing(n, key).load(Ordering::SeqCst) != 0)
    }

    /// Tells every watching process, and waits until it knows. Call it without locks.
    pub fn publish(&self, event: &Event) -> Result<()> {
        let rt = self.runtime();
        let number = rt.header(H_EVENT_HEAD).fetch_add(1, Ordering::AcqRel);
        let at = rt.events_at() + number % RING * EVENT;
        let len = event.payload.len().min(PAYLOAD);
        let words = [u64::from(rt.me()), event.kind, event.key, len as u64];
        rt.word(at).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (i, w) in words.iter().enumerate() {
            rt.word(at + 8 + i as u64 * 8).store(*w, Ordering::Relaxed);
        }
        rt.map().write(at + HEAD, &event.payload[..len])?;
        rt.word(at).store(number + 1, Ordering::Release);
        rt.half(H_EVENT_BELL).fetch_add(1, Ordering::AcqRel);
        wake(rt.half(H_EVENT_BELL));
        let waiting = rt.session(rt.me(), S_PUBLISHING);
        waiting.fetch_add(1, Ordering::AcqRel);
        let told = rt.live().filter(|n| *n != rt.me()).try_for_each(|n| self.await_watcher(n, number, event.key));
        waiting.fetch_sub(1, Ordering::AcqRel);
        told
    }

    fn await_watcher(&self, n: u32, number: u64, key: u64) -> Result<()> {
        let rt = self.runtime();
        let (left, cursor) = (rt.session(n, S_LEFT), || rt.session(n, S_CURSOR).load(Ordering::Acquire));
        let (bell, ours) = (rt.session_half(n, S_CURSOR_BELL), rt.session_half(rt.me(), S_CURSOR_BELL));
        let rings = || (bell.load(Ordering::Acquire), ours.load(Ordering::Acquire));
        let knot = |n| if self.is_knotted(n) { self.knot_after(key) } else { u32::MAX };
        let (mut still, mut knotted) = (0, 0);
        while self.is_watching(n) {
            let (rung, limit) = (rings(), knot(n));
            let stands = cursor();
            if stands > number || left.load(Ordering::Relaxed) == stands + 1 {
                break;
            }
            wait(bell, rung.0, ROUND);
            let now = rings();
            still = if now.0 == rung.0 { still + 1 } else { 0 };
            knotted = if now == rung && limit < u32::MAX { knotted + 1 } else { 0 };
            if knotted >= limit {
                break;
            }
            if still % PULSE == PULSE - 1 && !self.is_alive(n) {
                self.reap()?;
            }
            if still >= PATIENCE {
                tracing::warn!("session {n} does not take notice of changes; going on without it");
                if cursor() == stands {
                    left.store(stands + 1, Ordering::Relaxed);
                }
                break;
            }
        }
        Ok(())
    }

    /// May session `n` wait for us while we wait for it? A watcher may have to wait, in its kernel, for the directory
    /// or the page that a request of its own mount holds, and that request for another mount's watcher. Such a circle
    /// passes through each of its mounts' watchers: both ours and the other's are in the midst of an event then. Whoever
    /// goes on first lets the other's notice through at once.
    fn is_knotted(&self, n: u32) -> bool {
        let rt = self.runtime();
        let acts = |n| rt.session(n, S_ACTING).load(Ordering::Acquire) != 0;
        acts(rt.me()) && acts(n) && rt.session(n, S_PUBLISHING).load(Ordering::Acquire) > 0
    }

    /// How many rounds of it are too many for who publishes `key`.
    fn knot_after(&self, key: u64) -> u32 {
        let rt = self.runtime();
        match rt.session(rt.me(), S_ACTING).load(Ordering::Acquire) == acting(key) {
            true => KNOT.0,
            false => KNOT.1,
        }
    }

    /// From now on this process is told, if it is not already.
    pub fn start_watching(&self) {
        let rt = self.runtime();
        let me = rt.me();
        if self.is_watching(me) {
            return;
        }
        rt.session(me, S_CURSOR).store(rt.header(H_EVENT_HEAD).load(Ordering::Acquire), Ordering::Release);
        rt.watchers().fetch_or(1 << me, Ordering::SeqCst);
    }

    pub fn stop_watching(&self) {
        let rt = self.runtime();
        rt.session(rt.me(), S_ACTING).store(0, Ordering::Release);
        rt.watchers().fetch_and(!(1 << rt.me()), Ordering::SeqCst);
        rt.half(H_EVENT_BELL).fetch_add(1, Ordering::AcqRel);
        wake(rt.half(H_EVENT_BELL));
    }

    /// The next event of another process, or idle after a tenth of a second. `acted`: so many events, as the last call
    /// returned them, have been acted on, and count as seen from now on.
    pub fn next_event(&self, acted: u64) -> Result<Seen> {
        let rt = self.runtime();
        let acts = rt.session(rt.me(), S_ACTING);
        acts.store(0, Ordering::Release);
        let seen = self.await_event(acted)?;
        match &seen {
            Seen::Idle => {}
            Seen::Event(event) => acts.store(acting(event.key), Ordering::Release),
            Seen::Lost(_) => acts.store(NO_KEY, Ordering::Release),
        }
        Ok(seen)
    }

    fn await_event(&self, acted: u64) -> Result<Seen> {
        let rt = self.runtime();
        let me = rt.me();
        let cursor = rt.session(me, S_CURSOR);
        if acted > 0 {
            cursor.fetch_add(acted, Ordering::AcqRel);
            let bell = rt.session_half(me, S_CURSOR_BELL);
            bell.fetch_add(1, Ordering::AcqRel);
            wake(bell);
        }
        let mut misses = 0;
        loop {
            let bell = rt.half(H_EVENT_BELL);
            let rung = bell.load(Ordering::Acquire);
            let number = cursor.load(Ordering::Acquire);
            if number == rt.header(H_EVENT_HEAD).load(Ordering::Acquire) {
                wait(bell, rung, 100_000_000);
                if number == rt.header(H_EVENT_HEAD).load(Ordering::Acquire) {
                    return Ok(Seen::Idle);
                }
                continue;
            }
            // All that have gone by are one: whoever was stopped for long would be busy with them for ever.
            let passed = rt.header(H_EVENT_HEAD).load(Ordering::Acquire) - number;
            if passed > RING {
                return Ok(Seen::Lost(passed));
            }
            let at = rt.events_at() + number % RING * EVENT;
            if rt.word(at).load(Ordering::Acquire) != number + 1 {
                misses += 1;
                if misses > 20 {
                    return Ok(Seen::Lost(1));
                }
                wait(bell, rung, 5_000_000);
                continue;
            }
            let word = |i: u64| rt.word(at + 8 + i * 8).load(Ordering::Relaxed);
            if word(0) == u64::from(me) {
                cursor.fetch_add(1, Ordering::AcqRel);
                continue;
            }
            let mut payload = vec![0; (word(3) as usize).min(PAYLOAD)];
            rt.map().copy_out(at + HEAD, &mut payload)?;
            let event = Event { kind: word(1), key: word(2), payload };
            fence(Ordering::Acquire);
            // Overtaken by a whole ring while reading.
            let whole = rt.word(at).load(Ordering::Relaxed) == number + 1;
            return Ok(if whole { Seen::Event(event) } else { Seen::Lost(1) });
        }
    }
}

/// The word of who acts on an event about `key`.
fn acting(key: u64) -> u64 {
    key.saturating_add(1)
}
