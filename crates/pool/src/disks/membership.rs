//! Pools that get further disks, and give them up, while they are in use.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::{Caller, FormatOptions, Ino, MediumKind, OpenOptions, Pool};
use crate::{HowToLeave, Layout, Left, NewDisk, NewRegion, WhichRegion};
use conquest_fs::node::WriteFlags;
use conquest_fs::path::{Open, View};
use ilfs::leave::Course;
use ilfs::table;

const MIB: u64 = 1 << 20;

struct Home(tempfile::TempDir);

impl Home {
    fn format(medium: MediumKind) -> Home {
        let home = Home(tempfile::tempdir_in("/dev/shm").expect("a directory"));
        let regions = vec![NewDisk { path: "../first".into(), size: Some(32 * MIB) }.into()];
        let how = FormatOptions { regions, ..FormatOptions::on(medium, 24 * MIB) };
        Pool::format(home.pool(), &how).expect("there is room");
        home
    }

    fn pool(&self) -> PathBuf {
        self.0.path().join("pool")
    }

    fn open(&self) -> Pool {
        Pool::open(self.pool(), &OpenOptions::default()).expect("it is opened")
    }

    fn add(&self, name: &str, size: u64) -> Result<(), String> {
        let disk = NewDisk { path: Path::new("..").join(name), size: Some(size) };
        Pool::add_disk(self.pool(), &disk.into(), false).map_err(|e| e.to_string())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        Pool::memory(self.pool()).into_iter().flatten().for_each(|path| _ = std::fs::remove_file(path));
    }
}

fn content(n: u64) -> Vec<u8> {
    rng::Rng::new(n).bytes(MIB as usize)
}

fn file(pool: &Pool) -> Ino {
    let how = Open::new().read(true).write(true).create(true).mode(0o644);
    View::new(pool, Caller::root()).open(b"file", how).and_then(|file| file.attr()).expect("there is room").ino
}

/// Writes MiB after MiB of a file, from `from` on; returns how many were written before there was no room.
fn write(pool: &Pool, from: u64, most: u64) -> u64 {
    let ino = file(pool);
    (from..from + most).take_while(|n| pool.write(ino, n * MIB, &content(*n), WriteFlags::default()).is_ok()).count()
        as u64
}

