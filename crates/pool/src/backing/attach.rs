//! Opening a memory, its marks and its backing together.

use std::fs;
use std::path::{Path, PathBuf};

use backing::log::Identity;
use backing::{Backing, Disks, Loaded};
use pram::marks::Marks;
use pram::{session, Mapping, Memory};

use crate::memory::marks::{self, holds_all, name_of};
use crate::memory::shared::{self, make_shared, open_shared};
use crate::paths::RUNTIME_DIR;
use crate::rescue::identity::MemoryIdentity;
use crate::rescue::orphans;
use conquest_fs::error::{Error, Result};

/// The marks of a pool's memory, in shared memory, and the backing that lacks the marked changes.
pub struct Tracked<'a> {
    pub id: Identity,
    /// The directory of the backing.
    pub dir: &'a Path,
    pub disks: &'a Disks,
    pub lock: &'a fs::File,
}

impl Tracked<'_> {
    pub fn path(&self) -> Result<PathBuf> {
        shared::path(self.lock, &self.id.uuid, "marks")
    }

    /// Continues from the state of the last process; `None` if that is unknown.
    pub fn resume(&self, memory: &Memory, attached: bool) -> Result<Option<(Marks, Backing)>> {
        let Some(marks) = self.marks(memory.map().reserved())? else { return Ok(None) };
        let Some(backing) = Backing::resume(self.disks.clone(), &marks, self.id)? else { return Ok(None) };
        if !attached {
            backing.take_up_unnoted(&marks)?;
            self.note_origin(&marks)?;
        }
        Ok(Some((marks, backing)))
    }

    /// Gives foreign memory another name, if it has the name of this one: its pool's disk had the number that this one's has now. No
    /// name refers to it then, but its own pool finds it. 1. The marks. 2. The memory. (One without the other does not belong to the
    /// backing, and is refused.)
    pub fn rename_foreign_memory(&self) -> Result<()> {
        let memory_path = shared::path(self.lock, &self.id.uuid, "region")?;
        if !orphans::is_anothers(self.id.uuid, &memory_path, self.dir) {
            return Ok(());
        }
        let away = orphans::rename_away(self.id.uuid, &memory_path)?;
        tracing::info!("{} is the memory of another pool: {} from now on", memory_path.display(), away.display());
        Ok(())
    }

    /// Finds memory of this backing that has another name, and gives it its own name: the disk of the backing has got another
    /// number since. Takes only memory that continues exactly where the backing ends; true if there was any.
    pub fn adopt(&self) -> Result<bool> {
        let Ok(entries) = fs::read_dir(RUNTIME_DIR) else { return Ok(false) };
        let own = self.path()?;
        for marks in entries.flatten().map(|entry| entry.path()).filter(|path| *path != own) {
            let Some(name) = name_of(&marks).filter(|name| name.starts_with(&session::shared_prefix(&self.id.uuid)))
            else {
                continue;
            };
            if self.is_own(name, &marks).unwrap_or(false) {
                let named =
                    |path: &Path, what: &str| path.with_file_name(format!("{}{what}", name_of(path).unwrap_or(name)));
                tracing::info!("{} is this pool's memory: its disk had another number", marks.display());
                // The marks come last: without them memory and backing are compared.
                for (from, to) in [(named(&marks, "-region"), named(&own, "-region")), (marks.clone(), own.clone())] {
                    fs::rename(&from, &to).map_err(|e| Error::host(&from, &e))?;
                }
                let _ = fs::remove_file(marks.with_file_name(name));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether these marks are of this pool's memory, and that continues where the backing ends, and is not in use.
    fn is_own(&self, name: &str, marks: &Path) -> Result<bool> {
        let memory_path = marks.with_file_name(format!("{name}-region"));
        let [Some(file), Some(memory_path)] = [open_shared(marks, self.lock)?, open_shared(&memory_path, self.lock)?]
        else {
            return Ok(false);
        };
        shared::memory_size(&memory_path, marks)?;
        let noted = marks::map(&file, marks)?;
        let is_here = MemoryIdentity::read(&noted, self.id.uuid)?.is(self.dir);
        let is_used = || shared::refuse_mapped(&marks.with_file_name(format!("{name}-region"))).is_err();
        Ok(is_here && !is_used() && Backing::resume(self.disks.clone(), &noted, self.id)?.is_some())
    }

    /// Whether the backing holds everything, by the marks; `None` if there are none.
    pub fn is_backed(&self) -> Result<Option<bool>> {
        self.marks(0)?.map(|marks| holds_all(&marks)).transpose()
    }

    /// The marks, if there are any; with room for a memory of `most` bytes.
    fn marks(&self, most: u64) -> Result<Option<Marks>> {
        let path = self.path()?;
        let Some(file) = open_shared(&path, self.lock)? else { return Ok(None) };
        let len = file.metadata().map_err(|e| Error::host(&path, &e))?.len();
        if len < Marks::bytes(0) {
            return Ok(None);
        }
        if len < Marks::bytes(most) {
            file.set_len(Marks::bytes(most)).map_err(|e| Error::host(&path, &e))?;
        }
        let marks = marks::map(&file, &path)?;
        // The process that made them may have been killed before they were set.
        Ok(Backing::is_known(&marks, self.id)?.then_some(marks))
    }

    /// Notes the origin of the memory.
    fn note_origin(&self, marks: &Marks) -> Result<()> {
        MemoryIdentity::of(self.dir, self.id.uuid, backing::lineage(self.disks, self.id)?)?.write(marks)
    }

    /// Begins with a backing that was made or read back.
    pub fn begin(&self, map: &Mapping, loaded: &Loaded) -> Result<(Marks, Backing)> {
        let marks = self.fresh(map)?;
        let backing = Backing::begin(self.disks.clone(), &marks, self.id, loaded)?;
        Ok((marks, backing))
    }

    /// The same, unless the memory says that it was closed when the backing held all of it.
    pub fn compare_unless_clean(&self, memory: &Memory) -> Result<(Marks, Backing)> {
        match backing::clean(self.disks, self.id, memory)? {
            Some(loaded) => self.begin(memory.map(), &loaded),
            None => self.compare(memory),
        }
    }

    /// Compares `memory` with the backing, since it is unknown what the backing lacks.
    pub fn compare(&self, memory: &Memory) -> Result<(Marks, Backing)> {
        let marks = self.fresh(memory.map())?;
        let loaded = backing::compare(self.disks, self.id, memory, &marks)?;
        let backing = Backing::begin(self.disks.clone(), &marks, self.id, &loaded)?;
        Ok((marks, backing))
    }

    /// New marks for the memory in `map`.
    fn fresh(&self, map: &Mapping) -> Result<Marks> {
        let path = self.path()?;
        let marks = marks::map(&make_shared(&path, self.lock, Marks::bytes(map.reserved()))?, &path)?;
        self.note_origin(&marks)?;
        Ok(marks)
    }
}
