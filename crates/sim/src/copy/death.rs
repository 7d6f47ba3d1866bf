//! The death of all processes, at any store and any write: memory, marks and disks stay as they are, and the next
//! process goes on; then the power is cut too.
//!
//! Also the memory of the marks can be lost, and the region is compared with its copy.
//!
//! Marks change between events. Of what changed, the first words have been stored at a death, in the order in which
//! they are: how far the logs have come, marks that are set, marks that are cleared, which generation is marked.

use super::history::{Boundary, History, Still};
use super::later::{cut_later, live};
use super::tape::{Event, Moment};
use super::world::{look, World};
use super::{caught, Depth, Filter, Verdicts};
use crate::crash::mapping;
use crate::explore::check;
use rng::Rng;

/// Where a death is: after so many events; of the next one, so many words of marks and bytes of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub events: usize,
    marks: usize,
    cut: usize,
}

impl Point {
    pub fn name(self) -> String {
        format!("{}.{}.{}", self.events, self.marks, self.cut)
    }

    pub fn parse(name: &str) -> Option<Point> {
        let parts: Vec<usize> = name.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let [events, marks, cut] = parts[..] else { return None };
        Some(Point { events, marks, cut })
    }
}

/// What is left of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Everything,
    /// The region, without its marks.
    Region,
}

impl Left {
    pub fn name(self) -> &'static str {
        match self {
            Left::Everything => "death",
            Left::Region => "loss",
        }
    }
}

/// Explores deaths. An id is `name:death:point:live`, or of a later power cut `name:death:point:events/choice`; with
/// `loss` for `death` if marks are lost.
pub fn explore(name: &str, history: &History, memory: Left, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let id = |point: Point, what: &str| format!("{name}:{}:{}:{what}", memory.name(), point.name());
    let points = match filter.point {
        None => points(history, depth.deaths, name),
        Some(point) => Point::parse(point).into_iter().collect(),
    };
    for (point, left) in stills(history, points) {
        if verdicts.enough() {
            return;
        }
        verdicts.stats.deaths += 1;
        let lived = caught(|| live_on(history, left, memory, point));
        match lived {
            Err(text) => verdicts.take(Err(text), || id(point, "live")),
            Ok(second) => {
                verdicts.take(Ok(()), String::new);
                let mut rng = Rng::new(super::seed_of(name) ^ point.events as u64);
                cut_later(&second, &mut rng, &|what| id(point, what), depth, filter, verdicts);
            }
        }
    }
}

/// Memory and disks at the deaths at these points, which are in order.
pub(super) fn stills(history: &History, points: Vec<Point>) -> impl Iterator<Item = (Point, Still)> + '_ {
    let (mut still, mut done) = (history.start.clone(), 0);
    points.into_iter().map(move |point| {
        // An id may be of a longer story.
        let end = point.events.min(history.moments.len());
        history.moments[done.min(end)..end].iter().for_each(|moment| still.apply(moment));
        done = end;
        let mut left = still.clone();
        if let Some(next) = history.moments.get(point.events) {
            partly(&mut left, next, point);
        }
        (point, left)
    })
}

/// A few points of a history: half of them at disks, since there are far more stores.
pub(super) fn points(history: &History, most: usize, name: &str) -> Vec<Point> {
    let mut rng = Rng::new(super::seed_of(name));
    let (mut stores, mut others): (Vec<usize>, Vec<usize>) =
        (0..history.moments.len()).partition(|n| matches!(history.moments[*n].event, Event::Store { .. }));
    // What follows the last write of a commit comes before the next store.
    others.extend(stores.iter().filter(|n| **n > 0 && !matches!(history.moments[**n - 1].event, Event::Store { .. })));
    let mut points = vec![Point { events: history.moments.len(), marks: 0, cut: 0 }];
    for (events, n) in [(&mut others, most.div_ceil(2)), (&mut stores, most / 2)] {
        for _ in 0..n.min(if events.is_empty() { 0 } else { usize::MAX }) {
            points.push(draw(history, events[rng.below(events.len() as u64) as usize], &mut rng));
        }
    }
    points.sort_unstable();
    points.dedup();
    points
}

fn draw(history: &History, events: usize, rng: &mut Rng) -> Point {
    let Moment { marks, event } = &history.moments[events];
    let (all, len) = (marks.len(), if let Event::Store { bytes, .. } = event { bytes.len() } else { 0 });
    let mut up_to = |n: usize| match rng.below(3) {
        0 => n,
        _ => rng.below(n as u64 + 1) as usize,
    };
    // No byte is stored before all is marked.
    match (up_to(all), up_to(len / 8) * 8) {
        (marks, _) if marks < all => Point { events, marks, cut: 0 },
        (marks, cut) => Point { events, marks, cut },
    }
}

/// Takes a part of an event.
fn partly(still: &mut Still, next: &Moment, point: Point) {
    let mut words = next.marks.clone();
    words.sort_by_key(|(n, word)| rank(*n, still.marks[*n], *word));
    words.iter().take(point.marks).for_each(|(n, word)| still.marks[*n] = *word);
    if let Event::Store { bytes, .. } = &next.event {
        still.store(next, point.cut.min(bytes.len()));
    }
}

/// Words of the header: the generation, nothing, notes from byte 1024 on.
const HEADER: usize = 512;

fn rank(n: usize, old: u64, new: u64) -> (u32, i64) {
    match n {
        0 => (4, 0),
        1..HEADER => (1, n as i64),
        _ if new & !old != 0 => (2, n as i64),
        // Lines, then the pages that they are in.
        _ => (3, -(n as i64)),
    }
}

/// The next process: what it finds is right; it works, waits, and works on. Its history.
pub(super) fn live_on(history: &History, left: Still, memory: Left, point: Point) -> Result<History, String> {
    let reached = history.reached(point.events);
    let (region, files) = (mapping(&left.region), left.files.clone());
    let world = match memory {
        Left::Everything => World::resume(region, &left.marks, files)?,
        Left::Region => World::compare(region, files)?,
    };
    check(&world.fs, false)?;
    found(history, reached, &world)?;
    let earlier = history.boundaries[..=reached].iter().map(|b| Boundary::new(0, b.bytes.clone())).collect();
    live(&world, left, earlier, promised(history, point))
}

/// The instant that was promised. A wait returns after marks have changed, not with the last flush.
fn promised(history: &History, point: Point) -> usize {
    let marked = history.moments.get(point.events).is_none_or(|next| point.marks == next.marks.len());
    *history.allowed(if marked { point.events } else { point.events.saturating_sub(1) }).start()
}

/// The operation under way at the death is undone or done; if there was none, nothing has changed.
fn found(history: &History, reached: usize, world: &World) -> Result<(), String> {
    let found = look(&world.fs)?;
    let before = history.boundaries[reached].seen()?;
    if found == *before {
        return Ok(());
    }
    let told = found.difference(before).unwrap_or_default();
    match history.boundaries.get(reached + 1) {
        Some(after) if found == *after.seen()? => Ok(()),
        _ => Err(format!("after the death it is neither instant {reached} ({told}) nor the next")),
    }
}
