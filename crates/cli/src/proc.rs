//! Lists directories of /proc.

use std::path::PathBuf;

/// The entries of a directory of /proc whose names are numbers.
pub fn numbered(dir: &str) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    entries.filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path())
}
