//! The environment of a test: directories, pools, mounts, and cleaning up.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::time::Timespec;

use crate::Skip;

/// Runs the command that follows as a user without any rights.
pub const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// The first requirement that this machine lacks for every test.
pub fn what_is_missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("needs /dev/fuse".into());
    }
    require("unshare").err().map(|Skip(reason)| reason)
}

/// Skips the test unless the program `name` is installed.
pub fn require(name: &str) -> Result<(), Skip> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    if found {
        Ok(())
    } else {
        Err(Skip(format!("needs the program {name}")))
    }
}

/// A directory with a pool in `pool`, a mount point `mnt`, and a copy of the program that every user can run.
pub struct Lab {
    dir: tempfile::TempDir,
    program: PathBuf,
}

const PREFIX: &str = "conquest-test-";

/// How a command ended.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Longer than any command takes, unless it hangs.
const LIMIT_SECONDS: u32 = 300;
/// The exit status of timeout(1) for a program that it had to kill.
const KILLED: i32 = 137;

impl Lab {
    pub fn new() -> Self {
        let dir = directory();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open.clone()).expect("chmod");
        let program = dir.path().join("conquest");
        std::fs::copy(env!("CARGO_BIN_EXE_conquest"), &program).expect("a copy of the program");
        std::fs::set_permissions(&program, open).expect("chmod");
        std::fs::create_dir(dir.path().join("mnt")).expect("mkdir");
        Lab { dir, program }
    }

    /// A lab with a pool of `size` without a disk: all content lies in its memory.
    pub fn with_pool(size: &str) -> Self {
        let lab = Lab::new();
        lab.ok(&["format", &lab.pool(), "--nvram", size, "--disk", "none"]);
        lab
    }

    /// A lab with a pool of `size` whose memory is a file, `nvram` in the pool directory.
    pub fn with_file(size: &str) -> Self {
        let lab = Lab::new();
        lab.ok(&["format", &lab.pool(), "--nvram", size, "--medium", "battery", "--disk", "none"]);
        lab
    }

    /// A lab with a pool of `size` on a disk of its own, of `disk` bytes.
    pub fn on_small_disk(size: &str, disk: &str) -> Result<Self, Skip> {
        let lab = Lab::new();
        std::fs::create_dir(lab.path("pool")).expect("mkdir");
        let limit = format!("size={disk},mode=755");
        let mounted = program("mount", &["-t", "tmpfs", "-o", &limit, "none", &lab.pool()]).status();
        if !mounted.is_ok_and(|s| s.success()) {
            return Err(Skip("needs to mount a small tmpfs".into()));
        }
        lab.ok(&["format", &lab.pool(), "--nvram", size, "--disk", "none"]);
        Ok(lab)
    }

    /// Fills that disk; returns the file whose removal frees space again.
    pub fn fill_disk(&self) -> PathBuf {
        let filler = self.path("pool/filler");
        let mut file = File::create(&filler).expect("create");
        while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
        filler
    }

    /// A lab with a mounted pool of `size`.
    pub fn mounted(size: &str) -> Self {
        let lab = Lab::with_pool(size);
        lab.mount();
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    pub fn pool(&self) -> String {
        self.text("pool")
    }

    pub fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    /// Runs `conquest ARGS`, and checks that it ends without a panic and not by a signal.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.run_as(&[], args)
    }

    /// As `run`, behind another program: `setpriv ... conquest ARGS`.
    pub fn run_as(&self, before: &[&str], args: &[&str]) -> Ran {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", &LIMIT_SECONDS.to_string()]).args(before).arg(&self.program).args(args);
        command.stdin(Stdio::null());
        let output = command.output().expect("timeout of coreutils");
        let ran = Ran::from(output);
        assert_ne!(ran.code, KILLED, "conquest {args:?} does not end\n{}", ran.err);
        assert!((0..=2).contains(&ran.code), "conquest {args:?} ended with {}\n{}{}", ran.code, ran.out, ran.err);
        assert!(!ran.err.contains("panicked"), "conquest {args:?} panicked\n{}", ran.err);
        ran
    }

    /// `conquest ARGS`, to be run from this lab's directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = program(&self.program.to_string_lossy(), args);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs `conquest ARGS`, which must succeed; returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "conquest {args:?} failed: {}{}", ran.out, ran.err);
        ran.out
    }

    /// The output of `conquest status` and the like, also if a part of the pool has failed.
    pub fn output(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert!(ran.code <= 1 && !ran.out.is_empty(), "conquest {args:?} failed: {}{}", ran.out, ran.err);
        ran.out
    }

    /// Runs `conquest ARGS`, which must fail with status `code` and a text that contains each of `words`.
    pub fn refused(&self, code: i32, args: &[&str], words: &[&str]) {
        self.run(args).is_refusal(code, words, &format!("conquest {args:?}"));
    }

    pub fn mount(&self) {
        self.mount_with("");
    }

    /// Mounts the pool at `mnt`.
    pub fn mount_with(&self, options: &str) {
        self.mount_at(&self.text("mnt"), options);
    }

    pub fn mount_at(&self, dir: &str, options: &str) {
        let options = with_transport(options);
        self.ok(&["mount", &self.pool(), dir, "-o", &options]);
    }

    pub fn umount(&self) {
        self.ok(&["umount", &self.text("mnt")]);
    }

    pub fn umount_at(&self, dir: &str) {
        self.ok(&["umount", dir]);
    }

    pub fn status(&self) -> serde_json::Value {
        // Exit status 1 means that a part of the pool has failed.
        serde_json::from_str(&self.run(&["status", &self.pool(), "--json"]).out).expect("JSON")
    }

    /// The process that serves `dir`.
    pub fn server_of(&self, dir: &Path) -> Option<Pid> {
        let status = self.status();
        let list = |what: &str| status[what].as_array().expect(what).clone();
        let is_it = |place: &serde_json::Value| {
            place["alive"] == true && place["dir"].as_str().is_some_and(|d| Path::new(d) == dir)
        };
        list("places").iter().any(is_it).then_some(())?;
        let pid = list("sessions").iter().find(|session| session["role"] == "mount")?["pid"].as_i64()?;
        Pid::from_raw(pid as i32)
    }

    pub fn server(&self) -> Pid {
        self.server_of(&self.mnt()).expect("a server")
    }

    /// Kills the server as the kernel's OOM killer would.
    pub fn kill9(&self) {
        self.kill(&self.mnt());
    }

    /// Kills the server of the mount at `dir` in the same way.
    pub fn kill(&self, dir: &Path) {
        kill_and_wait(self.server_of(dir).expect("a server"), Signal::KILL);
    }

    /// The pool, opened by this process.
    pub fn open(&self) -> conquest::Pool {
        conquest::Pool::open(Path::new(&self.pool()), &conquest::OpenOptions::default())
            .expect("the pool can be opened")
    }

    /// Checks that the pool has no problems; space leaked by a crash is none.
    pub fn check(&self) -> serde_json::Value {
        let ran = self.run(&["fsck", &self.pool(), "--json"]);
        assert_eq!(ran.code, 0, "fsck finds problems: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).expect("JSON")
    }

    /// Makes `mount -t conquest` find the program, in this namespace and for the life of this lab.
    pub fn install_helpers(&self) -> Result<(), Skip> {
        let sbin = Path::new("/sbin").canonicalize().expect("/sbin");
        for dir in ["sbin-upper", "sbin-work"] {
            std::fs::create_dir_all(self.path(dir)).expect("mkdir");
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            sbin.display(),
            self.text("sbin-upper"),
            self.text("sbin-work")
        );
        let overlay = program("mount", &["-t", "overlay", "overlay", "-o", &layers]).arg(&sbin).status();
        if !overlay.is_ok_and(|s| s.success()) {
            return Err(Skip("needs overlayfs, to put helpers into /sbin for this test alone".into()));
        }
        let prefix = self.text("prefix");
        self.ok(&["install", "--prefix", &prefix, "--helpers", "/sbin"]);
        Ok(())
    }

    /// Any user may open the device, in this namespace, as udev makes it; containers often have one for root alone.
    pub fn let_users_mount(&self) -> Result<(), Skip> {
        require("fusermount3")?;
        let device = self.text("fuse");
        ok(&mut program("mknod", &["-m", "666", &device, "c", "10", "229"]));
        if !program("mount", &["--bind", &device, "/dev/fuse"]).status().is_ok_and(|s| s.success()) {
            return Err(Skip("needs to replace /dev/fuse in a namespace".into()));
        }
        std::fs::set_permissions("/dev/fuse", std::fs::Permissions::from_mode(0o666)).expect("chmod");
        Ok(())
    }

    /// Makes a pool in `home/pool` and mounts it at `home/mnt`, as root or as the user that `before` makes; `home/plain` is a directory beside.
    pub fn mount_home(&self, before: &[&str], size: &str) -> Result<(), Skip> {
        let user = if before.is_empty() { "0" } else { "65534" };
        if !before.is_empty() {
            self.let_users_mount()?;
        }
        let [home, pool, mnt, plain] = ["home", "home/pool", "home/mnt", "home/plain"].map(|name| self.text(name));
        ok(&mut program("install", &["-d", "-o", user, "-g", user, &home, &mnt, &plain]));
        self.ok_as(before, &["format", &pool, "--nvram", size, "--disk", "none"]);
        self.ok_as(before, &["mount", &pool, &mnt]);
        Ok(())
    }

    /// Unmounts and checks that pool.
    pub fn umount_home(&self, before: &[&str]) {
        self.ok_as(before, &["umount", &self.text("home/mnt")]);
        self.ok_as(before, &["fsck", &self.text("home/pool")]);
    }

    fn ok_as(&self, before: &[&str], args: &[&str]) {
        let ran = self.run_as(before, args);
        assert_eq!(ran.code, 0, "{before:?} conquest {args:?} failed: {}{}", ran.out, ran.err);
    }

    /// A file system on a disk of its own, at `ext4`.
    pub fn loop_ext4(&self) -> Result<PathBuf, Skip> {
        require("mkfs.ext4")?;
        let (image, dir) = (self.text("ext4.img"), self.path("ext4"));
        std::fs::create_dir(&dir).expect("mkdir");
        ok(&mut program("truncate", &["-s", "256M", &image]));
        ok(&mut program("mkfs.ext4", &["-q", &image]));
        let mounted = program("mount", &["-o", "loop", &image]).arg(&dir).status();
        match mounted {
            Ok(status) if status.success() => Ok(dir),
            _ => Err(Skip("needs a loop device for ext4".into())),
        }
    }

    pub fn nvram(&self) -> PathBuf {
        self.path("pool/nvram")
    }
}

