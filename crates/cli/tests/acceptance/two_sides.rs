//! A process under direct access and one that goes through the mount work on the same files, for a while. Both are killed at times. And two
//! under direct access, either of which is stopped at times.

use std::path::Path;
use std::process::Stdio;

use crate::direct::{direct, need_library};
use crate::lab::{self, program, Lab};
use crate::settings::{number, seed};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("direct::two_sides_see_the_last_change", || two_sides(&[1, 2], 0)),
    ("direct::others_go_on_while_a_process_is_stopped", || stopped(40)),
];

/// These run only if they are named.
pub const LONG: &[Test] = &[
    ("long::two_sides_see_the_last_change", for_long),
    ("long::others_go_on_while_a_process_is_stopped", || stopped(5000)),
];

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
    for seed in seeds {
        let (here, there) = (lab.mnt().join(format!("work{seed}")), lab.path(&format!("plain{seed}")));
        for dir in [&here, &there] {
            std::fs::create_dir(dir).expect("mkdir");
        }
        println!("seed {seed}");
        run(&lab, "two_sides.py", &[&seed.to_string(), &seconds.to_string(), text(&here), text(&there)]);
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// So many times.
fn stopped(times: u32) -> Outcome {
    lab::require("python3")?;
    let lab = Lab::mounted("256M");
    need_library(&lab)?;
    let (work, counters) = (lab.mnt().join("work"), lab.path("counters"));
    std::fs::create_dir(&work).expect("mkdir");
    std::fs::write(&counters, [0; 4096]).expect("write");
    run(&lab, "stopped_direct.py", &[&times.to_string(), &seed().to_string(), text(&work), text(&counters)]);
    lab.umount();
    lab.check();
    Ok(())
}

/// Runs a script, which is told how to have direct access.
fn run(lab: &Lab, script: &str, args: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance").join(script);
    let with_access = direct(lab, &[]);
    let mut command = program("python3", &[]);
    command.arg(script).args(args).arg(with_access.get_program()).args(with_access.get_args());
    assert!(command.stdin(Stdio::null()).status().expect("python3").success(), "{args:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary directory")
}
