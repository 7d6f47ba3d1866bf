//! The files of a copy, and those in shared memory that belong to it.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pram::copy::log::Identity;
use pram::copy::marks::Marks;
use pram::copy::{self, Copy, Disks, Loaded};
use pram::region::HEADERS;
use pram::save::is_at;
use pram::session;
use pram::{Mapping, Region};
use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::io::Errno;

use super::config::host;
use super::direct::{Direct, Writes};
use super::held::{self, Parts};
use super::origin::Origin;
use super::room::{self, Growing};
use super::RUNTIME_DIR;
use crate::error::{Error, Result};

pub const IMAGE: &str = "image";
pub const LOGS: [&str; 2] = ["redo-0", "redo-1"];

/// The files of a copy in the order in which they take their places: without the image, the last, there is none.
pub const NAMES: [&str; 3] = [LOGS[0], LOGS[1], IMAGE];

/// How long those who leave a region, or were killed, may still have its copy open, and how often one looks.
const GOING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// The files of a copy in `dir`, whether or not they are there.
pub fn of(dir: &Path) -> [PathBuf; 3] {
    [IMAGE, LOGS[0], LOGS[1]].map(|name| dir.join(name))
}

/// Does any file of a copy lie in `dir`?
pub fn exist(dir: &Path) -> bool {
    of(dir).iter().any(|path| path.exists())
}

/// Does a copy lie in `dir`, and not only what making one has left?
pub fn hold_copy(dir: &Path) -> bool {
    exist(dir) && open(dir).is_ok_and(|disks| copy::identify(&disks).is_ok())
}

/// A file in `dir` that has the name of one of a copy's, and is neither that nor what making one has left: zeros.
pub fn find_foreign(dir: &Path) -> Option<PathBuf> {
    let is_foreign = |path: &PathBuf| {
        let mut head = [0; 16];
        let read = fs::File::open(path).and_then(|file| file.read_at(&mut head, 0));
        read.is_ok_and(|len| head[..len].iter().any(|b| *b != 0) && !head.starts_with(b"CQ-"))
    };
    of(dir).into_iter().find(is_foreign)
}

/// Does any process write to the copy in `dir`?
pub fn are_in_use(dir: &Path) -> Result<bool> {
    Ok(held::is_held([&open_file(dir, LOGS[0])?, &open_file(dir, LOGS[1])?]))
}

/// Removes the copy in `dir`.
pub fn remove(dir: &Path) {
    of(dir).iter().for_each(|path| _ = fs::remove_file(path));
}

/// Puts the copy in `from` in the place of the one in `to`, the image last.
pub fn replace(from: &Path, to: &Path) -> Result<()> {
    for name in NAMES {
        fs::rename(from.join(name), to.join(name)).map_err(|e| host(&to.join(name), &e))?;
        fs::File::open(to).and_then(|dir| dir.sync_all()).map_err(|e| host(to, &e))?;
    }
    Ok(())
}

/// Opens a file of the copy in `dir`.
pub fn open_file(dir: &Path, name: &str) -> Result<fs::File> {
    let path = dir.join(name);
    fs::OpenOptions::new().read(true).write(true).open(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Error::Pool(format!("{} is missing: a part of the pool's copy on disk; put it back", path.display()))
        }
        std::io::ErrorKind::PermissionDenied => Error::Pool(format!(
            "{}: permission denied; who may not open the pool uses it through its mount",
            path.display()
        )),
        _ => host(&path, &e),
    })
}

/// Opens the copy in `dir` to look at it.
pub fn open(dir: &Path) -> Result<Disks> {
    open_parts(dir).map(|(_, disks)| disks)
}

/// Opens the copy in `dir` to work with it: as the `first` to come to its region only if nobody works with it. A copied
/// pool directory leads to the copy of the one that it was copied from, and two regions would overwrite each other's
/// commits.
pub fn take(dir: &Path, first: bool) -> Result<Disks> {
    let (parts, disks) = open_parts(dir)?;
    let end = Instant::now() + GOING;
    while !parts.take(first) {
        if Instant::now() >= end {
            return Err(Error::Pool(format!(
                "the pool's copy in {} is in use by a process that has another region open (of a pool directory that was \
                 copied?); unmount that pool first, or give one of the two a copy of its own (`copy` in {})",
                dir.display(),
                super::config::FILE
            )));
        }
        std::thread::sleep(LOOK);
    }
    Ok(disks)
}

