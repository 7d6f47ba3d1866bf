//! The explorer for the medium `logged`: memory, marks, redo logs and image together.
//!
//! A story runs once, on memory and disks that record. Then the power is cut after each request to the disks, and the
//! backing must load as an instant between two operations ([`history`](crate::history)). Also all processes die, at
//! stores and at writes. The next one goes on from the memory, all or a part of it, and the power is cut while it does.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`plot`] | how commits and checkpoints fall between operations, and in the middle of them |
//! | [`cut`] | power cuts, and power cuts afterwards |
//! | [`death`] | deaths of all processes, and power cuts afterwards |
//! | `later` | the life after a crash, and power cuts in it |
//! | [`away`] | memory that its backing leaves behind, and that is taken up again |
//! | [`failing`] | a disk that fails at any call |
//! | [`mirror`] | memory that survives on its own, with a mirror: either is lost |
//! | [`several`] | several processes and threads at once, of which some die and the others go on |
//!
//! Failures print an id, `story:cut:…`, `story:death:…`, `story:loss:…`, `story:away:…` or `play:several:…`.

pub mod away;
pub mod cut;
pub mod death;
pub mod failing;
mod judge;
mod later;
pub mod mirror;
pub mod plot;
pub mod several;

use crate::story::{tell, Story};
use crate::verdict::{caught, each, full, Filter, Stats, Verdicts};
use away::Other;
use death::Left;

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most events after which the power is cut.
    pub cuts: usize,
    /// Seeds per cut, beside none and all.
    pub seeds: u64,
    /// Most deaths.
    pub deaths: usize,
    /// Power cuts after each death.
    pub mixed: u64,
    /// One cut in so many also has to work after recovery.
    pub aftermath: u64,
}

impl Depth {
    const ALL: Depth = Depth { cuts: usize::MAX, seeds: 8, deaths: 200, mixed: 4, aftermath: 4 };

    /// For many stories: the depth that the environment asks for.
    pub fn wide() -> Depth {
        match full() {
            true => Depth::ALL,
            false => Depth { cuts: 3, seeds: 1, deaths: 1, mixed: 1, aftermath: 12 },
        }
    }

    /// For very many short stories.
    pub fn short() -> Depth {
        match full() {
            true => Depth { cuts: usize::MAX, seeds: 2, deaths: 12, mixed: 1, aftermath: 8 },
            false => Depth::wide(),
        }
    }

    /// For a few stories.
    pub fn deep() -> Depth {
        match full() {
            true => Depth { seeds: 32, deaths: 500, ..Depth::ALL },
            false => Depth { cuts: usize::MAX, seeds: 5, deaths: 40, mixed: 2, aftermath: 10 },
        }
    }
}

/// Explores a story.
pub fn explore(story: &Story, depth: Depth, filter: &Filter, verdicts: &mut Verdicts) {
    let text = verdicts.made(caught(|| tell(story)), || format!("{}:run::", story.name));
    let Some(history) = text else { return };
    verdicts.stats.stories += 1;
    verdicts.stats.events += history.moments.len() as u64;
    if filter.wants("cut") {
        cut::explore(&story.name, &history, depth, filter, verdicts);
    }
    let fewer = Depth { deaths: depth.deaths.div_ceil(4), ..depth };
    for (memory, depth) in [(Left::Everything, depth), (Left::Region, fewer)] {
        if filter.wants(memory.name()) {
            death::explore(&story.name, &history, memory, depth, filter, verdicts);
        }
    }
}

/// Explores stories, or the one state that `CONQUEST_SIM_REPLAY` names. Panics with the ids of the failures.
pub fn explore_all(stories: &[Story], depth: Depth) -> Stats {
    each(stories, |story| &story.name, |story, filter, verdicts| explore(story, depth, filter, verdicts))
}

/// The same for memory that the stories' backings leave behind; see [`away`].
pub fn explore_away(stories: &[Story], depth: Depth) -> Stats {
    let explore = |story: &Story, filter: &Filter, verdicts: &mut Verdicts| {
        away::explore(story, Other::New, depth, filter, verdicts);
    };
    each(stories, |story| &story.name, explore)
}
