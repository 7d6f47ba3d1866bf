//! The ground of the workloads of large files.
//!
//! On the machine's own disk, ext4 and others are each on a loop device past the page cache over a file there. A pool keeps its large
//! files in another file of that disk. The pool directory of a pool on `logged` lies there too; that of a pool on
//! `battery` lies in RAM, which stands for such memory. RAM-backed, all of that lies on tmpfs: a flush costs nothing,
//! and the measurement covers the work of the file systems and of the way to them.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use conquest::{FormatOptions, InRegions, MediumKind, NewDisk, Threshold};
use report::{Outcome, Section};

use crate::context::{Context, Workload};
use crate::disk::{dir_on_disk, require_room, Disk};
use crate::error::Error;
use crate::hosts::{Host, Journal};
use crate::peer::{Peer, Who, ORDERED, TMPFS};
use crate::program::Own;

/// Additional bytes of a file system under a pool.
const SPARE: u64 = 512 << 20;

/// The ground under the file systems of a workload of large files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ground {
    /// The machine's own disk: pools use files there, and ext4 loop devices past the page cache over files there
    OwnDisk,
    /// tmpfs, where a flush costs nothing
    RamBacked,
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Ground::OwnDisk { "own-disk" } else { "ram-backed" })
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct Grounds {
    /// The place of large files, and of all files of the other file systems
    #[arg(long, value_name = "SETTING,...", value_delimiter = ',', default_values_t = [Ground::OwnDisk])]
    pub setting: Vec<Ground>,
    /// A directory on the disk to measure [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl Grounds {
    pub fn disk(&self) -> Option<PathBuf> {
        self.setting.contains(&Ground::OwnDisk).then(|| dir_on_disk(self.dir.as_ref()))
    }

    /// Returns the results of `work` in each of the settings. A setting that this machine lacks is reported in a
    /// section `id`, as the reason for `subject`.
    pub fn each(
        &self,
        context: &Context,
        id: &str,
        subject: &'static str,
        mut work: impl FnMut(&Setting<'_>) -> Outcome,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for &ground in &self.setting {
            match Setting::make(context, ground) {
                Ok(setting) => {
                    let mut one = work(&setting);
                    if ground == Ground::RamBacked {
                        one.findings.iter_mut().for_each(|finding| finding.what.insert_str(0, "RAM-backed, "));
                    }
                    outcome.extend(one);
                }
                Err(e) => {
                    let mut section = Section::rates("", id, "");
                    section.id = named(id, ground).into();
                    section.skip(subject, e.to_string());
                    outcome.sections.push(section);
                }
            }
        }
        outcome
    }
}

/// A workload that does the same in each of the settings that its options name.
pub trait InSettings {
    /// The section that reports why a setting is unavailable, and its subject.
    const ID: &'static str;
    const SUBJECT: &'static str = ORDERED.name;

    fn grounds(&self) -> &Grounds;

    /// Fails if the options make no sense. Called before the first setting.
    fn begin(&self, _: &Context) -> Result<(), Error> {
        Ok(())
    }

    fn measure(&self, setting: &Setting<'_>) -> Outcome;
}

impl<W: InSettings> Workload for W {
    fn disk(&self) -> Option<PathBuf> {
        self.grounds().disk()
    }

    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        self.begin(context)?;
        Ok(self.grounds().each(context, W::ID, W::SUBJECT, |setting| self.measure(setting)))
    }
}

/// The name of a section in a setting.
fn named(id: &str, ground: Ground) -> String {
    match ground {
        Ground::OwnDisk => id.to_owned(),
        Ground::RamBacked => format!("{id}-ram"),
    }
}

/// The sizes of peers in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of an ext4, or of the disk of a pool.
    pub disk: u64,
    /// Of the persistent RAM of a pool that has a disk.
    pub ram: u64,
}

/// A setting, ready for work.
#[derive(Clone)]
pub struct Setting<'a> {
    pub context: &'a Context,
    pub ground: Ground,
    /// The name of the ground, for titles.
    pub name: String,
    /// The directory of disks and images.
    pub home: PathBuf,
    /// The size beyond which pools have content on disk; `None`: the default.
    pub threshold: Option<Threshold>,
}

