//! Events of regions, for listeners that act on them.

use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::meter::stutter::Stutter;

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The number of the region.
    pub region: u32,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// A member failed a request. The region may have answered it all the same.
    Failed { member: usize, error: Error },
    /// A member is not used any more. The region can lose so many further ones; `None`: it has lost content.
    Out { member: usize, tolerated: Option<usize>, why: String },
    /// A member is being put back, and so many bytes of it are left.
    Rebuilding { member: usize, left: u64 },
    /// A member is whole again. The region can lose so many further ones.
    Whole { member: usize, tolerated: usize },
    /// A member delivers much less than before for the same requests, and its peers do not.
    Stutters { member: usize, stutter: Stutter },
    /// It delivers as much as before again.
    Recovers { member: usize },
    /// So many earlier events are missing, since the listener was too slow.
    Missed(u64),
}

/// Events that wait for one listener; further ones are only counted.
const WAITING: usize = 1024;

/// The listeners.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<Listener>>>);

struct Listener {
    send: SyncSender<Event>,
    missed: u64,
}

impl Events {
    /// Events from now on.
    pub fn listen(&self) -> Receiver<Event> {
        let (send, receive) = sync_channel(WAITING);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Listener { send, missed: 0 });
        receive
    }

    /// Sends an event to all listeners. Never waits.
    pub fn tell(&self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|listener| listener.tell(event));
    }
}

impl Listener {
    /// False: the listener is gone.
    fn tell(&mut self, event: &Event) -> bool {
        if self.missed > 0 {
            let missed = Event { region: event.region, what: What::Missed(self.missed) };
            match self.send.try_send(missed) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {
                    self.missed += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.send.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_listener_gets_the_number_of_missed_events() {
        let events = Events::default();
        let listener = events.listen();
        drop(events.listen());
        let event = |left| Event { region: 1, what: What::Rebuilding { member: 0, left } };
        (0..WAITING as u64 + 5).for_each(|left| events.tell(&event(left)));
        assert_eq!(listener.try_iter().count(), WAITING);
        events.tell(&event(7));
        let events: Vec<What> = listener.try_iter().map(|event| event.what).collect();
        assert!(matches!(events[..], [What::Missed(5), What::Rebuilding { left: 7, .. }]), "{events:?}");
    }
}
