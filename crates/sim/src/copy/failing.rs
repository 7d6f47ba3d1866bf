//! A story on a disk that fails: what was promised is kept; the copy is made anew from memory, or nothing more is promised, and
//! everybody is told. And a disk that fails when its copy is taken up: that is told, and does no harm.

use std::sync::Arc;

use conquest_fs::node::Atime;
use rustix::io::Errno;

use super::cut::same_again;
use super::fault::{Call, Calls, Fault, Faults};
use super::history::{Boundary, History, Still};
use super::story::{Step, Teller};
use super::tape::{words_of, Tape};
use super::world::{look, reload, World};
use crate::crash::{mapping, Choice};
use crate::op::{Op, Runner};

const SIZE: u64 = 4 << 20;
const KIB: u64 = 1 << 10;
/// Seeds with which the power is cut afterwards.
const SEEDS: u64 = 3;

/// Commits of one round and of several, both logs begun anew more than once, one of them larger.
fn steps() -> Vec<Step> {
    use Step::{Checkpoint, Commit, Fill, Swell, Wait};
    let write = |n: u64| Step::Op(Op::Write("/f".into(), 0, 9000, n));
    let mut steps = vec![Step::Op(Op::Create("/f".into(), 0o644)), write(1), Wait, write(2), Fill(45), write(3)];
    steps.extend([
        Swell(300 * KIB),
        Commit,
        write(4),
        Wait,
        Checkpoint,
        write(5),
        Fill(48),
        Swell(300 * KIB),
        write(6),
        Wait,
    ]);
    steps.extend([write(7), Fill(97), write(8), Swell(300 * KIB), Wait, write(9), Swell(SIZE), Wait, Checkpoint]);
    steps.extend([write(10), Commit, write(11), Wait]);
    steps
}

/// What became of a story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing failed.
    Whole,
    /// It failed while the file system was made.
    NotMade,
    /// It failed later.
    Failed,
    /// It failed later, and the copy was made anew from memory.
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

/// Tells the story with one call failing.
pub fn explore(fault: Fault) -> Result<End, String> {
    run(&Faults::with(Some(fault))).map(|(end, _)| end)
}

fn run(faults: &Arc<Faults>) -> Result<(End, Calls), String> {
    let not_made = Ok((End::NotMade, Calls::new()));
    let Ok(world) = World::format(SIZE, Atime::Never, faults) else { return not_made };
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
            // Nobody has found room yet.
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
    let (boundaries, acknowledged) = teller.end()?;
    let start = Still { region: world.bytes(), marks: words_of(&world.marks()?), files: world.tape.files() };
    let history = History { start, moments: Vec::new(), boundaries, acknowledged };
    let end = match fs.session().runtime().backing_anew() {
        (0, _) if whole => End::Whole,
        (_, _) if whole => End::Anew,
        _ => End::Failed,
    };
    let calls = faults.calls();
    judge(&world, &history).map(|()| (end, calls))
}

/// Reading goes on; the disks hold what was promised; and processes that come later, when the disk works again, make
/// all of it durable.
fn judge(world: &World, history: &History) -> Result<(), String> {
    let found = look(&world.fs)?;
    let last = history.boundaries.last().ok_or("there is no instant")?;
    if found != *last.seen()? {
        return Err("what is read after a failure is wrong".into());
    }
    let Still { region, marks, files } = &history.start;
    let choices = [Choice::None, Choice::All].into_iter().chain((1..=SEEDS).map(Choice::Seed));
    for choice in choices {
        let left = reload(&files.cut(choice), SIZE).and_then(|bytes| history.which(0, &bytes));
        left.map_err(|e| format!("cut afterwards, {choice:?}: {e}"))?;
    }
    let lives: [&dyn Fn() -> Result<World, String>; 3] = [
        &|| World::resume(mapping(region), marks, files.clone()),
        &|| World::compare(mapping(region), files.clone()),
        // The memory was deleted, but the host still knows what it could not write.
        &|| World::load(files.clone(), SIZE),
    ];
    lives.iter().try_for_each(|life| live_on(&life()?).map_err(|e| format!("in the next life: {e}")))
}

/// Ways to take up a copy.
#[derive(Clone, Copy, Debug)]
pub enum Taken {
    /// With its memory and marks.
    Resumed,
    /// With its memory.
    Compared,
    /// After a power cut.
    Loaded,
}

/// What a story has left, to be taken up.
pub struct Remains(History);

impl Remains {
    pub fn make() -> Result<Remains, String> {
        let world = World::format(SIZE, Atime::Never, &Faults::with(None))?;
        let fs = world.fs.clone();
        let mut teller = Teller::new(&world, &fs);
        teller.forget_the_past();
        steps().iter().try_for_each(|step| teller.step(step))?;
        let (boundaries, acknowledged) = teller.end()?;
        let start = Still { region: world.bytes(), marks: words_of(&world.marks()?), files: world.tape.files() };
        Ok(Remains(History { start, moments: Vec::new(), boundaries, acknowledged }))
    }

    /// Calls to each file that taking it up makes.
    pub fn calls(&self, how: Taken) -> Result<Vec<(usize, Call, u64)>, String> {
        let faults = Faults::with(None);
        self.take_up(how, &Tape::over(self.0.start.files.clone()), &faults)?;
        Ok(faults.calls().into_iter().map(|((file, call), n)| (file, call, n)).collect())
    }

    fn take_up(&self, how: Taken, tape: &Arc<Tape>, faults: &Arc<Faults>) -> Result<World, String> {
        let Still { region, marks, .. } = &self.0.start;
        match how {
            Taken::Resumed => World::resume_on(mapping(region), marks, tape, faults),
            Taken::Compared => World::compare_on(mapping(region), tape, faults),
            Taken::Loaded => World::load_on(SIZE, tape, faults),
        }
    }

    /// Takes it up with one call failing: what is there is right, or is refused; and afterwards, when the disk works
    /// again, all of it is there, whatever a power cut takes of what was written meanwhile. True if it was refused.
    pub fn explore(&self, how: Taken, fault: Fault) -> Result<bool, String> {
        let tape = Tape::over(self.0.start.files.clone());
        let last = self.0.boundaries.last().ok_or("there is no instant")?.seen()?;
        let taken = self.take_up(how, &tape, &Faults::with(Some(fault)));
        if let Ok(world) = &taken {
            if look(&world.fs)? != *last {
                return Err("it is taken up, and wrong".into());
            }
        }
        for choice in [Choice::None, Choice::All, Choice::Seed(1)] {
            let left = reload(&tape.files().cut(choice), SIZE).and_then(|bytes| self.0.which(0, &bytes));
            left.map_err(|e| format!("cut afterwards, {choice:?}: {e}"))?;
        }
        let again = self.take_up(how, &Tape::over(tape.files()), &Faults::with(None));
        let again = again.map_err(|e| format!("afterwards it is refused: {e}"))?;
        if look(&again.fs)? != *last {
            return Err("afterwards it is wrong".into());
        }
        live_on(&again).map_err(|e| format!("in the next life: {e}"))?;
        Ok(taken.is_err())
    }
}

fn live_on(world: &World) -> Result<(), String> {
    for n in 0..3 {
        world.wait().map_err(|e| e.to_string())?;
        same_again(world)?;
        Runner::new(&world.fs).run(&Op::Create(format!("/next-{n}"), 0o644))?.map_err(|e| e.to_string())?;
        world.copy().checkpoint_if_due(world.fs.session()).map_err(|e| e.to_string())?;
    }
    Ok(())
}
