//! A story on a disk that fails: promises are kept; the backing is made anew from memory, or nothing more is promised
//! and all callers get the failure. Also a disk that fails when its backing is taken up: that is reported, and does no
//! harm.

use std::sync::Arc;

use rustix::io::Errno;

use super::judge::same_again;
use crate::choice::Choice;
use crate::disk::Files;
use crate::fault::{Call, Calls, Fault, Faults};
use crate::history::{Boundary, History};
use crate::op::{create, write, Runner};
use crate::story::Step::{self, Checkpoint, Commit, Fill, Swell, Wait};
use crate::story::{steps, Teller, KIB};
use crate::tape::{Still, Tape};
use crate::tree::look;
use crate::world::{reload, Setup, World};

const SIZE: u64 = 4 << 20;
/// Seeds with which the power is cut afterwards.
const SEEDS: u64 = 3;

fn setup() -> Setup {
    Setup::logged(SIZE)
}

/// Commits of one round and of several, with both logs begun anew more than once, one of them larger.
fn steps() -> Vec<Step> {
    let put = |n: u64| write("/f", 0, 9000, n);
    steps! {
        create("/f"), put(1), Wait, put(2), Fill(45), put(3), Swell(300 * KIB), Commit, put(4), Wait, Checkpoint,
        put(5), Fill(48), Swell(300 * KIB), put(6), Wait, put(7), Fill(97), put(8), Swell(300 * KIB), Wait,
        put(9), Swell(SIZE), Wait, Checkpoint, put(10), Commit, put(11), Wait,
    }
}

/// The end of a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing failed.
    Whole,
    /// A call failed while the file system was made.
    NotMade,
    /// A call failed later.
    Failed,
    /// A call failed later, and the backing was made anew from memory.
    Anew,
}

/// Calls to each file that the story makes.
pub fn calls() -> Result<Vec<(usize, Call, u64)>, String> {
    let (end, calls) = run(&Faults::with(None))?;
    match end {
        End::Whole => Ok(calls.into_iter().map(|((file, call), n)| (file, call, n)).collect()),
        _ => Err(format!("without a fault: {end:?}")),
    }
}

/// Runs the story with one call failing.
pub fn explore(fault: Fault) -> Result<End, String> {
    run(&Faults::with(Some(fault))).map(|(end, _)| end)
}

fn run(faults: &Arc<Faults>) -> Result<(End, Calls), String> {
    let not_made = Ok((End::NotMade, Calls::new()));
    let Ok(world) = World::format(setup(), faults) else { return not_made };
    if world.wait().is_err() {
        return not_made;
    }
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    teller.remember(vec![Boundary::new(0, world.bytes())], 0);
    let failed = || fs.session().runtime().backing_failure().is_some();
    let full = || fs.session().runtime().backing_full();
    let mut was_full = false;
    for step in &steps() {
        let before = failed();
        let calls: u64 = faults.calls().values().sum();
        match (step, before) {
            // No room has been found yet.
            (Step::Op(op), false) if full() => match teller.op(op)? {
                Err(Errno::NOSPC) => {}
                done => return Err(format!("on a full disk {op:?} gives {done:?}")),
            },
            (Step::Op(op), false) => {
                teller.op(op)?.map_err(|e| format!("{op:?}: {e:?}"))?;
            }
            (Step::Op(op), true) => match teller.op(op)? {
                Err(Errno::ROFS) => {}
                done => return Err(format!("after a failure {op:?} gives {done:?}")),
            },
            (step, false) => {
                let done = teller.step(step);
                let found_none = done.is_err() && !failed() && faults.is_no_room();
                was_full |= found_none || full();
                if !found_none && done.is_err() != failed() {
                    return Err(format!("{step:?} gives {done:?}, but failed is {}", failed()));
                }
            }
            (Step::Wait | Step::Fill(_), true) => {
                if world.wait().is_ok() {
                    return Err("a wait after a failure succeeds".into());
                }
            }
            (step, true) => teller.step(step)?,
        }
        if before && calls != faults.calls().values().sum::<u64>() {
            return Err(format!("{step:?}: something is written after a failure"));
        }
    }
    let whole = !failed() && !was_full;
    if fs.session().runtime().backing_damaged() {
        return Err("it was not made anew".into());
    }
    if fs.session().runtime().backing_failed() && !full() && !failed() {
        return Err("nobody says why it failed".into());
    }
    let history = teller.end(world.still()?)?;
    let end = match fs.session().runtime().backing_anew() {
        (0, _) if whole => End::Whole,
        (_, _) if whole => End::Anew,
        _ => End::Failed,
    };
    let calls = faults.calls();
    judge(&world, &history).map(|()| (end, calls))
}

