//! A file system in a [`Setting`], and what it has transferred.

use std::path::{Path, PathBuf};

use conquest::MediumKind;

use crate::args::Kind;
use crate::disk::{Disk, Transferred};
use crate::error::Error;
use crate::hosts::{Host, Journal};
use crate::place::{InProcess, Mounted};
use crate::program::{Mount, WithDisk};
use crate::setting::Setting;
use crate::subject::AnyPlace;
use report::Section;
use report::Skipped;

/// Who is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A file system in memory, whatever the setting.
    Tmpfs,
    Ext4(Journal),
    InProcess(MediumKind),
    Mounted(MediumKind),
}

pub const ORDERED: Who = Who::Ext4(Journal::Ordered);
pub const JOURNAL: Who = Who::Ext4(Journal::Data);
pub const BARE: Who = Who::Ext4(Journal::None);
pub const BATTERY: Who = Who::InProcess(MediumKind::Battery);
pub const LOGGED: Who = Who::InProcess(MediumKind::Logged);
pub const BATTERY_MOUNTED: Who = Who::Mounted(MediumKind::Battery);
pub const LOGGED_MOUNTED: Who = Who::Mounted(MediumKind::Logged);

impl Who {
    /// How reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Who::Tmpfs => "tmpfs",
            Who::Ext4(Journal::None) => "ext4 without a journal",
            Who::Ext4(Journal::Ordered) => "ext4 data=ordered",
            Who::Ext4(Journal::Data) => "ext4 data=journal",
            _ => self.kind().name(),
        }
    }

    /// As `--on` names it.
    pub fn kind(self) -> Kind {
        match self {
            Who::Tmpfs => Kind::Tmpfs,
            Who::Ext4(_) => Kind::Ext4,
            Who::InProcess(MediumKind::Logged) => Kind::LoggedInproc,
            Who::InProcess(_) => Kind::BatteryInproc,
            Who::Mounted(MediumKind::Logged) => Kind::LoggedUring,
            Who::Mounted(_) => Kind::BatteryUring,
        }
    }

    /// Of a pool.
    pub fn medium(self) -> MediumKind {
        match self {
            Who::Tmpfs | Who::Ext4(_) => MediumKind::Logged,
            Who::InProcess(medium) | Who::Mounted(medium) => medium,
        }
    }

    /// As findings begin.
    pub fn how(self) -> &'static str {
        match self {
            Who::InProcess(_) => "in process",
            Who::Mounted(_) | Who::Tmpfs | Who::Ext4(_) => "mounted",
        }
    }

    fn file_name(self) -> String {
        self.name().replace([' ', '='], "-")
    }
}

/// How large sides are, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of an ext4, and of the disk of a pool.
    pub disk: u64,
    /// Of the persistent RAM of a pool that has a disk.
    pub ram: u64,
}

/// Bytes that a file system under a pool has besides.
const SPARE: u64 = 512 << 20;

/// A file system, ready to be worked on.
pub struct Side {
    pub who: Who,
    // Before what keeps it: a descriptor into a file system must be closed before that can be unmounted.
    pub place: AnyPlace,
    mount: Option<Mount>,
    // Before the file system that it may lie on.
    pool: Option<WithDisk>,
    host: Option<Host>,
    /// Below which everything of it lies that is not memory, where nobody else writes there.
    counted: Option<PathBuf>,
}

impl Side {
    pub fn make(setting: &Setting<'_>, who: Who, sizes: Sizes) -> Result<Side, Error> {
        match who {
            Who::Tmpfs => {
                let host = Host::make(Kind::Tmpfs, &setting.context.base, sizes.disk)?;
                Side::of_host(who, host)
            }
            Who::Ext4(journal) => Side::ext4(setting, journal, sizes.disk),
            Who::InProcess(medium) | Who::Mounted(medium) => {
                let pool = setting.pool(&who.file_name(), medium, sizes.ram, sizes.disk)?;
                Side::over(setting, who, pool)
            }
        }
    }

    /// The same with everything on a file system of its own, which counts what is written: a pool on an ext4 of the
    /// usual kind, with room for its disk, and for a log and an image of its memory.
    pub fn make_counted(setting: &Setting<'_>, who: Who, sizes: Sizes) -> Result<Side, Error> {
        let medium = match who {
            Who::Tmpfs | Who::Ext4(_) => return Side::make(setting, who, sizes),
            Who::InProcess(medium) | Who::Mounted(medium) => medium,
        };
        let beneath = setting.ext4(
            &format!("below-{}", who.file_name()),
            Journal::Ordered,
            sizes.disk + 2 * sizes.ram + SPARE,
        )?;
        let counted = beneath.dir.clone();
        let pool = setting.pool_in(&counted, &format!("{}.of", who.file_name()), medium, sizes.ram, sizes.disk)?;
        let side = Side::over(setting, who, pool)?;
        Ok(Side { host: Some(beneath), counted: Some(counted), ..side })
    }

