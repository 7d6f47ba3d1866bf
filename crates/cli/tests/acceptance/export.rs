//! Volumes exported as one block device: another file system lives on a stripe, a mirror and a RAID-5, and loses a disk
//! in use.
//!
//! The lost disk is the file of another volume, whose server is killed: from then on each of its requests fails.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::lab::{self, kill_and_wait, program, require, wait_until, Lab};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("export::ext4_lives_on_a_stripe", stripe),
    ("export::ext4_on_a_mirror_outlives_a_disk", mirror),
    ("export::ext4_on_raid5_outlives_a_disk", raid5),
    ("export::who_serves_is_killed_and_the_file_system_recovers", killed),
    ("export::a_server_that_is_asked_to_end_waits_for_its_users", asked_to_end),
    ("export::pools_and_what_is_no_volume_are_refused", refused),
];

/// A loop device, detached on drop.
struct Loop(String);

impl Loop {
    fn of(file: &Path, args: &[&str]) -> Result<Loop, Skip> {
        let mut command = program("losetup", args);
        let output = command.args(["-f", "--show"]).arg(file).output().expect("losetup");
        match output.status.success() {
            true => Ok(Loop(String::from_utf8_lossy(&output.stdout).trim().into())),
            false => Err(Skip(format!("needs loop devices: {}", String::from_utf8_lossy(&output.stderr).trim()))),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = program("losetup", &["-d", &self.0]).stderr(Stdio::null()).status();
    }
}

/// A lab with a volume at `vol`, to be mounted at `shown`, and a mount point `fs` for the file system in it.
struct Export {
    lab: Lab,
}

impl Export {
    fn new() -> Result<Export, Skip> {
        ["losetup", "mkfs.ext4", "fsck.ext4"].into_iter().try_for_each(require)?;
        let lab = Lab::new();
        for dir in ["shown", "fs", "inner-shown"] {
            fs::create_dir(lab.path(dir)).expect("mkdir");
        }
        Ok(Export { lab })
    }

    /// Also makes a disk that [`lose`](Self::lose) can take away.
    fn with_weak_disk() -> Result<(Export, String), Skip> {
        let it = Export::new()?;
        let lab = &it.lab;
        lab.ok(&["export", "make", &lab.text("inner"), &format!("{}:130M", lab.text("inner-disk"))]);
        lab.ok(&["export", "mount", &lab.text("inner"), &lab.text("inner-shown")]);
        let weak = lab.text("inner-shown/volume");
        Ok((it, weak))
    }

    fn lose(&self) {
        kill_and_wait(self.server("inner"), Signal::KILL);
    }

    fn server(&self, volume: &str) -> Pid {
        let pid = self.status(volume)["pid"].as_i64().expect("a server");
        Pid::from_raw(pid as i32).expect("a server")
    }

    fn status(&self, volume: &str) -> serde_json::Value {
        let ran = self.lab.run(&["export", "status", &self.lab.text(volume), "--json"]);
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}{}", ran.out, ran.err))
    }

    fn show(&self) {
        self.lab.ok(&["export", "mount", &self.lab.text("vol"), &self.lab.text("shown")]);
    }

    fn hide(&self) {
        self.lab.ok(&["export", "umount", &self.lab.text("shown")]);
    }

    fn file(&self) -> PathBuf {
        self.lab.path("shown/volume")
    }

    fn fs(&self) -> PathBuf {
        self.lab.path("fs")
    }

    fn mount(&self, device: &Loop) {
        lab::ok(program("mount", &[&device.0]).arg(self.fs()));
    }

    fn umount(&self) {
        lab::ok(program("umount", &[]).arg(self.fs()));
    }

    /// The file system's own check reports nothing.
    fn check(device: &Loop) {
        lab::ok(&mut program("fsck.ext4", &["-fn", &device.0]));
    }
}

