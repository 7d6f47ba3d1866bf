//! Volumes: what a file system may take for granted of a disk holds of several.
//!
//! | module | what it shows |
//! | --- | --- |
//! | [`line`] | any bytes at any place, over regions of all kinds; against a model |
//! | [`power`] | power cuts together with a lost disk |
//! | [`volumes`] | directories and files: made, refused, opened without a disk, rebuilt, replaced |

mod line;
mod power;
mod volumes;
