//! Maintenance of disks, in the background or by command.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`clean`] | the files as the cleaner sees them; freeing segments |
//! | [`disks`] | lacking replicas, regions that leave or come back, balance, scrubbing |
//! | [`rewrite_doubtful`] | cached content that is lost on disk is written anew |

pub(crate) mod clean;
pub mod disks;
mod rewrite_doubtful;

use std::time::Duration;

use pram::budget::{self, Rest};

/// How often a command that does such work itself looks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(200);
/// The least rest after a piece of work: processes that wait for the cleaner's lock test it now and then.
pub const LEAST: Duration = Duration::from_millis(2);

/// The rest of a command that does such work itself, as long as `go_on`.
pub fn looking<'a>(go_on: impl FnMut() -> bool + 'a) -> Rest<'a> {
    budget::looking(GLANCE, go_on)
}