/// Writes directories, small files and large ones, the same to each of `dirs`, for a comparison.
fn load(from: u32, dirs: &[&Path]) {
    let mut rng = rng::Rng::new(u64::from(from));
    for number in from..from + 60 {
        let content = match number % 20 {
            0 => rng.bytes(3_000_000),
            _ => {
                let len = rng.below(20_000) as usize;
                rng.bytes(len)
            }
        };
        for dir in dirs {
            let dir = dir.join(format!("dir-{}", number % 7));
            fs::create_dir_all(&dir).expect("mkdir");
            let mut file = File::create(dir.join(format!("file-{number}"))).expect("create");
            file.write_all(&content).expect("write");
            if number % 3 == 0 {
                file.sync_all().expect("fsync");
            }
            if number % 5 == 4 && number > 7 {
                let _ = fs::remove_file(dir.parent().expect("a parent").join(format!(
                    "dir-{}/file-{}",
                    (number - 7) % 7,
                    number - 7
                )));
            }
        }
    }
}

/// Transactions of sqlite3, where it is installed.
fn database(dir: &Path, from: u32) {
    if require("sqlite3").is_err() {
        return;
    }
    let mut script = String::from("create table if not exists t (n integer primary key, text text);\n");
    for n in from..from + 40 {
        script += &format!("insert into t values ({n}, '{}');\n", "x".repeat(n as usize % 100 * 20));
    }
    script += "select count(*) from t; pragma integrity_check;\n";
    let said = lab::ok(program("sqlite3", &[]).arg(dir.join("db")).arg(script));
    assert_eq!(said.trim(), format!("{}\nok", from + 40));
}

fn is_same(it: &Export, reference: &Path) {
    let ignored = |path: &Path| path.ends_with("lost+found") || path.ends_with("db");
    for (here, there) in [(reference, it.fs()), (&*it.fs(), reference.to_path_buf())] {
        walk(here, &mut |path| {
            if ignored(path) {
                return;
            }
            let other = there.join(path.strip_prefix(here).expect("below"));
            match path.is_dir() {
                true => assert!(other.is_dir(), "{}", other.display()),
                false => {
                    let read = |path: &Path| fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                    assert!(read(path) == read(&other), "{} and {} differ", path.display(), other.display());
                }
            }
        });
    }
}

fn walk(dir: &Path, see: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        see(&entry.path());
        if entry.path().is_dir() {
            walk(&entry.path(), see);
        }
    }
}

fn reference(it: &Export) -> PathBuf {
    let dir = it.lab.path("reference");
    fs::create_dir(&dir).expect("mkdir");
    dir
}

fn stripe() -> Outcome {
    let it = Export::new()?;
    let lab = &it.lab;
    let disk = |name: &str| format!("{}:64M", lab.text(name));
    // A stripe, followed by a disk.
    lab.ok(&["export", "make", &lab.text("vol"), &format!("stripe:{},{}", disk("a"), disk("b")), &disk("c")]);
    it.show();
    assert_eq!(it.status("vol")["regions"].as_array().map(Vec::len), Some(2));
    // Through the loop device's cache, which is the default of losetup.
    let device = Loop::of(&it.file(), &[])?;
    lab::ok(&mut program("mkfs.ext4", &["-q", &device.0]));
    it.mount(&device);
    let reference = reference(&it);
    load(0, &[&it.fs(), &reference]);
    database(&it.fs(), 0);
    lab.refused(1, &["export", "umount", &lab.text("shown")], &["in use", "losetup"]);
    it.umount();
    Export::check(&device);
    drop(device);
    it.hide();
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    it.mount(&device);
    is_same(&it, &reference);
    // Trimmed blocks are freed on the host.
    let backed = || {
        use std::os::unix::fs::MetadataExt;
        ["a", "b", "c"].iter().map(|name| fs::metadata(lab.path(name)).expect("there").blocks() * 512).sum::<u64>()
    };
    let before = backed();
    for entry in fs::read_dir(it.fs()).expect("read").flatten().filter(|entry| entry.file_name() != "lost+found") {
        let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
    }
    // ext4 counts blocks as free after its journal commits.
    lab::ok(program("sync", &["-f"]).arg(it.fs()));
    lab::ok(program("fstrim", &[]).arg(it.fs()));
    assert!(backed() + (4 << 20) < before, "{} after {before}", backed());
    it.umount();
    Export::check(&device);
    drop(device);
    it.hide();
    Ok(())
}

fn mirror() -> Outcome {
    let (it, weak) = Export::with_weak_disk()?;
    let region = format!("mirror:{}:130M,{weak}", it.lab.text("a"));
    outlives(&it, &region, &weak, "a")
}

