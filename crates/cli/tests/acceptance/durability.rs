//! Which changes are durable when, through a mount of a pool on ordinary RAM: by option, by inode, by fsync and O_SYNC.
//!
//! The pools commit once a day, so that only changes that a call waits for reach the backing. After each step a pool is
//! made from the backing alone, as after a power cut, and examined.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use crate::lab::{self, program, Lab};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("durability::a_strict_mount", strict_mount),
    ("durability::a_synchronous_mount", sync_mount),
    ("durability::fsync_and_synchronous_writes", fsync_mount),
    ("durability::syncfs_and_umount", syncfs_and_umount),
    ("durability::many_wait_at_once", many_wait),
    ("durability::a_strict_tree", strict_tree),
    ("durability::a_remount_changes_when", remount),
    ("durability::settings_are_carried_by_copies", carried),
    ("durability::nonsense_is_refused", nonsense),
    ("durability::memory_that_its_backing_has_left_behind", used_elsewhere),
    ("durability::memory_follows_its_disk", follows_its_disk),
    ("durability::what_programs_write_is_no_record", no_record),
];

const SETTING: &str = "user.conquest.durability";
const EFFECTIVE: &str = "user.conquest.effective.durability";

struct Pool {
    lab: Lab,
    cuts: Cell<u32>,
}

impl Pool {
    fn mounted(options: &str) -> Pool {
        Pool::of("8M", options)
    }

    fn of(size: &str, options: &str) -> Pool {
        let lab = Lab::new();
        lab.ok(&["format", &lab.pool(), "--nvram", size, "--commit", "86400"]);
        lab.mount_with(options);
        Pool { lab, cuts: Cell::new(0) }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.lab.mnt().join(name)
    }

    /// Examines the state that a power cut now would leave. Each time at another path: memory is found by the path of
    /// its backing.
    fn after_power_cut<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let number = self.cuts.replace(self.cuts.get() + 1);
        let (pool, mnt) = (self.lab.text(&format!("cut{number}")), self.lab.path(&format!("mnt{number}")));
        std::fs::create_dir(&pool).and_then(|()| std::fs::create_dir(&mnt)).expect("mkdir");
        for name in ["image", "redo-0", "redo-1", "pool.toml"] {
            std::fs::copy(self.lab.path("pool").join(name), Path::new(&pool).join(name)).expect("copy");
        }
        // The copy is sparse; no block that another copy names is overwritten.
        lab::ok(&mut program("cp", &["--sparse=always", &self.lab.text("pool/disk"), &pool]));
        let dir = mnt.to_string_lossy();
        self.lab.ok(&["mount", &pool, &dir]);
        let seen = look(&mnt);
        self.lab.ok(&["umount", &dir]);
        self.lab.ok(&["fsck", &pool]);
        seen
    }

    fn survives(&self, name: &str) -> bool {
        self.after_power_cut(|mnt| mnt.join(name).symlink_metadata().is_ok())
    }

    /// The length of a file after a power cut.
    fn len(&self, name: &str) -> Option<u64> {
        self.after_power_cut(|mnt| mnt.join(name).metadata().ok().map(|m| m.len()))
    }
}

