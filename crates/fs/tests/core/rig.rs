//! Pools to test with, and the checks of all of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use conquest::{Caller, FormatOptions, Kind, OpenOptions, Pool, Result};
use conquest_fs::path::{DirEntry, View};

pub const MIB: u64 = 1 << 20;

pub fn format(size: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = FormatOptions {
        root_mode: 0o777,
        root_owner: (0, 0),
        ..FormatOptions::on(conquest::MediumKind::Battery, size)
    };
    Pool::format(dir.path(), &options).unwrap();
    dir
}

/// With `CONQUEST_EAGER_PACK` set, all inodes are packed again and again during each test, by another process as it were:
/// everything must be as without. (But for tests of closed pools, or of the memory that a pool takes.)
fn pack_eagerly(dir: &std::path::Path) {
    let dir = dir.to_path_buf();
    std::thread::spawn(move || {
        while let Ok(pool) = Pool::open(&dir, &OpenOptions::default()) {
            for _ in 0..100 {
                let _ = pool.pack_inodes(0..pool.inode_blocks(), conquest_fs::Time(i64::MAX), &|| true);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

pub fn open(dir: &tempfile::TempDir) -> Pool {
    if std::env::var_os("CONQUEST_EAGER_PACK").is_some() {
        pack_eagerly(dir.path());
    }
    Pool::open(dir.path(), &OpenOptions::default()).unwrap()
}

pub fn pool(size: u64) -> (tempfile::TempDir, Pool) {
    let dir = format(size);
    let pool = open(&dir);
    (dir, pool)
}

pub fn root(pool: &Pool) -> View<'_> {
    View::new(pool, Caller::root())
}

/// Panics unless the pool is without fault.
pub fn assert_clean(pool: &Pool) -> conquest_fs::fsck::Report {
    let report = pool.fsck(false, &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    report
}

/// Clean, and nothing leaked.
pub fn assert_tidy(pool: &Pool) {
    let report = assert_clean(pool);
    let left = (report.leaked_objects, report.orphans, report.truncations);
    assert_eq!(left, (0, 0, 0), "leaks, orphans, truncations");
}

#[track_caller]
pub fn assert_errno<T>(got: Result<T>, want: rustix::io::Errno) {
    match got {
        Ok(_) => panic!("succeeded, should fail with {want}"),
        Err(e) => assert_eq!(e.errno(), want, "{e}"),
    }
}

pub fn put(view: &View, path: &str, content: &[u8]) -> Result<()> {
    view.create(path.as_bytes(), 0o644)?.write_all_at(content, 0)
}

pub fn get(view: &View, path: &str) -> Result<Vec<u8>> {
    view.read(path)
}

/// Every path below `dir` and its kind; reads files to their end.
pub fn walk(view: &View, dir: &str, depth: u32) -> Result<Vec<(String, Kind)>> {
    let mut all = Vec::new();
    for entry in view.read_dir(dir)? {
        let DirEntry { name, kind, .. } = entry?;
        let path = format!("{dir}/{}", String::from_utf8_lossy(&name));
        if kind == Kind::Directory && depth > 0 {
            all.extend(walk(view, &path, depth - 1)?);
        }
        all.push((path, kind));
    }
    Ok(all)
}

/// Deletes everything below `dir`.
pub fn delete_all(view: &View, dir: &str) {
    let entries: Result<Vec<DirEntry>> = view.read_dir(dir).unwrap().collect();
    for DirEntry { name, kind, .. } in entries.unwrap() {
        let path = [dir.as_bytes(), b"/", &name].concat();
        if kind == Kind::Directory {
            delete_all(view, std::str::from_utf8(&path).unwrap());
            view.rmdir(&path).unwrap();
        } else {
            view.unlink(&path).unwrap();
        }
    }
}

/// Ends the whole test program if the watched work takes too long: a hang in a thread cannot be ended
/// otherwise.
pub struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub fn start(what: &str, limit: Duration) -> Watchdog {
        let done = Arc::new(AtomicBool::new(false));
        let (seen, what, start) = (done.clone(), what.to_string(), Instant::now());
        std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                if start.elapsed() > limit {
                    eprintln!("{what} hangs");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Watchdog(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends other threads' loops, also when this one panics: the scope waits for them.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `f` holds.
#[track_caller]
pub fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
