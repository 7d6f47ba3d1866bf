//! The savings of a tree, measured without changing it.

use std::fs::{self, FileTimes, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::lab::{self, program, write_seeded, Lab, NOBODY};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("profile::a_tree_is_studied_and_left_alone", studied),
    ("profile::what_cannot_be_studied_is_reported", refused),
    ("profile::what_is_left_out_is_counted", left_out),
];

/// Directories with text, noise, links and a file with two names.
fn plant(dir: &Path) {
    for d in 0..12 {
        let below = dir.join(format!("directory-{d}"));
        fs::create_dir_all(&below).expect("a directory");
        for f in 0..20 {
            let text = format!("line {f} of {d}, much like the others\n").repeat(20 + 7 * f);
            fs::write(below.join(format!("text-{f}")), text).expect("a file");
        }
        write_seeded(&below.join("noise"), d, 20_000);
        symlink("text-1", below.join("link")).expect("a link");
    }
    fs::hard_link(dir.join("directory-0/text-0"), dir.join("again")).expect("a name");
}

fn studied() -> Outcome {
    let lab = Lab::new();
    let tree = lab.path("tree");
    plant(&tree);
    // The access time lies long before the write: a read would change it.
    let times = FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(99));
    let accessed = |name: &str| fs::metadata(tree.join(name)).expect("a file").accessed().expect("a time");
    for name in ["directory-3/text-3", "directory-3"] {
        fs::File::open(tree.join(name)).and_then(|file| file.set_times(times)).expect("times");
    }
    let (profile, plots) = (lab.text("own.profile"), lab.text("plots"));
    let tree_text = tree.to_str().expect("text");
    let text = lab.ok(&["profile", tree_text]);
    for part in
        ["Table 3.1", "Table 3.2", "Table 3.3", "Table 4.1", "Figure 3.2", "Figure 4.3", "A pool with this tree"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = lab.ok(&["profile", tree_text, "--json", "-o", &profile, "--plot", &plots]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    // The tree, 12 directories, and in each 20 texts, noise and a link; a second name is no inode.
    assert_eq!(json["inodes"], 1 + 12 * 23);
    let estimate = &json["estimate"];
    let bytes = |name: &str| estimate[name].as_f64().expect("a number");
    assert!(bytes("inode") < 40.0 && bytes("packed") < bytes("plain"), "{estimate}");
    let saved = |name: &str| {
        let table = json["tables"].as_array().expect("tables").iter().find(|t| t["id"] == "profile-data");
        let rows = table.expect("of data")["table"]["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row[0] == name).expect("a codec");
        row[1].as_str().and_then(|share| share.strip_suffix(" %")?.parse::<f64>().ok()).expect("a share")
    };
    // Noise takes a good half of the bytes, and stays.
    assert!((20.0..80.0).contains(&saved("lz4")), "{}", saved("lz4"));
    let bytes = fs::read(&profile).expect("the profile");
    let pool = lab.pool();
    lab.refused(1, &["format", &pool, "--nvram", "16M", "--disk", "none", "--profile", "/bin/sh"], &["is no profile"]);
    assert!(!Path::new(&pool).exists(), "nothing is made before its profile is read");
    lab.ok(&["format", &pool, "--nvram", "16M", "--disk", "none", "--profile", &profile]);
    assert_eq!(lab.open().profiles().expect("an answer"), 2, "beside the one that comes with the program");
    assert!(conquest_fs::packed::Profile::from_bytes(&bytes).is_some());
    assert!(fs::read_to_string(Path::new(&plots).join("profile-fields.svg")).expect("a plot").contains("<svg"));
    for name in ["directory-3/text-3", "directory-3"] {
        assert_eq!(accessed(name), UNIX_EPOCH + Duration::from_secs(99), "{name} was left alone");
    }
    Ok(())
}

fn inodes(json: &str) -> u64 {
    serde_json::from_str::<serde_json::Value>(json).expect("JSON")["inodes"].as_u64().expect("a number")
}

fn left_out() -> Outcome {
    lab::require("setpriv")?;
    let lab = Lab::new();
    let tree = lab.path("tree");
    plant(&tree);
    let tree_text = tree.to_str().expect("text");
    let all = inodes(&lab.ok(&["profile", tree_text, "--json", "--sample", "0"]));
    // A file that another user may not read, and a directory that he may not list.
    fs::set_permissions(tree.join("directory-1/text-1"), Permissions::from_mode(0o600)).expect("chmod");
    fs::set_permissions(tree.join("directory-2"), Permissions::from_mode(0o700)).expect("chmod");
    let ran = lab.run_as(&NOBODY, &["profile", tree_text]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in
        ["1 small files could not be read", "1 entries could not be looked at", "directory-2: Permission denied"]
    {
        assert!(ran.out.contains(part), "{part} in {}", ran.out);
    }
    ran_on_another(&lab, tree_text, all)
}

/// Another file system in the tree: a part of it, unless it is excluded.
fn ran_on_another(lab: &Lab, tree: &str, all: u64) -> Outcome {
    let other = format!("{tree}/directory-3/other");
    fs::create_dir(&other).expect("a directory");
    if !program("mount", &["-t", "tmpfs", "none", &other]).status().is_ok_and(|s| s.success()) {
        return Err(Skip("needs to mount a small tmpfs".into()));
    }
    fs::write(format!("{other}/file"), "text").expect("a file");
    assert_eq!(inodes(&lab.ok(&["profile", tree, "--json", "--sample", "0"])), all + 2);
    let json = lab.ok(&["profile", "-x", tree, "--json", "--sample", "0"]);
    assert_eq!(inodes(&json), all);
    assert!(json.contains("1 entries on other file systems were left out"), "{json}");
    Ok(())
}

fn refused() -> Outcome {
    let lab = Lab::new();
    fs::create_dir(lab.path("empty")).expect("a directory");
    fs::write(lab.path("file"), "x").expect("a file");
    lab.refused(1, &["profile", &lab.text("nowhere")], &["cannot look at", "nowhere", "No such file"]);
    lab.refused(1, &["profile", &lab.text("file")], &["is no directory"]);
    lab.refused(1, &["profile", &lab.text("empty")], &["has nothing in it"]);
    lab.refused(2, &["profile"], &["DIR"]);
    plant(&lab.path("tree"));
    lab.refused(1, &["profile", &lab.text("tree"), "-o", &lab.text("nowhere/x")], &["cannot write", "nowhere/x"]);
    Ok(())
}
