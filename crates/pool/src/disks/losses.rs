//! Which content is lost: reads, fsck, scrub and the count of replicas decide it alike, so they never contradict each other, whatever a
//! disk has done.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rng::Rng;

use crate::{Caller, FormatOptions, Ino, MediumKind, OpenOptions, Pool};
use crate::{NewDisk, NewRegion};
use conquest_fs::fsck::Lost;
use conquest_fs::node::SetXattr;
use conquest_fs::path::{Open, View};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const LEN: u64 = 3 * MIB;

/// The fault of the second of two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Flipped,
    /// The last writes never arrived.
    Dropped,
    /// The disk has an old state; its present content is of segments that were used again since.
    Old,
    Gone,
}

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir_in("/dev/shm").expect("a directory"));
        let disk = |name: &str| NewRegion::from(NewDisk { path: home.path(name), size: Some(40 * MIB) });
        let regions = vec![disk("a"), disk("b")];
        let how = FormatOptions { medium: MediumKind::Logged, regions, ..FormatOptions::sized(16 * MIB) };
        Pool::format(home.path("pool"), &how).expect("formatted");
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self) -> Pool {
        Pool::open(self.path("pool"), &OpenOptions::default()).expect("a pool")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for path in Pool::memory(self.path("pool")).into_iter().flatten() {
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes a file and evicts all of it from memory; returns its number.
fn write(pool: &Pool, name: &str, redundancy: &str, seed: u64) -> Ino {
    let file = View::new(pool, Caller::root()).create(name.as_bytes(), 0o600).expect("made");
    let (name, value) = (b"user.conquest.redundancy", redundancy.as_bytes());
    pool.setxattr(file.ino(), name, value, SetXattr::Any, &Caller::root()).expect("set");
    file.write_all_at(&Rng::new(seed).bytes(LEN as usize), 0).expect("written");
    let union = pool.union().expect("a log");
    union.move_to_disk(pool, file.ino()).expect("there is room");
    evict(pool);
    file.ino()
}

fn evict(pool: &Pool) {
    (0..3).for_each(|_| _ = pool.union().expect("a log").evict(&**pool, u64::MAX, None).expect("it works"));
}

/// Puts back the content of a disk, without its labels, from byte `at` on.
fn put_back(from: &Path, to: &Path, at: u64) {
    let mut old = Vec::new();
    let mut file = fs::File::open(from).expect("there");
    file.seek(SeekFrom::Start(at)).and_then(|_| file.take(39 * MIB - at).read_to_end(&mut old)).expect("read");
    let mut file = fs::File::options().write(true).open(to).expect("there");
    file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(&old)).expect("written");
}

/// Flips a bit of some pages.
fn flip(disk: &Path) {
    let mut file = fs::File::options().read(true).write(true).open(disk).expect("there");
    for at in (MIB + 100..39 * MIB).step_by(37 * PAGE as usize) {
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut byte)).expect("read");
        byte[0] ^= 8;
        file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(&byte)).expect("written");
    }
}

/// Pages that cannot be read. All others have the content that was written.
fn unreadable(pool: &Pool, files: &[(Ino, &str, u64)]) -> BTreeSet<(Ino, u64)> {
    let mut unreadable = BTreeSet::new();
    for (ino, name, seed) in files {
        let (expected, mut page) = (Rng::new(*seed).bytes(LEN as usize), [0; PAGE as usize]);
        let file = View::new(pool, Caller::root()).open(name.as_bytes(), Open::new().read(true)).expect("opened");
        for n in 0..LEN / PAGE {
            match file.read_at(&mut page, n * PAGE) {
                Ok(_) => assert!(page == expected[(n * PAGE) as usize..][..PAGE as usize], "page {n} of {name}"),
                Err(_) => _ = unreadable.insert((*ino, n)),
            }
        }
    }
    evict(pool);
    unreadable
}

