//! Programs' own test suites under direct access: what passes on tmpfs passes there. `./test long` fetches and builds their sources.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::direct::need_library;
use crate::lab::{self, program, Lab, NOBODY};
use crate::{Outcome, Skip, Test};

/// These run only if they are named.
pub const LONG: &[Test] = &[
    ("long::git_passes_its_tests", || run(&GIT)),
    ("long::postgresql_passes_its_tests", || run(&POSTGRESQL)),
    ("long::postgresql_recovers_from_kill_9", || run(&POSTGRESQL_KILLED)),
    ("long::python_passes_its_tests", || run(&PYTHON)),
    ("long::coreutils_pass_their_tests", || run(&COREUTILS)),
];

struct Suite {
    /// A directory in `CONQUEST_SOURCES`; none: what is installed.
    source: Option<&'static str>,
    /// It refuses to run as root.
    by_nobody: bool,
    /// Gets the source's directory, and the names of tests or none for all; prints the names of those that fail.
    script: &'static str,
}

const GIT: Suite = Suite { source: Some("git"), by_nobody: false, script: include_str!("sources/git.sh") };
const POSTGRESQL: Suite =
    Suite { source: Some("postgresql-15/installed"), by_nobody: true, script: include_str!("sources/postgresql.sh") };
const POSTGRESQL_KILLED: Suite = Suite { script: include_str!("sources/postgresql_killed.sh"), ..POSTGRESQL };
const PYTHON: Suite = Suite { source: None, by_nobody: false, script: include_str!("sources/python.sh") };
const COREUTILS: Suite =
    Suite { source: Some("coreutils"), by_nobody: false, script: include_str!("sources/coreutils.sh") };

impl Suite {
    fn source(&self) -> Result<PathBuf, Skip> {
        let Some(name) = self.source else {
            let has = program("python3", &["-c", "import test.test_os"]).stderr(Stdio::null()).status();
            return match has.is_ok_and(|status| status.success()) {
                true => Ok(PathBuf::new()),
                false => Err(Skip("needs libpython3-testsuite".into())),
            };
        };
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/sources");
        let dir = std::env::var_os("CONQUEST_SOURCES").map_or(default, PathBuf::from);
        match dir.join(name.split('/').next().unwrap_or_default()).join("is-built").exists() {
            true => Ok(dir.join(name).canonicalize().expect("its directory")),
            false => Err(Skip(format!("needs the source of {name} in {}: ./test long", dir.display()))),
        }
    }

    /// The tests that fail of those that are named, or of all; and what was said besides.
    fn failures(&self, words: &[&str], dir: &str, source: &Path, names: &[String]) -> (Vec<String>, String) {
        let script = format!("cd \"$1\"; shift\n{}", self.script);
        let words = [words, &["bash", "-euo", "pipefail", "-c", &script, "bash", dir]].concat();
        let mut command = program(words[0], &words[1..]);
        let ran = command.arg(source).args(names).stdin(Stdio::null()).output().expect("bash");
        let [out, err] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        let failed: Vec<String> = out.lines().map(String::from).collect();
        assert!(ran.status.success() || !failed.is_empty(), "{}: {err}", ran.status);
        (failed, err)
    }
}

fn run(suite: &Suite) -> Outcome {
    ["bash", "setpriv", "prove"].into_iter().try_for_each(lab::require)?;
    let source = suite.source()?;
    let lab = Lab::new();
    need_library(&lab)?;
    let before = if suite.by_nobody { &NOBODY[..] } else { &[] };
    lab.mount_home(before, "3G")?;
    let source = match suite.source {
        // The user may not reach it.
        Some(_) if suite.by_nobody => {
            lab::ok(program("cp", &["-r"]).arg(source).arg(lab.path("source")));
            lab.path("source")
        }
        _ => source,
    };
    let conquest = lab.text("conquest");
    let with_access = [before, &[&conquest, "run", "--check", "--"]].concat();
    let (failed, said) = suite.failures(&with_access, &lab.text("home/mnt"), &source, &[]);
    let counted = said.lines().rfind(|line| line.contains(" calls on pools were direct"));
    println!("{}", counted.unwrap_or_else(|| panic!("no call was counted: {said}")));
    if !failed.is_empty() {
        let elsewhere = suite.failures(before, &lab.text("home/plain"), &source, &failed).0;
        let (both, here): (Vec<_>, Vec<_>) = failed.iter().partition(|name| elsewhere.contains(name));
        println!("these fail on tmpfs too: {both:?}");
        assert!(here.is_empty(), "these fail under direct access only: {here:?}");
    }
    lab.umount_home(before);
    Ok(())
}
