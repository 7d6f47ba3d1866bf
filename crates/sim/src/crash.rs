//! From a trace to the states that a crash could leave.
//!
//! A state is a point of the trace with, on dax, a choice for every word in doubt.

use std::collections::BTreeMap;

use pram::{Mapping, MediumKind};
use rng::Rng;

use crate::choice::Choice;
use crate::tape::{Event, Moment, Point, Thread};

/// Media whose memory survives a crash. On battery stores are durable at once, in program order; on dax when they have
/// been flushed and fenced, and before that each word independently.
pub const PERSISTENT: [MediumKind; 2] = [MediumKind::Battery, MediumKind::Dax];

const WORD: u64 = 8;
const LINE: u64 = 64;
const PAGE: usize = 4096;

/// A word that has been stored since it was last durable.
#[derive(Debug)]
struct Doubt {
    /// The durable value, then all since, each with the number of its store.
    values: Vec<(u64, [u8; 8])>,
}

/// A word that a thread has flushed without a fence since.
#[derive(Debug)]
struct Pending {
    by: Thread,
    word: u64,
    /// The last store that the flush included.
    stores: u64,
}

/// The medium as the trace goes by.
pub struct Medium {
    kind: MediumKind,
    /// The content that is certainly durable.
    durable: Vec<u8>,
    /// The visible content.
    visible: Vec<u8>,
    /// Pages that are not all zero, or were not once.
    touched: Vec<bool>,
    doubts: BTreeMap<u64, Doubt>,
    pending: Vec<Pending>,
    /// The number of stores so far.
    stores: u64,
}

impl Medium {
    pub fn new(kind: MediumKind, base: &[u8]) -> Medium {
        Medium {
            kind,
            durable: base.to_vec(),
            visible: base.to_vec(),
            touched: touched(base),
            doubts: BTreeMap::new(),
            pending: Vec::new(),
            stores: 0,
        }
    }

    /// Applies an event, or only the first `cut` bytes of a store.
    pub fn apply(&mut self, event: &Event, cut: Option<usize>) {
        match event {
            Event::Store { off, bytes } => self.store(*off, &bytes[..cut.unwrap_or(bytes.len())]),
            Event::LineFlush { off, len, by } => self.flush(*off, *len, *by),
            Event::Fence { by } => self.fence(*by),
            _ => {}
        }
    }

    fn store(&mut self, off: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (start, end) = (off as usize, off as usize + bytes.len());
        self.visible[start..end].copy_from_slice(bytes);
        self.touched[start / PAGE..=(end - 1) / PAGE].fill(true);
        if self.kind == MediumKind::Battery {
            self.durable[start..end].copy_from_slice(bytes);
            return;
        }
        self.stores += 1;
        for word in (off / WORD)..=((end as u64 - 1) / WORD) {
            let value = word_of(&self.visible, word);
            let durable = word_of(&self.durable, word);
            let doubt = self.doubts.entry(word).or_insert_with(|| Doubt { values: vec![(0, durable)] });
            if doubt.values.last().is_some_and(|(_, last)| *last != value) {
                doubt.values.push((self.stores, value));
            }
        }
    }

    /// Flushes lines: their present content is durable with the next fence of the thread.
    fn flush(&mut self, off: u64, len: u64, by: Thread) {
        let lines = off / LINE * LINE..(off + len.max(1)).next_multiple_of(LINE);
        let words = self.doubts.range(lines.start / WORD..lines.end / WORD).map(|(word, _)| *word);
        self.pending.extend(words.map(|word| Pending { by, word, stores: self.stores }));
    }

    fn fence(&mut self, by: Thread) {
        let (mine, others): (Vec<_>, Vec<_>) = self.pending.drain(..).partition(|pending| pending.by == by);
        self.pending = others;
        for Pending { word, stores, .. } in mine {
            let Some(doubt) = self.doubts.get_mut(&word) else { continue };
            let kept = doubt.values.partition_point(|(number, _)| *number <= stores).max(1) - 1;
            doubt.values.drain(..kept);
            let at = (word * WORD) as usize;
            self.durable[at..at + 8].copy_from_slice(&doubt.values[0].1);
            if doubt.values.len() == 1 {
                self.doubts.remove(&word);
            }
        }
    }

    /// The number of combinations that the words in doubt can have.
    pub fn subsets(&self) -> u64 {
        self.doubts.values().fold(1, |n, doubt| n.saturating_mul(doubt.values.len() as u64))
    }

