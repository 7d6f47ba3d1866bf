//! Regions of several disks: stripes and mirrors; disks that are lost, return, and are replaced.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::lab::{write_seeded, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("regions::a_stripe_holds_a_large_file", stripe),
    ("regions::a_mirror_goes_on_without_a_disk_and_never_trusts_a_stale_one", mirror),
    ("regions::a_disk_that_is_replaced_holds_everything", replaced),
    ("regions::a_raid5_goes_on_without_a_disk", raid5),
    ("regions::a_disk_is_replaced_while_the_pool_is_used", replaced_in_use),
    ("regions::regions_of_several_disks_come_and_go_while_the_pool_is_used", grows),
    ("regions::a_command_writes_beside_a_mount", beside),
    ("regions::what_makes_no_region_is_refused", refused_inputs),
    ("regions::a_query_answers_whether_a_disk_may_be_stopped", checked),
];

const SIZE: usize = 200 << 20;

/// A lab with a pool whose content is on a region of two files, `a` and `b`.
fn with(kind: &str, size: &str) -> Lab {
    let lab = Lab::new();
    let disks = format!("{kind}:{}:{size},{}:{size}", lab.text("a"), lab.text("b"));
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &disks]);
    lab
}

/// Mounts the pool and writes a file of `size` bytes that depend on `seed`.
fn write(lab: &Lab, name: &str, seed: u64, size: usize) {
    lab.mount();
    write_seeded(&lab.mnt().join(name), seed, size);
    lab.umount();
}

/// Checks that the file has its content, and that the pool has no problem.
#[track_caller]
fn holds(lab: &Lab, name: &str, seed: u64, size: usize) {
    lab.mount();
    let found = fs::read(lab.mnt().join(name)).expect("read");
    assert!(found == rng::Rng::new(seed).bytes(size), "{name} has other content");
    lab.umount();
    lab.check();
}

fn list(lab: &Lab) -> Value {
    serde_json::from_str(&lab.ok(&["region", "list", &lab.pool(), "--json"])).expect("JSON")
}

fn states(lab: &Lab) -> Vec<String> {
    let members = list(lab)["regions"][0]["members"].as_array().expect("members").clone();
    members.iter().map(|member| member["state"].as_str().expect("a state").into()).collect()
}

fn away(path: &Path) -> PathBuf {
    let away = path.with_extension("away");
    fs::rename(path, &away).expect("away");
    away
}

fn stripe() -> Outcome {
    let lab = with("stripe=128K", "256M");
    write(&lab, "file", 1, SIZE);
    holds(&lab, "file", 1, SIZE);
    let listing = list(&lab);
    let region = &listing["regions"][0];
    assert_eq!(
        (&region["layout"], &region["chunk"], &region["tolerated"]),
        (&"stripe".into(), &(128 << 10).into(), &0.into())
    );
    assert_eq!(region["size"], (2 * 254) << 20);
    assert_eq!((&region["start"], &region["end"]), (&0.into(), &region["size"]));
    let used = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(lab.path(name)).expect("there").blocks() * 512
    };
    assert!(
        used("a") > SIZE as u64 / 3 && used("b") > SIZE as u64 / 3,
        "each has its half: {} {}",
        used("a"),
        used("b")
    );
    let listed = lab.ok(&["region", "list", &lab.pool()]);
    assert!(listed.contains("region 0, stripe of 2 disks, chunks of 128 KiB, 508 MiB, can lose none"), "{listed}");
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("stripe of 2 disks"));
    // Without any one of them all content is lost: the pool waits for it.
    let kept = away(&lab.path("b"));
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["/b is not there", "attach it", "pool.toml"]);
    let listing = lab.ok(&["region", "list", &lab.pool()]);
    assert!(listing.contains("NOT USED"), "{listing}");
    lab.refused(1, &["region", "replace", &lab.pool(), &lab.text("a")], &["cannot"]);
    fs::rename(kept, lab.path("b")).expect("back");
    lab.refused(1, &["region", "replace", &lab.pool(), &lab.text("a")], &["region 0 is a stripe"]);
    holds(&lab, "file", 1, SIZE);
    lab.ok(&["destroy", &lab.pool()]);
    assert!(!lab.path("a").exists() && !lab.path("b").exists());
    Ok(())
}

