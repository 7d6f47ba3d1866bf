//! A performance from beginning to end; the processes that are left check that nothing is lost.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex};

use backing::Ticket;
use conquest_fs::Fs;

use super::oracle::{history, Promise};
use super::play::{Base, Play};
use super::pool::Pool;
use super::{lock, Sabotage};
use crate::check::{check, sweep};
use crate::history::History;
use crate::model::Model;
use crate::op::{Done, Op, Runner};
use crate::stage::{Counts, Fall, Mishap, Stage};
use crate::story::{swell, Step};
use crate::tape::Still;
use crate::tree::{difference, look};
use crate::verdict::{caught, panic_text};

/// The result of a play.
pub struct Performance {
    pub history: History,
    /// By process, the points at which it could have died.
    pub counts: Vec<Counts>,
    /// The actions of the dead threads.
    pub roles: Vec<String>,
}

/// The progress of a thread.
#[derive(Default)]
struct Script {
    /// Operations and their results.
    done: Vec<(Op, Done)>,
    /// The present step.
    now: Option<Step>,
    /// The ticket that it has asked for, and when.
    asked: Option<(Ticket, usize)>,
    promises: Vec<Promise>,
    failure: Option<String>,
}

/// The pool and the threads of a performance.
struct House<'a> {
    play: &'a Play,
    pool: Pool,
    stage: Arc<Stage>,
    dir: &'a Path,
    /// By process, while it is attached.
    seats: Vec<Mutex<Option<Arc<Fs>>>>,
    /// By thread.
    scripts: Vec<Mutex<Script>>,
}

/// Performs a play to its end.
pub fn perform(play: &Play, base: &Base, seed: u64, deaths: &[Mishap], dir: &Path) -> Result<Performance, String> {
    let (stage, processes) = (Stage::new(seed, deaths, play.cast()), play.processes());
    let pool = Pool::over(&base.still, stage.clone(), processes, play.sabotage)?;
    // Slots are taken by the thread's number.
    pram::session::set_thread_hint(0);
    let seats = (0..processes).map(|process| play.is_there(process).then(|| pool.attach(process, dir)).transpose());
    let seats = seats.map(|seat| seat.map(Mutex::new)).collect::<Result<Vec<_>, String>>()?;
    let scripts = play.parts.iter().map(|_| Mutex::default()).collect();
    let house = House { play, pool, stage, dir, seats, scripts };
    let start = Still { memory: Arc::new(house.pool.bytes()?), marks: Vec::new(), files: house.pool.tape.files() };
    house.pool.tape.start(None);
    house.stage.begin(house.pool.undertaker()?);
    let finale = std::thread::scope(|scope| {
        for me in 0..play.parts.len() {
            let house = &house;
            scope.spawn(move || house.play_part(me));
        }
        let played = house.stage.watch();
        let finale = caught(|| played.and_then(|()| house.finale(&base.model)));
        house.stage.end();
        finale
    });
    house.pool.tape.rest();
    let moments = house.pool.tape.stop();
    let mut promises = finale?;
    promises.extend(house.scripts.iter().flat_map(|script| lock(script).promises.clone()));
    let failed = house.stage.has_failed().then(|| "hears of a failing disk".to_string());
    let roles = house.stage.falls().iter().map(|fall| house.role(fall)).chain(failed).collect();
    let history = history(start, moments, &house.stage.stores(), &promises);
    if history.boundaries.len() < 2 {
        return Err("there are no instants between operations".into());
    }
    Ok(Performance { history, counts: house.stage.counts(), roles })
}

enum Outcome {
    Did(Op, Done),
    /// Everything done before so many events.
    Durable(usize),
    Nothing,
}

/// After a failure no wait succeeds any more.
fn refuses(fs: &Fs) -> Result<(), String> {
    let session = fs.session();
    let backing = backing::of(session).ok_or("there is no backing")?;
    if session.runtime().backing_failure().is_none() {
        return Err("nobody says why it failed".into());
    }
    if Runner::new(fs).run(&Op::Create("/after".into(), 0o644))?.is_ok() {
        return Err("after the failure things can be changed".into());
    }
    match backing.wait(session) {
        Ok(()) => Err("after the failure something is said to be durable".into()),
        Err(_) => Ok(()),
    }
}