    /// The choices to explore: all if they are few, else nothing, everything, and some drawn by seeds.
    pub fn choices(&self, few: u64, seeds: u64) -> Vec<Choice> {
        match self.subsets() {
            _ if self.kind == MediumKind::Battery => vec![Choice::All],
            all if all <= few => (0..all).map(Choice::Subset).collect(),
            _ => [Choice::None, Choice::All].into_iter().chain((1..=seeds).map(Choice::Seed)).collect(),
        }
    }

    /// The memory as a crash now leaves it.
    pub fn crash(&self, choice: Choice) -> Mapping {
        let source = match choice {
            Choice::All => &self.visible,
            _ => &self.durable,
        };
        let map = mapping_of(source, &self.touched);
        if let Choice::Subset(mut n) = choice {
            for (word, doubt) in &self.doubts {
                let count = doubt.values.len() as u64;
                map.write(word * WORD, &doubt.values[(n % count) as usize].1).expect("inside the region");
                n /= count;
            }
        }
        if let Choice::Seed(seed) = choice {
            // One seed in two keeps most, or loses most: failures often need just one word to differ.
            let mut rng = Rng::new(seed);
            let bias = rng.below(4);
            for (word, doubt) in &self.doubts {
                let last = doubt.values.len() as u64 - 1;
                let pick = match (bias, rng.below(8)) {
                    (0, 1..) => last,
                    (1, 1..) => 0,
                    _ => rng.below(last + 1),
                };
                map.write(word * WORD, &doubt.values[pick as usize].1).expect("inside the region");
            }
        }
        map
    }
}

fn word_of(bytes: &[u8], word: u64) -> [u8; 8] {
    let at = (word * WORD) as usize;
    bytes[at..at + 8].try_into().expect("eight bytes")
}

/// A mapping that holds `bytes`, of which only `touched` pages are not zero.
fn mapping_of(bytes: &[u8], touched: &[bool]) -> Mapping {
    let map = Mapping::anonymous(bytes.len() as u64).expect("memory for a crash state");
    for (n, page) in bytes.chunks(PAGE).enumerate().filter(|(n, _)| touched[*n]) {
        map.write((n * PAGE) as u64, page).expect("inside the region");
    }
    map
}

/// A mapping that holds `bytes`.
pub fn mapping(bytes: &[u8]) -> Mapping {
    mapping_of(bytes, &touched(bytes))
}

/// By page, is it not all zero?
fn touched(bytes: &[u8]) -> Vec<bool> {
    const ZERO: [u8; PAGE] = [0; PAGE];
    bytes.chunks(PAGE).map(|page| page != &ZERO[..page.len()]).collect()
}

/// Calls `look` with the medium that held `base` at each of these points, which are in ascending order; returns the
/// medium at the end.
pub fn each_point<E>(
    kind: MediumKind,
    base: &[u8],
    moments: &[Moment],
    points: impl IntoIterator<Item = Point>,
    mut look: impl FnMut(Point, &Medium) -> Result<(), E>,
) -> Result<Medium, E> {
    let (mut medium, mut applied) = (Medium::new(kind, base), 0);
    for point in points {
        moments[applied..point.events].iter().for_each(|moment| medium.apply(&moment.event, None));
        applied = point.events;
        if point.cut > 0 {
            medium.apply(&moments[point.events].event, Some(point.cut));
        }
        look(point, &medium)?;
    }
    moments[applied..].iter().for_each(|moment| medium.apply(&moment.event, None));
    Ok(medium)
}

/// The points of a trace: after every store, and within stores of several words. In stores longer than `cuts` words, the
/// ends and a few between.
pub fn points(moments: &[Moment], cuts: u64) -> Vec<Point> {
    let mut points = vec![Point::default()];
    for (n, moment) in moments.iter().enumerate() {
        let Event::Store { off, bytes } = &moment.event else { continue };
        let within = cuts_of(*off, bytes.len() as u64, cuts, n as u64);
        points.extend(within.map(|cut| Point { cut: cut as usize, ..Point::after(n) }));
        points.push(Point::after(n + 1));
    }
    points.dedup();
    points
}

/// Lengths, each ending at a word boundary, that a crash inside a store can leave.
fn cuts_of(off: u64, len: u64, cuts: u64, seed: u64) -> impl Iterator<Item = u64> {
    let first = WORD - off % WORD;
    let all = len.saturating_sub(first).div_ceil(WORD);
    let mut picked: Vec<u64> = if all <= cuts {
        (0..all).collect()
    } else {
        let mut rng = Rng::new(seed);
        (0..cuts.saturating_sub(2)).map(|_| rng.below(all)).chain([0, all - 1]).collect()
    };
    picked.sort_unstable();
    picked.dedup();
    picked.into_iter().map(move |i| first + i * WORD)
}
