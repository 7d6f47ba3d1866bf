//! Real descriptors: of the mount, for the same file, with the same flags and position, in the place of placeholders.
//!
//! A file is opened by its handle, as NFS servers do. Without the capability to, it is opened by a path that leads to it: up from the
//! directory that it was found in.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use conquest::{Caller, Ino};
use conquest_fs::node::DirEntry;
use rustix::fs::{fstat, openat, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, FdFlags};

use crate::open_file::{HighFd, OpenFile};
use crate::raw;
use crate::state::State;
use crate::takes::{self, Takes};

/// Deeper directories have a path that is too long.
const DEEPEST: usize = 2048;
/// `struct pollfd`
const POLL: usize = 8;
/// In `struct msghdr`: the length of the ancillary data.
const CONTROL_LENGTH: usize = 40;

type Result<T> = std::result::Result<T, Errno>;

impl State {
    /// Makes the descriptors real that a call takes.
    pub fn make_taken_real(&self, nr: u32, args: &[usize; 6]) -> Result<()> {
        match takes::of(nr) {
            Takes::None => Ok(()),
            Takes::One(n) => self.make_real(args[usize::from(n)] as RawFd),
            Takes::Two(a, b) => [a, b].into_iter().try_for_each(|n| self.make_real(args[usize::from(n)] as RawFd)),
            Takes::Poll => (0..args[1]).try_for_each(|n| self.make_real(raw::get::<i32>(args[0] + n * POLL)?)),
            Takes::Below => self.make_these_real(self.descriptors.numbers(0, args[0].saturating_sub(1))),
            Takes::Message if raw::get::<usize>(args[1] + CONTROL_LENGTH)? == 0 => self.make_real(args[0] as RawFd),
            Takes::Message | Takes::All => self.make_all_real(false),
            Takes::Inherited => self.make_all_real(true),
            Takes::FirstAndInherited => self.make_real(args[0] as RawFd).and(self.make_all_real(true)),
        }
    }

    pub fn make_all_real(&self, exec: bool) -> Result<()> {
        let mut all = self.descriptors.numbers(0, usize::MAX);
        if exec {
            all.retain(|fd| close_on_exec(*fd).is_ok_and(|closes| !closes));
        }
        self.make_these_real(all)
    }

    /// The first error; all others are made real.
    fn make_these_real(&self, numbers: Vec<RawFd>) -> Result<()> {
        let mut all = Ok(());
        for fd in numbers {
            all = all.and(self.make_real(fd));
        }
        all
    }

    /// Makes a descriptor real if it is served here, with all that share its open file.
    pub fn make_real(&self, fd: RawFd) -> Result<()> {
        let Some(file) = self.descriptors.get(fd) else { return Ok(()) };
        let real = self.real(&file)?;
        let mut position = file.position();
        if !position.is_kernels {
            rustix::fs::seek(real, SeekFrom::Start(position.at))?;
            position.is_kernels = true;
        }
        drop(position);
        self.keep_if_locked(&file);
        for number in self.descriptors.numbers(0, usize::MAX) {
            let Some(mut slot) = self.descriptors.existing(number) else { continue };
            if slot.file().is_some_and(|other| Arc::ptr_eq(other, &file)) {
                raw::put_at(real, number, close_on_exec(number)?)?;
                let _still_ours = slot.take();
            }
        }
        Ok(())
    }

    /// Closing any descriptor of a file takes the process's POSIX locks of it: where it may have some, the one that the
    /// program does not see stays open for good.
    fn keep_if_locked(&self, file: &OpenFile) {
        if self.lock_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = locks.by_real.contains(&file.ino);
        if is_known || locks.by.iter().any(|(ino, _)| *ino == file.ino) {
            file.keeps_real.store(true, Ordering::Relaxed);
            locks.by_real.extend((!is_known).then_some(file.ino));
            self.lock_count.store(locks.by.len() + locks.by_real.len(), Ordering::Release);
        }
    }

    fn may_have_locks(&self, inode: Ino) -> bool {
        self.lock_count.load(Ordering::Acquire) > 0 && {
            let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.by_real.contains(&inode) || locks.by.iter().any(|(ino, _)| *ino == inode)
        }
    }

    /// The real descriptor of an open file that nobody else has.
    pub fn real<'f>(&self, file: &'f Arc<OpenFile>) -> Result<&'f HighFd> {
        if let Some(real) = file.real.get() {
            return Ok(real);
        }
        let real = self.open_on_mount(file)?;
        let real = match self.may_have_locks(file.ino) {
            // To move it is to close one.
            true => HighFd::unmoved(real),
            false => HighFd::new(real)?,
        };
        Ok(file.real.get_or_init(|| real))
    }

    fn open_on_mount(&self, file: &OpenFile) -> Result<OwnedFd> {
        let attr = self.fs().getattr(file.ino).map_err(|e| e.errno())?;
        let by_handle = self.identities.current().is_some_and(|identity| identity.opens_handles);
        let flags = file.flags() & !(libc::O_NOFOLLOW as u32);
        let real = match by_handle {
            true => raw::open_inode(self.mounted.root.as_fd(), file.ino, attr.generation, flags)?,
            false => self.open_by_path(file, flags)?,
        };
        let seen = fstat(&real)?;
        match (seen.st_dev, seen.st_ino) == (self.mounted.dev, file.ino) {
            true => Ok(real),
            false => Err(Errno::STALE),
        }
    }

    fn open_by_path(&self, file: &OpenFile, flags: u32) -> Result<OwnedFd> {
        let mut path = match file.is_dir() {
            true => self.path_of(file.ino)?,
            false => [self.path_of(file.parent)?, self.name_in(file.parent, file.ino)?].concat(),
        };
        path.extend_from_slice(b".");
        if !file.is_dir() {
            path.pop();
        }
        let flags = OFlags::from_bits_retain(flags) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.mounted.root, &path[..], flags, Mode::empty())
    }

    /// The path of a directory from the root of the mount on, with a slash behind each name.
    fn path_of(&self, dir: Ino) -> Result<Vec<u8>> {
        let (mut at, mut names) = (dir, Vec::new());
        while at != self.mount.root {
            let above = self.fs().lookup(at, b"..", &EVERYWHERE).map_err(|e| e.errno())?.ino;
            let mut name = self.name_in(above, at)?;
            name.push(b'/');
            names.push(name);
            at = above;
            if names.len() > DEEPEST {
                return Err(Errno::NAMETOOLONG);
            }
        }
        names.reverse();
        Ok(names.concat())
    }

    /// The name of an inode in a directory.
    fn name_in(&self, dir: Ino, ino: Ino) -> Result<Vec<u8>> {
        let mut found = None;
        let mut see = |entry: DirEntry| {
            if entry.ino == ino && entry.name != b"." && entry.name != b".." {
                found = Some(entry.name.to_vec());
            }
            found.is_none()
        };
        self.fs().readdir(dir, 0, &mut see).map_err(|e| e.errno())?;
        found.ok_or(Errno::NOENT)
    }
}

/// Names are read to open a file that is open already: the mount checks whether the process may.
const EVERYWHERE: Caller = Caller { uid: 0, gid: 0, groups: &[], umask: 0, checked: true, owns: &[] };

fn close_on_exec(fd: RawFd) -> Result<bool> {
    Ok(rustix::io::fcntl_getfd(raw::borrow(fd)?)?.contains(FdFlags::CLOEXEC))
}
