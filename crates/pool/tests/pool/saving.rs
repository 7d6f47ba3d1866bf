//! Images of pools with content on disks, saved while another thread writes: all of it as of one instant, restored elsewhere too.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use conquest::{Caller, FormatOptions, MediumKind, OpenOptions, Pool};
use conquest::{HowToSave, Layout, NewDisk, NewRegion, Over};
use conquest_fs::path::{Open, View};

const MIB: u64 = 1 << 20;
/// Files that get records in turns, and records of each: record `RECORDS` of a file replaces the first.
const FILES: u64 = 4;
const RECORDS: u64 = 700;
const RECORD: u64 = 4096;

/// Directories of pools, which remove their shared memory too.
struct Homes(tempfile::TempDir);

impl Homes {
    fn new() -> Homes {
        Homes(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn format(&self, medium: MediumKind, backing: bool) -> Pool {
        self.format_on(96 * MIB, medium, backing)
    }

    fn format_on(&self, disk: u64, medium: MediumKind, backing: bool) -> Pool {
        let disk = NewDisk { path: "disk".into(), size: Some(disk) };
        let backing = (backing && medium != MediumKind::Logged).then(|| ".".into());
        let how = FormatOptions { medium, backing, regions: vec![disk.into()], ..FormatOptions::sized(24 * MIB) };
        Pool::format(self.path("pool"), &how).unwrap();
        open(&self.path("pool"))
    }

    fn restore(&self, name: &str, disks: &[NewRegion]) -> conquest_fs::Result<conquest::Restored> {
        let over = Over { medium: Some(MediumKind::Battery), force: false, disks };
        Pool::restore_asking(self.path(name), self.path("image"), over, &mut |_, _| {}, &mut |found| {
            panic!("{found} of a pool elsewhere")
        })
    }
}

impl Drop for Homes {
    fn drop(&mut self) {
        let pools = std::fs::read_dir(self.0.path()).unwrap().flatten().map(|entry| entry.path());
        pools.for_each(|dir| Pool::memory(&dir).iter().flatten().for_each(|path| _ = std::fs::remove_file(path)));
    }
}

fn open(dir: &Path) -> Pool {
    Pool::open(dir, &OpenOptions::default()).unwrap()
}

fn record(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(RECORD as usize / 8)
}

/// Writes records in their order until `stop` is set; returns the number of the first that it has not written.
fn write_records(pool: &Pool, stop: &AtomicBool) -> u64 {
    let view = View::new(pool, Caller::root());
    let files: Vec<_> = (0..FILES).map(|n| view.create(format!("records{n}").as_bytes(), 0o600).unwrap()).collect();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return n;
        }
        files[(n % FILES) as usize].write_all_at(&record(n), n / FILES % RECORDS * RECORD).unwrap();
        // Also small content that lies in memory alone.
        view.create(format!("name{}", n % 50).as_bytes(), 0o600).unwrap().write_all_at(&n.to_le_bytes(), 0).unwrap();
    }
    unreachable!("somebody stops it")
}

fn read(pool: &Pool, name: &str) -> Vec<u8> {
    let view = View::new(pool, Caller::root());
    let file = view.open(name.as_bytes(), Open::new().read(true)).unwrap();
    let mut bytes = vec![0; view.stat(name.as_bytes()).unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// The pool has the content after so many records were written, and no other.
fn records_in(pool: &Pool) -> u64 {
    let files: Vec<Vec<u8>> = (0..FILES).map(|n| read(pool, &format!("records{n}"))).collect();
    let found = |n: u64| {
        let at = (n / FILES % RECORDS * RECORD) as usize;
        files[(n % FILES) as usize].get(at..at + RECORD as usize)
    };
    let first = |file: &Vec<u8>| {
        let numbers = file.chunks(RECORD as usize).map(|record| u64::from_le_bytes(record[..8].try_into().unwrap()));
        numbers.max()
    };
    let written = files.iter().filter_map(first).max().map_or(0, |last| last + 1);
    for n in written.saturating_sub(FILES * RECORDS)..written {
        assert!(found(n) == Some(&record(n)), "record {n} of {written}");
    }
    written
}

fn fill(pool: &Pool) {
    let view = View::new(pool, Caller::root());
    view.create(b"large", 0o600).unwrap().write_all_at(&large(), 0).unwrap();
    for n in 0..300u64 {
        view.create(format!("small{n}").as_bytes(), 0o640).unwrap().write_all_at(&record(n)[..500], 0).unwrap();
    }
    pool.sync().unwrap();
}

fn large() -> Vec<u8> {
    rng::Rng::new(5).bytes(9 * MIB as usize + 77)
}

fn is_whole(pool: &Pool) {
    assert_eq!(pool.fsck(false, &mut |_, _| {}).unwrap().problems, Vec::<String>::new());
    assert!(pool.lost().unwrap().is_empty());
    assert!(read(pool, "large") == large());
    (0..300u64).for_each(|n| assert!(read(pool, &format!("small{n}")) == record(n)[..500]));
}

/// Saves it while another thread writes; the pool restored elsewhere has a prefix of the records, and all of the rest.
fn saved_at_work(medium: MediumKind, backing: bool) {
    let homes = Homes::new();
    // With room for all content that is replaced meanwhile.
    let pool = homes.format_on(1 << 30, medium, backing);
    fill(&pool);
    let stop = AtomicBool::new(false);
    let saved = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_records(&pool, &stop));
        // Wait until it has replaced some of them.
        while View::new(&pool, Caller::root()).stat(b"records3").map_or(0, |found| found.size) < RECORDS * RECORD {
            std::thread::yield_now();
        }
        let saved = pool.save_with(homes.path("image"), HowToSave::default(), &mut |_, _| {});
        stop.store(true, Ordering::Relaxed);
        (saved.unwrap(), writer.join().unwrap())
    });
    assert!(saved.0.content >= 9 * MIB && saved.0.unread + saved.0.left_out == 0, "{:?}", saved.0);
    drop(pool);
    // Nothing of the saved pool is needed.
    std::fs::remove_file(homes.path("pool/disk")).unwrap();
    let restored = homes.restore("elsewhere", &[]).unwrap();
    assert_eq!((restored.content, restored.unread, restored.left_out), (saved.0.content, 0, 0));
    let pool = open(&homes.path("elsewhere"));
    let records = records_in(&pool);
    assert!(records > FILES * RECORDS - FILES && records <= saved.1, "{records} of {}", saved.1);
    is_whole(&pool);
    // The restored pool works, and can be saved again.
    View::new(&pool, Caller::root()).create(b"more", 0o600).unwrap().write_all_at(&large(), 0).unwrap();
    pool.sync().unwrap();
    pool.save(homes.path("image"), &mut |_, _| {}).unwrap();
    drop(pool);
    homes.restore("again", &[]).unwrap();
    let pool = open(&homes.path("again"));
    assert!(read(&pool, "more") == large());
    assert_eq!(records_in(&pool), records);
}