/// Checks that reading goes on; that the disks keep the promises; and that later processes, when the disk works again,
/// make everything durable.
fn judge(world: &World, history: &History) -> Result<(), String> {
    as_last(world, history).map_err(|e| format!("what is read after a failure is wrong: {e}"))?;
    let left = &history.start;
    let choices = [Choice::None, Choice::All].into_iter().chain((1..=SEEDS).map(Choice::Seed));
    choices.into_iter().try_for_each(|choice| cut_afterwards(history, &left.files, choice))?;
    // Loading happens after the memory was deleted, but the host still has the sectors that it could not write.
    [Taken::Resumed, Taken::Compared, Taken::Loaded].into_iter().try_for_each(|how| {
        let world = take_up(left, how, &Tape::over(left.files.clone()), &Faults::with(None))?;
        live_on(&world).map_err(|e| format!("in the next life: {e}"))
    })
}

/// Only the last instant is visible.
fn as_last(world: &World, history: &History) -> Result<(), String> {
    let last = history.boundaries.len() - 1;
    history.which_seen(last..=last, &look(&world.fs)?).map(drop)
}

/// The power is cut at the end.
fn cut_afterwards(history: &History, files: &Files, choice: Choice) -> Result<(), String> {
    let left = reload(&files.cut(choice), SIZE);
    let found = left.and_then(|bytes| history.which_bytes(history.after_loss(history.moments.len()), &bytes));
    found.map(drop).map_err(|e| format!("cut afterwards, {choice:?}: {e}"))
}

fn take_up(left: &Still, how: Taken, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
    match how {
        Taken::Resumed => World::resume_on(setup(), left, tape, faults),
        Taken::Compared => World::compare_on(setup(), left, tape, faults),
        Taken::Loaded => World::load_on(setup(), tape, faults),
    }
}

/// Ways to take up a backing.
#[derive(Clone, Copy, Debug)]
pub enum Taken {
    /// With its memory and marks.
    Resumed,
    /// With its memory.
    Compared,
    /// After a power cut.
    Loaded,
}

/// The remains of a story, to be taken up.
pub struct Remains(History);

impl Remains {
    pub fn make() -> Result<Remains, String> {
        let world = World::format(setup(), &Faults::with(None))?;
        let fs = world.fs.clone();
        let mut teller = Teller::new(&world, &fs);
        teller.forget_the_past();
        steps().iter().try_for_each(|step| teller.step(step))?;
        teller.end(world.still()?).map(Remains)
    }

    /// Calls to each file when the remains are taken up.
    pub fn calls(&self, how: Taken) -> Result<Vec<(usize, Call, u64)>, String> {
        let faults = Faults::with(None);
        take_up(&self.0.start, how, &Tape::over(self.0.start.files.clone()), &faults)?;
        Ok(faults.calls().into_iter().map(|((file, call), n)| (file, call, n)).collect())
    }

    /// Takes the remains up with one call failing: the state is right, or is refused. Afterwards, when the disk works
    /// again, everything is there, whichever of the writes meanwhile a power cut drops. True if it was refused.
    pub fn explore(&self, how: Taken, fault: Fault) -> Result<bool, String> {
        let tape = Tape::over(self.0.start.files.clone());
        let taken = take_up(&self.0.start, how, &tape, &Faults::with(Some(fault)));
        if let Ok(world) = &taken {
            as_last(world, &self.0).map_err(|e| format!("it is taken up, and wrong: {e}"))?;
        }
        let choices = [Choice::None, Choice::All, Choice::Seed(1)];
        choices.into_iter().try_for_each(|choice| cut_afterwards(&self.0, &tape.files(), choice))?;
        let again = take_up(&self.0.start, how, &Tape::over(tape.files()), &Faults::with(None));
        let again = again.map_err(|e| format!("afterwards it is refused: {e}"))?;
        as_last(&again, &self.0).map_err(|e| format!("afterwards it is wrong: {e}"))?;
        live_on(&again).map_err(|e| format!("in the next life: {e}"))?;
        Ok(taken.is_err())
    }
}

fn live_on(world: &World) -> Result<(), String> {
    for n in 0..3 {
        world.wait().map_err(|e| e.to_string())?;
        same_again(world)?;
        Runner::new(&world.fs).run(&create(&format!("/next-{n}")))?.map_err(|e| e.to_string())?;
        world.checkpoint().map_err(|e| e.to_string())?;
    }
    Ok(())
}
