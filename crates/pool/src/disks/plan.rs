//! Future disks: whether they are possible, how large they will be, and keeping them from other processes until they are made.
//! Planning changes nothing on them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use exraid::disk::usual_reserve;
use exraid::label::END;
use exraid::{owner, Claim, Layout, OpenError, Uuid};

use crate::config::{Config, DiskEntry};
use crate::medium::MediumKind;
use crate::options::{FormatOptions, NewDisk, NewRegion};
use crate::paths::{self, DISK};
use crate::{own_files, uuid};
use conquest_fs::error::{Error, Result};

/// Bytes of the smallest disk. A log has room on it.
pub const SMALLEST: u64 = exraid::disk::MIN_SIZE;
const _: () = assert!(SMALLEST >= 2 * END + ilfs::LEAST * *ilfs::SEGMENTS.start());
/// Sizes of files are multiples of this.
const GRAIN: u64 = 1 << 20;
/// No file system is sure to have larger files.
const LARGEST: u64 = 8 << 40;

/// The directory of devices.
const DEVICES: &str = "/dev";

/// A warning tells of a disk's unused room if it is more than one part in so many.
const MUCH: u64 = 10;

/// A future disk.
pub struct Planned {
    pub entry: DiskEntry,
    /// Its path.
    pub path: PathBuf,
    pub size: u64,
    /// No size was asked for: it may as well be smaller.
    yields: bool,
    /// Keeps other processes from an existing disk.
    claim: Option<Claim>,
}

impl Planned {
    /// Backs the room of its labels, if it is a given file.
    pub fn reserve_ends(&self) -> Result<()> {
        match self.claim.as_ref().filter(|_| self.entry.given) {
            Some(claim) => claim.reserve_ends(&self.path, self.size).map_err(|e| cannot_make(&e)),
            None => Ok(()),
        }
    }

    /// Gives up the claim, so that the caller can make the disk; returns its place, size and entry.
    pub fn release(self) -> (PathBuf, u64, DiskEntry) {
        (self.path, self.size, self.entry)
    }
}

/// A future region, its disks by role.
pub struct PlannedRegion {
    pub layout: Layout,
    pub disks: Vec<Planned>,
}

impl PlannedRegion {
    /// Gives each disk the size of the smallest: the region has no use for more, and every disk that replaces one later would have to
    /// be as large as its label promised.
    fn even_out(&mut self) {
        let Some(share) = self.disks.iter().map(|disk| disk.size).min() else { return };
        for disk in &mut self.disks {
            let unused = disk.size - share;
            if unused > disk.size / MUCH && !disk.yields {
                tracing::warn!(
                    "{}: {} of its {} MiB are not used, since a {} takes of each disk as much as the smallest has",
                    disk.path.display(),
                    unused >> 20,
                    disk.size >> 20,
                    self.layout
                );
            }
            disk.size = share;
            disk.entry.size = disk.entry.size.map(|_| share);
        }
    }
}

/// All regions of a future pool.
#[derive(Default)]
pub struct Plan(pub Vec<PlannedRegion>);

impl Plan {
    /// The regions that `how` asks for, of the pool `config` in `dir`, in the place of the pool `old`.
    ///
    /// # Errors
    /// [`Error::Pool`] if one is impossible, or would lose existing content, which only `force` allows.
    pub fn of(dir: &Path, how: &FormatOptions, config: &Config, old: Option<&Config>) -> Result<Plan> {
        let wanted =
            Wanted { dir, config, old, force: how.force, taken: taken(dir, config, how.size), beyond_hosts: false };
        let mut plan = Plan::default();
        how.regions.iter().try_for_each(|new| plan.add(&wanted, new))?;
        Ok(plan)
    }

    /// One more region.
    pub fn add(&mut self, wanted: &Wanted, new: &NewRegion) -> Result<()> {
        refuse_count(new)?;
        self.0.push(PlannedRegion { layout: new.layout, disks: Vec::new() });
        for disk in &new.disks {
            self.refuse_twice(&wanted.dir.join(&disk.path))?;
            let planned = wanted.plan(disk)?;
            self.0.last_mut().expect("it was pushed").disks.push(planned);
        }
        let region = self.0.last_mut().expect("it was pushed");
        region.even_out();
        region.disks.iter().try_for_each(Planned::reserve_ends)
    }

    pub fn disks(&self) -> impl Iterator<Item = &Planned> {
        self.0.iter().flat_map(|region| &region.disks)
    }

    /// In the order in which the disks are numbered; regions are numbered from 0.
    pub fn entries(&self) -> Vec<DiskEntry> {
        let entry = |number: u32| move |planned: &Planned| DiskEntry { region: Some(number), ..planned.entry.clone() };
        (0..).zip(&self.0).flat_map(|(number, region)| region.disks.iter().map(entry(number))).collect()
    }