fn open_parts(dir: &Path) -> Result<(Arc<Parts>, Disks)> {
    let names = [IMAGE, LOGS[0], LOGS[1]];
    let open_all = || names.iter().map(|name| Ok((open_file(dir, name)?, dir.join(name)))).collect::<Result<Vec<_>>>();
    let parts = Parts::of(open_all()?).map_err(|e| host(dir, &e))?;
    let disk = |n: usize, writes| {
        Ok::<_, Error>(parts.hold(n, Direct::over(open_file(dir, names[n])?, &dir.join(names[n]), writes)))
    };
    let disks = Disks { image: disk(0, Writes::Cached)?, logs: [disk(1, Writes::Past)?, disk(2, Writes::Past)?] };
    Ok((parts, disks))
}

/// Makes the files of a copy in `dir`, empty but for the logs, of which every block is written: a flush then has
/// nothing to tell the host's file system.
pub fn make(dir: &Path, log_bytes: u64) -> Result<Disks> {
    super::media::make_dir(dir)?;
    for name in [IMAGE, LOGS[0], LOGS[1]] {
        let path = dir.join(name);
        if let Err(e) = make_file(&path, if name == IMAGE { 0 } else { log_bytes }) {
            remove(dir);
            return Err(host(&path, &e));
        }
    }
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|e| host(dir, &e))?;
    open(dir)
}

fn make_file(path: &Path, zeros: u64) -> std::io::Result<()> {
    let mut how = fs::OpenOptions::new();
    let file = how.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let piece = vec![0; 1 << 20];
    for at in (0..zeros).step_by(piece.len()) {
        file.write_all_at(&piece, at)?;
    }
    file.sync_all()
}

/// The path in shared memory of what belongs to the pool whose processes lock `lock`: its `region` or `marks`.
pub fn shared(lock: impl AsFd, uuid: &[u8; 16], what: &str) -> Result<PathBuf> {
    let stat = rustix::fs::fstat(lock).map_err(|errno| Error::Host { what: "the pool's locks".into(), errno })?;
    Ok(Path::new(RUNTIME_DIR).join(format!("{}-{what}", session::shared_name(uuid, &stat))))
}

/// Removes the marks of the region of the pool whose processes would lock `lock`, where none is attached, and what killed
/// ones have left.
pub fn forget_marks(lock: impl AsFd, uuid: &[u8; 16]) {
    if let Ok(marks) = shared(lock, uuid, "marks") {
        let _ = fs::remove_file(&marks);
        let runtime = name_of(&marks).map(|name| marks.with_file_name(name));
        runtime.iter().for_each(|path| _ = fs::remove_file(path));
    }
}

/// What has changed in the region of a pool since the last commit, in shared memory, and the copy that lacks it.
pub struct Tracked<'a> {
    pub id: Identity,
    /// Where the copy lies.
    pub dir: &'a Path,
    pub disks: &'a Disks,
    pub lock: &'a fs::File,
}

