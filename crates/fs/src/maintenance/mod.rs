//! Chores on disks, in the background or by command.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`clean`] | what the cleaner asks of files; freeing segments |
//! | [`disks`] | copies that are lacking, regions that leave or come back, balance, scrubbing |
//! | [`rewrite_doubtful`] | what memory holds of content that is lost on disk is written anew |

pub(crate) mod clean;
pub mod disks;
mod rewrite_doubtful;

use std::time::Duration;

use pram::budget::{self, Rest};

/// How often a command that does such work itself looks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(200);
/// A piece of work is answered by so long a rest at least: who waits for the lock of those who clean looks for it now and then.
pub const LEAST: Duration = Duration::from_millis(2);

/// The rest of a command that does such work itself, as long as `go_on`.
pub fn looking<'a>(go_on: impl FnMut() -> bool + 'a) -> Rest<'a> {
    budget::looking(GLANCE, go_on)
}
