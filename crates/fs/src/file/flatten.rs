//! A tree by its runs: made direct where it is small, and zeroed where it is not defined.

use super::direct::Direct;
use super::edit::Edit;
use super::map::Runs;
use super::run::{Run, Where};
use super::tree::{Node, Writer};
use super::{Content, Form, PAGE};
use crate::error::{Error, Result};
use crate::layout::tag;

/// Zeroes undefined bytes between the size and `to`: of the page with the end of the file (F5).
pub(super) fn expose(tx: &mut Edit, c: &mut Content, root: Node, to: u64) -> Result<()> {
    let to = to.min(c.size.next_multiple_of(PAGE));
    match Runs::of(tx.memory(), Form::Tree(root), c.size, to).step()? {
        Some(Run { at: Where::Memory(at), len, .. }) if !c.is_large() => Ok(tx.init_zero(at, len)?),
        Some(Run { at: Where::Memory(_), off, len }) => {
            Writer { tx, c, fresh: false, large: true }.write(off, &[0; PAGE as usize][..len as usize])
        }
        Some(Run { at: Where::Disk(_), .. }) => Err(Error::Elsewhere),
        _ => Ok(()),
    }
}

/// Makes a small tree without holes direct.
pub(super) fn flatten(tx: &mut Edit, c: &mut Content, root: Node) -> Result<()> {
    let block = tx.alloc(tag::DATA, c.size)?;
    let mut runs = Runs::of(tx.memory(), Form::Tree(root), 0, c.size);
    while let Some(run) = runs.step()? {
        match run.at {
            Where::Disk(_) | Where::Compressed => return Err(Error::Elsewhere),
            Where::Hole | Where::Reserved => tx.init_zero(block.off + run.off, run.len)?,
            Where::Memory(at) => tx.init_copy(at, block.off + run.off, run.len)?,
        }
    }
    let size = c.size;
    super::free(tx, c)?;
    c.root = Direct { off: block.off, cap: block.cap, reserved: false }.root(false);
    c.size = size;
    Ok(())
}
