//! Compression of unused small files, by command and by age, as users meet it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::lab::{wait_until, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("compression::commands_compress_and_undo_it", commands),
    ("compression::maintenance_compresses_by_age_and_setting", ages),
    ("compression::names_are_packed_and_stay_what_they_are", names),
    ("compression::a_pool_takes_more_than_its_memory", more_than_memory),
    ("compression::old_times_are_kept_in_seconds_where_that_is_set", seconds),
];

fn lab(settings: &[&str]) -> Lab {
    let lab = Lab::new();
    let pool = lab.pool();
    let mut args = vec!["format", &pool, "--nvram", "64M", "--disk", "none"];
    settings.iter().for_each(|setting| args.extend(["--compression", setting]));
    lab.ok(&args);
    lab.mount();
    lab
}

fn text(n: usize) -> Vec<u8> {
    let line = format!("line of file {n}, like many another\n");
    line.bytes().cycle().take(2000 + n * 700).collect()
}

fn fill(dir: &Path) {
    fs::create_dir(dir).expect("mkdir");
    (0..40).for_each(|n| fs::write(dir.join(format!("f{n}")), text(n)).expect("written"));
}

#[track_caller]
fn compare(dir: &Path) {
    (0..40).for_each(|n| assert!(fs::read(dir.join(format!("f{n}"))).expect("read") == text(n), "f{n}"));
}

fn compression(lab: &Lab, of: &str) -> u64 {
    lab.status()["compression"][of]["files"].as_u64().expect("a number")
}

fn commands() -> Outcome {
    let lab = lab(&["share=0"]);
    let dir = lab.mnt().join("dir");
    fill(&dir);
    let other = lab.mnt().join("other");
    fill(&other);
    let named = dir.to_str().expect("text");
    let before = lab.status()["compression"]["plain"]["memory"].as_u64().expect("a number");
    let report: Value =
        serde_json::from_str(&lab.ok(&["pack", named, "--now", "--tier", "warm", "--json"])).expect("JSON");
    assert_eq!((report["compressed"].as_u64(), report["failed"].as_u64()), (Some(40), Some(0)), "{report}");
    assert!(report["saved"].as_i64().expect("a number") > 100_000, "{report}");
    assert_eq!((compression(&lab, "warm"), compression(&lab, "plain")), (40, 40));
    compare(&dir);
    let report = lab.ok(&["pack", &lab.pool(), "--now"]);
    assert!(report.contains("80 of 80 files compressed"), "{report}");
    assert_eq!((compression(&lab, "cold"), compression(&lab, "plain")), (80, 0));
    let after = lab.status()["compression"]["cold"]["memory"].as_u64().expect("a number");
    assert!(after * 4 < before, "{before} bytes, then {after}");
    // A change makes one file plain, and no other.
    fs::write(dir.join("f7"), b"new").expect("written");
    fs::write(dir.join("f7"), text(7)).expect("written");
    assert_eq!(compression(&lab, "cold"), 79);
    compare(&dir);
    lab.umount();
    assert!(lab.ok(&["fsck", &lab.pool()]).contains("clean"));
    let report = lab.ok(&["pack", &lab.pool(), "--undo"]);
    assert!(report.contains("79 of 80 files are plain again"), "{report}");
    lab.mount();
    compare(&dir);
    compare(&other);
    assert_eq!(compression(&lab, "plain"), 80);
    Ok(())
}

fn ages() -> Outcome {
    let lab = lab(&["warm=2", "cold=1000", "packed=3"]);
    let dir = lab.mnt().join("dir");
    fill(&dir);
    let never = dir.join("f3");
    rustix::fs::lsetxattr(&never, "user.conquest.compression", b"never", XattrFlags::empty()).expect("set");
    wait_until(Duration::from_secs(60), "files are compressed", || compression(&lab, "warm") == 39);
    wait_until(Duration::from_secs(60), "inodes are packed", || {
        lab.status()["packed_inodes"]["inodes"].as_u64() >= Some(32)
    });
    compare(&dir);
    assert_eq!(compression(&lab, "plain"), 1);
    Ok(())
}

/// mtime and ctime, each in seconds and nanoseconds.
fn times(path: &Path) -> [(i64, i64); 2] {
    let file = fs::symlink_metadata(path).expect("metadata");
    [(file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())]
}

