//! A volume: making, opening and closing it; [`members`] rebuilds and replaces its disks while it is open.
//!
//! One process at a time has a volume: it locks the directory, and each disk exclusively.

pub mod members;

use std::fs::{DirBuilder, File};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exraid::events::{Event, What};
use exraid::{owner, Claim, Device, Disk, Label, Making, OpenError, Options, Region, Uuid};
use rustix::fs::FlockOperation;

use crate::config::{Config, NewRegion, RegionEntry, CONFIG, VERSION};
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::linear::Linear;
use crate::marks::{Marks, MARKS};
use crate::resync::{can_differ, resync};
use members::Rebuilds;

/// The process that has the volume open holds a lock on this file of its directory.
const LOCK: &str = "lock";
/// The log of its server.
const LOG: &str = "server.log";
/// The file by which a pool's directory is recognised.
const POOL: &str = "pool.toml";

/// The interval of looking at events of its disks.
const LOOK: Duration = Duration::from_millis(100);
/// A stretch without a write for this long, or up to twice as long, is flushed and unmarked.
const TIDY: Duration = Duration::from_secs(5);

/// Options for making a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct HowToMake {
    /// Give up the disks' content.
    pub force: bool,
    /// Allocate the disks' storage at once, so that no write finds a host full.
    pub reserve: bool,
    /// Content that was never written may read differently each time: skip the resync.
    pub unsynced: bool,
}

/// A disk that `volume.toml` names and that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub region: u32,
    pub path: PathBuf,
    pub why: String,
}

/// A volume that is open.
pub struct Volume {
    pub(crate) dir: PathBuf,
    pub(crate) uuid: Uuid,
    pub(crate) config: Mutex<Config>,
    line: Arc<Linear>,
    pub(crate) problems: Mutex<Vec<Problem>>,
    pub(crate) rebuilds: Rebuilds,
    stopping: AtomicBool,
    _lock: File,
}

/// Gets the bytes done, and the total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

impl Volume {
    /// Makes a volume of new disks, in a new directory.
    pub fn make(dir: &Path, regions: &[NewRegion], how: HowToMake, progress: Progress) -> Result<()> {
        regions.iter().try_for_each(check)?;
        refuse_foreign(dir, regions).map_err(|e| Error::Volume(e.to_string()))?;
        let is_new = make_dir(dir)?;
        let mut made = Made::default();
        let done = (|| {
            let _lock = lock(dir)?;
            let uuid = Uuid::random().map_err(Error::host(dir, "a random number"))?;
            made.uuid = Some(uuid);
            let opened = make_regions(uuid, regions, how, &mut made)?;
            let entry = |region: &NewRegion| RegionEntry {
                kind: region.kind,
                disks: region.disks.iter().map(|disk| disk.path.clone()).collect(),
            };
            let regions = regions.iter().map(entry).collect();
            let config = Config { version: VERSION, uuid: uuid.to_string(), reserved: how.reserve, regions };
            let line = Linear::new(&dir.display().to_string(), opened, false)?;
            if how.reserve {
                line.reserve(0..line.size())?;
            }
            let (marks, _) = Marks::open(dir, uuid, line.size())?;
            if made.has_content && !how.unsynced {
                same(&line, std::slice::from_ref(&(0..line.size())), progress)?;
            }
            marks.close()?;
            line.close()?;
            config.write(dir)
        })();
        if done.is_err() {
            made.files.iter().for_each(|file| _ = std::fs::remove_file(file));
            made.given.iter().for_each(|disk| unlabel(disk, made.uuid));
            let _ = std::fs::remove_file(dir.join(LOCK)).and(std::fs::remove_file(dir.join(MARKS)));
            if is_new {
                let _ = std::fs::remove_dir(dir);
            }
        }
        done
    }

