//! Images and backings that are older than the pool's disks: the content that they refer to may have been overwritten
//! since. That is reported, by path and bytes, before anything is replaced.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lab::{memory_of, wait_until, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("older::restore_tells_what_was_overwritten_since_and_stops", restore),
    ("older::restore_says_nothing_where_all_is_there", restore_whole),
    ("older::restore_tells_what_lay_on_a_disk_that_is_missing", restore_without_disk),
    ("older::import_tells_what_was_overwritten_since_and_stops", import),
    ("older::import_over_a_region_tells_it_before_that_is_lost", import_over_region),
];

const PAGE: usize = 4096;
const KEPT: usize = 6 << 20;
const GONE: usize = (12 << 20) + 77;
const MORE: usize = 14 << 20;

/// A pool whose large files go to its disk, with a file that stays and one that will be removed.
fn lab(medium: &str) -> Lab {
    let lab = Lab::new();
    let (pool, disk) = (lab.pool(), format!("{}:128M", lab.text("disk")));
    lab.ok(&["format", &pool, "--nvram", "16M", "--medium", medium, "--disk", &disk, "--commit", "1"]);
    lab.mount();
    fs::create_dir(lab.mnt().join("films")).expect("a directory");
    write(&lab, "kept", 1, KEPT);
    write(&lab, "films/gone", 2, GONE);
    // Evicts their pages from the memory of `battery`.
    write(&lab, "more", 3, MORE);
    lab.umount();
    lab
}

fn write(lab: &Lab, name: &str, seed: u64, len: usize) {
    let written = File::create(lab.mnt().join(name)).and_then(|mut file| {
        file.write_all(&rng::Rng::new(seed).bytes(len))?;
        file.sync_all()
    });
    written.unwrap_or_else(|e| panic!("{name}: {e}\n{}", lab.output(&["status", &lab.pool(), "-v"])));
}

/// Removes the file, and reuses its segments for others.
fn use_again(lab: &Lab) {
    lab.mount();
    fs::remove_file(lab.mnt().join("films/gone")).expect("removed");
    for round in 0..8 {
        // The segments of removed content are free a moment after the removal is durable.
        let free = || lab.status()["segments"]["free"].as_u64().expect("a number");
        wait_until(Duration::from_secs(60), "there is room", || free() > 30);
        write(lab, "other", 10 + round, 18 << 20);
        fs::remove_file(lab.mnt().join("other")).expect("removed");
        write(lab, "later", 20 + round, 2 << 20);
    }
    lab.umount();
    lab.check();
}

/// The pool is in the state in which the segments had been reused.
fn is_unchanged(lab: &Lab) {
    lab.check();
    lab.mount();
    assert!(!lab.mnt().join("films/gone").exists());
    assert_eq!(fs::metadata(lab.mnt().join("later")).expect("it is there").len(), 2 << 20);
    assert!(fs::read(lab.mnt().join("kept")).expect("read") == rng::Rng::new(1).bytes(KEPT));
    lab.umount();
}

/// The lines that report lost content.
fn lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with("lost: ")).map(Into::into).collect()
}

/// The bytes of `/films/gone` that the lines report; they must report no others.
fn ranges(lines: &[String]) -> Vec<std::ops::RangeInclusive<usize>> {
    assert!(!lines.is_empty());
    let range = |line: &String| {
        let bytes = line.strip_prefix("lost: /films/gone: bytes ").unwrap_or_else(|| panic!("{line}"));
        let (bytes, why) = bytes.split_once(": ").expect("a reason");
        assert_eq!(why, "its segment was used again, or never written");
        let (first, last) = bytes.split_once("..").expect("a range");
        first.parse().expect("a number")..=last.parse().expect("a number")
    };
    lines.iter().map(range).collect()
}