fn seconds() -> Outcome {
    let lab = lab(&["share=0"]);
    let (set, exact) = (lab.mnt().join("set"), lab.mnt().join("exact"));
    fs::create_dir(&set).expect("mkdir");
    rustix::fs::lsetxattr(&set, "user.conquest.times", b"seconds", XattrFlags::empty()).expect("set");
    fs::create_dir(set.join("below")).expect("mkdir");
    fs::create_dir(&exact).expect("mkdir");
    let files = || (0..40).flat_map(|n| [set.join(format!("below/f{n}")), exact.join(format!("f{n}"))]);
    files().for_each(|path| fs::write(path, "text").expect("written"));
    let mut value = [0; 7];
    let len = rustix::fs::lgetxattr(set.join("below/f1"), "user.conquest.times", &mut value[..]).expect("inherited");
    assert_eq!(&value[..len], b"seconds");
    let wrong = rustix::fs::lsetxattr(&exact, "user.conquest.times", b"minutes", XattrFlags::empty());
    assert_eq!(wrong, Err(rustix::io::Errno::INVAL));
    let before: Vec<_> = files().map(|path| times(&path)).collect();
    // Inodes are packed only after the second of their last change.
    std::thread::sleep(Duration::from_millis(1300));
    let packed = || -> Value {
        serde_json::from_str::<Value>(&lab.ok(&["pack", &lab.pool(), "--now", "--json"])).expect("JSON")["inodes"]
            .take()
    };
    assert!(packed()["inodes"].as_u64() >= Some(80));
    // Without remounting, the kernel could answer from its cache.
    lab.umount();
    lab.mount();
    for (path, before) in files().zip(before) {
        let after = times(&path);
        match path.starts_with(&set) {
            true => assert_eq!(after, before.map(|(seconds, _)| (seconds, 0)), "{}", path.display()),
            false => assert_eq!(after, before, "{}", path.display()),
        }
    }
    assert_eq!(packed()["inodes"].as_u64(), Some(0), "nothing is left to pack");
    fs::write(set.join("below/f7"), "again").expect("written");
    assert!(times(&set.join("below/f7"))[0] > times(&set.join("below/f8"))[0]);
    lab.umount();
    assert!(lab.ok(&["fsck", &lab.pool()]).contains("clean"));
    Ok(())
}

fn listed(dir: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| (entry.file_name().into_string().expect("text"), entry.metadata().expect("stat").ino()))
        .collect()
}

/// Packed directories are listed, looked up and changed as before, also after a crash.
fn names() -> Outcome {
    let lab = lab(&["share=0"]);
    let sizes = [1, 13, 3000];
    let dirs = sizes.map(|n| lab.mnt().join(format!("of-{n}")));
    for (dir, n) in dirs.iter().zip(sizes) {
        fs::create_dir(dir).expect("mkdir");
        (0..n).for_each(|n| drop(fs::File::create(dir.join(format!("a name like {n} others.txt"))).expect("created")));
    }
    let before = dirs.each_ref().map(|dir| listed(dir));
    let output: Value = serde_json::from_str(&lab.ok(&["pack", &lab.pool(), "--now", "--json"])).expect("JSON");
    let bytes = |of: &Value, what: &str| of[what].as_u64().expect("a number");
    // With the built-in profile, which was made from other names.
    assert!(bytes(&output["names"], "packed_bytes") * 3 < 2 * bytes(&output["names"], "plain_bytes"), "{output}");
    assert!(bytes(&lab.status()["packed_names"], "buckets") > 10, "{}", lab.status()["packed_names"]);
    // Also in the same order.
    assert!(dirs.each_ref().map(|dir| listed(dir)) == before);
    let large = &dirs[2];
    let file = |n: usize| large.join(format!("a name like {n} others.txt"));
    for n in (0..3000).step_by(3) {
        fs::remove_file(file(n)).expect("removed");
    }
    fs::rename(file(1), file(2)).expect("renamed");
    fs::rename(file(4), dirs[1].join("moved")).expect("moved");
    fs::write(large.join("new"), b"new").expect("written");
    let after = dirs.each_ref().map(|dir| listed(dir));
    assert_eq!(after.each_ref().map(Vec::len), [1, 14, 3000 - 1000 - 2 + 1]);
    fs::File::open(large).expect("opened").sync_all().expect("synced");
    lab.kill9();
    lab.mount();
    assert!(dirs.each_ref().map(|dir| listed(dir)) == after);
    fs::remove_dir_all(large).expect("removed");
    lab.umount();
    assert!(lab.ok(&["fsck", &lab.pool()]).contains("clean"));
    Ok(())
}

/// Files that arrive in a pool of memory faster than maintenance compresses are compressed rather than refused.
fn more_than_memory() -> Outcome {
    let lab = lab(&[]);
    // 150 MB for 64 MiB.
    let content = |n: usize| text(n % 40).repeat(3);
    let files: Vec<_> = (0..)
        .scan(0, |bytes, n| Some((n, std::mem::replace(bytes, *bytes + content(n).len()))))
        .take_while(|(_, before)| *before < 150_000_000)
        .map(|(n, _)| n)
        .collect();
    for n in &files {
        let dir = lab.mnt().join(format!("d{}", n / 100));
        fs::create_dir_all(&dir).expect("mkdir");
        fs::write(dir.join(n.to_string()), content(*n)).expect("written");
    }
    for n in &files {
        let dir = lab.mnt().join(format!("d{}", n / 100));
        assert!(fs::read(dir.join(n.to_string())).expect("read") == content(*n), "{n}");
    }
    lab.umount();
    assert!(lab.ok(&["fsck", &lab.pool()]).contains("clean"));
    Ok(())
}
