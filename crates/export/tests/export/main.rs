//! Volumes: a volume of several disks does all that a file system expects of one.
//!
//! | module | tests |
//! | --- | --- |
//! | [`line`] | any bytes at any place, over regions of all kinds; against a model |
//! | [`power`] | power cuts together with a lost disk |
//! | [`volumes`] | directories and files: made, refused, opened without a disk, rebuilt, replaced |

mod line;
mod power;
mod volumes;
