//! Making an empty pool. A DAX device stays in place: the pool is made on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backing::save::is_at;
use pram::session::Exclusive;
use pram::{Memory, Session};

use super::staging::Staged;
use super::{refuse_used_backings, relocate, Builder, OnStep};
use crate::backing::{files, logged};
use crate::config::Config;
use crate::disks::plan::Plan;
use crate::disks::{damage, make_log, place};
use crate::medium::MediumKind;
use crate::memory::map::holds_no_pool;
use crate::memory::{device, file, locks};
use crate::options::{FormatOptions, InRegions};
use crate::paths::{self, BACKING, LOG};
use crate::rescue::salvage;
use crate::uuid;
use conquest_fs::error::{Error, Result};
use conquest_fs::layout;
use conquest_fs::max_inodes;
use conquest_fs::node::Fs;

/// Names that may exist in the directory of a future pool: the log of a former pool, and the directory of a file system's root.
const EXPECTED: [&str; 2] = [LOG, "lost+found"];

/// Makes an empty pool at `dir`, in this order:
/// 1. All known faults are refused. Later, something would have been lost for nothing.
/// 2. No process attaches to the old pool, to the end: processes that come meanwhile find the new pool.
/// 3. The new pool is made, with all its room.
/// 4. It takes its place.
pub fn format(dir: &Path, how: &FormatOptions, step: OnStep) -> Result<()> {
    let alone = Builder::begin(dir)?;
    let mut config = wanted(how)?;
    let old = there(dir, how.force)?;
    match config.medium {
        MediumKind::Logged => refuse_backing_alone(dir, how, old.as_ref())?,
        _ => {
            refuse_region(dir, &config, how, old.as_ref())?;
            refuse_backing_of_another(dir, &config, old.as_ref())?;
        }
    }
    for pool in old.iter().chain([&config]) {
        locks::refuse_attached(&pool.lock_path(dir))?;
    }
    let plan = Plan::of(dir, how, &config, old.as_ref())?;
    config.disks = plan.entries();
    if old.is_none() && !how.force {
        refuse_other_files(dir, &config)?;
    }
    let held = hold(dir, [old.as_ref(), Some(&config)])?;
    refuse_used_backings(dir, [old.as_ref(), Some(&config)])?;
    let path = config.nvram_path(dir);
    if config.medium != MediumKind::Logged && device::is_device(&path, config.medium)? {
        format_device(dir, how, &config, old.as_ref(), &plan)?;
        drop((plan, held, alone));
        return match how.backing_in_regions {
            InRegions::Yes => relocate::into_regions(dir),
            _ => Ok(()),
        };
    }
    if old.is_none() {
        salvage::set_aside(dir)?;
    }
    let staged = Staged::begin(dir, &config)?;
    let disks = place::make(dir, staged.dir(), &plan, config.uuid_bytes()?)?;
    if config.medium == MediumKind::Logged {
        let (memory, backing) = logged::make(staged.dir(), dir, config.uuid_bytes()?, how.size, layout::VERSION)?;
        fill(memory, Some(backing), how, &disks)?;
    } else {
        let made = file::make(&path, config.medium, how.size)?;
        let (memory, file) = file::format_memory(made, &path, config.uuid_bytes()?, layout::VERSION)?;
        fill(memory, None, how, &disks)?;
        file.sync_all().map_err(|e| Error::host(&path, &e))?;
    }
    drop(disks);
    staged.place(&config, step)?;
    // The findings of the old pool.
    _ = damage::forget(dir);
    // From here on there is a pool; its backing lies in its directory until all of it has moved.
    drop((plan, held, alone));
    let are_given = !config.disks.is_empty() && config.disks.iter().all(|entry| entry.given);
    match how.backing_in_regions {
        InRegions::Yes => relocate::into_regions(dir),
        InRegions::IfGiven if are_given && config.medium == MediumKind::Logged => {
            if let Err(e) = relocate::into_regions(dir) {
                tracing::warn!("the pool's backing lies in the pool directory: {e}");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The configuration that `how` asks for.
fn wanted(how: &FormatOptions) -> Result<Config> {
    let mut config = Config::new(how.medium, uuid::random()?);
    (config.commit_interval, config.backing_rate) = (how.commit_interval, how.backing_rate);
    (config.threshold, config.cache, config.compression) = (how.threshold, how.cache, how.compression);
    if how.medium != MediumKind::Logged {
        config.nvram = how.nvram.clone().or(config.nvram);
        (config.backing, config.mirror) = (how.backing.clone(), how.mirror);
        return Ok(config);
    }
    match &how.nvram {
        Some(path) => Err(Error::Pool(format!(
            "{}: the memory of the medium `logged` is made by the pool itself; give its size alone",
            path.display()
        ))),
        None => Ok(config),
    }
}

/// The existing pool, which is only lost with `force`.
fn there(dir: &Path, force: bool) -> Result<Option<Config>> {
    match Config::read(dir) {
        Ok(Some(_)) if !force => Err(Error::Pool(format!(
            "{0} holds a pool already; mount it with `conquest mount {0} DIR`, or destroy it with `conquest format --force`",
            dir.display()
        ))),
        Err(e) if !force => Err(e),
        read => Ok(read.ok().flatten()),
    }
}

/// On `logged`: an existing backing in the place of the new one is only lost with `force`; a file that is no backing never, except that of
/// the old pool.
fn refuse_backing_alone(dir: &Path, how: &FormatOptions, old: Option<&Config>) -> Result<()> {
    pram::memory::Geometry::of(how.size)?;
    if how.force && old.is_some() {
        return Ok(());
    }
    if !how.force && files::holds_backing(dir) {
        return Err(Error::Pool(format!(
            "{0} holds the backing of a pool; make the pool of it with `conquest import {0}`, or destroy it with `conquest \
             format --force`",
            dir.display()
        )));
    }
    refuse_foreign_backing(dir)
}

/// Fails if files in `dir` have the names of a backing's files, and are none.
pub(super) fn refuse_foreign_backing(dir: &Path) -> Result<()> {
    files::find_foreign(dir).map_or(Ok(()), |path| Err(holds_no_pool(&path)))
}

/// A pool has a directory of its own: a wrong directory, named by mistake, would mix it with the files there.
pub(super) fn refuse_other_files(dir: &Path, config: &Config) -> Result<()> {
    let disks = config.disks.iter().map(|entry| entry.at(dir));
    let parts: Vec<PathBuf> =
        config.backing_dir(dir).into_iter().chain([config.nvram_path(dir)]).chain(disks).collect();
    let is_expected = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        EXPECTED.contains(&name) || BACKING.contains(&name) || parts.iter().any(|part| part.starts_with(path))
    };
    let entries = std::fs::read_dir(dir).map_err(|e| Error::host(dir, &e))?;
    match entries.flatten().map(|entry| entry.path()).find(|path| !is_expected(path)) {
        Some(other) => Err(Error::Pool(format!(
            "{} has other files in it ({}): choose an empty directory, or use --force to make the pool beside them",
            dir.display(),
            other.file_name().unwrap_or_default().to_string_lossy()
        ))),
        None => Ok(()),
    }
}

/// The same on the other media, for the places of memory and backing.
fn refuse_region(dir: &Path, config: &Config, how: &FormatOptions, old: Option<&Config>) -> Result<()> {
    if let Some(there) = config.backing_dir(dir).filter(|backing| !how.force && paths::has_backing_files(backing)) {
        return Err(Error::Pool(format!(
            "{} holds the backing of a pool; destroy it with `conquest format --force`",
            there.display()
        )));
    }
    let path = config.nvram_path(dir);
    let is_own = old.is_some_and(|old| paths::real(&old.nvram_path(dir)) == paths::real(&path));
    file::refuse_target(&path, how.size, how.force, is_own)
}

/// Never takes a directory that has or is the backing of another pool: that may be the last of that pool.
fn refuse_backing_of_another(dir: &Path, config: &Config, old: Option<&Config>) -> Result<()> {
    let Some(backing) =
        config.backing_dir(dir).filter(|backing| backing.canonicalize().ok() != dir.canonicalize().ok())
    else {
        return Ok(());
    };
    let own = old.and_then(|old| old.uuid_bytes().ok());
    let found = files::open(&backing).ok().and_then(|disks| backing::identify(&disks).ok());
    if !backing.join(paths::CONFIG).exists() && found.is_none_or(|id| Some(id.uuid) == own) {
        return Ok(());
    }
    Err(Error::Pool(format!(
        "{} is the directory of another pool, or holds the backing of one: choose another; if that pool is gone, remove its files yourself",
        backing.display()
    )))
}

/// Keeps all processes from attaching to any of these pools; fails if a process works on one.
fn hold<'a>(dir: &Path, pools: impl IntoIterator<Item = Option<&'a Config>>) -> Result<Vec<Exclusive>> {
    let mut held: Vec<Exclusive> = Vec::new();
    for path in pools.into_iter().flatten().map(|config| config.lock_path(dir)) {
        // This process holds it already, if both are one file.
        if !held.iter().any(|held| is_at(held, &path).unwrap_or(false)) {
            held.extend(locks::hold_unused(&path)?);
        }
    }
    Ok(held)
}

/// Makes the file system in a memory, and the log on its disks, and waits until the backing has them.
fn fill(
    memory: Memory,
    backing: Option<backing::Backing>,
    how: &FormatOptions,
    disks: &[Arc<dyn exraid::Region>],
) -> Result<()> {
    let keys = max_inodes(memory.size());
    let session = Session::private_with(memory, keys, backing)?;
    let (uid, gid) = how.root_owner;
    Fs::format(&session, (uid, gid, how.root_mode), uuid::random_key()?)?;
    make_log(&session, disks, how.cache.segment())?;
    backing::of(&session).map_or(Ok(()), |backing| Ok(backing.wait(&session)?))
}

/// Makes the pool in a device, `pool.toml` last: until then there is no pool.
fn format_device(dir: &Path, how: &FormatOptions, config: &Config, old: Option<&Config>, plan: &Plan) -> Result<()> {
    let made = device::take(&config.nvram_path(dir), how.size, how.force)?;
    Config::remove(dir)?;
    for config in old.into_iter().chain([config]) {
        config.backing_dir(dir).iter().for_each(|backing| files::remove(backing));
    }
    let staged = Staged::begin(dir, config)?;
    let disks = place::make(dir, staged.dir(), plan, config.uuid_bytes()?)?;
    let (memory, _) = file::format_memory(made, &config.nvram_path(dir), config.uuid_bytes()?, layout::VERSION)?;
    fill(memory, None, how, &disks)?;
    drop(disks);
    if let Some(old) = old {
        let uuid = old.uuid_bytes()?;
        place::left_behind(dir, Some(old), config).try_for_each(|entry| place::remove(dir, entry, uuid))?;
    }
    for (n, entry) in place::waiting(dir, staged.dir(), config) {
        place::take_place(dir, staged.dir(), n, entry)?;
    }
    config.write(dir)
}
