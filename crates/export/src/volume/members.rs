//! The disks of a volume: rebuilding them after missed writes, and replacing them.
//!
//! A volume does not know which of its content is live, so all of it is put back.
//!
//! Replacing a disk by another:
//!
//! | step | what | else, after a power cut |
//! | --- | --- | --- |
//! | 1 | the new disk is made: its old content goes | |
//! | 2 | `volume.toml` names it beside the old one | the labels say that it has the place, and its path is unknown |
//! | 3 | the labels of the others record that it is being rebuilt, then its own | |
//! | 4 | it is written like the others, and older content is put back | the rebuild goes on when the volume is opened |
//! | 5 | `volume.toml` names only the new one | the old disk is found, and its label tells that it has lost its place |

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use exraid::label::{MemberState, END};
use exraid::{Device, Disk, Making, Region, Uuid};

use super::{alone, label_of, taken, Volume};
use crate::config::NewDisk;
use crate::error::{Error, Result};

/// The rebuilds of a volume: one at a time.
#[derive(Default)]
pub struct Rebuilds {
    one: Mutex<()>,
    /// Bytes that are left of the present one.
    left: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Rebuilds {
    /// Bytes that are left of the present one.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Waits for the end of the one in the background.
    pub fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a rebuild has panicked");
        }
    }
}

/// A disk to take another's place.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub old: PathBuf,
    pub new: NewDisk,
    /// Give up its content.
    pub force: bool,
}

impl Volume {
    /// Puts back, in the background, all present members that are not whole.
    pub fn rebuild_in_background(self: &Arc<Volume>) {
        if self.to_rebuild().is_empty() {
            return;
        }
        let volume = self.clone();
        let rebuild = move || {
            for (region, role) in volume.to_rebuild() {
                let done = volume.rebuild(&*region, role, None, &mut |_| true);
                match done {
                    Ok(true) => tracing::info!("disk {} of region {} is whole again", role + 1, region.number()),
                    Ok(false) => return,
                    Err(e) => tracing::error!("rebuilding disk {} of region {}: {e}", role + 1, region.number()),
                }
            }
        };
        match std::thread::Builder::new().name("rebuild".into()).spawn(rebuild) {
            Ok(thread) => *self.rebuilds.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
            Err(e) => tracing::error!("nothing is rebuilt: {e}"),
        }
    }

    /// Present members that are not whole.
    fn to_rebuild(&self) -> Vec<(Arc<dyn Region>, usize)> {
        let of = |region: Arc<dyn Region>| {
            let members = region.members().into_iter().enumerate();
            let lacks = members.filter(|(_, member)| member.name.is_some() && member.state != MemberState::Whole);
            let lacks: Vec<usize> = lacks.map(|(role, _)| role).collect();
            lacks.into_iter().map(move |role| (region.clone(), role))
        };
        let redundant = |region: &Arc<dyn Region>| region.layout().tolerates(region.members().len()) > 0;
        self.line().regions().into_iter().filter(redundant).flat_map(of).collect()
    }

