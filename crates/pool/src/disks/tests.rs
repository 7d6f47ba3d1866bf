use std::fs;
use std::path::{Path, PathBuf};

use exraid::{Disk, Label, Options};

use crate::config::Config;
use crate::{Caller, FormatOptions, MediumKind, OpenOptions, Pool};
use crate::{DiskEntry, Layout, NewDisk, NewRegion, Remains, Replace};
use conquest_fs::path::{Open, View};

const MIB: u64 = 1 << 20;

/// A directory for pools and disks, which removes their shared memory too.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir_in("/dev/shm").expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes the pool `name`, or returns the error.
    fn try_format(&self, name: &str, disks: &[(&str, Option<u64>)], force: bool) -> Result<PathBuf, String> {
        let disk = |(path, size): &(&str, Option<u64>)| NewDisk { path: path.into(), size: *size };
        let regions = disks.iter().map(disk).map(NewRegion::from).collect();
        let how = FormatOptions { regions, force, ..FormatOptions::on(MediumKind::Logged, 8 * MIB) };
        Pool::format(self.path(name), &how).map(|()| self.path(name)).map_err(|e| e.to_string())
    }

    /// The same on regions.
    fn try_regions(&self, name: &str, regions: &[NewRegion]) -> Result<PathBuf, String> {
        let (medium, regions) = (MediumKind::Logged, regions.to_vec());
        let how = FormatOptions { regions, ..FormatOptions::on(medium, 8 * MIB) };
        Pool::format(self.path(name), &how).map(|()| self.path(name)).map_err(|e| e.to_string())
    }

    fn format(&self, name: &str, disks: &[(&str, Option<u64>)]) -> PathBuf {
        self.try_format(name, disks, false).expect("formatted")
    }

    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        fs::File::create(&path).and_then(|file| file.set_len(size)).expect("a file");
        path
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.0.path()).expect("a directory").flatten() {
            Pool::memory(entry.path()).into_iter().flatten().for_each(|path| _ = fs::remove_file(path));
        }
    }
}

/// A region of files in the directory above the pool's, of so many MiB.
fn region(layout: Layout, disks: &[(&str, u64)]) -> NewRegion {
    let disk = |(name, mib): &(&str, u64)| NewDisk { path: Path::new("..").join(name), size: Some(mib * MIB) };
    NewRegion { layout, disks: disks.iter().map(disk).collect() }
}

const STRIPE: Layout = Layout::Stripe { chunk: 64 << 10 };

fn open(dir: &Path) -> Result<Pool, String> {
    Pool::open(dir, &OpenOptions::default()).map_err(|e| e.to_string())
}

#[track_caller]
fn refused<T>(result: Result<T, String>, words: &[&str]) {
    let refusal = result.err().expect("it is refused");
    for word in words {
        assert!(refusal.contains(word), "it should say `{word}`: {refusal}");
    }
}

/// A region of one disk of 16 MiB.
fn make_one(path: &Path, uuid: [u8; 16]) -> conquest_fs::Result<std::sync::Arc<dyn exraid::Region>> {
    super::place::make_region(&[(path.into(), 16 * MIB)], Layout::Single, uuid, 0)
}

fn label(path: &Path) -> Option<Label> {
    Disk::open(path, &Options::default()).ok().and_then(|disk| Label::read(&disk).ok())
}

fn entries(dir: &Path) -> Vec<DiskEntry> {
    Config::read(dir).expect("read").expect("there").disks
}

