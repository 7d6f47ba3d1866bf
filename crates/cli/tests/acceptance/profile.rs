//! What a tree would gain, told without changing it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::lab::{write_seeded, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] =
    &[("profile::a_tree_is_studied_and_left_alone", studied), ("profile::what_cannot_be_studied_is_told", refused)];

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
    let before = fs::metadata(tree.join("directory-3/text-3")).expect("a file").modified().ok();
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
    // The tree, 12 directories, and in each 20 texts, noise and a link; the further name is no inode.
    assert_eq!(json["inodes"], 1 + 12 * 23);
    let estimate = &json["estimate"];
    let bytes = |name: &str| estimate[name].as_f64().expect("a number");
    assert!(bytes("inode") < 40.0 && bytes("packed") < bytes("plain"), "{estimate}");
    let saved = |name: &str| {
        let table = json["tables"].as_array().expect("tables").iter().find(|t| t["id"] == "profile-data");
        let rows = table.expect("of data")["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row[0] == name).expect("a codec");
        row[1].as_str().and_then(|share| share.strip_suffix(" %")?.parse::<f64>().ok()).expect("a share")
    };
    // Noise takes a good half of the bytes, and stays.
    assert!((20.0..80.0).contains(&saved("lz4")), "{}", saved("lz4"));
    let bytes = fs::read(&profile).expect("the profile");
    assert!(::fs::packed::Profile::from_bytes(&bytes).is_some());
    assert!(fs::read_to_string(Path::new(&plots).join("profile-fields.svg")).expect("a plot").contains("<svg"));
    assert_eq!(fs::metadata(tree.join("directory-3/text-3")).expect("a file").modified().ok(), before);
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
