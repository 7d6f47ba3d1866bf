//! Real descriptors: of the mount, for the same file, with the same flags and position, in the place of placeholders.
//!
//! A file is opened by its handle, as NFS servers do. Without the capability to, it is opened by a path that leads to it: up from the
//! directory that it was found in.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use conquest::{Caller, Ino};
use conquest_fs::node::DirEntry;
use pram::mem::descriptor::{despite_limit, Kept, Own};
use rustix::fs::{fstat, openat, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, FdFlags};

use crate::open_file::OpenFile;
use crate::raw;
use crate::state::{useless, State};
use crate::takes::{self, Takes};

/// Deeper directories have a path that is too long.
const DEEPEST: usize = 2048;
/// `struct pollfd`
const POLL: usize = 8;
/// In `struct msghdr`: address and length of the ancillary data.
const CONTROL: usize = 32;
/// `struct cmsghdr`
const HEADER: usize = 16;

type Result<T> = std::result::Result<T, Errno>;

impl State {
    /// Makes the descriptors real that a call takes.
    pub fn make_taken_real(&self, nr: u32, args: &[usize; 6]) -> Result<()> {
        // A path that cannot be read names none.
        let named = |n: usize| raw::path(args[n]).ok().and_then(named_descriptor);
        takes::paths(nr).filter_map(named).try_for_each(|fd| self.make_real(fd))?;
        match takes::of(nr) {
            Takes::None => Ok(()),
            Takes::One(n) => self.make_real(args[usize::from(n)] as RawFd),
            Takes::Two(a, b) => [a, b].into_iter().try_for_each(|n| self.make_real(args[usize::from(n)] as RawFd)),
            Takes::Ioctl => {
                let source = takes::cloned(args).map_or(Ok(()), |source| self.make_real(source));
                source.and_then(|()| self.make_real(args[0] as RawFd))
            }
            Takes::Poll => (0..args[1]).try_for_each(|n| self.make_real(raw::get::<i32>(args[0] + n * POLL)?)),
            Takes::Sets => {
                args[1..4].iter().filter(|set| **set != 0).try_for_each(|set| self.make_set_real(*set, args[0]))
            }
            Takes::Message => self.make_real(args[0] as RawFd).and_then(|()| self.make_passed_real(args[1])),
            Takes::All => self.make_all_real(false),
            Takes::Inherited => self.make_all_real(true),
            Takes::FirstAndInherited => self.make_real(args[0] as RawFd).and(self.make_all_real(true)),
        }
    }

    /// Those in a set of numbers below `end`.
    fn make_set_real(&self, set: usize, end: usize) -> Result<()> {
        let mut all = self.descriptors.numbers(0, (end as u32 as usize).saturating_sub(1));
        all.try_for_each(|fd| {
            let word: u64 = raw::get(set + fd as usize / 64 * 8)?;
            if word >> (fd % 64) & 1 == 0 {
                Ok(())
            } else {
                self.make_real(fd)
            }
        })
    }

    /// Those that a message passes to another process.
    fn make_passed_real(&self, message: usize) -> Result<()> {
        let [mut at, len]: [usize; 2] = raw::get(message + CONTROL)?;
        let end = at.saturating_add(len);
        while at.saturating_add(HEADER) <= end {
            let (len, kind): (usize, [i32; 2]) = (raw::get(at)?, raw::get(at + 8)?);
            // The kernel refuses it.
            if len < HEADER || len > end - at {
                break;
            }
            if kind == [libc::SOL_SOCKET, libc::SCM_RIGHTS] {
                (at + HEADER..=at + len - 4).step_by(4).try_for_each(|fd| self.make_real(raw::get(fd)?))?;
            }
            at += len.next_multiple_of(8);
        }
        Ok(())
    }

    /// An inode is about to lose the path that leads to it, or the permission to open it again.
    pub fn make_inode_real(&self, ino: Ino) {
        for fd in self.descriptors.numbers(0, usize::MAX) {
            if self.descriptors.get(fd).is_some_and(|file| file.ino == ino) {
                // Where that fails it is served here as before.
                let _ = self.make_real(fd);
            }
        }
    }

    /// Are there files open here that only their paths lead to?
    pub fn needs_paths(&self) -> bool {
        self.identities.current().is_some_and(|identity| !identity.opens_handles)
            && self.descriptors.numbers(0, usize::MAX).next().is_some()
    }

