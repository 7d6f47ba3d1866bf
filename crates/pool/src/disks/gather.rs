//! From `pool.toml` to regions: opens each disk, reads its label, and puts together the disks of each region.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exraid::disk::what_is_on;
use exraid::label::MemberState;
use exraid::region::{Common, Sharing};
use exraid::{Class, Device, Disk, Label, OpenError, Options, Region, Uuid};

use super::find_moved::{self, Sought};
use super::{lease, Disks};
use crate::config::{Config, DiskEntry};
use crate::paths::CONFIG;
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// An unused disk.
pub struct Missing {
    pub path: PathBuf,
    /// Why, in few words.
    pub why: String,
    /// Why, and what to do if the pool needs it.
    pub error: Error,
    /// The disk or its content is gone. Otherwise it may be there, and this process has no access to it.
    pub is_lost: bool,
    /// It does not answer.
    pub is_late: bool,
    /// The number of its region, if `pool.toml` has it.
    region: Option<u32>,
}

impl Missing {
    /// Whether it is not where it should be.
    fn is_gone(&self) -> bool {
        self.is_lost && !self.is_late
    }

    fn also(&mut self, why: &str) {
        self.why = format!("{}; {why}", self.why);
        self.error = Error::Pool(format!("{}; {why}", self.error));
    }
}

/// A disk that is not where `pool.toml` names it, or of another region than it says.
pub struct Moved {
    pub from: PathBuf,
    pub to: PathBuf,
    pub region: u32,
}

/// A region that cannot be used, though some of its disks are there.
pub struct Broken {
    /// The newest label of the region.
    pub label: Label,
    /// Its disks that are there, and their UUIDs.
    pub there: Vec<(PathBuf, Uuid)>,
    pub error: Error,
}

/// A disk of the pool.
struct Found {
    path: PathBuf,
    device: Arc<dyn Device>,
    label: Label,
}

