//! Labels: the description of each disk, on the disk itself.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`raw`] | bytes |
//! | [`epoch`] | changes of membership, and diverged halves |
//!
//! A disk reserves [`END`] bytes at either end; the label is the first 4096 of them, at both ends. The intact copy with
//! the higher generation counts. Content lies between.
//!
//! A label is updated in place, one copy after the other:
//!
//! | step | what | else, after a power cut |
//! | --- | --- | --- |
//! | 1 | both copies are read anew; the newer one must be the caller's | two processes undo each other's update |
//! | 2 | a copy that is damaged, or older, is written from the newer one; durable | step 3 tears the only intact one |
//! | 3 | the first copy is written; durable | step 4 may reach the disk before it, and both be torn |
//! | 4 | the last copy is written; durable | there is one copy until the next opening |
//!
//! After step 3 the update counts. Before step 4 has returned it is not acknowledged, and a crash may undo it. Two
//! processes must not update labels of one region at the same time: callers have a lock for that.

pub mod epoch;
pub mod raw;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zerocopy::IntoBytes;

use crate::device::{blocks_around, Device, Op, Request, PATIENCE};
use crate::error::{Class, Error, OpenError, Result};
use crate::sys::memory::{Aligned, Buffers};

pub use epoch::{Epoch, Relation};
pub use raw::{NoLabel, RawLabel, RawMember, LEASE, MEMBERS, VERSION};

/// Bytes of the smallest disk: labels, and space for some segments.
pub const MIN_SIZE: u64 = 16 << 20;
/// Bytes at either end of a disk that hold no content.
pub const END: u64 = 1 << 20;

/// The name of a pool or of a disk, printed like other UUIDs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            let dash = if matches!(n, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Uuid {
    /// A unique one.
    pub fn random() -> std::io::Result<Uuid> {
        let mut bytes = random::<16>()?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Uuid(bytes))
    }
}

/// `N` random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
        n if n == N => Ok(bytes),
        _ => Err(std::io::Error::other("no random numbers")),
    }
}

/// An unpredictable number for an epoch.
pub fn stamp() -> std::io::Result<u64> {
    random().map(u64::from_le_bytes)
}

/// The layout of a region's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One disk.
    Single,
    /// Content striped over several, in chunks of so many bytes.
    Stripe { chunk: u32 },
    /// The same content on all.
    Mirror,
    /// Content striped over all but one, which has the parity; in chunks of so many bytes.
    Raid5 { chunk: u32 },
}

impl Layout {
    fn from_raw(kind: u32, chunk: u32) -> Option<Layout> {
        let is_chunk = chunk >= 4096 && chunk.is_power_of_two();
        match kind {
            1 => Some(Layout::Single),
            2 if is_chunk => Some(Layout::Stripe { chunk }),
            3 => Some(Layout::Mirror),
            4 if is_chunk => Some(Layout::Raid5 { chunk }),
            _ => None,
        }
    }

    fn to_raw(self) -> (u32, u32) {
        match self {
            Layout::Single => (1, 0),
            Layout::Stripe { chunk } => (2, chunk),
            Layout::Mirror => (3, 0),
            Layout::Raid5 { chunk } => (4, chunk),
        }
    }

    /// The possible numbers of members.
    pub fn members(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Layout::Single => 1..=1,
            Layout::Stripe { .. } | Layout::Mirror => 2..=MEMBERS,
            Layout::Raid5 { .. } => 3..=MEMBERS,
        }
    }

    /// Members that may be missing.
    pub fn tolerates(self, members: usize) -> usize {
        match self {
            Layout::Single | Layout::Stripe { .. } => 0,
            Layout::Mirror => members - 1,
            Layout::Raid5 { .. } => 1,
        }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Layout::Single => "single",
            Layout::Stripe { .. } => "stripe",
            Layout::Mirror => "mirror",
            Layout::Raid5 { .. } => "raid5",
        })
    }
}

