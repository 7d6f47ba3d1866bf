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