#[test]
fn a_pool_has_the_disks_that_it_was_made_with() {
    let home = Home::new();
    home.file("given", 20 * MIB);
    let dir = home.format("pool", &[("disk", Some(16 * MIB)), ("../given", None), ("../made", Some(20 * MIB))]);
    let disks: Vec<_> = entries(&dir).into_iter().map(|disk| (disk.size, disk.given)).collect();
    assert_eq!(disks, [(Some(16 * MIB), false), (Some(20 * MIB), true), (Some(20 * MIB), false)]);
    assert_eq!(entries(&dir)[0].path, Path::new("disk"));
    let pool = open(&dir).expect("a pool");
    let status = pool.status().expect("facts");
    let numbers: Vec<_> = status.disks.iter().map(|disk| disk.region).collect();
    assert_eq!(numbers, [Some(0), Some(1), Some(2)]);
    // Labels at both ends of each take 2 MiB.
    let segments = status.segments.expect("a log");
    assert_eq!((segments.size, segments.segments, segments.used), (MIB, 14 + 18 + 18, 0));
    assert_eq!(pool.fsck(false, &mut |_, _| {}).expect("checked").problems, Vec::<String>::new());
    drop(pool);
    Pool::destroy(&dir).expect("destroyed");
    assert!(!dir.exists() && !home.path("made").exists());
    assert!(home.path("given").exists() && label(&home.path("given")).is_none());
}

#[test]
fn a_large_disk_has_large_segments() {
    let home = Home::new();
    let dir = home.format("pool", &[("disk", Some(1 << 30))]);
    let segments = open(&dir).expect("a pool").status().expect("facts").segments.expect("a log");
    assert_eq!((segments.size, segments.segments), (4 * MIB, 255));
}

#[test]
fn what_is_on_a_disk_is_only_lost_with_force() {
    let home = Home::new();
    let other = home.format("other", &[("../shared", Some(16 * MIB))]);
    let shared = Some(("../shared", None));
    refused(home.try_format("pool", shared.as_slice(), false), &["disk 1 of region 0 of the pool", "--force"]);
    let file = home.file("text", 16 * MIB);
    fs::write(&file, "a thesis").expect("written");
    fs::File::options().write(true).open(&file).and_then(|file| file.set_len(16 * MIB)).expect("longer");
    refused(home.try_format("pool", &[("../text", None)], false), &["with content", "--force"]);
    assert_eq!(fs::read(&file).expect("a file")[..8], *b"a thesis");
    assert!(open(&other).is_ok(), "it was not touched");
    let pool = home.try_format("pool", &[("../text", None), ("../shared", None)], true).expect("forced");
    assert!(open(&pool).is_ok());
    refused(open(&other), &["shared", "is a disk of the pool", "pool.toml"]);
    // A disk that was taken from the pool is not the pool's to remove.
    Pool::destroy(&other).expect("destroyed");
    assert!(open(&pool).is_ok());
}

