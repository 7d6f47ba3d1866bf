//! Damaged, missing, foreign or full files get a clear error, and nothing is lost.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rng::Rng;
use rustix::fs::{fallocate, FallocateFlags};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use rustix::thread::{sched_setaffinity, CpuSet};

use crate::lab::{self, program, write_seeded, Lab, NOBODY};
use crate::page_cache::Mapping;
use crate::{tree, Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("bad_input::no_pool", no_pool),
    ("bad_input::wrong_sizes", wrong_sizes),
    ("bad_input::formatting_over_a_pool", format_over),
    ("bad_input::a_truncated_region", truncated),
    ("bad_input::a_missing_region", missing_region),
    ("bad_input::a_region_that_is_none", foreign),
    ("bad_input::another_version_or_layout", other_version),
    ("bad_input::any_header_byte_flipped", header_flips),
    ("bad_input::no_persistent_memory_for_dax", no_dax),
    ("bad_input::another_medium_than_the_region_has", other_medium),
    ("bad_input::a_broken_pool_toml", pool_toml),
    ("bad_input::paths_that_are_no_text", no_text),
    ("bad_input::without_permission", permission),
    ("bad_input::an_unwritable_directory", unwritable),
    ("bad_input::no_dev_fuse", no_device),
    ("bad_input::little_memory_for_threads", little_memory),
    ("bad_input::mounting_twice_or_nowhere", mounting_wrongly),
    ("bad_input::a_full_pool", full),
    ("bad_input::deleting_makes_room_at_once", room_at_once),
    ("bad_input::who_finds_no_room_holds_nobody_up", others_go_on),
    ("bad_input::a_full_pool_takes_what_goes_over_memory_it_has", written_over),
    ("bad_input::a_backing_taken_away_while_in_use", copy_taken_away),
    ("bad_input::a_full_disk_beneath_backing_and_log", full_disk),
    ("bad_input::memory_without_its_backing_is_saved", memory_alone),
    ("bad_input::a_damaged_image", damaged_image),
    ("bad_input::an_image_that_does_not_fit", image_on_a_full_disk),
];

/// A closed pool with some files, and a description of them.
struct Sample {
    lab: Lab,
    files: std::collections::BTreeMap<std::path::PathBuf, tree::Item>,
    region: Vec<u8>,
}

impl Sample {
    fn new() -> Self {
        let lab = Lab::with_file("16M");
        lab.mount();
        for n in 0..40u64 {
            write_seeded(&lab.mnt().join(format!("file{n}")), n, (n * n * 40) as usize);
        }
        std::fs::create_dir(lab.mnt().join("dir")).expect("mkdir");
        std::os::unix::fs::symlink("dir", lab.mnt().join("link")).expect("symlink");
        let files = tree::describe(&lab.mnt());
        lab.umount();
        let region = std::fs::read(lab.nvram()).expect("read the region");
        Sample { lab, files, region }
    }

    /// After any attempt, every file is present when the original memory is restored.
    fn intact(&self) {
        std::fs::write(self.lab.nvram(), &self.region).expect("write the region");
        self.readable();
    }

    fn readable(&self) {
        self.lab.mount();
        tree::assert_same(&self.files, &tree::describe(&self.lab.mnt()), "the sample");
        self.lab.umount();
        self.lab.check();
    }

    /// Every command that opens the pool refuses it, with these words, and changes nothing in its memory.
    fn refused(&self, words: &[&str]) {
        let before = std::fs::read(self.lab.nvram()).ok();
        let (pool, mnt, image) = (self.lab.pool(), self.lab.text("mnt"), self.lab.text("image"));
        self.lab.refused(2, &["status", &pool], words);
        self.lab.refused(2, &["fsck", &pool], words);
        self.lab.refused(2, &["fsck", &pool, "--repair"], words);
        self.lab.refused(1, &["mount", &pool, &mnt], words);
        self.lab.refused(1, &["save", &pool, &image], words);
        assert!(!Path::new(&image).exists(), "half an image is left");
        assert!(before == std::fs::read(self.lab.nvram()).ok(), "a refused region was changed");
    }

    fn write_region(&self, region: &[u8]) {
        std::fs::write(self.lab.nvram(), region).expect("write the region");
    }
}

