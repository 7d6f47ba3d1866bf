//! When changes are durable on the medium `logged`: the content of the backing the moment a call has returned, by
//! the process's policy and the inodes' settings.
//!
//! The pools here commit once a day, so that only commits that are waited for reach their backings.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use backing::image::Image;
use backing::log::Log;
use conquest::{Caller, Durability, FormatOptions, Kind, MediumKind, OpenOptions, Pool, SetAttr, SetTime, Time};
use conquest::{CommitInterval, MountInfo, Terms};
use conquest_fs::node::{Fallocate, Rename, SetXattr};
use conquest_fs::path::{Open, View};
use rustix::io::Errno;

const SET: &[u8] = b"user.conquest.durability";
const EFFECTIVE: &[u8] = b"user.conquest.effective.durability";
const KEPT: [&str; 4] = ["image", "redo-0", "redo-1", "pool.toml"];

/// A directory for a pool, and for the remains of it after a power cut.
pub struct Home(tempfile::TempDir);

impl Home {
    pub fn new(medium: MediumKind) -> Home {
        let home = Home(tempfile::tempdir_in("/dev/shm").unwrap());
        let day = CommitInterval::try_from(86_400.0).unwrap();
        let how = FormatOptions { commit_interval: Some(day), ..FormatOptions::on(medium, 8 << 20) };
        Pool::format(home.pool(), &how).unwrap();
        home
    }

    pub fn pool(&self) -> std::path::PathBuf {
        self.0.path().join("pool")
    }

    pub fn open(&self, durability: Durability) -> Pool {
        Pool::open(self.pool(), &OpenOptions { durability, ..OpenOptions::default() }).unwrap()
    }

    /// Looks at the pool that the present backing makes elsewhere: as after a power cut.
    pub fn after_power_cut<T>(&self, look: impl FnOnce(&Pool) -> T) -> T {
        let there = tempfile::tempdir_in(self.0.path()).unwrap();
        for name in KEPT {
            std::fs::copy(self.pool().join(name), there.path().join(name)).unwrap();
        }
        let pool = Pool::open(there.path(), &OpenOptions::default()).unwrap();
        let report = pool.fsck(false, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        let seen = look(&pool);
        drop(pool);
        forget_memory(there.path());
        seen
    }
}

impl Drop for Home {
    /// The memory of a pool on `logged` outlives its processes.
    fn drop(&mut self) {
        forget_memory(&self.pool());
    }
}

/// Removes the shared memory of the pool in `dir`.
fn forget_memory(dir: &Path) {
    let Ok(text) = std::fs::read_to_string(dir.join("pool.toml")) else { return };
    let Some(uuid) = text.lines().find_map(|l| l.strip_prefix("uuid = ")) else { return };
    let Ok(image) = std::fs::metadata(dir.join("image")) else { return };
    let uuid = uuid.replace(['"', '-'], "");
    let name = format!("/dev/shm/conquest-{uuid}-{:x}-{:x}", image.dev(), image.ino());
    for end in ["", "-region", "-marks"] {
        let _ = std::fs::remove_file(format!("{name}{end}"));
    }
}

fn root(pool: &Pool) -> View<'_> {
    View::new(pool, Caller::root())
}

fn ino(pool: &Pool, path: &str) -> u64 {
    root(pool).lstat(path.as_bytes()).unwrap().ino
}

fn set(pool: &Pool, path: &str, value: &[u8]) -> conquest_fs::Result<()> {
    pool.setxattr(ino(pool, path), SET, value, SetXattr::Any, &Caller::root())
}

fn xattr(pool: &Pool, path: &str, name: &[u8]) -> Option<String> {
    match pool.getxattr(ino(pool, path), name) {
        Ok(value) => Some(String::from_utf8(value).unwrap()),
        Err(e) => {
            assert_eq!(e.errno(), Errno::NODATA);
            None
        }
    }
}

/// A change in the directory `d`, and whether a pool shows it.
struct Case {
    name: &'static str,
    change: fn(&Pool),
    shows: fn(&Pool) -> bool,
}

pub fn exists(pool: &Pool, path: &str) -> bool {
    root(pool).lstat(path.as_bytes()).is_ok()
}

