//! Destroying a pool: the opposite of making one.
//!
//! 1. `pool.toml` is named [`DESTROYED`], durably: from then on there is no pool, and the next process that makes one here,
//!    or destroys this one, does the rest. (Earlier, a part of a pool could be opened as if it were all of it.)
//! 2. Memory and marks are removed. Later, nothing would lead to them, as the file is removed after which they are named.
//! 3. The memory is removed: its file, or the header of a device.
//! 4. The backing is removed, and the log of the server.
//! 5. The disks are removed: the pool's own files, and the labels of given disks.
//! 6. `DESTROYED` is removed, and the directory if nothing else is in it.

use pram::session::Exclusive;
use std::fs;
use std::path::{Path, PathBuf};

use super::{refuse_used_backings, swap, Builder, OnStep};
use crate::backing::files;
use crate::config::Config;
use crate::disks;
use crate::medium::MediumKind;
use crate::memory::{device, file, locks, shared};
use crate::paths::{CONFIG, DESTROYED, LOG};
use crate::rescue::inventory::{self, Belongs};
use crate::rescue::{orphans, salvage};
use crate::uuid;
use conquest_fs::error::{Error, Result};

/// Destroys the pool at `dir`, or the remains of one; or memory that belongs to no pool, whose file `dir` is. No process may
/// use it.
pub fn destroy(dir: &Path, step: OnStep) -> Result<()> {
    if let Some(uuid) = orphans::memory_at(dir) {
        return destroy_memory(uuid, dir);
    }
    if !dir.is_dir() {
        return Err(none(dir));
    }
    if is_due(dir) {
        // `Builder::begin` finishes that.
        return Builder::begin(dir).map(|_alone| _ = fs::remove_dir(dir));
    }
    let _alone = Builder::begin(dir)?;
    let config = match Config::read(dir)? {
        Some(config) => config,
        None => {
            let mut config = remains(dir)?.ok_or_else(|| none(dir))?;
            config.disks = disks::adopted(dir, config.uuid_bytes()?);
            config
        }
    };
    let _held = hold(dir, &config)?;
    step()?;
    decide(dir, &config)?;
    finish(dir, step)
}

fn none(dir: &Path) -> Error {
    Error::Pool(format!("there is no pool at {}; `conquest list` shows those of this host", dir.display()))
}

/// The remains of a pool without `pool.toml` in `dir`, or of one whose memory says that its backing was there.
fn remains(dir: &Path) -> Result<Option<Config>> {
    let backing = files::open(dir).ok().and_then(|disks| backing::identify(&disks).ok());
    match backing {
        Some(id) => Ok(Some(Config::new(MediumKind::Logged, uuid::text(&id.uuid)))),
        None => salvage::lost(dir),
    }
}

/// Keeps all processes from attaching to the pool; fails if one works on it.
fn hold(dir: &Path, config: &Config) -> Result<Option<Exclusive>> {
    let held = locks::hold_unused(&config.lock_path(dir))?;
    refuse_used_backings(dir, [Some(config)])?;
    if let Some(memory_path) = salvage::find(dir, config)? {
        shared::refuse_mapped(&memory_path)?;
    }
    Ok(held)
}

/// Step 1.
fn decide(dir: &Path, config: &Config) -> Result<()> {
    let (from, to) = (dir.join(CONFIG), dir.join(DESTROYED));
    if !from.exists() {
        config.write(dir)?;
    }
    fs::rename(&from, &to).map_err(|e| Error::host(&from, &e))?;
    swap::sync(dir).map_err(|e| Error::host(dir, &e))
}

/// Whether a pool at `dir` is to be destroyed, and part of it may be gone.
pub fn is_due(dir: &Path) -> bool {
    dir.join(DESTROYED).exists()
}

/// The other steps, any of which may be done already.
pub fn finish(dir: &Path, step: OnStep) -> Result<()> {
    let decided = dir.join(DESTROYED);
    let config = Config::read_for(dir, &decided)?.ok_or_else(|| none(dir))?;
    step()?;
    if let Some(memory_path) = salvage::find(dir, &config)? {
        salvage::remove(&memory_path);
    }
    swap::forget(dir, &config);
    if config.medium != MediumKind::Logged {
        step()?;
        remove_region(&config.nvram_path(dir), &config)?;
    }
    step()?;
    for backing in config.backing_dir(dir).iter().filter(|backing| is_its_backing(backing, dir, &config)) {
        files::remove(backing);
        // The directory of its own, if it is empty now.
        _ = fs::remove_dir(backing);
    }
    _ = fs::remove_file(dir.join(LOG));
    _ = disks::damage::forget(dir);
    for entry in &config.disks {
        step()?;
        disks::place::remove(dir, entry, config.uuid_bytes()?)?;
    }
    step()?;
    fs::remove_file(&decided).map_err(|e| Error::host(&decided, &e))?;
    // A directory that is not empty stays.
    _ = fs::remove_dir(dir);
    Ok(())
}

