//! The end of a session.

use super::attach::SessionLock;
use super::Session;
use crate::mem::byte_lock;

impl Session {
    /// Gives back unused memory, marks the memory as closed, and lets the backing know. With nobody else attached.
    fn close(&self) {
        if let Err(e) = self.free_ended() {
            tracing::error!("freeing blocks: {e}");
        }
        // A block that is not free yet becomes a leak: no process is left to free it.
        if self.rt.any_put_off() {
            self.rt.set_leaks_pending(true);
        }
        if let Err(e) = self.give_all_back() {
            tracing::error!("giving back memory: {e}");
        }
        if !self.rt.leaks_pending() {
            let _ = self.set_open(0);
        }
        let Some(backing) = &self.backing else { return };
        if let Err(e) = backing.close(self) {
            tracing::error!("closing the pool: {e}; its memory holds what could not be written");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let me = self.rt.me();
        // What a child of `fork` has left of its parent's: the session goes on there.
        if self.expect_own().is_err() {
            return;
        }
        let Some(shared) = &self.shared else { return self.close() };
        if self.lock_shared(shared).is_err() {
            return;
        }
        self.rt.clear_refs(me);
        // Else the last process, if it died, would leave the memory open.
        let reaped = self.reap_locked();
        if !self.rt.any_other() {
            // A guest leaves the memory as it is: it writes no backing.
            if self.guest.is_none() {
                self.close();
            }
            let _ = rustix::fs::unlink(&shared.runtime);
        } else if let Err(e) = reaped {
            tracing::error!("cleaning up after a process that died: {e}");
            // The next process to attach finds the dead one's session and the mark "open".
            self.rt.set_leaks_pending(true);
        }
        self.rt.stop_attending(me, false);
        self.memory.step();
        self.rt.leave_session(me);
        self.memory.step();
        // While the `flock` keeps others from taking the number.
        match std::mem::replace(&mut self.lock, SessionLock::Common) {
            SessionLock::Common => _ = shared.file.lend().and_then(|file| byte_lock::release(file, me)),
            own => drop(own),
        }
        shared.unlock();
    }
}