impl Tracked<'_> {
    pub fn path(&self) -> Result<PathBuf> {
        shared(self.lock, &self.id.uuid, "marks")
    }

    /// Goes on where the last process left it; `None` if nobody knows where that was.
    pub fn resume(&self, attached: bool) -> Result<Option<(Marks, Copy)>> {
        let Some(marks) = self.marks()? else { return Ok(None) };
        let Some(copy) = Copy::resume(self.disks.clone(), &marks, self.id)? else { return Ok(None) };
        if !attached {
            copy.keep_found(&marks)?;
            self.note_origin(&marks)?;
        }
        Ok(Some((marks, copy)))
    }

    /// Memory that has this one's name and is another pool's, whose disk had the number that this one's has, gets a name that
    /// leads nowhere: its own pool finds it. 1. The marks. 2. The region. (One without the other does not belong to the copy,
    /// and is refused.)
    pub fn make_way(&self) -> Result<()> {
        let region = shared(self.lock, &self.id.uuid, "region")?;
        if !is_anothers(self.id.uuid, &region, self.dir) {
            return Ok(());
        }
        let away = rename_away(self.id.uuid, &region)?;
        tracing::info!("{} is the memory of another pool: {} from now on", region.display(), away.display());
        Ok(())
    }

    /// Finds memory of this copy that has another name, and gives it its own: the disk that the copy lies on has got
    /// another number since. Only what goes on exactly where the copy ends; true if there was any.
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
                // The marks come last: without them region and copy are compared.
                for (from, to) in [(named(&marks, "-region"), named(&own, "-region")), (marks.clone(), own.clone())] {
                    fs::rename(&from, &to).map_err(|e| host(&from, &e))?;
                }
                let _ = fs::remove_file(marks.with_file_name(name));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Are these the marks of memory that is this pool's, goes on where the copy ends, and is not in use?
    fn is_own(&self, name: &str, marks: &Path) -> Result<bool> {
        let (region, len) = (marks.with_file_name(format!("{name}-region")), Marks::bytes(self.id.size));
        let [Some(file), Some(region)] = [open_shared(marks, self.lock)?, open_shared(&region, self.lock)?] else {
            return Ok(false);
        };
        if !has_len(&file, len)? || !has_len(&region, self.id.size)? {
            return Ok(false);
        }
        let noted = Marks::over(map(&file, marks, len)?, self.id.size)?;
        let is_here = Origin::read(&noted, self.id.uuid)?.is(self.dir);
        let is_used = || super::memory::refuse_in_use(&marks.with_file_name(format!("{name}-region"))).is_err();
        Ok(is_here && !is_used() && Copy::resume(self.disks.clone(), &noted, self.id)?.is_some())
    }

    /// Does the copy hold everything, as the marks say? `None` if there are none.
    pub fn is_copied(&self) -> Result<Option<bool>> {
        self.marks()?.map(|marks| holds_all(&marks)).transpose()
    }

    /// The marks, if they are there.
    fn marks(&self) -> Result<Option<Marks>> {
        let (path, len) = (self.path()?, Marks::bytes(self.id.size));
        let marks = match open_shared(&path, self.lock)? {
            Some(file) if has_len(&file, len)? => Marks::over(map(&file, &path, len)?, self.id.size)?,
            _ => return Ok(None),
        };
        // Whoever made them may have been killed before they were set.
        Ok(Copy::is_known(&marks, self.id)?.then_some(marks))
    }

    /// Notes where the memory comes from.
    fn note_origin(&self, marks: &Marks) -> Result<()> {
        Origin::of(self.dir, self.id.uuid, copy::lineage(self.disks, self.id)?)?.write(marks)
    }

    /// Takes up a copy that was made or read back.
    pub fn begin(&self, loaded: &Loaded) -> Result<(Marks, Copy)> {
        let marks = self.fresh()?;
        let copy = Copy::begin(self.disks.clone(), &marks, self.id, loaded)?;
        Ok((marks, copy))
    }

    /// The same, unless the region says that it was closed when the copy held all of it.
    pub fn compare_unless_clean(&self, region: &Region) -> Result<(Marks, Copy)> {
        match copy::clean(self.disks, self.id, region)? {
            Some(loaded) => self.begin(&loaded),
            None => self.compare(region),
        }
    }

    /// Looks what of `region` the copy lacks: nobody knows.
    pub fn compare(&self, region: &Region) -> Result<(Marks, Copy)> {
        let marks = self.fresh()?;
        let loaded = copy::compare(self.disks, self.id, region, &marks)?;
        let copy = Copy::begin(self.disks.clone(), &marks, self.id, &loaded)?;
        Ok((marks, copy))
    }

    fn fresh(&self) -> Result<Marks> {
        let map = make_shared(&self.path()?, self.lock, Marks::bytes(self.id.size))?.1;
        let marks = Marks::over(map, self.id.size)?;
        self.note_origin(&marks)?;
        Ok(marks)
    }
}

