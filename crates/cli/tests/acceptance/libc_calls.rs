//! Every function of the C library that takes a path or a descriptor does the same under direct access as on tmpfs, called on each kind of
//! both. `libc_calls/table.py` knows all functions; it says what differs, and why. `libc_calls/sequence.py` makes calls in sequences by a
//! seed, with descriptors that stay open, threads, children and signals.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::direct::{direct, need_library};
use crate::lab::{self, program, Lab};
use crate::settings::{number, seed};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("direct::functions_of_the_c_library_do_the_same_as_on_tmpfs", || compare(7)),
    ("direct::sequences_of_calls_are_as_on_tmpfs", || sequences(1..3, 250)),
    ("direct::all_functions_of_the_c_library_are_known", all_are_known),
];

/// These run only if they are named.
pub const LONG: &[Test] = &[
    ("long::functions_of_the_c_library_do_the_same_as_on_tmpfs", || compare(1)),
    ("long::sequences_of_calls_are_as_on_tmpfs", many_sequences),
];

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/libc_calls").join(name)
}

/// `python3 -B run.py ARGS`
fn run(args: &[&str]) -> Command {
    let mut command = program("python3", &["-B"]);
    command.arg(script("run.py")).args(args);
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

/// A mounted pool, and a directory in it and one on tmpfs.
struct Sides {
    lab: Lab,
    here: PathBuf,
    there: PathBuf,
}

impl Sides {
    fn new() -> Result<Sides, Skip> {
        need_programs()?;
        let lab = Lab::mounted("256M");
        need_library(&lab)?;
        let (plain, here, there) = (lab.path("plain"), lab.mnt().join("work"), lab.path("plain/work"));
        std::fs::create_dir(&plain).expect("mkdir");
        lab::ok(&mut program("mount", &["-t", "tmpfs", "none", &plain.to_string_lossy()]));
        for dir in [&here, &there] {
            std::fs::create_dir(dir).expect("mkdir");
        }
        Ok(Sides { lab, here, there })
    }

    /// What a script says on both, at the same time: the files with its output.
    fn run(&self, name: &str, args: &[&str]) -> [PathBuf; 2] {
        let (mut by_access, mut by_kernel) = (direct(&self.lab, &["python3", "-B"]), program("python3", &["-B"]));
        let both = [(&mut by_access, &self.here, "direct.out"), (&mut by_kernel, &self.there, "tmpfs.out")];
        let started = both.map(|(command, dir, out)| {
            let out = self.lab.path(out);
            (start(command.arg(script(name)).args(args).current_dir(dir), &out), out)
        });
        started.map(|(mut child, out)| {
            let status = child.wait().expect("a child");
            assert!(status.success(), "{name} {args:?}: {status}");
            out
        })
    }

    fn end(self) {
        self.lab.umount();
        self.lab.check();
    }
}

/// With each `step`th choice of kinds.
fn compare(step: usize) -> Outcome {
    let sides = Sides::new()?;
    let [direct, kernel] = sides.run("run.py", &[&step.to_string()]);
    let files = [&direct, &kernel].map(|file| file.to_string_lossy().into_owned());
    let compared = run(&["compare", &files[0], &files[1]]).output().expect("python3");
    let differ = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success() && differ.is_empty(), "{differ}{}", String::from_utf8_lossy(&compared.stderr));
    let lines = std::fs::read_to_string(&direct).expect("its output").lines().count();
    assert!(lines > 2000, "it made {lines} calls only");
    sides.end();
    Ok(())
}

/// Random calls of one thread, and of three.
fn sequences(seeds: impl Iterator<Item = u64>, steps: usize) -> Outcome {
    let sides = Sides::new()?;
    for seed in seeds {
        for threads in ["1", "3"] {
            println!("seed {seed}, threads {threads}");
            let said = sides.run("sequence.py", &[&seed.to_string(), threads, &steps.to_string()]);
            let [direct, kernel] = said.map(|file| std::fs::read_to_string(file).expect("its output"));
            let differs = direct.lines().zip(kernel.lines()).find(|(direct, kernel)| direct != kernel);
            if let Some((direct, kernel)) = differs {
                panic!("seed {seed}, threads {threads}:\n    direct:    {direct}\n    elsewhere: {kernel}");
            }
            assert_eq!(direct.lines().count(), kernel.lines().count(), "seed {seed}, threads {threads}");
        }
    }
    sides.end();
    Ok(())
}

/// `CONQUEST_SEQUENCES`: how many.
fn many_sequences() -> Outcome {
    sequences((0..number("CONQUEST_SEQUENCES", 100)).map(|n| seed() % 1_000_000 + n), 1000)
}

fn start(command: &mut Command, out: &Path) -> Child {
    let out = File::create(out).expect("a file");
    command.stdin(Stdio::null()).stdout(out).spawn().expect("a program")
}