#[test]
fn what_is_saved_while_somebody_writes_is_of_one_instant_on_logged() {
    saved_at_work(MediumKind::Logged, true);
}

#[test]
fn what_is_saved_while_somebody_writes_is_of_one_instant_on_battery() {
    saved_at_work(MediumKind::Battery, true);
}

#[test]
fn what_is_saved_while_somebody_writes_is_of_one_instant_without_a_backing() {
    saved_at_work(MediumKind::Battery, false);
}

#[test]
fn content_goes_to_disks_of_another_kind_and_size() {
    let homes = Homes::new();
    let pool = homes.format(MediumKind::Logged, true);
    fill(&pool);
    pool.save(homes.path("image"), &mut |_, _| {}).unwrap();
    drop(pool);
    let given = |name: &str, size: u64| {
        let file = std::fs::File::create(homes.path(name)).unwrap();
        file.set_len(size).unwrap();
        NewDisk { path: homes.path(name), size: None }
    };
    let small = [given("small", 64 * MIB).into()];
    let refusal = homes.restore("no", &small).unwrap_err().to_string();
    assert!(refusal.contains("62 MiB") && refusal.contains("94 MiB"), "{refusal}");
    assert!(!homes.path("no").exists(), "nothing is left of it");
    let disks = vec![given("one", 130 * MIB), given("two", 130 * MIB)];
    let mirror = [NewRegion { layout: Layout::Mirror, disks }];
    homes.restore("mirrored", &mirror).unwrap();
    let pool = open(&homes.path("mirrored"));
    is_whole(&pool);
    assert_eq!(pool.status().unwrap().disks.len(), 2);
}

#[test]
fn an_image_of_memory_alone_says_what_it_leaves_out() {
    let homes = Homes::new();
    let pool = homes.format(MediumKind::Logged, true);
    fill(&pool);
    let how = HowToSave { memory_only: true, force: false };
    let saved = pool.save_with(homes.path("image"), how, &mut |_, _| {}).unwrap();
    assert!(saved.left_out >= 9 * MIB && saved.content == 0, "{saved:?}");
    drop(pool);
    let restored = homes.restore("elsewhere", &[]).unwrap();
    assert_eq!((restored.left_out, restored.content), (saved.left_out, 0));
}

#[test]
fn neither_takes_the_place_of_what_is_not_its_own() {
    let homes = Homes::new();
    let pool = homes.format(MediumKind::Logged, true);
    fill(&pool);
    let notes = homes.path("notes");
    std::fs::write(&notes, "notes of mine").unwrap();
    let refusal = pool.save(&notes, &mut |_, _| {}).unwrap_err().to_string();
    assert!(refusal.contains("no image") && refusal.contains("--force"), "{refusal}");
    assert_eq!(std::fs::read(&notes).unwrap(), b"notes of mine");
    // It replaces an image, and an empty file.
    std::fs::write(homes.path("image"), "").unwrap();
    (0..2).for_each(|_| pool.save(homes.path("image"), &mut |_, _| {}).unwrap());
    pool.save_with(&notes, HowToSave { force: true, memory_only: true }, &mut |_, _| {}).unwrap();
    drop(pool);
    std::fs::create_dir(homes.path("mine")).unwrap();
    std::fs::write(homes.path("mine/letter"), "a letter").unwrap();
    let refusal = homes.restore("mine", &[]).unwrap_err().to_string();
    assert!(refusal.contains("other files") && refusal.contains("letter"), "{refusal}");
    assert_eq!(std::fs::read_dir(homes.path("mine")).unwrap().count(), 1);
}

/// As after hours of overwriting: over the saved pool, whose disk lacks some of the content by now.
#[test]
fn over_its_own_pool_an_image_brings_back_what_the_disk_lacks() {
    let homes = Homes::new();
    let pool = homes.format(MediumKind::Logged, true);
    fill(&pool);
    pool.save(homes.path("image"), &mut |_, _| {}).unwrap();
    let view = View::new(&pool, Caller::root());
    view.unlink(b"large").unwrap();
    for n in 0..10u64 {
        view.create(b"other", 0o600).unwrap().write_all_at(&rng::Rng::new(n).bytes(30 * MIB as usize), 0).unwrap();
        pool.sync().unwrap();
    }
    drop(pool);
    Pool::restore(homes.path("pool"), homes.path("image"), None, true, &mut |_, _| {}).unwrap();
    is_whole(&open(&homes.path("pool")));
}