/// Gives back memory of [pools that are gone](Origin::is_gone), if their copy held everything. Memory outlives its processes,
/// and nobody else would ever find it.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(RUNTIME_DIR) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if let Ok(Some(_locked)) = unfinished(&path) {
            tracing::info!("giving back {}: whoever made it was killed", path.display());
            let _ = fs::remove_file(&path);
            continue;
        }
        let Some(name) = name_of(&path) else { continue };
        let region = path.with_file_name(format!("{name}-region"));
        // The runtime segment is there while anybody works on the pool.
        if !path.with_file_name(name).exists() && is_abandoned(name, &path, &region).unwrap_or(false) {
            tracing::info!("giving back {}: its pool is gone", region.display());
            let _ = fs::remove_file(&region);
            let _ = fs::remove_file(&path);
        }
    }
}

/// What the files of a pool in shared memory are called that has these marks.
fn name_of(marks: &Path) -> Option<&str> {
    marks.file_name()?.to_str()?.strip_suffix("-marks").filter(|name| name.starts_with("conquest-"))
}

/// A region that nobody will finish, locked against who would make it anew: under the name of one that is being made, or
/// without a header, which comes when all memory is there; and not locked by its maker.
fn unfinished(path: &Path) -> Result<Option<fs::File>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_new = name.ends_with("-region.new");
    let is_region = name.strip_prefix('.').unwrap_or(name).starts_with("conquest-");
    if !is_region || !is_new && !name.ends_with("-region") {
        return Ok(None);
    }
    let file = made_by(own_uid(), open_plain(path, false), path)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&file, path)? {
        return Ok(None);
    }
    let mut header = [0; HEADERS];
    let len = file.read_at(&mut header, 0).map_err(|e| host(path, &e))?;
    Ok((is_new || header[..len].iter().all(|b| *b == 0)).then_some(file))
}

/// The marks in shared memory of a region of `size` bytes, which this user or root must have made, and whether its copy
/// holds everything.
fn look(marks: &Path, size: u64, owner: u32) -> Result<(Marks, bool)> {
    let file = made_by(owner, open_plain(marks, true), marks)?;
    let marks = Marks::over(map(&file, marks, Marks::bytes(size))?, size)?;
    let all_copied = holds_all(&marks)?;
    Ok((marks, all_copied))
}

fn holds_all(marks: &Marks) -> Result<bool> {
    Ok(marks.marked(0)? + marks.marked(1)? == 0)
}

/// Does the copy of the region whose processes lock `lock` hold everything, as its marks say?
pub fn is_copied(marks: &Path, lock: &fs::File, id: Identity) -> Result<bool> {
    let (marks, all_copied) = look(marks, id.size, lock.metadata().map_err(|e| host(marks, &e))?.uid())?;
    Ok(all_copied && Copy::is_known(&marks, id)?)
}

/// Gives memory a name that leads nowhere: its own pool finds it, and nothing takes its place. 1. The marks. 2. The region.
/// (One without the other does not belong to the copy, and is refused.)
fn rename_away(uuid: [u8; 16], region: &Path) -> Result<PathBuf> {
    let away = format!("{}away-{:x}", session::shared_prefix(&uuid), super::media::random_key()?);
    let to = region.with_file_name(format!("{away}-region"));
    let marks = marks_beside(region).zip(marks_beside(&to));
    for (from, to) in marks.into_iter().chain([(region.to_path_buf(), to.clone())]) {
        fs::rename(&from, to).map_err(|e| host(&from, &e))?;
    }
    Ok(to)
}

/// Where the marks of the region at `region` lie.
pub fn marks_beside(region: &Path) -> Option<PathBuf> {
    let name = region.file_name()?.to_str()?.strip_suffix("-region")?;
    Some(region.with_file_name(format!("{name}-marks")))
}

/// Memory of a pool of which nothing else is left makes way, where it has what its copy lacked; its new name.
pub fn set_aside(uuid: [u8; 16], region: &Path) -> Result<Option<PathBuf>> {
    let name = region.file_name().and_then(|name| name.to_str()?.strip_suffix("-region")).unwrap_or_default();
    match is_abandoned(name, &region.with_file_name(format!("{name}-marks")), region) {
        Ok(true) => Ok(None),
        _ => {
            // What killed processes shared.
            let _ = fs::remove_file(region.with_file_name(name));
            rename_away(uuid, region).map(Some)
        }
    }
}

