//! A disk that does not answer, beside others that do. Only calls that need it wait; each command names it; one command
//! takes it out, and it returns by itself.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::fault_disk::FaultDisk;
use crate::lab::{wait_until, Lab};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("hung_disk::one_of_three_is_waited_for_by_nobody", one_of_three),
    ("hung_disk::a_mirror_does_without_one_and_puts_it_back", mirror),
    ("hung_disk::a_raid5_does_without_one_and_puts_it_back", raid5),
    ("hung_disk::the_only_one_is_waited_for_and_nothing_fails", only),
];

const MIB: u64 = 1 << 20;
/// SEMANTICS promises a second or two, which may take this long on a busy machine; a call that needs the disk waits
/// without end.
const SOON: Duration = Duration::from_secs(8);

fn within<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let done = work();
    assert!(begun.elapsed() < SOON, "{what} took {:?}", begun.elapsed());
    done
}

/// A mounted pool on `disks` disks. The lab is dropped first: it unmounts before the disks go, which release their
/// hanging requests before that.
fn lab(disks: u64, options: &[&str]) -> Result<(Lab, Vec<FaultDisk>), Skip> {
    let lab = Lab::new();
    let disks = (0..disks).map(|n| FaultDisk::new(192 * MIB, n)).collect::<Result<Vec<_>, Skip>>()?;
    let paths: Vec<String> = disks.iter().map(FaultDisk::path).collect();
    let pool = lab.pool();
    let mut args = vec!["format", &pool, "--nvram", "64M", "--force"];
    args.extend(options);
    paths.iter().for_each(|path| args.extend(["--disk", path]));
    lab.ok(&args);
    lab.mount();
    Ok((lab, disks))
}

fn write(path: &Path, seed: u64, bytes: u64) {
    let mut file = File::create(path).expect("create");
    file.write_all(&rng::Rng::new(seed).bytes(bytes as usize)).expect("write");
    file.sync_all().expect("fsync");
}

fn forget(path: &Path) {
    let file = File::open(path).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
}

fn holds(path: &Path, seed: u64, bytes: u64) -> bool {
    forget(path);
    fs::read(path).is_ok_and(|found| found == rng::Rng::new(seed).bytes(bytes as usize))
}

fn one_of_three() -> Outcome {
    let (lab, disks) = lab(3, &[])?;
    let (mnt, pool) = (lab.mnt(), lab.pool());
    fs::create_dir(mnt.join("mirrored")).expect("mkdir");
    fs::create_dir(lab.path("second")).expect("mkdir");
    lab.ok(&["redundancy", "set", "mirror", &mnt.join("mirrored").display().to_string()]);
    let (one, twice) = (mnt.join("one"), mnt.join("mirrored/twice"));
    write(&one, 1, 24 * MIB);
    write(&twice, 2, 32 * MIB);
    disks[1].set("hang=1");
    for n in 0..2 {
        within("a small file", || write(&mnt.join("small"), 3, 4096));
        within("a large file", || write(&mnt.join("large"), n, 12 * MIB));
        within("a mirrored file", || write(&mnt.join("mirrored/new"), n, 8 * MIB));
        within("reading what has another copy", || assert!(holds(&twice, 2, 32 * MIB)));
    }
    let (second, saved) = (lab.text("second"), lab.text("saved"));
    let forced = ["region", "remove", &pool, "1", "--force", "--dry-run"];
    let commands =
        [&["status", &pool, "-v"][..], &["region", "list", &pool], &["fsck", &pool], &["mount", &pool, &second]];
    for args in commands.into_iter().chain([&["region", "check", &pool, "1"][..], &forced, &["save", &pool, &saved]]) {
        let ran = within(&args.join(" "), || lab.run(args));
        if ["status", "list", "fsck"].iter().any(|word| args[..2].contains(word)) {
            assert!(ran.out.contains(&disks[1].path()) || ran.err.contains(&disks[1].path()), "{}{}", ran.out, ran.err);
            assert!((ran.out + &ran.err).to_lowercase().contains("not answer"), "{args:?}");
        }
    }
    lab.umount_at(&second);
    disks[1].well();
    wait_until(Duration::from_secs(60), "it is used again by itself", || {
        lab.status()["work"]["out_of_use"].as_array().is_some_and(Vec::is_empty)
    });
    assert!(holds(&one, 1, 24 * MIB) && holds(&twice, 2, 32 * MIB) && holds(&mnt.join("large"), 1, 12 * MIB));

    // It hangs again, when the memory has none of the files any more, and is taken out: a call that waits for content
    // that only this disk has gets an error.
    lab.umount();
    lab.mount();
    disks[1].set("hang=1");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| holds(&one, 1, 24 * MIB));
        within("taking it out", || lab.ok(&["region", "remove", &pool, "1", "--force"]));
        within("who waited for it", || reader.join().expect("a thread"));
        within("reading what has another copy", || assert!(holds(&twice, 2, 32 * MIB)));
        within("a large file", || write(&mnt.join("large"), 5, 12 * MIB));
    });
    within("the end of the mount", || lab.umount());
    // Content that only this disk had is lost, and no other.
    let ran = lab.run(&["fsck", &pool, "--json"]);
    let output: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let lost = output["lost"].as_array().expect("a list");
    assert!(!lost.is_empty() && lost.iter().all(|one| one["path"] == "/one"), "{}", ran.out);
    Ok(())
}