    /// Does a call take descriptors that are served here, of those that it names in memory or as a range?
    pub fn takes_any(&self, nr: u32, args: &[usize; 6]) -> bool {
        let any = |first, last| self.descriptors.numbers(first, last).next().is_some();
        let is_direct = |fd: usize| self.descriptors.has(fd as RawFd);
        match takes::of(nr) {
            Takes::Poll => {
                let mut asked = (0..args[1]).map_while(|n| raw::get::<i32>(args[0] + n * POLL).ok());
                asked.any(|fd| self.descriptors.has(fd))
            }
            Takes::Sets => any(0, (args[0] as u32 as usize).saturating_sub(1)),
            Takes::Message => {
                is_direct(args[0])
                    || raw::get::<usize>(args[1] + CONTROL + 8).is_ok_and(|len| len > 0) && any(0, usize::MAX)
            }
            Takes::None => any(args[0], args[1]),
            _ => any(0, usize::MAX),
        }
    }

    pub fn make_all_real(&self, exec: bool) -> Result<()> {
        let all = self.descriptors.numbers(0, usize::MAX);
        // The first error; all others are made real.
        let mut done = Ok(());
        for fd in all.filter(|fd| !exec || close_on_exec(*fd).is_ok_and(|closes| !closes)) {
            done = done.and(self.make_real(fd));
        }
        done
    }

    /// Makes a descriptor real if it is served here, with all that share its open file.
    pub fn make_real(&self, fd: RawFd) -> Result<()> {
        let Some(file) = self.descriptors.get(fd) else { return Ok(()) };
        let done = match self.real(&file) {
            Ok(real) if real.is_intact() => self.replace_all(&file, real.as_fd()),
            Ok(_) => Err(Errno::BADF),
            // The program has as many descriptors as it may, and more cannot be had; or one to be closed would take locks.
            Err(Errno::MFILE) => {
                self.open_in_place(&file, fd)?;
                self.replace_all(&file, raw::borrow(fd)?)
            }
            Err(e) => Err(e),
        };
        if done.is_err() && self.useless.lend().is_err() {
            // The placeholder may be of what the program has put in the place of ours.
            raw::put_at(useless()?, fd, close_on_exec(fd)?)?;
        }
        done
    }

    /// Puts `real` in the place of all placeholders of an open file.
    fn replace_all(&self, file: &Arc<OpenFile>, real: BorrowedFd) -> Result<()> {
        let mut position = file.position();
        if !position.is_kernels {
            rustix::fs::seek(real, SeekFrom::Start(position.at))?;
            position.is_kernels = true;
        }
        drop(position);
        self.keep_if_locked(file);
        for number in self.descriptors.numbers(0, usize::MAX) {
            let Some(mut slot) = self.descriptors.existing(number) else { continue };
            if slot.file().is_some_and(|other| Arc::ptr_eq(other, file)) {
                raw::put_at(real, number, close_on_exec(number)?)?;
                let _still_ours = slot.take();
            }
        }
        Ok(())
    }

    /// Opens a file with the number of its placeholder, which is closed before.
    fn open_in_place(&self, file: &Arc<OpenFile>, fd: RawFd) -> Result<()> {
        let mut slot = self.descriptors.existing(fd).ok_or(Errno::BADF)?;
        if !slot.file().is_some_and(|other| Arc::ptr_eq(other, file)) {
            return Err(Errno::BADF);
        }
        let closes = close_on_exec(fd)?;
        let fillers = self.fill_below(fd);
        raw::close(fd);
        let opened = self.open_on_mount(file);
        fillers.into_iter().for_each(raw::close);
        let opened = opened.and_then(|real| match real.as_raw_fd() == fd {
            true => rustix::io::fcntl_setfd(&real, if closes { FdFlags::CLOEXEC } else { FdFlags::empty() })
                .map(|()| real.into_raw_fd()),
            // Another thread may have the number now.
            false if close_on_exec(fd).is_ok() => Err(Errno::MFILE),
            false => raw::put_at(real, fd, closes).map(|()| fd),
        });
        let failed = match opened {
            Ok(_) => None,
            Err(e) => {
                let again = raw::duplicate(raw::borrow(self.useless.number())?, fd, closes)?;
                if again == fd {
                    return Err(e);
                }
                raw::close(again);
                Some(e)
            }
        };
        // The number is not the placeholder's any more.
        let _still_held = slot.take();
        failed.map_or(Ok(()), Err)
    }

