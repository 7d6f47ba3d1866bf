//! A disk beneath whole mounts that fails on command: it hangs, is late, fails, tears, flips, drops, or is rolled back.
//!
//! ```text
//! conquest → loop device → FUSE: one file → `exraid::fault::FaultDisk` (what goes wrong, by seed) → `RamDisk` (the content)
//!                                    └── a process of its own: this program again; lines on its stdin command it
//! ```
//!
//! A test makes one and gives its [`path`](FaultDisk::path), a loop device, or its [`file`](FaultDisk::file) as a disk:
//!
//! ```text
//! let (lab, disks) = (Lab::new(), [FaultDisk::new(128 * MIB, seed)?, FaultDisk::new(128 * MIB, seed + 1)?]);
//! lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &disks[0].path(), "--disk", &disks[1].path(), "--force"]);
//! lab.mount();
//! disks[0].set("hang=1 only=write");        // no write is answered
//! ...
//! disks[0].well();                          // what hung is done, and nothing goes wrong from now on
//! ```
//!
//! [`set`](FaultDisk::set) takes the fields of `exraid::fault::Faults`, each one in so many requests (1: all; 0: none):
//!
//! | word | the fault |
//! | --- | --- |
//! | `hang=N` | no answer until [`release`](FaultDisk::release) or [`well`](FaultDisk::well); the request is done then |
//! | `error=N` | a request fails (EIO), and is not done |
//! | `torn=N` | some sectors of a write are done, then it fails |
//! | `lost=N` | a write is not done, but answered with success |
//! | `lost_flush=N` | a flush is not done, but answered with success |
//! | `misdirected=N` | a write is done elsewhere, but answered with success |
//! | `flipped=N` | a read has one bit wrong |
//! | `only=read`, `write`, `flush`, `discard` | errors and hangs hit requests of this kind alone |
//! | `delay=MS` | each answer is this many milliseconds late |
//! | `rate=BYTES` | this many bytes in a second, at most |
//! | `gone` | every request fails |
//! | `bad=START..END` | reads of these bytes fail, until they are written |
//!
//! Fields that are not named have no fault. There are also [`mark`](FaultDisk::mark) and
//! [`roll_back`](FaultDisk::roll_back) (the disk of an earlier instant) and [`rot`](FaultDisk::rot) (bits that are
//! wrong for good).
//!
//! *The end.* Dropping it releases hanging requests, and the loop device as soon as no process has it open. So it may
//! be dropped before or after the lab, also by a failing test. If this process dies, the server process does the same.
//! The watchdog ends it by force.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use export::BlockDevice;
use exraid::device::{Device, Kind, Op, Request};
use exraid::fault::{self, Content, Faults, RamDisk};
use exraid::{Buffers, Result};

use crate::lab::{self, program};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[("fault_disk::each_fault_is_seen_through_the_loop_device", seen)];

/// The first argument that makes this program the server of a disk.
pub const SERVER: &str = "--fault-disk";

/// See the [module](self).
pub struct FaultDisk {
    device: Option<PathBuf>,
    /// The loop device exists as long as this is open.
    held: Option<File>,
    pipe: Mutex<(Child, BufReader<ChildStdout>)>,
    dir: tempfile::TempDir,
}

impl FaultDisk {
    /// A disk of so many bytes, all zero, with a loop device.
    pub fn new(bytes: u64, seed: u64) -> Result<FaultDisk, Skip> {
        let dir = lab::directory();
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg(SERVER).arg(dir.path()).args([bytes.to_string(), seed.to_string()]);
        // In a process group of its own: a signal from the terminal that ends us does not end it before its clean-up.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut server = command.spawn().expect("this program");
        let output = BufReader::new(server.stdout.take().expect("a pipe"));
        let mut disk = FaultDisk { device: None, held: None, pipe: Mutex::new((server, output)), dir };
        disk.ask("set");
        let attached = program("losetup", &["-f", "--show", "--direct-io=on"]).arg(disk.file()).output();
        let attached = attached.ok().filter(|out| out.status.success());
        let device = attached.map(|out| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()));
        let device = device.ok_or_else(|| Skip("needs loop devices".into()))?;
        disk.held = File::open(&device).ok();
        // Our descriptor holds it; it is detached when the last descriptor is closed.
        lab::ok(program("losetup", &["-d"]).arg(&device));
        disk.device = Some(device);
        Ok(disk)
    }

    /// The loop device.
    pub fn path(&self) -> String {
        self.device.as_ref().expect("a loop device").display().to_string()
    }

    /// The file below it, which serves as a disk as well.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join(fuse::VOLUME_FILE)
    }

    /// Sets the faults from now on; see the [module](self).
    pub fn set(&self, faults: &str) {
        self.ask(&format!("set {faults}"));
    }

    /// Completes the hanging requests; later ones meet the same faults.
    pub fn release(&self) {
        self.ask("release");
    }

    /// Removes all faults, and completes the hanging requests.
    pub fn well(&self) {
        self.set("");
        self.release();
    }

    /// How many requests hang.
    pub fn hanging(&self) -> usize {
        self.ask("hanging").parse().expect("a number")
    }

    /// The number of faulty requests so far.
    pub fn injected(&self) -> usize {
        self.ask("injected").parse().expect("a number")
    }

    /// Stores a copy of its content.
    pub fn mark(&self) {
        self.ask("mark");
    }

    /// Restores the content of the last mark.
    pub fn roll_back(&self) {
        self.ask("roll-back");
    }

    /// Flips a bit in each stretch of `every` bytes of `range` that has content; returns how many.
    pub fn rot(&self, range: Range<u64>, every: u64) -> usize {
        self.ask(&format!("rot {} {} {every}", range.start, range.end)).parse().expect("a number")
    }

    fn ask(&self, line: &str) -> String {
        let (server, answers) = &mut *self.pipe.lock().expect("nobody fails here");
        let mut answer = String::new();
        let asked = writeln!(server.stdin.as_ref().expect("a pipe"), "{line}");
        asked.and_then(|()| answers.read_line(&mut answer)).expect("the disk's server");
        answer.trim().strip_prefix("ok").unwrap_or_else(|| panic!("{line}: {answer}")).trim().into()
    }
}

