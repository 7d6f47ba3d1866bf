//! Regions: a disk, or several that are one to the client.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `set` | the disks of a region: their shares, speed, states, labels |
//! | `single` | one disk |
//! | `stripe` | content striped over several |
//! | `mirror` | the same content on several |
//! | [`raid5`] | content striped over several, with parity: one of them can be done without |
//! | `exclusion` | the exclusion of members that missed a write |
//! | `member_state` | whole, out, or being rebuilt |
//! | `rebuild` | putting a member back |
//! | [`throttle`] | when background work may use the region |
//! | `range_locks` | locks on stretches, among threads and processes |
//! | [`shared_state`] | locks and words that the processes of a region share |
//! | `join` | one request split into several |
//! | `assemble` | makes a region of disks and their labels; finds missing, stale and diverged ones |
//!
//! A region is a [`Device`] of its content, from 0 on, and tells more than a device does: its members, how many it can
//! still lose ([`Region::tolerated`]), its speed and that of each member, and its events. By itself it does only the
//! work that its client could not do in time: it answers from another copy and excludes a member that missed a write.
//! The client, which knows which content is live, asks for everything else, such as rebuilding.
//!
//! Several processes may use a region at a time, if each opens it with the [shared state](open_shared): a process that
//! does not know the present states of the members reads the labels before it goes on. Otherwise one process at a time
//! uses it.
//!
//! A region adds to the contract of [`crate::device`]:
//! - R1. A write that is answered without an error is on all members in use; one that it missed is out, durably.
//! - R2. A read that one copy does not answer goes to the next. If the first still has the memory of the request (a
//!   timeout), the content is in other memory, which the answer carries.
//! - R3. Copies of content that was never written, or where a write failed, may differ.

mod assemble;
mod exclusion;
mod join;
mod member_state;
mod mirror;
pub mod raid5;
mod range_locks;
mod rebuild;
mod set;
pub mod shared_state;
mod single;
mod stripe;
pub mod throttle;

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{check, Answer, Device, Done, Op, Pending, Properties, Request, Whereabouts};
use crate::error::{Class, Error, OpenError, Result};
use crate::events::Event;
use crate::label::{Epoch, Layout, MemberState, Uuid, END};
use crate::meter::{Meter, Performance};
use rebuild::Going;
use set::{Manner, Set};
use throttle::{Background, Throttle};

pub use assemble::{look, make, open, open_shared, Sharing};
pub use set::Finder;
pub use shared_state::Common;

/// The status of a member.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    pub device: Uuid,
    /// `None`: it is missing.
    pub name: Option<Arc<str>>,
    pub state: MemberState,
    pub performance: Performance,
}

/// Each region has 2 to the power of this addresses: 64 TiB.
pub const SHIFT: u32 = 46;

/// The interface of a region to its client.
pub trait Region: Device {
    /// Its number in the pool.
    fn number(&self) -> u32;

    fn layout(&self) -> Layout;

    /// The best size and alignment of writes, in bytes: a whole stripe.
    fn stripe(&self) -> u64;

    fn members(&self) -> Vec<MemberStatus>;

    /// Members that it can still lose; `None`: it has lost content.
    fn tolerated(&self) -> Option<usize>;

    /// Of the region as a whole.
    fn performance(&self) -> Performance;

    /// Events from now on.
    fn events(&self) -> Receiver<Event>;

    /// The epoch of its membership.
    fn epoch(&self) -> Option<Epoch>;

    /// No segment has a sequence number as high as this.
    fn sequence(&self) -> u64;

    /// Raises [`sequence`](Self::sequence); durable when this returns. Waits for disks. Processes that share the region
    /// do this in turn, and another may have raised it before: read it again afterwards.
    fn raise_sequence(&self, to: u64) -> Result<()>;

    /// The client may write content that it later looks for only below this byte. The value is that of all labels, as
    /// this process knows them.
    fn high_water(&self) -> u64;

    /// Raises that byte in all labels; durable when it returns. Waits for disks, as
    /// [`raise_sequence`](Self::raise_sequence) does.
    fn raise_high_water(&self, to: u64) -> Result<()>;

