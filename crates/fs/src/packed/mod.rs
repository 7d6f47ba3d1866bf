//! Packed inodes and names: their form when they have been quiet (mramfs, chapters 4 and 5).
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`block`] | up to sixteen inodes in the bytes of a block |
//! | [`fields`] | the coded fields of an inode |
//! | `values` | an inode as numbers that are small if it is like its neighbours, and back |
//! | [`names`] | names as codes of their frequent parts |
//! | [`profile`] | the codes of all fields and the symbols of names, and their stored form |
//! | [`seen`] | a profile made from a scan |
//! | [`fit`] | codes made from how often values occur: all-or-nothing, Huffman, gamma, hybrid |
//! | [`code`] | a prefix code over buckets of values |
//! | [`bits`], [`varint`] | streams of bits, numbers in bytes |
//!
//! Nothing here knows of the memory: these are functions of bytes. They read any bytes without a panic, and in bounded
//! time; a sequence counter or a checksum tells whether their result is right.

pub mod bits;
pub mod block;
pub mod code;
pub mod fields;
pub mod fit;
pub mod names;
pub mod profile;
pub mod seen;
#[cfg(test)]
mod tests;
mod values;
pub mod varint;

use std::sync::OnceLock;

pub use block::{pack, unpack, Header, Prepared};
pub use profile::Profile;

/// Inodes in a block.
pub const PER_BLOCK: usize = crate::layout::PER_BLOCK as usize;

/// The profile of a Debian machine's `/usr` (`conquest profile /usr -o FILE`): for pools that have no other.
pub fn builtin() -> &'static Profile {
    static BUILTIN: OnceLock<Profile> = OnceLock::new();
    BUILTIN.get_or_init(|| Profile::from_bytes(include_bytes!("builtin.profile")).expect("the profile of this version"))
}
