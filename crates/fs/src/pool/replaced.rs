//! A restored copy takes the place of another: all of it or nothing, wherever that is interrupted.
//!
//! What takes the place is made in [`STAGING`], whole and durable, with its `pool.toml`. Then, in this order:
//!
//! 1. `STAGING` is named [`DECIDED`], durably. Until then the pool is what was there, from then on what was restored: whoever
//!    comes next does the rest, and any part of it again.
//! 2. The memory of what was there goes. Earlier, what only it holds would be lost with a restore that never was; later, its
//!    image, which it is named after, would not lead to it any more.
//! 3. The files take their places, `pool.toml` last, durably: before, `DECIDED` must not go.
//! 4. `DECIDED` goes.

use std::fs;
use std::path::Path;

use super::config::{self, host, Config};
use super::{files, logged, MediumKind};
use crate::error::{Error, Result};

pub const STAGING: &str = ".restored";
const DECIDED: &str = ".restored-whole";

/// Called before each change; an error ends it there, as a power cut would.
pub type Step<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Has a restored copy not taken its place yet?
pub fn is_due(dir: &Path) -> bool {
    dir.join(DECIDED).exists()
}

/// Puts what was made in `STAGING` in the place of what is in `dir`, where nobody is attached nor can be.
pub fn replace(dir: &Path, step: Step) -> Result<()> {
    step()?;
    fs::rename(dir.join(STAGING), dir.join(DECIDED)).map_err(|e| host(&dir.join(DECIDED), &e))?;
    sync(dir)?;
    finish(dir, step)
}

/// Does what is left to do, while nobody else makes a pool there.
pub fn finish(dir: &Path, step: Step) -> Result<()> {
    let from = dir.join(DECIDED);
    if from.join(files::IMAGE).exists() {
        step()?;
        forget_memory(dir);
    }
    for name in files::NAMES.into_iter().chain([config::FILE]).filter(|name| from.join(name).exists()) {
        step()?;
        fs::rename(from.join(name), dir.join(name)).map_err(|e| unfinished(dir, &e))?;
    }
    sync(dir)?;
    step()?;
    fs::remove_dir_all(&from).map_err(|e| unfinished(dir, &e))
}

fn forget_memory(dir: &Path) {
    if let Ok(Some(old)) = Config::read(dir) {
        if let (MediumKind::Logged, Ok(uuid)) = (old.medium, old.uuid_bytes()) {
            logged::forget(dir, &uuid);
        }
    }
}

fn sync(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| host(dir, &e))
}

fn unfinished(dir: &Path, e: &std::io::Error) -> Error {
    Error::Pool(format!(
        "{}: a restore was interrupted and cannot be finished: {e}; open the pool once as its owner, where the directory can \
         be written",
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::View;
    use crate::{Caller, FormatOptions, OpenOptions, Pool};

    struct Home(tempfile::TempDir);

    impl Home {
        /// A pool on `logged` that holds a file of this name.
        fn with(name: &str) -> Home {
            let home = Home(tempfile::tempdir_in("/dev/shm").expect("a directory"));
            let how = FormatOptions { medium: MediumKind::Logged, ..FormatOptions::sized(8 << 20) };
            Pool::format(home.dir(), &how).expect("formatted");
            View::new(&home.open(), Caller::root()).create(name.as_bytes(), 0o600).expect("made");
            home
        }

        fn dir(&self) -> &Path {
            self.0.path()
        }

        fn open(&self) -> Pool {
            Pool::open(self.dir(), &OpenOptions::default()).expect("a pool")
        }

        fn has(&self, name: &str) -> bool {
            let pool = self.open();
            assert_eq!(pool.fsck(false, &mut |_, _| {}).expect("checked").problems, Vec::<String>::new());
            let found = View::new(&pool, Caller::root()).stat(name.as_bytes()).is_ok();
            found
        }

        fn memory(&self) -> Vec<std::path::PathBuf> {
            Pool::memory(self.dir()).expect("names")
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            self.memory().iter().for_each(|path| _ = fs::remove_file(path));
        }
    }

    /// Restores `image` over a pool with the file "old", interrupted before step `n`; false if it has fewer.
    fn interrupted(home: &Home, image: &Path, n: usize) -> bool {
        let mut steps = 0;
        let stopped = Pool::restore_by(home.dir(), image, None, true, &mut |_, _| {}, &mut || {
            steps += 1;
            match steps {
                step if step == n => Err(Error::Pool("power cut".into())),
                _ => Ok(()),
            }
        });
        stopped.is_err()
    }

    /// With [`interrupted`] again and again, `check` after each, told whether the old pool should be there.
    fn at_each_step(check: impl Fn(&Home, bool)) {
        let away = Home::with("new");
        let images = tempfile::tempdir().expect("a directory");
        let image = images.path().join("saved");
        away.open().save(&image, &mut |_, _| {}).expect("saved");
        let mut stops = 0;
        for n in 1.. {
            let home = Home::with("old");
            let memory = home.memory();
            let stopped = interrupted(&home, &image, n);
            assert_eq!(memory.iter().all(|path| path.exists()), n <= 2, "before step {n}");
            check(&home, n == 1);
            memory.iter().filter(|_| n > 1).for_each(|path| assert!(!path.exists(), "{}", path.display()));
            if !stopped {
                break;
            }
            stops = n;
        }
        assert_eq!(stops, 7, "the name, the memory, four files, the directory");
    }

    #[test]
    fn an_interrupted_restore_leaves_the_old_pool_or_the_new_one() {
        at_each_step(|home, old| {
            assert_eq!((home.has("old"), home.has("new")), (old, !old));
            assert!(!is_due(home.dir()) && !home.dir().join(STAGING).exists());
        });
    }

    #[test]
    fn a_pool_whose_restore_was_interrupted_is_imported_from_what_counts() {
        at_each_step(|home, old| {
            Pool::import(home.dir(), true, &mut |_, _| {}).expect("imported");
            assert_eq!((home.has("old"), home.has("new")), (old, !old));
        });
    }
}
