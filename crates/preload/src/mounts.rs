//! The mounts of pools that this process may reach directly, and their engines.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{counts, loaded, raw, stack};
use direct::{Engine, Mounted, NOSYMFOLLOW};
use pram::clock::coarse;
use pram::mem::descriptor::{self, despite_limit, Kept};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, CWD};

/// The mount table of this process.
const TABLE_FILE: &str = "/proc/self/mountinfo";
/// The flags that `statfs` tells are valid.
const ST_VALID: u64 = 0x20;
/// Options in the mount table, and flags that `statfs` tells.
const FLAGS: [(&str, u64); 10] = [
    ("ro", libc::ST_RDONLY),
    ("nosuid", libc::ST_NOSUID),
    ("nodev", libc::ST_NODEV),
    ("noexec", libc::ST_NOEXEC),
    ("sync", libc::ST_SYNCHRONOUS),
    ("mand", libc::ST_MANDLOCK),
    ("noatime", libc::ST_NOATIME),
    ("nodiratime", libc::ST_NODIRATIME),
    ("relatime", libc::ST_RELATIME),
    ("nosymfollow", NOSYMFOLLOW),
];

/// The inode number of a pool's root.
const ROOT: u64 = 1;

/// A mount, as `conquest run` saw it.
pub struct Mount {
    /// Without a slash at its end.
    dir: Vec<u8>,
    pool: Vec<u8>,
    dev: u64,
    /// Null: not attached.
    engine: AtomicPtr<Engine>,
    /// Attaching failed, or the process may see other mounts now: all calls are the kernel's.
    is_refused: AtomicBool,
    /// The mount's ID, when the process attached.
    id: AtomicU64,
    /// Is it out of place, or something mounted below it?
    is_hidden: AtomicBool,
    /// Where in `dir` the part begins that leads here from the working directory, if that lies above; or 0.
    from_here: AtomicUsize,
}

/// Those that the process began with; they are never dropped.
static MOUNTS: AtomicPtr<Vec<Mount>> = AtomicPtr::new(std::ptr::null_mut());
/// The position of the mount that holds the working directory, + 1.
static WORKING: AtomicUsize = AtomicUsize::new(0);
static ATTACHING: Mutex<()> = Mutex::new(());
/// The mount table of this process; the kernel says when it has changed since.
static TABLE: Mutex<Option<Kept>> = Mutex::new(None);
/// The time of the clock when the table was last looked at.
static LOOKED: AtomicU64 = AtomicU64::new(0);

pub fn set(mounts: Vec<Mount>) {
    MOUNTS.store(Box::into_raw(Box::new(mounts)), Ordering::Release);
}

pub fn all() -> &'static [Mount] {
    // SAFETY: they are never dropped.
    unsafe { MOUNTS.load(Ordering::Acquire).as_ref() }.map_or(&[], Vec::as_slice)
}

/// The engines of this process.
pub fn engines() -> impl Iterator<Item = &'static Engine> {
    all().iter().filter_map(Mount::attached)
}

/// The engine that serves this descriptor.
#[inline]
pub fn of_descriptor(fd: i32) -> Option<&'static Engine> {
    engines().find(|engine| engine.is_direct(fd))
}

/// The engine that serves the descriptor which a path names.
#[cold]
pub fn of_named(path: usize) -> Option<&'static Engine> {
    of_descriptor(direct::path(path).ok().and_then(direct::named_descriptor)?)
}

/// The engine of the pool that a path may lie in.
#[inline]
pub fn of_path(path: usize) -> Option<&'static Engine> {
    // Where there is none the kernel says so.
    match direct::byte(path)? {
        b'/' => match all().iter().find(|mount| mount.holds(path)) {
            Some(mount) => mount.engine(),
            None => {
                let may_name = matches!(direct::byte(path + 1), Some(b'd' | b'p'));
                may_name.then(|| of_named(path)).flatten()
            }
        },
        0 => None,
        _ => match WORKING.load(Ordering::Relaxed) {
            0 => all().iter().find(|mount| mount.is_reached_from_here(path))?.engine(),
            within => all().get(within - 1)?.engine(),
        },
    }
}

/// Finds out where the working directory is.
pub fn look_at_working_directory() {
    let flags = AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, c".", flags, StatxFlags::INO | StatxFlags::MNT_ID).ok();
    let dev = |stat: &rustix::fs::Statx| rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    let at = found.as_ref().and_then(|stat| all().iter().position(|mount| mount.dev == dev(stat)));
    WORKING.store(at.map_or(0, |at| at + 1), Ordering::Relaxed);
    let mut room = [0; libc::PATH_MAX as usize];
    let path = if at.is_none() { working_directory(&mut room) } else { &[] };
    for (n, mount) in all().iter().enumerate() {
        let from_here = mount.dir.strip_prefix(path).map_or(0, |rest| match (path, rest) {
            ([], _) | (_, []) => 0,
            (b"/", _) => 1,
            (_, [b'/', ..]) => path.len() + 1,
            _ => 0,
        });
        mount.from_here.store(from_here, Ordering::Relaxed);
        if let Some(engine) = mount.attached() {
            engine.enter(found.as_ref().filter(|_| at == Some(n)).map(|stat| stat.stx_ino), from_here);
        }
    }
}

