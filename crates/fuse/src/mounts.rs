//! The mount table.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};

/// What the table says of one mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub fstype: String,
    pub source: PathBuf,
}

/// The mount that is on top at exactly this directory. Any bytes may stand in the table, in lines of others too.
pub fn topmost(dir: &Path) -> Result<Option<Entry>> {
    let table = std::fs::read("/proc/self/mountinfo").context("read the mount table")?;
    let at_dir = |(at, entry): (PathBuf, Entry)| (at == dir).then_some(entry);
    Ok(table.split(|b| *b == b'\n').rev().filter_map(parse).find_map(at_dir))
}

/// A line of mountinfo: `id parent major:minor root point options [tags] - fstype source options`.
fn parse(line: &[u8]) -> Option<(PathBuf, Entry)> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let fstype = String::from_utf8_lossy(fields.get(dash + 1)?).into_owned();
    let entry = Entry { fstype, source: unescape(fields.get(dash + 2)?) };
    Some((unescape(fields.get(4)?), entry))
}

/// Undoes `\040` and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut parts = field.split(|b| *b == b'\\');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                out.extend_from_slice(&part[3..]);
            }
            None => out.extend_from_slice(part),
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_in_paths_are_understood() {
        let line = br"36 35 0:45 / /mnt/my\040files rw,relatime shared:1 - fuse.conquest /var/my\040pool rw,user_id=0";
        let entry = Entry { fstype: "fuse.conquest".into(), source: "/var/my pool".into() };
        assert_eq!(parse(line), Some(("/mnt/my files".into(), entry)));
        assert_eq!(parse(b"nonsense"), None);
        assert_eq!(parse(b""), None);
    }

    /// One such mount, of whatever type, kept every pool from being mounted and unmounted.
    #[test]
    fn paths_are_bytes() {
        let line = b"36 35 0:45 / /mnt/\xff\\0121 rw - tmpfs none rw";
        let (at, _) = parse(line).unwrap();
        assert_eq!(at.into_os_string().into_vec(), b"/mnt/\xff\n1");
    }
}
