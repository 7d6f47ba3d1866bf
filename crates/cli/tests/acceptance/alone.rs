//! Disks alone open the pool: its directory and its memory are lost, and the backing lies in its regions. Cases: all
//! disks, each disk alone, a disk that stayed behind, disks at other paths, and disks without a pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lab::{memory_of, wait_until, write_seeded, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("alone::the_disks_alone_open_the_pool_both_and_each", each),
    ("alone::a_disk_that_stayed_behind_is_refused_until_it_was_caught_up", stayed_behind),
    ("alone::the_backing_leaves_a_region_that_is_removed", moved),
    ("alone::where_memory_survives_a_power_cut_its_backing_lies_in_regions_too", battery),
    ("alone::what_makes_no_pool_is_refused", refused),
    ("alone::full_disks_have_room_for_the_backing", full),
    ("alone::a_disk_put_back_from_an_earlier_time_does_not_count", put_back_earlier),
    ("alone::a_mirror_of_which_one_disk_is_rotten_opens_right", rotten),
    ("alone::a_scrub_puts_a_rotten_backing_and_labels_right", scrubbed),
    ("alone::a_disk_with_content_of_an_earlier_time_is_reported", old_content),
];

const SIZE: usize = 20 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab with a pool on existing disks, `d0` and on.
fn with(disks: usize, more: &[&str]) -> Lab {
    with_disks_of(256 << 20, disks, more)
}

fn with_disks_of(size: u64, disks: usize, more: &[&str]) -> Lab {
    let lab = Lab::new();
    let pool = lab.pool();
    let mut args: Vec<String> = ["format", &pool, "--nvram", "64M", "--backing", "regions"].map(String::from).into();
    args.extend(more.iter().map(|word| word.to_string()));
    for n in 0..disks {
        let disk = fs::File::create(lab.path(&format!("d{n}"))).expect("a file");
        disk.set_len(size).expect("long");
        args.extend(["--disk".into(), lab.text(&format!("d{n}"))]);
    }
    lab.ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
    lab
}

/// Small files and a large one, all acknowledged by `fsync`.
fn fill(lab: &Lab, seed: u64) {
    for n in 0..200 {
        fs::write(lab.mnt().join(format!("small-{seed}-{n}")), format!("{seed} {n}")).expect("written");
    }
    let large = lab.mnt().join(format!("large-{seed}"));
    write_seeded(&large, seed, SIZE);
    fs::File::open(&large).and_then(|file| file.sync_all()).expect("synced");
    rustix::fs::syncfs(fs::File::open(lab.mnt()).expect("open")).expect("synced");
}

#[track_caller]
fn holds_small(dir: &Path, seed: u64) {
    for n in 0..200 {
        let found = fs::read_to_string(dir.join(format!("small-{seed}-{n}"))).expect("a small file");
        assert_eq!(found, format!("{seed} {n}"));
    }
}

#[track_caller]
fn holds(dir: &Path, seed: u64) {
    holds_small(dir, seed);
    let found = fs::read(dir.join(format!("large-{seed}"))).expect("the large file");
    assert!(found == rng::Rng::new(seed).bytes(SIZE), "the large file has other content");
}

/// A power cut, which also loses the memory and the directory of the pool.
fn lose_all_but_disks(lab: &Lab) {
    lab.kill9();
    lab.run(&["umount", &lab.text("mnt")]);
    let pool = PathBuf::from(lab.pool());
    memory_of(&pool).iter().for_each(|file| fs::remove_file(file).expect("removed"));
    fs::remove_dir_all(&pool).expect("removed");
}

fn import(lab: &Lab, disks: &[&str]) -> String {
    let (pool, disks): (String, Vec<String>) = (lab.pool(), disks.iter().map(|disk| lab.text(disk)).collect());
    let mut args = vec!["import", &pool];
    disks.iter().for_each(|disk| args.extend(["--disk", disk]));
    lab.ok(&args)
}