#[test]
fn what_can_be_no_disk_is_refused_and_nothing_is_left() {
    let home = Home::new();
    fs::create_dir(home.path("dir")).expect("a directory");
    home.file("small", MIB);
    type Case<'a> = (&'a [(&'a str, Option<u64>)], &'a [&'a str]);
    let asked: [Case; 9] = [
        (&[("../dir", None)], &["a directory"]),
        (&[("../small", None)], &["1 MiB", "at least"]),
        (&[("disk", Some(9 * MIB))], &["9 MiB", "too little", "16 MiB at least"]),
        (&[("disk", Some(1 << 50))], &["its file system has"]),
        (&[("../no/such", Some(16 * MIB))], &["no/such"]),
        (&[("/dev/null", None)], &["a character device"]),
        (&[("disk", Some(16 * MIB)), ("disk", Some(20 * MIB))], &["the same disk"]),
        (&[("image", Some(16 * MIB))], &["part of the pool itself"]),
        (&[("pool.toml", Some(16 * MIB))], &["part of the pool itself"]),
    ];
    for (disks, words) in asked {
        refused(home.try_format("pool", disks, false), words);
        assert!(!home.path("pool").exists(), "{disks:?}");
    }
    let (link, given) = (home.path("link"), home.file("given", 16 * MIB));
    std::os::unix::fs::symlink(&given, link).expect("a link");
    refused(home.try_format("pool", &[("../given", None), ("../link", None)], false), &["the same disk"]);
}

#[test]
fn a_disk_that_is_not_what_it_was_is_reported_with_what_to_do() {
    let home = Home::new();
    let dir = home.format("pool", &[("disk", Some(20 * MIB))]);
    View::new(&open(&dir).expect("a pool"), Caller::root()).create(b"file", 0o600).expect("made");
    let (disk, away) = (dir.join("disk"), home.path("away"));
    let cut = |size| fs::File::options().write(true).open(&disk).and_then(|file| file.set_len(size)).expect("cut");
    fs::rename(&disk, &away).expect("away");
    refused(open(&dir), &["disk is not there", "attach it", "[[disk]]", "pool.toml"]);
    let looked = Pool::open(&dir, &OpenOptions { without_disks: true, ..Default::default() }).expect("to look");
    let status = looked.status().expect("facts").disks[0].problem.clone().expect("a problem");
    assert!(status.contains("is not there"), "{status}");
    drop(looked);
    home.file("pool/disk", 16 * MIB);
    refused(open(&dir), &["has no label", "[[disk]]"]);
    fs::write(&disk, "something else").expect("written");
    refused(open(&dir), &["needed", "[[disk]]"]);
    cut(16 * MIB);
    refused(open(&dir), &["has no label", "it holds a file of", "with content"]);
    fs::remove_file(&disk).expect("removed");
    fs::create_dir(&disk).expect("a directory");
    refused(open(&dir), &["a directory"]);
    fs::remove_dir(&disk).expect("removed");
    fs::copy(&away, &disk).expect("back");
    assert!(open(&dir).is_ok());
    cut(17 * MIB);
    refused(open(&dir), &["has 17825792 bytes, and had 20971520", "whole"]);
    // Given up.
    let config = Config::read(&dir).expect("read").expect("there");
    Config { disks: Vec::new(), ..config }.write(&dir).expect("written");
    let pool = open(&dir).expect("without it");
    assert!(View::new(&pool, Caller::root()).stat(b"file").is_ok());
    drop(pool);
    // With another disk in its place, the content of the first would be lost.
    let new = NewDisk { path: home.path("new"), size: Some(16 * MIB) };
    refused(Pool::add_disk(&dir, &new.clone().into(), false).map_err(|e| e.to_string()), &["had a disk already"]);
}

#[test]
fn a_label_of_another_version_is_refused() {
    let home = Home::new();
    let dir = home.format("pool", &[("disk", Some(16 * MIB))]);
    let file = fs::File::options().read(true).write(true).open(dir.join("disk")).expect("a file");
    for at in [0, 15 * MIB] {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, at).expect("read");
        bytes[8] = 77;
        let crc = crc32c::crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&bytes, at).expect("written");
    }
    refused(open(&dir), &["its label is of version 77"]);
}

#[test]
fn a_pool_without_a_disk_gets_its_first_one() {
    let home = Home::new();
    let dir = home.format("pool", &[]);
    View::new(&open(&dir).expect("a pool"), Caller::root()).create(b"file", 0o600).expect("made");
    let add = |path: &str, force| {
        let new = NewDisk { path: home.path(path), size: Some(16 * MIB) };
        Pool::add_disk(&dir, &new.clone().into(), force).map_err(|e| e.to_string())
    };
    let used = open(&dir).expect("a pool");
    refused(add("pool/disk", false), &["in use", "unmount"]);
    drop(used);
    fs::write(home.path("text"), "a thesis").expect("written");
    refused(add("text", false), &["with content", "--force"]);
    assert!(entries(&dir).is_empty());
    add("pool/disk", false).expect("added");
    let pool = open(&dir).expect("a pool");
    assert!(View::new(&pool, Caller::root()).stat(b"file").is_ok());
    let status = pool.status().expect("facts");
    assert_eq!((status.disks.len(), status.segments.expect("a log").segments), (1, 14));
    drop(pool);
    refused(add("pool/disk", false), &["a disk of the pool already"]);
    add("other", false).expect("a second one");
    assert_eq!(entries(&dir).len(), 2);
}

/// After a power cut before `pool.toml` named the disk, or before the log was made.
#[test]
fn adding_a_disk_can_be_repeated_and_is_finished_by_who_opens_the_pool() {
    let home = Home::new();
    let dir = home.format("pool", &[]);
    let new = NewDisk { path: "disk".into(), size: Some(16 * MIB) };
    let config = Config::read(&dir).expect("read").expect("there");
    let uuid = config.uuid_bytes().expect("one");
    drop(make_one(&dir.join("disk"), uuid).expect("a region"));
    Pool::add_disk(&dir, &new.clone().into(), false).expect("repeated over what is its own");
    assert_eq!(entries(&dir).len(), 1);

    let dir = home.format("second", &[]);
    let config = Config::read(&dir).expect("read").expect("there");
    let uuid = config.uuid_bytes().expect("one");
    drop(make_one(&dir.join("disk"), uuid).expect("a region"));
    let entry = DiskEntry { path: "disk".into(), size: Some(16 * MIB), given: false, region: None };
    Config { disks: vec![entry], ..config }.write(&dir).expect("written");
    assert!(open(&dir).expect("a pool").status().expect("facts").segments.is_some());
}

#[test]
fn a_copy_alone_finds_its_disk_again() {
    let home = Home::new();
    let dir = home.format("pool", &[("disk", Some(16 * MIB))]);
    let config = Config::read(&dir).expect("read").expect("there");
    Pool::release(&dir).expect("released");
    fs::remove_file(dir.join("pool.toml")).expect("removed");
    Pool::import(&dir, false, &mut |_, _| {}).expect("imported");
    let named = |disks: Vec<DiskEntry>| disks.into_iter().map(|disk| (disk.path, disk.size)).collect::<Vec<_>>();
    assert_eq!(named(entries(&dir)), named(config.disks));
    assert!(open(&dir).is_ok());
    // A disk of another pool is not taken.
    let other = home.format("other", &[("disk", Some(16 * MIB))]);
    Pool::release(&dir).expect("released");
    fs::remove_file(dir.join("pool.toml")).expect("removed");
    fs::copy(other.join("disk"), dir.join("disk")).expect("another's");
    Pool::import(&dir, false, &mut |_, _| {}).expect("imported");
    assert!(entries(&dir).is_empty());
}

/// By a process that is killed.
#[test]
fn what_was_left_in_the_making_is_given_back() {
    let home = Home::new();
    let dir = home.format("pool", &[]);
    let config = Config::read(&dir).expect("read").expect("there");
    let disk = |path: PathBuf| DiskEntry { path, size: Some(16 * MIB), given: false, region: None };
    let disks = vec![disk("disk".into()), disk(home.path("made"))];
    let made = [home.path("pool/.disk.restored"), home.path(".made.restored"), home.path("pool/.restored/disk-2")];
    fs::create_dir(dir.join(".restored")).expect("a directory");
    Config { disks, ..config }.write(&dir.join(".restored")).expect("written");
    made.iter().for_each(|path| drop(make_one(path, [3; 16]).expect("made")));
    drop(crate::make::Builder::begin(&dir).expect("another"));
    assert!(made.iter().all(|path| !path.exists()));
    assert!(open(&dir).is_ok());
}

#[test]
fn what_is_left_of_a_pool_is_destroyed_with_its_disk() {
    let home = Home::new();
    let dir = home.format("pool", &[("disk", Some(16 * MIB))]);
    fs::remove_file(dir.join("pool.toml")).expect("removed");
    Pool::destroy(&dir).expect("destroyed");
    assert!(!dir.exists());
}

#[test]
fn the_usual_disk_is_as_large_as_what_its_host_has_free() {
    let home = Home::new();
    let how = FormatOptions::on(MediumKind::Logged, 8 * MIB);
    let disk = Pool::usual_disk(home.path("pool"), &how).expect("asked").expect("room");
    let host = rustix::fs::statvfs(home.0.path()).expect("a file system");
    let (total, free) = (host.f_blocks * host.f_frsize, host.f_bavail * host.f_frsize);
    let size = disk.size.expect("a size");
    let expected = free - exraid::disk::usual_reserve(total) - 16 * MIB;
    assert!(size <= expected + 64 * MIB && size + 64 * MIB >= expected, "{size} of {free}, not {expected}");
}

#[test]
fn an_old_pool_toml_has_no_disks() {
    let home = Home::new();
    let dir = home.path("pool");
    fs::create_dir(&dir).expect("a directory");
    let old = "version = 1\nuuid = \"6f1d2c3b-4a59-4687-9abc-def012345678\"\nmedium = \"logged\"\n";
    fs::write(dir.join("pool.toml"), old).expect("written");
    assert!(entries(&dir).is_empty());
    let with = |disk: &str| fs::write(dir.join("pool.toml"), format!("{old}[[disk]]\n{disk}\n")).expect("written");
    with("path = \"/dev/sdb\"\ngiven = true");
    assert_eq!(entries(&dir), [DiskEntry { path: "/dev/sdb".into(), size: None, given: true, region: None }]);
    with("path = \"disk\"\nspeed = 3");
    assert!(Config::read(&dir).is_err_and(|e| e.to_string().contains("speed")));
    fs::remove_file(dir.join("pool.toml")).expect("removed");
}

/// The states of the members of region 0.
fn states(dir: &Path) -> Vec<&'static str> {
    let (regions, _) = Pool::disks(dir).expect("an answer");
    regions[0].members.iter().map(|member| member.state).collect()
}

