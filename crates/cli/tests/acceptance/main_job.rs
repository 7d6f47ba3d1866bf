//! The main job, on real input: copy a tree of tens of thousands of files in, compare, build, git, sqlite,
//! run a program; kill the server in the middle, mount again, and find everything that was acknowledged.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::lab::{self, program, require, wait_until, Lab};
use crate::{tree, Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("main_job::a_large_tree_is_copied_and_survives_kill_9", large_tree),
    ("main_job::git_commits_survive_kill_9", git),
    ("main_job::sqlite_loses_no_commit", sqlite),
];

pub const LONG: &[Test] = &[("long::a_rust_project_is_cloned_built_and_run", rust_project)];

const FILES: u64 = 20_000;
const BYTES: u64 = 900 << 20;

/// Directories with real files, at least [`FILES`] altogether: the sources of our dependencies first.
fn sources() -> Result<Vec<PathBuf>, Skip> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut candidates: Vec<PathBuf> = cargo.into_iter().flat_map(|c| below(&c.join("registry/src"))).collect();
    for dir in [
        "/usr/include",
        "/usr/share/doc",
        "/usr/share/zoneinfo",
        "/usr/share/locale",
        "/usr/share/man",
        "/usr/share/perl",
        "/usr/lib/python3",
    ] {
        candidates.push(dir.into());
    }
    candidates.extend(below(Path::new("/usr/share")));
    let (mut chosen, mut files, mut bytes) = (Vec::<PathBuf>::new(), 0, 0);
    for dir in candidates.into_iter().filter(|d| d.is_dir() && !d.is_symlink()) {
        if files >= FILES || chosen.iter().any(|c| dir.starts_with(c) || c.starts_with(&dir)) {
            continue;
        }
        let (more, size) = tree::count(&dir);
        if bytes + size < BYTES {
            (files, bytes) = (files + more, bytes + size);
            chosen.push(dir);
        }
    }
    if files < FILES {
        return Err(Skip(format!("found only {files} files to copy on this machine")));
    }
    println!("{files} files, {} MB, from {chosen:?}", bytes / 1_000_000);
    Ok(chosen)
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut dirs: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    dirs.sort();
    dirs
}

fn copy(source: &Path, target: &Path) -> Command {
    let mut command = program("cp", &["-a"]);
    command.arg(source).arg(target);
    command
}

fn large_tree() -> Outcome {
    let sources = sources()?;
    let lab = Lab::mounted("3G");
    let (first, second) = (lab.mnt().join("first"), lab.mnt().join("second"));
    std::fs::create_dir(&first).expect("mkdir");
    std::fs::create_dir(&second).expect("mkdir");
    for (n, source) in sources.iter().enumerate() {
        lab::ok(&mut copy(source, &first.join(n.to_string())));
    }
    let compare = || {
        for (n, source) in sources.iter().enumerate() {
            let copied = tree::describe(&first.join(n.to_string()));
            tree::assert_same(&tree::describe(source), &copied, &source.to_string_lossy());
        }
    };
    compare();
    // The server dies during a second copy. The output of cp tells which files are finished.
    let mut child = copy(&first, &second).arg("-v").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cp");
    let lines = listen(child.stdout.take().expect("a pipe"));
    let complaints = listen(child.stderr.take().expect("a pipe"));
    std::thread::sleep(Duration::from_millis(1500));
    lab.kill9();
    let _ = child.wait();
    let mut lines = lines.join().expect("a reader");
    let complaints = complaints.join().expect("a reader");
    // In a directory that it has just made, cp also names later files, and fails at each: it reads from the kernel's
    // cache. It does not name a directory that it cannot make. So only files named before its first complaint are done.
    // Complaints about times of directories, which it sets at the end, do not count.
    let of_times = |line: &&String| line.contains("preserv") || line.contains("setting");
    let failed = complaints.iter().filter(|line| !of_times(line));
    let failed: HashSet<&str> = failed.filter_map(|line| line.split('\'').nth(1)).collect();
    let is_failed = |line: &String| line.split('\'').any(|path| failed.contains(path));
    if let Some(at) = lines.iter().position(is_failed) {
        lines.truncate(at + 1);
    }
    lab.umount();
    lab.check();
    lab.mount();
    compare();
    check_second(&lines, &lab);
    std::fs::remove_dir_all(&second).expect("remove the half copy");
    lab.umount();
    let report = lab.check();
    assert!(report["inodes"].as_u64() >= Some(FILES), "{report}");
    Ok(())
}