fn get(path: &Path, name: &str) -> String {
    let said = program("getfattr", &["--only-values", "-n", name, &path.to_string_lossy()]).output().expect("getfattr");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

fn set(path: &Path, value: &str) {
    lab::ok(&mut program("setfattr", &["-n", SETTING, "-v", value, &path.to_string_lossy()]));
}

fn strict_mount() -> Outcome {
    lab::require("getfattr")?;
    let pool = Pool::mounted("durability=strict");
    std::fs::write(pool.path("written"), "all of it").expect("write");
    assert_eq!(pool.len("written"), Some(9));
    std::fs::create_dir(pool.path("dir")).expect("mkdir");
    assert!(pool.survives("dir"));
    std::fs::rename(pool.path("written"), pool.path("dir/renamed")).expect("rename");
    assert!(pool.survives("dir/renamed") && !pool.survives("written"));
    File::options().write(true).open(pool.path("dir/renamed")).and_then(|f| f.set_len(3)).expect("truncate");
    assert_eq!(pool.len("dir/renamed"), Some(3));
    std::fs::remove_file(pool.path("dir/renamed")).expect("unlink");
    assert!(!pool.survives("dir/renamed"));
    assert_eq!(get(&pool.path("dir"), SETTING), "");
    assert_eq!(get(&pool.path("dir"), EFFECTIVE), "strict");
    Ok(())
}

/// mount(8) has names for these options: the kernel applies them to writes alone.
fn sync_mount() -> Outcome {
    for options in ["sync", "dirsync"] {
        let pool = Pool::mounted(options);
        std::fs::create_dir(pool.path("dir")).expect("mkdir");
        assert!(pool.survives("dir"), "{options}");
        std::fs::rename(pool.path("dir"), pool.path("renamed")).expect("rename");
        assert!(pool.survives("renamed") && !pool.survives("dir"), "{options}");
    }
    Ok(())
}

fn fsync_mount() -> Outcome {
    let pool = Pool::mounted("");
    let file = File::create(pool.path("file")).expect("create");
    (&file).write_all(b"some").expect("write");
    assert!(!pool.survives("file"), "without fsync it is not waited for");
    file.sync_all().expect("fsync");
    assert_eq!(pool.len("file"), Some(4));
    (&file).write_all(b" more").expect("write");
    assert_eq!(pool.len("file"), Some(4));
    file.sync_data().expect("fdatasync");
    assert_eq!(pool.len("file"), Some(9));
    // A commit covers one instant: it contains earlier changes of other processes.
    std::fs::create_dir(pool.path("dir")).expect("mkdir");
    File::open(pool.lab.mnt()).and_then(|dir| dir.sync_all()).expect("fsync of a directory");
    assert!(pool.survives("dir"));
    for (name, flag) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let mut how = OpenOptions::new();
        let file = how.write(true).create(true).custom_flags(flag.bits() as i32).open(pool.path(name));
        // Several requests of the kernel, but one write.
        file.and_then(|mut f| f.write_all(&[7; 1_200_000])).expect("write");
        assert_eq!(pool.len(name), Some(1_200_000), "O_{name}");
    }
    Ok(())
}

/// Calls that name no file: the kernel passes them on if it takes the mount for that of a block device.
fn syncfs_and_umount() -> Outcome {
    let pool = Pool::mounted("");
    if !mounted_as(&pool.lab.mnt()).starts_with("fuseblk.") {
        return Err(Skip("needs Linux 6.18 and a loop device: nobody tells of `sync` here".into()));
    }
    let make = |name: &str| std::fs::write(pool.path(name), name).expect("write");
    make("first");
    assert!(!pool.survives("first"), "without it nobody waits");
    rustix::fs::syncfs(File::open(pool.lab.mnt()).expect("open")).expect("syncfs");
    assert!(pool.survives("first"), "after `syncfs`");
    make("second");
    lab::ok(&mut program("umount", &[&pool.lab.text("mnt")]));
    assert!(pool.survives("second"), "after `umount` of mount(8)");
    Ok(())
}

