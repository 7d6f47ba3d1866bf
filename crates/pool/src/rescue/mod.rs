//! Memory that has lost its backing, its name or its pool.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`absent`] | the configuration of a pool that should be there |
//! | [`identity`] | which pool memory belongs to |
//! | [`inventory`] | what memory this host holds, and whose it is |
//! | [`orphans`] | memory in shared memory, found by what it notes; giving back that of pools that are gone |
//! | [`salvage`] | the memory of a pool alone, to look at and to save, where its backing cannot be used |

pub mod absent;
pub mod identity;
pub mod inventory;
pub mod orphans;
pub mod salvage;