    fn ext4(setting: &Setting<'_>, journal: Journal, bytes: u64) -> Result<Side, Error> {
        let who = Who::Ext4(journal);
        let host = setting.ext4(&who.file_name(), journal, bytes)?;
        Side::of_host(who, host)
    }

    fn of_host(who: Who, host: Host) -> Result<Side, Error> {
        let place = AnyPlace::Mounted(Mounted::new(&host.dir)?);
        let counted = matches!(who, Who::Ext4(_)).then(|| host.dir.clone());
        Ok(Side { who, place, mount: None, counted, host: Some(host), pool: None })
    }

    fn over(setting: &Setting<'_>, who: Who, pool: WithDisk) -> Result<Side, Error> {
        let context = setting.context;
        let mount = match who {
            Who::Mounted(_) => {
                let dir = context.base.join(format!("{}.mnt", who.file_name()));
                let mount = Mount::of(&pool.dir, dir, &context.program)?;
                match mount.transport()?.as_str() {
                    "io_uring" => Some(mount),
                    // Its figures would stand in the wrong row.
                    other => return Err(Error::Wrong(format!("wanted a mount over io_uring, got one over {other}"))),
                }
            }
            _ => None,
        };
        let place = match &mount {
            Some(mount) => AnyPlace::Mounted(Mounted::new(&mount.dir)?),
            None => AnyPlace::InProcess(Box::new(InProcess::open(&pool.dir)?)),
        };
        Ok(Side { who, place, mount, host: None, pool: Some(pool), counted: None })
    }

    pub fn name(&self) -> &'static str {
        self.who.name()
    }

    /// Where it is mounted, if it is.
    pub fn dir(&self) -> Option<&Path> {
        let own = self.mount.as_ref().map(|mount| mount.dir.as_path());
        own.or(self
            .host
            .as_ref()
            .filter(|_| matches!(self.who, Who::Tmpfs | Who::Ext4(_)))
            .map(|host| host.dir.as_path()))
    }

    /// The directory of the pool, if it is one.
    pub fn pool(&self) -> Option<&Path> {
        self.pool.as_ref().map(|pool| pool.dir.as_path())
    }

    /// What a pool's process has had transferred so far; nothing is known of an ext4.
    pub fn transferred(&self) -> Result<Option<Transferred>, Error> {
        match (self.who, &self.mount) {
            (Who::Mounted(_), Some(mount)) => Transferred::by(Some(mount.pid()?)).map(Some),
            (Who::InProcess(_), _) => Transferred::by(None).map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes written so far to the device that all of this lies on. What is on its way there is written first.
    pub fn written(&self) -> Result<u64, Error> {
        let missing = || Error::Wrong(format!("{}: nobody counts what is written", self.name()));
        let dir = self.counted.as_deref().ok_or_else(missing)?;
        rustix::fs::syncfs(std::fs::File::open(dir).map_err(Error::file(dir))?)?;
        Ok(Disk::at(dir)?.counted().ok_or_else(missing)?.written)
    }
}

/// Makes those of `whos` that the command line does not exclude; the others come back with the reason.
pub fn make(
    setting: &Setting<'_>,
    whos: &[Who],
    make: impl Fn(Who) -> Result<Side, Error>,
) -> (Vec<Side>, Vec<Skipped>) {
    let (mut sides, mut skipped) = (Vec::new(), Vec::new());
    for &who in whos {
        let made = if setting.context.wants(who.kind()) {
            setting.context.progress.say(format!("making {} on {}", who.name(), setting.name));
            make(who).map_err(|e| e.to_string())
        } else {
            Err("not asked for with --on".into())
        };
        match made {
            Ok(side) => sides.push(side),
            Err(reason) => skipped.push(Skipped { subject: who.name().into(), reason }),
        }
    }
    (sides, skipped)
}

/// Does `work` on each of the sides, round by round. Who fails is told of at the end; the others go on.
pub fn rounds(
    setting: &Setting<'_>,
    label: &str,
    usual: usize,
    sides: &mut Vec<Side>,
    sections: &mut [Section],
    mut work: impl FnMut(&Side, usize, &mut [Section]) -> Result<(), Error>,
) {
    let context = setting.context;
    for round in 0..context.rounds(usual) {
        sides.retain(|side| {
            context.say_round(label, round, usual, side.name());
            work(side, round, sections).map_err(|e| fail(setting, label, side.who, sections, &e)).is_ok()
        });
    }
}

/// Tells of a failure, and takes who failed out of the sections.
pub fn fail(setting: &Setting<'_>, label: &str, who: Who, sections: &mut [Section], e: &Error) {
    setting.context.failed(&format!("{label}: {}", who.name()), e);
    sections.iter_mut().for_each(|section| section.fail(who.name(), e.to_string()));
}
