//! The part of the union cache in commits to a copy (decisions 9 and 13).
//!
//! A copy has the descriptors of blocks, and of their content only what has no place when its epoch ends: so whatever the copy
//! names is on disk or in the copy. What is large goes to segments before the instant of the commit, and is written once; what is
//! small, and somebody waits for, goes with the commit, which is written anyway, and to a segment later, if it is still there then.

use std::sync::Weak;

use pram::blocks::{Cursor, Descriptor, Which};
use pram::session::{Frozen, Participant};
use pram::Session;

use super::write_back;
use crate::node::Fs;

/// Blocks that go with a commit rather than to a segment before it, where somebody waits for the commit: one flush for both.
const WITH_COMMIT: u64 = 64;
/// Rounds in which what is written meanwhile is written too, before the rest goes with the commit.
const ROUNDS: u32 = 4;
/// Segments whose descriptors are looked at in one step.
const STEP: usize = 1024;

/// The union cache of a pool, as a participant.
pub struct Commits(pub Weak<Fs>);

/// Calls `see` with each block that no commit has yet.
fn each_new(session: &Session, see: &mut dyn FnMut(u64)) -> pram::Result<()> {
    let (durable, mut cursor) = (session.epochs()?.durable, Cursor::default());
    let mut is_new = |block, descriptor: Descriptor| {
        if descriptor.epoch >= durable {
            see(block);
        }
    };
    while session.heap().walk_blocks(Which::Unplaced, &mut cursor, STEP, &mut is_new)? {}
    Ok(())
}

fn new_blocks(session: &Session) -> u64 {
    let mut count = 0;
    // What cannot be read now fails at the instant.
    let _ = each_new(session, &mut |_| count += 1);
    count
}

impl Participant for Commits {
    fn prepare(&self, session: &Session, awaited: bool) {
        let Some(fs) = self.0.upgrade() else { return };
        let Some(union) = fs.union() else { return };
        let least = if awaited { WITH_COMMIT } else { 0 };
        for _ in 0..ROUNDS {
            let new = new_blocks(session);
            if new <= least {
                break;
            }
            match union.write_back(&fs, new.max(write_back::MUCH as u64) as usize, None) {
                Ok(0) => break,
                Ok(_) => {}
                // It goes with the commit.
                Err(e) => {
                    tracing::warn!("writing content before a commit: {e}");
                    break;
                }
            }
        }
    }

    fn at_rest(&self, still: &Frozen, _epoch: u64) -> pram::Result<()> {
        let mut marked = Ok(());
        each_new(still.session(), &mut |block| {
            if marked.is_ok() {
                marked = still.mark_block(block);
            }
        })?;
        marked
    }

    fn durable(&self, _session: &Session, _epoch: u64) {
        // Freed segments may be used again.
        if let Some(union) = self.0.upgrade().as_ref().and_then(|fs| fs.union()) {
            union.ring();
        }
    }
}
