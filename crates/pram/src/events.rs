//! Notifications to the process that caches: a ring of events in the runtime file.
//!
//! One session at a time watches: the mount of the pool, whose kernel caches. Processes that work on the memory
//! directly cache nothing. A publisher writes an event and waits until the watcher has acted on it, so that no cache is
//! stale once the operation has returned. The watcher itself publishes nothing and never waits. Publishers notice its
//! death.

use std::sync::atomic::{fence, Ordering};

use crate::error::{Error, Result};
use crate::runtime::{wait, wake, EVENT, H_EVENT_HEAD, H_EVENT_WAKEUP, RING, S_CURSOR, S_CURSOR_WAKEUP, S_LEFT};
use crate::session::Session;

/// Bytes of an event before its payload: sequence, two words, length.
const HEAD: u64 = 32;
/// Longest payload of an event, bytes.
pub const PAYLOAD: usize = (EVENT - HEAD) as usize;

/// How long a publisher sleeps at a time, in nanoseconds, while the watcher does not move.
const ROUND: i64 = 1_000_000;
/// Rounds without a move until publishers leave the watcher behind: a stopped or stuck watcher must not stop the pool.
/// It learns of the event when it goes on; until then no publisher waits for it again.
const PATIENCE: u32 = 5000;
/// Rounds between two checks that the watcher is alive.
const PULSE: u32 = 50;

/// Something that others may have cached has changed; its meaning is the layer above's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: u64,
    pub key: u64,
    pub payload: Vec<u8>,
}

/// A notification, as the watcher receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Event(Event),
    /// So many events happened, but their content is lost: their publisher died, or the ring has gone round since.
    Lost(u64),
    /// Nothing for a while.
    Idle,
}

impl Seen {
    /// The number of events, for the next call of [`next_event`](Session::next_event).
    pub fn events(&self) -> u64 {
        match self {
            Seen::Idle => 0,
            Seen::Event(_) => 1,
            Seen::Lost(events) => *events,
        }
    }
}

impl Session {
    /// The other session that watches, if one does.
    #[inline(always)]
    pub(crate) fn watcher(&self) -> Option<u32> {
        self.runtime().watcher().filter(|n| *n != self.runtime().me())
    }

    /// Does another process watch?
    #[inline(always)]
    pub fn is_watched(&self) -> bool {
        self.watcher().is_some()
    }

    /// Does the watcher hold references to `key`?
    pub fn is_cached(&self, key: u64) -> bool {
        fence(Ordering::SeqCst);
        self.watcher().is_some_and(|n| self.runtime().holds(n, key))
    }

    /// How many events there have been.
    pub fn events(&self) -> u64 {
        self.runtime().header(H_EVENT_HEAD).load(Ordering::Acquire)
    }

    /// Announces a change of the object with this key, before anybody can see the change.
    /// [`end_change`](Self::end_change) follows once the watcher has the notification. In between, the watcher may see
    /// a change that its cache lacks.
    pub fn begin_change(&self, key: u64) {
        self.runtime().begin_change(key);
    }

    pub fn end_change(&self, key: u64) {
        self.runtime().end_change(key);
    }

    /// Is another process changing the object with this key, or with one like it, without having notified us yet?
    #[inline(always)]
    pub fn is_changing(&self, key: u64) -> bool {
        fence(Ordering::SeqCst);
        self.runtime().is_changing(key)
    }

    /// Notifies the watching process, and waits until it has acted. Call it without locks.
    pub fn publish(&self, event: &Event) -> Result<()> {
        let Some(watcher) = self.watcher() else { return Ok(()) };
        let rt = self.runtime();
        let number = rt.header(H_EVENT_HEAD).fetch_add(1, Ordering::AcqRel);
        let at = rt.events_at() + number % RING * EVENT;
        let len = event.payload.len().min(PAYLOAD);
        rt.word(at).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (i, w) in [event.kind, event.key, len as u64].iter().enumerate() {
            rt.word(at + 8 + i as u64 * 8).store(*w, Ordering::Relaxed);
        }
        rt.map().write(at + HEAD, &event.payload[..len])?;
        rt.word(at).store(number + 1, Ordering::Release);
        rt.half(H_EVENT_WAKEUP).fetch_add(1, Ordering::AcqRel);
        wake(rt.half(H_EVENT_WAKEUP));
        self.await_watcher(watcher, number)
    }

