//! Memory is taken as it is used, given back, and a pool grows: with many processes at work, on all media.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conquest::{Caller, FormatOptions, MediumKind, OpenOptions, Pool};
use conquest_fs::path::{Open, View};

const MIB: u64 = 1 << 20;
const MEDIA: [MediumKind; 2] = [MediumKind::Battery, MediumKind::Logged];

/// A pool directory, which removes the pool's shared memory too.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new(medium: MediumKind, size: u64) -> Home {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let how = FormatOptions { root_owner: (0, 0), ..FormatOptions::on(medium, size) };
        Pool::format(dir.path(), &how).unwrap();
        Home { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn open(&self) -> Pool {
        Pool::open(self.path(), &OpenOptions::default()).unwrap()
    }

    /// The file of the memory.
    fn region(&self) -> PathBuf {
        match Pool::memory(self.path()).unwrap().into_iter().find(|path| path.to_string_lossy().ends_with("-region")) {
            Some(path) => path,
            None => self.path().join("nvram"),
        }
    }

    /// Bytes that the memory's file takes.
    fn taken(&self) -> u64 {
        std::fs::metadata(self.region()).unwrap().blocks() * 512
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        Pool::memory(self.path()).unwrap_or_default().iter().for_each(|path| _ = std::fs::remove_file(path));
    }
}

fn fill(pool: &Pool, name: &str, bytes: u64) {
    let view = View::new(pool, Caller::root());
    let file = view.create(name.as_bytes(), 0o644).unwrap();
    let piece: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8 ^ name.len() as u8).collect();
    for at in (0..bytes).step_by(MIB as usize) {
        file.write_all_at(&piece, at).unwrap();
    }
}

fn holds(pool: &Pool, name: &str, bytes: u64) {
    let view = View::new(pool, Caller::root());
    let file = view.open(name.as_bytes(), Open::new().read(true)).unwrap();
    let piece: Vec<u8> = (0..MIB).map(|i| (i % 251) as u8 ^ name.len() as u8).collect();
    let mut found = vec![0; MIB as usize];
    for at in (0..bytes).step_by(MIB as usize) {
        assert_eq!(file.read_at(&mut found, at).unwrap(), found.len());
        assert!(found == piece, "{name} at {at}");
    }
}

fn clean(pool: &Pool) {
    assert_eq!(pool.fsck(false, &mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(40);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_empty_pool_takes_little_and_one_that_is_left_what_it_uses() {
    for medium in MEDIA {
        let home = Home::new(medium, 6 << 30);
        let pool = home.open();
        assert!(home.taken() < 12 * MIB, "{medium}: {}", home.taken());
        assert_eq!(pool.status().unwrap().taken, home.taken(), "{medium}");
        let all = pool.statfs().blocks * 4096;
        assert!(all > (6 << 30) - 16 * MIB, "{medium}: df shows what was said");
        fill(&pool, "kept", 70 * MIB);
        fill(&pool, "gone", 200 * MIB);
        assert!(home.taken() > 270 * MIB);
        holds(&pool, "kept", 70 * MIB);
        View::new(&pool, Caller::root()).unlink(b"gone").unwrap();
        drop(pool);
        assert!((70 * MIB..85 * MIB).contains(&home.taken()), "{medium}: {}", home.taken());
        let pool = home.open();
        holds(&pool, "kept", 70 * MIB);
        clean(&pool);
        assert_eq!(pool.status().unwrap().taken, home.taken(), "{medium}");
    }
}

#[test]
fn groups_that_have_become_empty_are_given_back_with_the_pool_in_use() {
    for medium in MEDIA {
        let home = Home::new(medium, 2 << 30);
        let pool = home.open();
        fill(&pool, "kept", 20 * MIB);
        fill(&pool, "gone", 300 * MIB);
        View::new(&pool, Caller::root()).unlink(b"gone").unwrap();
        wait_until("the memory comes back", || home.taken() < 120 * MIB);
        pool.sync().unwrap();
        assert!(home.taken() < 120 * MIB, "{medium}: a commit takes nothing of it anew: {}", home.taken());
        holds(&pool, "kept", 20 * MIB);
        fill(&pool, "again", 300 * MIB);
        holds(&pool, "again", 300 * MIB);
        clean(&pool);
    }
}

#[test]
fn a_full_pool_has_all_that_was_said_and_no_more() {
    for medium in MEDIA {
        let home = Home::new(medium, 160 * MIB);
        let pool = home.open();
        let view = View::new(&pool, Caller::root());
        let file = view.create(b"file", 0o644).unwrap();
        let mut at = 0;
        while file.write_all_at(&vec![7; 64 << 10], at).is_ok() {
            at += 64 << 10;
        }
        assert!(at > 150 * MIB, "{medium}: {at}");
        assert!(pool.statfs().free_blocks * 4096 < MIB, "{medium}");
        assert!(home.taken() <= 160 * MIB);
        pool.resize(320 * MIB).unwrap();
        file.write_all_at(&vec![7; MIB as usize], at).unwrap();
        assert!(pool.statfs().free_blocks * 4096 > 150 * MIB, "{medium}");
        clean(&pool);
    }
}

#[test]
fn a_pool_grows_while_others_work_on_it() {
    for medium in MEDIA {
        let home = Home::new(medium, 40 * MIB);
        let (first, second) = (home.open(), home.open());
        fill(&first, "before", 20 * MIB);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let view = View::new(&second, Caller::root());
                let mut rounds = 0;
                while !stop.load(Ordering::SeqCst) {
                    let file = view.create(b"scratch", 0o644).unwrap();
                    file.write_all_at(&[1; 50_000], 0).unwrap();
                    view.unlink(b"scratch").unwrap();
                    rounds += 1;
                }
                rounds
            });
            for size in [41, 64, 65, 200, 700] {
                first.resize(size * MIB).unwrap();
                assert_eq!(second.status().unwrap().size, size * MIB);
            }
            fill(&first, "grown", 500 * MIB);
            stop.store(true, Ordering::SeqCst);
            assert!(worker.join().unwrap() > 0);
        });
        // Through the mapping of the process that did not make it grow.
        holds(&second, "grown", 500 * MIB);
        holds(&second, "before", 20 * MIB);
        fill(&second, "other", 20 * MIB);
        holds(&first, "other", 20 * MIB);
        assert!(first.resize(600 * MIB).unwrap_err().to_string().contains("cannot become smaller"), "{medium}");
        assert!(first.resize(1 << 50).is_err());
        clean(&first);
        drop((first, second));
        if medium == MediumKind::Logged {
            // As after a power cut.
            Pool::release(home.path()).unwrap();
        }
        let pool = home.open();
        assert_eq!(pool.status().unwrap().size, 700 * MIB);
        holds(&pool, "grown", 500 * MIB);
        clean(&pool);
    }
}