impl Drop for Lab {
    /// Unmounts everything below the directory, in whatever state a failed test left it.
    fn drop(&mut self) {
        if self.path("sbin-upper").exists() {
            let _ = program("umount", &["-l", "/sbin"]).stderr(Stdio::null()).status();
        }
        // The file that names the memory may lie on a disk of the lab.
        let memory = memory_of(&self.path("pool"));
        unmount_below(&self.dir.path().to_string_lossy(), UnmountFlags::DETACH);
        memory.iter().for_each(|file| _ = std::fs::remove_file(file));
        forget_memory(self.dir.path(), 3);
    }
}

/// Removes the shared memory of the pools in `dir` and `levels` levels below: memory that outlives its processes, and
/// leftovers of killed ones.
pub fn forget_memory(dir: &Path, levels: u32) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if levels > 0 && entry.file_type().is_ok_and(|t| t.is_dir()) {
            forget_memory(&path, levels - 1);
        }
    }
    memory_of(dir).iter().for_each(|file| _ = std::fs::remove_file(file));
}

/// The files of the pool in `dir` in shared memory.
pub fn memory_of(dir: &Path) -> Vec<PathBuf> {
    let Some(prefix) = std::fs::read_to_string(dir.join("pool.toml")).ok().as_deref().and_then(memory_name) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).map(|entry| entry.path()).collect()
}

