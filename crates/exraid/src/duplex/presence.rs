//! Which clients work with a duplex, by a lock on the disks themselves: a client that was copied, with its own idea of who else is there,
//! finds the same disks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::sys::shared::{lock, Lock};

/// No byte of a disk lies there.
const AT: Range<u64> = 1 << 62..(1 << 62) + 1;

/// Somebody works with what is on a disk, until this is dropped.
pub struct Presence {
    _file: File,
}

impl Presence {
    /// From now on somebody works with it; with `first` only if nobody did before. `None` if somebody does.
    pub fn take(path: &Path, first: bool) -> io::Result<Option<Presence>> {
        let file = File::options().read(true).write(true).open(path)?;
        // It becomes a shared one without being given back: two who come at once cannot both be the first.
        let taken = (!first || lock(&file, &AT, Lock::Exclusive)?) && lock(&file, &AT, Lock::Shared)?;
        Ok(taken.then_some(Presence { _file: file }))
    }

    /// Does anybody?
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