/// The UUID of the pool whose memory this file is, if it is one.
pub fn memory_at(region: &Path) -> Option<[u8; 16]> {
    let name = region.file_name()?.to_str()?.strip_suffix("-region")?;
    let is_there = region.parent() == Some(RUNTIME_DIR.as_ref()) && fs::symlink_metadata(region).ok()?.is_file();
    uuid_of(name).filter(|_| is_there)
}

fn is_abandoned(name: &str, marks: &Path, region: &Path) -> Result<bool> {
    let size = fs::metadata(region).map_err(|e| host(region, &e))?.len();
    let Some(uuid) = uuid_of(name) else { return Ok(false) };
    let (found, all_copied) = look(marks, size, own_uid())?;
    Ok(all_copied && Copy::is_known(&found, Identity { uuid, size })? && Origin::read(&found, uuid)?.is_gone(name))
}

/// Who owns the pool at `dir`, or what is left there of one; else who asks.
pub fn owner_of(dir: &Path) -> u32 {
    let found = fs::metadata(dir.join(super::config::FILE)).or_else(|_| fs::metadata(dir));
    found.ok().filter(|_| memory_at(dir).is_none()).map_or_else(own_uid, |found| found.uid())
}

/// The regions in shared memory, and the UUIDs that they are called by.
pub fn memories() -> Result<Vec<([u8; 16], PathBuf)>> {
    let entries = fs::read_dir(RUNTIME_DIR).map_err(|e| host(RUNTIME_DIR.as_ref(), &e))?;
    let named = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.ends_with("-region"))?;
        Some((uuid_of(&name)?, entry.path()))
    });
    Ok(named.collect())
}

/// Where the region of the pool `uuid` at `region` comes from, as its marks say, which the owner of the pool at `dir` made;
/// `None` if there are none.
pub fn origin_of(uuid: [u8; 16], region: &Path, dir: &Path) -> Option<Origin> {
    let size = fs::metadata(region).ok()?.len();
    let (marks, _) = look(&marks_beside(region)?, size, owner_of(dir)).ok()?;
    Origin::read(&marks, uuid).ok()
}

/// Is the region of the pool `uuid` at `region` that of another pool than the one at `dir`, whose number it had?
pub fn is_anothers(uuid: [u8; 16], region: &Path, dir: &Path) -> bool {
    origin_of(uuid, region, dir).is_some_and(|origin| origin.is_anothers(dir))
}

/// The UUID in what the files of a pool in shared memory are called.
fn uuid_of(name: &str) -> Option<[u8; 16]> {
    let digits = name.strip_prefix("conquest-")?.get(..32)?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

fn has_len(file: &fs::File, len: u64) -> Result<bool> {
    Ok(file.metadata().map_err(|e| host(RUNTIME_DIR.as_ref(), &e))?.len() == len)
}

pub fn map(file: &fs::File, path: &Path, len: u64) -> Result<Mapping> {
    if !has_len(file, len)? {
        let found = file.metadata().map_err(|e| host(path, &e))?.len();
        return Err(Error::Pool(format!(
            "the pool's memory {} has {found} bytes, should have {len}: remove it to open the pool as its copy has it",
            path.display()
        )));
    }
    Mapping::file(file, len).map_err(|errno| Error::Host { what: format!("mapping {}", path.display()), errno })
}

/// A file in shared memory, if it is there. Anybody may make files there: only those of the pool's owner count.
pub fn open_shared(path: &Path, lock: &fs::File) -> Result<Option<fs::File>> {
    let owner = lock.metadata().map_err(|e| host(path, &e))?.uid();
    match open_plain(path, true) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => made_by(owner, opened, path).map(Some),
    }
}

/// Opens a file where anybody may make some: not what a link leads to, and nothing that would have to be waited for.
pub fn open_plain(path: &Path, write: bool) -> std::io::Result<fs::File> {
    let flags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
    let file = fs::OpenOptions::new().read(true).write(write).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("this is no file; remove it")),
    }
}