fn no_pool() -> Outcome {
    let lab = Lab::new();
    let (nothing, mnt) = (lab.text("nothing"), lab.text("mnt"));
    for (code, args) in
        [(2, &["status", &nothing][..]), (1, &["mount", &nothing, &mnt]), (1, &["save", &nothing, "/dev/null"])]
    {
        lab.refused(code, args, &["no pool", &nothing, "conquest list"]);
    }
    lab.refused(2, &["fsck", &nothing], &["no pool", &nothing]);
    lab.refused(1, &["restore", &lab.pool(), &nothing], &[&nothing]);
    lab.refused(1, &["umount", &mnt], &["no pool is mounted"]);
    assert!(!lab.path("nothing").exists() && !lab.path("pool").exists());
    Ok(())
}

fn wrong_sizes() -> Outcome {
    let lab = Lab::new();
    let pool = lab.pool();
    lab.refused(1, &["format", &pool, "--nvram", "4K"], &["4096", "at least"]);
    assert!(!lab.nvram().exists(), "a refused format left a region");
    lab.refused(1, &["format", &pool, "--nvram", "400T"], &["400"]);
    lab.refused(2, &["format", &pool, "--nvram", &lab.text("missing")], &["does not exist", "--size"]);
    lab.refused(2, &["format", &pool, "--nvram", "64M", "--size", "64M"], &["--size"]);
    lab.refused(2, &["format", &pool, "--size", "huge"], &["huge", "64M"]);
    lab.refused(2, &["format", &pool, "--medium", "paper"], &["paper", "battery"]);
    lab.ok(&["format", &pool, "--nvram", &lab.text("elsewhere"), "--size", "16M"]);
    lab.check();
    Ok(())
}

fn format_over() -> Outcome {
    let sample = Sample::new();
    let (lab, pool) = (&sample.lab, sample.lab.pool());
    lab.refused(1, &["format", &pool, "--nvram", "32M"], &["--force"]);
    sample.readable();
    // Another pool does not take over its memory either.
    let nvram = lab.nvram().to_string_lossy().into_owned();
    lab.refused(1, &["format", &lab.text("second"), "--nvram", &nvram], &["--force"]);
    sample.readable();
    lab.mount();
    lab.refused(1, &["format", &pool, "--nvram", "32M", "--force"], &["mounted", "umount"]);
    lab.umount();
    sample.readable();
    lab.ok(&["format", &pool, "--nvram", "32M", "--force"]);
    lab.mount();
    assert_eq!(tree::count(&lab.mnt()).0, 0);
    lab.umount();
    Ok(())
}

fn truncated() -> Outcome {
    let sample = Sample::new();
    for len in [0, 1, 79, 4096, 8192, 1 << 20, sample.region.len() - 4096, sample.region.len() - 1] {
        sample.write_region(&sample.region[..len]);
        sample.refused(&["nvram"]);
    }
    sample.intact();
    Ok(())
}

fn missing_region() -> Outcome {
    let sample = Sample::new();
    std::fs::remove_file(sample.lab.nvram()).expect("remove");
    sample.refused(&["nvram"]);
    sample.intact();
    Ok(())
}

fn foreign() -> Outcome {
    let sample = Sample::new();
    sample.write_region(&Rng::new(5).bytes(sample.region.len()));
    sample.refused(&["nvram"]);
    sample.write_region(&vec![0; sample.region.len()]);
    sample.refused(&["nvram"]);
    // The memory of another pool.
    let other = Lab::with_file("16M");
    std::fs::copy(other.nvram(), sample.lab.nvram()).expect("copy");
    sample.refused(&["pool"]);
    std::fs::remove_file(sample.lab.nvram()).expect("remove");
    std::fs::create_dir(sample.lab.nvram()).expect("mkdir");
    sample.refused(&["nvram"]);
    std::fs::remove_dir(sample.lab.nvram()).expect("rmdir");
    sample.intact();
    Ok(())
}

/// Fields of the header, at the offsets of FORMAT.md.
const VERSION_AT: usize = 8;
const FINGERPRINT_AT: usize = 16;
const APP_VERSION_AT: usize = 64;
const CRC_AT: usize = 68;
const COPIES: [usize; 2] = [0, 4096];

