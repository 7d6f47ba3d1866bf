//! Judges the state that a cut left: by its content, and by living on with it.

use crate::check::{check, sweep, work_with};
use crate::choice::Choice;
use crate::disk::Files;
use crate::history::{Boundary, History};
use crate::op::{append, create, mkdir};
use crate::story::Step::{Checkpoint, Wait};
use crate::story::{steps, Teller};
use crate::tape::Still;
use crate::tree::look;
use crate::verdict::Stats;
use crate::world::{reload, World};

/// Judges the state that a cut after `at` events left; if `deep` also by living on with it, and returns that life.
pub fn judge(
    history: &History,
    at: usize,
    left: &Files,
    deep: bool,
    stats: &mut Stats,
) -> Result<Option<History>, String> {
    let bytes = reload(left, history.setup.size)?;
    let n = history.which_bytes(history.after_loss(at), &bytes)?;
    *(if n == history.reached(at) { &mut stats.newest } else { &mut stats.older }) += 1;
    deep.then(|| go_on(history, n, left)).transpose()
}

/// Opens the state that a cut left, which is instant `n`, checks everything, and lives on.
fn go_on(history: &History, n: usize, left: &Files) -> Result<History, String> {
    let world = World::load(history.setup, left.clone())?;
    check(&world.fs, false)?;
    let found = look(&world.fs)?;
    history.which_seen(n..=n, &found).map_err(|e| format!("opened, it is not instant {n}: {e}"))?;
    // On a full file system work may fail: that is not judged here.
    let _ = work_with(&world.fs, &found);
    let instant = history.boundaries[n].bytes.clone();
    let start = Still { memory: instant.clone(), marks: Vec::new(), files: left.clone() };
    live(&world, start, vec![Boundary::new(0, instant)], 0).map_err(|e| format!("after recovery: {e}"))
}

/// Lives on in `world`, recorded since `start`. `earlier` are the instants of the life before, of which number
/// `promised` was promised.
pub fn live(world: &World, start: Still, earlier: Vec<Boundary>, promised: usize) -> Result<History, String> {
    let fs = world.fs.clone();
    let mut teller = Teller::new(world, &fs);
    teller.remember(earlier, promised);
    teller.note();
    let steps = steps! {
        create("/zz-second-file"), append("/zz-second-file", 2500, 1), Wait, mkdir("/zz-second-dir"), Checkpoint, Wait,
    };
    for step in &steps {
        teller.step(step)?;
    }
    same_again(world)?;
    sweep(&fs)?;
    teller.note();
    teller.step(&Wait)?;
    teller.end(start)
}

/// A cut now, after a wait, leaves the content of the memory.
pub fn same_again(world: &World) -> Result<(), String> {
    let now = History::of(world.setup, world.still()?);
    let bytes = reload(&now.start.files.cut(Choice::None), now.setup.size).map_err(|e| format!("after a wait: {e}"))?;
    now.which_bytes(0..=0, &bytes).map(drop).map_err(|e| format!("after a wait, the backing is not the memory: {e}"))
}
