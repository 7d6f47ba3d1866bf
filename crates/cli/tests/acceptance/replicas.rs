//! Replicas of files in several regions: mirrored at once or lazily, disks that are lost and return, removal by force,
//! balance, scrub.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::lab::{wait_until, wait_until_or_report, write_seeded, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("replicas::what_a_disk_has_lost_is_written_anew_from_memory", saved),
    ("replicas::a_disk_that_left_is_added_again_while_mounted", again),
    ("replicas::regions_have_domains_by_name", domains),
    ("replicas::what_is_mirrored_outlives_any_disk", mirrored),
    ("replicas::a_disk_that_is_lost_while_mounted_is_gone_on_without", lost_while_mounted),
    ("replicas::a_lazy_copy_comes_later", lazy),
    ("replicas::what_exists_follows_its_setting", follows),
    ("replicas::a_dead_disk_is_given_up_and_its_losses_are_named", forced),
    ("replicas::several_regions_leave_as_one_plan", leave),
    ("replicas::a_whole_file_lies_in_one_region", whole),
    ("replicas::old_content_is_spread_over_a_new_disk", balance),
    ("replicas::scrubbing_finds_what_is_wrong_and_puts_it_right", scrub),
    ("replicas::scrubbing_gives_up_no_copy_that_alone_has_something_right", scrub_each),
];

const MIB: usize = 1 << 20;
const SIZE: usize = 40 * MIB;
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab with a pool on `disks` disks, `d0` and on, of 256 MiB each.
fn with(disks: usize) -> Lab {
    formatted(disks, &[])
}

/// As `with`, with a small cache, so that reads go to the disks.
fn with_little_cache(disks: usize) -> Lab {
    formatted(disks, &["--cache", "ceiling=5"])
}

fn formatted(disks: usize, more: &[&str]) -> Lab {
    let lab = Lab::new();
    let mut args: Vec<String> = ["format", &lab.pool(), "--nvram", "64M"].map(String::from).into();
    args.extend(more.iter().map(|arg| arg.to_string()));
    for n in 0..disks {
        args.extend(["--disk".into(), format!("{}:256M", lab.text(&format!("d{n}")))]);
    }
    lab.ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
    lab
}

fn file(lab: &Lab, name: &str) -> PathBuf {
    lab.mnt().join(name)
}

/// Writes a file, and waits until it is on disk.
fn write(lab: &Lab, name: &str, seed: u64) {
    write_seeded(&file(lab, name), seed, SIZE);
    fs::File::open(file(lab, name)).and_then(|file| file.sync_all()).expect("synced");
}