fn other_version() -> Outcome {
    let sample = Sample::new();
    for (at, word) in [(VERSION_AT, "version"), (FINGERPRINT_AT, "laid out"), (APP_VERSION_AT, "version")] {
        let mut region = sample.region.clone();
        for copy in COPIES {
            region[copy + at] ^= 0x40;
            let crc = crc32c::crc32c(&region[copy..copy + CRC_AT]);
            region[copy + CRC_AT..copy + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        sample.write_region(&region);
        sample.refused(&[word]);
    }
    sample.intact();
    Ok(())
}

/// Nothing here is mounted with `-o dax`: the commands refuse before they make or lose anything.
fn no_dax() -> Outcome {
    let sample = Sample::new();
    let (lab, pool) = (&sample.lab, sample.lab.pool());
    let words = &["-o dax", "/dev/dax", "--medium battery"];
    for place in ["/dev/shm", "/tmp"] {
        let dir = tempfile::tempdir_in(place).expect("a directory");
        let file = dir.path().join("nvram");
        let path = file.to_string_lossy().into_owned();
        let args = ["format", &lab.text("second"), "--medium", "dax", "--nvram", &path, "--size", "16M"];
        if lab.run(&args).code == 0 {
            return Err(Skip(format!("{place} is persistent memory")));
        }
        lab.refused(1, &args, words);
        assert!(!file.exists(), "a refused format left a region in {place}");
    }
    lab.refused(1, &["format", &pool, "--medium", "dax", "--nvram", "16M", "--force"], words);
    lab.refused(1, &["format", &lab.text("second"), "--medium", "dax", "--nvram", "/dev/null"], &["not a DAX device"]);
    lab.refused(1, &["format", &lab.text("second"), "--nvram", "/dev/null"], &["--medium dax"]);
    sample.readable();
    Ok(())
}

const MEDIUM_AT: usize = 12;

fn other_medium() -> Outcome {
    let sample = Sample::new();
    let mut region = sample.region.clone();
    for copy in COPIES {
        region[copy + MEDIUM_AT] = 2;
        let crc = crc32c::crc32c(&region[copy..copy + CRC_AT]);
        region[copy + CRC_AT..copy + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
    sample.write_region(&region);
    sample.refused(&["`dax`", "`battery`", "pool.toml"]);
    sample.write_region(&sample.region);
    let toml = sample.lab.path("pool/pool.toml");
    let text = std::fs::read_to_string(&toml).expect("pool.toml");
    assert!(text.contains("medium = \"battery\""), "{text}");
    std::fs::write(&toml, text.replace("battery", "dax")).expect("write pool.toml");
    sample.refused(&["`dax`", "`battery`", "pool.toml"]);
    std::fs::write(&toml, text).expect("write pool.toml");
    sample.intact();
    Ok(())
}

/// With one header damaged the other serves; with both there is a clear refusal.
fn header_flips() -> Outcome {
    let sample = Sample::new();
    for at in 0..CRC_AT + 4 {
        let mut region = sample.region.clone();
        region[COPIES[at % 2] + at] ^= 1 << (at % 8);
        sample.write_region(&region);
        assert_eq!(sample.lab.run(&["status", &sample.lab.pool(), "-v"]).code, 0, "byte {at} of one copy flipped");
        let mut region = sample.region.clone();
        COPIES.iter().for_each(|copy| region[copy + at] ^= 1 << (at % 8));
        sample.write_region(&region);
        if at % 16 == 0 {
            sample.refused(&["nvram"]);
        } else {
            sample.lab.refused(2, &["status", &sample.lab.pool()], &["nvram"]);
        }
    }
    sample.intact();
    Ok(())
}

fn pool_toml() -> Outcome {
    let sample = Sample::new();
    let path = sample.lab.path("pool/pool.toml");
    let original = std::fs::read(&path).expect("read");
    for text in [&b""[..], b"not toml at all [", b"version = 99\n", b"\xff\xfe\x00", &original[..original.len() / 2]] {
        std::fs::write(&path, text).expect("write");
        sample.refused(&["pool.toml"]);
    }
    std::fs::write(&path, original).expect("write");
    sample.readable();
    Ok(())
}

/// JSON cannot hold such names unchanged.
fn no_text() -> Outcome {
    let lab = Lab::new();
    for medium in ["logged", "battery"] {
        let name = OsStr::from_bytes(b"pool\xff").to_owned();
        let (pool, mnt) = (lab.path(medium).join(&name), lab.path("mnt").join(medium).join(&name));
        std::fs::create_dir_all(&pool).and_then(|()| std::fs::create_dir_all(&mnt)).expect("mkdir");
        let ok = |verb: &str, dirs: &[&Path], rest: &[&str]| lab::ok(lab.command(&[verb]).args(dirs).args(rest));
        ok("format", &[&pool], &["--nvram", "16M", "--medium", medium]);
        ok("mount", &[&pool, &mnt], &[]);
        let said = ok("status", &[&mnt], &["--json"]);
        let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        assert_eq!(status["pool"].as_str(), Some(&*shown(&pool)));
        assert_eq!(status["sessions"][0]["mountpoint"].as_str(), Some(&*shown(&mnt)));
        assert!(status["backing"]["dir"].as_str().is_some_and(|dir| dir.starts_with(&shown(&pool))), "{said}");
        ok("umount", &[&mnt], &[]);
        assert!(ok("fsck", &[&pool], &["--json"]).contains(&shown(&pool)));
    }
    Ok(())
}

fn permission() -> Outcome {
    lab::require("setpriv")?;
    let sample = Sample::new();
    let (lab, pool, mnt) = (&sample.lab, sample.lab.pool(), sample.lab.text("mnt"));
    for (path, mode) in [("pool/nvram", 0o600), ("pool", 0o700)] {
        std::fs::set_permissions(lab.path(path), Permissions::from_mode(mode)).expect("chmod");
        for (code, args) in [
            (2, &["status", &pool][..]),
            (2, &["fsck", &pool]),
            (1, &["mount", &pool, &mnt]),
            (1, &["save", &pool, "/tmp/x"]),
        ] {
            let what = format!("{args:?} by another user");
            lab.run_as(&NOBODY, args).is_refusal(code, &["ermission"], &what);
        }
    }
    sample.readable();
    let logged = Lab::mounted("16M");
    logged.umount();
    for args in [["status", &logged.pool()], ["fsck", &logged.pool()]] {
        let ran = logged.run_as(&NOBODY, &args);
        let output = ran.err.contains("permission denied") && ran.err.contains("its mount");
        assert!(output && !ran.err.contains("conquest save"), "what who may not can do: {}", ran.err);
    }
    Ok(())
}

fn unwritable() -> Outcome {
    lab::require("setpriv")?;
    let lab = Lab::new();
    let ran = lab.run_as(&NOBODY, &["format", &lab.text("owned-by-root"), "--nvram", "16M"]);
    ran.is_refusal(1, &["owned-by-root", "not permitted"], "format in a directory of another user");
    let sample = Sample::new();
    let pool = sample.lab.pool();
    lab::ok(&mut program("mount", &["--bind", "-o", "ro", &pool, &pool]));
    sample.lab.refused(1, &["format", &pool, "--nvram", "16M", "--force"], &["ead-only"]);
    sample.lab.refused(1, &["mount", &pool, &sample.lab.text("mnt")], &["ead-only"]);
    lab::ok(&mut program("umount", &[&pool]));
    sample.readable();
    Ok(())
}

/// /dev without a fuse, in a namespace.
fn no_device() -> Outcome {
    let sample = Sample::new();
    let dev = sample.lab.path("dev");
    std::fs::create_dir(&dev).expect("mkdir");
    let script = format!(
        "mount -t tmpfs none {0} && cp -a /dev/null /dev/zero /dev/random /dev/urandom {0}/ && \
         mkdir {0}/shm && mount --rbind /dev/shm {0}/shm && mount --rbind {0} /dev && exec \"$@\"",
        dev.display()
    );
    let without = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let ran = sample.lab.run_as(&without, &["mount", &sample.lab.pool(), &sample.lab.text("mnt")]);
    ran.is_refusal(1, &["/dev/fuse", "modprobe fuse"], "mount without /dev/fuse");
    sample.readable();
    Ok(())
}

fn mounting_wrongly() -> Outcome {
    let sample = Sample::new();
    let (lab, pool, mnt) = (&sample.lab, sample.lab.pool(), sample.lab.text("mnt"));
    lab.mount();
    lab.refused(1, &["mount", &pool, &mnt], &["already mounted", "conquest umount"]);
    tree::assert_same(&sample.files, &tree::describe(&lab.mnt()), "the first mount");
    lab.umount();
    lab.refused(1, &["mount", &pool, &lab.text("nowhere")], &["nowhere", "mkdir -p"]);
    lab.refused(1, &["mount", &pool, &lab.text("pool/pool.toml")], &["not a directory"]);
    lab.refused(1, &["mount", &pool, &pool], &["lies in", "another directory"]);
    sample.readable();
    Ok(())
}

/// If no thread can be started the mount is refused; nothing panics.
fn little_memory() -> Outcome {
    lab::require("prlimit")?;
    let lab = Lab::with_pool("32M");
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let mut refused = 0;
    for megabytes in (100..400).step_by(10) {
        let limit = format!("--as={}", megabytes << 20);
        match lab.run_as(&["prlimit", &limit], &["mount", &pool, &mnt]).code {
            // The mount's behaviour after that is another subject.
            0 => drop(lab.run(&["umount", &mnt])),
            _ => refused += 1,
        }
    }
    assert!(refused > 0, "it was enough");
    let log = std::fs::read_to_string(lab.path("pool/server.log")).unwrap_or_default();
    assert!(!log.contains("panicked"), "{log}");
    lab.check();
    Ok(())
}

/// Writes until nothing fits: written content is present, deleting works, and all space comes back.
fn full() -> Outcome {
    let lab = Lab::mounted("24M");
    let mnt = lab.mnt();
    std::fs::write(mnt.join("first"), "first").expect("write");
    for round in 0..3u64 {
        let (whole, refused) = fill(&mnt, round);
        assert!(whole.len() > 50, "round {round}: only {} files fit", whole.len());
        assert!(refused.contains(&Errno::NOSPC), "{refused:?}");
        let others: Vec<_> = refused.iter().filter(|e| **e != Errno::NOSPC).collect();
        assert!(others.is_empty(), "a full pool answers {others:?}");
        for (name, seed, len) in &whole {
            assert!(std::fs::read(mnt.join(name)).expect("read") == Rng::new(*seed).bytes(*len), "{name} is damaged");
        }
        lab.check();
        if round == 1 {
            lab.kill9();
            lab.mount();
        }
        for entry in std::fs::read_dir(&mnt).expect("list") {
            let path = entry.expect("list").path();
            if path.is_dir() {
                std::fs::remove_dir_all(&path).expect("delete a directory on a full pool");
            } else if !path.ends_with("first") {
                std::fs::remove_file(&path).expect("delete on a full pool");
            }
        }
        lab.check();
    }
    assert_eq!(std::fs::read(mnt.join("first")).expect("read"), b"first");
    lab.umount();
    lab.check();
    Ok(())
}

/// The space of a removed file was once free only some milliseconds later: a write at once met a full pool.
fn room_at_once() -> Outcome {
    let lab = Lab::mounted("64M");
    let (big, next) = (lab.mnt().join("big"), lab.mnt().join("next"));
    for round in 0..20 {
        while let Ok(()) = append(&big, &[7; 1 << 16]) {}
        assert_eq!(append(&big, &[7; 1 << 16]), Err(Errno::NOSPC));
        std::fs::remove_file(&big).expect("delete on a full pool");
        write_new(&next, &[8; 1_000_000]).unwrap_or_else(|e| panic!("round {round}: {e}"));
        std::fs::remove_file(&next).expect("delete");
    }
    lab.umount();
    lab.check();
    Ok(())
}

fn append(path: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let written = OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|e| Errno::from_io_error(&e).expect("an errno"))
}

/// A request that found no space after a removal once waited in the one queue of its CPU, half a second each time.
fn others_go_on() -> Outcome {
    let lab = Lab::mounted("24M");
    let (big, dir) = (lab.mnt().join("big"), lab.mnt().join("dir"));
    let other = File::create(lab.mnt().join("other")).expect("create");
    while let Ok(()) = append(&big, &[7; 1 << 20]) {}
    let one_cpu = || {
        let mut cpus = CpuSet::new();
        cpus.set(0);
        sched_setaffinity(None, &cpus).expect("sched_setaffinity");
    };
    let stop = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        scope.spawn(|| {
            one_cpu();
            while !stop.load(Ordering::Relaxed) {
                std::fs::create_dir(&dir).and_then(|()| std::fs::remove_dir(&dir)).expect("a directory finds room");
                assert_eq!(append(&big, &[7; 1 << 20]), Err(Errno::NOSPC));
            }
        });
        let measured = scope.spawn(|| {
            one_cpu();
            std::thread::sleep(Duration::from_millis(100));
            let start = Instant::now();
            for _ in 0..50 {
                other.set_modified(std::time::SystemTime::now()).expect("utimens");
                std::thread::sleep(Duration::from_millis(1));
            }
            start.elapsed()
        });
        let took = measured.join();
        stop.store(true, Ordering::Relaxed);
        took.expect("the measurement")
    });
    assert!(took < Duration::from_secs(5), "50 requests took {took:?}");
    drop(other);
    lab.umount();
    lab.check();
    Ok(())
}

/// A large write is made in a copy. Without space for it, writes to reserved memory once failed, and stores through a
/// mapping were lost silently.
fn written_over() -> Outcome {
    const LEN: usize = 3 << 20;
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("24M");
        lab.mount_with(&format!("transport={transport}"));
        let path = lab.mnt().join("reserved");
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).expect("open");
        let file = open();
        fallocate(&file, FallocateFlags::empty(), 0, LEN as u64).expect("fallocate");
        fill(&lab.mnt(), 0);
        let mut want = vec![0; LEN];
        let new = Rng::new(1).bytes(1 << 20);
        for at in [0, 1 << 20, 12_345] {
            file.write_all_at(&new, at as u64).unwrap_or_else(|e| panic!("{transport}: at {at}: {e}"));
            want[at..at + new.len()].copy_from_slice(&new);
        }
        let mapping = Mapping::of(&file, LEN, ProtFlags::READ | ProtFlags::WRITE);
        for at in (0..LEN).step_by(512) {
            mapping.word(at).store(at as u64, Ordering::Relaxed);
            want[at..at + 8].copy_from_slice(&(at as u64).to_ne_bytes());
        }
        drop((mapping, file));
        assert!(append(&lab.mnt().join("more"), &[7; 1 << 16]).is_err(), "{transport}: the pool is not full");
        lab.umount();
        lab.mount();
        assert!(std::fs::read(&path).expect("read") == want, "{transport}");
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// A redo log that was deleted, replaced or cut short once took synced content as before, and after a power cut that
/// content was lost.
fn copy_taken_away() -> Outcome {
    type Harm = (&'static str, fn(&Path), &'static str);
    let harms: [Harm; 5] = [
        ("redo-0", |file| std::fs::remove_file(file).expect("delete"), "deleted"),
        ("redo-1", |file| std::fs::remove_file(file).expect("delete"), "deleted"),
        ("image", |file| std::fs::remove_file(file).expect("delete"), "deleted"),
        ("redo-1", |file| std::fs::write(file, "").expect("cut"), "cut short"),
        (
            "redo-0",
            |file| std::fs::rename(file.with_file_name("redo-1"), file).expect("replace"),
            "deleted or replaced",
        ),
    ];
    for (name, harm, reason) in harms {
        let lab = Lab::mounted("8M");
        write_new(&lab.mnt().join("before"), b"synced").expect("write");
        File::open(lab.mnt().join("before")).and_then(|f| f.sync_all()).expect("fsync");
        harm(&lab.path("pool").join(name));
        let after = File::create(lab.mnt().join("after")).expect("create");
        let e = after.sync_all().expect_err("nobody would find it after a power cut");
        assert_eq!(Errno::from_io_error(&e), Some(Errno::IO), "{name} {reason}");
        assert_eq!(write_new(&lab.mnt().join("more"), b""), Err(Errno::ROFS), "{name} {reason}");
        assert_eq!(std::fs::read(lab.mnt().join("before")).expect("read"), b"synced", "{name} {reason}");
        let log = std::fs::read_to_string(lab.path("pool/server.log")).unwrap_or_default();
        assert!(log.contains(name) && log.contains(reason), "{log}");
    }
    Ok(())
}

/// A message that could not be written once ended its thread, and callers that waited for this thread waited for ever.
fn full_disk() -> Outcome {
    const SIZE: usize = 3 << 20;
    let lab = Lab::on_small_disk("32M", "40M")?;
    lab.mount();
    let filler = lab.fill_disk();
    let (mut synced, mut refused) = (Vec::new(), Vec::new());
    for n in 0..6u64 {
        let path = lab.mnt().join(format!("f{n}"));
        let written = write_new(&path, &Rng::new(n).bytes(SIZE));
        let sync = |file: File| file.sync_all().map_err(|e| Errno::from_io_error(&e).expect("an errno"));
        match written.and_then(|()| sync(File::open(&path).expect("open"))) {
            Ok(()) => synced.push((n, path)),
            Err(e) => refused.push(e),
        }
    }
    // Either a waiting call got the error, or it was found in the background.
    assert!(!refused.is_empty() && refused.iter().all(|e| [Errno::NOSPC, Errno::IO].contains(e)), "{refused:?}");
    for (n, path) in &synced {
        assert!(std::fs::read(path).expect("read") == Rng::new(*n).bytes(SIZE), "f{n} is damaged");
    }
    assert!(lab.status()["backing"]["failure"].as_str().is_some_and(|why| why.contains("full")));
    std::fs::remove_file(filler).expect("remove");
    // Without a command: one that looks at the pool might find the room before the server.
    let log = || std::fs::read_to_string(lab.path("pool/server.log")).expect("the log");
    lab::wait_until(Duration::from_secs(30), "the pool goes on", || log().contains("room again"));
    assert!(lab.status()["backing"]["failure"].is_null());
    write_new(&lab.mnt().join("later"), b"room").expect("write");
    File::open(lab.mnt().join("later")).and_then(|file| file.sync_all()).expect("fsync");
    lab.ok(&["umount", &lab.text("mnt"), "--release"]);
    lab.mount();
    assert_eq!(std::fs::read(lab.mnt().join("later")).expect("read"), b"room");
    for (n, path) in &synced {
        assert!(std::fs::read(path).expect("read") == Rng::new(*n).bytes(SIZE), "f{n} is damaged");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// If the backing cannot be opened, the memory is saved all the same.
fn memory_alone() -> Outcome {
    let lab = Lab::mounted("16M");
    let (pool, mnt, image) = (lab.pool(), lab.text("mnt"), lab.text("saved"));
    write_new(&lab.mnt().join("file"), b"in memory").expect("write");
    let bind_read_only = || lab::ok(&mut program("mount", &["--bind", "-o", "ro", &pool, &pool]));
    let restored = |from: &str| {
        let (other, dir) = (lab.text("other"), lab.text("dir"));
        lab.ok(&["restore", &other, from]);
        std::fs::create_dir(&dir).expect("mkdir");
        lab.ok(&["mount", &other, &dir]);
        assert_eq!(std::fs::read(lab.path("dir/file")).expect("read"), b"in memory");
        lab.ok(&["umount", &dir, "--release"]);
        std::fs::remove_dir_all(&other).and_then(|()| std::fs::remove_dir(&dir)).expect("remove");
    };
    lab.umount();
    bind_read_only();
    let status = lab.run(&["status", &pool, "-v"]);
    assert!(
        status.code == 1 && status.out.contains("FAILED") && status.out.contains("nobody"),
        "{}{}",
        status.out,
        status.err
    );
    assert!(status.out.contains("ead-only"), "{}", status.out);
    let checked = lab.run(&["fsck", &pool, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&checked.out).expect("JSON");
    assert!(checked.code == 1 && report["problems"] == serde_json::json!([]), "{}{}", checked.out, checked.err);
    assert!(report["backing"]["failure"].as_str().is_some_and(|why| why.contains("ead-only")), "{report}");
    lab.refused(2, &["fsck", &pool, "--repair"], &["ead-only"]);
    lab.ok(&["save", &pool, &image]);
    lab::ok(&mut program("umount", &[&pool]));
    restored(&image);

    lab.mount();
    std::fs::remove_file(lab.path("pool/image")).expect("remove");
    lab.refused(1, &["save", &mnt, &image], &["image is missing", "works on the pool's memory", "unmount"]);
    lab.refused(1, &["umount", &mnt], &["its backing", "`conquest save"]);
    lab.refused(1, &["import", &pool], &["image is missing", "`conquest save"]);
    lab.ok(&["save", &pool, &image]);
    restored(&image);
    lab.ok(&["restore", &pool, &image, "--force"]);
    lab.mount();
    lab.umount();
    lab.check();
    let toml = lab.path("pool/pool.toml");
    let text = std::fs::read(&toml).expect("read");
    for lost in [|path: &Path| std::fs::remove_file(path), |path: &Path| std::fs::write(path, "")] {
        lost(&toml).expect("it was there");
        lab.refused(1, &["mount", &pool, &mnt], &["conquest save"]);
        lab.ok(&["save", &pool, &image]);
        restored(&image);
        assert!(lab.output(&["status", &pool, "-v"]).contains("nobody"));
        std::fs::write(&toml, &text).expect("write");
    }
    lab.mount();
    lab.umount();
    Ok(())
}

/// Writes files of all sizes, then smaller and smaller ones, directories, names; returns the files that were written
/// whole, and the refusals.
fn fill(mnt: &Path, round: u64) -> (Vec<(String, u64, usize)>, Vec<Errno>) {
    let mut rng = Rng::new(round);
    let (mut whole, mut refused) = (Vec::new(), Vec::new());
    for largest in [300_000u64, 10_000, 1000, 10] {
        let mut failures = 0;
        while failures < 3 {
            let (name, seed, len) =
                (format!("f{}", whole.len() + refused.len()), rng.next(), 1 + rng.below(largest) as usize);
            match write_new(&mnt.join(&name), &Rng::new(seed).bytes(len)) {
                Ok(()) => whole.push((name, seed, len)),
                Err(e) => {
                    failures += 1;
                    refused.push(e);
                }
            }
        }
    }
    let first = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let until_full = |f: &dyn Fn(u64) -> std::io::Result<()>| (0..200_000).find_map(|n| f(n).err()).map(first);
    refused.extend(until_full(&|n| std::fs::create_dir(mnt.join(format!("d{n}")))));
    refused.extend(until_full(&|n| std::os::unix::fs::symlink("t".repeat(200), mnt.join(format!("l{n}")))));
    (whole, refused)
}

/// Writes a file whole or, as far as the caller sees, not at all.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Errno> {
    let written = File::create_new(path).and_then(|mut f| f.write_all(bytes));
    written.map_err(|e| {
        let _ = std::fs::remove_file(path);
        Errno::from_io_error(&e).unwrap_or(Errno::IO)
    })
}

/// A truncated or flipped image is refused, and the existing pool stays.
fn damaged_image() -> Outcome {
    let sample = Sample::new();
    let (lab, pool, image) = (&sample.lab, sample.lab.pool(), sample.lab.text("image"));
    lab.ok(&["save", &pool, &image]);
    let good = std::fs::read(&image).expect("read");
    let mut rng = Rng::new(11);
    for n in 0..24 {
        if n < 8 {
            std::fs::write(&image, &good[..good.len() * n / 8]).expect("write");
        } else {
            std::fs::write(&image, &good).expect("write");
            let at = if n < 16 { rng.below(128) } else { rng.below(good.len() as u64) };
            let file = OpenOptions::new().write(true).open(&image).expect("open");
            file.write_all_at(&[good[at as usize] ^ 0x10], at).expect("flip");
        }
        lab.refused(1, &["restore", &pool, &image, "--force"], &["image"]);
        lab.refused(1, &["restore", &lab.text("new"), &image], &["image"]);
        assert!(!lab.path("new").exists(), "something came out of a damaged image");
    }
    sample.readable();
    std::fs::write(&image, &good).expect("write");
    lab.ok(&["restore", &lab.text("new"), &image]);
    sample.readable();
    Ok(())
}

/// The earlier image stays whole when the new one does not fit.
fn image_on_a_full_disk() -> Outcome {
    let sample = Sample::new();
    let (lab, disk) = (&sample.lab, sample.lab.text("disk"));
    std::fs::create_dir(&disk).expect("mkdir");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64K,mode=755", "none", &disk]).status();
    if !mounted.is_ok_and(|s| s.success()) {
        return Err(Skip("needs to mount a small tmpfs".into()));
    }
    let image = format!("{disk}/image");
    std::fs::write(&image, "the image of before").expect("write");
    lab.refused(1, &["save", &lab.pool(), &image], &["image"]);
    assert_eq!(std::fs::read(&image).expect("read"), b"the image of before");
    assert_eq!(std::fs::read_dir(&disk).expect("list").count(), 1, "half an image is left");
    sample.readable();
    Ok(())
}