    /// False: it was stopped, and goes on when the volume is opened again.
    fn rebuild(
        &self,
        region: &dyn Region,
        role: usize,
        spare: Option<(Arc<dyn Device>, Uuid)>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool> {
        let _one = self.rebuilds.one.lock().unwrap_or_else(PoisonError::into_inner);
        let size = region.properties().size;
        let mut go_on = |left: u64| {
            self.rebuilds.left.store(left, Ordering::Relaxed);
            go_on(left) && !self.is_stopping()
        };
        let done = region.rebuild(role, spare, &mut || std::iter::once(0..size).collect(), &mut go_on);
        self.rebuilds.left.store(0, Ordering::Relaxed);
        Ok(done?)
    }

    /// Puts a disk in another's place, or a failed one back, and rebuilds it. `go_on` gets the bytes that are left; if
    /// it returns false, the rebuild goes on when the volume is opened again.
    pub fn replace(&self, how: &Replacement, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let (region, role) = self.member(&how.old)?;
        let shown = how.old.display();
        let state = region.members()[role].state;
        if region.layout().tolerates(region.members().len()) == 0 {
            let kind = region.layout();
            return Err(Error::Volume(format!(
                "region {} is a {kind}: no other disk has what {shown} has, so it cannot be replaced",
                region.number()
            )));
        }
        let is_there = region.members()[role].name.is_some();
        if how.old == how.new.path && is_there {
            return match state {
                MemberState::Whole => Err(Error::Volume(format!("{shown} is whole, there is nothing to rebuild"))),
                _ => self.rebuild(&*region, role, None, go_on),
            };
        }
        let disk = self.make_spare(&*region, role, how)?;
        let uuid = Uuid::random().map_err(Error::host(&how.new.path, "a random number"))?;
        self.name(region.number(), |disks| {
            if !disks.contains(&how.new.path) {
                disks.push(how.new.path.clone());
            }
        })?;
        let done = self.rebuild(&*region, role, Some((Arc::new(disk), uuid)), go_on);
        // If the labels name it, the old disk has lost its place, even before the new one is whole.
        let (number, has_place) = (region.number(), region.members()[role].device == uuid);
        let goes = if has_place { &how.old } else { &how.new.path };
        if how.old != how.new.path {
            self.name(number, |disks| disks.retain(|path| path != goes))?;
        }
        if has_place {
            let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
            problems.retain(|problem| problem.path != how.old && problem.path != how.new.path);
        }
        done
    }

    fn make_spare(&self, region: &dyn Region, role: usize, how: &Replacement) -> Result<Disk> {
        let path = &how.new.path;
        let used = |member: exraid::MemberStatus| member.name.is_some_and(|name| Path::new(&*name) == path);
        if self.line().regions().iter().flat_map(|region| region.members()).any(used) {
            return Err(Error::Volume(format!("{} is a disk of this volume already", path.display())));
        }
        // A disk of this place that has lost its content may be made anew without a question.
        let is_own = Disk::open(path, &exraid::Options { read_only: true, ..alone() })
            .and_then(|disk| label_of(&disk, self.uuid, region.number()))
            .is_ok_and(|label| label.role == role);
        let needed = self.needed(region);
        let size = match how.new.size {
            None if path.exists() => None,
            None => Some(needed),
            size => size,
        };
        let making = Making { size, force: how.force || is_own, options: alone() };
        let disk = Disk::make(path, &making).map_err(taken)?;
        let found = disk.properties().size;
        match found >= needed {
            true => Ok(disk),
            false => Err(exraid::OpenError::TooSmall { path: path.clone(), found, needed }.into()),
        }
    }

    /// The size of a disk that suits any member's place.
    fn needed(&self, region: &dyn Region) -> u64 {
        let width = match region.layout() {
            exraid::Layout::Raid5 { .. } => region.members().len() as u64 - 1,
            exraid::Layout::Stripe { .. } => region.members().len() as u64,
            _ => 1,
        };
        let sizes = region.members().into_iter().filter_map(|member| member.name);
        let size = |name: Arc<str>| {
            let path = Path::new(&*name);
            let length = std::fs::File::open(path).ok()?;
            rustix::fs::seek(&length, rustix::fs::SeekFrom::End(0)).ok()
        };
        // As much as the smallest present disk, or else enough for the content.
        sizes.filter_map(size).min().unwrap_or(region.properties().size / width + 2 * END)
    }

    /// The member with this path, present or former.
    fn member(&self, path: &Path) -> Result<(Arc<dyn Region>, usize)> {
        for region in self.line().regions() {
            let members = region.members();
            let is_it =
                |member: &exraid::MemberStatus| member.name.as_ref().is_some_and(|name| Path::new(&**name) == path);
            if let Some(role) = members.iter().position(is_it) {
                return Ok((region, role));
            }
            let entries = &self.config().regions;
            let is_named = entries
                .get(region.number() as usize)
                .is_some_and(|entry| entry.disks.iter().any(|named| self.dir.join(named) == path));
            if let Some(role) = members.iter().position(|member| member.name.is_none()).filter(|_| is_named) {
                return Ok((region, role));
            }
        }
        let (path, dir) = (path.display(), self.dir.display());
        Err(Error::Volume(format!("{path} is no disk of {dir}; `conquest export status {dir}` lists them")))
    }

    /// Changes the disks of a region in `volume.toml`.
    fn name(&self, region: u32, change: impl FnOnce(&mut Vec<PathBuf>)) -> Result<()> {
        let mut config = self.config();
        let mut new = config.clone();
        if let Some(entry) = new.regions.get_mut(region as usize) {
            change(&mut entry.disks);
        }
        new.write(&self.dir)?;
        *config = new;
        Ok(())
    }
}