/// Removes the memory; a file that is another pool's memory by now stays.
fn remove_region(path: &Path, config: &Config) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    if device::is_device(path, config.medium)? {
        return device::clear(path);
    }
    match file::uuid_at(path, config.medium) {
        Ok(of) if config.uuid_bytes().ok() != Some(of) => Ok(()),
        _ => fs::remove_file(path).map_err(|e| Error::host(path, &e)),
    }
}

/// A backing that names another pool stays; so does one elsewhere that names no pool.
fn is_its_backing(backing: &Path, dir: &Path, config: &Config) -> bool {
    let found = files::open(backing).ok().and_then(|disks| backing::identify(&disks).ok());
    let same = |one: &Path| one.canonicalize().ok();
    match found {
        Some(id) => config.uuid_bytes().is_ok_and(|uuid| uuid == id.uuid),
        None => same(backing) == same(dir),
    }
}

fn destroy_memory(uuid: [u8; 16], memory_path: &Path) -> Result<()> {
    shared::refuse_mapped(memory_path)?;
    let found = inventory::look_at(uuid, memory_path)?;
    if let Some(dir) = found.pool.filter(|_| found.belongs == Belongs::Pool) {
        return Err(Error::Pool(format!(
            "{} is the memory of the pool at {1}: `conquest release {1}` gives it back, `conquest destroy {1}` destroys the \
             pool",
            memory_path.display(),
            dir.display()
        )));
    }
    let runtime: Option<PathBuf> =
        memory_path.to_str().and_then(|path| path.strip_suffix("-region")).map(PathBuf::from);
    fs::remove_file(memory_path).map_err(|e| Error::host(memory_path, &e))?;
    salvage::remove(memory_path);
    runtime.iter().for_each(|path| _ = fs::remove_file(path));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::cut_before;
    use super::*;
    use crate::paths;
    use crate::NewDisk;
    use crate::{Caller, FormatOptions, OpenOptions, Pool};
    use conquest_fs::path::View;

    fn kinds() -> [FormatOptions; 4] {
        let sized = || FormatOptions::on(MediumKind::Battery, 8 << 20);
        let disk = NewDisk { path: "disk".into(), size: Some(16 << 20) };
        [
            FormatOptions { medium: MediumKind::Logged, ..sized() },
            FormatOptions { backing: Some(".".into()), ..sized() },
            FormatOptions { medium: MediumKind::Logged, regions: vec![disk.into()], ..sized() },
            FormatOptions { backing: Some("mirror".into()), mirror: true, ..sized() },
        ]
    }

    /// A pool with a file in it, and the name of its files in shared memory.
    fn made(home: &Path, how: &FormatOptions) -> (PathBuf, String) {
        let dir = home.join("pool");
        Pool::format(&dir, how).expect("formatted");
        let pool = Pool::open(&dir, &OpenOptions::default()).expect("opened");
        View::new(&pool, Caller::root()).create(b"file", 0o600).expect("made");
        let uuid = pool.status().expect("facts").uuid.replace('-', "");
        (dir, uuid)
    }

    fn in_shared_memory(uuid: &str) -> usize {
        let entries = fs::read_dir(paths::RUNTIME_DIR).expect("a directory").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains(uuid)).count()
    }

    fn nothing_is_left(dir: &Path, uuid: &str) {
        assert!(!dir.exists(), "{:?}", fs::read_dir(dir).map(|left| left.flatten().collect::<Vec<_>>()));
        assert_eq!(in_shared_memory(uuid), 0);
    }

    #[test]
    fn interrupted_anywhere_it_leaves_all_of_the_pool_or_no_pool_and_can_be_repeated() {
        for how in kinds() {
            for n in 1.. {
                let home = tempfile::tempdir_in(paths::RUNTIME_DIR).expect("a directory");
                let (dir, uuid) = made(home.path(), &how);
                let stopped = cut_before(n, |step| destroy(&dir, step));
                assert_eq!(Pool::exists(&dir), n == 1);
                if n == 1 {
                    let pool = Pool::open(&dir, &OpenOptions::default()).expect("as it was");
                    assert!(View::new(&pool, Caller::root()).stat(b"file").is_ok());
                } else {
                    assert!(Pool::open(&dir, &OpenOptions::default()).is_err());
                }
                if stopped.is_ok() {
                    assert!(n > 4, "it has steps");
                    nothing_is_left(&dir, &uuid);
                    break;
                }
                Pool::destroy(&dir).expect("repeated");
                nothing_is_left(&dir, &uuid);
            }
        }
    }

    #[test]
    fn whoever_makes_a_pool_finishes_what_was_interrupted() {
        for (how, n) in kinds().iter().flat_map(|how| (2..5).map(move |n| (how, n))) {
            let home = tempfile::tempdir_in(paths::RUNTIME_DIR).expect("a directory");
            let (dir, uuid) = made(home.path(), how);
            let stopped = cut_before(n, |step| destroy(&dir, step));
            assert!(stopped.is_err());
            Pool::format(&dir, &FormatOptions::on(MediumKind::Battery, 8 << 20)).expect("made anew");
            assert!(Pool::open(&dir, &OpenOptions::default()).is_ok() && !is_due(&dir));
            assert_eq!(in_shared_memory(&uuid), 0);
        }
    }

    #[test]
    fn what_is_used_or_anothers_stays() {
        for how in kinds() {
            let home = tempfile::tempdir_in(paths::RUNTIME_DIR).expect("a directory");
            let (dir, uuid) = made(home.path(), &how);
            fs::write(dir.join("notes"), "mine").expect("a file");
            let pool = Pool::open(&dir, &OpenOptions::default()).expect("opened");
            let refusal = Pool::destroy(&dir).expect_err("in use").to_string();
            assert!(refusal.contains("in use"), "{refusal}");
            drop(pool);
            Pool::destroy(&dir).expect("destroyed");
            let left: Vec<_> = fs::read_dir(&dir).expect("it stays").flatten().map(|entry| entry.file_name()).collect();
            assert_eq!((left, in_shared_memory(&uuid)), (vec!["notes".into()], 0));
            assert!(Pool::destroy(&dir).is_err_and(|e| e.to_string().contains("there is no pool")));
        }
    }

    #[test]
    fn memory_whose_pool_is_gone_is_found_and_given_back() {
        let home = tempfile::tempdir_in(paths::RUNTIME_DIR).expect("a directory");
        let (dir, uuid) = made(home.path(), &kinds()[0]);
        let memory_path = Pool::memory(&dir).expect("names").remove(0);
        let found = || {
            let all = Pool::all_memory().expect("a list");
            all.into_iter().find(|memory| memory.path == memory_path)
        };
        let there = found().expect("listed");
        assert_eq!((there.belongs, there.backed, there.pool), (Belongs::Pool, Some(true), Some(dir.clone())));
        assert!(there.taken >= 1 << 20 && there.size == 8 << 20);
        assert!(Pool::destroy(&memory_path).is_err_and(|e| e.to_string().contains("conquest release")));
        fs::remove_dir_all(&dir).expect("removed");
        // A process that makes another pool meanwhile, as other tests do, gives it back too.
        match found().map(|memory| memory.belongs) {
            None => {}
            belongs => {
                assert_eq!(belongs, Some(Belongs::Gone));
                Pool::release(&memory_path)
                    .or_else(|e| if memory_path.exists() { Err(e) } else { Ok(()) })
                    .expect("released");
            }
        }
        assert_eq!((found().is_none(), in_shared_memory(&uuid)), (true, 0));
    }

    #[test]
    fn memory_that_holds_what_is_nowhere_else_is_only_destroyed() {
        let home = tempfile::tempdir_in(paths::RUNTIME_DIR).expect("a directory");
        let (dir, uuid) = made(home.path(), &kinds()[0]);
        let memory = Pool::memory(&dir).expect("names");
        // First: otherwise a process that makes another pool meanwhile, as other tests do, would give back memory that its backing holds.
        fs::remove_file(&memory[1]).expect("the marks");
        fs::remove_dir_all(&dir).expect("removed");
        let refusal = Pool::release(&memory[0]).expect_err("nobody knows").to_string();
        assert!(refusal.contains("conquest save") && refusal.contains("conquest destroy"), "{refusal}");
        Pool::destroy(&memory[0]).expect("given up");
        assert_eq!(in_shared_memory(&uuid), 0);
    }

    #[test]
    fn a_pool_takes_no_directory_with_other_files() {
        for how in kinds() {
            let home = tempfile::tempdir_in(paths::RUNTIME_DIR).expect("a directory");
            fs::create_dir(home.path().join("lost+found")).expect("a directory");
            fs::write(home.path().join("thesis"), "text").expect("a file");
            let refusal = Pool::format(home.path(), &how).expect_err("another's directory").to_string();
            assert!(refusal.contains("thesis") && refusal.contains("--force"), "{refusal}");
            assert_eq!(fs::read_dir(home.path()).expect("a directory").count(), 2);
            Pool::format(home.path(), &FormatOptions { force: true, ..how }).expect("wanted");
            Pool::destroy(home.path()).expect("destroyed");
            assert_eq!(fs::read_dir(home.path()).expect("a directory").count(), 2);
        }
    }
}