/// What was opened at `path`, if this user made it, or root.
pub fn made_by(owner: u32, opened: std::io::Result<fs::File>, path: &Path) -> Result<fs::File> {
    let file = opened.map_err(|e| host(path, &e))?;
    match file.metadata().map_err(|e| host(path, &e))?.uid() {
        uid if uid == owner || uid == 0 => Ok(file),
        _ => Err(Error::Pool(format!("{} does not belong to the pool's owner; remove it", path.display()))),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes a file in shared memory, zeroed, for whoever may open the pool. Memory is taken when it is first touched.
pub fn make_shared(path: &Path, lock: &fs::File, len: u64) -> Result<(fs::File, Mapping)> {
    let _ = fs::remove_file(path);
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| host(path, &e))?;
    let owner = lock.metadata().map_err(|e| host(path, &e))?;
    let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
    let _ = rustix::fs::fchmod(file.as_fd(), rustix::fs::Mode::from_raw_mode(owner.mode() & 0o666));
    match rustix::fs::ftruncate(&file, len).and_then(|()| Mapping::file(&file, len)) {
        Ok(map) => Ok((file, map)),
        Err(errno) => {
            let _ = fs::remove_file(path);
            Err(no_room(path, len, errno))
        }
    }
}

/// A region that is being made. While its maker has it, it counts as one that will be finished.
pub struct Making<R> {
    pub map: Mapping,
    pub filled: R,
    pub locked: fs::File,
}

/// The same for a region. All memory is taken at once, since a store must never meet a full disk, and while `fill` has it,
/// which may store where it has [waited](Growing::wait) for room.
pub fn make_region<R>(
    path: &Path,
    lock: &fs::File,
    len: u64,
    fill: impl FnOnce(&Mapping, &Growing) -> Result<R>,
) -> Result<Making<R>> {
    let (file, map) = make_locked(path, lock, len)?;
    let filled = room::make(&file, len, |room| fill(&map, room));
    let filled = filled.unwrap_or_else(|errno| Err(no_room(path, len, errno)));
    if filled.is_err() {
        let _ = fs::remove_file(path);
    }
    filled.map(|filled| Making { map, filled, locked: file })
}

fn make_locked(path: &Path, lock: &fs::File, len: u64) -> Result<(fs::File, Mapping)> {
    loop {
        let (file, map) = make_shared(path, lock, len)?;
        while flock(&file, FlockOperation::LockExclusive) == Err(Errno::INTR) {}
        // Until it was locked, whoever sweeps may have taken it for one that was left.
        if is_at(&file, path)? {
            return Ok((file, map));
        }
    }
}

fn no_room(path: &Path, len: u64, errno: Errno) -> Error {
    let free = rustix::fs::statvfs(RUNTIME_DIR).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    Error::Pool(format!(
        "{}: no room for {} MiB ({errno}): {RUNTIME_DIR} has {} MiB left; make room there (`conquest umount --release` gives \
         the memory of another pool back)",
        path.display(),
        len >> 20,
        free >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(what: &str) -> PathBuf {
        Path::new(RUNTIME_DIR).join(format!("conquest-test{}{what}-0-0-region", std::process::id()))
    }

    /// Anybody may make it, and hung whoever made a pool or opened one after a reboot.
    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let path = region("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0).expect("a pipe");
        assert!(unfinished(&path).is_err());
        sweep();
        assert!(path.exists());
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        assert!(unfinished(&path).is_err());
        fs::remove_file(&path).expect("removed");
    }

    /// Who mounts a pool was told to give it less memory.
    #[test]
    fn who_finds_no_room_learns_how_much_there_is() {
        let (path, lock) = (region("full"), tempfile::tempfile().expect("a file"));
        let told = make_region(&path, &lock, 1 << 50, |_, _| Ok(())).err().expect("too much").to_string();
        assert!(told.contains("1073741824 MiB") && told.contains("MiB left; make room"), "{told}");
        assert!(!told.contains("--nvram") && !path.exists());
    }

    #[test]
    fn what_is_being_made_is_not_taken_for_what_was_left() {
        let (path, lock) = (region("new"), tempfile::tempfile().expect("a file"));
        let made = make_region(&path, &lock, 1 << 20, |_, _| {
            sweep();
            assert!(path.exists());
            Ok(())
        });
        let made = made.expect("there is room");
        sweep();
        assert!(path.exists());
        drop(made);
        sweep();
        assert!(!path.exists());
    }
}
