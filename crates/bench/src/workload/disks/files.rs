//! Files in a mounted directory, by the calls of any program: written several at a time, with redundancy of their own;
//! and read at random.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, XattrFlags};

use super::PIECE;
use crate::prelude::*;

const ATTRIBUTE: &str = "user.conquest.redundancy";

/// The redundancy setting of a file.
#[derive(Clone, Copy, Debug)]
pub enum Redundancy {
    /// None is set.
    Usual,
    None,
    Mirror,
    /// Lazy, with this delay in seconds.
    Lazy(u64),
}

impl Redundancy {
    fn set(self, path: &Path) -> Result<(), Error> {
        let value = match self {
            Redundancy::Usual => return Ok(()),
            Redundancy::None => "none".into(),
            Redundancy::Mirror => "mirror".into(),
            Redundancy::Lazy(seconds) => format!("lazy:{seconds}"),
        };
        Ok(rustix::fs::setxattr(path, ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?)
    }
}

/// Writes files at the same time, a thread each, and syncs them; returns bytes of content per second.
pub fn write(dir: &Path, name: &str, files: usize, each: u64, of: impl Fn(usize) -> Redundancy) -> Result<f64, Error> {
    let data = Rng::new(21).bytes(PIECE);
    let paths: Vec<_> = (0..files).map(|n| dir.join(format!("{name}{n}"))).collect();
    for (n, path) in paths.iter().enumerate() {
        File::create(path).map_err(Error::file(path))?;
        of(n).set(path)?;
    }
    let one = |path: &Path| {
        let mut file = File::options().write(true).open(path).map_err(Error::file(path))?;
        (0..each).step_by(PIECE).try_for_each(|_| file.write_all(&data)).map_err(Error::file(path))?;
        file.sync_all().map_err(Error::file(path))
    };
    let start = now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = paths.iter().map(|path| scope.spawn(|| one(path))).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(per_second(each.next_multiple_of(PIECE as u64) * files as u64, start))
}

/// Reads `len` bytes at a time at random from such files, in several threads, until `end` is set. `see` gets each read
/// and its time in seconds. Read pages leave the kernel's cache.
pub fn read_at_random(
    dir: &Path,
    name: &str,
    files: usize,
    [threads, len]: [usize; 2],
    ended: &AtomicBool,
    see: impl Fn(f64) + Sync,
) -> Result<(), Error> {
    let work = |seed: usize| {
        let (mut random, mut buf) = (Rng::new(seed as u64), vec![0; len]);
        let open = |n| {
            let path = dir.join(format!("{name}{n}"));
            let file = File::open(&path).map_err(Error::file(&path))?;
            rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
            Ok(file)
        };
        let open = (0..files).map(open).collect::<Result<Vec<File>, Error>>()?;
        while !ended.load(Ordering::Relaxed) {
            let file = &open[random.below(files as u64) as usize];
            let size = file.metadata().map_err(Error::io("a file's size"))?.len();
            let at = random.below((size / len as u64).max(1)) * len as u64;
            let start = now();
            file.read_exact_at(&mut buf, at).map_err(Error::io("reading at random"))?;
            see(seconds_since(start));
            rustix::fs::fadvise(file, at, std::num::NonZeroU64::new(len as u64), Advice::DontNeed)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed))).collect();
        threads.into_iter().try_for_each(joined)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_and_read_until_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(write(dir.path(), "f", 3, 2 << 20, |_| Redundancy::Usual).expect("written") > 0.0);
        let (ended, count) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
        read_at_random(dir.path(), "f", 3, [2, 65536], &ended, |took| {
            assert!(took >= 0.0);
            if count.fetch_add(1, Ordering::Relaxed) == 20 {
                ended.store(true, Ordering::Relaxed);
            }
        })
        .expect("read");
        assert!(count.into_inner() > 20);
        assert!(read_at_random(dir.path(), "missing", 1, [1, 4096], &AtomicBool::new(false), |_| ()).is_err());
    }
}
