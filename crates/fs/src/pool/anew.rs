//! Making a pool, empty or from an image: beside what is there, whole, and then in its place [in one step](super::replaced).
//! A DAX device stays what it is: there the pool is made in place.

use std::path::Path;

use pram::save::{is_at, Progress};
use pram::session::Exclusive;
use pram::{Region, Session};

use super::config::{self, host, uuid_text, Config};
use super::media::{self, Making};
use super::replaced::Step;
use super::staged::Staged;
use super::{files, logged, memory, FormatOptions, MediumKind};
use crate::error::{Error, Result};
use crate::inode::max_inodes;
use crate::layout;
use crate::node::Fs;

/// Makes an empty pool at `dir`, in this order:
/// 1. Whatever can be known to be wrong is refused. Later, something would have been lost for nothing.
/// 2. Nobody comes to what is there, to the end: who comes meanwhile finds the new pool.
/// 3. The new pool is made, with all its room.
/// 4. It takes its place.
pub fn format(dir: &Path, how: &FormatOptions, step: Step) -> Result<()> {
    let _alone = Making::begin(dir)?;
    let config = wanted(how)?;
    let old = there(dir, how.force)?;
    match config.medium {
        MediumKind::Logged => refuse_copy_alone(dir, how)?,
        _ => refuse_region(dir, &config, how)?,
    }
    let _held = hold(dir, [old.as_ref(), Some(&config)])?;
    refuse_used_copies(dir, [old.as_ref(), Some(&config)])?;
    let path = config.nvram_path(dir);
    if config.medium != MediumKind::Logged && media::is_device(&path, config.medium)? {
        return format_device(dir, how, &config, old.as_ref());
    }
    if old.is_none() {
        memory::set_aside(dir)?;
    }
    let staged = Staged::begin(dir, &config)?;
    if config.medium == MediumKind::Logged {
        let (region, copy) = logged::make(staged.dir(), dir, config.uuid_bytes()?, how.size, layout::VERSION)?;
        fill(region, Some(copy), how)?;
    } else {
        let made = media::make(&path, config.medium, how.size)?;
        let (region, file) = media::format_region(made, config.uuid_bytes()?, layout::VERSION)?;
        fill(region, None, how)?;
        file.sync_all().map_err(|e| host(&path, &e))?;
    }
    staged.place(&config, step)
}

/// What `how` asks for.
fn wanted(how: &FormatOptions) -> Result<Config> {
    let mut config = Config::new(how.medium, media::random_uuid()?);
    (config.commit_interval, config.copy_rate) = (how.commit_interval, how.copy_rate);
    if how.medium != MediumKind::Logged {
        config.nvram = how.nvram.clone().or(config.nvram);
        (config.copy, config.mirror) = (how.copy.clone(), how.mirror);
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

/// The pool that is there, which is only lost with `force`.
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

/// On `logged`, what lies where the copy is to be is only lost with `force`.
fn refuse_copy_alone(dir: &Path, how: &FormatOptions) -> Result<()> {
    pram::region::Geometry::of(how.size / 4096 * 4096)?;
    if how.force {
        return Ok(());
    }
    if files::hold_copy(dir) {
        return Err(Error::Pool(format!(
            "{0} holds the copy of a pool; make the pool of it with `conquest import {0}`, or destroy it with `conquest \
             format --force`",
            dir.display()
        )));
    }
    files::find_foreign(dir).map_or(Ok(()), |path| Err(media::holds_data(&path)))
}

/// The same on the other media, where region and copy are to be.
fn refuse_region(dir: &Path, config: &Config, how: &FormatOptions) -> Result<()> {
    if let Some(there) = config.copy_dir(dir).filter(|copy| !how.force && files::exist(copy)) {
        return Err(Error::Pool(format!(
            "{} holds the copy of a pool; destroy it with `conquest format --force`",
            there.display()
        )));
    }
    media::refuse_target(&config.nvram_path(dir), how.size, how.force)
}

/// Keeps all from coming to any of these pools; fails if any process works on one.
fn hold<'a>(dir: &Path, pools: impl IntoIterator<Item = Option<&'a Config>>) -> Result<Vec<Exclusive>> {
    let mut held: Vec<Exclusive> = Vec::new();
    for path in pools.into_iter().flatten().map(|config| config.lock_path(dir)) {
        // By us, if both are one file.
        if !held.iter().any(|held| is_at(held, &path).unwrap_or(false)) {
            held.extend(media::hold_unused(&path)?);
        }
    }
    Ok(held)
}

/// Fails if the copy of any of these pools would be lost to a process that writes to it: of another pool, or of a region that
/// is gone.
fn refuse_used_copies<'a>(dir: &Path, pools: impl IntoIterator<Item = Option<&'a Config>>) -> Result<()> {
    let mut copies = pools.into_iter().flatten().filter_map(|config| config.copy_dir(dir));
    match copies.find(|copy| files::are_in_use(copy).unwrap_or(false)) {
        Some(copy) => Err(Error::Pool(format!(
            "{} holds the copy of a pool that is in use; unmount that first, or choose another directory",
            copy.display()
        ))),
        None => Ok(()),
    }
}