#[test]
fn regions_have_the_disks_that_they_were_made_with() {
    let home = Home::new();
    let asked = [
        region(Layout::Mirror, &[("a", 20), ("b", 24)]),
        region(STRIPE, &[("c", 16), ("d", 16), ("e", 16)]),
        region(Layout::Single, &[("f", 32)]),
    ];
    let dir = home.try_regions("pool", &asked).expect("formatted");
    let sizes: Vec<_> = entries(&dir).iter().filter_map(|disk| disk.size).map(|size| size / MIB).collect();
    assert_eq!(sizes, [20, 20, 16, 16, 16, 32], "as large as the smallest of its region");
    let pool = open(&dir).expect("a pool");
    let status = pool.status().expect("facts");
    let regions: Vec<_> =
        status.regions.iter().map(|r| (&*r.layout, r.size / MIB, r.members.len(), r.tolerated)).collect();
    assert_eq!(regions, [("mirror", 18, 2, Some(1)), ("stripe", 42, 3, Some(0)), ("single", 30, 1, Some(0))]);
    assert_eq!((status.regions[1].start, status.regions[1].end), (1 << 46, (1 << 46) + 42 * MIB));
    let of: Vec<_> = status.disks.iter().map(|disk| disk.region).collect();
    assert_eq!(of, [0, 0, 1, 1, 1, 2].map(Some));
    assert_eq!(status.segments.expect("a log").segments, 18 + 42 + 30);
    drop(pool);
    Pool::destroy(&dir).expect("destroyed");
    assert!(["a", "b", "c", "d", "e", "f"].iter().all(|name| !home.path(name).exists()));
}

