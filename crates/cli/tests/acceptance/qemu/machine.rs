//! A machine that can be booted, listened to and killed: QEMU under software emulation, so that it runs wherever tests
//! run.
//!
//! It boots Debian's cloud kernel (`CONQUEST_GUEST`, fetched by `./test qemu`) with a root of ours, persistent memory
//! and disks that are files of this machine. Content that the guest has stored in its persistent memory, or written to
//! a disk, stays when the process is killed. Its output lines that begin with `@ ` are for the test; a failing test
//! shows all its output.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::initramfs;
use crate::lab::{self, program, require};
use crate::Skip;

/// The prefix of the guest's messages to the test.
pub const MARK: &str = "@ ";

/// The guest is never silent for so long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(300);
const SHOWN: usize = 200;

/// The parts of a machine, in a directory of their own.
pub struct Parts {
    dir: tempfile::TempDir,
    kernel: PathBuf,
    memory: Vec<Memory>,
    disks: Vec<PathBuf>,
    logged: Option<LoggedDisk>,
    /// QEMU's `-cpu`.
    pub processor: &'static str,
    /// The platform's declared treatment of its caches in a power cut (QEMU's `nvdimm-persistence`).
    pub persistence: &'static str,
}

/// An emulated NVDIMM.
struct Memory {
    file: PathBuf,
    bytes: u64,
}

/// A disk of which every write and flush is logged.
pub struct LoggedDisk {
    disk: PathBuf,
    /// Its initial content: an ext4 file system, and behind it space for notes.
    pub base: PathBuf,
    pub log: PathBuf,
    bytes: u64,
}

impl LoggedDisk {
    /// The offset of the notes.
    pub fn notes_at(&self) -> u64 {
        self.bytes
    }

    /// Replaces its content by that of `file`.
    pub fn replace(&self, file: &Path) {
        [&self.disk, &self.base].into_iter().for_each(|to| copy_sparse(file, to));
        make_file(&self.log, 0);
    }
}

/// The number of bytes behind the file system of a logged disk.
const NOTES: u64 = 1 << 20;

impl Parts {
    /// A machine without persistent memory and without disks.
    pub fn new() -> Result<Parts, Skip> {
        ["qemu-system-x86_64", "setpriv"].into_iter().try_for_each(require)?;
        initramfs::what_is_missing()?;
        let (kernel, modules) = kernel()?;
        let dir = lab::directory();
        let (memory, disks, logged) = (Vec::new(), Vec::new(), None);
        let parts = Parts { dir, kernel, memory, disks, logged, processor: "max", persistence: "mem-ctrl" };
        initramfs::pack(&modules, Path::new(env!("CARGO_BIN_EXE_conquest")), &parts.initramfs());
        Ok(parts)
    }

    /// The file behind the guest's /dev/pmem`number`.
    pub fn memory(&self, number: usize) -> &Path {
        &self.memory[number].file
    }

    /// Replaces the guest's /dev/pmem`number` by new, empty memory.
    pub fn replace_memory(&self, number: usize) {
        let Memory { file, bytes } = &self.memory[number];
        make_file(file, *bytes);
    }

    fn initramfs(&self) -> PathBuf {
        self.dir.path().join("initramfs")
    }

    /// Adds persistent memory; the guest's /dev/pmem0 and so on.
    pub fn with_memory(mut self, mib: u64) -> Parts {
        let bytes = mib << 20;
        let file = self.dir.path().join(format!("memory{}", self.memory.len()));
        make_file(&file, bytes);
        self.memory.push(Memory { file, bytes });
        self
    }

    /// Adds a disk with an ext4 file system; the guest's /dev/vda and so on.
    pub fn with_disk(mut self, mib: u64) -> Parts {
        let file = self.dir.path().join(format!("disk{}", self.disks.len()));
        make_file(&file, mib << 20);
        lab::ok(program("mkfs.ext4", &["-q", "-F"]).arg(&file));
        self.disks.push(file);
        self
    }

    /// Adds the disk of which every write is logged, after the others; one at most.
    pub fn with_logged_disk(mut self, mib: u64) -> Parts {
        let file = |name: &str| self.dir.path().join(name);
        let (disk, base, log, bytes) = (file("logged"), file("logged.base"), file("logged.writes"), mib << 20);
        make_file(&disk, bytes + NOTES);
        make_file(&log, 0);
        // Initialised at once, else the kernel would do it in the guest.
        let at_once = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        lab::ok(program("mkfs.ext4", &at_once).arg(&disk).arg(format!("{mib}M")));
        copy_sparse(&disk, &base);
        self.logged = Some(LoggedDisk { disk, base, log, bytes });
        self
    }

    pub fn logged_disk(&self) -> &LoggedDisk {
        self.logged.as_ref().expect("a machine with such a disk")
    }

