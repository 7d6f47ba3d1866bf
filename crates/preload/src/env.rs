//! The environment that `conquest run` sets.

use std::ffi::CStr;

/// Names the file with the C library's rewritten text.
pub const TEXT: &CStr = c"CONQUEST_TEXT";
/// Names the mounts.
pub const MOUNTS: &CStr = c"CONQUEST_MOUNTS";

/// The value of a variable. Only while the process has one thread, and to be copied: the program may overwrite it.
pub fn value(name: &CStr) -> Option<&CStr> {
    // SAFETY: nobody else changes the environment meanwhile, and a value ends with 0.
    unsafe { libc::getenv(name.as_ptr()).as_ref().map(|value| CStr::from_ptr(value)) }
}
