//! Memory that its copy leaves behind: all processes die, another memory is made of the copy, elsewhere, and works with
//! it for a while, until it is dead too or its host; then the first one is taken up again.
//!
//! What the other one was promised must not be written over: the first is refused. If the other one has committed
//! nothing, the first goes on, and whatever it finds behind its end is not in what it leaves.

use super::death::{live_on, points, stills, Left, Point};
use super::history::{History, Still};
use super::later::cut_later;
use super::story::{tell, Step, Story, Teller};
use super::world::World;
use super::{caught, cut, Depth, Filter, Verdicts};
use crate::crash::mapping;
use crate::explore::name_of_choice;
use crate::op::Op;
use rng::Rng;

/// What the other memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// Made of the copy.
    New,
    /// Sabotage: the same, and afterwards it is as it was before.
    Same,
}

/// How far the other one goes.
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
        let p = |n: u64| format!("/zz-away-{n}");
        let work = |n| [Step::Op(Op::Create(p(n), 0o644)), Step::Op(Op::Append(p(n), 900, n)), Step::Wait];
        let swap = [Step::Fill(45), Step::Swell(300 << 10), Step::Wait, Step::Checkpoint];
        match self {
            Stay::Short => work(1).into_iter().chain(work(2)).collect(),
            Stay::Swap => work(1).into_iter().chain(swap).chain(work(2)).collect(),
            Stay::Long => swap.iter().cloned().chain(work(1)).chain(swap.clone()).chain(work(2)).collect(),
        }
    }
}

/// What the exploration covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Taken up again, and refused.
    pub taken_up: u64,
    pub refused: u64,
    /// Of those that were refused: the other one had been promised something.
    pub promised: u64,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Stats) {
        self.taken_up += other.taken_up;
        self.refused += other.refused;
        self.promised += other.promised;
    }
}

/// Explores memory that is left behind by a story's copy. An id is `name:away:point:stay/events/choice`, where `events`
/// are those of the other one, or, with a power cut after the first was taken up again, that and `/events/choice`.
pub fn explore(story: &Story, other: Other, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) -> Stats {
    let (stats, name) = (Stats::default(), &story.name);
    if filter.kind.is_some_and(|kind| kind != "away") {
        return stats;
    }
    let history = match caught(|| tell(story)) {
        Ok(told) => told.history,
        Err(text) => {
            verdicts.take(Err(text), || format!("{name}:run::"));
            return stats;
        }
    };
    verdicts.stats.stories += 1;
    let points = match filter.point {
        None => points(&history, depth.deaths, name),
        Some(point) => Point::parse(point).into_iter().collect(),
    };
    let mut search = Search { history: &history, depth, filter, verdicts, stats, rng: Rng::new(super::seed_of(name)) };
    for (point, left) in stills(&history, points) {
        for stay in Stay::ALL {
            let name = format!("{name}:away:{}:{stay:?}", point.name());
            match caught(|| work_elsewhere(&left, other, stay)) {
                Ok(away) => search.take_up_again(&Trip { name, stay, point, left: &left, away: &away }),
                Err(text) => search.verdicts.take(Err(text), || name),
            }
        }
    }
    search.stats
}

/// The first one as all its processes died, and what the other one did then.
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
    stats: Stats,
    rng: Rng,
}

impl Search<'_> {
    /// Takes the first one up again after the other's first events, some drawn, some or all of which the disk has.
    fn take_up_again(&mut self, trip: &Trip) {
        let all = trip.away.moments.len();
        let drawn: Vec<usize> =
            (0..self.depth.mixed).map(|_| self.rng.below(all as u64) as usize).chain([0, 1, all]).collect();
        let mut files = trip.away.start.files.clone();
        for events in 0..=all {
            if let Some(n) = events.checked_sub(1) {
                files.apply(&trip.away.moments[n].event);
            }
            for choice in cut::choices(&files, self.depth.seeds) {
                let told = format!("{events}/{}", name_of_choice(choice));
                let wanted = match self.filter.choice {
                    None => drawn.contains(&events).then_some(None),
                    Some(wanted) => rest_of(wanted, &format!("{:?}/{told}", trip.stay)),
                };
                if let (Some(later), false) = (wanted, self.verdicts.enough()) {
                    let back = Still { files: files.cut(choice), ..trip.left.clone() };
                    self.come_back(trip, back, events, &told, later);
                }
            }
        }
    }

    /// Takes the first one up again, and, unless it is refused, cuts its power while it goes on.
    fn come_back(&mut self, trip: &Trip, back: Still, events: usize, told: &str, later: Option<&str>) {
        let id = |what: &str| format!("{}/{told}{what}", trip.name);
        match caught(|| come_back(self.history, back, trip.point, trip.away, events, &mut self.stats)) {
            Err(text) => self.verdicts.take(Err(text), || id("")),
            Ok(None) => {}
            Ok(Some(second)) => {
                let (filter, id) =
                    (Filter { choice: later, ..Filter::default() }, |what: &str| id(&format!("/{what}")));
                cut_later(&second, &mut self.rng, &id, self.depth, &filter, self.verdicts);
            }
        }
    }
}

/// What `wanted` asks for beyond `told`, if it asks for that.
fn rest_of<'a>(wanted: &'a str, told: &str) -> Option<Option<&'a str>> {
    let rest = wanted.strip_prefix(told).filter(|rest| !rest.starts_with(char::is_numeric))?;
    Some(rest.strip_prefix('/'))
}

/// The other one takes up the copy, and works with it.
fn work_elsewhere(left: &Still, other: Other, stay: Stay) -> Result<History, String> {
    let world = match other {
        Other::New => World::load(left.files.clone(), left.region.len() as u64)?,
        Other::Same => World::resume(mapping(&left.region), &left.marks, left.files.clone())?,
    };
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    let start = Still { region: world.bytes(), marks: Vec::new(), files: world.tape.files() };
    teller.forget_the_past();
    world.tape.start_without_marks();
    stay.steps().iter().try_for_each(|step| teller.step(step))?;
    let moments = world.tape.stop();
    let (boundaries, acknowledged) = teller.end()?;
    Ok(History { start, moments, boundaries, acknowledged })
}

/// The first one is taken up again after so many events of the other: what it does then, unless it is refused.
fn come_back(
    history: &History,
    back: Still,
    point: Point,
    away: &History,
    events: usize,
    stats: &mut Stats,
) -> Result<Option<History>, String> {
    // Any operation: filling the log may have found it full.
    let promised = away.acknowledged.iter().any(|(at, boundary)| *at <= events && *boundary > 0);
    match World::resume(mapping(&back.region), &back.marks, back.files.clone()) {
        Err(e) if events == 0 => Err(format!("nothing was done elsewhere, but {e}")),
        Err(_) => {
            stats.refused += 1;
            stats.promised += u64::from(promised);
            Ok(None)
        }
        Ok(_) if promised => Err("it was taken up, and would write over what was promised elsewhere".into()),
        Ok(_) => {
            stats.taken_up += 1;
            live_on(history, back, Left::Everything, point).map(Some)
        }
    }
}