pub fn content(pool: &Pool, path: &str) -> Vec<u8> {
    let Ok(file) = root(pool).open(path.as_bytes(), Open::new().read(true)) else { return Vec::new() };
    let mut bytes = vec![0; file.attr().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn opened<'a>(pool: &'a Pool, path: &str) -> conquest_fs::path::File<'a> {
    root(pool).open(path.as_bytes(), Open::new().write(true)).unwrap()
}

/// Makes the files that [`CASES`] change.
fn prepare(pool: &Pool) {
    let v = root(pool);
    for name in ["written", "appended", "cut", "chmodded", "old", "gone", "left", "right", "punched", "named", "copied"]
    {
        v.create(format!("d/{name}").as_bytes(), 0o600).unwrap().write_all_at(&[7; 9000], 0).unwrap();
    }
    v.mkdir(b"d/empty", 0o700).unwrap();
    pool.setxattr(ino(pool, "d/named"), b"user.old", b"1", SetXattr::Any, &Caller::root()).unwrap();
    pool.sync().unwrap();
}

const CASES: [Case; 20] = [
    Case { name: "create", change: |p| _ = root(p).create(b"d/new", 0o600).unwrap(), shows: |p| exists(p, "d/new") },
    Case { name: "mkdir", change: |p| _ = root(p).mkdir(b"d/dir", 0o700).unwrap(), shows: |p| exists(p, "d/dir") },
    Case { name: "rmdir", change: |p| root(p).rmdir(b"d/empty").unwrap(), shows: |p| !exists(p, "d/empty") },
    Case {
        name: "mknod",
        change: |p| _ = root(p).mknod(b"d/fifo", Kind::Fifo, 0o600, 0).unwrap(),
        shows: |p| exists(p, "d/fifo"),
    },
    Case {
        name: "symlink",
        change: |p| _ = root(p).symlink(b"old", b"d/symlink").unwrap(),
        shows: |p| root(p).readlink(b"d/symlink").is_ok(),
    },
    Case { name: "link", change: |p| _ = root(p).link(b"d/old", b"d/link").unwrap(), shows: |p| exists(p, "d/link") },
    Case {
        name: "a temporary file that gets a name",
        change: |p| {
            let file = p.tmpfile(ino(p, "d"), 0o600, &Caller::root()).unwrap();
            p.link(file.ino, ino(p, "d"), b"tmpfile", &Caller::root()).unwrap();
            p.release(file.ino, 1);
        },
        shows: |p| exists(p, "d/tmpfile"),
    },
    Case { name: "unlink", change: |p| root(p).unlink(b"d/gone").unwrap(), shows: |p| !exists(p, "d/gone") },
    Case {
        name: "rename",
        change: |p| root(p).rename(b"d/old", b"d/newer", Rename::Replace).unwrap(),
        shows: |p| exists(p, "d/newer") && !exists(p, "d/old"),
    },
    Case {
        name: "exchange",
        change: |p| {
            opened(p, "d/left").set_len(5).unwrap();
            root(p).rename(b"d/left", b"d/right", Rename::Exchange).unwrap();
        },
        shows: |p| content(p, "d/right").len() == 5,
    },
    Case {
        name: "write",
        change: |p| opened(p, "d/written").write_all_at(b"here", 100).unwrap(),
        shows: |p| content(p, "d/written")[100..104] == *b"here",
    },
    Case {
        name: "append",
        change: |p| _ = opened(p, "d/appended").append(&[8; 5000]).unwrap(),
        shows: |p| content(p, "d/appended").len() == 14_000,
    },
    Case {
        name: "truncate",
        change: |p| opened(p, "d/cut").set_len(10).unwrap(),
        shows: |p| content(p, "d/cut").len() == 10,
    },
    Case {
        name: "chmod",
        change: |p| _ = p.setattr(ino(p, "d/chmodded"), &mode(0o4711), &Caller::root()).unwrap(),
        shows: |p| root(p).stat(b"d/chmodded").unwrap().perm == 0o4711,
    },
    Case {
        name: "utimens",
        change: |p| {
            let set = SetAttr { mtime: Some(SetTime::At(Time(77))), ..SetAttr::default() };
            p.setattr(ino(p, "d/named"), &set, &Caller::root()).unwrap();
        },
        shows: |p| root(p).stat(b"d/named").unwrap().mtime == Time(77),
    },
    Case {
        name: "setxattr",
        change: |p| p.setxattr(ino(p, "d/named"), b"user.new", b"2", SetXattr::Any, &Caller::root()).unwrap(),
        shows: |p| xattr(p, "d/named", b"user.new").is_some(),
    },
    Case {
        name: "removexattr",
        change: |p| p.removexattr(ino(p, "d/named"), b"user.old", &Caller::root()).unwrap(),
        shows: |p| xattr(p, "d/named", b"user.old").is_none(),
    },
    Case {
        name: "an ACL",
        change: |p| {
            // u::rw-,u:1000:r--,g::r--,m::r--,o::---
            let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
            p.setxattr(ino(p, "d/named"), b"system.posix_acl_access", acl, SetXattr::Any, &Caller::root()).unwrap();
        },
        shows: |p| p.getxattr(ino(p, "d/named"), b"system.posix_acl_access").is_ok(),
    },
    Case {
        name: "fallocate",
        change: |p| p.fallocate(ino(p, "d/punched"), Fallocate::PunchHole, 0, 4096).unwrap(),
        shows: |p| content(p, "d/punched")[..4096].iter().all(|b| *b == 0),
    },
    Case {
        name: "copy_file_range",
        change: |p| assert_eq!(p.copy_range((ino(p, "d/written"), 0), (ino(p, "d/copied"), 9000), 99).unwrap(), 99),
        shows: |p| content(p, "d/copied").len() == 9099,
    },
];

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// Every case leaves the backing as it should be; the look before it shows that the look can fail.
fn all_are_durable_at_return(home: &Home, pool: &Pool) {
    for case in CASES {
        assert!(!home.after_power_cut(case.shows), "before {}", case.name);
        (case.change)(pool);
        assert!(home.after_power_cut(case.shows), "{} is not durable when it returns", case.name);
    }
}