/// The state of a member's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// All of its share.
    Whole,
    /// It missed a write, and is neither read nor written.
    Out,
    /// It is written everywhere, and read below `rebuilt` bytes of its share: the rest is being put back.
    Rebuilding { rebuilt: u64 },
}

/// A member of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub device: Uuid,
    pub state: MemberState,
}

impl Member {
    fn from_raw(raw: &RawMember) -> Option<Member> {
        let state = match raw.state {
            1 => MemberState::Whole,
            2 => MemberState::Out,
            3 => MemberState::Rebuilding { rebuilt: raw.rebuilt },
            _ => return None,
        };
        Some(Member { device: Uuid(raw.uuid), state })
    }

    fn to_raw(self) -> RawMember {
        let (state, rebuilt) = match self.state {
            MemberState::Whole => (1, 0),
            MemberState::Out => (2, 0),
            MemberState::Rebuilding { rebuilt } => (3, rebuilt),
        };
        RawMember { uuid: self.device.0, state, reserved: 0, rebuilt }
    }
}

/// A label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub pool: Uuid,
    pub device: Uuid,
    /// The number of the region in its pool.
    pub region: u32,
    /// Its place among the region's members.
    pub role: usize,
    pub layout: Layout,
    /// All members, with this one.
    pub members: Vec<Member>,
    /// Bytes of the disk, both ends included.
    pub size: u64,
    /// Bytes of content, from [`END`] on.
    pub data: u64,
    /// Goes up with each update.
    pub generation: u64,
    pub epoch: Epoch,
    /// No segment has a sequence number as high as this.
    pub sequence: u64,
    /// Nanoseconds since 1970.
    pub created: u64,
    /// A random number of the region, for its client, which distinguishes its own structures from content of programs
    /// by it.
    pub secret: u64,
    /// The user of the disk, as the client wrote it.
    pub lease: Vec<u8>,
    /// The client's content that it may look for lies below this byte of the region; 0: unknown.
    pub high_water: u64,
}

/// The two copies of a disk.
struct Copies {
    first: Result<Label, NoLabel>,
    last: Result<Label, NoLabel>,
}

impl Label {
    /// The label of a new disk of `size` bytes.
    pub fn new(
        pool: Uuid,
        region: u32,
        layout: Layout,
        members: &[Uuid],
        role: usize,
        size: u64,
        epoch: Epoch,
    ) -> Label {
        let whole = |device: &Uuid| Member { device: *device, state: MemberState::Whole };
        Label {
            pool,
            device: members[role],
            region,
            role,
            layout,
            members: members.iter().map(whole).collect(),
            size,
            data: data_of(size),
            generation: 0,
            epoch,
            sequence: 0,
            created: now(),
            secret: 0,
            lease: Vec::new(),
            high_water: 0,
        }
    }

    pub fn read(device: &dyn Device) -> Result<Label, OpenError> {
        let copies = Copies::read(device)?;
        copies.newest(device).cloned()
    }

    /// Are both copies of a disk's label intact, and the same?
    pub fn is_whole(device: &dyn Device) -> Result<bool> {
        let copies = Copies::read(device)?;
        Ok(copies.first.is_ok() && copies.first == copies.last)
    }

    /// Writes the first label of a disk.
    pub fn write(&mut self, device: &dyn Device) -> Result<()> {
        self.generation += 1;
        self.write_both(device)
    }

    /// Takes over another process's update of this label, if that changed only its marks and lease. Such an update is
    /// made under a lock common to the region's users.
    pub fn catch_up(&mut self, device: &dyn Device) -> Result<()> {
        let copies = Copies::read(device)?;
        // The update will report a damaged label.
        let Ok(newest) = copies.newest(device) else { return Ok(()) };
        let Label { generation, sequence, high_water, ref lease, .. } = *newest;
        if (Label { generation, sequence, high_water, lease: lease.clone(), ..self.clone() }) != *newest
            || generation < self.generation
        {
            let what = "its label was changed by another process; open the pool anew";
            return Err(Error::new(Class::Invalid, device.name(), what));
        }
        (self.generation, self.sequence, self.high_water, self.lease) =
            (generation, sequence, high_water, lease.clone());
        Ok(())
    }

