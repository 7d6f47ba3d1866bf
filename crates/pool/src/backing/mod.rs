//! The backing of a pool's memory: a checkpoint and two redo logs.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`logged`] | the home of a pool on ordinary RAM: opening it, making its memory from it |
//! | [`replica`] | the backing of a pool whose memory survives a power cut |
//! | [`attach`] | opening memory, marks and backing together: resumed, begun, compared |
//! | [`regions`] | the backing in regions of the pool itself |
//! | [`room`] | the room in a region that is reserved for it ahead of need |
//! | [`placement`] | maintenance of that: lacking members, regions that leave |
//! | [`scrub`] | comparing its copies, and repairing damage |
//! | [`files`] | the files of a backing: made, opened, replaced |
//! | [`verified`] | checks of these files while they are in use |
//! | [`direct_io`] | a file read and written past the page cache |

pub mod attach;
mod direct_io;
pub mod files;
pub mod logged;
pub mod placement;
pub mod regions;
pub mod replica;
pub mod room;
pub mod scrub;
mod verified;