#[test]
fn a_strict_process_finds_everything_durable_at_return() {
    let home = Home::new(MediumKind::Logged);
    let pool = home.open(Durability::Strict);
    root(&pool).mkdir(b"d", 0o700).unwrap();
    prepare(&pool);
    assert_eq!(xattr(&pool, "d", EFFECTIVE).as_deref(), Some("strict"));
    assert_eq!(xattr(&pool, "d", SET), None);
    // Settings of others do not count against it.
    set(&pool, "d/written", b"fsync").unwrap();
    assert_eq!(xattr(&pool, "d/written", EFFECTIVE).as_deref(), Some("strict"));
    all_are_durable_at_return(&home, &pool);
}

#[test]
fn in_a_strict_directory_everything_is_durable_at_return() {
    let home = Home::new(MediumKind::Logged);
    let pool = home.open(Durability::Fsync);
    root(&pool).mkdir(b"d", 0o700).unwrap();
    set(&pool, "d", b"strict").unwrap();
    prepare(&pool);
    all_are_durable_at_return(&home, &pool);
    // Changes beside the directory are not waited for.
    root(&pool).create(b"beside", 0o600).unwrap();
    assert!(!home.after_power_cut(|p| exists(p, "beside")));
}

#[test]
fn otherwise_changes_are_durable_after_fsync() {
    let home = Home::new(MediumKind::Logged);
    let pool = home.open(Durability::Fsync);
    root(&pool).mkdir(b"d", 0o700).unwrap();
    prepare(&pool);
    for case in CASES {
        (case.change)(&pool);
        assert!(!home.after_power_cut(case.shows), "{} is waited for", case.name);
        pool.fsync(conquest_fs::ROOT, true).unwrap();
        assert!(home.after_power_cut(case.shows), "{} is not durable after fsync", case.name);
    }
}

