//! Pools of the run, and mounts of them through the `conquest` program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conquest::{CommitInterval, CompressionConfig, SessionStatus};
use conquest::{FormatOptions, MediumKind, OpenOptions, Pool};

use crate::args::Kind;
use crate::error::Error;
use crate::hosts;

/// Formats a battery pool of `bytes` at `dir`.
pub fn format(dir: &Path, bytes: u64) -> Result<(), Error> {
    format_as(dir, FormatOptions::on(MediumKind::Battery, bytes))
}

/// The same, which compresses nothing by itself.
pub fn format_without_compression(dir: &Path, bytes: u64) -> Result<(), Error> {
    let compression = CompressionConfig::of(&[("share".into(), 0)]).map_err(Error::Wrong)?;
    format_as(dir, FormatOptions { compression, ..FormatOptions::on(MediumKind::Battery, bytes) })
}

/// The same, which compresses whatever has not been used for a second.
pub fn format_compressing(dir: &Path, bytes: u64) -> Result<(), Error> {
    let settings = ["warm", "cold", "packed"].map(|age| (age.into(), 1));
    let compression = CompressionConfig::of(&settings).map_err(Error::Wrong)?;
    format_as(dir, FormatOptions { compression, ..FormatOptions::on(MediumKind::Battery, bytes) })
}

/// The same with a running copy in the directory `copy`.
pub fn format_copied(dir: &Path, bytes: u64, copy: &Path, every: CommitInterval) -> Result<(), Error> {
    let how = FormatOptions::on(MediumKind::Battery, bytes);
    format_as(dir, FormatOptions { backing: Some(copy.into()), commit_interval: Some(every), ..how })
}

fn format_as(dir: &Path, how: FormatOptions) -> Result<(), Error> {
    Pool::format(dir, &FormatOptions { force: true, ..how }).map_err(|e| Error::from(e).at("format"))
}

/// A pool on the medium `logged`; dropping it removes it.
pub struct Logged {
    pub dir: PathBuf,
}

impl Logged {
    /// Formats one of `bytes` at `dir`.
    pub fn make(dir: PathBuf, bytes: u64) -> Result<Logged, Error> {
        Logged::make_committing(dir, bytes, None)
    }

