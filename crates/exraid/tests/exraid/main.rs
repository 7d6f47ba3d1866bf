//! Disks, labels and regions, against files, against disks in memory, and against disks that fail.
//!
//! | module | tests |
//! | --- | --- |
//! | `disks` | files of the host: reads return earlier writes, also many at a time; refusals |
//! | `opening` | each reason not to open or make a disk, and its message |
//! | `labels` | a power cut at each write and flush of an update; damage; halves that differ |
//! | `failing` | the failing disks themselves |
//! | `regions` | regions of each kind: whole, degraded, rebuilt, after power cuts |
//! | `raid5` | RAID-5 regions: degraded, rebuilt, cut short, written by many |
//! | `duplex` | streams in two regions at once: exclusion, filling, power cuts |
//! | `sharing` | regions that several processes use |
//! | `format` | docs/FORMAT.md against the structures |

mod disks;
mod duplex;
mod failing;
mod format;
mod labels;
mod opening;
mod raid5;
mod regions;
mod sharing;