/// A file's own setting counts for changes of its content and its names; reading waits for nothing.
#[test]
fn a_strict_file_in_another_directory() {
    let home = Home::new(MediumKind::Logged);
    let pool = home.open(Durability::Fsync);
    root(&pool).mkdir(b"d", 0o700).unwrap();
    prepare(&pool);
    set(&pool, "d/written", b"strict").unwrap();
    assert_eq!(home.after_power_cut(|p| xattr(p, "d/written", SET)).as_deref(), Some("strict"));
    opened(&pool, "d/appended").append(b"later").unwrap();
    assert_eq!(home.after_power_cut(|p| content(p, "d/appended").len()), 9000);
    opened(&pool, "d/written").write_all_at(b"now", 0).unwrap();
    // A commit is of an instant: earlier changes are in it.
    assert_eq!(
        home.after_power_cut(|p| (content(p, "d/written")[..3].to_vec(), content(p, "d/appended").len())),
        (b"now".to_vec(), 9005)
    );
    root(&pool).rename(b"d/written", b"d/moved", Rename::Replace).unwrap();
    assert!(home.after_power_cut(|p| exists(p, "d/moved")));
    opened(&pool, "d/appended").append(b"again").unwrap();
    content(&pool, "d/moved");
    assert_eq!(home.after_power_cut(|p| content(p, "d/appended").len()), 9005, "a read waits for a commit");
    // Removing the strict setting is the last strict change.
    pool.removexattr(ino(&pool, "d/moved"), SET, &Caller::root()).unwrap();
    assert_eq!(home.after_power_cut(|p| xattr(p, "d/moved", SET)), None);
    opened(&pool, "d/moved").set_len(1).unwrap();
    assert_eq!(home.after_power_cut(|p| content(p, "d/moved").len()), 9000);
}

