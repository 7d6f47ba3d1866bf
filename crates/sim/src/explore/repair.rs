//! A crash during a repair: the next repair finds the same as the first one would have.

use std::sync::Arc;

use conquest_fs::Fs;
use pram::MediumKind;

use super::again::each_crash;
use super::{open, Depth};
use crate::check::sweep;
use crate::crash::mapping;
use crate::tape::{Moment, Tape};
use crate::tree::{difference, look, Tree};
use crate::verdict::{caught, Failure};
use crate::world::World;

/// A memory that needs a repair.
pub struct Damaged {
    pub name: String,
    pub kind: MediumKind,
    pub bytes: Vec<u8>,
}

/// Repairs it, and repairs again after a crash at each store of the repair, or at about `most` of them, evenly spread.
/// Returns the number of states; 0 if there is nothing to repair, or it cannot be opened.
pub fn explore_repair(damaged: &Damaged, depth: Depth, most: usize) -> Result<u64, Vec<Failure>> {
    let failure =
        |at: &str, text: String| vec![Failure { id: format!("{}:{}:{at}", damaged.name, damaged.kind.name()), text }];
    let whole = caught(|| repaired(damaged));
    let Some((moments, wanted)) = whole.map_err(|text| failure("repair:", text))? else { return Ok(0) };
    let step = (moments.len() / most).max(1);
    let (mut states, mut met) = (0, 0);
    let looked = each_crash(damaged.kind, depth, &damaged.bytes, &moments, |left, moment| {
        met += 1;
        if met % step != 0 {
            return Ok(());
        }
        states += 1;
        let left = left();
        let found = caught(|| repair(&open(left, damaged.kind)?.fs));
        let differs = found.and_then(|found| difference(&found, &wanted).map_or(Ok(()), Err));
        differs.map_err(|e| format!("the repair was cut at {moment}: {e}"))
    });
    looked.map_err(|text| failure("cut:", text))?;
    Ok(states)
}

/// The stores of a whole repair, and the tree after it. `None`: there is nothing to repair.
fn repaired(damaged: &Damaged) -> Result<Option<(Vec<Moment>, Tree)>, String> {
    let tape = Arc::<Tape>::default();
    tape.start(None);
    // Memory that cannot be opened is refused: other tests cover that.
    let Ok(world) = World::recover(damaged.kind, mapping(&damaged.bytes), &tape) else { return Ok(None) };
    let found = world.fs.fsck(false, &mut |_, _| {}).map_err(|e| format!("fsck: {e}"))?;
    if found.problems.is_empty() {
        return Ok(None);
    }
    let tree = repair(&world.fs)?;
    Ok(Some((tape.stop(), tree)))
}

/// Repairs; returns the tree after it.
fn repair(fs: &Fs) -> Result<Tree, String> {
    fs.fsck(true, &mut |_, _| {}).map_err(|e| format!("repair: {e}"))?;
    sweep(fs)?;
    Ok(look(fs)?.tree)
}
