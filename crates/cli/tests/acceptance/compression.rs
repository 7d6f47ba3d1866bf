//! Compression of small files that nobody uses: by command and by age, as users meet it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::XattrFlags;
use serde_json::Value;

use crate::lab::{wait_until, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("compression::commands_compress_and_undo_it", commands),
    ("compression::maintenance_compresses_by_age_and_setting", ages),
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