fn mirror() -> Outcome {
    let lab = with("mirror", "300M");
    write(&lab, "file", 1, SIZE);
    holds(&lab, "file", 1, SIZE);
    assert!(lab.ok(&["region", "list", &lab.pool()]).contains("mirror of 2 disks, 298 MiB, can lose 1"));
    assert_eq!(states(&lab), ["whole", "whole"]);
    let stale = away(&lab.path("b"));
    // A command that only looks changes nothing: the disk can return.
    let shown = lab.output(&["status", &lab.pool(), "-v"]);
    assert!(shown.contains("DEGRADED") && shown.matches("b is not there").count() == 1, "{shown}");
    assert_eq!(states(&lab), ["whole", "missing"]);
    fs::rename(&stale, lab.path("b")).expect("back");
    assert_eq!(states(&lab), ["whole", "whole"]);
    away(&lab.path("b"));

    let said = lab.ok(&["mount", &lab.pool(), &lab.text("mnt")]);
    assert!(said.contains("b is not there") && said.contains("conquest region replace"), "{said}");
    assert!(fs::read(lab.mnt().join("file")).expect("read") == rng::Rng::new(1).bytes(SIZE));
    write_seeded(&lab.mnt().join("later"), 2, 20 << 20);
    let shown = lab.output(&["status", &lab.text("mnt"), "-v"]);
    assert!(shown.matches("b is not there").count() == 1 && shown.contains("can lose none"), "{shown}");
    lab.umount();

    // It lacks the writes that it missed: it is not read.
    fs::rename(&stale, lab.path("b")).expect("back");
    assert_eq!(states(&lab), ["whole", "out"]);
    let shown = lab.ok(&["region", "list", &lab.pool()]);
    assert!(shown.contains("missed something") && shown.contains("conquest region replace"), "{shown}");
    holds(&lab, "later", 2, 20 << 20);
    let kept = away(&lab.path("a"));
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["b stayed behind", "/a"]);
    fs::rename(kept, lab.path("a")).expect("back");

    let would = lab.ok(&["region", "replace", &lab.pool(), &lab.text("b"), "--dry-run"]);
    assert!(would.contains("Nothing is done") && would.contains("disk 2 of region 0 (mirror)"), "{would}");
    assert_eq!(states(&lab), ["whole", "out"]);
    let said = lab.ok(&["region", "replace", &lab.pool(), "0.2"]);
    assert!(said.contains("has been rebuilt"), "{said}");
    assert_eq!(states(&lab), ["whole", "whole"]);
    assert!(lab.ok(&["region", "replace", &lab.pool(), &lab.text("b")]).contains("is whole"));
    fs::remove_file(lab.path("a")).expect("lost");
    holds(&lab, "file", 1, SIZE);
    holds(&lab, "later", 2, 20 << 20);
    Ok(())
}

fn replaced() -> Outcome {
    let lab = with("mirror", "300M");
    write(&lab, "file", 1, SIZE);
    fs::remove_file(lab.path("b")).expect("lost");
    lab.refused(1, &["region", "replace", &lab.pool(), &lab.text("b")], &["is not there", "NEW"]);
    let (old, new) = (lab.text("b"), lab.text("c"));
    lab.refused(1, &["region", "replace", &lab.pool(), &lab.text("x"), &new], &["is no disk of the pool"]);
    lab.refused(1, &["region", "replace", &lab.pool(), &old, &format!("{new}:64M")], &["64 MiB", "needs 300 MiB"]);
    assert!(!lab.path("c").exists());
    fs::write(lab.path("c"), vec![1; 300 << 20]).expect("written");
    lab.refused(1, &["region", "replace", &lab.pool(), &old, &new], &["with content", "--force"]);
    fs::remove_file(lab.path("c")).expect("removed");
    lab.ok(&["region", "replace", &lab.pool(), &old, &new]);
    assert_eq!(states(&lab), ["whole", "whole"]);
    fs::remove_file(lab.path("a")).expect("lost");
    holds(&lab, "file", 1, SIZE);
    // A whole disk is moved; a file that was made for the pool is removed.
    lab.ok(&["region", "replace", &lab.pool(), &lab.text("a"), &lab.text("d")]);
    lab.ok(&["region", "replace", &lab.pool(), &new, &lab.text("e")]);
    assert!(!lab.path("c").exists());
    holds(&lab, "file", 1, SIZE);
    let toml = fs::read_to_string(lab.path("pool/pool.toml")).expect("read");
    assert_eq!(toml.matches("[[disk]]").count(), 2, "{toml}");
    lab.ok(&["destroy", &lab.pool()]);
    assert!(!lab.path("d").exists() && !lab.path("e").exists());
    Ok(())
}

