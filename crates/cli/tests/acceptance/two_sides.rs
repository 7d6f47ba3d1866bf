//! A process under direct access and one that goes through the mount work on the same files, for a while. Both are killed at times.

use std::path::Path;
use std::process::Stdio;

use crate::direct::{direct, need_library};
use crate::lab::{self, program, Lab};
use crate::settings::{number, seed};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[("direct::two_sides_see_the_last_change", || two_sides(&[1, 2], 0))];

/// These run only if they are named.
pub const LONG: &[Test] = &[("long::two_sides_see_the_last_change", for_long)];

/// `CONQUEST_TWO_SIDES`: minutes.
fn for_long() -> Outcome {
    let minutes = number("CONQUEST_TWO_SIDES", 10);
    two_sides(&(0..minutes).map(|n| seed() + n).collect::<Vec<_>>(), 60)
}

/// With each seed for so many seconds, but some hundred operations at least.
fn two_sides(seeds: &[u64], seconds: u64) -> Outcome {
    lab::require("python3")?;
    let lab = Lab::mounted("256M");
    need_library(&lab)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/two_sides.py");
    for seed in seeds {
        let (here, there) = (lab.mnt().join(format!("work{seed}")), lab.path(&format!("plain{seed}")));
        for dir in [&here, &there] {
            std::fs::create_dir(dir).expect("mkdir");
        }
        let mut command = program("python3", &[]);
        command.arg(&script).args([seed.to_string(), seconds.to_string()]).args([here, there]);
        let with_access = direct(&lab, &[]);
        command.arg(with_access.get_program()).args(with_access.get_args());
        println!("seed {seed}");
        let status = command.stdin(Stdio::null()).status().expect("python3");
        assert!(status.success(), "seed {seed}");
    }
    lab.umount();
    lab.check();
    Ok(())
}