/// The type that the mount table shows.
fn mounted_as(dir: &Path) -> String {
    let shown = program("findmnt", &["-n", "-o", "FSTYPE", &dir.to_string_lossy()]).output().expect("findmnt");
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// More callers than a queue of the mount has entries for waiting replies.
fn many_wait() -> Outcome {
    const CALLERS: usize = 160;
    for transport in ["uring", "dev"] {
        let pool = Pool::of("128M", &format!("transport={transport}"));
        // The first commit takes long enough for all other callers to come.
        std::fs::write(pool.path("much"), vec![7; 64 << 20]).expect("write");
        let start = std::sync::Barrier::new(CALLERS);
        std::thread::scope(|scope| {
            for n in 0..CALLERS {
                let (path, start) = (pool.path(&format!("f{n}")), &start);
                scope.spawn(move || {
                    start.wait();
                    for round in 0..10u8 {
                        let mut file = File::create(&path).expect("create");
                        file.write_all(&[round]).expect("write");
                        file.sync_all().expect("fsync");
                    }
                });
            }
        });
        let whole = |mnt: &Path| (0..CALLERS).all(|n| std::fs::read(mnt.join(format!("f{n}"))).expect("read") == [9]);
        assert!(whole(&pool.lab.mnt()) && pool.after_power_cut(whole), "over {transport}");
    }
    Ok(())
}

fn strict_tree() -> Outcome {
    lab::require("setfattr")?;
    let pool = Pool::mounted("durability=fsync");
    std::fs::create_dir(pool.path("tree")).expect("mkdir");
    set(&pool.path("tree"), "strict");
    assert!(pool.survives("tree"));
    std::fs::create_dir(pool.path("tree/below")).expect("mkdir");
    std::fs::write(pool.path("tree/below/file"), "text").expect("write");
    assert_eq!(pool.len("tree/below/file"), Some(4));
    assert_eq!(get(&pool.path("tree/below/file"), SETTING), "strict");
    std::fs::write(pool.path("beside"), "text").expect("write");
    assert!(!pool.survives("beside"));
    // A move into a strict directory waits, and so does a move out of one.
    std::fs::rename(pool.path("beside"), pool.path("tree/in")).expect("rename");
    assert!(pool.survives("tree/in"));
    std::fs::rename(pool.path("tree/in"), pool.path("out")).expect("rename");
    assert!(pool.survives("out"));
    let refused =
        program("setfattr", &["-n", SETTING, "-v", "sometimes", &pool.path("out").to_string_lossy()]).output();
    assert!(!refused.expect("setfattr").status.success());
    lab::ok(program("setfattr", &["-x", SETTING]).arg(pool.path("tree/below")));
    assert_eq!(
        (get(&pool.path("tree/below"), SETTING), get(&pool.path("tree/below"), EFFECTIVE)),
        ("".into(), "fsync".into())
    );
    std::fs::write(pool.path("tree/below/late"), "text").expect("write");
    assert!(!pool.survives("tree/below/late"));
    Ok(())
}

/// Remounts while files are open, by mount(8) and by the command.
fn remount() -> Outcome {
    let pool = Pool::mounted("");
    pool.lab.install_helpers()?;
    let (dir, mnt) = (pool.lab.pool(), pool.lab.text("mnt"));
    let mut file = File::create(pool.path("file")).expect("create");
    let terms = || {
        let session = pool.lab.status()["sessions"][0].clone();
        (session["durability"].as_str().expect("text").to_string(), session["commit"].as_f64().expect("seconds"))
    };
    assert_eq!(terms(), ("fsync".into(), 86_400.0));
    lab::ok(&mut program("mount", &["-o", "remount,durability=strict", &mnt]));
    assert_eq!(terms(), ("strict".into(), 86_400.0));
    for (option, durability) in [
        ("async", "strict"),
        ("sync", "strict"),
        ("async", "fsync"),
        ("noexec", "fsync"),
        ("dirsync", "strict"),
        ("exec", "strict"),
    ] {
        lab::ok(&mut program("mount", &["-o", &format!("remount,{option}"), &mnt]));
        assert_eq!(terms().0, durability, "{option}");
    }
    file.write_all(b"some").expect("write");
    assert_eq!(pool.len("file"), Some(4), "it is waited for");
    // Options that are not named stay, both the kernel's and the server's.
    lab::ok(&mut program("mount", &["-o", "remount,noatime", &mnt]));
    assert_eq!(terms().0, "strict");
    pool.lab.ok(&["mount", &dir, &mnt, "-o", "remount,durability=fsync"]);
    assert_eq!(terms(), ("fsync".into(), 86_400.0));
    file.write_all(b" more").expect("write");
    assert_eq!(pool.len("file"), Some(4), "it is not");
    pool.lab.ok(&["mount", &dir, &mnt, "-o", "remount,commit=0.05"]);
    assert_eq!(terms(), ("fsync".into(), 0.05));
    let status = pool.lab.status()["backing"].clone();
    assert_eq!((status["interval"].as_f64(), status["pool_interval"].as_f64()), (Some(0.05), Some(86_400.0)));
    lab::wait_until(Duration::from_secs(20), "it is committed", || pool.len("file") == Some(9));
    let said = pool.lab.output(&["status", &mnt, "-v"]);
    assert!(said.contains("durability fsync, commits every 0.05 s") && said.contains("; every 0.05 s"), "{said}");

    let other = match pool.lab.status()["sessions"][0]["transport"].as_str() {
        Some("io_uring") => "dev",
        _ => "uring",
    };
    for (option, code, words) in [
        ("save=/no/such/image", 1, ["save=", "cannot be changed"]),
        (&format!("transport={other}"), 1, ["transport=", "cannot be changed"]),
        ("commit=0", 2, ["commit=0", "0.01 to 86400"]),
        ("durability=never", 2, ["never", "`strict` or `fsync`"]),
    ] {
        pool.lab.refused(code, &["mount", &dir, &mnt, "-o", &format!("remount,durability=strict,{option}")], &words);
    }
    assert_eq!(terms().0, "fsync", "what is refused changes nothing");
    pool.lab.refused(1, &["mount", &pool.lab.text("cut1"), &mnt, "-o", "remount,ro"], &["another pool"]);
    drop(file);
    pool.lab.umount();
    pool.lab.refused(1, &["mount", &dir, &mnt, "-o", "remount,commit=1"], &["no pool is mounted"]);
    // An option may be named with its present value, as in a line of fstab.
    let save = format!("save={}", pool.lab.text("image"));
    pool.lab.mount_with(&save);
    lab::ok(&mut program("mount", &["-o", &format!("remount,{save},commit=3,transport=auto"), &mnt]));
    assert_eq!(terms(), ("fsync".into(), 3.0));
    pool.lab.kill9();
    // If there is no server, a remount mounts again.
    pool.lab.ok(&["mount", &dir, &mnt, "-o", "remount,commit=1"]);
    assert_eq!(terms(), ("fsync".into(), 1.0));
    pool.lab.umount();
    Ok(())
}

fn carried() -> Outcome {
    for name in ["setfattr", "getfattr", "rsync"] {
        lab::require(name)?;
    }
    let pool = Pool::mounted("");
    std::fs::create_dir(pool.path("from")).expect("mkdir");
    set(&pool.path("from"), "strict");
    std::fs::write(pool.path("from/strict"), "text").expect("write");
    std::fs::write(pool.path("from/fsync"), "text").expect("write");
    set(&pool.path("from/fsync"), "fsync");
    let text = |name: &str| pool.path(name).to_string_lossy().into_owned();
    lab::ok(&mut program("cp", &["-a", &text("from"), &text("cp")]));
    lab::ok(&mut program("rsync", &["-aX", &format!("{}/", text("from")), &text("rsync")]));
    for copy in ["cp", "rsync"] {
        for (name, value) in [("", "strict"), ("strict", "strict"), ("fsync", "fsync")] {
            assert_eq!(get(&pool.path(copy).join(name), SETTING), value, "{copy}/{name}");
        }
    }
    Ok(())
}

fn nonsense() -> Outcome {
    let lab = Lab::with_pool("8M");
    let (pool, mnt, new) = (lab.pool(), lab.text("mnt"), lab.text("new"));
    for (option, words) in [
        ("durability=sometimes", ["sometimes", "`strict` or `fsync`"]),
        ("durability", ["durability=", "`strict` or `fsync`"]),
        ("commit=0", ["commit=0", "0.01 to 86400"]),
        ("commit=-1", ["commit=-1", "0.01 to 86400"]),
        ("commit=soon", ["`soon`", "seconds"]),
    ] {
        lab.refused(2, &["mount", &pool, &mnt, "-o", option], &words);
    }
    lab.refused(2, &["format", &new, "--commit", "0"], &["0.01 to 86400"]);
    lab.refused(2, &["format", &new, "--commit", "often"], &["`often`"]);
    lab.refused(2, &["format", &new, "--medium", "battery", "--backing", "none", "--commit", "9"], &["--backing none"]);
    lab.refused(2, &["format", &new, "--rate", "0"], &["64 KiB to 1 TiB"]);
    lab.refused(2, &["format", &new, "--rate", "fast"], &["`fast`", "64M"]);
    // `--copy` is the former name of `--backing`.
    for place in [["--backing", "none"], ["--copy", "none"], ["--mirror", &new]] {
        let args = ["format", &new, "--medium", "battery", "--rate", "1M", place[0], place[1]];
        lab.refused(2, &args, &["--rate", "nobody waits"]);
    }
    assert!(!lab.path("new").exists());
    lab.ok(&["format", &new, "--nvram", "8M", "--rate", "1.5M/s"]);
    assert!(lab.output(&["status", &new, "-v"]).contains("at most 1.5 MiB a second"));
    assert!(lab.output(&["status", &new, "--json"]).contains("\"rate\": 1572864"));
    Ok(())
}

/// Runs `conquest ARGS` where the pool has no memory, as in another container.
const ELSEWHERE: &str =
    "set -e; mkdir -p \"$1/shm\"; mount -t tmpfs none \"$1/shm\"; own=\"$1/shm/${1##*/}\"; mkdir \"$own\"; \
     mount --rbind \"$1\" \"$own\"; mount --rbind \"$1/shm\" /dev/shm; cd \"$1\"; ./conquest mount pool mnt; \
     echo there >\"mnt/$2\"; sync \"mnt/$2\"; ./conquest umount mnt";

/// Another container uses the pool with memory of its own, while no process uses it here.
fn used_elsewhere() -> Outcome {
    lab::require("unshare")?;
    let pool = Pool::mounted("");
    let lab = &pool.lab;
    let elsewhere = |name: &str| {
        let args = ["--mount", "--propagation", "private", "sh", "-c", ELSEWHERE, "sh", &lab.text("."), name];
        let args = args.map(|arg| arg.trim_end_matches("/."));
        lab::ok(&mut program("unshare", &args));
    };
    std::fs::write(pool.path("here"), "here").expect("write");
    lab.umount();
    elsewhere("first");
    lab.mount();
    assert_eq!(std::fs::read(pool.path("first")).expect("made elsewhere"), b"there\n");
    assert_eq!(std::fs::read(pool.path("here")).expect("made here"), b"here");

    // Now each side has changes that the other lacks: neither is dropped unasked.
    std::fs::write(pool.path("only here"), "here").expect("write");
    lab.kill9();
    lab.umount();
    elsewhere("second");
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["used without this memory", "move the memory"]);
    Ok(())
}

