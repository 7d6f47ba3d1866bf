//! The part of the union cache in commits to a backing.
//!
//! A backing has the descriptors of blocks, and the content only of those that have no place when its epoch ends: so all content that
//! the backing names is on disk or in the backing. Large content goes to segments before the instant of the commit, and is written once.
//! Small content that is waited for goes with the commit, which is written anyway, and to a segment later, if it is still there then.
//! In a region that is a RAID-5, content is *small* if it does not fill a stripe: a part of one would be written twice there, and both times
//! before anything is acknowledged ([`exraid::region::raid5`]).

use std::sync::{Arc, Weak};

use exraid::{Layout, Region};
use pram::heap::{Cursor, Which};
use pram::memory::BLOCK;
use pram::session::{Frozen, Participant};
use pram::Session;

use super::{write_back, Inodes};

/// Blocks that go with a commit rather than to a segment before it, if the commit is waited for: one flush for both.
const WITH_COMMIT: u64 = 64;
/// The same where a stripe of a RAID-5 holds more, at most.
const WITH_COMMIT_MOST: u64 = 1024;
/// Rounds that also write the blocks written meanwhile, before the rest goes with the commit.
const ROUNDS: u32 = 4;
/// Chunks of the heap whose descriptors are looked at in one step.
const STEP: usize = 1024;

/// The union cache of a pool, as a participant.
pub struct Commits(Weak<dyn Inodes>);

impl Commits {
    pub fn of<F: Inodes + 'static>(fs: &Arc<F>) -> Commits {
        let fs = Arc::downgrade(fs);
        Commits(fs)
    }
}

/// Blocks that no commit has yet.
fn new_blocks(session: &Session) -> u64 {
    let (mut count, mut cursor) = (0, Cursor::default());
    // A block that cannot be read now fails at the instant.
    while session.heap().walk_blocks(Which::Fresh, &mut cursor, STEP, &mut |_, _| count += 1).unwrap_or(false) {}
    count
}

/// Blocks that go with a commit where these regions take content: they fill no stripe.
fn with_commit(regions: &[Arc<dyn Region>]) -> u64 {
    let raid5 = regions.iter().filter(|region| matches!(region.layout(), Layout::Raid5 { .. }));
    let stripe = raid5.map(|region| region.stripe() / BLOCK).max().unwrap_or(0);
    stripe.saturating_sub(1).clamp(WITH_COMMIT, WITH_COMMIT_MOST)
}

impl Participant for Commits {
    fn prepare(&self, session: &Session, awaited: bool) {
        let Some(fs) = self.0.upgrade() else { return };
        let Some(union) = fs.union() else { return };
        let least = if awaited { with_commit(&union.regions()) } else { 0 };
        for _ in 0..ROUNDS {
            let new = new_blocks(session);
            if new <= least {
                break;
            }
            match union.write_back(&*fs, new.max(write_back::MUCH as u64) as usize, None) {
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
        still.mark_fresh()
    }

    fn durable(&self, session: &Session, _epoch: u64) {
        let Some(fs) = self.0.upgrade() else { return };
        let Some(union) = fs.union() else { return };
        // Freed segments may be used again.
        if union.log().counts(session).map_or(true, |counts| counts.freed > 0) {
            union.wake();
        }
    }
}