impl Drop for FaultDisk {
    fn drop(&mut self) {
        let (server, answers) = self.pipe.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The server releases hanging requests, and ends when no process has the disk open.
        drop(server.stdin.take());
        let _ = answers.read_line(&mut String::new());
        self.held = None;
    }
}

/// Serves a disk until stdin ends and no process has it open.
pub fn serve(args: &[String]) -> ExitCode {
    let [dir, bytes, seed] = args else { return ExitCode::FAILURE };
    let (Ok(bytes), Ok(seed)) = (bytes.parse(), seed.parse()) else { return ExitCode::FAILURE };
    let content = RamDisk::new("fault disk", bytes);
    let disk = fault::FaultDisk::over(content.clone(), seed, Faults::default());
    let shown = fuse::mount_volume(Arc::new(Shown(disk.clone())), Path::new(dir), Path::new(dir));
    let shown = match shown {
        Ok(shown) => shown,
        Err(e) => {
            eprintln!("fault disk: {e}");
            return ExitCode::FAILURE;
        }
    };
    let commanded = Commanded { content, disk, marked: Content::default(), seed };
    std::thread::spawn(move || commanded.listen());
    match shown.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

struct Commanded {
    content: Arc<RamDisk>,
    disk: Arc<fault::FaultDisk>,
    marked: Content,
    seed: u64,
}

impl Commanded {
    fn listen(mut self) {
        for line in std::io::stdin().lines().map_while(std::result::Result::ok) {
            match self.obey(&line.split_whitespace().collect::<Vec<_>>()) {
                Some(answer) => println!("ok {answer}"),
                None => println!("not understood"),
            }
        }
        self.disk.set(|faults| *faults = Faults::default());
        self.disk.release();
        println!("ok");
        // The signal detaches the directory; the disk is served until its file is closed.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
    }

    fn obey(&mut self, words: &[&str]) -> Option<usize> {
        match words {
            ["set", words @ ..] => {
                let faults = parsed(words)?;
                self.disk.set(|now| *now = faults);
                // The kernel reports a failed flush only once.
                self.disk.begin_anew();
            }
            ["release"] => self.disk.release(),
            ["hanging"] => return Some(self.disk.hanging()),
            ["injected"] => return Some(self.disk.injected().len()),
            ["mark"] => self.marked = self.content.content(),
            ["roll-back"] => self.content.replace(self.marked.clone()),
            ["rot", start, end, every] => {
                return Some(self.rot(start.parse().ok()?..end.parse().ok()?, every.parse().ok()?));
            }
            _ => return None,
        }
        Some(0)
    }

    fn rot(&self, range: Range<u64>, every: u64) -> usize {
        let (mut rng, content) = (rng::Rng::new(self.seed), self.content.content());
        let mut pages: Vec<Range<u64>> = content.written().collect();
        pages.retain(|page| range.start <= page.start && page.end <= range.end);
        pages.dedup_by_key(|page| page.start / every);
        for page in &pages {
            let (at, bit) = (rng.within(page.start, page.end - 1), rng.below(8));
            self.content.overwrite(at, &[content.bytes(at..at + 1)[0] ^ 1 << bit]);
        }
        pages.len()
    }
}

fn parsed(words: &[&str]) -> Option<Faults> {
    let mut faults = Faults::default();
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        let odds = value.parse();
        match name {
            "hang" => faults.hang = odds.ok()?,
            "error" => faults.error = odds.ok()?,
            "torn" => faults.torn = odds.ok()?,
            "lost" => faults.lost = odds.ok()?,
            "lost_flush" => faults.lost_flush = odds.ok()?,
            "misdirected" => faults.misdirected = odds.ok()?,
            "flipped" => faults.flipped = odds.ok()?,
            "delay" => faults.delay = Duration::from_millis(value.parse().ok()?),
            "rate" => faults.rate = Some(value.parse().ok()?),
            "gone" => faults.gone = true,
            "bad" => {
                let (start, end) = value.split_once("..")?;
                faults.bad.push(start.parse().ok()?..end.parse().ok()?);
            }
            "only" => {
                let kinds = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];
                faults.only = Some(kinds.into_iter().find(|kind| kind.to_string() == value)?);
            }
            _ => return None,
        }
    }
    Some(faults)
}

