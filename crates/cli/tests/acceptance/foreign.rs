//! Pool directories that another user made: a command that works on one does no harm for that user.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::lab::{self, Lab, NOBODY};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("foreign::no_verb_does_what_another_users_directory_says", no_tool),
    ("foreign::a_directory_that_others_may_write_is_refused", writable),
    ("foreign::what_lies_in_another_users_directory_is_refused", media),
    ("foreign::a_volume_of_another_user_is_refused", volume),
    ("foreign::disks_are_read_by_their_owner_alone", private),
];

const USER: u32 = 65534;

/// All commands that take a pool, as an operator writes them.
fn verbs(pool: &str, mnt: &str, spare: &str) -> Vec<Vec<String>> {
    let lines = [
        "status POOL",
        "status POOL --json",
        "fsck POOL",
        "region list POOL",
        "region check POOL 0",
        "list",
        "fsck POOL --repair",
        "fsck POOL --zero-lost",
        "mount POOL MNT",
        "mount POOL MNT --foreground",
        "up MNT",
        "release POOL",
        "resize POOL --nvram 64M",
        "save POOL SPARE",
        "scrub POOL",
        "pack POOL --now",
        "region add POOL SPARE:32M",
        "region remove POOL 0",
        "region remove POOL 0 --force",
        "region readmit POOL 0",
        "region replace POOL 0 SPARE",
        "region domain POOL shelf 0",
        "region balance POOL",
        "import POOL",
        "import POOL --force",
        "umount POOL",
        "umount POOL --release",
        "destroy POOL",
        "format POOL --nvram 16M",
        "format POOL --nvram 16M --force",
    ];
    let word = |word: &str| match word {
        "POOL" => pool.to_string(),
        "MNT" => mnt.to_string(),
        word => word.replace("SPARE", spare),
    };
    lines.iter().map(|line| line.split(' ').map(word).collect()).collect()
}

/// Each file below `dir`: its mode, owner, group and content.
fn all_below(dir: &Path) -> BTreeMap<PathBuf, (u32, u32, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).expect("it is there");
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).expect("a directory").flatten().map(|entry| entry.path()));
        }
        let text = if meta.is_file() { fs::read(&path).expect("read") } else { Vec::new() };
        found.insert(path, (meta.mode(), meta.uid(), meta.ino(), text));
    }
    found
}

fn give_away(dir: &Path) {
    for path in all_below(dir).into_keys() {
        std::os::unix::fs::lchown(path, Some(USER), Some(USER)).expect("chown");
    }
}

fn toml(victim: &str, given: bool) -> String {
    format!(
        "version = 1\nuuid = \"01234567-89ab-cdef-0123-456789abcdef\"\nmedium = \"battery\"\nnvram = \"{victim}/precious\"\ncopy = \
         \"{victim}/pool\"\n\n[[disk]]\npath = \"{victim}/disk\"\nsize = 16777216\ngiven = {given}\nregion = 0\n"
    )
}

/// Directories, each with another harmful text.
fn hostile(dir: &Path, victim: &str) -> Vec<PathBuf> {
    let make = |name: &str, files: &[(&str, String)]| {
        let pool = dir.join(name);
        fs::create_dir(&pool).expect("mkdir");
        for (file, text) in files {
            let file = pool.join(file);
            fs::create_dir_all(file.parent().expect("a directory")).expect("mkdir");
            fs::write(file, text).expect("written");
        }
        pool
    };
    let (own, given) = (toml(victim, false), toml(victim, true));
    let labels = "x".repeat(1 << 20);
    vec![
        make("swap-removes", &[("pool.toml", own.clone()), (".restored-whole/pool.toml", given.clone())]),
        make("swap-writes", &[(".restored-whole/pool.toml", given.clone()), (".restored-whole/disk-0", labels)]),
        make("destroyed", &[("pool.toml.destroyed", own.clone())]),
        make("staging", &[("pool.toml", own.clone()), (".restored/pool.toml", own.clone())]),
        make("pool", &[("pool.toml", own)]),
        make("given", &[("pool.toml", given)]),
    ]
}

fn with_victims() -> Lab {
    let lab = Lab::new();
    fs::create_dir(lab.path("victim")).expect("mkdir");
    for name in ["precious", "disk", "pool/image", "pool/redo-0", "pool/redo-1"] {
        let file = lab.path("victim").join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("mkdir");
        fs::write(&file, format!("precious {name}").repeat(1 << 10)).expect("written");
    }
    lab
}

/// `conquest status DIR` by root once completed actions that files of another user declared interrupted. It deleted any
/// file named as a disk, wrote to any file, and deleted another pool's backing.
fn no_tool() -> Outcome {
    let lab = with_victims();
    let theirs = lab.path("theirs");
    fs::create_dir(&theirs).expect("mkdir");
    let pools = hostile(&theirs, &lab.text("victim"));
    symlink(lab.path("victim/precious"), theirs.join("pool/server.log")).expect("a link");
    give_away(&theirs);
    let look = || (all_below(&lab.path("victim")), all_below(&theirs));
    let before = look();
    for pool in &pools {
        for verb in verbs(&pool.to_string_lossy(), &lab.text("mnt"), &lab.text("spare")) {
            let words: Vec<&str> = verb.iter().map(String::as_str).collect();
            let ran = lab.run_as(&["env", &format!("CONQUEST_POOL={}", pool.display())], &words);
            assert!(look() == before, "{words:?} changed something: {}{}", ran.out, ran.err);
            assert!(!lab.path("spare").exists(), "{words:?} made something");
            if words != ["list"] && !words[0].starts_with("umount") {
                assert_ne!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
            }
        }
    }
    let status = lab.run(&["status", &pools[4].to_string_lossy(), "-v"]);
    status.is_refusal(2, &["belongs to user 65534", "as that user"], "who looks");
    Ok(())
}

