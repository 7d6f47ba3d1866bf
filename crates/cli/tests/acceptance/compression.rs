//! Compression of small files that nobody uses: by command and by age, as users meet it.

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
    let told: Value =
        serde_json::from_str(&lab.ok(&["pack", named, "--now", "--tier", "warm", "--json"])).expect("JSON");
    assert_eq!((told["compressed"].as_u64(), told["failed"].as_u64()), (Some(40), Some(0)), "{told}");
    assert!(told["saved"].as_i64().expect("a number") > 100_000, "{told}");
    assert_eq!((compression(&lab, "warm"), compression(&lab, "plain")), (40, 40));
    compare(&dir);
    let told = lab.ok(&["pack", &lab.pool(), "--now"]);
    assert!(told.contains("80 of 80 files compressed"), "{told}");
    assert_eq!((compression(&lab, "cold"), compression(&lab, "plain")), (80, 0));
    let after = lab.status()["compression"]["cold"]["memory"].as_u64().expect("a number");
    assert!(after * 4 < before, "{before} bytes, then {after}");
    // A change makes one plain; nobody else's.
    fs::write(dir.join("f7"), b"new").expect("written");
    fs::write(dir.join("f7"), text(7)).expect("written");
    assert_eq!(compression(&lab, "cold"), 79);
    compare(&dir);
    lab.umount();
    assert!(lab.ok(&["fsck", &lab.pool()]).contains("clean"));
    let told = lab.ok(&["pack", &lab.pool(), "--undo"]);
    assert!(told.contains("79 of 80 files are plain again"), "{told}");
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
    let mut told = [0; 7];
    let len = rustix::fs::lgetxattr(set.join("below/f1"), "user.conquest.times", &mut told[..]).expect("inherited");
    assert_eq!(&told[..len], b"seconds");
    let wrong = rustix::fs::lsetxattr(&exact, "user.conquest.times", b"minutes", XattrFlags::empty());
    assert_eq!(wrong, Err(rustix::io::Errno::INVAL));
    let before: Vec<_> = files().map(|path| times(&path)).collect();
    // The second of the last change must be over.
    std::thread::sleep(Duration::from_millis(1300));
    let packed = || -> Value {
        serde_json::from_str::<Value>(&lab.ok(&["pack", &lab.pool(), "--now", "--json"])).expect("JSON")["inodes"]
            .take()
    };
    assert!(packed()["inodes"].as_u64() >= Some(80));
    // The kernel need not have asked again.
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
