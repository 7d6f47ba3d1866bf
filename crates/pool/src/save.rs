//! Saving a pool.

use std::path::Path;

use backing::save;
use backing::save::snapshot::Snapshot;
use backing::save::write::Writer;
use pram::memory::BLOCK;
use pram::Session;
use rustix::fs::{statx, AtFlags, StatxFlags, CWD};

use super::disks::Disks;
use super::open::load;
use super::{own_files, Pool};
use conquest_fs::error::{Error, Result};
use conquest_fs::max_inodes;
use conquest_fs::node::{Atime, Fs, Policy};
use conquest_fs::ubj::{Options, Union};
use ilfs::content_stream::Carried;
use ilfs::Log;

/// How a pool is saved.
#[derive(Clone, Copy, Debug, Default)]
pub struct HowToSave {
    /// Leave out content of large files that is on disks.
    pub memory_only: bool,
    /// Replace any file at the image's place.
    pub force: bool,
}

/// The result of saving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Bytes of content on disks: in the image; unreadable; and left out, about.
    pub content: u64,
    pub unread: u64,
    pub left_out: u64,
}

/// Keeps replaced content on the disks while this lives, as long as other processes can do without its room.
struct Needed<'s>(&'s Session);

impl Needed<'_> {
    /// From the running epoch on: the snapshot does not lead to content that was replaced before.
    fn begin(session: &Session) -> Result<Needed<'_>> {
        session.runtime().need_from(Some(session.epoch()?));
        Ok(Needed(session))
    }

    fn check(&self) -> Result<()> {
        match self.0.runtime().has_declared_need() {
            true => Ok(()),
            false => Err(Error::Pool(
                "the pool's disks are full, and what was overwritten while it was saved had to make room: make room there, or save \
                 it when less is written"
                    .into(),
            )),
        }
    }
}

impl Drop for Needed<'_> {
    fn drop(&mut self) {
        self.0.runtime().need_from(None);
    }
}

impl Pool {
    /// Writes an image of the pool to `file`: its memory, and the content of large files on its disks, as of one instant, while other threads
    /// and processes work. `progress(done, total)` in bytes.
    pub fn save(&self, file: impl AsRef<Path>, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.save_with(file.as_ref(), HowToSave::default(), progress).map(drop)
    }

    /// The same as `how` says. Leaves out unreadable content of the disks, and saves the rest.
    ///
    /// Ordered steps:
    /// 1. From now on, replaced content stays on the disks. (Otherwise content that the memory of step 2 leads to would be overwritten.)
    /// 2. The memory as of one instant goes to a file of its own. 3. It goes to the image. 4. So does its content on the disks.
    /// 5. All of that content was there to the end: the image takes its place.
    pub fn save_with(
        &self,
        file: impl AsRef<Path>,
        how: HowToSave,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Saved> {
        let file = file.as_ref();
        self.refuse_own_mount(file)?;
        own_files::refuse(&self.dir, &self.config, file)?;
        if !how.force {
            refuse_foreign(file)?;
        }
        let session = self.fs.session();
        // 1.
        let needed = Needed::begin(session)?;
        let mut writer = Writer::begin(file)?;
        // 2.
        let snapshot = Snapshot::take(session, file)?;
        let about = match Log::open(session, &[], ilfs::Options::default())? {
            Some(log) => log.carries_about(session)?,
            None => 0,
        };
        // 3.
        writer.memory(&snapshot, (!how.memory_only).then_some(about), progress)?;
        if how.memory_only {
            writer.finish()?;
            return Ok(Saved { left_out: about, ..Saved::default() });
        }
        // 4.
        let carried = self.carry(snapshot, &mut writer, progress)?;
        // 5.
        needed.check()?;
        writer.finish()?;
        Ok(Saved { content: carried.blocks * BLOCK, unread: carried.unread * BLOCK, left_out: 0 })
    }

    /// Writes the content to which the memory of a snapshot leads to an image.
    fn carry(&self, snapshot: Snapshot, writer: &mut Writer, progress: &mut dyn FnMut(u64, u64)) -> Result<Carried> {
        let memory = snapshot.into_memory();
        let keys = max_inodes(memory.size());
        let session = Session::private(memory, keys)?;
        let disks = match self.fs.union() {
            Some(union) => union.regions(),
            None => Disks::open_to_look(&self.dir, &self.config)?.regions,
        };
        let Some(union) = Union::open_as_it_is(&session, &disks, Options::default())? else {
            return Ok(Carried::default());
        };
        let policy = Policy { read_only: true, atime: Atime::Never, ..Policy::default() };
        let fs = Fs::over(session, policy)?.with_union(Some(union.into()));
        let mut put = |bytes: &[u8]| Ok(writer.content(bytes)?);
        match fs.union() {
            Some(union) => union.carry(&fs, &mut put, &mut |done, all| progress(done * BLOCK, all * BLOCK)),
            None => Ok(Carried::default()),
        }
    }

    /// Fails if something that is no image would lose its place to one at `file`.
    pub fn refuse_foreign(file: impl AsRef<Path>) -> Result<()> {
        refuse_foreign(file.as_ref())
    }

    /// Fails if an image at `file` would replace one of the files of the pool at `dir`, without opening it.
    pub fn refuse_own_file(dir: impl AsRef<Path>, file: impl AsRef<Path>) -> Result<()> {
        let (dir, file) = (dir.as_ref(), file.as_ref());
        own_files::refuse(dir, &load(dir)?, file)
    }

    /// Fails if `file` lies in a mount of this pool: writing it would wait for a pool that stands still until it is
    /// written.
    fn refuse_own_mount(&self, file: &Path) -> Result<()> {
        // The kernel's knowledge suffices: the server of a mount, which may be stopped, is not asked.
        let device = |path: &Path| {
            let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
            Some((found.stx_dev_major, found.stx_dev_minor))
        };
        let real = file.canonicalize().or_else(|_| std::path::absolute(file));
        let absolute = real.map_err(|e| Error::host(file, &e))?;
        let target = absolute.parent().and_then(device);
        for mountpoint in self.sessions().into_iter().filter_map(|(_, session)| session.mountpoint) {
            let mounted = device(&mountpoint).filter(|on| mountpoint.parent().and_then(device) != Some(*on));
            if mounted.is_some() && mounted == target {
                return Err(Error::Pool(format!(
                    "{} lies in the pool itself, mounted at {}, which may stand still while it is saved; choose a file elsewhere",
                    file.display(),
                    mountpoint.display()
                )));
            }
        }
        Ok(())
    }
}

/// Fails if there is a file at `file` that is neither an image nor empty.
fn refuse_foreign(file: &Path) -> Result<()> {
    match save::is_foreign(file)? {
        true => Err(Error::Pool(format!(
            "{} is there, and no image of a pool: choose another file, or replace it with --force",
            file.display()
        ))),
        false => Ok(()),
    }
}