fn holds(pool: &Pool, mib: u64) {
    let ino = file(pool);
    let mut back = vec![0; MIB as usize];
    for n in 0..mib {
        assert_eq!(pool.read(ino, n * MIB, &mut back).expect("it is read"), back.len());
        assert!(back == content(n), "MiB {n}");
    }
    let report = pool.fsck(false, &mut |_, _| {}).expect("it runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

fn grows(medium: MediumKind) {
    let home = Home::format(medium);
    let pool = home.open();
    let first = write(&pool, 0, 200);
    assert!((16..32).contains(&first), "{first} MiB on a disk of 32");

    home.add("second", 96 * MIB).expect("it is added");
    let second = write(&pool, first, 40);
    assert_eq!(second, 40, "who has the pool open uses it at once");
    home.add("third", 64 * MIB).expect("it is added");
    let (all, end) = (first + 70, Instant::now() + Duration::from_secs(2));
    loop {
        assert_eq!(write(&pool, first + second, 30), 30);
        pool.union().expect("there are disks").write_all(&pool).expect("there is room");
        let status = pool.status().expect("facts");
        let written: Vec<u64> = status.disks.iter().map(|disk| disk.performance.write.bytes).collect();
        if written.len() == 3 && written.iter().all(|bytes| *bytes > 4 * MIB) {
            break;
        }
        assert!(Instant::now() < end, "{written:?}");
    }
    holds(&pool, all);
    drop(pool);
    holds(&home.open(), all);
}

#[test]
fn a_pool_on_battery_grows_while_it_is_written_to() {
    grows(MediumKind::Battery);
}

#[test]
fn a_pool_on_logged_grows_while_it_is_written_to() {
    grows(MediumKind::Logged);
}

#[test]
fn a_disk_that_cannot_be_added_is_refused_and_nothing_changes() {
    let home = Home::format(MediumKind::Battery);
    let refusal = home.add("first", 32 * MIB).expect_err("the pool has it");
    assert!(refusal.contains("a disk of the pool already") && refusal.contains("region list"), "{refusal}");
    let refusal = home.add("small", MIB).expect_err("it is too small");
    assert!(refusal.contains("too little"), "{refusal}");
    let other = Home::format(MediumKind::Battery);
    let theirs = other.0.path().join("first");
    let disk = NewDisk { path: theirs, size: None };
    let refusal = Pool::add_disk(home.pool(), &disk.into(), false).expect_err("another pool has it").to_string();
    assert!(refusal.contains("of the pool") && refusal.contains("--force"), "{refusal}");
    assert_eq!(Config::read(&home.pool()).expect("read").expect("there").disks.len(), 1);
    assert_eq!(write(&home.open(), 0, 4), 4);
}

/// Interrupted after step 2.
#[test]
fn an_addition_that_was_cut_short_is_completed() {
    let home = Home::format(MediumKind::Battery);
    let first = write(&home.open(), 0, 200);
    let mut config = Config::read(&home.pool()).expect("read").expect("there");
    let uuid = config.uuid_bytes().expect("one");
    drop(
        super::place::make_region(&[(home.0.path().join("second"), 64 * MIB)], Layout::Single, uuid, 1).expect("made"),
    );
    config.disks.push(crate::DiskEntry { path: "../second".into(), size: Some(64 * MIB), given: false, region: None });
    config.write(&home.pool()).expect("written");
    let pool = home.open();
    assert_eq!(write(&pool, first, 30), 30);
    holds(&pool, first + 30);
    let (at, _) = table::Where::find(pool.session().memory()).expect("read").expect("there");
    assert_eq!(at.table(pool.session().memory()).regions().expect("read").len(), 2);
}

impl Home {
    /// A pool with two disks, and the number of MiB on them.
    fn with_two(medium: MediumKind, second: u64) -> (Home, Pool, u64) {
        let home = Home::format(medium);
        home.add("second", second).expect("it is added");
        let pool = home.open();
        let mib = write(&pool, 0, 20);
        pool.union().expect("there are disks").write_all(&pool).expect("there is room");
        (home, pool, mib)
    }

    fn remove(&self, name: &str, how: HowToLeave, segments: u64) -> Result<Left, String> {
        let mut asked = 0;
        let mut go_on = |_| {
            asked += 1;
            asked < segments
        };
        Pool::remove_regions(self.pool(), &[WhichRegion::Disk(self.0.path().join(name))], how, &mut go_on)
            .map_err(|e| e.to_string())
    }

    fn disks(&self) -> usize {
        Config::read(&self.pool()).expect("read").expect("there").disks.len()
    }
}

fn leaves(medium: MediumKind) {
    let (home, pool, mib) = Home::with_two(medium, 96 * MIB);
    let Ok(Left::Looked(refusal)) = home.remove("first", HowToLeave::Look, u64::MAX) else { panic!("it only looks") };
    assert!(refusal.fits() && refusal.live > 0 && refusal.segments > 0, "{refusal:?}");
    assert_eq!(
        home.remove("first", HowToLeave::Leave { fewer: false }, u64::MAX),
        Ok(Left::Gone(vec![home.0.path().join("first")]))
    );
    assert!(!home.0.path().join("first").exists() && home.disks() == 1);
    // A process that has the pool open reads everything, and writes more.
    holds(&pool, mib);
    let all = mib + write(&pool, mib, 10);
    assert_eq!(all, mib + 10);
    holds(&pool, all);
    let refusal = home.remove("second", HowToLeave::Leave { fewer: false }, u64::MAX).expect_err("it is the last");
    assert!(refusal.contains("last disk") || refusal.contains("room for"), "{refusal}");
    drop(pool);
    home.add("third", 64 * MIB).expect("it is added");
    let pool = home.open();
    assert_eq!(write(&pool, all, 10), 10);
    holds(&pool, all + 10);
}

#[test]
fn a_disk_leaves_a_pool_on_battery_that_is_in_use() {
    leaves(MediumKind::Battery);
}

#[test]
fn a_disk_leaves_a_pool_on_logged_that_is_in_use() {
    leaves(MediumKind::Logged);
}

#[test]
fn what_does_not_fit_elsewhere_stays() {
    let (home, pool, _) = Home::with_two(MediumKind::Battery, 96 * MIB);
    let more = write(&pool, 20, 60);
    assert!(more > 30, "{more} MiB more");
    let Ok(Left::Looked(leaving)) = home.remove("second", HowToLeave::Look, u64::MAX) else { panic!("it only looks") };
    assert!(!leaving.fits(), "{leaving:?}");
    let why = home.remove("second", HowToLeave::Leave { fewer: false }, u64::MAX).expect_err("it does not fit");
    assert!(why.contains("room for") && why.contains("region add"), "{why}");
    assert_eq!(home.disks(), 2);
    holds(&pool, 20 + more);
}

#[test]
fn who_is_interrupted_goes_on_or_cancels() {
    let (home, pool, mib) = Home::with_two(MediumKind::Battery, 96 * MIB);
    // The pool's own maintenance does not continue so soon: it moves a segment of 4 MiB in a minute.
    const REST: Duration = Duration::from_secs(60);
    pool.ask_for(&|tasks| tasks.rate = 64 << 10).expect("there are disks");
    let began = Instant::now();
    assert!(matches!(home.remove("second", HowToLeave::Leave { fewer: false }, 2), Ok(Left::Interrupted(_))));
    let all = mib + write(&pool, mib, 2);
    holds(&pool, all);
    assert_eq!(home.remove("second", HowToLeave::Cancel, 0), Ok(Left::Stays));
    assert_eq!(home.disks(), 2);
    assert!(matches!(home.remove("first", HowToLeave::Leave { fewer: false }, 2), Ok(Left::Interrupted(_))));
    assert!(began.elapsed() < REST, "a rest is over for those who are interrupted");
    drop(pool);
    let pool = home.open();
    pool.ask_for(&|tasks| tasks.rate = 0).expect("there are disks");
    assert_eq!(
        home.remove("first", HowToLeave::Leave { fewer: false }, u64::MAX),
        Ok(Left::Gone(vec![home.0.path().join("first")]))
    );
    holds(&pool, all);
}

/// Interrupted after step 3.
#[test]
fn a_removal_that_was_cut_short_is_completed() {
    let (home, pool, mib) = Home::with_two(MediumKind::Battery, 96 * MIB);
    drop(pool);
    // Without the thread of work on disks, which would complete it.
    let pool =
        Pool::open(home.pool(), &OpenOptions { without_disks: true, ..OpenOptions::default() }).expect("it is opened");
    let (union, session) = (pool.union().expect("there are disks"), pool.session());
    union.log().set_leaving(session, &[0], Course::Leave).expect("it fits");
    assert!(union.move_leaving(&pool, &mut |_| true).expect("moved"));
    while !union.log().remove_region(session, 0).expect("empty") {
        // Another thread is giving a slot back.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(home.disks(), 2);
    drop(pool);
    let pool = home.open();
    assert!(home.disks() == 1 && !home.0.path().join("first").exists());
    holds(&pool, mib);
}

/// A given disk leaves, and is added again, twice, while another process has the pool open: that closes the disk.
#[test]
fn a_disk_that_left_is_added_again_while_the_pool_is_in_use() {
    let home = Home::format(MediumKind::Battery);
    let path = home.0.path().join("given");
    std::fs::File::create(&path).and_then(|file| file.set_len(64 * MIB)).expect("there is room");
    let pool = home.open();
    let mut mib = write(&pool, 0, 4);
    for _ in 0..2 {
        let disk = NewDisk { path: path.clone(), size: None };
        Pool::add_disk(home.pool(), &disk.into(), false).expect("nobody has it");
        mib += write(&pool, mib, 4);
        pool.union().expect("there are disks").write_all(&pool).expect("there is room");
        assert_eq!(pool.status().expect("facts").disks.len(), 2);
        let left = home.remove("given", HowToLeave::Leave { fewer: false }, u64::MAX);
        assert_eq!(left, Ok(Left::Gone(vec![path.clone()])));
        assert!(path.exists(), "it was given");
        holds(&pool, mib);
    }
    let status = pool.status().expect("facts");
    assert_eq!((status.regions.len(), status.disks.len()), (1, 1));
}

/// Of two disks in one request the second is refused: neither is added. Then both are.
#[test]
fn several_are_added_all_or_none() {
    let (home, pool, mib) = Home::with_two(MediumKind::Battery, 96 * MIB);
    let at = |name: &str| home.0.path().join(name);
    let disk = |name: &str| NewRegion::from(NewDisk { path: at(name), size: Some(96 * MIB) });
    std::fs::create_dir(at("directory")).expect("made");
    for bad in ["directory", "first", "third"] {
        let e =
            Pool::add_disks(home.pool(), &[disk("third"), disk(bad)], false).expect_err("one is refused").to_string();
        assert!(e.contains(bad), "{e}");
        assert!(home.disks() == 2 && !at("third").exists(), "{bad}");
    }
    Pool::add_disks(home.pool(), &[disk("third"), disk("fourth")], false).expect("added");
    assert_eq!((home.disks(), Pool::disks(home.pool()).expect("an answer").0.len()), (4, 4));
    holds(&pool, mib);
}