#[track_caller]
fn holds(lab: &Lab, name: &str, seed: u64) {
    let found = fs::read(file(lab, name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(found == rng::Rng::new(seed).bytes(SIZE), "{name} has other content");
}

/// Checks that files have the content of their seeds.
#[track_caller]
fn hold(lab: &Lab, files: &[(&str, u64)]) {
    files.iter().for_each(|(name, seed)| holds(lab, name, *seed));
}

/// As `hold`, after unmounting and mounting the pool.
#[track_caller]
fn hold_anew(lab: &Lab, files: &[(&str, u64)]) {
    lab.umount();
    lab.mount();
    hold(lab, files);
}

/// Evicts nearly everything written before from memory.
fn wash_out(lab: &Lab) {
    for seed in 0..2 {
        write(lab, "filler", 1000 + seed);
    }
    fs::remove_file(file(lab, "filler")).expect("removed");
}

/// The redundancy in effect, as the command shows it.
fn effective(lab: &Lab, name: &str) -> String {
    let path = file(lab, name);
    let mut value = [0; 256];
    let n = rustix::fs::getxattr(&path, "user.conquest.effective.redundancy", &mut value[..]).expect("an answer");
    String::from_utf8_lossy(&value[..n]).into()
}

/// Waits until a file, of which no page waits in memory, has the redundancy `wanted`.
fn becomes(lab: &Lab, name: &str, wanted: &str) {
    becomes_so(lab, name, wanted, |is| is == wanted);
}

/// As `becomes`, for a file that was just synced: up to 64 of its pages may be in the commit, and wait in memory.
fn becomes_on_disks(lab: &Lab, name: &str, wanted: &str) {
    becomes_so(lab, name, wanted, |is| {
        let rest = is.strip_prefix(wanted).and_then(|rest| match rest.strip_prefix(", ") {
            Some(waiting) => waiting.strip_suffix(" KiB in memory")?.parse().ok(),
            None => rest.is_empty().then_some(0),
        });
        rest.is_some_and(|kib: u32| kib <= 256)
    });
}

fn becomes_so(lab: &Lab, name: &str, wanted: &str, is_so: impl Fn(&str) -> bool) {
    let what = || format!("{name} is {wanted}, now {}: {}", effective(lab, name), lab.status());
    wait_until_or_report(PATIENCE, what, || is_so(&effective(lab, name)));
}

fn away(path: &Path) -> PathBuf {
    let away = path.with_extension("away");
    fs::rename(path, &away).expect("away");
    away
}

fn mirrored() -> Outcome {
    let lab = with(3);
    lab.mount();
    fs::create_dir(file(&lab, "safe")).expect("made");
    lab.ok(&["redundancy", "set", "mirror", &file(&lab, "safe").display().to_string()]);
    for (name, seed) in [("safe/one", 1), ("safe/two", 2), ("plain", 3)] {
        write(&lab, name, seed);
    }
    lab.umount();
    lab.mount();
    becomes(&lab, "safe/one", "mirror:2");
    lab.umount();
    for lost in ["d0", "d1", "d2"] {
        let kept = away(&lab.path(lost));
        lab.ok(&["mount", &lab.pool(), &lab.text("mnt")]);
        hold(&lab, &[("safe/one", 1), ("safe/two", 2)]);
        let status = lab.output(&["status", &lab.pool(), "-v"]);
        assert!(status.contains("is MISSING, since"), "{status}");
        write(&lab, "safe/new", 4);
        holds(&lab, "safe/new", 4);
        // Segments that lack a replica get one from the two remaining disks.
        becomes(&lab, "safe/one", "mirror:2");
        lab.umount();
        fs::rename(kept, lab.path(lost)).expect("back");
        lab.mount();
        hold(&lab, &[("safe/one", 1), ("safe/two", 2), ("plain", 3), ("safe/new", 4)]);
        fs::remove_file(file(&lab, "safe/new")).expect("removed");
        let status = lab.output(&["status", &lab.pool(), "-v"]);
        assert!(!status.contains("MISSING"), "{status}");
        lab.umount();
        lab.check();
    }
    Ok(())
}

fn lost_while_mounted() -> Outcome {
    let lab = with(3);
    lab.mount();
    lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
    write(&lab, "one", 1);
    let kept = away(&lab.path("d1"));
    wait_until(PATIENCE, "it is noticed", || lab.output(&["status", &lab.pool(), "-v"]).contains("is MISSING"));
    write(&lab, "two", 2);
    holds(&lab, "one", 1);
    becomes_on_disks(&lab, "one", "mirror:2");
    becomes_on_disks(&lab, "two", "mirror:2");
    fs::rename(kept, lab.path("d1")).expect("back");
    wait_until(PATIENCE, "it is taken back", || !lab.output(&["status", &lab.pool(), "-v"]).contains("MISSING"));
    write(&lab, "three", 3);
    hold_anew(&lab, &[("one", 1), ("two", 2), ("three", 3)]);
    lab.umount();
    lab.check();
    Ok(())
}

fn lazy() -> Outcome {
    let lab = with(2);
    lab.mount();
    lab.ok(&["redundancy", "set", "lazy:3", &lab.text("mnt")]);
    write(&lab, "kept", 1);
    write(&lab, "deleted", 2);
    assert!(effective(&lab, "kept").starts_with("none"), "{}", effective(&lab, "kept"));
    let exposed = lab.status()["work"]["lazy"].as_u64().expect("an answer");
    assert!(exposed > SIZE as u64, "{exposed} bytes are reported");
    fs::remove_file(file(&lab, "deleted")).expect("removed");
    becomes_on_disks(&lab, "kept", "mirror:2");
    wait_until(PATIENCE, "nothing lacks a copy", || lab.status()["work"]["lacking"] == 0);
    let copied = lab.status()["work"]["copied"].as_u64().expect("an answer") * 4096;
    // Segments that both files share are copied without the deleted content.
    assert!(copied < (SIZE + SIZE / 2) as u64, "{copied} bytes were copied of {SIZE}");
    holds(&lab, "kept", 1);
    lab.umount();
    away(&lab.path("d0"));
    lab.mount();
    holds(&lab, "kept", 1);
    lab.umount();
    Ok(())
}

fn follows() -> Outcome {
    let lab = with(3);
    lab.mount();
    write(&lab, "one", 1);
    lab.umount();
    lab.mount();
    assert_eq!(effective(&lab, "one"), "none");
    let path = file(&lab, "one").display().to_string();
    for (wanted, is) in [("mirror", "mirror:2"), ("mirror:3", "mirror:3"), ("none", "none"), ("whole", "whole")] {
        lab.ok(&["redundancy", "set", wanted, &path]);
        becomes(&lab, "one", is);
        holds(&lab, "one", 1);
    }
    lab.umount();
    lab.check();
    Ok(())
}

fn forced() -> Outcome {
    let lab = with(2);
    lab.mount();
    write(&lab, "plain", 1);
    lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
    write(&lab, "safe", 2);
    lab.umount();
    away(&lab.path("d1"));
    lab.mount();
    let lost: Value = serde_json::from_str(&lab.ok(&[
        "region",
        "remove",
        &lab.pool(),
        &lab.text("d1"),
        "--force",
        "--dry-run",
        "--json",
    ]))
    .expect("JSON");
    let lost = lost.as_array().expect("a list").clone();
    assert!(!lost.is_empty() && lost.iter().all(|one| one["path"] == "/plain"), "{lost:?}");
    // Nothing was changed: the disk is still missing.
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("is MISSING"));
    let printed = lab.ok(&["region", "remove", &lab.pool(), &lab.text("d1"), "--force"]);
    assert!(printed.contains("/plain: bytes ") && printed.contains("of 1 files are lost"), "{printed}");
    holds(&lab, "safe", 2);
    // Exactly these bytes give EIO, and the others are readable.
    let content = rng::Rng::new(1).bytes(SIZE);
    let plain = fs::File::open(file(&lab, "plain")).expect("opened");
    for at in (0..SIZE as u64).step_by(4096) {
        let is_lost = lost
            .iter()
            .any(|one| (one["first"].as_u64().expect("first")..=one["last"].as_u64().expect("last")).contains(&at));
        let mut page = [0; 4096];
        match plain.read_exact_at(&mut page, at) {
            Ok(()) => assert!(!is_lost && page[..] == content[at as usize..at as usize + 4096], "byte {at}"),
            Err(e) => assert!(is_lost && e.raw_os_error() == Some(5), "byte {at}: {e}"),
        }
    }
    drop(plain);
    let printed = lab.run(&["fsck", &lab.pool()]);
    assert!(printed.code == 1 && printed.out.contains("lost: /plain: bytes "), "{}{}", printed.out, printed.err);
    assert!(printed.out.contains("from a backup") && printed.out.contains("--zero-lost"), "{}", printed.out);
    // Once requested, these bytes read as zeros, and all others as before.
    let printed = lab.run(&["fsck", &lab.pool(), "--zero-lost"]);
    assert!(printed.code == 1 && printed.out.contains("zeroed: /plain: bytes "), "{}{}", printed.out, printed.err);
    lab.ok(&["fsck", &lab.pool()]);
    let found = fs::read(file(&lab, "plain")).expect("it can be read");
    for (n, (page, was)) in found.chunks(4096).zip(content.chunks(4096)).enumerate() {
        assert!(page == was || page.iter().all(|byte| *byte == 0), "page {n}");
    }
    assert!(found != content);
    // Written again, the file is whole.
    fs::remove_file(file(&lab, "plain")).expect("removed");
    write(&lab, "plain", 3);
    holds(&lab, "plain", 3);
    lab.umount();
    lab.mount();
    assert!(!lab.output(&["status", &lab.pool(), "-v"]).contains("MISSING"));
    holds(&lab, "safe", 2);
    lab.umount();
    lab.check();
    lab.refused(1, &["region", "remove", &lab.pool(), &lab.text("d0"), "--force"], &["last disk"]);
    Ok(())
}

fn leave() -> Outcome {
    let lab = with(4);
    lab.mount();
    write(&lab, "plain", 1);
    lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
    write(&lab, "safe", 2);
    let printed = lab.ok(&["region", "remove", &lab.pool(), "0", &lab.text("d1"), "--dry-run"]);
    assert!(printed.contains("they fit"), "{printed}");
    let printed = lab.ok(&["region", "remove", &lab.pool(), "0", &lab.text("d1"), "--background"]);
    assert!(printed.contains("--cancel"), "{printed}");
    let listed = || lab.ok(&["region", "list", &lab.pool()]);
    wait_until(PATIENCE, "they are gone", || !listed().contains("/d0") && !listed().contains("/d1"));
    assert!(!lab.path("d0").exists() && !lab.path("d1").exists(), "files that were made for the pool go");
    hold(&lab, &[("plain", 1), ("safe", 2)]);
    becomes_on_disks(&lab, "safe", "mirror:2");
    hold_anew(&lab, &[("plain", 1), ("safe", 2)]);
    for how in ["--dry-run", "--background"] {
        lab.refused(1, &["region", "remove", &lab.pool(), "3", how], &["fewer replicas", "--reduce-replicas"]);
    }
    let printed = lab.ok(&["region", "remove", &lab.pool(), "3", "--reduce-replicas", "--dry-run"]);
    assert!(printed.contains("will have fewer") && printed.contains("they fit"), "{printed}");
    lab.ok(&["region", "remove", &lab.pool(), "3", "--reduce-copies"]);
    becomes_on_disks(&lab, "safe", "none");
    hold(&lab, &[("plain", 1), ("safe", 2)]);
    lab.umount();
    lab.check();
    Ok(())
}

fn whole() -> Outcome {
    let lab = with(3);
    lab.mount();
    lab.ok(&["redundancy", "set", "whole", &lab.text("mnt")]);
    for n in 0..6 {
        write(&lab, &format!("f{n}"), n);
    }
    lab.umount();
    lab.mount();
    (0..6).for_each(|n| assert_eq!(effective(&lab, &format!("f{n}")), "whole"));
    // Content in memory is readable without the disk.
    lab.ok(&["umount", &lab.text("mnt"), "--release"]);
    away(&lab.path("d2"));
    // The disk may hold content from after the backing of which the memory is made.
    lab.refused(
        1,
        &["mount", &lab.pool(), &lab.text("mnt")],
        &["/d2", "may hold what came after", "read-only", "--force"],
    );
    lab.mount_with("ro");
    let readable = (0..6u64)
        .filter(|n| fs::read(file(&lab, &format!("f{n}"))).is_ok_and(|found| found == rng::Rng::new(*n).bytes(SIZE)));
    let partly = (0..6u64).filter(|n| {
        let opened = fs::File::open(file(&lab, &format!("f{n}"))).expect("opened");
        let mut page = [0; 4096];
        let some = (0..SIZE as u64).step_by(MIB).filter(|at| opened.read_exact_at(&mut page, *at).is_ok()).count();
        some > 0 && some < SIZE / MIB
    });
    assert!(readable.count() >= 2, "other files are whole");
    assert_eq!(partly.count(), 0, "a file is there or not");
    lab.umount();
    let output = lab.ok(&["region", "remove", &lab.pool(), &lab.text("d2"), "--force"]);
    // No file lay there, so none is lost.
    assert!(output.contains("no longer in"), "{output}");
    lab.mount();
    write(&lab, "new", 9);
    holds(&lab, "new", 9);
    lab.umount();
    Ok(())
}

fn balance() -> Outcome {
    let lab = with(1);
    lab.mount();
    for n in 0..3 {
        write(&lab, &format!("f{n}"), n);
    }
    lab.ok(&["region", "add", &lab.pool(), &format!("{}:256M", lab.text("d1"))]);
    let excess = || {
        let work = lab.status()["work"].clone();
        (work["balancing"].as_bool().expect("an answer"), work["unbalanced"].as_u64().expect("an answer"))
    };
    wait_until(PATIENCE, "it is balanced", || excess() == (false, 0));
    let printed = lab.ok(&["region", "balance", &lab.pool(), "--dry-run"]);
    assert!(printed.contains("region 0: ") && printed.contains("region 1: "), "{printed}");
    let files = [("f0", 0), ("f1", 1), ("f2", 2)];
    hold(&lab, &files);
    lab.ok(&["region", "balance", &lab.pool(), &file(&lab, "f1").display().to_string()]);
    lab.ok(&["region", "balance", &lab.pool(), "--pause"]);
    assert_eq!(lab.status()["work"]["paused"], true);
    lab.ok(&["region", "balance", &lab.pool(), "--resume"]);
    lab.ok(&["region", "balance", &lab.pool()]);
    hold_anew(&lab, &files);
    lab.umount();
    lab.check();
    Ok(())
}

/// Spoils a page of a file on a disk.
fn spoil(lab: &Lab, disk: &str, page: &[u8]) {
    let disk = fs::OpenOptions::new().read(true).write(true).open(lab.path(disk)).expect("opened");
    let mut found = vec![0; page.len()];
    let is_there = |at: &u64| disk.read_exact_at(&mut found, *at).is_ok() && found == page;
    let at = (0..disk.metadata().expect("there").len()).step_by(4096).find(is_there).expect("it is on the disk");
    disk.write_all_at(&[0xa5; 512], at).expect("written");
}

fn scrub_each() -> Outcome {
    let lab = with_little_cache(2);
    lab.mount();
    lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
    write(&lab, "safe", 2);
    becomes_on_disks(&lab, "safe", "mirror:2");
    wash_out(&lab);
    lab.umount();
    let content = rng::Rng::new(2).bytes(SIZE);
    let page = |n: usize| &content[n * 4096..(n + 1) * 4096];
    // Another page is wrong in each replica.
    spoil(&lab, "d0", page(10));
    spoil(&lab, "d1", page(200));
    let report = lab.run(&["scrub", &lab.pool()]);
    assert!(report.code == 1 && !report.out.contains("LOST"), "{}", report.out);
    assert!(lab.ok(&["scrub", &lab.pool()]).contains("all of it is right"));
    lab.mount();
    holds(&lab, "safe", 2);
    becomes(&lab, "safe", "mirror:2");
    wash_out(&lab);
    lab.umount();
    // A page is wrong in the only readable replica: the other pages stay.
    fs::rename(lab.path("d0"), lab.path("away")).expect("moved");
    spoil(&lab, "d1", page(300));
    assert!(lab.run(&["scrub", &lab.pool()]).out.contains("LOST"));
    lab.mount();
    let opened = fs::File::open(file(&lab, "safe")).expect("opened");
    let mut found = vec![0; 4096];
    opened.read_exact_at(&mut found, 0).expect("what is right is read");
    assert_eq!(found, page(0));
    drop(opened);
    lab.umount();
    fs::rename(lab.path("away"), lab.path("d0")).expect("moved");
    lab.mount();
    becomes(&lab, "safe", "mirror:2");
    holds(&lab, "safe", 2);
    lab.umount();
    Ok(())
}

fn scrub() -> Outcome {
    let lab = with_little_cache(2);
    lab.mount();
    write(&lab, "plain", 1);
    lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
    write(&lab, "safe", 2);
    wash_out(&lab);
    lab.umount();
    let printed = lab.ok(&["scrub", &lab.pool()]);
    assert!(printed.contains("all of it is right"), "{printed}");
    // Every fourth MiB of one disk, beyond its labels.
    let disk = fs::OpenOptions::new().write(true).open(lab.path("d0")).expect("opened");
    for mib in (5..200).step_by(4) {
        disk.write_all_at(&[0xa5; 512], mib * MIB as u64 + 8192).expect("written");
    }
    drop(disk);
    let printed = lab.run(&["scrub", &lab.pool(), "--json"]);
    assert_eq!(printed.code, 1, "{}", printed.err);
    let answer: Value = serde_json::from_str(&printed.out).expect("JSON");
    let damage = answer["damage"].as_array().expect("a list").clone();
    assert!(damage.iter().any(|one| one["path"] == "/safe"), "{damage:?}");
    for one in &damage {
        assert_eq!(one["repaired"], one["path"] == "/safe", "{one}");
        assert_eq!(one["region"], 0, "{one}");
    }
    let printed = lab.output(&["status", &lab.pool(), "-v"]);
    assert!(!damage.is_empty() && printed.contains("damage"), "{printed}");
    lab.ok(&["scrub", &lab.pool(), "--forget"]);
    assert!(!lab.output(&["status", &lab.pool(), "-v"]).contains("damage"));
    lab.mount();
    holds(&lab, "safe", 2);
    becomes(&lab, "safe", "mirror:2");
    let mut plain = fs::OpenOptions::new().write(true).open(file(&lab, "plain")).expect("opened");
    plain.write_all(&rng::Rng::new(3).bytes(SIZE)).expect("what was damaged is written anew");
    drop(plain);
    holds(&lab, "plain", 3);
    lab.umount();
    let printed = lab.ok(&["scrub", &lab.pool()]);
    assert!(printed.contains("all of it is right"), "{printed}");
    Ok(())
}

/// Memory holds pages that a disk has damaged, and pages of a lost disk: they are written again, and read back after
/// their eviction.
fn saved() -> Outcome {
    let lab = with(2);
    lab.mount();
    write(&lab, "plain", 1);
    // Every fourth MiB of one disk, beyond its labels.
    let disk = fs::OpenOptions::new().write(true).open(lab.path("d0")).expect("opened");
    for mib in (5..200).step_by(4) {
        disk.write_all_at(&[0xa5; 512], mib * MIB as u64 + 8192).expect("written");
    }
    drop(disk);
    let printed = lab.run(&["scrub", &lab.pool()]);
    assert!(
        printed.code == 1 && printed.out.contains("saved from memory") && !printed.out.contains("LOST"),
        "{}",
        printed.out
    );
    wash_out(&lab);
    hold_anew(&lab, &[("plain", 1)]);
    lab.ok(&["scrub", &lab.pool()]);
    // Memory holds all of this content.
    fs::remove_file(file(&lab, "plain")).expect("removed");
    write(&lab, "late", 2);
    let kept = away(&lab.path("d1"));
    wait_until(PATIENCE, "it is noticed", || lab.output(&["status", &lab.pool(), "-v"]).contains("is MISSING"));
    holds(&lab, "late", 2);
    wait_until(PATIENCE, "what memory has is written elsewhere", || {
        let printed = lab.run(&["region", "remove", &lab.pool(), "1", "--force", "--dry-run"]);
        printed.code == 0 && !printed.out.contains("/late: ")
    });
    let printed = lab.ok(&["region", "remove", &lab.pool(), "1", "--force"]);
    assert!(!printed.contains("/late: "), "{printed}");
    wash_out(&lab);
    hold_anew(&lab, &[("late", 2)]);
    fs::remove_file(kept).expect("removed");
    lab.umount();
    Ok(())
}

/// A disk is removed, and added again, while the pool stays mounted.
fn again() -> Outcome {
    let lab = with(1);
    fs::File::create(lab.path("given")).and_then(|file| file.set_len(256 << 20)).expect("made");
    lab.mount();
    write(&lab, "plain", 1);
    for number in ["1", "2"] {
        let printed = lab.ok(&["region", "add", &lab.pool(), &lab.text("given")]);
        assert!(printed.contains("/given"), "{printed}");
        write(&lab, "plain", 1);
        lab.ok(&["region", "remove", &lab.pool(), &lab.text("given")]);
        holds(&lab, "plain", 1);
        // A second request answers that the removal is done.
        let printed = lab.ok(&["region", "remove", &lab.pool(), number]);
        assert!(printed.contains("its removal is done"), "{printed}");
    }
    lab.refused(1, &["region", "remove", &lab.pool(), &lab.text("given")], &["that is done by now", "region list"]);
    hold_anew(&lab, &[("plain", 1)]);
    lab.umount();
    lab.check();
    Ok(())
}

/// Domains have names, which outlive the mount; missing regions are reported.
fn domains() -> Outcome {
    let lab = with(3);
    lab.mount();
    lab.ok(&["region", "domain", &lab.pool(), "shelf", "0", "1"]);
    lab.ok(&["region", "domain", &lab.pool(), "7", "2"]);
    lab.refused(1, &["region", "domain", &lab.pool(), "a b", "0"], &["no name of a domain"]);
    lab.refused(1, &["region", "domain", &lab.pool(), "shelf", "9"], &["no region 9", "region list"]);
    let printed = lab.ok(&["region", "list", &lab.pool()]);
    assert_eq!(printed.matches("in the domain shelf").count(), 2, "{printed}");
    assert!(printed.contains("in the domain 7"), "{printed}");
    lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
    write(&lab, "safe", 1);
    lab.umount();
    let printed = lab.output(&["status", &lab.pool(), "-v"]);
    assert!(printed.contains("shelf: region 0") && printed.contains("shelf: region 1"), "{printed}");
    // Both disks may be removed: they never held two replicas of a file.
    let kept = away(&lab.path("d2"));
    lab.mount();
    holds(&lab, "safe", 1);
    let printed = lab.run(&["region", "check", &lab.pool(), &lab.text("d2")]);
    assert!(printed.out.contains("missing"), "{}{}", printed.out, printed.err);
    lab.ok(&["region", "domain", &lab.pool(), "0", "0", "1", "2"]);
    let printed = lab.ok(&["region", "list", &lab.pool()]);
    assert!(!printed.contains("domain"), "{printed}");
    lab.umount();
    fs::rename(kept, lab.path("d2")).expect("back");
    lab.mount();
    holds(&lab, "safe", 1);
    lab.umount();
    Ok(())
}