/// The lines of `cp -v`, one before each file; or its complaints.
fn listen(pipe: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<String>> {
    let out = BufReader::new(pipe);
    std::thread::spawn(move || out.lines().map_while(Result::ok).collect())
}

/// Checks that the files that cp named before its last two lines have the content of the originals.
fn check_second(lines: &[String], lab: &Lab) {
    let done = &lines[..lines.len().saturating_sub(2)];
    assert!(done.len() > 10, "the copy had hardly begun: {lines:?}");
    let mut files = 0;
    for line in done {
        let Some((from, to)) = line.trim_matches('\'').split_once("' -> '") else { continue };
        let (from, to) = (Path::new(from), Path::new(to));
        assert!(to.symlink_metadata().is_ok(), "{} was copied and is gone", to.display());
        if from.symlink_metadata().is_ok_and(|m| m.is_file()) {
            files += 1;
            let same = std::fs::read(from).expect("read") == std::fs::read(to).expect("read");
            assert!(same, "{} was copied and is not the same", to.display());
        }
    }
    println!("killed after {files} files of a second copy in {}", lab.mnt().display());
}

/// This project, from its repository, offline, with its target directory in the mount too.
fn rust_project() -> Outcome {
    require("git")?;
    require("cargo")?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace");
    if !repository.join(".git").exists() {
        return Err(Skip("needs the git repository of this project".into()));
    }
    let lab = Lab::mounted("3G");
    let clone = lab.mnt().join("project");
    lab::ok(program("git", &["-c", "safe.directory=*", "clone", "-q"]).arg(&repository).arg(&clone));
    lab::ok(program("git", &["fsck", "--full", "--strict"]).current_dir(&clone));
    let mut build = program("cargo", &["build", "--offline", "--locked", "-p", "conquest"]);
    build.current_dir(&clone).env("CARGO_TARGET_DIR", clone.join("target"));
    build.args(["--config", "profile.dev.opt-level=0", "--config", "profile.dev.debug=false"]);
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER"] {
        build.env_remove(name);
    }
    lab::ok(&mut build);
    let built = clone.join("target/debug/conquest");
    let said = lab::ok(Command::new(&built).arg("--version"));
    assert_eq!(said, format!("conquest {}\n", env!("CARGO_PKG_VERSION")));
    // After a build in the mount and a kill, nothing has to be built again.
    lab.kill9();
    lab.mount();
    lab.check();
    let again = Command::new(&built).arg("--version").output().expect("run from the mount");
    assert!(again.status.success());
    let output = build.output().expect("cargo");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("Compiling"), "built again after a crash:\n{said}");
    lab.umount();
    Ok(())
}

/// A shell script that answers each executed line with that line.
struct Worker {
    child: Child,
    done: std::thread::JoinHandle<Vec<String>>,
}

impl Worker {
    fn start(script: &str, dir: &Path) -> Worker {
        let mut child = program("sh", &["-c", script])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh");
        let done = listen(child.stdout.take().expect("a pipe"));
        Worker { child, done }
    }

    /// Kills the server after a while; returns the lines that the script had reported.
    fn kill_server(mut self, lab: &Lab, after: Duration) -> Vec<String> {
        std::thread::sleep(after);
        lab.kill9();
        let mut ended = false;
        wait_until(Duration::from_secs(60), "the script notices", || {
            ended = ended || self.child.try_wait().expect("wait").is_some();
            ended
        });
        self.done.join().expect("a reader")
    }
}

