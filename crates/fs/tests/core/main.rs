//! The core under adverse conditions: other threads and processes, deaths, full pools, damage, callers
//! without rights. Each test that a found bug left tells its story.
//!
//! | module | conditions |
//! | --- | --- |
//! | `namespace` | renames, links and removals beside one another |
//! | `references` | inodes without name, numbers used again, memory that comes back |
//! | `concurrency` | threads and processes in the same places; sweeps beside them; kill -9 |
//! | `full` | no space at any point |
//! | `like_std` | files and directories as `std` has them |
//! | `long` | long work, and others in between |
//! | `damage` | flipped bytes anywhere |
//! | `packed` | inodes packed and unpacked while others work on them |
//! | `permissions` | callers that are not the superuser |
//! | `repair` | repairs while others have the pool open |
//! | `times` | changes within one tick of the clock |
//! | `triples` | users that make ever new owners and modes |
//! | `recent` | changes on the way to the directory that a thread found last |

mod concurrency;
mod damage;
mod full;
mod like_std;
mod long;
mod namespace;
mod packed;
mod permissions;
mod recent;
mod references;
mod repair;
mod rig;
mod times;
mod triples;