    /// Writes the user of the disks to all labels; durable when it returns. Waits for disks, as
    /// [`raise_sequence`](Self::raise_sequence) does.
    fn set_lease(&self, lease: &[u8]) -> Result<()>;

    /// Rewrites labels and notes whose two instances differ, and returns their names. Waits for disks, as
    /// [`raise_sequence`](Self::raise_sequence) does.
    fn mend_ends(&self) -> Result<Vec<String>>;

    /// Bytes that a thread of the [background](throttle::Background) should ask for at a time.
    fn piece(&self) -> u64;

    /// Waits until a background thread may ask for so many bytes; another thread may at once. True: make one request at
    /// a time, since others use the region.
    fn give_way(&self, bytes: u64) -> bool;

    /// Ends the throttle for that time: somebody waits for the background work.
    fn unthrottle(&self, time: Duration);

    /// A random number, drawn when the region was made.
    fn secret(&self) -> u64;

    /// The client's [note](crate::note) beside the labels. Waits for disks.
    fn note(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces the note on all members in use; durable when it returns, and all or nothing after a crash. A member
    /// that misses it is out, as with a write. The client lets one process at a time do this. Waits for disks.
    fn set_note(&self, note: &[u8]) -> Result<()>;

    /// The highest number of copies of content in the region.
    fn copies(&self) -> usize;

    /// Reads from one copy alone: where the content of another was wrong.
    fn read_copy(&self, copy: usize, request: Request, done: Done);

    /// Puts out, durably, a member that lacks content of the others. False where the region cannot do without it. Waits
    /// for disks.
    fn put_out(&self, member: usize, why: &str) -> Result<bool>;

    /// A member that was put out since it did not answer, and answers again: it can be put back.
    fn returned(&self) -> Option<usize> {
        None
    }

    /// Puts a member back, or `spare` (a disk without a label, and the name that it gets) in its place: copies the
    /// stretches that `live` returns, and gives way as a thread of the [background](throttle::Background) does. `live`
    /// is called when the member takes part in writes, and returns all stretches written, or being written, by then.
    /// `go_on` gets the bytes that are left, between pieces, and may sleep; where it returns false, this returns false
    /// and can be called again, also after the region was opened anew. Waits for disks.
    fn rebuild(
        &self,
        member: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        live: &mut dyn FnMut() -> Vec<Range<u64>>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool>;
}

/// How a process begins to use a region.
#[derive(Clone, Copy)]
struct Begin {
    /// It has just been made.
    is_new: bool,
    /// No other process has it open.
    is_first: bool,
}

/// Where content lies on the members.
trait Map: Send + Sync {
    fn size(&self, set: &Set) -> u64;

    fn stripe(&self) -> u64 {
        0
    }

    /// The least bytes that each member must have.
    fn least(&self) -> u64 {
        0
    }

    /// Stretches of the region to which a stretch of a member may belong.
    fn origin(&self, range: Range<u64>) -> Range<u64> {
        range
    }

    fn copies(&self, _: &Set) -> usize {
        1
    }

    fn submit(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done);

    /// Prepares the members before the first request. Waits for disks.
    fn start(&self, _: &Arc<Set>, _: Begin) -> Result<(), OpenError> {
        Ok(())
    }

    fn submit_copy(&self, set: &Arc<Set>, _: usize, op: Op, manner: Manner, done: Done) {
        self.submit(set, op, manner, done);
    }

    fn rebuild(
        &self,
        set: &Arc<Set>,
        _: usize,
        _: Option<(Arc<dyn Device>, Uuid)>,
        _: &mut dyn FnMut() -> Vec<Range<u64>>,
        _: &mut Going<'_>,
    ) -> Result<bool> {
        Err(Error::new(Class::Invalid, &set.name, format!("a {} has no copies to rebuild from", set.layout)))
    }
}

/// A region of any kind.
struct Volume {
    set: Arc<Set>,
    map: Box<dyn Map>,
    properties: Properties,
    meter: Arc<Meter>,
    throttle: Arc<Throttle>,
}

impl Volume {
    /// With the common abilities of all members.
    fn new(set: Set, map: Box<dyn Map>) -> Volume {
        let parts: Vec<Properties> =
            (0..set.len()).filter_map(|role| set.part(role)).map(|part| part.device.properties()).collect();
        let most = |of: fn(&Properties) -> u32| parts.iter().map(of).max().unwrap_or(0);
        let properties = Properties {
            size: map.size(&set),
            block: most(|part| part.block).max(512),
            memory: most(|part| part.memory).max(1),
            preferred: most(|part| part.preferred).max(map.stripe() as u32),
            depth: parts.iter().map(|part| part.depth).sum(),
            direct: parts.iter().all(|part| part.direct),
            read_only: parts.iter().any(|part| part.read_only),
            discards: parts.iter().any(|part| part.discards),
            sparse: parts.iter().any(|part| part.sparse),
            rotates: parts.iter().any(|part| part.rotates),
        };
        let throttle = Arc::new(Throttle::new(set.shared_state().cloned()));
        // The random number of a region identifies it, since its members may change.
        let mut identity = [0; 16];
        identity[..8].copy_from_slice(&set.secret.to_le_bytes());
        let meter = Arc::new(Meter::shared(set.meters(), 0, Uuid(identity)));
        Volume { set: Arc::new(set), map, properties, meter, throttle }
    }

    /// Refuses an invalid request, else notes that it is under way; returns the callback for its end.
    fn begin(&self, request: Request, done: Done) -> Option<(Op, Manner, Done)> {
        if let Err(e) = check(&self.set.name, &self.properties, &request.op) {
            done(Answer { result: Err(e), buffers: request.op.into_buffers() });
            return None;
        }
        let Request { ref op, tag, within, late } = request;
        let range = op.range();
        let (throttle, seen) = (self.throttle.clone(), self.throttle.begin(op.kind(), range.end - range.start));
        let begun = self.meter.begin(op.kind(), range);
        // Timeouts are the members' business; the region's table only shows requests under way.
        let of = self.set.flights.begin_which(op, tag, None, late, done);
        let (meter, set) = (self.meter.clone(), self.set.clone());
        let done = move |answer: Answer| {
            meter.end(begun, answer.result.as_ref().err().map(|e| e.class));
            throttle.end(seen, meter.delivers());
            set.flights.end(of.number, &set.name, answer);
        };
        Some((request.op, Manner { tag, within, of: Some(of) }, Box::new(done)))
    }
}

impl Device for Volume {
    fn name(&self) -> &Arc<str> {
        &self.set.name
    }

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn submit(&self, request: Request, done: Done) {
        if let Some((op, manner, done)) = self.begin(request, done) {
            self.map.submit(&self.set, op, manner, done);
        }
    }

    /// Of one disk; a region of several can do without a deleted member.
    fn whereabouts(&self) -> Whereabouts {
        match (self.set.len(), self.set.part(0)) {
            (1, Some(part)) => part.device.whereabouts(),
            _ => Whereabouts::There,
        }
    }

    fn is_late(&self) -> bool {
        let states = self.set.states().clone();
        let used = (0..states.len()).filter(|role| states[*role] != MemberState::Out);
        used.filter_map(|role| self.set.part(role)).any(|part| part.device.is_late())
    }

    /// Below the [high-water mark](Region::high_water). For one disk, the disk narrows this down; several members would
    /// have to do so together.
    fn written(&self, at: u64) -> Range<u64> {
        let end = self.set.written_end();
        let found = match (self.set.layout, self.set.part(0)) {
            _ if at >= end => u64::MAX..u64::MAX,
            (Layout::Single, Some(part)) => {
                let found = part.device.written(at.saturating_add(END));
                found.start.saturating_sub(END)..found.end.saturating_sub(END)
            }
            _ => at..u64::MAX,
        };
        if found.start < end {
            found.start..found.end.min(end)
        } else {
            u64::MAX..u64::MAX
        }
    }

    /// As much as its fullest host has for its member.
    fn left(&self) -> Option<u64> {
        let members = (0..self.set.states().len()).filter_map(|role| self.set.part(role));
        let least = members.filter_map(|part| part.device.left()).min()?;
        let (size, share) = (u128::from(self.properties.size), u128::from(self.set.share.max(1)));
        Some((u128::from(least) * size / share) as u64)
    }

    /// In the region's own addresses. For a member's transfer that goes on after its request was answered: the least
    /// stretch of the region that surely holds it.
    fn pending(&self) -> Vec<Pending> {
        let mut pending = self.set.flights.pending();
        for role in 0..self.set.len() {
            let Some(part) = self.set.part(role) else { continue };
            let late =
                part.device.pending().into_iter().filter(|pending| pending.answered && !pending.range.is_empty());
            pending.extend(late.filter(|late| late.range.start >= END).map(|late| {
                let range = self.map.origin(late.range.start - END..late.range.end - END);
                Pending { range, ..late }
            }));
        }
        pending
    }
}

impl Region for Volume {
    fn number(&self) -> u32 {
        self.set.number
    }

    fn layout(&self) -> Layout {
        self.set.layout
    }

    fn stripe(&self) -> u64 {
        self.map.stripe().max(u64::from(self.properties.block))
    }

    fn members(&self) -> Vec<MemberStatus> {
        let states = self.set.states().clone();
        let tell = |(role, state)| {
            let part = self.set.part(role);
            MemberStatus {
                device: self.set.uuid(role),
                name: part.as_ref().map(|part| part.device.name().clone()),
                state: if self.set.is_lost(role) { MemberState::Out } else { state },
                performance: part.map(|part| part.performance()).unwrap_or_default(),
            }
        };
        states.into_iter().enumerate().map(tell).collect()
    }

    fn tolerated(&self) -> Option<usize> {
        self.set.tolerated()
    }

    fn performance(&self) -> Performance {
        let oldest: Duration = self.pending().iter().map(|pending| pending.age).max().unwrap_or_default();
        Performance { stutter: self.set.stutter(), ..self.meter.performance(oldest) }
    }

    fn events(&self) -> Receiver<Event> {
        self.set.events.listen()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.set.epoch()
    }

    fn sequence(&self) -> u64 {
        self.set.sequence()
    }

    fn raise_sequence(&self, to: u64) -> Result<()> {
        self.set.raise_sequence(to)
    }

    fn high_water(&self) -> u64 {
        self.set.high_water()
    }

    fn raise_high_water(&self, to: u64) -> Result<()> {
        self.set.raise_high_water(to)
    }

    fn set_lease(&self, lease: &[u8]) -> Result<()> {
        self.set.set_lease(lease)
    }

    fn mend_ends(&self) -> Result<Vec<String>> {
        self.set.mend_ends()
    }

    fn piece(&self) -> u64 {
        self.throttle.piece(self.meter.delivers())
    }

    fn give_way(&self, bytes: u64) -> bool {
        self.throttle.wait(bytes, self.meter.delivers())
    }

    fn unthrottle(&self, time: Duration) {
        self.throttle.unthrottle(time);
    }

    fn secret(&self) -> u64 {
        self.set.secret
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        self.set.note()
    }

    fn set_note(&self, note: &[u8]) -> Result<()> {
        self.set.set_note(note)
    }

    fn copies(&self) -> usize {
        self.map.copies(&self.set)
    }

    fn returned(&self) -> Option<usize> {
        self.set.returned()
    }

    fn read_copy(&self, copy: usize, request: Request, done: Done) {
        if let Some((op, manner, done)) = self.begin(request, done) {
            self.map.submit_copy(&self.set, copy, op, manner, done);
        }
    }

    fn put_out(&self, member: usize, why: &str) -> Result<bool> {
        self.set.put_out(member, why)
    }

    fn rebuild(
        &self,
        member: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        live: &mut dyn FnMut() -> Vec<Range<u64>>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool> {
        let _background = Background::begin();
        // Reported once: after a failure somebody has to look.
        self.set.set_silent(member, false);
        let going = &mut Going { meter: &self.meter, throttle: &self.throttle, go_on };
        self.map.rebuild(&self.set, member, spare, live, going)
    }
}