    /// Boots, and passes the words to the guest's half of the tests.
    pub fn boot(&self, words: &[&str]) -> Machine {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args(["-accel", "tcg", "-cpu", self.processor, "-smp", "2"]);
        command.args(["-machine", &format!("pc,nvdimm=on,nvdimm-persistence={}", self.persistence)]);
        command.args(["-m", &format!("1G,slots={},maxmem=8G", self.memory.len().max(1))]);
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(self.initramfs());
        // On a busy host the emulated timer is late, and the kernel would take it for broken.
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 no_timer_check -- {}", words.join(" "))]);
        for (i, Memory { file, bytes }) in self.memory.iter().enumerate() {
            let file = file.display();
            let backend = format!("memory-backend-file,id=m{i},share=on,mem-path={file},size={bytes}");
            command.args(["-object", &backend, "-device", &format!("nvdimm,id=n{i},memdev=m{i}")]);
        }
        for disk in &self.disks {
            command.args(["-drive", &format!("file={},if=virtio,format=raw", disk.display())]);
        }
        if let Some(LoggedDisk { disk, log, .. }) = &self.logged {
            for (node, file) in [("disk", disk), ("writes", log)] {
                let file = format!("driver=file,filename={}", file.display());
                command.args(["-blockdev", &format!("{file},node-name={node}-file")]);
                command.args(["-blockdev", &format!("driver=raw,file={node}-file,node-name={node}")]);
            }
            command.args(["-blockdev", "driver=blklogwrites,file=disk,log=writes,node-name=logged"]);
            // With a cache of its own, so that the guest's flushes arrive as flushes.
            command.args(["-device", "virtio-blk-pci,drive=logged,write-cache=on"]);
        }
        Machine::start(command)
    }
}

fn make_file(path: &Path, bytes: u64) {
    File::create(path).and_then(|f| f.set_len(bytes)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Copies a file without its zeros.
pub fn copy_sparse(from: &Path, to: &Path) {
    lab::ok(program("cp", &["--sparse=always"]).arg(from).arg(to));
}

/// The guest's kernel and the directory of its modules.
fn kernel() -> Result<(PathBuf, PathBuf), Skip> {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/guest").into();
    let dir = std::env::var_os("CONQUEST_GUEST").map_or_else(default, PathBuf::from);
    let find = |dir: PathBuf, prefix: &str| {
        let mut entries = std::fs::read_dir(dir).ok()?.filter_map(|e| Some(e.ok()?.path()));
        entries.find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
    };
    match (find(dir.join("boot"), "vmlinuz"), find(dir.join("lib/modules"), "")) {
        (Some(kernel), Some(modules)) if modules.join("modules.dep").exists() => Ok((kernel, modules)),
        _ => Err(Skip("needs a kernel for the guest; `./test qemu` fetches Debian's".into())),
    }
}

/// A running machine. Dropping it kills it.
pub struct Machine {
    process: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Machine {
    fn start(mut command: Command) -> Machine {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("qemu");
        let console = process.stdout.take().expect("a pipe");
        Machine { process, lines: listen(console), said: Vec::new() }
    }

    /// Waits until the guest says `word`; returns the rest of the line.
    pub fn hear(&mut self, word: &str) -> String {
        self.listen_for(word).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// As `hear`; any other message for the test meanwhile, and the end of the guest, is a failure.
    pub fn listen_for(&mut self, word: &str) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        while let Some(line) = self.line(until) {
            let Some(said) = line.strip_prefix(MARK) else { continue };
            return match said.strip_prefix(word) {
                Some(rest) => Ok(rest.trim().into()),
                None => Err(self.last_words(&format!("the guest said `{said}` instead of `{word}`"))),
            };
        }
        Err(self.last_words(&format!("the guest did not say `{word}`")))
    }

    /// Waits until the guest has turned itself off without a failure.
    pub fn end(mut self) {
        if self.hear("ended") != "0" {
            panic!("{}", self.last_words("the guest's part of the test failed"));
        }
        let until = Instant::now() + PATIENCE;
        while self.line(until).is_some() {}
        lab::wait_until(PATIENCE, "the machine turns itself off", || self.process.try_wait().expect("wait").is_some());
    }

    /// Acts like a power cut, except for the content of the processor's caches, which survives in this machine. The
    /// guest must have no pending message.
    pub fn kill(mut self) {
        self.stop();
        let until = Instant::now() + PATIENCE;
        while let Some(line) = self.line(until) {
            if let Some(said) = line.strip_prefix(MARK) {
                panic!("{}", self.last_words(&format!("the guest said `{said}` before the cut")));
            }
        }
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn line(&mut self, until: Instant) -> Option<String> {
        let patience = until.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                self.said.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// A text with `what` went wrong, and the last output of the guest.
    fn last_words(&mut self, what: &str) -> String {
        // It may be about to report the reason.
        let until = Instant::now() + Duration::from_secs(5);
        while self.line(until).is_some() {}
        let last = &self.said[self.said.len().saturating_sub(SHOWN)..];
        format!("{what}; the last that it said:\n{}", last.join("\n"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The lines of a console, as they come.
fn listen(console: ChildStdout) -> Receiver<String> {
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_string();
            if tell.send(line).is_err() {
                break;
            }
        }
    });
    lines
}