    fn await_watcher(&self, n: u32, number: u64) -> Result<()> {
        let rt = self.runtime();
        let (left, cursor) = (rt.session(n, S_LEFT), || rt.session(n, S_CURSOR).load(Ordering::Acquire));
        let wakeup = rt.session_half(n, S_CURSOR_WAKEUP);
        let mut still = 0;
        while rt.watcher() == Some(n) {
            let rung = wakeup.load(Ordering::Acquire);
            let stands = cursor();
            if stands > number || left.load(Ordering::Relaxed) == stands + 1 {
                break;
            }
            wait(wakeup, rung, ROUND);
            still = if wakeup.load(Ordering::Acquire) == rung { still + 1 } else { 0 };
            if still % PULSE == PULSE - 1 && !self.is_alive(n) {
                self.reap()?;
            }
            if still >= PATIENCE {
                tracing::warn!("the mount does not take notice of changes; going on without it");
                if cursor() == stands {
                    left.store(stands + 1, Ordering::Relaxed);
                }
                break;
            }
        }
        Ok(())
    }

    /// Makes this process the watcher, if it is not already. Fails while another process watches.
    pub fn start_watching(&self) -> Result<()> {
        let rt = self.runtime();
        if rt.watcher() == Some(rt.me()) {
            return Ok(());
        }
        rt.session(rt.me(), S_CURSOR).store(rt.header(H_EVENT_HEAD).load(Ordering::Acquire), Ordering::Release);
        // The death of a watcher is noticed late.
        if rt.watcher().is_some_and(|n| !self.is_alive(n)) {
            self.reap()?;
        }
        match rt.begin_watch(rt.me()) {
            true => Ok(()),
            false => Err(Error::Unusable("another process gets notifications of changes already".into())),
        }
    }

    pub fn stop_watching(&self) {
        let rt = self.runtime();
        rt.end_watch(rt.me());
        // Wakes publishers that wait for us.
        let wakeup = rt.session_half(rt.me(), S_CURSOR_WAKEUP);
        wakeup.fetch_add(1, Ordering::AcqRel);
        wake(wakeup);
    }

    /// The next event of another process, or idle after a tenth of a second. `acted`: the number of events that the
    /// last call returned; they have been acted on, and count as seen from now on.
    pub fn next_event(&self, acted: u64) -> Result<Seen> {
        let rt = self.runtime();
        let me = rt.me();
        let cursor = rt.session(me, S_CURSOR);
        if acted > 0 {
            cursor.fetch_add(acted, Ordering::AcqRel);
            let wakeup = rt.session_half(me, S_CURSOR_WAKEUP);
            wakeup.fetch_add(1, Ordering::AcqRel);
            wake(wakeup);
        }
        let mut misses = 0;
        loop {
            let wakeup = rt.half(H_EVENT_WAKEUP);
            let rung = wakeup.load(Ordering::Acquire);
            let number = cursor.load(Ordering::Acquire);
            if number == rt.header(H_EVENT_HEAD).load(Ordering::Acquire) {
                wait(wakeup, rung, 100_000_000);
                if number == rt.header(H_EVENT_HEAD).load(Ordering::Acquire) {
                    return Ok(Seen::Idle);
                }
                continue;
            }
            // All missed events are reported as one: after a long stop, the watcher would never catch up one by one.
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
                wait(wakeup, rung, 5_000_000);
                continue;
            }
            let word = |i: u64| rt.word(at + 8 + i * 8).load(Ordering::Relaxed);
            let mut payload = vec![0; (word(2) as usize).min(PAYLOAD)];
            rt.map().copy_out(at + HEAD, &mut payload)?;
            let event = Event { kind: word(0), key: word(1), payload };
            fence(Ordering::Acquire);
            // Publishers may have gone round the whole ring meanwhile.
            let whole = rt.word(at).load(Ordering::Relaxed) == number + 1;
            return Ok(if whole { Seen::Event(event) } else { Seen::Lost(1) });
        }
    }
}
