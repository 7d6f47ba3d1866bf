//! Pools as programs use them: made, opened, saved, moved, and the durability of changes.
//!
//! | module | what it shows |
//! | --- | --- |
//! | [`backed`] | backings of pools on `battery`, and images on `logged` |
//! | [`full`] | disks that are full |
//! | [`guests`] | pools opened cheaply, beside a process that does the background work |
//! | [`host`] | a disk that is a file on a host that another program fills |
//! | [`memory`] | memory is taken as it is used, given back, and a pool grows |
//! | [`modes`] | when changes are durable on `logged` |
//! | [`names`] | pools as a program that embeds Conquest uses them |
//! | [`saving`] | images of pools with content on disks, saved while another thread writes |

mod backed;
mod full;
mod guests;
mod host;
mod memory;
mod modes;
mod names;
mod saving;