/// The older pool exists, and lacks exactly the content that the lines report.
fn lacks_only(lab: &Lab, expected: &[String]) {
    let checked = lab.run(&["fsck", &lab.pool()]);
    assert_eq!((checked.code, &lines(&checked.out)[..]), (1, expected), "{}", checked.out);
    lab.mount();
    assert!(!lab.mnt().join("later").exists());
    assert!(fs::read(lab.mnt().join("kept")).expect("read") == rng::Rng::new(1).bytes(KEPT));
    let (path, content, lost) = (lab.mnt().join("films/gone"), rng::Rng::new(2).bytes(GONE), ranges(expected));
    let file = File::options().read(true).write(true).open(&path).expect("it is there");
    let mut page = [0; PAGE];
    // A sample of all pages, and the pages at the ends of ranges.
    let is_end =
        |at: &usize| lost.iter().any(|range| at.abs_diff(*range.start()) <= PAGE || at.abs_diff(*range.end()) <= PAGE);
    for at in (0..GONE).step_by(PAGE).filter(|at| at % (16 * PAGE) == 0 || is_end(at)) {
        let is_lost = lost.iter().any(|range| range.contains(&at));
        match file.read_at(&mut page, at as u64) {
            Ok(len) => assert!(!is_lost && page[..len] == content[at..at + len], "byte {at}"),
            Err(e) => assert!(is_lost && e.raw_os_error() == Some(libc::EIO), "byte {at}: {e}"),
        }
    }
    assert!(fs::read(lab.mnt().join("more")).expect("read") == rng::Rng::new(3).bytes(MORE));
    // The content is lost, not its place in the file.
    let at = *lost[0].start();
    file.write_all_at(&content[at..at + PAGE], at as u64).and_then(|()| file.sync_all()).expect("overwritten");
    file.read_exact_at(&mut page, at as u64).expect("read");
    assert!(page == content[at..at + PAGE]);
    file.set_len(at as u64 + PAGE as u64).and_then(|()| file.sync_all()).expect("cut off");
    drop(file);
    assert!(fs::read(&path).expect("read") == content[..at + PAGE]);
    lab.umount();
    lab.check();
}

/// The leftovers in the directory of a pool in the making.
fn leftovers(lab: &Lab) -> Vec<PathBuf> {
    let entries = fs::read_dir(lab.pool()).expect("a directory").flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))).collect()
}

fn restore() -> Outcome {
    for medium in ["logged", "battery"] {
        let lab = lab(medium);
        let (pool, image) = (lab.pool(), lab.text("image"));
        let saved = lab.run(&["save", "--memory-only", &pool, &image]);
        assert_eq!((saved.code, &saved.err[..]), (0, ""), "{medium}");
        use_again(&lab);
        let memory = memory_of(Path::new(&pool));
        let refused = lab.run(&["restore", &pool, &image, "--force"]);
        refused.is_refusal(1, &["content of 1 file", "Nothing was changed", "--accept-lost"], medium);
        let refusal = lines(&refused.err);
        ranges(&refusal);
        assert_eq!((leftovers(&lab), memory_of(Path::new(&pool))), (vec![], memory), "{medium}");
        is_unchanged(&lab);
        let done = lab.run(&["restore", &pool, &image, "--force", "--accept-lost"]);
        assert_eq!((done.code, lines(&done.err)), (0, refusal.clone()), "{medium}: {}", done.err);
        assert!(done.out.contains("is restored from") && done.err.contains("made without it"), "{}", done.err);
        // An image of it is not whole either.
        let again = lab.run(&["save", "--memory-only", &pool, &lab.text("again")]);
        assert_eq!((again.code, lines(&again.err)), (0, refusal.clone()), "{medium}: {}", again.err);
        assert!(again.err.contains("warning"), "{}", again.err);
        lacks_only(&lab, &refusal);
    }
    Ok(())
}

