//! `mount -o remount`: the command, and the server's side of it.
//!
//! | option | stored by | how it changes |
//! | --- | --- | --- |
//! | `ro`, `nosuid`, `noatime` and the like | the kernel, for each mount point | by a system call, which the server does not see; but the kernel wakes processes that poll the mount table |
//! | `durability=`, `sync`, `dirsync`, `commit=` | the server | the pool passes the request to the server, which answers |
//! | `transport=`, `save=` | the server | not while it is mounted: refused |
//!
//! If the server is gone, a remount mounts again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use conquest::{Atime, OpenOptions, Policy, Pool};
use conquest::{SessionStatus, Terms};
use fuse::TransportChoice;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::time::Timespec;

use crate::effective_options::{atime_by, has, is_known, lacking, save_of, stays};
use crate::failure::{Context, Failure, Result};
use crate::mount_request::Request;
use crate::options::Options;
use crate::{locate, mounts, save_option, servers};

/// How often the server looks for requests that the mount table does not announce: the mount may be in another
/// namespace.
const GLANCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A change of the mount at a directory.
pub struct Remount {
    pool: PathBuf,
    dir: PathBuf,
    options: Options,
    /// The kernel is asked too: it may have something to change, and wakes the server. Only root may ask it.
    by_kernel: bool,
}

impl Remount {
    /// Changes the options in `words`; all others stay.
    pub fn of(dir: &Path, words: &str) -> Result<Remount> {
        Remount::by(dir, |now| (format!("{},{words}", stays(now)), words.into()))
    }

    /// As mount(8) asks for it: `words` are all options of the mount, and leaving out `nosuid` means `suid`.
    pub fn of_all(dir: &Path, words: &str) -> Result<Remount> {
        Remount::by(dir, |now| {
            // mount(8) passes on the options in the table, which may be more than we know.
            let is_meant = |word: &&str| is_known(word) || !has(now, word);
            let all = words.split(',').filter(is_meant).collect::<Vec<_>>().join(",");
            // `dirsync` lasts as long as the mount.
            let is_new = |word: &&str| !["sync", "dirsync"].contains(word) || !has(now, word);
            let ends = Some("async").filter(|_| has(now, "sync") && !has(words, "sync"));
            (all, words.split(',').filter(is_new).chain(ends).collect::<Vec<_>>().join(","))
        })
    }

    /// `words` gets the options in the mount table, and returns all that the mount is to have and those that are
    /// requested.
    fn by(dir: &Path, words: impl FnOnce(&str) -> (String, String)) -> Result<Remount> {
        let Some(mounted) = mounts::conquest_at(dir)? else {
            let dir = dir.display();
            return Err(Failure::new(format!("no pool is mounted at {dir}; mount it first, without -o remount")));
        };
        let (all, asked) = words(&mounted.options);
        let is_said = |word: &&str| word.trim() != "remount";
        let mut options = Options::parse(&all.split(',').filter(is_said).collect::<Vec<_>>().join(","))?;
        options.terms = Options::parse(&asked)?.terms;
        let now = fuse::MountOptions::parse(&stays(&mounted.options)).context(|| "the mount table".into())?;
        let by_kernel = locate::is_root() || options.terms == Terms::default() || !now.has_flags_of(&options.mount);
        Ok(Remount { pool: mounted.source, dir: dir.into(), options, by_kernel })
    }

    /// The pool that is mounted there.
    pub fn pool(&self) -> &Path {
        &self.pool
    }

    pub fn is_dead(&self) -> bool {
        mounts::is_disconnected(&self.dir)
    }

    /// The request for a mount that replaces it then.
    pub fn again(self) -> Request {
        Request { pool: self.pool, dir: self.dir, options: self.options }
    }

