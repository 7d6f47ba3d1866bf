//! Disks that are full: existing content can be overwritten, and nothing new is taken.

use conquest::NewDisk;
use conquest::{Caller, FormatOptions, InRegions, Ino, MediumKind, OpenOptions, Pool};
use conquest_fs::node::{SetXattr, WriteFlags};
use conquest_fs::path::View;
use rng::Rng;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Writes pages from page `pages` on until there is no room; returns the number of pages of the file.
fn fill(pool: &Pool, ino: Ino, mut pages: u64) -> u64 {
    loop {
        match pool.write(ino, pages * PAGE, &page(pages, 0), WriteFlags::default()) {
            Ok(_) => pages += 1,
            Err(e) if e.errno() == Errno::NOSPC => return pages,
            Err(e) => panic!("page {pages}: {e}"),
        }
    }
}

/// The content of a page after so many changes.
fn page(n: u64, changes: u64) -> Vec<u8> {
    Rng::new(n << 32 | changes).bytes(PAGE as usize)
}

fn a_full_disk_takes_what_is_overwritten(medium: MediumKind) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let regions = vec![NewDisk { path: dir.path().join("disk"), size: Some(96 * MIB) }.into()];
    let how = FormatOptions { root_owner: (0, 0), regions, ..FormatOptions::on(medium, 32 * MIB) };
    let at = dir.path().join("pool");
    Pool::format(&at, &how).expect("there is room");
    let pool = Pool::open(&at, &OpenOptions::default()).expect("it is opened");
    let ino = View::new(&pool, Caller::root()).create(b"file", 0o644).and_then(|file| file.attr()).expect("room").ino;
    let pages = fill(&pool, ino, 0);
    assert!(pages * PAGE > 80 * MIB, "{} MiB of 96", pages * PAGE / MIB);

    let (mut changes, mut rng) = (vec![0; pages as usize], Rng::new(7));
    for n in 1..=3 * pages {
        let one = rng.below(pages);
        pool.write(ino, one * PAGE, &page(one, n), WriteFlags::default())
            .unwrap_or_else(|e| panic!("the {n}th change: {e}"));
        changes[one as usize] = n;
    }
    // Bytes that are being written count twice: the last MiB may be refused early.
    assert!(fill(&pool, ino, pages) <= pages + 2 * 512, "more than {pages} pages");
    let mut back = vec![0; PAGE as usize];
    for (one, changes) in (0..).zip(changes) {
        pool.read(ino, one * PAGE, &mut back).expect("it can be read");
        assert!(back == page(one, changes), "page {one}");
    }
    let report = pool.fsck(false, &mut |_, _| {}).expect("it runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    for path in Pool::memory(&at).expect("it is a pool") {
        let _ = std::fs::remove_file(path);
    }
}