    /// The same, with an interval from commit to commit.
    pub fn make_committing(dir: PathBuf, bytes: u64, every: Option<CommitInterval>) -> Result<Logged, Error> {
        let pool = Logged { dir };
        let how = FormatOptions { commit_interval: every, ..FormatOptions::on(MediumKind::Logged, bytes) };
        format_as(&pool.dir, how)?;
        Ok(pool)
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// A pool that keeps large files on a disk; dropping it removes both.
pub struct WithDisk {
    pub dir: PathBuf,
    disk: PathBuf,
}

/// What such a pool is made of.
pub struct Making<'a> {
    pub dir: &'a Path,
    pub medium: MediumKind,
    /// Bytes of persistent RAM.
    pub ram: u64,
    /// The disk's file, which is not there yet, and its bytes.
    pub disk: &'a Path,
    pub bytes: u64,
    /// Beyond what size a file's content goes there, if not as usual.
    pub threshold: Option<u64>,
}

impl WithDisk {
    /// Makes one with the program `program`. One that knows no disks makes a pool that holds in its persistent RAM what
    /// the disk would have held: [`has_disks`] tells.
    pub fn make(program: &Path, how: &Making<'_>) -> Result<WithDisk, Error> {
        let pool = WithDisk { dir: how.dir.to_owned(), disk: how.disk.to_owned() };
        let (medium, copy) = match how.medium {
            MediumKind::Logged => ("logged", None),
            MediumKind::Battery => ("battery", Some(["--copy", "none"])),
            MediumKind::Dax => ("dax", Some(["--copy", "none"])),
        };
        let disk = has_disks(program);
        let ram = if disk { how.ram } else { how.ram + how.bytes };
        let mut format = Command::new(program);
        format.arg("format").arg(how.dir).args(["--force", "--medium", medium, "--nvram", &ram.to_string()]);
        format.args(copy.into_iter().flatten());
        if disk {
            format.arg("--disk").arg(format!("{}:{}", how.disk.display(), how.bytes));
            format.args(how.threshold.iter().flat_map(|bytes| ["--threshold".into(), bytes.to_string()]));
        }
        hosts::run(&mut format).map_err(|e| e.at("format"))?;
        Ok(pool)
    }
}

impl Drop for WithDisk {
    fn drop(&mut self) {
        remove(&self.dir);
        // There is none where pools have none.
        let _ = std::fs::remove_file(&self.disk);
    }
}

/// A pool that the program made, on whatever; dropping it removes it.
pub struct Made {
    pub dir: PathBuf,
}

impl Made {
    /// Makes one at `dir`, with `ram` bytes of persistent RAM, on disks as the command line names them.
    pub fn on(program: &Path, dir: PathBuf, medium: MediumKind, ram: u64, disks: &[String]) -> Result<Made, Error> {
        let pool = Made { dir };
        let mut format = Command::new(program);
        format.arg("format").arg(&pool.dir).args(["--force", "--medium", &medium.to_string()]);
        format.args(["--nvram", &ram.to_string()]);
        format.args((medium != MediumKind::Logged).then_some(["--copy", "none"]).into_iter().flatten());
        format.args(disks.iter().flat_map(|disk| ["--disk", disk]));
        hosts::run(&mut format).map_err(|e| e.at("format"))?;
        Ok(pool)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// Does a program make pools with disks?
pub fn has_disks(program: &Path) -> bool {
    let help = Command::new(program).args(["format", "--help"]).stdin(Stdio::null()).output();
    help.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("--disk"))
}

/// Removes a pool, with what is in shared memory of it. Without a word: it may be half made, or gone.
pub fn remove(pool: &Path) {
    forget(pool);
    let _ = std::fs::remove_dir_all(pool);
}

/// Takes from memory what is there of a pool that nobody has open, as a reboot does.
pub fn forget(pool: &Path) {
    for path in Pool::memory(pool).unwrap_or_default() {
        let _ = std::fs::remove_file(path);
    }
}

/// A mounted pool; dropping it unmounts it.
pub struct Mount {
    pub dir: PathBuf,
    pool: PathBuf,
    program: PathBuf,
    /// The pool is the mount's own, and goes with it.
    owned: bool,
}

impl Mount {
    /// Formats a pool below `base` on the medium that `kind` names, and mounts it over its transport. A mount that came
    /// up over another transport is refused: its figures would stand in the wrong row.
    pub fn make(kind: Kind, base: &Path, bytes: u64, program: &Path) -> Result<Mount, Error> {
        let (transport, shown) = if kind == Kind::BatteryDev { ("dev", "/dev/fuse") } else { ("uring", "io_uring") };
        let medium = if kind == Kind::LoggedUring { MediumKind::Logged } else { MediumKind::Battery };
        let pool = base.join(kind.file_name() + ".pool");
        // From here on dropping it cleans up.
        let mount = Mount { dir: base.join(kind.file_name()), pool, program: program.to_owned(), owned: true };
        format_as(&mount.pool, FormatOptions::on(medium, bytes))?;
        mount.begin(&["-o", &format!("transport={transport}")])?;
        let used = mount.transport()?;
        if used != shown {
            return Err(Error::Wrong(format!("asked for the transport {shown}, got {used}")));
        }
        Ok(mount)
    }

    /// Mounts a pool at `dir` as the program does by itself; the pool outlives the mount.
    pub fn of(pool: &Path, dir: PathBuf, program: &Path) -> Result<Mount, Error> {
        let mount = Mount { dir, pool: pool.to_owned(), program: program.to_owned(), owned: false };
        mount.begin(&[])?;
        Ok(mount)
    }

    fn begin(&self, options: &[&str]) -> Result<(), Error> {
        std::fs::create_dir_all(&self.dir).map_err(Error::file(&self.dir))?;
        hosts::run(Command::new(&self.program).arg("mount").arg(&self.pool).arg(&self.dir).args(options))
    }

    /// The transport in use, as the status calls it.
    pub fn transport(&self) -> Result<String, Error> {
        Ok(self.server()?.transport.unwrap_or_else(|| "none".into()))
    }

    /// The server's process.
    pub fn pid(&self) -> Result<u32, Error> {
        Ok(self.server()?.pid)
    }

    /// All servers of the pool, also for other directories.
    pub fn servers(&self) -> Result<Vec<SessionStatus>, Error> {
        let mut sessions = Pool::open(&self.pool, &OpenOptions::default())?.status()?.sessions;
        sessions.retain(|session| session.transport.is_some());
        Ok(sessions)
    }

    fn server(&self) -> Result<SessionStatus, Error> {
        self.servers()?
            .pop()
            .ok_or_else(|| Error::Wrong(format!("{} is mounted, but its status shows no server", self.pool.display())))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if hosts::run(Command::new(&self.program).arg("umount").arg(&self.dir)).is_err() {
            hosts::unmount(&self.dir);
        }
        if self.owned {
            remove(&self.pool);
        }
    }
}