fn restore_whole() -> Outcome {
    for medium in ["logged", "battery"] {
        let lab = lab(medium);
        let (pool, image) = (lab.pool(), lab.text("image"));
        lab.ok(&["save", "--memory-only", &pool, &image]);
        // Segments are used, but none is reused.
        lab.mount();
        write(&lab, "later", 4, 6 << 20);
        lab.umount();
        let done = lab.run(&["restore", &pool, &image, "--force"]);
        assert_eq!((done.code, &done.err[..]), (0, ""), "{medium}");
        lab.check();
        lab.mount();
        assert!(!lab.mnt().join("later").exists());
        assert!(fs::read(lab.mnt().join("films/gone")).expect("read") == rng::Rng::new(2).bytes(GONE), "{medium}");
        lab.umount();
    }
    Ok(())
}

fn restore_without_disk() -> Outcome {
    let lab = lab("logged");
    let (pool, image) = (lab.pool(), lab.text("image"));
    lab.ok(&["save", "--memory-only", &pool, &image]);
    fs::rename(lab.path("disk"), lab.path("away")).expect("away");
    let refused = lab.run(&["restore", &pool, &image, "--force"]);
    refused.is_refusal(1, &["lost: /films/gone: bytes 0..", "no disk has region 0", "Nothing was changed"], "no disk");
    fs::rename(lab.path("away"), lab.path("disk")).expect("back");
    let done = lab.run(&["restore", &pool, &image, "--force"]);
    assert_eq!((done.code, &done.err[..]), (0, ""));
    Ok(())
}

/// Puts the files of a backing in `from` into `to`, replacing those there.
fn put(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for name in ["redo-0", "redo-1", "image"] {
        fs::copy(from.join(name), to.join(name)).expect("copied");
    }
}

fn import() -> Outcome {
    let lab = lab("logged");
    let (pool, older, newer) = (lab.path("pool"), lab.path("older"), lab.path("newer"));
    put(&pool, &older);
    use_again(&lab);
    lab.ok(&["release", &lab.pool()]);
    // Its own backing refers to the present content.
    let done = lab.run(&["import", &lab.pool()]);
    assert_eq!((done.code, &done.err[..]), (0, ""));
    is_unchanged(&lab);
    lab.ok(&["release", &lab.pool()]);
    put(&pool, &newer);
    put(&older, &pool);
    let refused = lab.run(&["import", &lab.pool()]);
    refused.is_refusal(1, &["content of 1 file", "Nothing was changed", "--accept-lost"], "import");
    put(&newer, &pool);
    is_unchanged(&lab);
    lab.ok(&["release", &lab.pool()]);
    put(&older, &pool);
    let done = lab.run(&["import", &lab.pool(), "--accept-lost"]);
    assert_eq!((done.code, lines(&done.err)), (0, lines(&refused.err)), "{}", done.err);
    lacks_only(&lab, &lines(&refused.err));
    Ok(())
}

fn import_over_region() -> Outcome {
    let lab = lab("battery");
    let (copy, older, newer) = (lab.path("pool"), lab.path("older"), lab.path("newer"));
    put(&copy, &older);
    use_again(&lab);
    put(&copy, &newer);
    put(&older, &copy);
    let number = || fs::metadata(lab.path("pool/nvram")).expect("a region").ino();
    let before = (number(), memory_of(&lab.path("pool")));
    let refused = lab.run(&["import", &lab.pool(), "--force"]);
    refused.is_refusal(1, &["content of 1 file", "Nothing was changed", "--accept-lost"], "import");
    assert!(!refused.err.contains("backing in"), "it is no fault of the backing: {}", refused.err);
    assert_eq!((number(), memory_of(&lab.path("pool")), leftovers(&lab)), (before.0, before.1, vec![]));
    put(&newer, &copy);
    is_unchanged(&lab);
    put(&older, &copy);
    let done = lab.run(&["import", &lab.pool(), "--force", "--accept-lost"]);
    assert_eq!((done.code, lines(&done.err)), (0, lines(&refused.err)), "{}", done.err);
    lacks_only(&lab, &lines(&refused.err));
    Ok(())
}
