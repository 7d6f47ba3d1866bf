//! Every function of the C library that takes a path or a descriptor does the same under direct access as on tmpfs, called on each kind of
//! both. `libc_calls/table.py` knows all functions; it says what differs, and why.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::direct::{direct, need_library};
use crate::lab::{self, program, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("direct::functions_of_the_c_library_do_the_same_as_on_tmpfs", || compare(7)),
    ("direct::all_functions_of_the_c_library_are_known", all_are_known),
];

/// These run only if they are named.
pub const LONG: &[Test] = &[("long::functions_of_the_c_library_do_the_same_as_on_tmpfs", || compare(1))];

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/libc_calls/run.py")
}

/// `python3 -B run.py ARGS`
fn run(args: &[&str]) -> Command {
    let mut command = program("python3", &["-B"]);
    command.arg(script()).args(args);
    command
}

fn need_programs() -> Outcome {
    lab::require("python3")?;
    lab::require("readelf")
}

fn all_are_known() -> Outcome {
    need_programs()?;
    let ran = run(&["unknown"]).output().expect("python3");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let unknown = String::from_utf8_lossy(&ran.stdout);
    assert!(
        unknown.is_empty(),
        "say in libc_calls/table.py how these are called, or that they take no file:\n{unknown}"
    );
    Ok(())
}

/// With each `step`th choice of kinds.
fn compare(step: usize) -> Outcome {
    need_programs()?;
    let lab = Lab::mounted("128M");
    need_library(&lab)?;
    let (plain, here, there) = (lab.path("plain"), lab.mnt().join("work"), lab.path("plain/work"));
    std::fs::create_dir(&plain).expect("mkdir");
    lab::ok(&mut program("mount", &["-t", "tmpfs", "none", &plain.to_string_lossy()]));
    for dir in [&here, &there] {
        std::fs::create_dir(dir).expect("mkdir");
    }
    let step = step.to_string();
    let (mut by_access, mut by_kernel) = (direct(&lab, &["python3", "-B"]), run(&[]));
    by_access.arg(script());
    let said = [lab.path("direct.out"), lab.path("tmpfs.out")];
    let both =
        [(by_access.arg(&step).current_dir(here), &said[0]), (by_kernel.arg(&step).current_dir(there), &said[1])];
    let both = both.map(|(command, out)| start(command, out));
    for mut child in both {
        let status = child.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
    let [direct, kernel] = said.map(|file| file.to_string_lossy().into_owned());
    let compared = run(&["compare", &direct, &kernel]).output().expect("python3");
    let differ = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success() && differ.is_empty(), "{differ}{}", String::from_utf8_lossy(&compared.stderr));
    let lines = std::fs::read_to_string(&direct).expect("its output").lines().count();
    assert!(lines > 2000, "it made {lines} calls only");
    lab.umount();
    lab.check();
    Ok(())
}

fn start(command: &mut Command, out: &Path) -> Child {
    let out = File::create(out).expect("a file");
    command.stdin(Stdio::null()).stdout(out).spawn().expect("a program")
}
