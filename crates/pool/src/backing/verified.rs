//! The files of a backing, with checks that they stay while the pool is in use, and do not get shorter.
//!
//! A deleted file takes writes and flushes as before, but no process would find them after a power cut. So the files are
//! checked before each write, and after each flush before it counts as durable.
//! Moving them, or their directory, harms no process that has them open.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use backing::log::Disk;
use backing::SharedDisk;
use pram::mem::fork;
use rustix::fs::{flock, statx, AtFlags, FlockOperation, Statx, StatxFlags};
use rustix::io::Errno;

/// A file of the backing, and its former state.
struct VerifiedFile {
    file: File,
    path: PathBuf,
    /// It had a name. (Some file systems count none.)
    named: bool,
    /// The least length that it must have.
    len: AtomicU64,
}

impl VerifiedFile {
    fn new(file: File, path: &Path) -> io::Result<VerifiedFile> {
        let found = names_and_length(&file)?;
        Ok(VerifiedFile { file, path: path.into(), named: found.stx_nlink > 0, len: found.stx_size.into() })
    }

    fn check(&self) -> io::Result<()> {
        // In this order: another thread may let the file grow meanwhile.
        let least = self.len.load(Ordering::Acquire);
        let found = names_and_length(&self.file)?;
        let what = match () {
            () if self.named && found.stx_nlink == 0 => "was deleted or replaced",
            () if found.stx_size < least => "was cut short",
            () => return Ok(()),
        };
        Err(io::Error::other(format!(
            "{} {what} while the pool was in use; what the pool holds can be read until it is closed",
            self.path.display()
        )))
    }
}

/// Names and length of a file, and nothing else: asking for the times of a file makes Linux change them with the next
/// write, and the host's file system logs that (an `fsync` took 250 us instead of 165).
fn names_and_length(file: &File) -> io::Result<Statx> {
    Ok(statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK | StatxFlags::SIZE)?)
}

/// The files of one backing. A process that works with them locks the last one; while it takes that lock, or another process tests
/// it, the one before is locked.
pub struct VerifiedFiles {
    /// Those with locks: no child of `fork` has them. Dropped before their numbers are free.
    _own: Vec<fork::Own>,
    parts: Vec<VerifiedFile>,
}

impl VerifiedFiles {
    /// Files, and their paths.
    pub fn of(files: Vec<(File, PathBuf)>) -> io::Result<Arc<VerifiedFiles>> {
        let parts: io::Result<Vec<VerifiedFile>> =
            files.into_iter().map(|(file, path)| VerifiedFile::new(file, &path)).collect();
        let parts = parts?;
        let _own = parts.iter().skip(1).map(|part| fork::keep_open(part.file.as_fd())).collect();
        Ok(Arc::new(VerifiedFiles { parts, _own }))
    }

    /// Locks the files for work until all of them are closed. With `first`, only if no process worked with them before;
    /// false if one does.
    pub fn take(&self, first: bool) -> bool {
        let [.., gate, last] = &self.parts[..] else { return true };
        let _gate = Gate::enter(&gate.file);
        if first && is_busy(&last.file) {
            return false;
        }
        // A file system without such locks gives no protection.
        let _ = flock(&last.file, FlockOperation::NonBlockingLockShared);
        true
    }

    fn check(&self) -> io::Result<()> {
        self.parts.iter().try_for_each(VerifiedFile::check)
    }

    /// `disk`, which is file `n` of them: its flush fails if any of them has been removed or shortened.
    pub fn verify(self: &Arc<VerifiedFiles>, n: usize, disk: impl Disk + 'static) -> SharedDisk {
        Arc::new(VerifiedDisk { disk, n, parts: self.clone() })
    }
}

/// Whether a process works with the backing whose last two files these are.
pub fn is_taken([gate, last]: [&File; 2]) -> bool {
    let _gate = Gate::enter(gate);
    let busy = is_busy(last);
    let _ = flock(last, FlockOperation::Unlock);
    busy
}