/// Memory ran out between two pieces of one call, and the pool was taken for full.
#[test]
fn one_call_may_need_more_memory_than_is_taken_ahead() {
    for medium in MEDIA {
        let home = Home::new(medium, 400 * MIB);
        let pool = home.open();
        let view = View::new(&pool, Caller::root());
        let file = view.open(b"file", Open::new().write(true).read(true).create(true).append(true).mode(0o600));
        let file = file.unwrap();
        let all: Vec<u8> = (0..80 * MIB).map(|i| (i / 4096 % 251) as u8).collect();
        for n in 1..=2 {
            file.write_all_at(&all, 0).unwrap();
            assert_eq!(file.attr().unwrap().size, n * 80 * MIB, "{medium}: once each");
        }
        let mut found = vec![0; all.len()];
        assert_eq!(file.read_at(&mut found, 80 * MIB).unwrap(), all.len());
        assert!(found == all, "{medium}");
        clean(&pool);
    }
}

/// The backing holds more of a grown memory than the memory had when the backing was made.
#[test]
fn a_grown_pool_is_imported_and_restored() {
    let home = Home::new(MediumKind::Battery, 30 * MIB);
    let toml = home.path().join("pool.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    std::fs::write(&toml, format!("{text}backing = \".\"\n")).unwrap();
    let pool = home.open();
    fill(&pool, "before", 10 * MIB);
    pool.resize(300 * MIB).unwrap();
    fill(&pool, "grown", 150 * MIB);
    pool.sync().unwrap();
    let image = home.path().join("saved");
    pool.save(&image, &mut |_, _| {}).unwrap();
    drop(pool);
    std::fs::remove_file(home.region()).unwrap();
    Pool::import(home.path(), false, &mut |_, _| {}).unwrap();
    let pool = home.open();
    assert_eq!(pool.status().unwrap().size, 300 * MIB);
    holds(&pool, "grown", 150 * MIB);
    clean(&pool);
    drop(pool);
    assert!(home.taken() < 185 * MIB, "{}", home.taken());
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    Pool::restore(other.path(), &image, Some(MediumKind::Battery), false, &mut |_, _| {}).unwrap();
    let pool = Pool::open(other.path(), &OpenOptions::default()).unwrap();
    pool.resize(400 * MIB).unwrap();
    holds(&pool, "before", 10 * MIB);
    holds(&pool, "grown", 150 * MIB);
    fill(&pool, "more", 200 * MIB);
    clean(&pool);
}

