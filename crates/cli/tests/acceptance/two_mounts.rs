//! Several processes on one pool see the same files at once.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rng::Rng;

use crate::lab::{kill_and_wait, Lab};
use crate::settings::seed;
use crate::{tree, Outcome, Test};

pub const TESTS: &[Test] = &[
    ("two_mounts::changes_are_seen_at_once", changes_are_seen_at_once),
    ("two_mounts::writers_in_both_lose_nothing", writers_in_both_lose_nothing),
    ("two_mounts::the_death_of_one_leaves_the_other_working", death_of_one),
];

/// A lab whose pool is mounted at `mnt` and at `other`.
fn lab() -> Lab {
    let lab = Lab::mounted("256M");
    std::fs::create_dir(lab.path("other")).expect("mkdir");
    lab.mount_at(&lab.text("other"), "");
    lab
}

fn close(lab: &Lab) {
    lab.umount();
    lab.ok(&["umount", &lab.text("other")]);
    lab.check();
}

/// Names, attributes and content that one mount has cached are never older than what the other did.
fn changes_are_seen_at_once() -> Outcome {
    let lab = lab();
    let (here, there) = (lab.mnt().join("f"), lab.path("other/f"));
    for round in 0..300u64 {
        assert!(!there.exists(), "round {round}: a name that is not there");
        std::fs::write(&here, round.to_le_bytes()).expect("write");
        assert_eq!(std::fs::read(&there).expect("read"), round.to_le_bytes(), "round {round}: new content");
        let file = File::options().write(true).open(&there).expect("open");
        file.write_all_at(b"changed beyond", 4).expect("write");
        assert_eq!(here.metadata().expect("stat").len(), 18, "round {round}: new size");
        assert_eq!(std::fs::read(&here).expect("read")[4..], *b"changed beyond", "round {round}: changed content");
        let moved = lab.mnt().join("g");
        std::fs::rename(&there, lab.path("other/g")).expect("rename");
        assert!(!here.exists() && moved.exists(), "round {round}: renamed");
        std::fs::remove_file(&moved).expect("unlink");
    }
    close(&lab);
    Ok(())
}

/// Appends from both sides to the same files, atomically, and files of each side.
fn writers_in_both_lose_nothing() -> Outcome {
    let lab = lab();
    let sides = [lab.mnt(), lab.path("other")];
    std::thread::scope(|scope| {
        for (side, dir) in sides.iter().enumerate() {
            scope.spawn(move || write_side(dir, side as u64));
        }
    });
    let logs = ["log0", "log1"].map(|name| std::fs::read_to_string(lab.mnt().join(name)).expect("read"));
    let mut lines: Vec<&str> = logs.iter().flat_map(|log| log.lines()).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 2 * OPS as usize, "each appended line is there once");
    let (here, there) = (tree::describe(&sides[0]), tree::describe(&sides[1]));
    tree::assert_same(&here, &there, "the two mounts");
    close(&lab);
    Ok(())
}

const OPS: u64 = 1500;

fn write_side(dir: &Path, side: u64) {
    let mut rng = Rng::new(seed() ^ side);
    for op in 0..OPS {
        let log = dir.join(format!("log{}", rng.below(2)));
        let mut log = File::options().append(true).create(true).open(log).expect("open");
        // 32 bytes: the kernel may make two requests of what lies in two pages, and the other mount's may come between.
        log.write_all(format!("side {side} line {op:<19}\n").as_bytes()).expect("append");
        let file = dir.join(format!("{side}-{}", rng.below(50)));
        match rng.below(3) {
            0 => drop(std::fs::remove_file(&file)),
            _ => {
                let len = rng.below(9000) as usize;
                std::fs::write(&file, rng.bytes(len)).expect("write")
            }
        }
    }
}

fn death_of_one() -> Outcome {
    let lab = lab();
    std::fs::write(lab.mnt().join("f"), "before").expect("write");
    let other = lab.server_of(&lab.path("other")).expect("a server");
    kill_and_wait(other, rustix::process::Signal::KILL);
    std::fs::write(lab.mnt().join("g"), "after").expect("write");
    assert_eq!(std::fs::read(lab.mnt().join("f")).expect("read"), b"before");
    lab.check();
    lab.ok(&["umount", &lab.text("other")]);
    lab.mount_at(&lab.text("other"), "");
    assert_eq!(std::fs::read(lab.path("other/g")).expect("read"), b"after");
    close(&lab);
    Ok(())
}