    /// 1. Refuses impossible changes. 2. Asks the server. 3. Has the kernel change its flags, which wakes the server;
    ///    the kernel is not asked where it would refuse and has nothing to change. 4. Waits for the server's answer.
    pub fn run(&self) -> Result<()> {
        let what = || format!("cannot remount {}", self.dir.display());
        let flags = || fuse::remount(&self.dir, &self.options.mount).context(what);
        match servers::of_pool(&self.pool) {
            Some(server) => self.refuse_fixed(&server)?,
            None if self.options.terms != Terms::default() => return Err(self.no_server()),
            None => {}
        }
        self.options.save.iter().try_for_each(|file| save_option::refuse_lost(file, &self.pool, &self.dir))?;
        if self.options.terms == Terms::default() {
            return flags();
        }
        let pool = Pool::open(&self.pool, &OpenOptions::default()).context(what)?;
        let asked = pool.ask(&self.options.terms).context(what)?;
        if self.by_kernel {
            flags()?;
        }
        asked.wait().context(what)
    }

    fn no_server(&self) -> Failure {
        let (pool, dir) = (self.pool.display(), self.dir.display());
        Failure::new(format!(
            "no server of {dir} is to be seen here; mount it again with `conquest mount {pool} {dir}`"
        ))
    }

    /// Refuses options that a server cannot change after its start. Naming one with its present value is permitted, as
    /// in a line of fstab.
    fn refuse_fixed(&self, server: &SessionStatus) -> Result<()> {
        let fixed = |what: &str| {
            let dir = self.dir.display();
            Err(Failure::new(format!(
                "{what} cannot be changed while {dir} is mounted; unmount it and mount it with that option"
            )))
        };
        match self.options.mount.transport {
            TransportChoice::Only(other) if server.transport.as_ref().is_some_and(|t| *t != other.to_string()) => {
                return fixed("transport=");
            }
            _ => {}
        }
        if let Some(word) = lacking(server.pid, &self.options.mount) {
            return fixed(word);
        }
        match (&self.options.save, save_of(server.pid)) {
            (Some(file), Some(now)) if now.as_ref() != Some(file) => fixed("save="),
            _ => Ok(()),
        }
    }
}

/// Starts a thread that applies to the pool the flags of the mount with this number, at any mount point, and the
/// requests to the server. It ends with the process. `strict`: each read counts as an access, which `fusermount3` does
/// not pass to the kernel.
pub fn follow(pool: &Arc<Pool>, number: &str, strict: bool) {
    let (pool, number) = (Arc::downgrade(pool), number.to_string());
    let named = std::thread::Builder::new().name("remount".into());
    let started = named.spawn(move || {
        if let Err(e) = watch(&pool, &number, strict) {
            tracing::warn!("remounting with other options will not change what the server does: {e}");
        }
    });
    if let Err(e) = started {
        tracing::warn!("cannot start a thread: {e}");
    }
}

fn watch(pool: &Weak<Pool>, number: &str, strict: bool) -> std::io::Result<()> {
    let table = File::open("/proc/self/mountinfo")?;
    let (mut places, mut changed) = (Vec::new(), true);
    let first = fuse::mounts::of(number)?.into_iter().next();
    let unapplied = first.map(|first| first.options).filter(|flags| strict && has(flags, "relatime"));
    loop {
        let now = if changed { fuse::mounts::of(number)? } else { places.clone() };
        if now.is_empty() && !places.is_empty() {
            return Ok(());
        }
        // Held only for the time needed: the last holder closes the pool.
        let Some(pool) = pool.upgrade() else { return Ok(()) };
        if now != places {
            // A read does not tell its mount point, so an access is noted if any mount point notes it.
            let strict = |flags: &String| unapplied.as_ref() == Some(flags);
            let atime = now.iter().map(|place| atime_by(&place.options, strict(&place.options))).max_by_key(rank);
            let nodiratime = now.iter().all(|place| has(&place.options, "nodiratime"));
            let atime = atime.unwrap_or(pool.policy().atime);
            pool.set_policy(Policy { atime, nodiratime, ..pool.policy() });
            if let Some(oldest) = now.first() {
                pool.set_mountpoint(&oldest.dir);
            }
        }
        pool.heed();
        drop(pool);
        places = now;
        changed = match poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&GLANCE)) {
            Err(rustix::io::Errno::INTR) => true,
            polled => polled? > 0,
        };
    }
}

/// Orders the rules by how many accesses they note.
fn rank(atime: &Atime) -> u8 {
    match atime {
        Atime::Never => 0,
        Atime::Relative => 1,
        Atime::Always => 2,
    }
}