fn raid5() -> Outcome {
    let (it, weak) = Export::with_weak_disk()?;
    let region = format!("raid5:{}:130M,{weak},{}:130M", it.lab.text("a"), it.lab.text("c"));
    outlives(&it, &region, &weak, "c")
}

/// A disk is lost under load, and another replaces it; then a second one is lost for good.
fn outlives(it: &Export, region: &str, weak: &str, second: &str) -> Outcome {
    let lab = &it.lab;
    lab.ok(&["export", "make", &lab.text("vol"), region, "--force"]);
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    lab::ok(&mut program("mkfs.ext4", &["-q", &device.0]));
    it.mount(&device);
    let reference = reference(it);
    let writer = std::thread::scope(|scope| {
        let writer = scope.spawn(|| load(0, &[&it.fs(), &reference]));
        database(&it.fs(), 0);
        it.lose();
        database(&it.fs(), 40);
        writer.join()
    });
    writer.expect("the load does not notice");
    load(60, &[&it.fs(), &reference]);
    let shown = lab.run(&["export", "status", &lab.text("vol")]);
    assert!(
        shown.code == 1 && shown.out.contains("OUT") && shown.out.contains("can do without no disk"),
        "{}",
        shown.out
    );
    it.umount();
    Export::check(&device);
    it.mount(&device);
    is_same(it, &reference);
    // While the file system is in use.
    lab.ok(&["export", "replace", &lab.text("vol"), weak, &lab.text("new")]);
    let shown = lab.ok(&["export", "status", &lab.text("shown")]);
    assert!(shown.contains(&lab.text("new")) && !shown.contains("OUT"), "{shown}");
    load(120, &[&it.fs(), &reference]);
    it.umount();
    drop(device);
    it.hide();

    fs::remove_file(lab.path(second)).expect("removed");
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    Export::check(&device);
    it.mount(&device);
    is_same(it, &reference);
    database(&it.fs(), 80);
    it.umount();
    drop(device);
    it.hide();
    let shown = lab.run(&["export", "status", &lab.text("vol")]);
    assert!(shown.code == 1 && shown.out.contains("MISSING") && shown.out.contains(&lab.text(second)), "{}", shown.out);
    Ok(())
}

/// The server is killed under load, and a disk is missing afterwards: fsynced content is readable.
fn killed() -> Outcome {
    let it = Export::new()?;
    let lab = &it.lab;
    let disk = |name: &str| format!("{}:100M", lab.text(name));
    lab.ok(&["export", "make", &lab.text("vol"), &format!("raid5:{},{},{}", disk("a"), disk("b"), disk("c"))]);
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    lab::ok(&mut program("mkfs.ext4", &["-q", &device.0]));
    it.mount(&device);
    let synced = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let write = || {
                    let mut file = File::create(it.fs().join(n.to_string()))?;
                    file.write_all(&rng::Rng::new(n).bytes(10_000))?;
                    file.sync_all()
                };
                match write() {
                    Ok(()) => synced.store(n as u32 + 1, std::sync::atomic::Ordering::SeqCst),
                    Err(_) => return,
                }
            }
        });
        let count = || synced.load(std::sync::atomic::Ordering::SeqCst);
        wait_until(Duration::from_secs(20), "files are there", || count() > 30);
        kill_and_wait(it.server("vol"), Signal::KILL);
    });
    let count = synced.into_inner();
    let _ = program("umount", &["-l"]).arg(it.fs()).status();
    drop(device);
    fs::rename(lab.path("b"), lab.path("away")).expect("renamed");
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    // The journal is replayed.
    it.mount(&device);
    for n in 0..count {
        let found = fs::read(it.fs().join(n.to_string())).expect("what was fsynced");
        assert!(found == rng::Rng::new(u64::from(n)).bytes(10_000), "file {n} of {count}");
    }
    it.umount();
    Export::check(&device);
    drop(device);
    it.hide();
    // The disk returns, and catches up by itself.
    fs::rename(lab.path("away"), lab.path("b")).expect("renamed");
    it.show();
    wait_until(Duration::from_secs(20), "it is whole", || lab.run(&["export", "status", &lab.text("vol")]).code == 0);
    it.hide();
    Ok(())
}

