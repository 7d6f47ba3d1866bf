//! The C library's text with a jump at each site, in a file that processes map in place of the text which the loader has mapped.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 to 4095 | [`Header`] |
//! | from 4096 | code of the trampolines, mapped [`DISTANCE`] below the text; it jumps to the address that the word [`ENTRY`] bytes below it holds |
//! | behind it | the text's pages from the first site to the last |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const PAGE: usize = 4096;
/// From the trampolines to the text: no library is so large, and a jump of 32 bits reaches so far.
pub const DISTANCE: usize = 1 << 30;
/// From the trampolines down to the word with the address that they jump to.
pub const ENTRY: usize = PAGE;
/// Changes with all that the library which maps the file relies on.
pub const MAGIC: [u8; 8] = *b"cqtext01";
/// Bytes of a build ID, of which shorter ones have zeros at their end.
pub const ID: usize = 32;

/// Offsets and lengths are whole pages.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub build_id: [u8; ID],
    /// Where the text that the file has begins in the library.
    pub start: u32,
    /// Bytes of that.
    pub text: u32,
    /// Bytes of the trampolines.
    pub trampolines: u32,
    pub reserved: u32,
}

/// A build ID as the header has it; `None`: it is too long.
#[inline]
pub fn id(build_id: &[u8]) -> Option<[u8; ID]> {
    let mut id = [0; ID];
    id.get_mut(..build_id.len())?.copy_from_slice(build_id);
    Some(id)
}