/// Removes the pool that was made from disks, and leaves the disks alone.
fn forget(lab: &Lab) {
    let pool = PathBuf::from(lab.pool());
    memory_of(&pool).iter().for_each(|file| _ = fs::remove_file(file));
    fs::remove_dir_all(&pool).expect("removed");
}

fn keep(lab: &Lab, disks: &[&str]) {
    disks.iter().for_each(|disk| _ = fs::copy(lab.path(disk), lab.path(&format!("{disk}.kept"))).expect("a copy"));
}

fn put_back(lab: &Lab, disks: &[&str]) {
    disks.iter().for_each(|disk| _ = fs::copy(lab.path(&format!("{disk}.kept")), lab.path(disk)).expect("a copy"));
}

/// The state of the backing in each region, as `status` shows it.
fn copies(lab: &Lab) -> Vec<(u64, String)> {
    let status = lab.status();
    let regions = status["backing"]["regions"].as_array().expect("regions").clone();
    let region =
        |of: &serde_json::Value| (of["region"].as_u64().expect("one"), of["state"].as_str().expect("one").into());
    regions.iter().map(region).collect()
}

fn whole(numbers: &[u64]) -> Vec<(u64, String)> {
    numbers.iter().map(|number| (*number, "whole".into())).collect()
}

/// A power cut, which loses the memory; the directory stays.
fn lose_memory(lab: &Lab) {
    lab.kill9();
    lab.run(&["umount", &lab.text("mnt")]);
    memory_of(Path::new(&lab.pool())).iter().for_each(|file| fs::remove_file(file).expect("removed"));
}

/// Either disk is rolled back to before some files were written, with the memory lost or not: the other disk counts.
fn put_back_earlier() -> Outcome {
    for old in ["d0", "d1"] {
        for is_lost in [true, false] {
            let lab = with(2, &[]);
            lab.mount();
            fill(&lab, 1);
            keep(&lab, &[old]);
            for n in 0..50 {
                fs::write(lab.mnt().join(format!("late-{n}")), format!("late {n}")).expect("written");
                if n % 10 == 0 {
                    rustix::fs::syncfs(fs::File::open(lab.mnt()).expect("open")).expect("synced");
                }
            }
            rustix::fs::syncfs(fs::File::open(lab.mnt()).expect("open")).expect("synced");
            match is_lost {
                true => lose_memory(&lab),
                false => lab.umount(),
            }
            put_back(&lab, &[old]);
            lab.mount();
            let log = fs::read_to_string(lab.path("pool/server.log")).expect("a log");
            assert!(log.contains("has an older copy") && log.contains(&lab.text(old)), "{log}");
            holds_small(&lab.mnt(), 1);
            for n in 0..50 {
                let found = fs::read_to_string(lab.mnt().join(format!("late-{n}")));
                assert_eq!(found.expect("it is there"), format!("late {n}"), "{old} put back, {is_lost}");
            }
            wait_until(PATIENCE, "it is caught up", || copies(&lab) == whole(&[0, 1]));
            lab.umount();
            lab.check();
        }
    }
    Ok(())
}