#[test]
fn what_makes_no_region_is_refused_and_nothing_is_left() {
    let home = Home::new();
    home.file("given", 20 * MIB);
    std::os::unix::fs::symlink(home.path("given"), home.path("link")).expect("a link");
    let given = |name: &str| NewDisk { path: home.path(name), size: None };
    let twice = NewRegion { layout: Layout::Mirror, disks: vec![given("given"), given("link")] };
    let across = [region(Layout::Mirror, &[("a", 16), ("b", 16)]), region(STRIPE, &[("c", 16), ("b", 16)])];
    let asked: [(&[NewRegion], &[&str]); 7] = [
        (&[region(Layout::Mirror, &[("a", 16)])], &["a mirror has 2 to 32 disks, not 1"]),
        (&[region(Layout::Single, &[("a", 16), ("b", 16)])], &["a single has 1 disk, not 2"]),
        (&[region(Layout::Mirror, &[("a", 16), ("b", 1)])], &["b has 1 MiB", "16 MiB at least"]),
        (&[twice], &["the same disk"]),
        (&[region(Layout::Mirror, &[("a", 16), ("../x/../a", 16)])], &["directory is not there"]),
        (&[region(Layout::Mirror, &[("a", 16), ("pool/../a", 16)])], &["the same disk"]),
        (&across, &["b", "the same disk"]),
    ];
    for (regions, words) in asked {
        refused(home.try_regions("pool", regions), words);
        assert!(!home.path("pool").exists() && !home.path("a").exists(), "{regions:?}");
    }
}

