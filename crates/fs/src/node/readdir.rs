//! Reading directories.

use rustix::io::Errno;

use super::{DirEntry, Fs};
use crate::attr::{Ino, Kind};
use crate::dir::{self, Dir};
use crate::error::Result;

/// Entries read per look at the directory.
const BATCH: usize = 128;

/// Entries as read in one optimistic section, handed out after it.
#[derive(Default)]
struct Batch {
    names: Vec<u8>,
    entries: Vec<(u64, Ino, u8, usize)>,
}

impl Fs {
    /// Hands out entries after `cookie` (0: from the start, `.` and `..` first) until `f` returns false.
    /// An entry that is there throughout is handed out exactly once however the table changes meanwhile.
    pub fn readdir(&self, ino: Ino, cookie: u64, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let raw = self.snapshot(ino)?;
        if raw.kind != Kind::Directory as u8 {
            return Err(Errno::NOTDIR.into());
        }
        self.note_access(ino, &raw)?;
        for (n, (name, target)) in [(&b"."[..], ino), (b"..", raw.extra)].into_iter().enumerate() {
            let entry = DirEntry { ino: target, kind: Kind::Directory, name, cookie: n as u64 + 1 };
            if cookie <= n as u64 && !f(entry) {
                return Ok(());
            }
        }
        let mut cookie = cookie.max(2);
        let mut batch = Batch::default();
        loop {
            self.read_batch(ino, cookie, &mut batch)?;
            let mut start = 0;
            for (next, target, kind, end) in &batch.entries {
                let name = &batch.names[start..*end];
                start = *end;
                let Some(kind) = Kind::from_type(*kind) else { continue };
                if !f(DirEntry { ino: *target, kind, name, cookie: *next }) {
                    return Ok(());
                }
            }
            match batch.entries.last() {
                Some((next, ..)) if batch.entries.len() == BATCH => cookie = *next,
                _ => return Ok(()),
            }
        }
    }

    fn read_batch(&self, ino: Ino, cookie: u64, batch: &mut Batch) -> Result<()> {
        self.session().read(ino, || {
            batch.names.clear();
            batch.entries.clear();
            let raw = self.raw_dir(ino)?;
            let d = Dir::of(&raw);
            let cookie = if cookie <= 2 { 0 } else { cookie };
            dir::read(self.memory(), &self.names(), &d, cookie, &mut |next, name, entry| {
                batch.names.extend_from_slice(name);
                batch.entries.push((next, entry.ino, entry.kind, batch.names.len()));
                batch.entries.len() < BATCH
            })
        })
    }
}