/// The disk of the pool returns with another device number, and names of memory contain that number.
fn follows_its_disk() -> Outcome {
    let pool = Pool::mounted("");
    let lab = &pool.lab;
    std::fs::write(pool.path("kept"), "not synced").expect("write");
    lab.kill9();
    lab.umount();
    let ours = |name: &str| name.ends_with("-region") || name.ends_with("-marks");
    for file in lab::memory_of(Path::new(&lab.pool())).into_iter().filter(|file| ours(&file.to_string_lossy())) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let mut parts: Vec<&str> = name.split('-').collect();
        parts[2] = "7fff";
        std::fs::rename(&file, file.with_file_name(parts.join("-"))).expect("rename");
    }
    lab.mount();
    assert_eq!(std::fs::read(pool.path("kept")).expect("it is there"), b"not synced");
    lab.umount();
    lab.check();
    Ok(())
}

/// A file full of bytes that would be records of the redo log, if records were recognised by less than a number that
/// cannot be guessed.
fn no_record() -> Outcome {
    let pool = Pool::of("32M", "");
    let sector = |generation: u64, commit: u64| {
        let mut raw = [0u8; 64];
        raw[..4].copy_from_slice(b"CQRL");
        raw[8..16].copy_from_slice(&generation.to_le_bytes());
        raw[16..24].copy_from_slice(&commit.to_le_bytes());
        raw[32..36].copy_from_slice(&64u32.to_le_bytes());
        raw[48..52].copy_from_slice(&1u32.to_le_bytes());
        let crc = crc32c::crc32c(&raw[8..]);
        raw[4..8].copy_from_slice(&crc.to_le_bytes());
        raw
    };
    // At every offset in a sector.
    let evil: Vec<u8> = (0..8u64).flat_map(|n| sector(1 + n % 4, 1 << 40)).collect::<Vec<u8>>().repeat(4096);
    for _ in 0..8 {
        let file = File::create(pool.path("evil")).expect("create");
        (&file).write_all(&evil).expect("write");
        file.sync_all().expect("fsync");
        assert_eq!(pool.len("evil"), Some(evil.len() as u64));
    }
    Ok(())
}