    /// Refuses the same disk under another path.
    fn refuse_twice(&self, path: &Path) -> Result<()> {
        let real = paths::real(path);
        let same = |other: &&Planned| other.path == real || exraid::disk::are_same(&other.path, &real);
        match self.disks().find(same) {
            Some(other) => Err(refused(path, &format!("is the same disk as {}", other.path.display()))),
            None => Ok(()),
        }
    }
}

/// The pool for which a disk is wanted.
pub struct Wanted<'a> {
    pub dir: &'a Path,
    pub config: &'a Config,
    pub old: Option<&'a Config>,
    pub force: bool,
    /// Bytes that memory and backing of the pool will take, by the device numbers of their file systems.
    pub taken: Vec<(u64, u64)>,
    /// Files may be larger than their file systems: the content that they will get is known.
    pub beyond_hosts: bool,
}

impl Wanted<'_> {
    pub fn plan(&self, new: &NewDisk) -> Result<Planned> {
        let path = paths::real(&self.dir.join(&new.path));
        own_files::refuse(self.dir, &Config { disks: Vec::new(), ..self.config.clone() }, &path)?;
        owner::refuse_foreign_owner(&path)?;
        let there = fs::metadata(&path).ok();
        if there.is_none() && !path.parent().is_some_and(Path::is_dir) {
            return Err(refused(&path, "cannot be made: its directory is not there; make that first"));
        }
        if there.is_none() && is_among_devices(&path) {
            let why = "is not there, and a file in its place would lie in RAM: name a device that is there, or a file elsewhere";
            return Err(refused(&path, why));
        }
        if there.as_ref().is_some_and(|found| !found.is_file() && owner::is_readable_by_others(found)) {
            tracing::warn!(
                "other users may read {}, and so all files that have content there, whatever their permissions: take that right from the \
                 device (`chmod o-r`, and a rule of udev for the next boot)",
                path.display()
            );
        }
        let is_given = there.is_some() && !self.is_own(&path);
        let claim = there.map(|_| self.claim(&path)).transpose()?;
        let size = match &claim {
            Some(claim) if claim.is_block => self.size_of_device(&path, new.size, claim.size)?,
            claim => {
                let found = claim.as_ref().filter(|_| is_given).map_or(0, |claim| claim.size);
                self.size_of_file(&path, new.size, found)?
            }
        };
        if size < SMALLEST {
            let why = format!("has {} MiB, too little: a disk has {} MiB at least", size >> 20, SMALLEST >> 20);
            return Err(refused(&path, &why));
        }
        let recorded_size = claim.as_ref().is_none_or(|claim| !claim.is_block).then_some(size);
        let entry = DiskEntry { path: self.relative(&path), size: recorded_size, given: is_given, region: None };
        let yields = new.size.is_none() && !is_given;
        Ok(Planned { entry, path, size, yields, claim })
    }

    /// A file in the pool directory, or one that was made with the pool that is there.
    fn is_own(&self, path: &Path) -> bool {
        let is_file = fs::metadata(path).is_ok_and(|found| !found.file_type().is_block_device());
        let of_old = |old: &Config| {
            let own = old.disks.iter().filter(|entry| !entry.given);
            own.map(|entry| entry.at(self.dir)).any(|own| own.canonicalize().is_ok_and(|own| own == path))
        };
        let in_pool = self.dir.canonicalize().is_ok_and(|dir| path.starts_with(dir));
        is_file && (in_pool || self.old.is_some_and(of_old))
    }

    /// Paths in the pool directory are relative to it, so that the directory can be moved.
    fn relative(&self, path: &Path) -> PathBuf {
        let dir = self.dir.canonicalize().unwrap_or_else(|_| self.dir.into());
        path.strip_prefix(&dir).or_else(|_| path.strip_prefix(self.dir)).unwrap_or(path).into()
    }

    fn claim(&self, path: &Path) -> Result<Claim> {
        match Claim::take(path, self.force) {
            // Left by an interrupted attempt to make it a disk of this very pool.
            Err(OpenError::Foreign { .. }) if self.is_of(path) => Claim::take(path, true),
            taken => taken,
        }
        .map_err(|e| cannot_make(&e))
    }

    fn is_of(&self, path: &Path) -> bool {
        let options = exraid::Options { read_only: true, ..exraid::Options::default() };
        let label = exraid::Disk::open(path, &options).and_then(|disk| exraid::Label::read(&disk));
        label.is_ok_and(|label| self.config.uuid_bytes().is_ok_and(|uuid| label.pool == Uuid(uuid)))
    }

    fn size_of_device(&self, path: &Path, asked: Option<u64>, size: u64) -> Result<u64> {
        match asked.filter(|asked| *asked != size) {
            Some(_) => {
                Err(refused(path, &format!("is a device of {size} bytes, and is used whole; leave its size out")))
            }
            None => Ok(size),
        }
    }

    fn size_of_file(&self, path: &Path, asked: Option<u64>, found: u64) -> Result<u64> {
        let host = Host::of(path)?;
        let Some(asked) = asked else {
            return match found {
                0 => Ok(host.may_take(&self.taken, self.old, self.dir)),
                found => Ok(found / 4096 * 4096),
            };
        };
        if asked > host.total && !self.beyond_hosts {
            let why = format!("cannot have so much: its file system has {} MiB in all", host.total >> 20);
            return Err(refused(path, &why));
        }
        Ok(asked / 4096 * 4096)
    }
}

