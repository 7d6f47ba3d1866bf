//! The directory in which a pool is made, beside the existing files; an attempt that fails leaves nothing.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::{swap, OnStep};
use crate::config::Config;
use crate::disks::place;
use crate::medium::MediumKind;
use crate::memory::shared;
use crate::paths::{self, IMAGE, STAGING};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// A pool in the making, by the process that has begun to [make](super::Builder) one in its directory.
pub struct Staged<'a> {
    home: &'a Path,
    dir: PathBuf,
}

impl Staged<'_> {
    /// Begins a pool like `config`, which need not have its UUID yet.
    pub fn begin<'a>(home: &'a Path, config: &Config) -> Result<Staged<'a>> {
        clear(home);
        let staged = Staged { home, dir: home.join(STAGING) };
        fs::DirBuilder::new().mode(0o700).create(&staged.dir).map_err(|e| Error::host(&staged.dir, &e))?;
        // After a kill, the process that clears it away reads here where its memory is.
        let config = Config { uuid: uuid::text(&[0; 16]), ..config.clone() };
        config.write(&staged.dir)?;
        Ok(staged)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves the pool, whole and durable by now, into its place.
    pub fn place(self, config: &Config, step: OnStep) -> Result<()> {
        config.write(&self.dir)?;
        place::sync(self.home, config)?;
        if config.medium != MediumKind::Logged {
            let beside = paths::staged_beside(&config.nvram_path(self.home));
            let dir = beside.parent().unwrap_or(Path::new("/"));
            fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::host(dir, &e))?;
        }
        swap::replace(self.home, step)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !paths::is_swap_due(self.home) {
            clear(self.home);
        }
    }
}

/// Removes a pool in the making in `home` that was not completed.
pub fn clear(home: &Path) {
    let dir = home.join(STAGING);
    // The target of a link is not ours.
    let plain = |path: &Path| fs::symlink_metadata(path).ok().filter(|found| !found.is_symlink());
    if plain(&dir).is_none() {
        return;
    }
    if let Some(image) = plain(&dir.join(IMAGE)) {
        shared::remove_named_after(&image);
    }
    if let Ok(Some(config)) = Config::read_for(home, &dir.join(paths::CONFIG)) {
        place::clear(home, &config);
        if config.medium != MediumKind::Logged {
            let path = config.nvram_path(home);
            let writing = backing::save::written_at(&path.canonicalize().unwrap_or_else(|_| path.clone()));
            let files = [Some(paths::staged_beside(&path)), writing];
            files.iter().flatten().for_each(|path| _ = fs::remove_file(path));
        }
    }
    if let Err(e) = fs::remove_dir_all(&dir) {
        tracing::warn!("{}: {e}", dir.display());
    }
}

#[cfg(test)]
mod tests {
    use std::mem::forget;

    use super::super::Builder;
    use super::*;
    use crate::backing::logged;
    use crate::memory::file;
    use crate::{FormatOptions, Pool};
    use conquest_fs::layout::VERSION;

    fn names(dir: &str, what: &str) -> usize {
        let entries = fs::read_dir(dir).expect("a directory").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains(what)).count()
    }

    /// As by a process that is killed.
    fn make_in_part(home: &Path, medium: MediumKind, uuid: &str) {
        let config = Config::new(medium, uuid.into());
        let staged = Staged::begin(home, &config).expect("begun");
        let bytes = config.uuid_bytes().expect("one");
        match medium {
            MediumKind::Logged => forget(logged::make(staged.dir(), home, bytes, 8 << 20, VERSION).expect("made")),
            medium => forget(file::make(&config.nvram_path(home), medium, 8 << 20).expect("made")),
        }
        forget(staged);
    }

    #[test]
    fn what_was_left_in_the_making_is_given_back() {
        let home = tempfile::tempdir_in("/dev/shm").expect("a directory");
        Pool::format(home.path(), &FormatOptions::on(MediumKind::Battery, 8 << 20)).expect("formatted");
        let (dir, uuid) = (home.path().to_string_lossy().into_owned(), uuid::random().expect("one"));
        for (medium, shared) in [(MediumKind::Logged, 2), (MediumKind::Battery, 0)] {
            make_in_part(home.path(), medium, &uuid);
            let left = || names("/dev/shm", &uuid.replace('-', ""));
            // The temporary file of `restore`.
            fs::write(home.path().join(".nvram.new"), "").expect("a file");
            assert_eq!((left(), names(&dir, STAGING)), (shared, 2 - shared / 2));
            drop(Builder::begin(home.path()).expect("another"));
            let writing = medium != MediumKind::Logged && home.path().join(".nvram.new").exists();
            assert_eq!((left(), names(&dir, STAGING), writing), (0, 0, false));
        }
        Pool::open(home.path(), &Default::default()).expect("what was there is");
    }
}