    /// Changes this label, which was read or written before, on its disk; see the [module](self) for the steps.
    pub fn update(&mut self, device: &dyn Device, change: impl FnOnce(&mut Label)) -> Result<()> {
        // 1.
        let copies = Copies::read(device)?;
        let fail = |what: String| Error::new(Class::Invalid, device.name(), what);
        let newest = copies.newest(device).map_err(|e| fail(e.to_string()))?;
        if newest != self {
            return Err(fail(format!("its label is of generation {}, not {}", newest.generation, self.generation)));
        }
        // 2.
        for (copy, place) in [(&copies.first, 0), (&copies.last, self.last_place())] {
            if copy.as_ref() != Ok(newest) {
                newest.write_at(device, place)?;
                flush(device)?;
            }
        }
        let mut next = self.clone();
        change(&mut next);
        next.generation += 1;
        next.write_both(device)?;
        *self = next;
        Ok(())
    }

    fn write_both(&self, device: &dyn Device) -> Result<()> {
        // 3., 4.
        for place in [0, self.last_place()] {
            let room = Op::Reserve(place..place + size_of::<RawLabel>() as u64);
            device.ask(room.into(), PATIENCE).result?;
            self.write_at(device, place)?;
            flush(device)?;
        }
        Ok(())
    }

    /// Overwrites both copies with zeros, durably.
    pub fn erase(&self, device: &dyn Device) -> Result<()> {
        for place in [0, self.last_place()] {
            device.write_at(&[0; size_of::<RawLabel>()], place)?;
        }
        device.flush()
    }

    fn write_at(&self, device: &dyn Device, place: u64) -> Result<()> {
        let memory = Aligned::of(self.to_raw(place).as_bytes());
        device.ask(Request::write(place, Buffers::whole(&memory)), PATIENCE).result
    }

    fn last_place(&self) -> u64 {
        self.size - END
    }

    fn to_raw(&self, place: u64) -> RawLabel {
        let (kind, chunk) = self.layout.to_raw();
        let mut table = [RawMember::default(); MEMBERS];
        for (raw, member) in table.iter_mut().zip(&self.members) {
            *raw = member.to_raw();
        }
        let mut lease = [0; LEASE];
        lease[..self.lease.len()].copy_from_slice(&self.lease);
        let raw = RawLabel {
            magic: raw::MAGIC,
            version: VERSION,
            kind,
            pool: self.pool.0,
            device: self.device.0,
            region: self.region,
            role: self.role as u32,
            members: self.members.len() as u32,
            chunk,
            place,
            size: self.size,
            data: self.data,
            generation: self.generation,
            epoch: self.epoch.number,
            sequence: self.sequence,
            created: self.created,
            written: now(),
            stamps: self.epoch.stamps,
            table,
            secret: self.secret,
            lease_len: self.lease.len() as u32,
            lease,
            reserved: [0; 4],
            high_water: self.high_water,
            unused: [0; 1380],
            crc: 0,
        };
        raw.sealed()
    }

    /// Decodes an intact label, if it is plausible and lies at its own place.
    fn from_raw(raw: &RawLabel, place: u64) -> Result<Label, NoLabel> {
        let decode = || {
            let layout = Layout::from_raw(raw.kind, raw.chunk)?;
            let (count, role) = (raw.members as usize, raw.role as usize);
            let fits = layout.members().contains(&count)
                && role < count
                && raw.size >= MIN_SIZE
                && raw.data <= data_of(raw.size)
                && raw.place == place
                && (place == 0 || place == raw.size - END);
            let members: Vec<Member> = raw.table.get(..count)?.iter().map(Member::from_raw).collect::<Option<_>>()?;
            let is_named = members.get(role).is_some_and(|member| member.device.0 == raw.device);
            let lease = raw.lease.get(..raw.lease_len as usize)?.to_vec();
            (fits && is_named).then_some((layout, members, role, lease))
        };
        let (layout, members, role, lease) = decode().ok_or(NoLabel::Damaged)?;
        Ok(Label {
            pool: Uuid(raw.pool),
            device: Uuid(raw.device),
            region: raw.region,
            role,
            layout,
            members,
            size: raw.size,
            data: raw.data,
            generation: raw.generation,
            epoch: Epoch { number: raw.epoch, stamps: raw.stamps },
            sequence: raw.sequence,
            created: raw.created,
            secret: raw.secret,
            lease,
            high_water: raw.high_water,
        })
    }
}