/// A mirror takes a part of a larger given file. A label at the file's end, of another pool, must not count.
#[test]
fn a_given_disk_may_be_larger_than_its_share() {
    let home = Home::new();
    let other = home.format("other", &[("../given", Some(40 * MIB))]);
    let given = NewDisk { path: home.path("given"), size: None };
    let small = NewDisk { path: home.path("a"), size: Some(16 * MIB) };
    let regions = vec![NewRegion { layout: Layout::Mirror, disks: vec![given, small] }];
    let how = FormatOptions { regions, force: true, ..FormatOptions::on(MediumKind::Logged, 8 * MIB) };
    Pool::format(home.path("pool"), &how).expect("formatted");
    assert_eq!(fs::metadata(home.path("given")).expect("there").len(), 40 * MIB);
    let file = fs::File::options().write(true).open(home.path("given")).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], 0).expect("damaged");
    assert!(open(&home.path("pool")).is_ok());
    assert_eq!(states(&home.path("pool")), ["missing", "whole"], "its label is found from the first copy alone");
    refused(open(&other), &["given"]);
}

#[test]
fn a_pool_is_opened_without_a_disk_of_a_mirror_and_without_a_stripe() {
    let home = Home::new();
    let asked = [region(Layout::Mirror, &[("a", 16), ("b", 16)]), region(STRIPE, &[("c", 16), ("d", 16)])];
    let dir = home.try_regions("pool", &asked).expect("formatted");
    let away = |name: &str| fs::rename(home.path(name), home.path("away")).expect("away");
    let back = |name: &str| fs::rename(home.path("away"), home.path(name)).expect("back");
    // Content on the stripe cannot be read without d; the mirror takes new content.
    let out_of_use = || {
        let pool = open(&dir).expect("without it");
        let work = pool.disk_work().expect("an answer").expect("there are disks");
        work.out_of_use.iter().map(|out| (out.region, out.why, out.is_there)).collect::<Vec<_>>()
    };
    away("d");
    assert_eq!(out_of_use(), [(1, "missing", false)]);
    back("d");
    assert_eq!(out_of_use(), []);
    // All of them are too many.
    fs::rename(home.path("a"), home.path("a.away")).expect("away");
    fs::rename(home.path("b"), home.path("b.away")).expect("away");
    away("d");
    refused(open(&dir), &["is not there", "attach it"]);
    fs::rename(home.path("a.away"), home.path("a")).expect("back");
    fs::rename(home.path("b.away"), home.path("b")).expect("back");
    back("d");
    assert_eq!(states(&dir), ["whole", "whole"]);
    away("b");
    let pool = open(&dir).expect("without it");
    let status = pool.status().expect("facts");
    assert_eq!((status.regions[0].tolerated, status.regions[0].is_degraded()), (Some(0), true));
    let problem = status.disks[1].problem.clone().expect("a problem");
    assert!(problem.contains("b is not there") && problem.contains("conquest region replace"), "{problem}");
    drop((status, pool));
    back("b");
    assert_eq!(states(&dir), ["whole", "out"]);
    fs::remove_file(home.path("b")).expect("removed");
    fs::create_dir(home.path("b")).expect("something else");
    assert!(open(&dir).is_ok());
}

