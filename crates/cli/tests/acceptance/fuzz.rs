//! Flipped bytes anywhere in the memory: never a crash, a hang or a panic; fsck reports or repairs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use rng::Rng;

use crate::lab::{write_seeded, Lab};
use crate::settings::{number, seed};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("fuzz::flipped_bytes_never_crash_fsck", flips),
    ("fuzz::a_damaged_pool_can_be_mounted_and_read_without_harm", flips_mounted),
];

/// A closed pool with every kind of file, and the positions of bytes in its memory that are not zero.
fn sample() -> (Lab, Vec<u8>, Vec<usize>) {
    let lab = Lab::with_file("16M");
    lab.mount();
    let mnt = lab.mnt();
    for n in 0..300u64 {
        write_seeded(&mnt.join(format!("file-with-a-name-{n}")), n, (n * 37 % 300) as usize);
    }
    for n in 0..30 {
        std::fs::create_dir_all(mnt.join(format!("d{n}/e/f"))).expect("mkdir");
        std::os::unix::fs::symlink("x".repeat(n * 9 + 1), mnt.join(format!("link{n}"))).expect("symlink");
        std::fs::hard_link(mnt.join(format!("file-with-a-name-{n}")), mnt.join(format!("d{n}/hard"))).expect("link");
        let value = vec![7; n * 20];
        rustix::fs::setxattr(mnt.join(format!("d{n}")), "user.x", &value, rustix::fs::XattrFlags::empty())
            .expect("xattr");
    }
    write_seeded(&mnt.join("large"), 1, 200_000);
    lab.umount();
    let region = std::fs::read(lab.nvram()).expect("read");
    let used = (0..region.len()).filter(|at| region[*at] != 0).collect();
    (lab, region, used)
}

/// Flips one to sixteen bytes, mostly used ones, and near one another half of the time.
fn damage(region: &[u8], used: &[usize], rng: &mut Rng) -> Vec<u8> {
    let mut damaged = region.to_vec();
    let place = used[rng.below(used.len() as u64) as usize];
    for _ in 0..1 + rng.below(16) {
        let at = match rng.below(8) {
            0..=3 => (place & !63) + rng.below(64) as usize,
            4..=6 => used[rng.below(used.len() as u64) as usize],
            _ => rng.below(region.len() as u64) as usize,
        };
        damaged[at.min(region.len() - 1)] ^= match rng.below(3) {
            0 => 1 << rng.below(8),
            1 => 0xff,
            _ => 1 + rng.below(255) as u8,
        };
    }
    damaged
}

fn flips() -> Outcome {
    let (lab, region, used) = sample();
    let mut rng = Rng::new(seed());
    let (mut clean, mut repaired, mut refused, mut left) = (0, 0, 0, BTreeSet::new());
    for n in 0..number("CONQUEST_FLIPS", 150) {
        std::fs::write(lab.nvram(), damage(&region, &used, &mut rng)).expect("write");
        let found = lab.run(&["fsck", &lab.pool(), "--json"]).code;
        lab.run(&["status", &lab.pool(), "-v"]);
        match found {
            0 => clean += 1,
            2 => refused += 1,
            _ => {
                let repair = lab.run(&["fsck", &lab.pool(), "--repair"]);
                let after = lab.run(&["fsck", &lab.pool()]);
                repaired += 1;
                if after.code != 0 {
                    left.insert((n, repair.out, after.out));
                }
            }
        }
    }
    println!("flipped bytes: {clean} not seen (content), {repaired} found, {refused} refused");
    assert!(left.is_empty(), "fsck --repair left problems in {} cases: {left:#?}", left.len());
    assert!(repaired > 0, "fsck found nothing in all the damage");
    Ok(())
}

/// Reading, writing and deleting may fail, but the server answers and ends.
fn flips_mounted() -> Outcome {
    let (lab, region, used) = sample();
    let mut rng = Rng::new(seed() ^ 0x5eed);
    for n in 0..number("CONQUEST_FLIPS", 150).div_ceil(6) {
        std::fs::write(lab.nvram(), damage(&region, &used, &mut rng)).expect("write");
        let mounted = lab.run(&["mount", &lab.pool(), &lab.text("mnt")]);
        if mounted.code != 0 {
            continue;
        }
        exercise(&lab.mnt());
        let alive = std::fs::read_dir(lab.mnt());
        let gone = alive.err().and_then(|e| e.raw_os_error()) == Some(rustix::io::Errno::NOTCONN.raw_os_error());
        let log = std::fs::read_to_string(lab.path("pool/server.log")).unwrap_or_default();
        assert!(!gone, "damage {n}: the server died\n{log}");
        assert!(!log.contains("panicked"), "damage {n}: a panic in the server\n{log}");
        lab.umount();
    }
    Ok(())
}

/// Walks, reads, writes and deletes everything, within a limit: a flipped size may claim a file of exabytes, which
/// would take too long to read.
fn exercise(mnt: &Path) {
    // Even entering the root may fail.
    let script = "cd \"$0\" || exit 0; find . -xdev -ls >/dev/null; find . -xdev -type f -size -9000k -exec cat {} + >/dev/null; \
        getfattr -R -d . >/dev/null; for i in 1 2 3 4 5; do echo more >> file-with-a-name-$i; mkdir n$i; mv n$i d$i; done; \
        rm -rf ./*; true";
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", "sh", "-c", script]).arg(mnt);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let code = status.expect("timeout of coreutils").code();
    assert_eq!(code, Some(0), "working on a damaged pool does not end");
}
