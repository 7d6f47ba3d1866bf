//! getdents64.

use conquest_fs::node::DirEntry;
use rustix::io::Errno;

use super::{Outcome, Stop};
use crate::mapped::may_be_a_file;
use crate::open_file::OpenFile;
use crate::raw;
use crate::state::State;

/// Bytes of `struct linux_dirent64` before the name.
const HEAD: usize = 19;
/// Most bytes of names that one call lists where they are copied.
const MOST: usize = 1 << 20;

impl State {
    pub fn getdents64(&self, fd: usize, buf: usize, len: usize) -> Outcome {
        let file = self.file(fd)?;
        if !file.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let room = raw::room(buf, len, 1)?;
        if !may_be_a_file() {
            return self.list(&file, room);
        }
        let mut copy = vec![0; len.min(MOST)];
        let used = self.list(&file, &mut copy)?;
        raw::bytes_mut(buf, used)?.copy_from_slice(&copy[..used]);
        Ok(used)
    }

    fn list(&self, file: &OpenFile, buf: &mut [u8]) -> Outcome {
        let mut position = file.position();
        if position.is_kernels {
            return Err(Stop::Kernel);
        }
        let (mut used, mut is_full, mut next, mut failure) = (0, false, position.at, Errno::INVAL);
        let listed = self.fs().readdir(file.ino, position.at, &mut |entry| {
            match put(&mut buf[used..], &entry) {
                Ok(Some(size)) => (used, next) = (used + size, entry.cookie),
                Ok(None) => is_full = true,
                Err(errno) => (is_full, failure) = (true, errno),
            }
            !is_full
        });
        // Entries before a failure count.
        match (listed, used) {
            (Err(e), 0) => Err(e.into()),
            (Ok(()), 0) if is_full => Err(failure.into()),
            // A directory that was removed has none, not even `.`.
            _ if self.fs().is_removed(file.ino)? => Err(Errno::NOENT.into()),
            _ => {
                position.at = next;
                Ok(used)
            }
        }
    }
}

/// Puts a record at the beginning of `buf`, and returns its size, if it fits.
fn put(buf: &mut [u8], entry: &DirEntry) -> Result<Option<usize>, Errno> {
    let size = (HEAD + entry.name.len() + 1).next_multiple_of(8);
    let Some(record) = buf.get_mut(..size) else { return Ok(None) };
    if !raw::can_store(record) {
        return Err(Errno::FAULT);
    }
    record[..8].copy_from_slice(&entry.ino.to_ne_bytes());
    record[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
    record[16..18].copy_from_slice(&(size as u16).to_ne_bytes());
    record[18] = entry.kind as u8;
    let (name, rest) = record[HEAD..].split_at_mut(entry.name.len());
    name.copy_from_slice(entry.name);
    rest.fill(0);
    Ok(Some(size))
}