/// Fills the pool with mirrored files and files without redundancy: all content that it took is there, and it was nearly all that
/// fits.
#[test]
fn a_full_mirrored_pool_has_all_that_it_took() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let disk = |name: &str| NewDisk { path: dir.path().join(name), size: Some(160 * MIB) }.into();
    let regions = vec![disk("one"), disk("two")];
    let how = FormatOptions { root_owner: (0, 0), regions, ..FormatOptions::on(MediumKind::Battery, 32 * MIB) };
    let at = dir.path().join("pool");
    Pool::format(&at, &how).expect("there is room");
    let pool = Pool::open(&at, &OpenOptions::default()).expect("it is opened");
    let mut files = Vec::new();
    for n in 0..4u64 {
        let name = format!("file{n}");
        let file = View::new(&pool, Caller::root()).create(name.as_bytes(), 0o644).expect("room");
        let ino = file.attr().expect("an answer").ino;
        if n > 0 {
            let (name, how) = (b"user.conquest.redundancy", SetXattr::Any);
            pool.setxattr(ino, name, b"mirror:2", how, &Caller::root()).expect("it is set");
        }
        files.push((ino, 0));
    }
    let mut left: Vec<usize> = (0..files.len()).collect();
    let mut rng = Rng::new(3);
    while !left.is_empty() {
        let which = rng.below(left.len() as u64) as usize;
        let (ino, pages) = &mut files[left[which]];
        match pool.write(*ino, *pages * PAGE, &page(*pages, *ino), WriteFlags::default()) {
            Ok(_) => {
                *pages += 1;
                if *pages % 50 == 0 {
                    pool.fsync(*ino, false).expect("what was taken can be made durable");
                }
            }
            Err(e) if e.errno() == Errno::NOSPC => _ = left.remove(which),
            Err(e) => panic!("page {pages}: {e}"),
        }
    }
    // All of it can be written, and be changed: no content that was taken lacks room later.
    for (ino, pages) in &files {
        pool.fsync(*ino, false).expect("what was taken can be made durable");
        for one in (0..*pages).step_by(7) {
            pool.write(*ino, one * PAGE, &page(one, *ino), WriteFlags::default()).expect("it is overwritten");
        }
        pool.fsync(*ino, false).expect("and durable");
    }
    let physical: u64 = files.iter().enumerate().map(|(n, (_, pages))| pages * PAGE * if n > 0 { 2 } else { 1 }).sum();
    assert!(physical > 320 * MIB * 7 / 10, "{} MiB of 320 were taken", physical / MIB);
    let mut back = vec![0; PAGE as usize];
    for (ino, pages) in &files {
        for one in 0..*pages {
            pool.read(*ino, one * PAGE, &mut back).expect("it can be read");
            assert!(back == page(one, *ino), "page {one} of {ino}");
        }
    }
    let report = pool.fsck(false, &mut |_, _| {}).expect("it runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    drop(pool);
    for path in Pool::memory(&at).expect("it is a pool") {
        let _ = std::fs::remove_file(path);
    }
}

#[test]
fn a_full_disk_takes_what_is_overwritten_on_battery() {
    a_full_disk_takes_what_is_overwritten(MediumKind::Battery);
}

#[test]
fn a_full_disk_takes_what_is_overwritten_on_logged() {
    a_full_disk_takes_what_is_overwritten(MediumKind::Logged);
}

/// Commits stand still, as where a disk hangs, and content that is written again and again takes all free segments meanwhile. The next
/// commit has to take what found none, in a longer log. It once found no room for that, as freed segments waited for it: `fsync` failed.
#[test]
fn a_commit_has_room_where_content_took_all_free_segments() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let regions = vec![NewDisk { path: dir.path().join("disk"), size: Some(192 * MIB) }.into()];
    let how = FormatOptions {
        root_owner: (0, 0),
        regions,
        backing_in_regions: InRegions::Yes,
        ..FormatOptions::on(MediumKind::Logged, 96 * MIB)
    };
    let at = dir.path().join("pool");
    Pool::format(&at, &how).expect("there is room");
    let pool = Pool::open(&at, &OpenOptions::default()).expect("it is opened");
    let union = pool.union().expect("there is a disk").clone();
    let ino = View::new(&pool, Caller::root()).create(b"file", 0o644).and_then(|file| file.attr()).expect("room").ino;
    pool.sync().expect("there is room");
    let committer = pool.session().runtime().backing().committer;
    while !pool.session().take_role(committer).expect("an answer") {
        std::thread::yield_now();
    }
    // Until writers would wait.
    let (mut n, mut is_full) = (0, false);
    loop {
        let at = n % 896 * (64 << 10);
        let write = || pool.write(ino, at, &Rng::new(n).bytes(64 << 10), WriteFlags::default());
        let is_behind = match pool.without_waiting(write) {
            (_, true) => true,
            (written, false) => written.map(|_| false).expect("it is no new content"),
        };
        n += u64::from(!is_behind);
        if is_behind && is_full {
            break;
        }
        if is_behind || n % 128 == 0 {
            is_full |= match union.write_back(&*pool, usize::MAX, None) {
                Err(e) if e.errno() == Errno::NOSPC => true,
                done => done.map(|_| false).expect("it is written"),
            };
        }
    }
    committer.store(0, std::sync::atomic::Ordering::SeqCst);
    pool.fsync(ino, false).expect("it has room");
    assert!(!pool.session().runtime().backing_full());
    drop(pool);
    for path in Pool::memory(&at).expect("it is a pool") {
        let _ = std::fs::remove_file(path);
    }
}