    /// Opens the volume in `dir`, with its present disks. Copies that may differ are made equal before this returns.
    pub fn open(dir: &Path, progress: Progress) -> Result<Arc<Volume>> {
        let config = config_of(dir)?;
        let Some(uuid) = config.uuid() else { return Err(Error::Volume("a volume has a uuid".into())) };
        let lock = lock(dir)?;
        let (mut regions, mut problems, mut discards) = (Vec::new(), Vec::new(), !config.reserved);
        for (number, entry) in config.regions.iter().enumerate() {
            let (region, all_punch) = open_region(dir, uuid, number as u32, entry, &mut problems)?;
            discards &= all_punch;
            regions.push(region);
        }
        let line = Linear::new(&dir.display().to_string(), regions, discards)?;
        let (marks, differ) = Marks::open(dir, uuid, line.size())?;
        same(&line, &differ, progress)?;
        marks.close()?;
        let has_copies = line.regions().iter().any(|region| region.layout().tolerates(region.members().len()) > 0);
        let line = Arc::new(if has_copies { line.marked(marks) } else { line });
        Ok(Arc::new(Volume {
            dir: dir.into(),
            uuid,
            config: Mutex::new(config),
            line,
            problems: Mutex::new(problems),
            rebuilds: Rebuilds::default(),
            stopping: AtomicBool::new(false),
            _lock: lock,
        }))
    }