/// A copy of the memory's file may lose its holes, or gain some.
#[test]
fn memory_is_as_the_region_says_after_its_file_was_copied() {
    let home = Home::new(MediumKind::Battery, 500 * MIB);
    let pool = home.open();
    fill(&pool, "kept", 80 * MIB);
    drop(pool);
    let taken = home.taken();
    for sparse in ["--sparse=never", "--sparse=always"] {
        let copied = home.path().join("copied");
        let done = std::process::Command::new("cp").arg(sparse).arg(home.region()).arg(&copied).status().unwrap();
        assert!(done.success());
        std::fs::rename(&copied, home.region()).unwrap();
        assert!(home.taken() != taken);
        let pool = home.open();
        holds(&pool, "kept", 80 * MIB);
        drop(pool);
        assert_eq!(home.taken(), taken, "{sparse}");
    }
}

/// A tmpfs of its own, of any small size.
struct SmallHost {
    dir: tempfile::TempDir,
}

impl SmallHost {
    fn new(mib: u64) -> Option<SmallHost> {
        let dir = tempfile::tempdir().unwrap();
        let host = SmallHost { dir };
        host.mount(&format!("size={mib}m")).then_some(host)
    }

    fn mount(&self, options: &str) -> bool {
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.dir.path());
        mount.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.dir.path()).status();
    }
}

/// The host is full before the pool is: calls fail, but no signal comes; and the pool goes on by itself.
#[test]
fn a_host_without_memory_makes_the_pool_full_until_it_has_some() {
    let Some(host) = SmallHost::new(60) else {
        eprintln!("skipped: not permitted to mount");
        return;
    };
    let pool_dir = host.dir.path().join("pool");
    let how = |size| FormatOptions { root_owner: (0, 0), ..FormatOptions::on(MediumKind::Battery, size) };
    let refused = Pool::format(&pool_dir, &how(100 * MIB)).unwrap_err().to_string();
    assert!(refused.contains("60 MiB in all"), "{refused}");
    Pool::format(&pool_dir, &how(50 * MIB)).unwrap();
    // A file of somebody else.
    let other = host.dir.path().join("other");
    std::fs::write(&other, vec![1; 30 << 20]).unwrap();
    let pool = Pool::open(&pool_dir, &OpenOptions::default()).unwrap();
    let view = View::new(&pool, Caller::root());
    let file = view.create(b"file", 0o644).unwrap();
    let mut at = 0;
    let errno = loop {
        match file.write_all_at(&vec![7; 64 << 10], at) {
            Ok(_) => at += 64 << 10,
            Err(e) => break e.errno(),
        }
    };
    assert_eq!(errno, rustix::io::Errno::NOSPC);
    assert!((10 * MIB..30 * MIB).contains(&at), "{at}");
    assert!(pool.status().unwrap().host_full);
    assert!(pool.statfs().free_blocks * 4096 > 15 * MIB, "df shows what was said");
    // Operations that need no memory work.
    drop(file);
    view.unlink(b"file").unwrap();
    let file = view.create(b"again", 0o644).unwrap();
    file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    std::fs::remove_file(&other).unwrap();
    wait_until("the pool goes on", || file.write_all_at(&vec![7; 30 << 20], 8 * MIB).is_ok());
    assert!(!pool.status().unwrap().host_full);
    clean(&pool);
}

/// Each slot kept the last chunk of each kind and size that it had allocated from: an empty pool held twenty times as much
/// as a new one. And a new one was "73.7 % fragmented": the part that the least number of chunks leaves free.
#[test]
fn what_is_emptied_is_as_a_new_one() {
    for medium in MEDIA {
        let home = Home::new(medium, 256 * MIB);
        let pool = home.open();
        let (used, view) = (|| pool.status().unwrap().used, View::new(&pool, Caller::root()));
        let fresh = used();
        assert_eq!(pool.status().unwrap().fragmentation, 0.0, "a new pool");
        std::thread::scope(|s| {
            for t in 0..4 {
                s.spawn(move || {
                    view.mkdir(format!("d{t}").as_bytes(), 0o755).unwrap();
                    for n in 0..2000 {
                        let file = view.create(format!("d{t}/f{n}").as_bytes(), 0o644).unwrap();
                        file.write_all_at(&vec![1; 1 + n * 61 % 60_000], 0).unwrap();
                    }
                });
            }
        });
        let remove = |keep: usize| {
            for (t, n) in
                (0..4).flat_map(|t| (0..2000).map(move |n| (t, n))).filter(|(_, n)| keep == 0 || n % keep != 0)
            {
                _ = view.unlink(format!("d{t}/f{n}").as_bytes());
            }
        };
        let full = pool.status().unwrap();
        assert!(full.fragmentation < 0.2, "{full:?}");
        remove(50);
        let sparse = pool.status().unwrap();
        assert!(sparse.fragmentation > 0.4 && sparse.fragmentation < 1.0, "{sparse:?}");
        remove(0);
        (0..4).for_each(|t| view.rmdir(format!("d{t}").as_bytes()).unwrap());
        wait_until("what was taken is given back", || used() == fresh);
        let empty = pool.status().unwrap();
        assert_eq!((empty.used, empty.fragmentation), (fresh, 0.0), "{empty:?}");
        clean(&pool);
    }
}