fn refused_inputs() -> Outcome {
    let lab = Lab::new();
    let (a, b) = (format!("{}:64M", lab.text("a")), format!("{}:64M", lab.text("b")));
    let asked: [(i32, String, &[&str]); 6] = [
        (2, format!("mirror:{a}"), &["2 to 32 disks, not 1", "./mirror:"]),
        (2, format!("raid5:{a},{b}"), &["3 to 32 disks, not 2"]),
        (2, format!("stripe=3K:{a},{b}"), &["power of two"]),
        (2, format!("mirror:{a},,{b}"), &["a path is missing"]),
        (1, format!("mirror:{a},{a}"), &["the same disk"]),
        (1, format!("mirror:{a},{}:1M", lab.text("b")), &["b has 1 MiB", "16 MiB at least"]),
    ];
    for (code, disk, words) in asked {
        lab.refused(code, &["format", &lab.pool(), "--nvram", "64M", "--disk", &disk], words);
        assert!(!lab.path("pool").exists() && !lab.path("a").exists(), "{disk}");
    }
    let (mirror, stripe) = (format!("mirror:{a},{b}"), format!("stripe:{},{b}", lab.text("c")));
    lab.refused(
        1,
        &["format", &lab.pool(), "--nvram", "64M", "--disk", &mirror, "--disk", &stripe],
        &["the same disk"],
    );
    // Each of unequal disks is used up to the size of the smallest.
    let larger = format!("mirror:{a},{}:128M", lab.text("b"));
    let ran = lab.run(&["format", &lab.pool(), "--nvram", "64M", "--disk", &larger]);
    assert!(ran.code == 0 && ran.err.contains("64 of its 128 MiB are not used"), "{}", ran.err);
    assert_eq!(list(&lab)["regions"][0]["size"], 62 << 20);
    Ok(())
}

/// A lab with a pool whose content is on a RAID-5 of three files.
fn with_raid5(size: &str) -> Lab {
    let lab = Lab::new();
    let disks: Vec<String> = ["a", "b", "c"].iter().map(|name| format!("{}:{size}", lab.text(name))).collect();
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &format!("raid5:{}", disks.join(","))]);
    lab
}

/// Overwrites bytes in the middle of a file.
fn spoil(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(path).expect("there");
    let size = file.metadata().expect("facts").len();
    for at in (size / 16..size / 2).step_by(3 << 20) {
        file.write_all_at(&[0xa5; 64 << 10], at).expect("written");
    }
    file.sync_all().expect("synced");
}

/// Reads a file past the kernel's cache.
fn read_anew(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).expect("there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("no need");
    fs::read(path).expect("read")
}

fn raid5() -> Outcome {
    let size = 64 << 20;
    let lab = with_raid5("96M");
    write(&lab, "file", 1, size);
    let listing = lab.ok(&["region", "list", &lab.pool()]);
    assert!(
        listing.contains("raid5 of 3 disks") && listing.contains("can lose 1") && listing.contains("disk 0.3"),
        "{listing}"
    );
    // One disk has wrong content: the others and the parity give the right content, also while it is mounted.
    spoil(&lab.path("c"));
    lab.mount();
    let expected = rng::Rng::new(1).bytes(size);
    assert!(fs::read(lab.mnt().join("file")).expect("read") == expected);
    lab.umount();
    lab.ok(&["region", "replace", &lab.pool(), &lab.text("c"), &lab.text("d")]);
    holds(&lab, "file", 1, size);
    lab.mount();
    spoil(&lab.path("a"));
    assert!(read_anew(&lab.mnt().join("file")) == expected);
    lab.umount();
    lab.ok(&["region", "replace", &lab.pool(), "0.1", &lab.text("e")]);

    fs::remove_file(lab.path("b")).expect("lost");
    assert_eq!(states(&lab), ["whole", "missing", "whole"]);
    let said = lab.ok(&["mount", &lab.pool(), &lab.text("mnt")]);
    assert!(said.contains("b is not there") && said.contains("conquest region replace"), "{said}");
    assert!(read_anew(&lab.mnt().join("file")) == expected);
    write_seeded(&lab.mnt().join("later"), 2, 8 << 20);
    lab.umount();
    holds(&lab, "later", 2, 8 << 20);
    lab.ok(&["region", "replace", &lab.pool(), &lab.text("b"), &lab.text("b")]);
    assert_eq!(states(&lab), ["whole", "whole", "whole"]);
    fs::remove_file(lab.path("d")).expect("lost");
    holds(&lab, "file", 1, size);
    holds(&lab, "later", 2, 8 << 20);
    // Two missing disks are too many.
    fs::remove_file(lab.path("e")).expect("lost");
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["not there"]);
    Ok(())
}

/// A member's file is removed while the pool is mounted and written to; another one replaces it meanwhile.
fn replaced_in_use() -> Outcome {
    for lab in [with("mirror", "300M"), with_raid5("160M")] {
        let size = 64 << 20;
        write(&lab, "file", 1, size);
        lab.mount();
        fs::remove_file(lab.path("b")).expect("lost");
        let path = lab.mnt().join("later");
        let writer = std::thread::spawn(move || write_seeded(&path, 2, 96 << 20));
        let said = lab.ok(&["region", "replace", &lab.pool(), &lab.text("b"), &lab.text("d")]);
        assert!(said.contains("has been rebuilt"), "{said}");
        writer.join().expect("written");
        assert!(read_anew(&lab.mnt().join("file")) == rng::Rng::new(1).bytes(size));
        write_seeded(&lab.mnt().join("last"), 3, 8 << 20);
        assert!(states(&lab).iter().all(|state| state == "whole"), "{:?}", states(&lab));
        lab.umount();
        fs::remove_file(lab.path("a")).expect("lost");
        holds(&lab, "file", 1, size);
        holds(&lab, "later", 2, 96 << 20);
        holds(&lab, "last", 3, 8 << 20);
    }
    Ok(())
}

