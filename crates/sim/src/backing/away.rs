//! Memory that its backing leaves behind. All processes die, and another memory is made of the backing, elsewhere. It is
//! used for a while, until its processes or its host die; then the first memory is taken up again.
//!
//! Promises to the other memory must not be overwritten: then the first is refused. If the other one has committed
//! nothing, the first goes on, and the other's writes behind its end do not get into what it leaves.

use rng::Rng;

use super::death::{live_on, points, Left};
use super::later::cut_later;
use super::Depth;
use crate::history::History;
use crate::op::{append, create};
use crate::story::Step::{self, Checkpoint, Fill, Swell, Wait};
use crate::story::{steps, tell, Story, Teller, KIB};
use crate::tape::{Point, Still};
use crate::verdict::{caught, seed_of, Filter, Stats, Verdicts};
use crate::world::World;

/// The other memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Made of the backing.
    New,
    /// Sabotage: the same memory, which is put back afterwards.
    Same,
}

/// How long the other one works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// Small commits.
    Short,
    /// The other log takes over.
    Swap,
    /// Both logs have begun anew.
    Long,
}

impl Stay {
    const ALL: [Stay; 3] = [Stay::Short, Stay::Swap, Stay::Long];

    fn steps(self) -> Vec<Step> {
        let path = |n: u64| format!("/zz-away-{n}");
        let work = |n| steps! { create(&path(n)), append(&path(n), 900, n), Wait };
        let swap = steps! { Fill(45), Swell(300 * KIB), Wait, Checkpoint };
        match self {
            Stay::Short => [work(1), work(2)].concat(),
            Stay::Swap => [work(1), swap, work(2)].concat(),
            Stay::Long => [swap.clone(), work(1), swap, work(2)].concat(),
        }
    }
}

/// Explores memory that is left behind by a story's backing. An id is `name:away:point:stay/events/choice`, where
/// `events` are those of the other one. With a power cut after the first was taken up again, `/events/choice` follows.
pub fn explore(story: &Story, other: Other, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let name = &story.name;
    if !filter.wants("away") {
        return;
    }
    let Some(history) = verdicts.made(caught(|| tell(story)), || format!("{name}:run::")) else { return };
    verdicts.stats.stories += 1;
    let mut search = Search { history: &history, depth, filter, verdicts, rng: Rng::new(seed_of(name)) };
    for (point, left) in history.stills(points(&history, depth.deaths, name, filter)) {
        for stay in Stay::ALL {
            let name = format!("{name}:away:{}:{stay:?}", point.name());
            match caught(|| work_elsewhere(&history, &left, other, stay)) {
                Ok(away) => search.take_up_again(&Trip { name, stay, point, left: &left, away: &away }),
                Err(text) => search.verdicts.take(Err(text), || name),
            }
        }
    }
}

/// The first memory as all its processes died, and the history of the other one.
struct Trip<'a> {
    name: String,
    stay: Stay,
    point: Point,
    left: &'a Still,
    away: &'a History,
}

/// An exploration under way.
struct Search<'a> {
    history: &'a History,
    depth: Depth,
    filter: &'a Filter<'a>,
    verdicts: &'a mut Verdicts,
    rng: Rng,
}

impl Search<'_> {
    /// Takes the first one up again after some of the other's events, with some or all of these on the disk.
    fn take_up_again(&mut self, trip: &Trip) {
        let all = trip.away.moments.len();
        let drawn: Vec<usize> =
            (0..self.depth.mixed).map(|_| self.rng.below(all as u64) as usize).chain([0, 1, all]).collect();
        let mut files = trip.away.start.files.clone();
        for events in 0..=all {
            if let Some(n) = events.checked_sub(1) {
                files.apply(&trip.away.moments[n].event);
            }
            for choice in files.choices(self.depth.seeds) {
                let text = format!("{events}/{}", choice.name());
                let wanted = match self.filter.choice {
                    None => drawn.contains(&events).then_some(None),
                    Some(wanted) => rest_of(wanted, &format!("{:?}/{text}", trip.stay)),
                };
                if let (Some(later), false) = (wanted, self.verdicts.enough()) {
                    let back = Still { files: files.cut(choice), ..trip.left.clone() };
                    self.come_back(trip, back, events, &text, later);
                }
            }
        }
    }

    /// Takes the first one up again, and cuts its power while it goes on, unless it is refused.
    fn come_back(&mut self, trip: &Trip, back: Still, events: usize, choice: &str, later: Option<&str>) {
        let id = |what: &str| format!("{}/{choice}{what}", trip.name);
        match caught(|| come_back(self.history, back, trip, events, &mut self.verdicts.stats)) {
            Err(text) => self.verdicts.take(Err(text), || id("")),
            Ok(None) => {}
            Ok(Some(second)) => {
                let filter = Filter { choice: later, ..Filter::default() };
                let id = |what: &str| id(&format!("/{what}"));
                cut_later(&second, &mut self.rng, &id, self.depth, &filter, self.verdicts);
            }
        }
    }
}

/// The rest of `wanted` behind `name`, if it begins with that.
fn rest_of<'a>(wanted: &'a str, name: &str) -> Option<Option<&'a str>> {
    let rest = wanted.strip_prefix(name).filter(|rest| !rest.starts_with(char::is_numeric))?;
    Some(rest.strip_prefix('/'))
}

/// The other memory takes up the backing, and works with it.
fn work_elsewhere(history: &History, left: &Still, other: Other, stay: Stay) -> Result<History, String> {
    let world = match other {
        Other::New => World::load(history.setup, left.files.clone())?,
        Other::Same => World::resume(history.setup, left)?,
    };
    let fs = world.fs.clone();
    Teller::new(&world, &fs).recording(|teller| stay.steps().iter().try_for_each(|step| teller.step(step)))
}

/// Takes the first memory up again after so many events of the other; returns its further history, unless it is refused.
fn come_back(
    history: &History,
    back: Still,
    trip: &Trip,
    events: usize,
    stats: &mut Stats,
) -> Result<Option<History>, String> {
    // Any operation counts: filling the log may have found it full.
    let promised = trip.away.acknowledged.iter().any(|(at, boundary)| *at <= events && *boundary > 0);
    match World::resume(history.setup, &back) {
        Err(e) if events == 0 => Err(format!("nothing was done elsewhere, but {e}")),
        Err(_) => {
            stats.refused += 1;
            stats.promised += u64::from(promised);
            Ok(None)
        }
        Ok(_) if promised => Err("it was taken up, and would write over what was promised elsewhere".into()),
        Ok(_) => {
            stats.taken_up += 1;
            live_on(history, back, Left::Everything, trip.point).map(Some)
        }
    }
}