/// One byte in each 16 KiB of one disk of a mirror is wrong; the other disk is perfect.
fn rotten() -> Outcome {
    for which in ["d0", "d1"] {
        let lab = Lab::new();
        for name in ["d0", "d1"] {
            fs::File::create(lab.path(name)).and_then(|file| file.set_len(256 << 20)).expect("a file");
        }
        let (pool, mirror) = (lab.pool(), format!("mirror:{},{}", lab.text("d0"), lab.text("d1")));
        lab.ok(&["format", &pool, "--nvram", "64M", "--backing", "regions", "--disk", &mirror]);
        lab.mount();
        fill(&lab, 1);
        lose_memory(&lab);
        let mut bytes = fs::read(lab.path(which)).expect("a disk");
        // Between the labels, also in the heads of segments.
        bytes[(1 << 20) + 100..255 << 20].iter_mut().step_by(16 << 10).for_each(|byte| *byte ^= 0x20);
        fs::write(lab.path(which), bytes).expect("written");
        lab.mount();
        holds(&lab.mnt(), 1);
        let found = lab.run(&["scrub", &pool]);
        let output = ["the summary of its segment", "put right"].iter().all(|what| found.out.contains(what));
        assert!(found.code == 1 && output && !found.out.contains("LOST"), "{}{}", found.out, found.err);
        let again = lab.run(&["scrub", &pool]);
        assert_eq!(again.code, 0, "{}{}", again.out, again.err);
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// One of the two disks is rotten all over, and its first label is lost: after a scrub it alone opens the pool.
fn scrubbed() -> Outcome {
    let lab = with(2, &[]);
    lab.mount();
    for n in 0..200 {
        fs::write(lab.mnt().join(format!("small-1-{n}")), format!("1 {n}")).expect("written");
    }
    lab.umount();
    let mut bytes = fs::read(lab.path("d1")).expect("a disk");
    bytes.iter_mut().skip(9000).step_by(16 << 10).for_each(|byte| *byte ^= 0x20);
    bytes[..4096].fill(0);
    fs::write(lab.path("d1"), bytes).expect("written");
    let is_reported = |when: &str| {
        let checked = lab.run(&["fsck", &lab.pool()]);
        let texts = ["the backing, log", &format!("`conquest scrub {}` puts it right", lab.pool())];
        let is_reported = checked.code == 1 && texts.iter().all(|what| checked.out.contains(what));
        assert!(is_reported && !checked.out.contains("clean"), "{when}: {}{}", checked.out, checked.err);
    };
    is_reported("at rest");
    lab.mount();
    is_reported("in use");
    let found = lab.run(&["scrub", &lab.pool()]);
    let texts = ["the backing", "the label of", "put right"].iter().all(|what| found.out.contains(what));
    assert!(found.code == 1 && texts && !found.out.contains("LOST"), "{}{}", found.out, found.err);
    let again = lab.run(&["scrub", &lab.pool()]);
    assert_eq!(again.code, 0, "{}{}", again.out, again.err);
    lab.check();
    lose_all_but_disks(&lab);
    fs::rename(lab.path("d0"), lab.path("away")).expect("away");
    import(&lab, &["d1"]);
    lab.mount_with("ro");
    holds_small(&lab.mnt(), 1);
    lab.umount();
    Ok(())
}

/// The backing lies in the directory, and a disk is rolled back to before a file was written. Half of a mirror is then
/// out; content that only a single disk had is named.
fn old_content() -> Outcome {
    for mirror in [true, false] {
        let lab = Lab::new();
        for name in ["d0", "d1"] {
            fs::File::create(lab.path(name)).and_then(|file| file.set_len(256 << 20)).expect("a file");
        }
        let (pool, d0) = (lab.pool(), lab.text("d0"));
        let disk = if mirror { format!("mirror:{d0},{}", lab.text("d1")) } else { d0.clone() };
        lab.ok(&["format", &pool, "--nvram", "64M", "--backing", ".", "--disk", &disk, "--cache", "ceiling=5"]);
        lab.mount();
        fill(&lab, 1);
        keep(&lab, &["d0"]);
        fill(&lab, 2);
        lose_memory(&lab);
        put_back(&lab, &["d0"]);
        lab.mount();
        let log = || fs::read_to_string(lab.path("pool/server.log")).expect("a log");
        wait_until(PATIENCE, "it is logged", || log().contains("it is older than the pool's memory"));
        match mirror {
            true => {
                holds(&lab.mnt(), 2);
                let listed = lab.ok(&["region", "list", &pool, "--json"]);
                assert!(listed.contains("\"out\""), "{listed}");
            }
            false => wait_until(PATIENCE, "what is lost is named", || {
                lab.output(&["status", &pool, "-v"]).contains("large-2")
            }),
        }
        lab.umount();
    }
    Ok(())
}

fn each() -> Outcome {
    let lab = with(2, &[]);
    assert!(!lab.path("pool/redo-0").exists(), "the backing does not lie there");
    lab.mount();
    assert_eq!(copies(&lab), whole(&[0, 1]));
    fill(&lab, 1);
    lose_all_but_disks(&lab);
    keep(&lab, &["d0", "d1"]);

    let said = import(&lab, &["d0", "d1"]);
    assert!(said.contains("as of") && !said.contains("missing"), "{said}");
    lab.mount();
    holds(&lab.mnt(), 1);
    assert_eq!(copies(&lab), whole(&[0, 1]));
    fill(&lab, 2);
    lab.umount();
    lab.check();
    lab.mount();
    holds(&lab.mnt(), 2);
    lab.umount();

    for (disk, other) in [("d0", "d1"), ("d1", "d0")] {
        forget(&lab);
        put_back(&lab, &["d0", "d1"]);
        fs::rename(lab.path(other), lab.path("away")).expect("away");
        let said = import(&lab, &[disk]);
        assert!(said.contains("is missing") && said.contains(&lab.text(other)), "{said}");
        // The other region may have content that this memory does not know of.
        lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["-o ro", other]);
        lab.mount_with("ro");
        holds_small(&lab.mnt(), 1);
        lab.umount();
        fs::rename(lab.path("away"), lab.path(other)).expect("back");
    }
    Ok(())
}

fn stayed_behind() -> Outcome {
    let lab = with(2, &[]);
    lab.mount();
    fill(&lab, 1);
    fs::rename(lab.path("d1"), lab.path("away")).expect("away");
    let is_out = || copies(&lab).iter().any(|(region, state)| (*region, state.as_str()) == (1, "out"));
    wait_until(PATIENCE, "it is excluded", is_out);
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("region 1 (OUT"));
    fill(&lab, 2);
    lose_all_but_disks(&lab);
    fs::rename(lab.path("away"), lab.path("d1")).expect("back");
    keep(&lab, &["d0", "d1"]);

    // The loss was logged, and no other region has more.
    let refused = ["import", &lab.pool(), "--disk", &lab.text("d1")].map(String::from);
    lab.refused(1, &refused.each_ref().map(String::as_str), &["region 1 stayed behind", "region 0"]);
    assert!(!lab.path("pool/pool.toml").exists());

    import(&lab, &["d0", "d1"]);
    lab.mount();
    holds_small(&lab.mnt(), 2);
    wait_until(PATIENCE, "it is caught up", || copies(&lab) == whole(&[0, 1]));
    fill(&lab, 3);
    lose_all_but_disks(&lab);
    fs::rename(lab.path("d0"), lab.path("away")).expect("away");
    import(&lab, &["d1"]);
    lab.mount_with("ro");
    holds_small(&lab.mnt(), 2);
    holds_small(&lab.mnt(), 3);
    lab.umount();
    Ok(())
}

