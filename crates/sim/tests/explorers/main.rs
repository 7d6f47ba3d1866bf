//! The explorers of crash states: each operation ends at any of its stores, and the state there is judged.
//!
//! | module | subject |
//! | --- | --- |
//! | [`blocks`] | blocks beside the heap |
//! | [`compression`] | compressing files, and making them plain again |
//! | [`backing`] | the medium `logged`: memory, marks and the backing on disk |
//! | [`damage`] | memory with damaged bytes: nothing panics or hangs |
//! | [`large`] | large files, with all losses of memory and disk |
//! | [`model`] | the model agrees with Linux |
//! | [`packed`] | packing and unpacking inodes |
//! | [`pairs`] | pairs of operations |
//! | [`random`] | operations drawn by seeds |
//! | [`repair`] | repairs that end at any store |
//! | [`singles`] | every single operation |
//! | [`testers`] | planted faults are found |
//! | [`together`] | several operations at once |

mod backing;
mod blocks;
mod compression;
mod damage;
mod large;
mod model;
mod packed;
mod pairs;
mod random;
mod repair;
mod singles;
mod testers;
mod together;