/// The relation of a process to others that use the pool.
#[derive(Clone, Copy)]
pub enum With<'w> {
    Nobody,
    Sharing(&'w Sharing),
    /// It only reads their measurements.
    Looking(&'w Common),
}

/// The disks of a pool, by region; and disks that cannot be opened.
#[derive(Default)]
pub struct Gathered {
    regions: BTreeMap<u32, Vec<Found>>,
    missing: Vec<Missing>,
    moved: Vec<Moved>,
}

impl Gathered {
    /// Opens the disks of the pool at `dir`, which has this UUID.
    pub fn of(dir: &Path, config: &Config, uuid: [u8; 16], options: &Options) -> Gathered {
        let mut gathered = Gathered::default();
        for entry in &config.disks {
            match open_one(dir, entry, uuid, options) {
                Ok(found) => {
                    let Label { region, .. } = found.label;
                    if entry.region.is_some_and(|noted| noted != region) {
                        gathered.moved.push(Moved { from: found.path.clone(), to: found.path.clone(), region });
                    }
                    gathered.add(found);
                }
                Err(why) => gathered.missing.push(why),
            }
        }
        if gathered.missing.iter().any(Missing::is_gone) {
            gathered.seek(dir, config, uuid, options);
        }
        gathered
    }

    /// Takes disks from elsewhere for those that are not where they should be.
    fn seek(&mut self, dir: &Path, config: &Config, uuid: [u8; 16], options: &Options) {
        let known: Vec<PathBuf> = self.regions.values().flatten().map(|found| found.path.clone()).collect();
        for Sought { path, label, refused } in find_moved::find(dir, config, uuid, &known) {
            let is_of = |region: Option<u32>| region.is_none_or(|region| region == label.region);
            if !config.disks.iter().any(|entry| is_of(entry.region)) || !self.lacks(&label) {
                continue;
            }
            // If names have moved on by one, the name that is free now belonged to the disk of another region.
            let gone = self.missing.iter_mut().enumerate().filter(|(_, missing)| missing.is_gone());
            let Some((at, missing)) = gone.max_by_key(|(_, missing)| missing.region == Some(label.region)) else {
                return;
            };
            let opened = match refused {
                Some(why) => Err(why),
                None => open_labelled(&path, options).map_err(|e| e.to_string()),
            };
            match opened {
                Ok((disk, now)) if now.device == label.device && now.pool == label.pool => {
                    let from = self.missing.remove(at).path;
                    tracing::info!("the disk that was {} is {} now", from.display(), path.display());
                    self.moved.push(Moved { from, to: path.clone(), region: now.region });
                    self.add(Found { path, device: Arc::new(disk), label: now });
                }
                // Names are changing at the moment.
                Ok(_) => {}
                Err(why) => missing.also(&why),
            }
        }
    }

    fn add(&mut self, found: Found) {
        self.regions.entry(found.label.region).or_default().push(found);
    }

    /// Whether the disk with this label belongs to its region and is missing there.
    fn lacks(&self, label: &Label) -> bool {
        let Some(disks) = self.regions.get(&label.region) else { return true };
        let is_there = disks.iter().any(|disk| disk.label.device == label.device);
        !is_there && newest(disks).members.iter().any(|member| member.device == label.device)
    }

    /// Regions whose labels should say that the pool directory `dir` uses them.
    ///
    /// # Errors
    /// [`Error::Pool`] where one is used by another directory, from which this one was copied.
    pub fn to_be_leased(&self, dir: &Path, uuid: [u8; 16]) -> Result<Vec<u32>> {
        let mut regions = Vec::new();
        for disk in self.regions.values().flatten() {
            if lease::is_to_be_taken(dir, uuid, &disk.path, &disk.label.lease)? {
                regions.push(disk.label.region);
            }
        }
        Ok(regions)
    }

    /// The notes in the labels about the directory that uses the disks.
    pub fn leases(&self) -> impl Iterator<Item = &[u8]> {
        self.regions.values().flatten().map(|disk| &disk.label.lease[..])
    }

    /// Whether a disk is missing or cannot be opened.
    pub fn lacks_any(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Whether a region lacks a disk that it can do without, and its labels do not say yet that the disk is out.
    pub fn newly_lost(&self) -> bool {
        let lacks = |disks: &&Vec<Found>| {
            let is_there = |device: Uuid| disks.iter().any(|disk| disk.label.device == device);
            let Label { members, layout, .. } = newest(disks);
            layout.tolerates(members.len()) > 0
                && members.iter().any(|member| member.state != MemberState::Out && !is_there(member.device))
        };
        self.regions.values().any(|disks| lacks(&disks))
    }

    /// Whether a disk does not answer.
    pub fn is_late(&self) -> bool {
        self.missing.iter().any(|missing| missing.is_late)
    }

    /// The regions of these disks, by number.
    pub fn assemble(self, dir: &Path, read_only: bool, with: With) -> Disks {
        let (mut regions, mut broken) = (Vec::<Arc<dyn Region>>::new(), Vec::new());
        for disks in self.regions.into_values() {
            let label = newest(&disks).clone();
            let there = disks.iter().map(|disk| (disk.path.clone(), disk.label.device)).collect();
            let devices = disks.into_iter().map(|disk| disk.device).collect();
            let opened = match with {
                With::Sharing(sharing) => exraid::region::open_shared(devices, sharing),
                With::Looking(common) => exraid::region::look(devices, common),
                With::Nobody => exraid::region::open(devices),
            };
            match opened {
                Ok(region) => regions.push(region),
                Err(e) => broken.push(Broken { error: cannot_use_region(dir, &label, &e), label, there }),
            }
        }
        Disks { regions, missing: self.missing, moved: self.moved, broken, read_only, ..Disks::default() }
    }
}

/// The valid label of a region: that of the last epoch.
fn newest(disks: &[Found]) -> &Label {
    let labels = disks.iter().map(|disk| &disk.label);
    labels.max_by_key(|label| (label.epoch.number(), label.generation)).expect("a region has a disk")
}

fn open_labelled(path: &Path, options: &Options) -> std::result::Result<(Disk, Label), OpenError> {
    let disk = Disk::open(path, options)?;
    Label::read(&disk).map(|label| (disk, label))
}

fn open_one(dir: &Path, entry: &DiskEntry, uuid: [u8; 16], options: &Options) -> Result<Found, Missing> {
    let path = entry.at(dir);
    let (disk, label) = open_labelled(&path, options).map_err(|e| Missing {
        path: path.clone(),
        why: e.to_string(),
        is_lost: is_lost(&e) || is_another(&path, uuid),
        is_late: is_late(&e),
        error: cannot_use(dir, &e),
        region: entry.region,
    })?;
    if label.pool != Uuid(uuid) {
        let why =
            format!("{} is a disk of the pool {}, not of this one ({})", path.display(), label.pool, uuid::text(&uuid));
        let toml = dir.join(CONFIG);
        let error = Error::Pool(format!("{why}: put the right one there, or correct the path in {}", toml.display()));
        return Err(Missing { path, why, error, is_lost: true, is_late: false, region: entry.region });
    }
    Ok(Found { path, device: Arc::new(disk), label })
}

fn is_late(e: &OpenError) -> bool {
    matches!(e, OpenError::Transfer(e) if e.class == Class::Timeout)
}

/// Whether the disk or its content is gone. A region can do without it then. A disk that this process may not open is whole.
fn is_lost(e: &OpenError) -> bool {
    match e {
        OpenError::Missing(_)
        | OpenError::Unsuitable { .. }
        | OpenError::Unlabelled { .. }
        | OpenError::Mismatch { .. }
        | OpenError::TooSmall { .. }
        | OpenError::Unusable { .. } => true,
        OpenError::Transfer(e) => matches!(e.class, Class::Gone | Class::Media | Class::Timeout),
        _ => false,
    }
}

/// Whether the name now leads to another disk, also if another process holds that exclusively.
fn is_another(path: &Path, uuid: [u8; 16]) -> bool {
    match Disk::peek(path) {
        Ok(label) => label.pool != Uuid(uuid),
        Err(e) => is_lost(&e) && !is_late(&e),
    }
}

/// Why a disk of the pool at `dir` cannot be used, and what to do.
fn cannot_use(dir: &Path, e: &OpenError) -> Error {
    let toml = dir.join(CONFIG);
    let give_up = format!(
        "if it is lost for good, take its [[disk]] out of {}: the pool opens then, without what only the disk held",
        toml.display()
    );
    let what_to_do = match e {
        OpenError::Missing(_) => format!("attach it, or correct its path there; {give_up}"),
        OpenError::Permission(_) => "open the pool as the owner of its disks".into(),
        OpenError::ReadOnly(_) => "make it writable".into(),
        OpenError::Unlabelled { path, .. } => {
            let found = File::open(path).ok().and_then(|file| what_is_on(path, &file).ok()?);
            let found = found.map(|found| format!(" (it holds {found})")).unwrap_or_default();
            format!("it is not the pool's disk, or was overwritten{found}; put the right one there; {give_up}")
        }
        OpenError::TooSmall { .. } => format!("it was cut short; put a whole copy of it there; {give_up}"),
        OpenError::Unusable { .. } | OpenError::Mismatch { .. } | OpenError::Unsuitable { .. } => {
            format!("put the pool's disk there, whole; {give_up}")
        }
        // The error itself says what to do, or nothing is known.
        _ => return Error::Pool(format!("the pool's disk cannot be used: {e}")),
    };
    Error::Pool(format!("the pool's disk cannot be used: {e}: {what_to_do}"))
}

/// The same for a region whose disks could be opened.
fn cannot_use_region(dir: &Path, label: &Label, e: &OpenError) -> Error {
    if label.members.len() == 1 {
        return cannot_use(dir, e);
    }
    Error::Pool(format!(
        "region {} ({}) of the pool cannot be used: {e}; `conquest region list {}` tells its disks. Where two were \
         used apart, move the one away whose content counts less, and replace it",
        label.region,
        label.layout,
        dir.display()
    ))
}
