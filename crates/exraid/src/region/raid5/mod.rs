//! A region whose content lies striped over several disks, with parity: it can do without any one of them.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `layout` | where content and parity lie |
//! | `read` | reads, from the member that has the content or from all others |
//! | [`write`] | whole stripes; flush, discard, reserve |
//! | `partial` | parts of a stripe |
//! | `log` | intents: writes to parts of stripes, made durable first |
//! | `intent_table` | the state of the intents, common to all processes |
//! | `retire` | retiring intents |
//! | `replay` | finishing intents found when the region is opened |
//! | `rebuild` | putting a member back |
//! | `xor` | parity |
//! | [`raw`] | the bytes of the log of intents |
//!
//! A *column* is the bytes at one position in all chunks of a stripe. It is *even* if its byte of parity is the parity
//! of the others. The byte of a missing member follows from that.
//!
//! - P1. Content that was written, and is not being written, lies in even columns: at once, and after a power cut once
//!   the region has been opened. Other columns may hold anything.
//! - P2. So a write makes every column even that it touches, from content alone and never from the old parity, which
//!   may be wrong where nothing was written yet or a write was torn.
//! - P3. A write of whole stripes changes only the content that it writes, so it goes straight to the members, and may
//!   be torn. A write of a part of a stripe is durable as an intent before the first member is touched: torn, and with
//!   a disk lost by then, it would destroy content that it does not write.
//! - P4. Each operation that changes a stripe, or computes one member's content from the others, holds a range lock on
//!   it.
//! - P5. Before a stripe is written as a whole its intents are retired, durably: replayed later, they would put back
//!   older content.
//!
//! A member that is being rebuilt is written like the others and read where it has been rebuilt. A partial write to a
//! stripe beyond that writes all columns of its range to the member, so that they are even.
//!
//! Several processes may use such a region at a time, where they [share](super::shared_state) it: range locks hold
//! among them, and they have one log of intents. The next process that locks a stripe finishes the writes of a dead
//! process to it.

mod intent_table;
mod layout;
mod log;
mod partial;
pub mod raw;
mod read;
mod rebuild;
mod replay;
mod retire;
mod write;
mod xor;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::exclusion::Exclusion;
use super::join::{Failures, Join, Without};
use super::range_locks::{Preparation, RangeLock, RangeLocks};
use super::rebuild::Going;
use super::set::{Manner, Set};
use super::{shared_state::SharedState, Begin, Map};
use crate::device::{Answer, Device, Done, Kind, Op};
use crate::error::{Class, Error, OpenError, Result};
use crate::label::{MemberState, Uuid};
use crate::sys::memory::{Aligned, Buffers};
use intent_table::IntentTable;
use layout::Geometry;
use log::Log;

pub use raw::MOST_CHUNK;

pub struct Raid5 {
    core: Arc<Core>,
    /// For the range locks, as long as the region exists.
    preparation: OnceLock<Arc<UpToDate>>,
}

/// No process takes a lock by outdated states, or before the writes of a dead process are finished.
struct UpToDate(Array);

impl Preparation for UpToDate {
    fn is_ready(&self, stripes: &Range<u64>) -> bool {
        self.0.set.is_current() && self.0.core.intent_table.busy(stripes).is_empty()
    }

    fn prepare(&self, stripes: &Range<u64>) -> Result<()> {
        self.0.set.adopt()?;
        match self.0.core.intent_table.busy(stripes).is_empty() {
            true => Ok(()),
            false => self.0.mend_for(stripes),
        }
    }
}

struct Core {
    geometry: Geometry,
    range_locks: Arc<RangeLocks>,
    intent_table: IntentTable,
    log: Log,
    exclusion: Exclusion,
}

/// The region as its requests use it.
#[derive(Clone)]
struct Array {
    set: Arc<Set>,
    core: Arc<Core>,
}

impl Raid5 {
    pub fn new(members: usize, chunk: u32, shared_state: Option<Arc<SharedState>>) -> std::io::Result<Raid5> {
        let geometry = Geometry { members: members as u64, chunk: chunk.into() };
        let intent_table = IntentTable::new(geometry.slots(), shared_state.clone());
        let (range_locks, log, exclusion) =
            (Arc::new(RangeLocks::new("range locks", shared_state)?), Log::new(), Exclusion::new("raid5")?);
        Ok(Raid5 {
            core: Arc::new(Core { geometry, range_locks, intent_table, log, exclusion }),
            preparation: OnceLock::new(),
        })
    }

