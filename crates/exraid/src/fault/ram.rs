//! A disk in memory that records its requests, and its states after a power cut.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rng::Rng;

use crate::device::{check, Answer, Device, Done, Op, Pending, Properties, Request};

/// Counts the requests of all disks together.
static REQUESTS: AtomicU64 = AtomicU64::new(0);

/// The unit that a disk writes atomically.
pub const SECTOR: u64 = 512;

/// One request to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write { at: u64, bytes: Vec<u8> },
    Flush,
    Discard(Range<u64>),
}

/// A disk in memory.
pub struct RamDisk {
    name: Arc<str>,
    properties: Properties,
    state: Mutex<State>,
}

struct State {
    content: Content,
    /// Its requests since recording began.
    tape: Option<Vec<Event>>,
    /// The number of each request among those of all disks.
    instants: Vec<u64>,
    /// The content when recording began.
    before: Content,
}

/// The bytes of a disk: written pages, by number. Others are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<[u8]>>,
}

const PAGE: u64 = 4096;

impl Content {
    pub fn zero(size: u64) -> Content {
        Content { size, pages: BTreeMap::new() }
    }

    /// The same bytes, cut off or extended with zeros.
    #[must_use]
    pub fn resized(mut self, size: u64) -> Content {
        self.pages.retain(|page, _| (page + 1) * PAGE <= size);
        Content { size, ..self }
    }

    pub fn read(&self, to: &mut [u8], at: u64) {
        pieces(at, to.len()).for_each(|(page, within, here)| match self.pages.get(&page) {
            Some(bytes) => to[here.clone()].copy_from_slice(&bytes[within..][..here.len()]),
            None => to[here].fill(0),
        });
    }

    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read(&mut bytes, range.start);
        bytes
    }

    pub fn write(&mut self, from: &[u8], at: u64) {
        assert!(at + from.len() as u64 <= self.size);
        pieces(at, from.len()).for_each(|(page, within, here)| {
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(bytes)[within..][..here.len()].copy_from_slice(&from[here]);
        });
    }

    /// The written stretches, in order.
    pub fn written(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.pages.keys().map(|page| page * PAGE..(page + 1) * PAGE)
    }

    fn zero_range(&mut self, range: Range<u64>) {
        pieces(range.start, (range.end - range.start) as usize).for_each(|(page, within, here)| {
            if here.len() as u64 == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[within..][..here.len()].fill(0);
            }
        });
    }
}

/// Splits a stretch of bytes by page: page number, offset in the page, and which of the bytes.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let (first, end) = (at / PAGE, (at + len as u64).div_ceil(PAGE));
    (first..end.max(first)).map(move |page| {
        let (from, to) = (at.max(page * PAGE), (at + len as u64).min((page + 1) * PAGE));
        (page, (from - page * PAGE) as usize, (from - at) as usize..(to - at) as usize)
    })
}

/// A power cut before the event of this number. The seed decides which unflushed sectors survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub event: usize,
    pub seed: u64,
}

impl RamDisk {
    /// A disk of zeros.
    pub fn new(name: &str, size: u64) -> Arc<RamDisk> {
        RamDisk::with(name, Content::zero(size))
    }

    pub fn with(name: &str, content: Content) -> Arc<RamDisk> {
        let properties = Properties {
            size: content.size,
            block: SECTOR as u32,
            memory: SECTOR as u32,
            preferred: 1 << 20,
            depth: 32,
            direct: true,
            read_only: false,
            discards: true,
            sparse: false,
            rotates: false,
        };
        let state = Mutex::new(State { content, tape: None, instants: Vec::new(), before: Content::default() });
        Arc::new(RamDisk { name: name.into(), properties, state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to record.
    pub fn record(&self) {
        let mut state = self.lock();
        (state.before, state.tape) = (state.content.clone(), Some(Vec::new()));
    }

    /// The recorded requests.
    pub fn tape(&self) -> Vec<Event> {
        self.lock().tape.clone().unwrap_or_default()
    }

    pub fn content(&self) -> Content {
        self.lock().content.clone()
    }

    /// Replaces the content, as in a rollback, without recording that.
    pub fn replace(&self, content: Content) {
        assert_eq!(content.size, self.properties.size);
        self.lock().content = content;
    }

    /// Damages bytes, without recording that.
    pub fn overwrite(&self, at: u64, bytes: &[u8]) {
        self.lock().content.write(bytes, at);
    }

    /// The number of requests of all disks so far: an instant for [`RamDisk::at`].
    pub fn now() -> u64 {
        REQUESTS.load(Ordering::SeqCst)
    }

    /// The event of this disk before which a power cut at an instant falls.
    pub fn at(&self, instant: u64) -> usize {
        self.lock().instants.iter().take_while(|turn| **turn < instant).count()
    }

    /// The content after a power cut: everything flushed, and of the rest any sectors.
    pub fn after(&self, cut: Cut) -> Content {
        let state = self.lock();
        let seen = &state.tape.as_deref().unwrap_or_default()[..cut.event];
        let mut content = state.before.clone();
        let durable = seen.iter().rposition(|event| *event == Event::Flush).map_or(0, |last| last + 1);
        seen[..durable].iter().for_each(|event| apply(&mut content, event));
        let mut rng = Rng::new(cut.seed);
        for event in &seen[durable..] {
            apply_some(&mut content, event, &mut rng);
        }
        content
    }
}

fn apply(content: &mut Content, event: &Event) {
    match event {
        Event::Write { at, bytes } => content.write(bytes, *at),
        Event::Discard(range) => content.zero_range(range.clone()),
        Event::Flush => {}
    }
}

/// Applies all of it, nothing, or any of its sectors.
fn apply_some(content: &mut Content, event: &Event, rng: &mut Rng) {
    let how = rng.below(3);
    let Event::Write { at, bytes } = event else {
        return if how == 0 {
            apply(content, event)
        };
    };
    for (n, sector) in bytes.chunks(SECTOR as usize).enumerate() {
        if how == 0 || how == 1 && rng.below(2) == 0 {
            content.write(sector, at + n as u64 * SECTOR);
        }
    }
}

impl Device for RamDisk {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn submit(&self, request: Request, done: Done) {
        let result = check(&self.name, &self.properties, &request.op).map(|()| {
            let mut state = self.lock();
            let event = match &request.op {
                Op::Read { at, into } => {
                    let bytes = state.content.bytes(*at..*at + into.len());
                    return into.copy_from(&bytes);
                }
                Op::Write { at, from } => Event::Write { at: *at, bytes: from.to_vec() },
                Op::Flush => Event::Flush,
                Op::Discard(range) => Event::Discard(range.clone()),
                Op::Reserve(_) => return,
            };
            apply(&mut state.content, &event);
            let State { tape, instants, .. } = &mut *state;
            if let Some(tape) = tape {
                tape.push(event);
                instants.push(REQUESTS.fetch_add(1, Ordering::SeqCst));
            }
        });
        done(Answer { result, buffers: request.op.into_buffers() });
    }

    fn pending(&self) -> Vec<Pending> {
        Vec::new()
    }
}