    /// Destroys the volume in `dir`: removes its disks' labels, and its files and directory. The content of the disks
    /// stays.
    pub fn destroy(dir: &Path) -> Result<()> {
        let config = config_of(dir)?;
        let _lock = lock(dir)?;
        let disks = config.regions.iter().flat_map(|region| &region.disks).map(|disk| dir.join(disk));
        disks.filter(|disk| disk.exists()).for_each(|disk| unlabel(&disk, config.uuid()));
        // The file that defines the volume goes first.
        for name in [CONFIG, MARKS, LOG, LOCK] {
            match std::fs::remove_file(dir.join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::host(&dir.join(name), "removing it")(e))
                }
                _ => {}
            }
        }
        // It may hold other files.
        let _ = std::fs::remove_dir(dir);
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The device for front ends.
    pub fn line(&self) -> &Arc<Linear> {
        &self.line
    }

    pub fn config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Disks that `volume.toml` names and that are not used.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Starts the background thread, which logs events of its disks and clears marks.
    pub fn watch(self: &Arc<Volume>) -> Result<()> {
        let volume = self.clone();
        let listeners: Vec<_> = self.line.regions().iter().map(|region| region.events()).collect();
        let watch = move || {
            let mut looked = Instant::now();
            while !volume.is_stopping() {
                std::thread::sleep(LOOK);
                listeners.iter().flat_map(|listener| listener.try_iter()).for_each(|event| log(&event));
                if looked.elapsed() >= TIDY {
                    looked = Instant::now();
                    if let Err(e) = volume.line.tidy() {
                        tracing::warn!("what was written stays marked: {e}");
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name("watch".into()).spawn(watch);
        started.map(drop).map_err(Error::host(&self.dir, "starting a thread"))
    }

    /// Stops rebuilding, which goes on when the volume is opened again.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Ends its use: all writes are durable.
    pub fn close(&self) -> Result<()> {
        self.stop();
        self.rebuilds.wait();
        Ok(self.line.close()?)
    }
}

fn log(event: &Event) {
    let region = event.region;
    match &event.what {
        What::Out { member, tolerated, why } => {
            let left = tolerated.map_or("CONTENT IS LOST".into(), |more| format!("it can do without {more} more"));
            tracing::error!("region {region}: disk {} is out: {why}; {left}", member + 1);
        }
        What::Whole { member, .. } => tracing::info!("region {region}: disk {} is whole", member + 1),
        What::Failed { member, error } => tracing::warn!("region {region}: disk {}: {error}", member + 1),
        What::Missed(count) => tracing::warn!("region {region}: {count} events were not seen"),
        What::Stutters { member, stutter } => {
            tracing::warn!("region {region}: disk {} stutters: {stutter}", member + 1)
        }
        What::Recovers { member } => tracing::info!("region {region}: disk {} is as fast as it was", member + 1),
        What::Rebuilding { .. } => {}
    }
}

fn check(region: &NewRegion) -> Result<()> {
    let (layout, count) = (region.kind.layout(), region.disks.len());
    let (least, most) = layout.members().into_inner();
    match (least..=most).contains(&count) {
        true => Ok(()),
        false => {
            let takes = if least == most { format!("{least}") } else { format!("{least} to {most}") };
            Err(Error::Volume(format!("a {layout} has {takes} disks, not {count}")))
        }
    }
}

/// Fails if another user may have made the directory, or an existing disk.
fn refuse_foreign(dir: &Path, regions: &[NewRegion]) -> Result<(), owner::Foreign> {
    owner::refuse_foreign_dir(dir)?;
    let mut disks = regions.iter().flat_map(|region| &region.disks);
    disks.try_for_each(|disk| owner::refuse_foreign_owner(&dir.join(&disk.path)))
}

/// The things made so far, for undoing it after a failure.
#[derive(Default)]
struct Made {
    files: Vec<PathBuf>,
    /// Disks that existed before.
    given: Vec<PathBuf>,
    uuid: Option<Uuid>,
    /// A disk of a redundant region existed before, with content.
    has_content: bool,
}

fn make_regions(uuid: Uuid, regions: &[NewRegion], how: HowToMake, made: &mut Made) -> Result<Vec<Arc<dyn Region>>> {
    let all = || regions.iter().flat_map(|region| &region.disks);
    // All are checked before the first is written.
    let mut claims = Vec::new();
    for disk in all() {
        match disk.path.exists() {
            true => claims.push(Claim::take(&disk.path, how.force).map_err(taken)?),
            false if disk.size.is_none() => {
                let path = disk.path.display();
                return Err(Error::Volume(format!(
                    "{path} is not there; for a file to be made give a size: {path}:10G"
                )));
            }
            false => {}
        }
    }
    drop(claims);
    let mut opened = Vec::new();
    for (number, region) in regions.iter().enumerate() {
        let mut disks: Vec<Arc<dyn Device>> = Vec::new();
        for new in &region.disks {
            let was_there = new.path.exists();
            let making = Making { size: new.size, force: how.force, options: alone() };
            owner::make_private(&new.path).map_err(Error::host(&new.path, "keeping it from others"))?;
            let disk = Disk::make(&new.path, &making).map_err(taken)?;
            let list = if was_there { &mut made.given } else { &mut made.files };
            list.push(new.path.clone());
            made.has_content |= was_there && region.kind.layout().tolerates(region.disks.len()) > 0;
            disks.push(Arc::new(disk));
        }
        opened.push(exraid::region::make(uuid, number as u32, region.kind.layout(), disks)?);
    }
    Ok(opened)
}

/// Removes the label of a disk of this volume.
fn unlabel(path: &Path, uuid: Option<Uuid>) {
    let unlabelled = Disk::open(path, &alone()).map(|disk| uuid.map_or(Ok(()), |uuid| disk.unlabel(uuid)));
    if let Err(e) | Ok(Err(e)) = unlabelled {
        tracing::warn!("{}: its label stays: {e}; to use it again, use --force", path.display());
    }
}

/// The advice depends on the present owner.
pub(crate) fn taken(e: OpenError) -> Error {
    match &e {
        OpenError::Foreign { what, .. } if what.contains("of the pool") => Error::Volume(format!(
            "{e}; a pool's disks hold segments of its files and are never exported: name other disks, or take it from its pool first \
             (conquest region remove POOL DISK); one that was a volume's is free after conquest export destroy VOLUME"
        )),
        _ => e.into(),
    }
}

pub(crate) fn alone() -> Options {
    Options { alone: true, ..Options::default() }
}

/// True: it was missing.
fn make_dir(dir: &Path) -> Result<bool> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => {
            if dir.join(CONFIG).exists() {
                let dir = dir.display();
                return Err(Error::Volume(format!(
                    "{dir} is a volume already; `conquest export status {dir}` shows it"
                )));
            }
            match entries.next() {
                None => Ok(false),
                Some(_) => Err(Error::Volume(format!("{} is not empty; name a new directory", dir.display()))),
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o700).create(dir).map_err(Error::host(dir, "making the directory"))?;
            Ok(true)
        }
        Err(e) => Err(Error::host(dir, "looking what is there")(e)),
    }
}

/// The configuration of the volume in `dir`, or an error that names its content.
pub fn config_of(dir: &Path) -> Result<Config> {
    if let Some(config) = Config::read(dir)? {
        return Ok(config);
    }
    let shown = dir.display();
    Err(Error::Volume(match dir.join(POOL).exists() {
        true => format!(
            "{shown} is a pool: its regions hold segments of files, which the pool moves, and are never exported. Make a volume of \
             other disks: conquest export make VOLUME PATH:SIZE; the pool itself is for `conquest mount {shown} DIR`"
        ),
        false => format!("{shown} is no volume; make one: conquest export make {shown} PATH:SIZE"),
    }))
}

/// Does a process have the volume in `dir` open?
pub fn is_in_use(dir: &Path) -> Result<bool> {
    Ok(dir.join(LOCK).exists() && try_lock(dir)?.is_none())
}

fn try_lock(dir: &Path) -> Result<Option<File>> {
    let path = dir.join(LOCK);
    let mut how = File::options();
    let file = how.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(Error::host(&path, "opening it"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(Error::host(&path, "locking it")(e.into())),
    }
}

fn lock(dir: &Path) -> Result<File> {
    // A process that asks [`is_in_use`] has the lock for a moment.
    for pause in [1, 10, 100, 0] {
        if let Some(file) = try_lock(dir)? {
            return Ok(file);
        }
        std::thread::sleep(Duration::from_millis(pause));
    }
    let dir = dir.display();
    let what = format!("{dir} is in use by another process; `conquest export status {dir}` tells where it is mounted");
    Err(Error::Volume(what))
}

/// The label of a disk, if it is one of this region.
pub(crate) fn label_of(disk: &Disk, uuid: Uuid, number: u32) -> Result<Label, OpenError> {
    let label = Label::read(disk)?;
    match label.pool == uuid && label.region == number {
        true => Ok(label),
        false => Err(OpenError::Mismatch {
            path: disk.path().into(),
            expected: format!("a disk of region {number} of this volume ({uuid})"),
            found: format!("disk {} of region {} of {}", label.role + 1, label.region, label.pool),
        }),
    }
}

/// Opens a region with its present disks. True: a stretch that any of them discards reads as zeros.
fn open_region(
    dir: &Path,
    uuid: Uuid,
    number: u32,
    entry: &RegionEntry,
    problems: &mut Vec<Problem>,
) -> Result<(Arc<dyn Region>, bool)> {
    let mut disks: Vec<Arc<dyn Device>> = Vec::new();
    let mut why = Vec::new();
    for path in entry.disks.iter().map(|path| dir.join(path)) {
        let opened = Disk::open(&path, &alone()).and_then(|disk| label_of(&disk, uuid, number).map(|_| disk));
        match opened {
            Ok(disk) => disks.push(Arc::new(disk)),
            // Its user may write it.
            Err(e @ OpenError::Busy { .. }) => return Err(e.into()),
            Err(e) => {
                why.push(e.to_string());
                problems.push(Problem { region: number, path, why: e.to_string() });
            }
        }
    }
    let punches = |disk: &Arc<dyn Device>| disk.properties().sparse && disk.properties().discards;
    let all_punch = disks.iter().all(punches);
    let failure = |e: &dyn std::fmt::Display| match why.is_empty() {
        true => Error::Volume(format!("{e}")),
        false => Error::Volume(format!("{e}; {}", why.join("; "))),
    };
    if disks.is_empty() {
        return Err(failure(&format!("region {number} has no disk")));
    }
    let region = exraid::region::open(disks).map_err(|e| failure(&e))?;
    match region.properties().read_only {
        true => Err(failure(&format!("region {number} cannot be written"))),
        false => Ok((region, all_punch)),
    }
}

/// Makes copies equal in these stretches of the line.
fn same(line: &Linear, stretches: &[Range<u64>], progress: Progress) -> Result<()> {
    let mut todo: Vec<(Arc<dyn Region>, Range<u64>)> = Vec::new();
    for (place, region) in line.places().into_iter().filter(|(_, region)| can_differ(&**region)) {
        let inside = stretches.iter().map(|range| range.start.max(place.start)..range.end.min(place.end));
        let own = inside.filter(|range| range.start < range.end);
        todo.extend(own.map(|range| (region.clone(), range.start - place.start..range.end - place.start)));
    }
    let (mut done, all) = (0, todo.iter().map(|(_, range)| range.end - range.start).sum());
    for (region, range) in todo {
        resync(&*region, range, &mut |bytes| {
            done += bytes;
            progress(done.min(all), all);
        })?;
    }
    Ok(())
}