/// The path of the working directory; empty if it has none that begins at the root.
fn working_directory(room: &mut [u8]) -> &[u8] {
    let len = raw::call(libc::SYS_getcwd as u32, &[room.as_mut_ptr() as usize, room.len(), 0, 0, 0, 0]);
    // With the 0 at its end.
    let path = usize::try_from(len - 1).ok().and_then(|len| room.get(..len));
    path.filter(|path| path.first() == Some(&b'/')).unwrap_or_default()
}

/// From now on the kernel serves everything: the process sees other mounts, or an unknown part of them.
pub fn refuse_all() {
    engines().for_each(|engine| _ = engine.make_all_real());
    all().iter().for_each(|mount| mount.is_refused.store(true, Ordering::SeqCst));
}

/// What [`hold`] holds.
pub type Held = (MutexGuard<'static, ()>, MutexGuard<'static, Option<Kept>>, descriptor::Held);

/// Takes the locks of this module.
pub fn hold() -> Held {
    let attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    (attaching, TABLE.lock().unwrap_or_else(PoisonError::into_inner), descriptor::hold())
}

/// In a forked child: the engines are the parent's, and so is the mount table: a change that the child looks at would be none for the parent.
pub fn forget_engines() {
    all().iter().for_each(|mount| mount.engine.store(std::ptr::null_mut(), Ordering::SeqCst));
    *TABLE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    descriptor::close_inherited();
}

/// The same where locks of this library may be held for ever: this process leaves all to the kernel.
pub fn forget_for_good() {
    for mount in all() {
        mount.engine.store(std::ptr::null_mut(), Ordering::SeqCst);
        mount.is_refused.store(true, Ordering::SeqCst);
    }
}

/// Mounts may have changed: the table is looked at before the next call.
pub fn look_again() {
    LOOKED.store(0, Ordering::Relaxed);
}

/// Looks at the mount table if some milliseconds have passed, and at the mounts if it has changed.
#[inline]
fn follow_table() {
    let now = coarse();
    if LOOKED.load(Ordering::Relaxed) != now {
        LOOKED.store(now, Ordering::Relaxed);
        let lost = |mount: &&Mount| mount.attached().is_some_and(|engine| !engine.is_intact());
        all().iter().filter(lost).for_each(|mount| mount.is_refused.store(true, Ordering::SeqCst));
        if has_table_changed() {
            all().iter().filter(|mount| mount.attached().is_some()).for_each(Mount::look_at_place);
        }
    }
}