impl Copies {
    fn read(device: &dyn Device) -> Result<Copies> {
        let size = device.properties().size;
        let first = read_copy(device, 0)?;
        // A device that has become larger has its last copy at its former end.
        let end = first.as_ref().map_or(size, |label| label.size);
        let last = match end <= size && end >= 2 * END {
            true => read_copy(device, end - END)?,
            false => Err(NoLabel::Other),
        };
        Ok(Copies { first, last })
    }

    fn newest(&self, device: &dyn Device) -> Result<&Label, OpenError> {
        let path = std::path::PathBuf::from(&**device.name());
        let unusable = |what: String| OpenError::Unusable { path: path.clone(), what };
        let newest = match (&self.first, &self.last) {
            (Ok(first), Ok(last)) if (first.pool, first.device) != (last.pool, last.device) => {
                return Err(unusable(
                    "its two ends are of different disks; something was copied over one of them".into(),
                ));
            }
            (Ok(first), Ok(last)) if first.generation == last.generation && first != last => {
                return Err(unusable(format!("its two labels of generation {} differ", first.generation)));
            }
            (Ok(first), Ok(last)) if first.generation >= last.generation => first,
            (_, Ok(label)) | (Ok(label), _) => label,
            (Err(NoLabel::Version(version)), _) | (_, Err(NoLabel::Version(version))) => {
                return Err(unusable(format!("its label is of version {version}; this program knows {VERSION}")));
            }
            (Err(NoLabel::Damaged), _) | (_, Err(NoLabel::Damaged)) => {
                return Err(unusable("its label is damaged, in both copies".into()));
            }
            _ => return Err(OpenError::Unlabelled { path, found: None }),
        };
        match device.properties().size {
            size if size < newest.size => {
                Err(unusable(format!("it has {size} bytes, and had {} when its label was written", newest.size)))
            }
            _ => Ok(newest),
        }
    }
}

fn flush(device: &dyn Device) -> Result<()> {
    device.ask(Request::flush(), PATIENCE).result
}

/// Reads `len` bytes, if the device answers in time.
pub(crate) fn read_within(device: &dyn Device, len: usize, place: u64, patience: Duration) -> Result<Vec<u8>> {
    let whole = blocks_around(&device.properties(), place, len);
    let memory = Aligned::zeroed((whole.end - whole.start) as usize);
    let answer = device.ask(Request::read(whole.start, Buffers::whole(&memory)), patience);
    answer.result?;
    let (mut bytes, from) = (vec![0; len], place - whole.start);
    answer.buffers.unwrap_or_default().slice(from..from + len as u64).copy_to(&mut bytes);
    Ok(bytes)
}

/// Reads one copy. An unreadable one counts as damaged: the other may be intact.
fn read_copy(device: &dyn Device, place: u64) -> Result<Result<Label, NoLabel>> {
    match read_within(device, size_of::<RawLabel>(), place, PATIENCE) {
        Ok(bytes) => Ok(RawLabel::read(&bytes).and_then(|raw| Label::from_raw(&raw, place))),
        Err(e) if e.class == Class::Media => Ok(Err(NoLabel::Damaged)),
        Err(e) => Err(e),
    }
}

/// Bytes of content on a disk.
pub fn data_of(size: u64) -> u64 {
    whole(size.saturating_sub(2 * END)).end
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// The usable part of a disk: sizes are multiples of a block that suits any disk.
pub fn whole(size: u64) -> std::ops::Range<u64> {
    0..size / 4096 * 4096
}