/// The file system of a file, or of a future one.
struct Host {
    device: u64,
    total: u64,
    free: u64,
}

impl Host {
    fn of(path: &Path) -> Result<Host> {
        let place = path.ancestors().skip(1).find(|place| place.is_dir()).unwrap_or(Path::new("/"));
        let fail = |e: std::io::Error| Error::host(place, &e);
        let device = fs::metadata(place).map_err(fail)?.dev();
        let statvfs = rustix::fs::statvfs(place).map_err(|errno| fail(errno.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(statvfs.f_frsize);
        Ok(Host { device, total: bytes(statvfs.f_blocks), free: bytes(statvfs.f_bavail) })
    }

    /// The most that a file may grow to: free room, plus the room of the old pool's disks, less what the new pool takes elsewhere, and
    /// less the host's reserve.
    fn may_take(&self, taken: &[(u64, u64)], old: Option<&Config>, dir: &Path) -> u64 {
        let own = old.into_iter().flat_map(|old| &old.disks).filter(|entry| !entry.given);
        let files = own.filter_map(|entry| fs::metadata(entry.at(dir)).ok());
        let given_back: u64 = files.filter(|file| file.dev() == self.device).map(|file| file.blocks() * 512).sum();
        let taken: u64 = taken.iter().filter(|(device, _)| *device == self.device).map(|(_, bytes)| bytes).sum();
        let free = (self.free + given_back).saturating_sub(taken).saturating_sub(usual_reserve(self.total));
        free.min(LARGEST) / GRAIN * GRAIN
    }
}

/// The most that the memory of a pool of `size` bytes and its backing take, by file system.
fn taken(dir: &Path, config: &Config, size: u64) -> Vec<(u64, u64)> {
    let region = match config.medium {
        MediumKind::Logged => PathBuf::from(paths::RUNTIME_DIR).join("region"),
        _ => config.nvram_path(dir),
    };
    let backing = config.backing_dir(dir).map(|backing| backing.join(paths::IMAGE));
    let hosts = [Some(region), backing].into_iter().flatten().filter_map(|path| Host::of(&path).ok());
    hosts.map(|host| (host.device, size)).collect()
}

/// The default disk of a pool: a file in its directory that may grow into the free room of its host.
/// None where that is next to nothing.
pub fn usual(dir: &Path, how: &FormatOptions) -> Result<Option<NewDisk>> {
    let old = Config::read(dir).ok().flatten();
    let mut config = Config::new(how.medium, uuid::text(&[0; 16]));
    if how.medium != MediumKind::Logged {
        (config.nvram, config.backing) = (how.nvram.clone().or(config.nvram), how.backing.clone());
    }
    let size = Host::of(&dir.join(DISK))?.may_take(&taken(dir, &config, how.size), old.as_ref(), dir);
    Ok((size >= SMALLEST).then(|| NewDisk { path: DISK.into(), size: Some(size) }))
}

/// Whether a file there would lie in the file system of devices, in RAM.
fn is_among_devices(path: &Path) -> bool {
    let device = |dir: &Path| fs::metadata(dir).map(|found| found.dev()).ok();
    path.starts_with(DEVICES) && path.parent().and_then(device) == device(DEVICES.as_ref())
}

/// Refuses a number of disks that makes no such region.
fn refuse_count(new: &NewRegion) -> Result<()> {
    let (least, most) = new.layout.members().into_inner();
    match new.disks.len() {
        n if (least..=most).contains(&n) => Ok(()),
        n if least == most => Err(Error::Pool(format!("a {} has {least} disk, not {n}", new.layout))),
        n => Err(Error::Pool(format!("a {} has {least} to {most} disks, not {n}", new.layout))),
    }
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Pool(format!("{} {why}", path.display()))
}

/// Why no disk can be made of it, and what to do.
pub fn cannot_make(e: &OpenError) -> Error {
    Error::Pool(match e {
        OpenError::Foreign { path, what } => {
            format!("{} holds {what}; to lose that, use --force", path.display())
        }
        e => e.to_string(),
    })
}