fn has_table_changed() -> bool {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if table.is_none() {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = despite_limit(|| rustix::fs::open(TABLE_FILE, flags, Mode::empty()));
        *table = opened.and_then(Kept::new).ok();
    }
    let Some(Ok(lent)) = table.as_ref().map(Kept::lend) else {
        *table = None;
        return true;
    };
    let mut polled = [PollFd::new(&lent, PollFlags::PRI)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}

impl Mount {
    /// Reads lines of `DEV DIR POOL`: base 16, and paths in which `%xx` stands for a byte.
    pub fn parse_all(lines: &[u8]) -> Option<Vec<Mount>> {
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(Mount::parse).collect()
    }

    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|byte| *byte == b' ');
        let dev = number(fields.next()?)?;
        let (dir, pool) = (unescape(fields.next()?)?, unescape(fields.next()?)?);
        Some(Mount {
            dir,
            pool,
            dev,
            engine: AtomicPtr::default(),
            is_refused: AtomicBool::default(),
            id: AtomicU64::default(),
            is_hidden: AtomicBool::default(),
            from_here: AtomicUsize::default(),
        })
    }

    pub fn dir(&self) -> &[u8] {
        &self.dir
    }

    /// Does the path lead into the mount, or to it?
    #[inline]
    fn holds(&self, path: usize) -> bool {
        leads(path, &self.dir)
    }

    /// Does a path from the working directory, which lies above the mount, lead into it, or to it?
    #[inline]
    fn is_reached_from_here(&self, path: usize) -> bool {
        let from_here = self.from_here.load(Ordering::Relaxed);
        from_here != 0 && leads(path, &self.dir[from_here..])
    }

    #[inline]
    fn attached(&self) -> Option<&'static Engine> {
        // SAFETY: an engine is never dropped.
        unsafe { self.engine.load(Ordering::Acquire).as_ref() }
    }

    /// The engine, if the mount is where it was.
    #[inline]
    fn engine(&self) -> Option<&'static Engine> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let engine = match self.attached() {
            Some(engine) => engine,
            None => stack::on_own(|| self.attach())?,
        };
        follow_table();
        let is_out = self.is_hidden.load(Ordering::Relaxed) || self.is_refused.load(Ordering::Relaxed);
        (!is_out).then_some(engine)
    }

    fn look_at_place(&self) {
        let is_there = self.look(CWD, self.dir.as_slice()) == Some(self.id.load(Ordering::Relaxed));
        let is_covered = direct::read_file(TABLE_FILE).map_or(true, |table| self.is_covered(&table));
        self.is_hidden.store(!is_there || is_covered, Ordering::Relaxed);
    }

    /// The ID of the mount whose root is there, if it is this pool's.
    fn look(&self, at: impl AsFd, path: impl rustix::path::Arg) -> Option<u64> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(at, path, flags, StatxFlags::INO | StatxFlags::MNT_ID).ok()?;
        let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        (dev == self.dev && stat.stx_ino == ROOT).then_some(stat.stx_mnt_id)
    }

    #[cold]
    fn attach(&self) -> Option<&'static Engine> {
        let _one = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = self.attached() {
            return Some(engine);
        }
        match self.try_attach() {
            Ok(engine) => {
                if loaded::look() {
                    engine.open_only_real();
                }
                self.engine.store(Box::into_raw(Box::new(engine)), Ordering::Release);
            }
            Err(why) => {
                counts::report_refusal(&self.dir, &why);
                self.is_refused.store(true, Ordering::Relaxed);
            }
        }
        look_at_working_directory();
        self.attached()
    }

    fn try_attach(&self) -> Result<Engine, String> {
        if !descriptor::has_room() {
            return Err("the program may open few files".into());
        }
        // Any other way to open it sends a message to the mount's server.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&*self.dir, flags, Mode::empty()).map_err(|e| e.to_string())?;
        // Changes from here on are seen.
        _ = has_table_changed();
        let id = self.look(&root, c"").ok_or("another file system is mounted there")?;
        let table = direct::read_file(TABLE_FILE).map_err(|e| e.to_string())?;
        if self.is_covered(&table) {
            return Err("something else is mounted below it".into());
        }
        let flags = flags_of(&table, id).ok_or("its options are unknown")?;
        self.id.store(id, Ordering::Relaxed);
        let root = Kept::new(root).map_err(|e| e.to_string())?;
        let mounted = Mounted { dir: self.dir.clone(), dev: self.dev, root, flags };
        let pool = Path::new(std::ffi::OsStr::from_bytes(&self.pool));
        // At the end of each call: see `operation`.
        pram::session::stopped::obey();
        let engine = Engine::attach(pool, mounted).map_err(|e| e.to_string())?;
        if !is_only_thread() {
            // Another may have other credentials.
            engine.refresh_caller();
        }
        Ok(engine)
    }

    /// Is something mounted below the mount, by the mount table?
    fn is_covered(&self, table: &[u8]) -> bool {
        let below = as_in_table(&[&self.dir[..], b"/"].concat());
        let places = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
        places.into_iter().any(|place| place.starts_with(&below))
    }
}

/// Does the path at this address lead to `dir`, or on from there?
#[inline]
fn leads(path: usize, dir: &[u8]) -> bool {
    let len = dir.len();
    // A string that is shorter differs before its end.
    direct::bytes(path, len + 1).is_ok_and(|text| text[..len] == *dir && matches!(text[len], b'/' | 0))
}

fn is_only_thread() -> bool {
    // Its links are `.`, `..`, and the threads.
    rustix::fs::stat(c"/proc/self/task").is_ok_and(|tasks| tasks.st_nlink == 3)
}

/// The flags of the mount with this ID, as `statfs` tells them.
fn flags_of(table: &[u8], id: u64) -> Option<u64> {
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    let line = lines.find(|line| line.clone().next() == Some(id.to_string().as_bytes()))?;
    // Those of the mount, and behind a dash, a type and a source those of the file system.
    let options = [line.clone().nth(5)?, line.skip_while(|field| *field != b"-").nth(3)?];
    let words = options.into_iter().flat_map(|words| words.split(|byte| *byte == b','));
    Some(words.fold(ST_VALID, |flags, word| {
        flags | FLAGS.iter().find(|(name, _)| name.as_bytes() == word).map_or(0, |(_, flag)| *flag)
    }))
}

/// A path as the mount table has it.
fn as_in_table(path: &[u8]) -> Vec<u8> {
    let written = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    path.iter().flat_map(written).collect()
}

fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text;
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match first {
            b'%' => (number(after.get(..2)?)? as u8, &after[2..]),
            byte => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}

/// A number in base 16.
fn number(text: &[u8]) -> Option<u64> {
    text.iter()
        .try_fold(0_u64, |number, digit| Some(number.checked_mul(16)? + u64::from(char::from(*digit).to_digit(16)?)))
}
