//! The clients that work with a duplex, by a lock on the disks themselves: a copy of a client, which may not know of
//! the other one, finds the same disks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::sys::shared::{lock, Lock};

/// No byte of a disk lies there.
const AT: Range<u64> = 1 << 62..(1 << 62) + 1;

/// Marks a disk's content as in use until it is dropped.
pub struct Presence {
    _file: File,
}

impl Presence {
    /// Takes the lock; with `first` only if no other client had it, else `None`.
    pub fn take(path: &Path, first: bool) -> io::Result<Option<Presence>> {
        let file = File::options().read(true).write(true).open(path)?;
        // It becomes a shared one without being released: two clients that come at once cannot both be the first.
        let taken = (!first || lock(&file, &AT, Lock::Exclusive)?) && lock(&file, &AT, Lock::Shared)?;
        Ok(taken.then_some(Presence { _file: file }))
    }

    /// Does any client have it?
    pub fn is_taken(path: &Path) -> io::Result<bool> {
        Ok(Presence::take(path, true)?.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_those_who_come_one_is_the_first() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let first = Presence::take(file.path(), true).expect("a lock").expect("nobody is there");
        let second = Presence::take(file.path(), false).expect("a lock").expect("with the first");
        drop(first);
        assert!(Presence::is_taken(file.path()).expect("a lock"));
        drop(second);
        assert!(!Presence::is_taken(file.path()).expect("a lock"));
    }
}