/// The missing half was reported as a failure of each segment.
#[test]
fn half_a_mirror_tells_all_that_is_on_it() {
    let home = Home::new();
    let dir = home.try_regions("pool", &[region(Layout::Mirror, &[("a", 16), ("b", 16)])]).expect("formatted");
    let (pool, content) = (open(&dir).expect("a pool"), vec![7; 2 * MIB as usize]);
    let file = View::new(&pool, Caller::root()).create(b"file", 0o600).expect("made");
    file.write_all_at(&content, 0).expect("written");
    pool.union().expect("a log").move_to_disk(&pool, file.ino()).expect("there is room");
    drop(file);
    drop(pool);
    for disk in ["a", "b"] {
        let found = Remains::find(&[home.path(disk)], &mut |_, _| ()).expect("it is looked through");
        assert!(found.segments().0 > 0 && found.failed().is_empty(), "{disk}: {:?}", found.failed());
        let to = home.path(&format!("from {disk}"));
        let gaps = found.recover(&found.inodes()[0], &to).expect("written");
        assert!(gaps.is_empty() && fs::read(to).expect("there").starts_with(&content), "{disk}");
    }
}

/// A process that holds a file in the place of a disk exclusively keeps no other from the pool.
#[test]
fn a_mirror_is_opened_where_the_name_of_its_disk_is_that_of_something_else() {
    let home = Home::new();
    let dir = home.try_regions("pool", &[region(Layout::Mirror, &[("a", 20), ("b", 20)])]).expect("formatted");
    let alone = |path: &Path| {
        let file = fs::File::open(path).expect("it is there");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        file
    };
    let held = alone(&home.path("b"));
    refused(open(&dir), &["/b is in use", "has it for himself"]);
    drop(held);
    fs::create_dir(home.path("away")).expect("mkdir");
    fs::rename(home.path("b"), home.path("away/b")).expect("renamed");
    let _held = alone(&home.file("b", 20 * MIB));
    drop(open(&dir).expect("the other one is there"));
    assert_eq!(states(&dir), ["whole", "missing"]);
}

/// Of two mirrors one has lost a disk: its next loss would take new content with it.
#[test]
fn content_goes_to_the_region_that_can_lose_a_disk() {
    let home = Home::new();
    let mirrors = [("a", "b"), ("c", "d")].map(|(one, other)| region(Layout::Mirror, &[(one, 48), (other, 48)]));
    let dir = home.try_regions("pool", &mirrors).expect("formatted");
    fs::rename(home.path("d"), home.path("d.away")).expect("away");
    let pool = open(&dir).expect("without it");
    let written = |bytes: usize, name: &[u8]| {
        let file = View::new(&pool, Caller::root()).create(name, 0o600).expect("made");
        file.write_all_at(&vec![7; bytes], 0).expect("written");
        pool.union().expect("a log").move_to_disk(&pool, file.ino()).expect("there is room");
        pool.filled().expect("an answer").iter().map(|one| one.used / MIB).collect::<Vec<_>>()
    };
    let used = written(20 << 20, b"file");
    assert!(used[0] >= 16 && used[1] <= 4, "{used:?}");
    // When that is full, the degraded one is better than nothing.
    let used = written(40 << 20, b"more");
    assert!(used[1] > 8, "{used:?}");
}