/// The prefix of the names of a pool's shared memory.
fn memory_name(pool_toml: &str) -> Option<String> {
    let uuid = pool_toml.lines().find_map(|line| line.strip_prefix("uuid = "))?.replace(['"', '-'], "");
    (uuid.len() == 32).then(|| format!("conquest-{uuid}-"))
}

/// Ends the connections of all mounts in labs, so that no call waits for an answer any more.
pub fn abort_mounts() {
    unmount_below(&root().join(PREFIX).to_string_lossy(), UnmountFlags::FORCE | UnmountFlags::DETACH);
}

/// The latest mounts first.
fn unmount_below(prefix: &str, flags: UnmountFlags) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dirs: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    for dir in dirs.into_iter().rev().filter(|dir| dir.starts_with(prefix)) {
        let _ = rustix::mount::unmount(dir, flags);
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Ran { code, out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Ran {
    /// Checks that it failed with `code`, and with a text that contains each of `words`.
    pub fn is_refusal(&self, code: i32, words: &[&str], what: &str) {
        assert_eq!(self.code, code, "{what} should fail with {code}: {}{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "{what} should say `{word}`: {}", self.err);
        }
    }
}

/// All mounts use the transport that the environment names.
fn with_transport(options: &str) -> String {
    let transport = std::env::var("CONQUEST_TRANSPORT").map(|t| format!("transport={t}")).unwrap_or_default();
    let words: Vec<&str> = [options, &transport].into_iter().filter(|o| !o.is_empty()).collect();
    if words.is_empty() {
        "rw".into()
    } else {
        words.join(",")
    }
}

/// A directory of a test's own.
pub fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix(PREFIX).tempdir_in(root()).expect("a temporary directory")
}

/// The directory of labs: in RAM if there is enough.
fn root() -> PathBuf {
    if let Some(dir) = std::env::var_os("CONQUEST_TEST_DIR") {
        return dir.into();
    }
    let shm = Path::new("/dev/shm");
    let enough = rustix::fs::statvfs(shm).is_ok_and(|s| s.f_bavail * s.f_frsize > 6 << 30);
    if enough {
        shm.into()
    } else {
        std::env::temp_dir()
    }
}

/// Runs another program, which must succeed; returns what it printed.
pub fn ok(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let ran = Ran::from(output);
    assert_eq!(ran.code, 0, "{command:?} failed:\n{}{}", ran.out, ran.err);
    ran.out
}

/// A program with its arguments.
pub fn program(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args);
    command
}