impl House<'_> {
    /// Runs one thread from beginning to end.
    fn play_part(&self, me: usize) {
        pram::session::set_thread_hint(me);
        let played = catch_unwind(AssertUnwindSafe(|| {
            self.stage.enter(me);
            self.act_all(me);
        }));
        // A dead thread ends without a message.
        if let Err(payload) = played {
            if payload.is::<String>() || payload.is::<&str>() {
                lock(&self.scripts[me]).failure = Some(panic_text(payload));
            }
        }
        self.stage.finish(me);
    }

    fn act_all(&self, me: usize) {
        for step in &self.play.parts[me].steps {
            lock(&self.scripts[me]).now = Some(step.clone());
            let done = self.act(me, step);
            let mut script = lock(&self.scripts[me]);
            // A process that gets a failure ends: the next steps would be refused.
            if self.stage.has_failed() && matches!(done, Err(_) | Ok(Outcome::Did(_, Err(_)))) {
                return;
            }
            match done {
                Ok(Outcome::Did(op, done)) => script.done.push((op, done)),
                Ok(Outcome::Durable(called)) => script.promises.push((self.pool.tape.len(), called)),
                Ok(Outcome::Nothing) => {}
                Err(e) => script.failure = Some(format!("{step:?}: {e}")),
            }
            script.now = None;
        }
    }

    fn act(&self, me: usize, step: &Step) -> Result<Outcome, String> {
        let process = self.play.parts[me].process;
        let (seat, called) = (&self.seats[process], self.pool.tape.len());
        match step {
            Step::Come => {
                let fs = self.pool.attach(process, self.dir)?;
                *lock(seat) = Some(fs);
                Ok(Outcome::Nothing)
            }
            Step::Go => {
                let left = lock(seat).take();
                drop(left);
                Ok(Outcome::Nothing)
            }
            Step::Join => {
                let third = self.pool.join(process, self.dir).map_err(|e| e.to_string())?;
                let backing = backing::of(&third).ok_or("there is no backing")?;
                backing.wait(&third).map(|()| Outcome::Durable(called)).map_err(|e| e.to_string())
            }
            _ => {
                let fs = lock(seat).clone().ok_or("it is not attached")?;
                self.work(&fs, &self.scripts[me], step)
            }
        }
    }

    /// Runs a step of an attached process.
    fn work(&self, fs: &Fs, script: &Mutex<Script>, step: &Step) -> Result<Outcome, String> {
        let (session, called) = (fs.session(), self.pool.tape.len());
        let backing = backing::of(session).ok_or("there is no backing")?;
        let early = self.play.sabotage == Sabotage::EarlyTicket;
        let ask = || lock(script).asked = Some((backing.ticket(session), called));
        let durable =
            |ticket: Ticket, called: usize| backing.wait_for(session, ticket).map(|()| Outcome::Durable(called));
        let done = match step {
            Step::Op(op) => {
                if early {
                    ask();
                }
                return Ok(Outcome::Did(op.clone(), Runner::new(fs).run(op)?));
            }
            Step::Wait => {
                let asked = lock(script).asked.take_if(|_| early);
                durable(asked.map_or_else(|| backing.ticket(session), |(ticket, _)| ticket), called)
            }
            Step::Ask => {
                ask();
                Ok(Outcome::Nothing)
            }
            Step::Settle => {
                let asked = lock(script).asked.take();
                let (ticket, called) = asked.ok_or("nothing was asked for")?;
                durable(ticket, called)
            }
            Step::Commit => backing.commit_if_due(session, 0).map(|done| match done {
                true => Outcome::Durable(called),
                false => Outcome::Nothing,
            }),
            Step::Checkpoint => backing.checkpoint_if_due(session).map(|_| Outcome::Nothing),
            Step::Sweep => {
                return fs
                    .sweep()
                    .and_then(|_| fs.free_unused_triples())
                    .map(|_| Outcome::Nothing)
                    .map_err(|e| e.to_string())
            }
            Step::Swell(bytes) => swell(fs, *bytes).map(|()| Outcome::Nothing),
            _ => return Err("this is not for plays".into()),
        };
        done.map_err(|e| e.to_string())
    }

    /// The action of the dead thread.
    fn role(&self, fall: &Fall) -> String {
        let does = match (lock(&self.scripts[fall.player]).now.as_ref(), fall.waiting) {
            (Some(Step::Op(_) | Step::Sweep), false) => "operating",
            (Some(Step::Op(_) | Step::Sweep), true) => "waiting for a lock or a thaw",
            (Some(Step::Wait | Step::Settle | Step::Commit), false) => "leading a commit",
            (Some(Step::Wait | Step::Settle | Step::Commit), true) => "waiting for a commit or operations",
            (Some(Step::Join | Step::Come | Step::Go), _) => "coming or going",
            (Some(Step::Checkpoint), _) => "checkpointing",
            _ => "resting",
        };
        match fall.others {
            0 => does.into(),
            n => format!("{does}, {n} waiting"),
        }
    }

    fn is_dead(&self, process: usize) -> bool {
        self.stage.falls().iter().any(|fall| fall.process == process)
    }

    /// The remaining processes clean up, check the result, work, and wait; returns the promises of these waits.
    fn finale(&self, model: &Model) -> Result<Vec<Promise>, String> {
        for script in &self.scripts {
            lock(script).failure.take().map_or(Ok(()), Err)?;
        }
        let left = (0..self.seats.len()).filter(|process| !self.is_dead(*process));
        let left: Vec<Arc<Fs>> = left.filter_map(|process| lock(&self.seats[process]).clone()).collect();
        let fs = left.first().ok_or("nobody is left")?;
        let session = fs.session();
        let reaped = session.reap().map_err(|e| format!("cleaning up: {e}"))?;
        // Else the backing was made anew, and all goes on.
        if self.stage.has_failed() && session.runtime().backing_failure().is_some() {
            return left.iter().try_for_each(|fs| refuses(fs)).map(|()| Vec::new());
        }
        let (backing, mut promises) = (backing::of(session).ok_or("there is no backing")?, Vec::new());
        let mut wait = |when: &str| -> Result<(), String> {
            let called = self.pool.tape.len();
            backing.wait(session).map_err(|e| format!("{when}: {e}"))?;
            promises.push((self.pool.tape.len(), called));
            Ok(())
        };
        wait("after the death")?;
        let attached = session.runtime().sessions().len();
        if attached != left.len() {
            return Err(format!("{attached} are attached, of whom {reaped} were just cleaned up after"));
        }
        check(fs, false)?;
        self.seen(fs, model)?;
        backing.checkpoint_if_due(session).map_err(|e| format!("checkpointing after the death: {e}"))?;
        if let Err(e) = Runner::new(fs).run(&Op::Create("/after".into(), 0o644))? {
            return Err(format!("an operation after the death: {e:?}"));
        }
        sweep(fs)?;
        wait("at the end")?;
        Ok(promises)
    }

    /// All operations that were done are visible, and those of dead threads wholly or not at all.
    fn seen(&self, fs: &Fs, model: &Model) -> Result<(), String> {
        let found = look(fs)?;
        let mut without = model.clone();
        for script in &self.scripts {
            lock(script).done.iter().try_for_each(|(op, done)| without.apply(op, done))?;
        }
        let under_way = |script: &Mutex<Script>| match &lock(script).now {
            Some(Step::Op(op)) => Some(op.clone()),
            _ => None,
        };
        let open: Vec<Op> = self.scripts.iter().filter_map(under_way).collect();
        let mut first = None;
        for some in 0..1u32 << open.len() {
            let mut with = without.clone();
            let done = open.iter().enumerate().filter(|(n, _)| some >> n & 1 == 1);
            done.map(|(_, op)| op).try_for_each(|op| with.apply(op, &Ok(0)))?;
            match difference(&found.tree, &with.tree()) {
                None => return Ok(()),
                differs => first = first.or(differs),
            }
        }
        Err(format!("after the death: {}", first.unwrap_or_default()))
    }
}