const IDENTITY: [&str; 4] = ["-c", "user.name=Test", "-c", "user.email=test@example.org"];

fn git() -> Outcome {
    require("git")?;
    let lab = Lab::mounted("512M");
    let repo = lab.mnt().join("repo");
    lab::ok(program("git", &["init", "-q", "-b", "main"]).arg(&repo));
    let script = format!(
        "n=0; while n=$((n+1)); do echo line $n >> file$((n%7)) && git add -A && git {} commit -q -m \"commit $n\" && \
         git rev-parse --verify HEAD || exit; done",
        IDENTITY.join(" ")
    );
    let commits = Worker::start(&script, &repo).kill_server(&lab, Duration::from_secs(3));
    assert!(commits.len() > 5, "only {} commits in 3 s", commits.len());
    lab.mount();
    lab.check();
    // git leaves its lock behind when it dies in a commit, on any file system.
    let _ = std::fs::remove_file(repo.join(".git/index.lock"));
    lab::ok(program("git", &["fsck", "--full", "--strict"]).current_dir(&repo));
    let log = lab::ok(program("git", &["log", "--format=%H", "main"]).current_dir(&repo));
    let there: Vec<&str> = log.lines().rev().collect();
    assert!(there.len() - commits.len() <= 1, "{} commits acknowledged, {} there", commits.len(), there.len());
    assert_eq!(there[..commits.len()], commits, "the commits that were acknowledged");
    let clone = lab.mnt().join("clone");
    lab::ok(program("git", &["clone", "-q"]).arg(&repo).arg(&clone));
    lab::ok(program("git", &["gc", "-q", "--aggressive"]).current_dir(&clone));
    lab::ok(program("git", &["fsck", "--full", "--strict"]).current_dir(&clone));
    println!("git: {} commits acknowledged before the kill, all there", commits.len());
    lab.umount();
    lab.check();
    Ok(())
}

fn sqlite() -> Outcome {
    require("sqlite3")?;
    let lab = Lab::mounted("256M");
    for (n, journal) in ["DELETE", "WAL", "TRUNCATE"].iter().enumerate() {
        let base = lab.mnt().join(format!("base{n}.db"));
        let setup = format!("PRAGMA journal_mode={journal}; CREATE TABLE t(n INTEGER PRIMARY KEY, text TEXT);");
        lab::ok(program("sqlite3", &[]).arg(&base).arg(setup));
        let rows = insert_until_killed(&lab, &base);
        lab.mount();
        lab.check();
        let query = |sql: &str| lab::ok(program("sqlite3", &[]).arg(&base).arg(sql));
        assert_eq!(query("PRAGMA integrity_check;"), "ok\n", "{journal}");
        let there: usize = query("SELECT count(*) FROM t;").trim().parse().expect("a number");
        let last: usize = query("SELECT coalesce(max(n), 0) FROM t;").trim().parse().expect("a number");
        assert!(there == last && (rows..=rows + 1).contains(&there), "{journal}: {rows} acknowledged, {there} there");
        println!("sqlite, journal_mode={journal}: {rows} transactions acknowledged before the kill, {there} there");
        assert!(rows > 5, "only {rows} transactions");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// One process, a transaction per row, synchronous=FULL; returns the number of acknowledged rows.
fn insert_until_killed(lab: &Lab, base: &Path) -> usize {
    let mut child = program("sqlite3", &["-batch"])
        .arg(base)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sqlite3");
    let mut input = child.stdin.take().expect("a pipe");
    let done = listen(child.stdout.take().expect("a pipe"));
    let feeder = std::thread::spawn(move || {
        let _ = writeln!(input, ".bail on\nPRAGMA synchronous=FULL;");
        for n in 1.. {
            let text = "x".repeat(n % 500);
            let fed = writeln!(input, "INSERT INTO t VALUES({n}, '{text}');\nSELECT 'row';");
            if fed.and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    lab.kill9();
    let _ = child.wait();
    let _ = feeder.join();
    done.join().expect("a reader").iter().filter(|line| *line == "row").count()
}