fn moved() -> Outcome {
    let lab = with(3, &[]);
    lab.mount();
    fill(&lab, 1);
    let before: Vec<u64> = copies(&lab).into_iter().map(|(region, _)| region).collect();
    assert_eq!(before.len(), 2);
    let gone = before[0].to_string();
    lab.run(&["region", "check", &lab.pool(), &gone]);
    lab.ok(&["region", "remove", &lab.pool(), &gone]);
    wait_until(PATIENCE, "it lies in the two others", || {
        let now = copies(&lab);
        now.len() == 2 && now.iter().all(|(region, state)| *region != before[0] && state == "whole")
    });
    fill(&lab, 2);
    lose_all_but_disks(&lab);
    let left: Vec<String> = (0..3).filter(|n| *n != before[0]).map(|n| format!("d{n}")).collect();
    import(&lab, &left.iter().map(String::as_str).collect::<Vec<_>>());
    lab.mount();
    holds(&lab.mnt(), 1);
    holds(&lab.mnt(), 2);
    lab.umount();
    lab.check();
    Ok(())
}

fn battery() -> Outcome {
    let lab = with(2, &["--medium", "battery"]);
    lab.mount();
    fill(&lab, 1);
    assert_eq!(copies(&lab), whole(&[0, 1]));
    lab.umount();
    forget(&lab);
    import(&lab, &["d0", "d1"]);
    lab.mount();
    holds(&lab.mnt(), 1);
    lab.umount();
    lab.check();
    Ok(())
}