    fn array(&self, set: &Arc<Set>) -> Array {
        Array { set: set.clone(), core: self.core.clone() }
    }
}

impl Map for Raid5 {
    fn size(&self, set: &Set) -> u64 {
        let geometry = &self.core.geometry;
        geometry.stripes(set.share) * geometry.stripe()
    }

    fn stripe(&self) -> u64 {
        self.core.geometry.stripe()
    }

    fn least(&self) -> u64 {
        self.core.geometry.chunks(0..1).end
    }

    fn origin(&self, range: Range<u64>) -> Range<u64> {
        let geometry = &self.core.geometry;
        if range.end <= geometry.data_at() {
            return 0..0;
        }
        let stripes = geometry.stripes_of(&(range.start.max(geometry.data_at())..range.end));
        stripes.start * geometry.stripe()..stripes.end * geometry.stripe()
    }

    fn copies(&self, _: &Set) -> usize {
        2
    }

    fn start(&self, set: &Arc<Set>, begin: Begin) -> Result<(), OpenError> {
        let array = self.array(set);
        let preparation: Arc<dyn Preparation> =
            self.preparation.get_or_init(|| Arc::new(UpToDate(array.clone()))).clone();
        self.core.range_locks.prepare_by(Arc::downgrade(&preparation));
        if begin.is_new {
            (0..set.len()).try_for_each(|role| array.reserve_log(role))?;
        }
        match begin.is_first {
            true => Ok(array.replay()?),
            false => Ok(()),
        }
    }

    fn submit(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        let array = self.array(set);
        if !set.is_current() {
            let raid5 = Raid5 { core: self.core.clone(), preparation: OnceLock::new() };
            return array.adopt(op, done, move |set, op, done| raid5.submit(set, op, manner, done));
        }
        match op.kind() {
            Kind::Read => array.read(op, manner, done),
            _ if set.tolerated().is_none() => {
                let e = array.gone(&op.to_string());
                done(Answer { result: Err(e), buffers: op.into_buffers() });
            }
            _ => array.write(op, manner, done),
        }
    }

    fn submit_copy(&self, set: &Arc<Set>, copy: usize, op: Op, manner: Manner, done: Done) {
        let array = self.array(set);
        if !set.is_current() {
            let raid5 = Raid5 { core: self.core.clone(), preparation: OnceLock::new() };
            return array.adopt(op, done, move |set, op, done| raid5.submit_copy(set, copy, op, manner, done));
        }
        match copy {
            0 => array.read_straight(op, manner, done),
            1 => array.read_computed(op, manner, done),
            _ => {
                let e = Error::new(Class::Gone, &set.name, format!("{op}: there is no copy {copy}"));
                done(Answer { result: Err(e), buffers: op.into_buffers() });
            }
        }
    }

    fn rebuild(
        &self,
        set: &Arc<Set>,
        role: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        live: &mut dyn FnMut() -> Vec<Range<u64>>,
        going: &mut Going<'_>,
    ) -> Result<bool> {
        self.array(set).restore(role, spare, live, going)
    }
}

/// Memory filled by several members, by role.
type Filled = Vec<(usize, Arc<Aligned>)>;

impl Array {
    fn geometry(&self) -> &Geometry {
        &self.core.geometry
    }

    /// Goes on with a request once this process knows the members' states.
    fn adopt(&self, op: Op, done: Done, then: impl FnOnce(&Arc<Set>, Op, Done) + Send + 'static) {
        let set = self.set.clone();
        self.core.exclusion.adopt(&self.set, move |adopted| match adopted {
            Ok(()) => then(&set, op, done),
            Err(e) => done(Answer { result: Err(e), buffers: op.into_buffers() }),
        });
    }

    /// The error for `what`, which too many missing members make impossible.
    fn gone(&self, what: &str) -> Error {
        let states = self.set.states().clone();
        let is_gone = |role: &usize| states[*role] == MemberState::Out || self.set.is_lost(*role);
        let gone: Vec<String> = (0..states.len()).filter(is_gone).map(|role| (role + 1).to_string()).collect();
        let what = match &gone[..] {
            [] => format!("{what}: a disk is being rebuilt and has not got it yet"),
            gone => format!("{what}: disk {} is out, and the others do not have it", gone.join(" and ")),
        };
        Error::new(Class::Gone, &self.set.name, what)
    }