/// The disk, as the device shown as a file.
struct Shown(Arc<fault::FaultDisk>);

impl BlockDevice for Shown {
    fn size(&self) -> u64 {
        self.0.properties().size
    }

    fn block(&self) -> u32 {
        self.0.properties().block
    }

    fn preferred(&self) -> u32 {
        self.0.properties().preferred
    }

    /// Reads at any offset: programs that probe a file do not read whole blocks.
    fn read(&self, at: u64, into: Buffers) -> Result<Buffers> {
        let block = u64::from(self.block());
        if at % block == 0 && into.len() % block == 0 {
            let answer = self.0.run(Request::read(at, into));
            return answer.result.map(|()| answer.buffers.unwrap_or_default());
        }
        let mut found = vec![0; into.len() as usize];
        self.0.read_at(&mut found, at)?;
        into.copy_from(&found);
        Ok(into)
    }

    fn write(&self, at: u64, from: Buffers) -> Result<()> {
        self.0.run(Request::write(at, from)).result
    }

    fn flush(&self) -> Result<()> {
        Device::flush(&*self.0)
    }

    fn discards(&self) -> bool {
        true
    }

    fn discard(&self, range: Range<u64>) -> Result<()> {
        self.0.run(Op::Discard(range).into()).result
    }

    fn zero(&self, range: Range<u64>) -> Result<()> {
        self.discard(range)
    }

    fn reserve(&self, _: Range<u64>) -> Result<()> {
        Ok(())
    }
}

/// The effect of each fault on a program; dropping the disk ends every hang.
fn seen() -> Outcome {
    let disk = FaultDisk::new(32 << 20, 1)?;
    let write = |at: u64, text: &str| {
        let args = ["oflag=direct", "conv=notrunc,fsync", "bs=4096", "count=1", "status=none"];
        let mut command = program("dd", &args);
        command.arg(format!("of={}", disk.path())).arg(format!("seek={}", at / 4096)).stdin(Stdio::piped());
        let mut dd = command.stderr(Stdio::null()).spawn().expect("dd");
        dd.stdin.take().expect("a pipe").write_all(&text.as_bytes().repeat(4096 / text.len())).expect("a pipe");
        dd
    };
    let done = |mut dd: Child| dd.wait().expect("dd").success();
    let read = |at: u64| {
        let args = ["iflag=direct", "bs=4096", "count=1", "status=none"];
        let mut command = program("dd", &args);
        command.arg(format!("if={}", disk.path())).arg(format!("skip={}", at / 4096));
        let out = command.output().expect("dd");
        out.status.success().then_some(out.stdout)
    };
    let holds = |at: u64, text: &str| read(at).is_some_and(|found| found == text.as_bytes().repeat(4096 / text.len()));

    assert!(done(write(0, "old.")) && holds(0, "old."), "it is a disk");
    disk.mark();
    disk.set("lost=1");
    assert!(done(write(0, "lost")) && holds(0, "old."), "a write is dropped");
    disk.set("error=1 only=write");
    assert!(!done(write(0, "fail")) && holds(0, "old."), "a write fails, and a read does not");
    disk.set("flipped=1");
    assert!(!holds(0, "old."), "a read has a bit wrong");
    disk.set("delay=50");
    let begun = std::time::Instant::now();
    assert!(holds(0, "old.") && begun.elapsed() >= Duration::from_millis(50), "late, and right");
    disk.set("hang=1 only=write");
    let hung = write(0, "hung");
    lab::wait_until(Duration::from_secs(20), "the write hangs", || disk.hanging() == 1);
    assert!(holds(0, "old."), "reads go on");
    disk.well();
    assert!(done(hung) && holds(0, "hung"), "done after all");
    disk.roll_back();
    assert!(holds(0, "old."), "as of the mark");
    assert_eq!(disk.rot(0..1 << 20, 4096), 1);
    assert!(read(0).is_some_and(|found| found != b"old.".repeat(1024)), "a bit is wrong for good");
    assert!(disk.injected() >= 4);

    disk.set("hang=1");
    let hung = write(4096, "hung");
    lab::wait_until(Duration::from_secs(20), "the write hangs", || disk.hanging() > 0);
    let device = disk.path();
    drop(disk);
    assert!(done(hung), "what hung is done when the disk is dropped");
    let name = Path::new(&device).file_name().expect("a name").to_owned();
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    lab::wait_until(Duration::from_secs(20), "the loop device is let go", || !backing.exists());
    Ok(())
}