    /// Placeholders at all free numbers below `fd`: the kernel gives the lowest free one.
    fn fill_below(&self, fd: RawFd) -> Vec<RawFd> {
        let mut fillers = Vec::new();
        while let Ok(filler) = raw::borrow(self.useless.number()).and_then(|useless| raw::duplicate(useless, 0, true)) {
            if filler > fd {
                raw::close(filler);
                break;
            }
            fillers.push(filler);
        }
        fillers
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

    /// The real descriptor of an open file that nobody else has. EMFILE where there is no number for it: to move it to a high one is to close
    /// one, which takes the locks of the process.
    pub fn real<'f>(&self, file: &'f Arc<OpenFile>) -> Result<&'f Own> {
        if let Some(real) = file.real.get() {
            return Ok(real);
        }
        if self.may_have_locks(file.ino) {
            return Err(Errno::MFILE);
        }
        let real = Own::raised(despite_limit(|| self.open_on_mount(file))?)?;
        Ok(file.real.get_or_init(|| real))
    }

    fn open_on_mount(&self, file: &OpenFile) -> Result<OwnedFd> {
        let attr = self.fs().getattr(file.ino).map_err(|e| e.errno())?;
        // The kernel knows the root as of no generation.
        let by_handle =
            file.ino != self.mount.root && self.identities.current().is_some_and(|identity| identity.opens_handles);
        let flags = file.flags();
        let open = |root: BorrowedFd| match by_handle {
            true => raw::open_inode(root, file.ino, attr.generation, flags),
            false => self.open_by_path(root, file, flags),
        };
        let root = if by_handle { self.opened_root().and_then(Kept::lend) } else { self.mounted.root.lend() };
        let real = match root {
            Ok(root) => open(root.as_fd())?,
            // What it leads to now is looked at below.
            Err(_) => open(self.root_again()?.as_fd())?,
        };
        let seen = fstat(&real)?;
        match (seen.st_dev, seen.st_ino) == (self.mounted.dev, file.ino) {
            true => Ok(real),
            false => Err(Errno::STALE),
        }
    }

    /// By an O_PATH descriptor handles cannot be opened.
    fn opened_root(&self) -> Result<&Kept> {
        match self.opened_root.get() {
            Some(root) => Ok(root),
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let root = Kept::new(openat(self.mounted.root.lend()?, c".", flags, Mode::empty())?)?;
                Ok(self.opened_root.get_or_init(|| root))
            }
        }
    }

    #[cold]
    fn root_again(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.mounted.dir[..], flags, Mode::empty())
    }

    fn open_by_path(&self, root: BorrowedFd, file: &OpenFile, flags: u32) -> Result<OwnedFd> {
        let mut path = match file.is_dir() {
            true => self.path_of(file.ino)?,
            false => [self.path_of(file.parent)?, self.name_in(file.parent, file.ino)?].concat(),
        };
        path.extend_from_slice(b".");
        if !file.is_dir() {
            path.pop();
        }
        let flags = OFlags::from_bits_retain(flags) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(root, &path[..], flags, Mode::empty())
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

/// The descriptor that a path names: `/dev/fd/3`, `/proc/self/fd/3`, `/dev/stdin`.
#[must_use]
pub fn named_descriptor(path: &[u8]) -> Option<RawFd> {
    match path {
        b"/dev/stdin" => Some(0),
        b"/dev/stdout" => Some(1),
        b"/dev/stderr" => Some(2),
        path => {
            let at = path.windows(4).position(|part| part == b"/fd/")?;
            let mut digits = path[at + 4..].iter().take_while(|byte| byte.is_ascii_digit());
            digits.try_fold(0i32, |n, digit| n.checked_mul(10)?.checked_add(i32::from(digit - b'0')))
        }
    }
}

/// Names are read to open a file that is open already: the mount checks whether the process may.
const EVERYWHERE: Caller = Caller { uid: 0, gid: 0, groups: &[], umask: 0, checked: true, owns: &[] };

fn close_on_exec(fd: RawFd) -> Result<bool> {
    Ok(rustix::io::fcntl_getfd(raw::borrow(fd)?)?.contains(FdFlags::CLOEXEC))
}
