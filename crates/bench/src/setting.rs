//! What lies where in the workloads of large files.
//!
//! On the machine's own disk, ext4 is on a loop device past the page cache over a file there, and a pool keeps its large
//! files in another file of that disk; the pool directory of a pool on `logged` lies there too, that of one on `battery`
//! in RAM, which is what such memory is. RAM-backed, all of that lies on tmpfs: a flush costs nothing, and what is left is
//! the work of the file systems and of the way to them.

use std::path::{Path, PathBuf};

use conquest::MediumKind;

use crate::args;
use crate::context::Context;
use crate::disk::{require_room, Disk};
use crate::error::Error;
use crate::hosts::{Host, Journal};
use crate::program::{has_disks, Making, WithDisk};
use report::goals::Finding;

/// One of the settings, ready to be worked in.
pub struct Setting<'a> {
    pub context: &'a Context,
    pub which: args::Setting,
    /// What is beneath, for titles.
    pub name: String,
    /// Where disks and images lie.
    home: PathBuf,
    /// Beyond what size pools have content on disk, if not as usual.
    threshold: Option<u64>,
}

impl<'a> Setting<'a> {
    /// The settings that are asked for; those that cannot be had come back with the reason.
    pub fn all(context: &'a Context, grounds: &args::Grounds) -> Vec<Result<Setting<'a>, (args::Setting, String)>> {
        let make = |&which| Setting::make(context, which).map_err(|e| (which, e.to_string()));
        grounds.setting.iter().map(make).collect()
    }

    fn make(context: &'a Context, which: args::Setting) -> Result<Setting<'a>, Error> {
        let (home, name) = match which {
            args::Setting::OwnDisk => {
                let dir = context.disk.as_deref();
                let dir = dir.ok_or_else(|| Error::Usage("no directory on a disk was made".into()))?;
                let disk = Disk::at(dir)?;
                let name = disk.name();
                (disk.dir, name)
            }
            args::Setting::RamBacked => (context.base.clone(), "tmpfs".into()),
        };
        Ok(Setting { context, which, name, home, threshold: None })
    }

    /// The same, whose pools have the content of files beyond so many bytes on disk.
    pub fn with_threshold(self, bytes: u64) -> Setting<'a> {
        Setting { threshold: Some(bytes), ..self }
    }

    /// The name of a section in this setting.
    pub fn id(&self, section: &str) -> String {
        id(section, self.which)
    }

    /// Has findings say what they are of, where that is not the machine's own disk.
    pub fn tell(&self, findings: &mut [Finding]) {
        if self.which == args::Setting::RamBacked {
            findings.iter_mut().for_each(|finding| finding.what.insert_str(0, "RAM-backed, "));
        }
    }

    /// A path for a file that a workload makes and removes.
    pub fn file(&self, label: &str) -> PathBuf {
        self.home.join(label)
    }

    /// An error that says what to do where there is no room for `bytes`.
    pub fn require(&self, bytes: u64) -> Result<(), Error> {
        require_room(&self.home, bytes)
    }

    /// An ext4 of `bytes`, under a name that nothing else in the run has.
    pub fn ext4(&self, label: &str, journal: Journal, bytes: u64) -> Result<Host, Error> {
        self.require(bytes)?;
        let dir = self.context.base.join(format!("{label}.mnt"));
        Host::ext4_direct(self.file(&format!("{label}.img")), dir, bytes, journal)
    }

    /// A pool of `ram` bytes of persistent RAM and a disk of `bytes`.
    pub fn pool(&self, label: &str, medium: MediumKind, ram: u64, bytes: u64) -> Result<WithDisk, Error> {
        self.require(bytes)?;
        self.pool_in(&self.home, label, medium, ram, bytes)
    }

    /// The same in a directory of its own choice, such as a file system that counts what is written to it.
    pub fn pool_in(
        &self,
        home: &Path,
        label: &str,
        medium: MediumKind,
        ram: u64,
        bytes: u64,
    ) -> Result<WithDisk, Error> {
        let program = &self.context.program;
        require_room(&self.context.base, if has_disks(program) { ram } else { ram + bytes })?;
        let place = if medium == MediumKind::Logged { home } else { &self.context.base };
        let (dir, disk) = (place.join(format!("{label}.pool")), home.join(format!("{label}.disk")));
        WithDisk::make(program, &Making { dir: &dir, medium, ram, disk: &disk, bytes, threshold: self.threshold })
    }
}

/// The name of a section in a setting.
pub fn id(section: &str, which: args::Setting) -> String {
    match which {
        args::Setting::OwnDisk => section.to_owned(),
        args::Setting::RamBacked => format!("{section}-ram"),
    }
}