    /// Does a member have its content in this range?
    fn has(states: &[MemberState], role: usize, range: &Range<u64>) -> bool {
        match states[role] {
            MemberState::Whole => true,
            MemberState::Out => false,
            MemberState::Rebuilding { rebuilt } => range.end <= rebuilt,
        }
    }

    /// Notes that a member has failed a request which others can do for it.
    fn blame(&self, role: usize, e: &Error) {
        if e.class == Class::Gone && !self.core.exclusion.out(&self.set, role, &e.to_string()) {
            self.lose(role);
        }
    }

    fn lose(&self, role: usize) {
        if self.set.states()[role] != MemberState::Out {
            self.set.lose(role);
        }
    }

    /// Excludes members that failed a request to all; see [`Exclusion::finish`].
    fn finish(&self, misses: bool, failures: Failures, then: impl FnOnce(Result<()>) + Send + 'static) {
        let (array, gone) = (self.clone(), |e: &Error| e.class == Class::Gone);
        let gone: Vec<usize> = failures.iter().filter(|(_, e)| gone(e)).map(|(role, _)| *role).collect();
        self.core.exclusion.finish(&self.set, misses, failures, move |result| {
            if result.is_err() {
                gone.into_iter().for_each(|role| array.lose(role));
            }
            then(result);
        });
    }

    /// Requests to several members at a time, of memory that is not the client's. All are sent before the first is
    /// waited for; `then` gets the failures, by role.
    fn send_all(&self, ops: Vec<(usize, Op)>, manner: Manner, then: impl FnOnce(Failures) + Send + 'static) {
        self.send_to(ops, self.set.without(manner), manner, then);
    }

    fn send_to(
        &self,
        ops: Vec<(usize, Op)>,
        without: Without,
        manner: Manner,
        then: impl FnOnce(Failures) + Send + 'static,
    ) {
        if ops.is_empty() {
            return then(Vec::new());
        }
        let roles = ops.iter().map(|(role, _)| *role).collect();
        let join = Join::without_late(roles, without, None, move |failures, _| then(failures));
        for (role, op) in ops {
            self.set.send_with_late(role, op, manner, join.part(role, false), join.late(role));
        }
    }

    /// Reads the same stretch of several members.
    fn gather(
        &self,
        roles: &[usize],
        range: Range<u64>,
        without: Without,
        manner: Manner,
        then: impl FnOnce(Result<Filled, Failures>) + Send + 'static,
    ) {
        let len = (range.end - range.start) as usize;
        let filled: Filled = roles.iter().map(|role| (*role, Aligned::zeroed(len))).collect();
        let read = |memory: &Arc<Aligned>| Op::Read { at: range.start, into: Buffers::whole(memory) };
        let ops = filled.iter().map(|(role, memory)| (*role, read(memory))).collect();
        self.send_to(ops, without, manner, move |failures| match failures.is_empty() {
            true => then(Ok(filled)),
            false => then(Err(failures)),
        });
    }

    /// Computes a member's content from all the others. The caller holds a lock on these stripes.
    fn compute(
        &self,
        role: usize,
        range: Range<u64>,
        manner: Manner,
        then: impl FnOnce(Result<Vec<u8>>) + Send + 'static,
    ) {
        let states = self.set.states().clone();
        let others: Vec<usize> = (0..states.len()).filter(|other| *other != role).collect();
        if !others.iter().all(|other| Array::has(&states, *other, &range)) {
            return then(Err(self.gone(&format!("{} bytes of disk {}", range.end - range.start, role + 1))));
        }
        let (array, len) = (self.clone(), (range.end - range.start) as usize);
        // All of them are needed.
        let without = Without { can: Box::new(|_| false), ..self.set.without(manner) };
        self.gather(&others, range, without, manner, move |filled| match filled {
            Ok(filled) => {
                let mut found = vec![0; len];
                let all: Vec<Buffers> = filled.iter().map(|(_, memory)| Buffers::whole(memory)).collect();
                xor::sum(&all, &mut found);
                then(Ok(found));
            }
            Err(failures) => {
                failures.iter().for_each(|(role, e)| array.blame(*role, e));
                // One that failed, or else too many are missing.
                let first = failures.into_iter().next().map(|(_, e)| e);
                then(Err(first.unwrap_or_else(|| array.gone("a read"))));
            }
        });
    }
}