#[test]
fn settings_are_inherited_read_back_and_unset() {
    let home = Home::new(MediumKind::Logged);
    let pool = home.open(Durability::Fsync);
    let v = root(&pool);
    v.mkdir(b"before", 0o700).unwrap();
    v.mkdir(b"d", 0o700).unwrap();
    v.create(b"d/early", 0o600).unwrap();
    set(&pool, "d", b"strict").unwrap();
    v.mkdir(b"d/e", 0o700).unwrap();
    v.create(b"d/e/f", 0o600).unwrap();
    v.symlink(b"f", b"d/e/s").unwrap();
    let tmp = pool.tmpfile(ino(&pool, "d/e"), 0o600, &Caller::root()).unwrap();
    assert_eq!(pool.getxattr(tmp.ino, SET).unwrap(), b"strict");
    pool.release(tmp.ino, 1);
    for (path, is, effect) in [
        ("before", None, "fsync"),
        ("d", Some("strict"), "strict"),
        ("d/early", None, "fsync"),
        ("d/e", Some("strict"), "strict"),
        ("d/e/f", Some("strict"), "strict"),
    ] {
        assert_eq!(xattr(&pool, path, SET).as_deref(), is, "{path}");
        assert_eq!(xattr(&pool, path, EFFECTIVE).as_deref(), Some(effect), "{path}");
        let listed = pool.listxattr(ino(&pool, path)).unwrap();
        let names: Vec<&[u8]> = listed.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
        assert_eq!(names, is.map_or(vec![], |_| vec![SET]), "{path}: what is in effect is not listed");
    }
    assert!(pool.listxattr(ino(&pool, "d/e/s")).unwrap().is_empty());
    // `fsync` ends the inheritance further down.
    set(&pool, "d/e", b"fsync").unwrap();
    v.create(b"d/e/g", 0o600).unwrap();
    assert_eq!(xattr(&pool, "d/e/g", SET).as_deref(), Some("fsync"));
    assert_eq!(xattr(&pool, "d/e/g", EFFECTIVE).as_deref(), Some("fsync"));
    // So does unsetting; files that have the setting keep it.
    pool.removexattr(ino(&pool, "d"), SET, &Caller::root()).unwrap();
    v.create(b"d/late", 0o600).unwrap();
    assert_eq!(xattr(&pool, "d/late", SET), None);
    assert_eq!(xattr(&pool, "d/e/f", SET).as_deref(), Some("strict"));
    drop(pool);
    let pool = home.open(Durability::Fsync);
    assert_eq!(xattr(&pool, "d/e/f", SET).as_deref(), Some("strict"), "after opening it again");
    assert!(pool.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::new(MediumKind::Battery);
    let pool = home.open(Durability::Fsync);
    let v = root(&pool);
    v.create(b"f", 0o600).unwrap();
    v.symlink(b"f", b"s").unwrap();
    let at = ino(&pool, "f");
    let owner = Caller::root();
    let errno = |done: conquest_fs::Result<()>| done.unwrap_err().errno();
    for value in [&b""[..], b"STRICT", b"strict\n", b"strictly", b"none"] {
        assert_eq!(errno(set(&pool, "f", value)), Errno::INVAL);
    }
    assert_eq!(errno(pool.setxattr(at, EFFECTIVE, b"strict", SetXattr::Any, &owner)), Errno::PERM);
    assert_eq!(errno(pool.removexattr(at, EFFECTIVE, &owner)), Errno::PERM);
    assert_eq!(errno(set(&pool, "s", b"strict")), Errno::PERM);
    assert_eq!(errno(pool.removexattr(at, SET, &owner)), Errno::NODATA);
    assert_eq!(errno(pool.setxattr(at, SET, b"strict", SetXattr::Replace, &owner)), Errno::NODATA);
    pool.setxattr(at, SET, b"strict", SetXattr::Create, &owner).unwrap();
    assert_eq!(errno(pool.setxattr(at, SET, b"fsync", SetXattr::Create, &owner)), Errno::EXIST);
    pool.setxattr(at, SET, b"fsync", SetXattr::Replace, &owner).unwrap();
    // On this medium no call waits, and everything is durable.
    assert_eq!(
        (xattr(&pool, "f", SET).as_deref(), xattr(&pool, "f", EFFECTIVE).as_deref()),
        (Some("fsync"), Some("strict"))
    );
    let stranger = Caller { uid: 1000, gid: 1000, groups: &[], umask: 0o022, checked: false, owns: &[] };
    assert_eq!(errno(pool.setxattr(at, SET, b"strict", SetXattr::Any, &stranger)), Errno::ACCESS);
}

/// A remount: another process asks, and the mount's server obeys.
#[test]
fn a_mount_changes_its_terms_while_it_is_used() {
    let home = Home::new(MediumKind::Logged);
    let info = MountInfo { uring: false, mountpoint: "/somewhere".into() };
    let server = Pool::open(home.pool(), &OpenOptions { mount: Some(info), ..OpenOptions::default() }).unwrap();
    let asker = home.open(Durability::Fsync);
    let session = || asker.status().unwrap().sessions.into_iter().find(|s| s.mountpoint.is_some()).unwrap();
    assert_eq!((session().durability, session().commit), (Some("fsync"), Some(86_400.0)));
    let create = |name: &str| _ = root(&server).create(name.as_bytes(), 0o600).unwrap();
    let ask = |durability, commit: Option<&str>| {
        let commit_interval = commit.map(|seconds| seconds.parse().unwrap());
        let terms = Terms { durability, commit_interval, settings: false };
        asker.ask(&terms).unwrap()
    };
    create("before");
    let asked = ask(Some(Durability::Strict), None);
    create("asked");
    assert!(!home.after_power_cut(|p| exists(p, "asked")), "it has not been heeded yet");
    server.heed();
    asked.wait().unwrap();
    drop(asked);
    create("strict");
    assert!(home.after_power_cut(|p| ["before", "asked", "strict"].iter().all(|name| exists(p, name))));
    assert_eq!((session().durability, session().commit), (Some("strict"), Some(86_400.0)));

    // An unheeded request is taken back.
    drop(ask(Some(Durability::Fsync), Some("1")));
    server.heed();
    assert_eq!((session().durability, session().commit), (Some("strict"), Some(86_400.0)));

    let asked = ask(Some(Durability::Fsync), Some("0.05"));
    server.heed();
    asked.wait().unwrap();
    assert_eq!((session().durability, session().commit), (Some("fsync"), Some(0.05)));
    let backing = asker.status().unwrap().backing.unwrap();
    assert_eq!((backing.interval, backing.pool_interval), (0.05, 86_400.0), "any process commits for all");
    create("soon");
    let start = std::time::Instant::now();
    while asker.status().unwrap().backing.unwrap().pending > 0 {
        assert!(start.elapsed().as_secs() < 10, "nothing was committed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(home.after_power_cut(|p| exists(p, "soon")));
    server.end_mount();
    let nobody = asker.ask(&Terms::default()).err().unwrap().to_string();
    assert!(nobody.contains("no process serves"), "{nobody}");
}

/// Two kernels that cache one pool would each have to wait for the other.
#[test]
fn a_pool_has_one_mount_at_a_time() {
    let home = Home::new(MediumKind::Logged);
    let mount = |dir: &str| {
        let info = MountInfo { uring: false, mountpoint: dir.into() };
        Pool::open(home.pool(), &OpenOptions { mount: Some(info), ..OpenOptions::default() })
    };
    let first = mount("/first").unwrap();
    let beside = home.open(Durability::Fsync);
    let at_once = mount("/second").err().unwrap();
    assert!(
        matches!(&at_once, conquest_fs::Error::Served { first, .. } if first.to_str() == Some("/first")),
        "{at_once}"
    );
    assert_eq!(at_once.errno(), rustix::io::Errno::BUSY);
    // The first may still have much to write when its kernel is gone.
    first.end_mount();
    let second = mount("/second").unwrap();
    second.set_mountpoint("/third");
    let mounts = beside.status().unwrap().sessions.into_iter().filter_map(|s| s.mountpoint).collect::<Vec<_>>();
    assert_eq!(mounts, [std::path::Path::new("/third")]);
    drop((first, second));
    mount("/fourth").unwrap();
}

/// If there is nothing to wait for, or always something, no other terms are in effect.
#[test]
fn terms_that_have_no_effect_are_not_reported() {
    let alone = FormatOptions::on(MediumKind::Battery, 8 << 20);
    let mirror = tempfile::tempdir_in("/dev/shm").unwrap();
    let mirrored = FormatOptions { backing: Some(mirror.path().join("m")), mirror: true, ..alone.clone() };
    for (how, interval) in [(alone, None), (mirrored, Some(1.0))] {
        let home = Home(tempfile::tempdir_in("/dev/shm").unwrap());
        Pool::format(home.pool(), &how).unwrap();
        let pool = home.open(Durability::Fsync);
        pool.change(&Terms { durability: Some(Durability::Fsync), commit_interval: "1".parse().ok(), settings: false });
        let session = pool.status().unwrap().sessions.remove(0);
        assert_eq!((session.durability, session.commit), (Some("strict"), interval));
    }
}

/// Changes that no call waits for are durable with the next commit.
#[test]
fn the_commit_interval_bounds_what_is_lost() {
    let home = Home::new(MediumKind::Logged);
    let soon = CommitInterval::try_from(0.05).unwrap();
    let how = OpenOptions { commit_interval: Some(soon), ..OpenOptions::default() };
    let pool = Pool::open(home.pool(), &how).unwrap();
    let committed = || pool.status().unwrap().backing.unwrap().as_of;
    let before = committed();
    root(&pool).create(b"f", 0o600).unwrap();
    let start = std::time::Instant::now();
    while committed() == before {
        assert!(start.elapsed().as_secs() < 10, "nothing was committed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(home.after_power_cut(|p| exists(p, "f")));
    for wrong in [0.0, -1.0, 1e-9, 86_401.0, f64::NAN, f64::INFINITY] {
        assert!(CommitInterval::try_from(wrong).unwrap_err().contains("0.01 to 86400"), "{wrong}");
    }
    let text = std::fs::read_to_string(home.pool().join("pool.toml")).unwrap();
    std::fs::write(home.pool().join("pool.toml"), text.replace("86400.0", "-3.0")).unwrap();
    let e = Pool::open(home.pool(), &OpenOptions::default()).err().unwrap().to_string();
    assert!(e.contains("pool.toml") && e.contains("0.01 to 86400"), "{e}");
}

/// The clock was set back, or begins anew with each boot: timed commits waited until it had caught up.
#[test]
fn a_clock_that_was_set_back_delays_no_commit() {
    let home = Home::new(MediumKind::Logged);
    forget_memory(&home.pool());
    let disk = |name: &str| std::fs::File::options().read(true).write(true).open(home.pool().join(name)).unwrap();
    let (id, image) = Image::peek(&disk("image")).unwrap();
    let logs = ["redo-0", "redo-1"].map(disk);
    let [first, second] = logs.each_ref().map(|log| Log::began(log, id).unwrap().generation);
    let active = &logs[usize::from(second > first)];
    let mut log = Log::open(active.try_clone().unwrap(), id, image, |_, _, _| Ok(())).unwrap();
    // As of tomorrow.
    log.begin().unwrap().finish(pram::clock::precise() + 86_400_000_000_000).unwrap();

    let soon = CommitInterval::try_from(0.05).unwrap();
    let how = OpenOptions { commit_interval: Some(soon), ..OpenOptions::default() };
    let pool = Pool::open(home.pool(), &how).unwrap();
    root(&pool).create(b"f", 0o600).unwrap();
    let start = std::time::Instant::now();
    while pool.status().unwrap().backing.unwrap().pending > 0 {
        assert!(start.elapsed().as_secs() < 10, "nothing was committed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(home.after_power_cut(|p| exists(p, "f")));
}