/// Makes the file system in a region, and waits until the copy has it.
fn fill(region: Region, copy: Option<pram::copy::Copy>, how: &FormatOptions) -> Result<()> {
    let keys = max_inodes(region.geo.size);
    let session = Session::private_with(region, keys, copy)?;
    let (uid, gid) = how.root_owner;
    Fs::format(&session, (uid, gid, how.root_mode), media::random_key()?)?;
    session.copy().map_or(Ok(()), |copy| Ok(copy.wait(&session)?))
}

/// Makes the pool in a device, `pool.toml` last: until then there is none.
fn format_device(dir: &Path, how: &FormatOptions, config: &Config, old: Option<&Config>) -> Result<()> {
    let made = media::take(&config.nvram_path(dir), how.size, how.force)?;
    Config::remove(dir)?;
    for config in old.into_iter().chain([config]) {
        config.copy_dir(dir).iter().for_each(|copy| files::remove(copy));
    }
    let (region, _) = media::format_region(made, config.uuid_bytes()?, layout::VERSION)?;
    fill(region, None, how)?;
    config.write(dir)
}

/// What a restore may do to what is there.
#[derive(Clone, Copy)]
pub struct Over {
    /// That of a pool that is there stays.
    pub medium: Option<MediumKind>,
    pub force: bool,
}

/// Makes the pool at `dir` from an image, in the same order.
pub fn restore(dir: &Path, image: &Path, over: Over, progress: Progress, step: Step) -> Result<()> {
    std::fs::metadata(image).map_err(|e| host(image, &e))?;
    let _alone = Making::begin(dir)?;
    let old = match Config::read(dir) {
        Err(e) if !over.force => return Err(e),
        read => read.ok().flatten(),
    };
    let config = like(old.as_ref(), over.medium)?;
    refuse_there(dir, old.as_ref(), &config, over.force)?;
    refuse_used_copies(dir, [Some(&config)])?;
    let orphan = orphan(dir, old.as_ref(), over.force)?;
    if old.is_none() {
        memory::set_aside(dir)?;
    }
    if media::is_device(&config.nvram_path(dir), config.medium)? {
        return restore_device(dir, image, &config, progress);
    }
    let staged = Staged::begin(dir, &config)?;
    let info = match config.medium {
        MediumKind::Logged => logged::restore(staged.dir(), dir, image, progress)?,
        medium => media::restore_region(image, &config.nvram_path(dir), medium, progress)?,
    };
    // Who comes meanwhile finds the new pool; whoever is there keeps the old one.
    let _held = config.hold_unused(dir)?;
    refuse_used_copies(dir, [Some(&config)])?;
    staged.place(&Config { uuid: uuid_text(&info.uuid), ..config }, step)?;
    orphan.iter().for_each(|region| memory::remove(region));
    Ok(())
}

/// The pool that is to be made, but for its UUID.
fn like(old: Option<&Config>, medium: Option<MediumKind>) -> Result<Config> {
    match (old, medium) {
        (Some(old), Some(medium)) if medium != old.medium => {
            Err(Error::Pool(format!("the pool that is there is on `{}`, not on `{medium}`", old.medium)))
        }
        (Some(old), _) => Ok(old.clone()),
        (None, medium) => Ok(Config::new(medium.unwrap_or(MediumKind::Logged), String::new())),
    }
}

fn refuse_there(dir: &Path, old: Option<&Config>, config: &Config, force: bool) -> Result<()> {
    let region = Some(config.nvram_path(dir)).filter(|path| config.medium != MediumKind::Logged && path.exists());
    // A pool whose region is lost gets another, and another copy.
    let is_lost = old.is_some() && config.medium != MediumKind::Logged;
    let there = region.or_else(|| config.copy_dir(dir).filter(|copy| !is_lost && files::exist(copy)));
    match there {
        Some(path) if !force => {
            let path = path.display();
            Err(Error::Pool(format!("{path} exists; overwrite it with `conquest restore --force`")))
        }
        Some(_) => config.refuse_in_use(dir),
        None => Ok(()),
    }
}

/// Without the copy's files nothing but its name leads to the memory.
fn orphan(dir: &Path, old: Option<&Config>, force: bool) -> Result<Option<std::path::PathBuf>> {
    let orphan = old.filter(|_| !dir.join(files::IMAGE).exists()).map(|old| memory::find(dir, old));
    let Some(region) = orphan.transpose()?.flatten() else { return Ok(None) };
    memory::refuse_in_use(&region)?;
    match force {
        true => Ok(Some(region)),
        false => Err(Error::Pool(format!(
            "{} is the memory of this pool, whose copy is gone: all that is left of it. Save it first with `conquest save`, \
             or give it up with `conquest restore --force`",
            region.display()
        ))),
    }
}

/// Overwrites the region, a device; nobody attaches until all is done.
fn restore_device(dir: &Path, image: &Path, config: &Config, progress: Progress) -> Result<()> {
    let (info, _held) = media::restore_device(image, &config.nvram_path(dir), config.uuid_bytes().ok(), progress)?;
    // A running copy of what was there.
    config.copy_dir(dir).iter().for_each(|copy| files::remove(copy));
    Config { uuid: config::uuid_text(&info.uuid), ..config.clone() }.write(dir)
}
