//! The memory of a pool: a file, a DAX device, or shared memory.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`file`] | making, finding and opening the memory's file, or a device in its place |
//! | [`device`] | a DAX device, overwritten in place |
//! | [`shared`] | files in shared memory: names, owners, making a memory there |
//! | [`marks`] | marks of the changes that the backing lacks, in shared memory beside the memory |
//! | [`locks`] | attached processes, and keeping others from attaching |
//! | [`map`] | opening and mapping as the medium demands |

pub mod device;
pub mod file;
pub mod locks;
pub mod map;
pub mod marks;
pub mod shared;