impl<'a> Setting<'a> {
    pub fn make(context: &'a Context, ground: Ground) -> Result<Setting<'a>, Error> {
        let (home, name) = match ground {
            Ground::OwnDisk => {
                let dir = context.disk.as_deref();
                let disk = Disk::at(dir.ok_or_else(|| Error::Usage("no directory on a disk was made".into()))?)?;
                let name = disk.name();
                (disk.dir, name)
            }
            Ground::RamBacked => (context.base.clone(), "tmpfs".into()),
        };
        Ok(Setting { context, ground, name, home, threshold: None })
    }

    /// A section of times, or of other figures of which less is better.
    pub fn times(&self, id: &str, title: impl fmt::Display, unit: &'static str) -> Section {
        let title = format!("{title}; {}", self.name);
        Section { id: named(id, self.ground).into(), ..Section::times("", title, unit) }
    }

    pub fn rates(&self, id: &str, title: impl fmt::Display, unit: &'static str) -> Section {
        Section { more_is_better: true, ..self.times(id, title, unit) }
    }

    /// A path for a file that a workload makes and removes.
    pub fn file(&self, label: &str) -> PathBuf {
        self.home.join(label)
    }

    /// Fails with advice if there is no space for `bytes`.
    pub fn require(&self, bytes: u64) -> Result<(), Error> {
        require_room(&self.home, bytes)
    }

    /// Peers of these sizes; a peer that this machine lacks is skipped in each of the sections.
    pub fn peers(&self, whos: &[Who], sizes: Sizes, sections: &mut [Section]) -> Vec<Peer> {
        self.context.make(whos, sections, |who| self.peer(who, sizes))
    }

    /// As `peers`, each on a device that counts writes.
    pub fn counted_peers(&self, whos: &[Who], sizes: Sizes, sections: &mut [Section]) -> Vec<Peer> {
        self.context.make(whos, sections, |who| self.counted_peer(who, sizes))
    }

    pub fn peer(&self, who: Who, Sizes { disk, ram }: Sizes) -> Result<Peer, Error> {
        let base = &self.context.base;
        if who == TMPFS {
            return Peer::host(who, Host::make("tmpfs", base, disk)?);
        }
        self.require(disk)?;
        match who.is_host() {
            true => {
                let dir = base.join(format!("{}.mnt", who.file_name()));
                Peer::on_image(who, self.file(&format!("{}.img", who.file_name())), dir, disk)
            }
            false => self.pool(who, &self.home, &who.file_name(), Sizes { disk, ram }),
        }
    }

    /// A peer with all its files on a file system of its own: a pool on an ext4 of the usual kind, with space for its
    /// disk, and for a redo log and a checkpoint of its memory.
    fn counted_peer(&self, who: Who, sizes: Sizes) -> Result<Peer, Error> {
        if who.is_host() {
            return self.peer(who, sizes);
        }
        let (label, bytes) = (format!("below-{}", who.file_name()), sizes.disk + 2 * sizes.ram + SPARE);
        self.require(bytes)?;
        let dir = self.context.base.join(format!("{label}.mnt"));
        let beneath = Host::direct("ext4", self.file(&format!("{label}.img")), dir, bytes, Journal::Ordered)?;
        let peer = self.pool(who, &beneath.dir, &format!("{}.of", who.file_name()), sizes)?;
        Ok(peer.above(beneath))
    }

    fn pool(&self, who: Who, home: &Path, label: &str, Sizes { disk, ram }: Sizes) -> Result<Peer, Error> {
        let base = &self.context.base;
        require_room(base, ram)?;
        let place = if who.medium() == MediumKind::Logged { home } else { base };
        let file = NewDisk { path: home.join(format!("{label}.disk")), size: Some(disk) };
        let how = FormatOptions {
            regions: vec![file.into()],
            threshold: self.threshold,
            backing_in_regions: InRegions::IfGiven,
            ..FormatOptions::on(who.medium(), ram)
        };
        let pool = Own::make(place.join(format!("{label}.pool")), how)?;
        Peer::pool(who, pool, base, &self.context.program)
    }
}
