//! Suites of other projects: pjdfstest against POSIX, fsx against itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::{self, Lab};
use crate::settings::{number, seed};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] =
    &[("suites::pjdfstest_passes_and_skips_no_more_than_on_ext4", pjdfstest), ("suites::fsx_finds_nothing", fsx)];

pub const LONG: &[Test] = &[("long::fsx_finds_nothing", fsx_for_long)];

/// The suite's program, where `./test` installs it.
pub fn tool(name: &str) -> Result<PathBuf, Skip> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let dir = std::env::var_os("CONQUEST_TOOLS").map_or(default, PathBuf::from);
    let path = dir.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Skip(format!("needs {name}: cargo install --locked {name} --root target/tools")))
}

/// Test → `ok`, `skipped` or `FAILED`.
pub type Verdicts = BTreeMap<String, String>;

/// The tests that remount read-only get a run of their own: in a common run the suite still has files open, and no file
/// system would become read-only.
fn pjdfstest() -> Outcome {
    let suite = tool("pjdfstest")?;
    let lab = Lab::mounted("256M");
    lab.install_helpers()?;
    let mut ours = run_pjdfstest(Command::new(&suite), &lab, &lab.mnt(), &[]);
    ours.extend(run_pjdfstest(Command::new(&suite), &lab, &lab.mnt(), &["erofs"]));
    lab.umount();
    lab.check();
    let skipped = |v: &Verdicts| v.iter().filter(|(_, v)| *v == "skipped").map(|(t, _)| t.clone()).collect::<Vec<_>>();
    println!("pjdfstest: {} tests, skipped: {:?}", ours.len(), skipped(&ours));
    let uncompared = |Skip(reason)| Skip(format!("passed, but could not be compared: {reason}"));
    let ext4 = lab.loop_ext4().map_err(uncompared)?;
    let theirs = run_pjdfstest(Command::new(&suite), &lab, &ext4, &[]);
    let (here, there) = (skipped(&ours).len(), skipped(&theirs).len());
    assert!(ours.len() > 300, "pjdfstest ran {} tests only", ours.len());
    assert!(here <= there, "{here} tests skipped, on ext4 {there}");
    Ok(())
}

/// Runs the tests whose names contain one of `names`, or all that need no remount. None may fail.
pub fn run_pjdfstest(mut suite: Command, lab: &Lab, dir: &Path, names: &[&str]) -> Verdicts {
    let remount = !names.is_empty();
    let config = lab.path("pjdfstest.toml");
    let second = lab.path("second");
    let _ = std::fs::create_dir(&second);
    let text = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
         stat_st_birthtime = {{}}\nsecondary_fs = {second:?}\n\
         [settings]\nnaptime = 0.02\nallow_remount = {remount}\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    );
    std::fs::write(&config, text).expect("a configuration");
    suite.arg("-c").arg(&config).arg("-p").arg(dir).args(names).env("NO_COLOR", "1");
    let output = suite.output().expect("pjdfstest");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let verdicts = read_verdicts(&text);
    let failed: Vec<_> = verdicts.iter().filter(|(_, v)| *v == "FAILED").map(|(t, _)| t).collect();
    let why = text.lines().filter(|l| l.starts_with('\t')).collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "pjdfstest on {}: {} failed: {failed:#?}\n{why}", dir.display(), failed.len());
    verdicts
}

fn read_verdicts(text: &str) -> Verdicts {
    let line = |l: &str| {
        let (test, verdict) = l.rsplit_once(' ')?;
        ["ok", "skipped", "FAILED"].contains(&verdict).then(|| (test.trim().to_string(), verdict.to_string()))
    };
    text.lines().filter_map(line).collect()
}

fn fsx() -> Outcome {
    fsx_of(1, 20_000)
}

fn fsx_for_long() -> Outcome {
    fsx_of(10, 60_000)
}

fn fsx_of(seeds: u64, ops: u64) -> Outcome {
    let suite = tool("fsx")?;
    let (seeds, ops) = (number("CONQUEST_FSX_SEEDS", seeds), number("CONQUEST_FSX_OPS", ops));
    let lab = Lab::mounted("256M");
    run_fsx(&|| Command::new(&suite), &lab, seeds, ops);
    lab.umount();
    lab.check();
    Ok(())
}

/// Runs fsx with so many seeds, each with so many operations. It must find nothing.
pub fn run_fsx(suite: &dyn Fn() -> Command, lab: &Lab, seeds: u64, ops: u64) {
    let config = lab.path("fsx.toml");
    std::fs::write(&config, FSX_CONFIG).expect("a configuration");
    for n in 0..seeds {
        for (piece, start) in (0..ops).step_by(FSX_PIECE).enumerate() {
            let seed = (seed() + n + 1000 * piece as u64).to_string();
            let file = lab.mnt().join(format!("fsx-{seed}"));
            let ops = (ops - start).min(FSX_PIECE as u64).to_string();
            let mut command = suite();
            command.args(["-q", "-q", "-S", &seed, "-N", &ops, "-f"]).arg(&config);
            command.arg("-P").arg(lab.path("")).arg(&file);
            println!("fsx: seed {seed}, {ops} operations");
            lab::ok(&mut command);
            std::fs::remove_file(file).expect("the file that fsx left");
        }
    }
}

/// Operations of one run of fsx. Its mappings pile up, and with them the cost of each truncation, so that a run of a
/// million operations takes hours on any file system.
const FSX_PIECE: usize = 60_000;

/// Every operation of fsx, and files beyond its default of 256 KiB. posix_fallocate answers EINVAL to a length of 0 on
/// any file system, which fsx would take for a missing operation.
const FSX_CONFIG: &str = "
flen = 1048576
[opsize]
min = 1
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 3
";