fn mirror() -> Outcome {
    redundant("mirror", 2)
}

fn raid5() -> Outcome {
    redundant("raid5", 3)
}

/// A region of `count` disks, of which one may be missing. In the end the others alone have all content, even that
/// written during the hang.
fn redundant(layout: &str, count: u64) -> Outcome {
    let lab = Lab::new();
    let disks = (1..=count).map(|n| FaultDisk::new(192 * MIB, n)).collect::<Result<Vec<_>, Skip>>()?;
    let paths: Vec<String> = disks.iter().map(FaultDisk::path).collect();
    let (pool, region) = (lab.pool(), format!("{layout}:{}", paths.join(",")));
    lab.ok(&["format", &pool, "--nvram", "64M", "--force", "--backing", ".", "--disk", &region]);
    lab.mount();
    let (one, two) = (lab.mnt().join("one"), lab.mnt().join("two"));
    write(&one, 1, 24 * MIB);
    disks[1].set("hang=1");
    within("writing without it", || write(&two, 2, 24 * MIB));
    within("reading without it", || assert!(holds(&one, 1, 24 * MIB) && holds(&two, 2, 24 * MIB)));
    for (code, args) in [(1, &["status", &pool][..]), (0, &["region", "list", &pool])] {
        let ran = within(args[0], || lab.run(args));
        assert!(ran.code == code && ran.out.contains(&disks[1].path()) && ran.out.contains("DEGRADED"), "{}", ran.out);
    }
    disks[1].well();
    let is_whole = || !lab.ok(&["region", "list", &pool]).contains("DEGRADED");
    wait_until(Duration::from_secs(90), "it gets what it missed by itself", is_whole);
    disks[0].set("gone");
    assert!(holds(&one, 1, 24 * MIB) && holds(&two, 2, 24 * MIB));
    lab.umount();
    Ok(())
}

fn only() -> Outcome {
    let (lab, disks) = lab(1, &["--backing", "."])?;
    let file = lab.mnt().join("file");
    write(&file, 1, 12 * MIB);
    disks[0].set("hang=1");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&lab.mnt().join("other"), 2, 12 * MIB));
        let log = || fs::read_to_string(lab.path("pool/server.log")).unwrap_or_default();
        wait_until(Duration::from_secs(60), "it is logged once", || log().contains("does not answer"));
        within("a small file", || fs::write(lab.mnt().join("small"), "not synced").expect("written"));
        assert!(!writer.is_finished(), "nobody else takes it");
        disks[0].well();
        writer.join().expect("nothing fails");
    });
    assert!(holds(&file, 1, 12 * MIB) && holds(&lab.mnt().join("other"), 2, 12 * MIB));
    assert_eq!(lab.status()["segments"]["bad"], 0, "{}", lab.status()["segments"]);
    lab.umount();
    lab.check();
    Ok(())
}
