//! The mount table.

use std::path::Path;

use crate::error::{Context, Result};

/// What the table says of one mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub fstype: String,
    pub source: String,
}

/// The mount that is on top at exactly this directory.
pub fn topmost(dir: &Path) -> Result<Option<Entry>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    let at_dir = |(at, entry): (String, Entry)| (Path::new(&at) == dir).then_some(entry);
    Ok(table.lines().rev().filter_map(parse).find_map(at_dir))
}

/// A line of mountinfo: `id parent major:minor root point options [tags] - fstype source options`.
fn parse(line: &str) -> Option<(String, Entry)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let entry = Entry { fstype: unescape(kind.next()?), source: unescape(kind.next()?) };
    Some((unescape(place.split(' ').nth(4)?), entry))
}

/// Undoes `\040` and the like.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut out = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                out.extend_from_slice(&part.as_bytes()[3..]);
            }
            None => out.extend_from_slice(part.as_bytes()),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_in_paths_are_understood() {
        let line = r"36 35 0:45 / /mnt/my\040files rw,relatime shared:1 - fuse.conquest /var/my\040pool rw,user_id=0";
        let entry = Entry { fstype: "fuse.conquest".into(), source: "/var/my pool".into() };
        assert_eq!(parse(line), Some(("/mnt/my files".into(), entry)));
        assert_eq!(parse("nonsense"), None);
    }
}
