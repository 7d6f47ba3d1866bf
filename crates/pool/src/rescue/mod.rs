//! Memory that has lost its backing, its name or its pool.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`absent`] | the configuration of a pool that should exist |
//! | [`identity`] | the pool to which memory belongs |
//! | [`inventory`] | the memory of pools on this host, and its owners |
//! | [`orphans`] | shared memory, identified by its notes; giving back memory of pools that are gone |
//! | [`salvage`] | the memory of a pool alone, for inspecting and saving it if its backing cannot be used |

pub mod absent;
pub mod identity;
pub mod inventory;
pub mod orphans;
pub mod salvage;