fn asked_to_end() -> Outcome {
    let it = Export::new()?;
    let lab = &it.lab;
    lab.ok(&["export", "make", &lab.text("vol"), &format!("{}:64M", lab.text("a"))]);
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    lab::ok(&mut program("mkfs.ext4", &["-q", &device.0]));
    it.mount(&device);
    let server = it.server("vol");
    let process = lab::Process::open(server);
    rustix::process::kill_process(server, Signal::TERM).expect("kill");
    wait_until(Duration::from_secs(10), "it lets go of its place", || !it.file().exists());
    fs::write(it.fs().join("file"), "text").expect("written");
    lab::ok(program("sync", &["-f"]).arg(it.fs()));
    assert!(!process.has_ended());
    it.umount();
    drop(device);
    wait_until(Duration::from_secs(10), "it ends", || process.has_ended());
    it.show();
    let device = Loop::of(&it.file(), &["--direct-io=on"])?;
    Export::check(&device);
    it.mount(&device);
    assert_eq!(fs::read(it.fs().join("file")).expect("read"), b"text");
    it.umount();
    drop(device);
    // `conquest umount` works too, also with the volume's directory.
    lab.ok(&["umount", &lab.text("vol")]);
    lab.refused(1, &["export", "umount", &lab.text("shown")], &["no volume is mounted", "findmnt"]);
    Ok(())
}

fn refused() -> Outcome {
    let lab = Lab::with_pool("16M");
    let disk = format!("{}:64M", lab.text("disk"));
    lab.ok(&["region", "add", &lab.pool(), &disk]);
    fs::create_dir(lab.path("shown")).expect("mkdir");
    let (vol, shown) = (lab.text("vol"), lab.text("shown"));
    lab.refused(1, &["export", "mount", &lab.pool(), &shown], &["is a pool", "never exported", "export make"]);
    lab.refused(1, &["export", "make", &vol, &lab.text("disk")], &["of the pool", "never exported"]);
    lab.mount();
    lab.refused(1, &["export", "mount", &lab.text("mnt"), &shown], &["is the pool", "never exported"]);
    lab.refused(1, &["export", "make", &vol, &lab.text("disk"), "--force"], &["in use"]);
    lab.umount();
    lab.refused(1, &["export", "status", &vol], &["no volume", "export make"]);
    lab.refused(2, &["export", "make", &vol, &format!("raid5:{disk}x")], &["size"]);
    lab.refused(1, &["export", "make", &vol, &format!("mirror:{}:64M", lab.text("x"))], &["mirror", "disks"]);
    lab.refused(2, &["export", "make", &vol], &["PATH"]);
    assert!(!lab.path("vol").exists() && !lab.path("x").exists());

    lab.ok(&["export", "make", &vol, &format!("mirror:{0}:64M,{1}:64M", lab.text("x"), lab.text("y"))]);
    lab.refused(1, &["mount", &vol, &shown], &["no pool"]);
    lab.refused(1, &["export", "mount", &vol, &lab.text("nowhere")], &["no such directory", "mkdir"]);
    lab.ok(&["export", "mount", &vol, &shown]);
    lab.refused(1, &["export", "mount", &vol, &lab.text("mnt")], &["in use", "export status"]);
    lab.refused(1, &["region", "add", &lab.pool(), &lab.text("x"), "--force"], &["in use"]);
    // The file has the fixed size of a device; and any bytes can be written.
    let file = lab.path("shown/volume");
    let size = fs::metadata(&file).expect("there").len();
    fs::write(&file, "any bytes").expect("written");
    assert_eq!(fs::metadata(&file).expect("there").len(), size);
    let found = fs::read(&file).expect("read");
    assert!(found.len() as u64 == size && found.starts_with(b"any bytes"));
    assert!(fs::write(lab.path("shown/other"), "").is_err() && fs::remove_file(&file).is_err());
    lab.refused(1, &["export", "destroy", &vol], &["in use"]);
    lab.ok(&["export", "umount", &vol]);
    lab.ok(&["export", "destroy", &vol]);
    assert!(!lab.path("vol").exists() && lab.path("x").exists());
    // The disks belong to no volume now.
    lab.ok(&["export", "make", &vol, &lab.text("x")]);
    Ok(())
}