fn refused() -> Outcome {
    let lab = with(2, &[]);
    let (pool, d0, d1) = (lab.pool(), lab.text("d0"), lab.text("d1"));
    lab.mount();
    fill(&lab, 1);
    let again = lab.text("again");
    lab.refused(1, &["import", &again, "--disk", &d0, "--disk", &d1], &["in use"]);
    lab.umount();
    lab.refused(1, &["import", &pool, "--disk", &d0, "--disk", &d1], &["there is a pool", "another"]);
    lab.refused(1, &["import", &again, "--disk", &lab.text("nowhere")], &["nowhere is not there"]);
    fs::write(lab.path("foreign"), vec![7; 20 << 20]).expect("a file");
    lab.refused(1, &["import", &again, "--disk", &lab.text("foreign")], &["no label"]);
    let other = lab.text("other");
    fs::File::create(lab.path("d9")).and_then(|file| file.set_len(256 << 20)).expect("a file");
    lab.ok(&["format", &other, "--nvram", "64M", "--backing", ".", "--disk", &lab.text("d9")]);
    lab.refused(1, &["import", &again, "--disk", &d0, "--disk", &lab.text("d9")], &["disks of one pool"]);
    lab.refused(1, &["import", &again, "--disk", &lab.text("d9")], &["no backing of the pool"]);
    assert!(!Path::new(&again).exists(), "what is refused leaves nothing");
    Ok(())
}

/// Writes files of `bytes` until the pool is full; returns their number.
fn until_full(lab: &Lab, name: &str, bytes: usize) -> usize {
    let content = rng::Rng::new(7).bytes(bytes);
    for n in 0.. {
        match fs::write(lab.mnt().join(format!("{name}-{n}")), &content) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return n,
            Err(e) => panic!("{name}-{n}: {e}"),
        }
    }
    unreachable!("there is room for ever")
}

/// Content fills the disks, and files fill the memory: written content stays durable, and removing files makes the pool
/// usable again.
fn full() -> Outcome {
    let lab = with_disks_of(512 << 20, 2, &[]);
    lab.mount();
    let is_well = |when: &str| {
        rustix::fs::syncfs(fs::File::open(lab.mnt()).expect("open")).unwrap_or_else(|e| panic!("{when}: {e}"));
        let status = lab.output(&["status", &lab.pool(), "-v"]);
        assert!(!status.contains("FAILED") && !status.contains("full"), "{when}: {status}");
    };
    let large = until_full(&lab, "large", 8 << 20);
    is_well("with full disks");
    let small = until_full(&lab, "small", 20_000);
    assert!(large > 10 && small > 100, "{large} large and {small} small files");
    is_well("with full memory");
    // Overwriting takes more memory until it is done.
    (0..small / 10).for_each(|n| fs::remove_file(lab.mnt().join(format!("small-{n}"))).expect("removed"));
    is_well("when files were removed");
    // Everything is written several times: more changes than a redo log of the backing can hold.
    for round in 0..3 {
        let content = rng::Rng::new(round).bytes(20_000);
        for n in small / 10..small {
            let path = lab.mnt().join(format!("small-{n}"));
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|mut file| std::io::Write::write_all(&mut file, &content))
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        is_well("when all was written again");
    }
    let (d2, d0) = (fs::File::create(lab.path("d2")).expect("a file"), lab.text("d0"));
    d2.set_len(512 << 20).expect("long");
    lab.ok(&["region", "add", &lab.pool(), &lab.text("d2")]);
    lab.ok(&["region", "remove", &lab.pool(), &d0]);
    is_well("with another disk");
    for n in 0..large {
        let found = fs::read(lab.mnt().join(format!("large-{n}"))).expect("a large file");
        assert!(found == rng::Rng::new(7).bytes(8 << 20), "large-{n}");
    }
    lab.umount();
    lab.check();
    Ok(())
}