fn pages<'l>(lost: impl Iterator<Item = &'l Lost>) -> BTreeSet<(Ino, u64)> {
    lost.flat_map(|one| (one.first / PAGE..=one.last / PAGE).map(|page| (one.ino, page))).collect()
}

fn is_reported_rightly(fault: Fault) {
    let home = Home::new();
    let pool = home.open();
    let early = write(&pool, "early", "none", 1);
    let half = write(&pool, "half", "none", 2);
    drop(pool);
    fs::copy(home.path("b"), home.path("then")).expect("copied");
    let pool = home.open();
    if fault == Fault::Old {
        // Use its segments again.
        View::new(&pool, Caller::root()).unlink(b"early").expect("removed");
        pool.union().expect("a log").free_segments(&pool, 100, true, &mut || true).expect("it works");
        (0..3).for_each(|_| pool.union().expect("a log").end_epoch_and_reclaim(pool.session()).expect("it works"));
    }
    let plain = write(&pool, "plain", "none", 3);
    let safe = write(&pool, "safe", "mirror", 4);
    drop(pool);
    match fault {
        Fault::None => {}
        Fault::Flipped => flip(&home.path("b")),
        Fault::Dropped | Fault::Old => put_back(&home.path("then"), &home.path("b"), MIB),
        Fault::Gone => fs::rename(home.path("b"), home.path("b.away")).expect("away"),
    }
    let pool = home.open();
    let mut files = vec![(half, "half", 2), (plain, "plain", 3), (safe, "safe", 4)];
    files.extend((fault != Fault::Old).then_some((early, "early", 1)));
    let read = unreadable(&pool, &files);
    assert_eq!(read.is_empty(), fault == Fault::None, "{fault:?}");
    assert!(read.iter().all(|(ino, _)| *ino != safe), "{fault:?}: it has another replica");
    let report = pool.fsck(false, &mut |_, _| {}).expect("it runs");
    assert!(pages(report.lost.iter()) == read, "{fault:?}: what a check tells: {:?}", report.lost);
    for (ino, name, _) in files {
        let usage = pool.usage(ino).expect("an answer");
        let is_lost = read.iter().any(|(lost, _)| *lost == ino);
        assert_eq!(usage.replicas_least == 0, is_lost, "{fault:?}: replicas of {name}");
    }
    // With memory that has seen none of these reads.
    drop(pool);
    let pool = home.open();
    let report = pool.fsck(false, &mut |_, _| {}).expect("it runs");
    assert!(
        pages(report.lost.iter()) == read,
        "{fault:?}: what a check tells that has read nothing: {:?}",
        report.lost
    );
    let zeroed = pool.zero_lost().expect("it works");
    let expected = if fault == Fault::Gone { BTreeSet::new() } else { read.clone() };
    assert!(pages(zeroed.iter()) == expected, "{fault:?}: what was lost for good: {zeroed:?}");
    if fault != Fault::Gone {
        let scrubbed = pool.scrub(&mut |_, _| true).expect("it works");
        assert!(scrubbed.damage.iter().all(|one| one.repaired), "{fault:?}: {:?}", scrubbed.damage);
        assert_eq!(pool.fsck(false, &mut |_, _| {}).expect("it runs").lost, []);
        assert_eq!(unreadable(&pool, &[(safe, "safe", 4)]), BTreeSet::new());
    }
}

#[test]
fn nothing_is_lost_where_nothing_was_done() {
    is_reported_rightly(Fault::None);
}

#[test]
fn flipped_bits_are_reported_where_no_copy_is_right() {
    is_reported_rightly(Fault::Flipped);
}

#[test]
fn dropped_writes_are_reported_where_no_copy_is_right() {
    is_reported_rightly(Fault::Dropped);
}

#[test]
fn an_old_disk_is_reported_where_no_copy_is_right() {
    is_reported_rightly(Fault::Old);
}

#[test]
fn a_region_that_is_gone_is_reported_where_no_copy_is_right() {
    is_reported_rightly(Fault::Gone);
}