/// Sends a signal and waits until the process has ended.
pub fn kill_and_wait(pid: Pid, signal: Signal) {
    let process = Process::open(pid);
    rustix::process::kill_process(pid, signal).expect("kill");
    wait_until(Duration::from_secs(60), "the process ends", || process.has_ended());
}

/// A process that may be nobody's child, so that it may stay a zombie for a while.
pub struct Process(OwnedFd);

impl Process {
    pub fn open(pid: Pid) -> Process {
        Process(rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("a running process"))
    }

    pub fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
    }
}

pub fn wait_until(limit: Duration, what: &str, done: impl FnMut() -> bool) {
    wait_until_or_report(limit, || what.into(), done);
}

/// As `wait_until`; the failure reports `what()`.
pub fn wait_until_or_report(limit: Duration, what: impl Fn() -> String, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "waited {limit:?} until {}", what());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Fills a file with `len` bytes that depend on `seed`.
pub fn write_seeded(path: &Path, seed: u64, len: usize) {
    use std::io::Write;
    let bytes = rng::Rng::new(seed).bytes(len);
    File::create(path).and_then(|mut f| f.write_all(&bytes)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Is this the answer of a mount whose server is gone? There is one for later calls, one for waiting calls, and one for
/// calls that io_uring had not yet delivered.
pub fn is_gone(e: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED]
        .iter()
        .any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
}
