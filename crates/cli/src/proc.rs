//! What /proc lists.

use std::path::PathBuf;

/// What has a number for a name in a directory of /proc.
pub fn numbered(dir: &str) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    entries.filter(move |entry| is_number(&entry.file_name())).map(|entry| entry.path())
}