/// If not, it is locked from here on.
fn is_busy(last: &File) -> bool {
    flock(last, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

/// While one process holds it, no other takes a backing or tests whether one is taken. (Otherwise two could find the backing free and
/// both take it, and a test would keep another process from taking it.)
struct Gate<'a>(&'a File);

impl Gate<'_> {
    fn enter(file: &File) -> Gate<'_> {
        while flock(file, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
        Gate(file)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

struct VerifiedDisk<D> {
    disk: D,
    n: usize,
    parts: Arc<VerifiedFiles>,
}

impl<D: Disk> Disk for VerifiedDisk<D> {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.disk.read_exact_at(buf, at)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        // Also before the write: a process that has replaced this backing by another must find that unchanged.
        self.parts.check()?;
        self.disk.write_all_at(bytes, at)?;
        if let Some(part) = self.parts.parts.get(self.n) {
            part.len.fetch_max(at + bytes.len() as u64, Ordering::Release);
        }
        Ok(())
    }

    fn reads_at_once(&self) -> usize {
        self.disk.reads_at_once()
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()?;
        self.parts.check()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Two files, and the first of them as a disk.
    fn verified(dir: &Path) -> SharedDisk {
        let made = ["a", "b"].map(|name| {
            let path = dir.join(name);
            fs::write(&path, [1; 100]).expect("a file");
            (File::options().read(true).write(true).open(&path).expect("it is there"), path)
        });
        let disk = made[0].0.try_clone().expect("another hold");
        VerifiedFiles::of(made.into()).expect("they are there").verify(0, disk)
    }

    #[test]
    fn files_that_stay_can_be_moved_and_grow() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let disk = verified(dir.path());
        disk.write_all_at(&[2; 100], 100).expect("a write");
        fs::rename(dir.path().join("b"), dir.path().join("c")).expect("rename");
        disk.flush().expect("nothing is missing");
    }

    #[test]
    fn a_file_that_grows_meanwhile_is_not_cut_short() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let disk = verified(dir.path());
        std::thread::scope(|s| {
            let growing = s.spawn(|| {
                let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
                let grow = |n| disk.write_all_at(&[3; 8], 100 + 8 * n).expect("nothing is missing");
                (0..100_000u64).take_while(|_| std::time::Instant::now() < end).for_each(grow);
            });
            while !growing.is_finished() {
                disk.write_all_at(&[4; 8], 0).expect("nothing is missing");
            }
        });
    }

    #[test]
    fn of_many_who_come_at_once_one_is_the_first() {
        let dir = tempfile::tempdir_in(".").expect("a directory");
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| fs::write(path, [1; 100]).expect("a file"));
        let open = |path: &PathBuf| File::options().read(true).write(true).open(path).expect("it is there");
        let parts = || {
            VerifiedFiles::of(paths.iter().map(|path| (open(path), path.clone())).collect()).expect("they are there")
        };
        let is_taken = || is_taken([&open(&paths[0]), &open(&paths[1])]);
        for _ in 0..200 {
            let comers: Vec<_> = (0..8).map(|_| parts()).collect();
            let firsts = std::thread::scope(|s| {
                let taken: Vec<_> = comers.iter().map(|parts| s.spawn(|| parts.take(true))).collect();
                taken.into_iter().filter_map(|taken| taken.join().ok()).filter(|first| *first).count()
            });
            assert!(firsts == 1 && is_taken() && comers[0].take(false) && !comers[1].take(true));
            drop(comers);
            assert!(!is_taken());
        }
    }

    #[test]
    fn notifications_of_files_that_do_not_stay() {
        type Harm = (&'static str, fn(&Path));
        let harms: [Harm; 4] = [
            ("a was deleted", |dir| fs::remove_file(dir.join("a")).expect("it was there")),
            ("b was deleted", |dir| fs::rename(dir.join("a"), dir.join("b")).expect("rename")),
            ("a was cut short", |dir| fs::write(dir.join("a"), [0; 150]).expect("write")),
            ("b was cut short", |dir| fs::write(dir.join("b"), []).expect("write")),
        ];
        for (reason, harm) in harms {
            let dir = tempfile::tempdir_in(".").expect("a directory");
            let disk = verified(dir.path());
            disk.write_all_at(&[2; 100], 100).expect("a write");
            disk.flush().expect("they are there");
            harm(dir.path());
            let e = disk.flush().expect_err(reason).to_string();
            assert!(e.contains(reason), "{e}");
        }
    }
}