/// The directory need not belong to the user: write permission is enough to change the pool's files.
fn writable() -> Outcome {
    let lab = Lab::with_pool("16M");
    let pool = lab.path("pool");
    for (path, mode, usual) in [("pool", 0o777, 0o755), ("pool", 0o1777, 0o755), ("pool/pool.toml", 0o666, 0o644)] {
        fs::set_permissions(lab.path(path), fs::Permissions::from_mode(mode)).expect("chmod");
        let before = all_below(&pool);
        for args in [["status", &lab.pool()], ["destroy", &lab.pool()], ["fsck", &lab.pool()]] {
            let ran = lab.run(&args);
            assert!(ran.code != 0 && ran.err.contains("chmod go-w"), "{args:?}: {}", ran.err);
        }
        assert!(all_below(&pool) == before);
        fs::set_permissions(lab.path(path), fs::Permissions::from_mode(usual)).expect("chmod");
    }
    lab.ok(&["status", &lab.pool(), "-v"]);
    Ok(())
}

/// The directory belongs to root, and names files that do not.
fn media() -> Outcome {
    let lab = Lab::new();
    let theirs = lab.path("theirs");
    fs::create_dir(&theirs).expect("mkdir");
    fs::File::create(theirs.join("disk")).and_then(|disk| disk.set_len(32 << 20)).expect("a disk");
    give_away(&theirs);
    let named = theirs.join("disk").to_string_lossy().into_owned();
    let ran = lab.run(&["format", &lab.pool(), "--nvram", "16M", "--disk", &named]);
    ran.is_refusal(1, &["belongs to user 65534"], "a disk in a directory of another user");
    assert!(!lab.path("pool").exists());
    fs::File::create(lab.path("disk")).and_then(|disk| disk.set_len(32 << 20)).expect("a disk");
    lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--disk", &lab.text("disk")]);
    chown(lab.path("disk"), Some(USER), Some(USER)).expect("chown");
    for (code, verb) in [(2, "status"), (1, "destroy"), (1, "release")] {
        lab.run(&[verb, &lab.pool()]).is_refusal(code, &["belongs to user 65534"], "what it names");
    }
    chown(lab.path("disk"), Some(0), Some(0)).expect("chown");
    lab.ok(&["destroy", &lab.pool()]);
    Ok(())
}

fn volume() -> Outcome {
    let lab = with_victims();
    let volume = lab.path("volume");
    fs::create_dir(&volume).expect("mkdir");
    let disk = lab.text("victim/disk");
    let text = format!(
        "version = 1\nuuid = \"01234567-89ab-cdef-0123-456789abcdef\"\n\n[[region]]\nkind = \"single\"\ndisks = [\"{disk}\"]\n"
    );
    fs::write(volume.join("volume.toml"), text).expect("written");
    give_away(&volume);
    let look = || (all_below(&lab.path("victim")), all_below(&volume));
    let before = look();
    let (volume, mnt) = (lab.text("volume"), lab.text("mnt"));
    for args in
        [&["status", &volume][..], &["mount", &volume, &mnt], &["destroy", &volume], &["replace", &volume, &disk]]
    {
        let ran = lab.run(&[&["export"], args].concat());
        assert!(ran.code != 0 && ran.err.contains("belongs to user 65534"), "{args:?}: {}", ran.err);
        assert!(look() == before, "{args:?}");
    }
    Ok(())
}

/// Any user who could read a disk could read files of mode 0600 from it.
fn private() -> Outcome {
    lab::require("setpriv")?;
    let lab = Lab::new();
    let disk = |name: &str| {
        fs::File::create(lab.path(name)).and_then(|disk| disk.set_len(32 << 20)).expect("a disk");
        fs::set_permissions(lab.path(name), fs::Permissions::from_mode(0o664)).expect("chmod");
        lab.text(name)
    };
    lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--disk", &disk("first")]);
    lab.ok(&["region", "add", &lab.pool(), &disk("second"), &format!("mirror:{},{}", disk("third"), disk("fourth"))]);
    lab.ok(&["region", "replace", &lab.pool(), &lab.text("third"), &disk("fifth")]);
    for name in ["first", "second", "third", "fourth", "fifth"] {
        let mode = fs::metadata(lab.path(name)).expect("a disk").mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    lab.ok(&["export", "make", &lab.text("volume"), &disk("sixth")]);
    assert_eq!(fs::metadata(lab.path("sixth")).expect("a disk").mode() & 0o777, 0o600);
    lab.ok(&["destroy", &lab.pool()]);
    // Nothing changes for an ordinary user's pool.
    fs::create_dir(lab.path("home")).expect("mkdir");
    chown(lab.path("home"), Some(USER), Some(USER)).expect("chown");
    for args in
        [&["format", &lab.text("home/pool"), "--nvram", "16M"][..], &["status", &lab.text("home/pool")], &["list"]]
    {
        let ran = lab.run_as(&NOBODY, args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    }
    let destroyed = lab.run_as(&NOBODY, &["destroy", &lab.text("home/pool")]);
    assert_eq!(destroyed.code, 0, "{}", destroyed.err);
    Ok(())
}