fn grows() -> Outcome {
    let lab = with("mirror", "64M");
    lab.mount();
    write_seeded(&lab.mnt().join("file"), 1, 24 << 20);
    let disk = |name: &str| format!("{}:96M", lab.text(name));
    let raid5 = format!("raid5:{},{},{}", disk("c"), disk("d"), disk("e"));
    let said = lab.ok(&["region", "add", &lab.text("mnt"), &raid5]);
    assert!(said.contains("raid5 of") && said.contains("disk 1.3"), "{said}");
    write_seeded(&lab.mnt().join("more"), 2, 96 << 20);
    let output = lab.ok(&["region", "remove", &lab.text("mnt"), "0", "--dry-run"]);
    assert!(output.contains("they fit"), "{output}");
    let said = lab.ok(&["region", "remove", &lab.text("mnt"), &lab.text("b")]);
    assert!(said.contains("/a and ") && said.contains("/b are empty, no longer in"), "{said}");
    assert!(!lab.path("a").exists() && !lab.path("b").exists());
    assert!(read_anew(&lab.mnt().join("file")) == rng::Rng::new(1).bytes(24 << 20));
    lab.umount();
    fs::remove_file(lab.path("d")).expect("lost");
    holds(&lab, "file", 1, 24 << 20);
    holds(&lab, "more", 2, 96 << 20);
    Ok(())
}

/// Two processes write parts of stripes of one RAID-5: the server of a mount, and this one. One of them is killed.
fn beside() -> Outcome {
    let lab = with_raid5("160M");
    lab.mount();
    let path = lab.mnt().join("mounted");
    let writer = std::thread::spawn(move || {
        for n in 0..12 {
            write_seeded(&path.with_extension(n.to_string()), n, 3 << 20);
        }
    });
    for n in 0..12 {
        let content = rng::Rng::new(100 + n).bytes(3 << 20);
        let pool = lab.open();
        let how = conquest_fs::path::Open::new().read(true).write(true).create(true).mode(0o644);
        let view = conquest_fs::path::View::new(&pool, conquest_fs::Caller::root());
        let ino = view.open(format!("beside.{n}").as_bytes(), how).and_then(|file| file.attr()).expect("made").ino;
        pool.write(ino, 0, &content, conquest_fs::node::WriteFlags::default()).expect("written");
        pool.sync().expect("synced");
    }
    writer.join().expect("written");
    lab.kill9();
    let all = |lab: &Lab| {
        lab.mount();
        for n in 0..12u64 {
            for (name, seed) in [("mounted", n), ("beside", 100 + n)] {
                let found = fs::read(lab.mnt().join(format!("{name}.{n}"))).expect("read");
                assert!(found == rng::Rng::new(seed).bytes(3 << 20), "{name}.{n}");
            }
        }
        lab.umount();
        lab.check();
    };
    all(&lab);
    fs::remove_file(lab.path("c")).expect("lost");
    all(&lab);
    Ok(())
}

fn checked() -> Outcome {
    let lab = Lab::new();
    let mirror = format!("mirror:{}:64M,{}:64M", lab.text("a"), lab.text("b"));
    let single = format!("{}:64M", lab.text("c"));
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &mirror]);
    let check = |what: &str| {
        let ran = lab.run(&["region", "check", &lab.pool(), what]);
        (ran.code, ran.out + &ran.err)
    };
    let says = |what: &str, code: i32, word: &str| {
        let (found, shown) = check(what);
        assert!(found == code && shown.contains(word), "{what}: {found}: {shown}");
    };
    says("0", 0, "holds nothing");
    write(&lab, "file", 1, 30 << 20);
    says("0", 1, "30720 KiB of content");
    lab.ok(&["region", "add", &lab.pool(), &single]);
    says("1", 0, "holds nothing");
    says("0.1", 0, "goes on without");
    says(&lab.text("a"), 0, "goes on without");
    says("7", 2, "no region 7");
    says(&lab.text("nowhere"), 2, "nowhere");
    fs::remove_file(lab.path("b")).expect("lost");
    says(&lab.text("b"), 0, "missing");
    says(&lab.text("a"), 1, "KiB of content");
    Ok(())
}
