//! The backing of a pool's memory: a checkpoint and two redo logs.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`logged`] | a pool on ordinary RAM, whose backing is its home: opening it, making its memory from the backing |
//! | [`replica`] | the backing of a pool whose memory survives a power cut |
//! | [`attach`] | region, marks and backing taken up together: resumed, begun, compared |
//! | [`regions`] | the backing in regions of the pool itself |
//! | [`room`] | how much of a region is reserved for it ahead of need |
//! | [`placement`] | looking after that: members that are lacking, regions that leave |
//! | [`scrub`] | comparing its copies, and putting right what is rotten |
//! | [`files`] | the files of a backing: made, opened, replaced |
//! | [`verified`] | those files, verified to be there while they are in use |
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
