//! The exclusion of members that missed a write, and the operations that wait for it.
//!
//! A write counts when it is on all members in use. A member that misses it is excluded: it is out from that moment,
//! for reads too. The write is answered only when the others' labels record that durably:
//!
//! | step | what | else |
//! | --- | --- | --- |
//! | 1 | the member that failed is out in this process, which neither reads nor writes it any more | a read returns content older than the write |
//! | 2 | the labels of the others record that it is out, in a new epoch; durable | after a power cut it looks like the others, and an acknowledged write may be missing |
//! | 3 | the write is answered | |
//!
//! Step 2 waits for disks, so a thread of the region does it, and in order the tasks that wait for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use super::join::Failures;
use super::set::Set;
use crate::error::{Class, Error, Result};
use crate::events::What;
use crate::label::MemberState;

type Then = Box<dyn FnOnce(Result<()>) + Send>;

enum Task {
    Exclude {
        set: Arc<Set>,
        role: usize,
        why: String,
    },
    /// Another process has changed the members' states.
    Adopt {
        set: Arc<Set>,
        then: Then,
    },
    Then {
        set: Arc<Set>,
        result: Result<()>,
        then: Then,
    },
}

/// The thread. It ends with the region, when no task can come any more.
pub struct Exclusion {
    tasks: Mutex<Sender<Task>>,
    /// Members that are out here, and not yet in the labels. Increased while the states are locked.
    leaving: Arc<AtomicUsize>,
}

/// The states of the members at an instant.
pub struct View {
    pub states: Vec<MemberState>,
    /// A member is out here and not yet so in the labels: a write that it misses is answered afterwards.
    pub misses: bool,
}

impl View {
    /// Members in use.
    pub fn used(&self) -> Vec<usize> {
        (0..self.states.len()).filter(|role| self.states[*role] != MemberState::Out).collect()
    }
}

impl Exclusion {
    /// `name` is for the thread.
    pub fn new(name: &str) -> std::io::Result<Exclusion> {
        let (send, tasks) = channel::<Task>();
        let leaving = Arc::<AtomicUsize>::default();
        let theirs = leaving.clone();
        let keep = move || {
            let mut lost = None;
            for task in tasks {
                match task {
                    Task::Exclude { set, role, why } => {
                        lost = exclude(&set, role, why).err().or(lost);
                        theirs.fetch_sub(1, Ordering::SeqCst);
                    }
                    Task::Adopt { set, then } => then(set.adopt()),
                    Task::Then { set, result, then } => then(result.and_then(|()| match &lost {
                        None => Ok(()),
                        Some(e) => {
                            let what = format!("a member was lost, and the labels cannot say so: {e}");
                            Err(Error::new(Class::Media, &set.name, what))
                        }
                    })),
                }
            }
        };
        Builder::new().name(name.into()).spawn(keep)?;
        Ok(Exclusion { tasks: Mutex::new(send), leaving })
    }

    fn task(&self, task: Task) {
        // The thread runs as long as this exists.
        let _ = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).send(task);
    }

    /// Calls `then` once this process knows the members' states.
    pub fn adopt(&self, set: &Arc<Set>, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.task(Task::Adopt { set: set.clone(), then: Box::new(then) });
    }

    pub fn view(&self, set: &Set) -> View {
        let states = set.states();
        View { misses: self.leaving.load(Ordering::SeqCst) > 0, states: states.clone() }
    }

    /// Step 1; the thread does the rest. False: it was out, or the region cannot do without it.
    pub fn out(&self, set: &Arc<Set>, role: usize, why: &str) -> bool {
        let mut states = set.states();
        if states[role] == MemberState::Out || !set.can_miss(&states, &[role]) {
            return false;
        }
        states[role] = MemberState::Out;
        set.leaves(role);
        self.leaving.fetch_add(1, Ordering::SeqCst);
        // Before others see the state and wait for it: tasks are done in order.
        self.task(Task::Exclude { set: set.clone(), role, why: why.into() });
        true
    }

    /// All members have answered a request that each had to do, and these have failed: excludes them, and calls `then`
    /// when that is durable. If the region cannot do without all of them, or it was not their fault, none is excluded
    /// and the failure is the result. `misses` is that of the [`View`] by which the members were chosen.
    pub fn finish(
        &self,
        set: &Arc<Set>,
        misses: bool,
        failures: Failures,
        then: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let is_ours = |e: &Error| matches!(e.class, Class::Invalid | Class::NoSpace);
        let roles: Vec<usize> = failures.iter().map(|(role, _)| *role).collect();
        let blamed = failures.iter().find(|(_, e)| is_ours(e)).or_else(|| {
            // No copy is better than another.
            failures.first().filter(|_| !set.can_miss(&set.states(), &roles))
        });
        if let Some((_, e)) = blamed {
            return then(Err(e.clone()));
        }
        let mut result = Ok(());
        for (role, e) in &failures {
            set.set_silent(*role, e.class == Class::Timeout);
            let is_out = self.out(set, *role, &e.to_string()) || set.states()[*role] == MemberState::Out;
            if !is_out {
                result = Err(e.clone());
            }
        }
        match misses || !failures.is_empty() {
            true => self.task(Task::Then { set: set.clone(), result, then: Box::new(then) }),
            false => then(result),
        }
    }
}

/// Step 2.
fn exclude(set: &Set, role: usize, why: String) -> Result<()> {
    let changed = set.exclude(role);
    set.tell(What::Out { member: role, tolerated: set.tolerated(), why });
    changed
}
