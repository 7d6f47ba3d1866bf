//! The death of all processes, at any store and any write. Memory, marks and disks stay as they are, and the next
//! process goes on; then the power is cut too.
//!
//! The memory of the marks can be lost as well; then the memory is compared with its backing.

use rng::Rng;

use super::judge::live;
use super::later::cut_later;
use super::Depth;
use crate::check::check;
use crate::history::{Boundary, History};
use crate::tape::{Event, Moment, Point, Still};
use crate::tree::look;
use crate::verdict::{caught, seed_of, Filter, Verdicts};
use crate::world::World;

/// The part of the memory that survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Everything,
    /// The memory, without its marks.
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
    for (point, left) in history.stills(points(history, depth.deaths, name, filter)) {
        if verdicts.enough() {
            return;
        }
        verdicts.stats.deaths += 1;
        match caught(|| live_on(history, left, memory, point)) {
            Err(text) => verdicts.take(Err(text), || id(point, "live")),
            Ok(second) => {
                let mut rng = Rng::new(seed_of(name) ^ point.events as u64);
                cut_later(&second, &mut rng, &|what| id(point, what), depth, filter, verdicts);
            }
        }
    }
}

/// The point that is wanted, or a few: half of them at disks, since there are far more stores.
pub(super) fn points(history: &History, most: usize, name: &str, filter: &Filter) -> Vec<Point> {
    if let Some(point) = filter.point {
        return Point::parse(point).into_iter().collect();
    }
    let mut rng = Rng::new(seed_of(name));
    let (mut stores, mut others): (Vec<usize>, Vec<usize>) =
        (0..history.moments.len()).partition(|n| matches!(history.moments[*n].event, Event::Store { .. }));
    // The marks that change after the last write of a commit belong to the next store.
    others.extend(stores.iter().filter(|n| **n > 0 && !matches!(history.moments[**n - 1].event, Event::Store { .. })));
    let mut points = vec![Point::after(history.moments.len())];
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
    let (all, len) = (marks.len(), event.stored());
    let mut up_to = |n: usize| match rng.below(3) {
        0 => n,
        _ => rng.below(n as u64 + 1) as usize,
    };
    // No byte is stored before all its marks are set.
    match (up_to(all), up_to(len / 8) * 8) {
        (marks, _) if marks < all => Point { events, marks, cut: 0 },
        (marks, cut) => Point { events, marks, cut },
    }
}

/// The next process: it finds a right state, works, waits, and works on. Returns its history.
pub(super) fn live_on(history: &History, left: Still, memory: Left, point: Point) -> Result<History, String> {
    let world = match memory {
        Left::Everything => World::resume(history.setup, &left)?,
        Left::Region => World::compare(history.setup, &left)?,
    };
    check(&world.fs, false)?;
    // The operation under way at the death is undone or done; if there was none, nothing has changed.
    let found = history.which_seen(history.after_death(point.events), &look(&world.fs)?);
    found.map_err(|e| format!("after the death it is {e}"))?;
    let reached = history.reached(point.events);
    let earlier = history.boundaries[..=reached].iter().map(|b| Boundary::new(0, b.bytes.clone())).collect();
    live(&world, left, earlier, promised(history, point))
}

/// The instant that was promised. A wait returns after marks have changed, not with the last flush.
fn promised(history: &History, point: Point) -> usize {
    let marked = history.moments.get(point.events).is_none_or(|next| point.marks == next.marks.len());
    *history.after_loss(if marked { point.events } else { point.events.saturating_sub(1) }).start()
}