#[test]
fn a_disk_is_put_back_or_replaced() {
    let home = Home::new();
    let dir = home.try_regions("pool", &[region(Layout::Mirror, &[("a", 32), ("b", 32)])]).expect("formatted");
    let content = vec![7; 6 << 20];
    let write = |name: &[u8]| {
        let pool = open(&dir).expect("a pool");
        let view = View::new(&pool, Caller::root());
        view.create(name, 0o600).and_then(|file| file.write_all_at(&content, 0)).expect("written");
    };
    write(b"file");
    let replace = |old: &str, new: Option<&str>| {
        let new = new.map(|name| NewDisk { path: home.path(name), size: None });
        let how = Replace { old: home.path(old), new, force: false, member: None };
        Pool::replace_disk(&dir, &how, &mut |_, _| {}).map_err(|e| e.to_string())
    };
    assert_eq!(replace("b", None).expect("asked").left, 0, "it is whole");
    fs::rename(home.path("b"), home.path("away")).expect("away");
    write(b"later");
    fs::rename(home.path("away"), home.path("b")).expect("back");
    refused(replace("b", Some("a")), &["a is a disk of the pool already"]);
    refused(replace("x", Some("c")), &["x is no disk of the pool"]);
    let done = replace("b", None).expect("put back");
    assert!((done.region, done.number) == (0, 2) && done.left >= 12 << 20, "{done:?}");
    assert_eq!(states(&dir), ["whole", "whole"]);
    fs::remove_file(home.path("a")).expect("lost");
    refused(replace("a", None), &["a is not there", "NEW"]);
    replace("a", Some("c")).expect("another");
    assert_eq!(entries(&dir)[0].path, home.path("c"));
    fs::remove_file(home.path("b")).expect("lost");
    let pool = open(&dir).expect("with one");
    let view = View::new(&pool, Caller::root());
    for name in [&b"file"[..], b"later"] {
        let mut found = vec![0; content.len()];
        let file = view.open(name, Open::new().read(true)).expect("there");
        assert_eq!(file.read_at(&mut found, 0).expect("read"), content.len());
        assert!(found == content);
    }
}

/// After a power cut before any label named the new disk, or in the middle of copying.
#[test]
fn replacing_a_disk_can_be_resumed() {
    let home = Home::new();
    let dir = home.try_regions("pool", &[region(Layout::Mirror, &[("a", 16), ("b", 16)])]).expect("formatted");
    fs::remove_file(home.path("b")).expect("lost");
    home.file("c", 16 * MIB);
    let mut config = Config::read(&dir).expect("read").expect("there");
    config.disks[1].path = home.path("c");
    config.write(&dir).expect("written");
    assert_eq!(states(&dir), ["whole", "missing"]);
    assert!(open(&dir).is_ok());
    let how = Replace {
        old: home.path("b"),
        new: Some(NewDisk { path: home.path("c"), size: None }),
        force: true,
        member: None,
    };
    Pool::replace_disk(&dir, &how, &mut |_, _| {}).expect("resumed");
    assert_eq!(states(&dir), ["whole", "whole"]);
    assert!(!dir.join(".rebuild").exists());
}

#[test]
fn one_process_rebuilds_at_a_time_and_others_use_the_pool() {
    let home = Home::new();
    let dir = home.try_regions("pool", &[region(Layout::Mirror, &[("a", 16), ("b", 16)])]).expect("formatted");
    let pool = open(&dir).expect("a pool");
    let alone = super::rebuild::Rebuilding::begin(&dir).expect("nobody else does");
    let again = super::rebuild::Rebuilding::begin(&dir).map(drop).map_err(|e| e.to_string());
    refused(again, &["rebuilt by another process", "resumed"]);
    drop(open(&dir).expect("it is in use"));
    drop((alone, pool));
    assert!(super::rebuild::Rebuilding::begin(&dir).is_ok() && open(&dir).is_ok());
}
