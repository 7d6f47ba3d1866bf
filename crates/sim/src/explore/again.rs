//! A second crash, during the recovery from the first.

use std::ops::RangeInclusive;
use std::sync::Arc;

use pram::{Mapping, MediumKind};

use super::{open, Depth, Run};
use crate::crash::{each_point, mapping, points};
use crate::scenario::Scenario;
use crate::tape::{Moment, Tape};
use crate::world::World;

/// Most cuts inside one long store.
const CUTS: u64 = 2;

/// Recovers the state that a crash left, which must be one of `allowed`, and again after a crash at each store of that
/// recovery: the result is the same.
pub(super) fn recover_twice(
    run: &Run,
    s: &Scenario,
    kind: MediumKind,
    depth: Depth,
    left: &Mapping,
    allowed: RangeInclusive<usize>,
) -> Result<(), String> {
    let mut bytes = vec![0; left.len() as usize];
    left.copy_out(0, &mut bytes).map_err(|e| e.to_string())?;
    let tape = Arc::<Tape>::default();
    tape.start(None);
    let world = World::recover(kind, mapping(&bytes), &tape)?;
    let moments = tape.stop();
    let after = run.judge(s, &world.fs, allowed, false)?;
    let differ = run.changes();
    each_crash(kind, depth, &bytes, &moments, |left, text| {
        let text = format!("recovery was cut at {text}");
        let found = open(left(), kind).and_then(|world| run.judge(s, &world.fs, 0..=1, false));
        match found.map_err(|e| format!("{text}: {e}"))? {
            found if differ && found != after => Err(format!("{text}: first it was after: {after}, then: {found}")),
            _ => Ok(()),
        }
    })
}

/// Calls `look` for each crash, with a function that makes its memory and the name of its point.
pub(super) fn each_crash(
    kind: MediumKind,
    depth: Depth,
    base: &[u8],
    moments: &[Moment],
    mut look: impl FnMut(&dyn Fn() -> Mapping, &str) -> Result<(), String>,
) -> Result<(), String> {
    let looked = each_point(kind, base, moments, points(moments, CUTS), |point, medium| {
        let mut choices = depth.choices(medium).into_iter();
        choices.try_for_each(|choice| look(&|| medium.crash(choice), &format!("{}:{}", point.name(), choice.name())))
    });
    looked.map(drop)
}
