//! Answers the file system calls of the own process on a pool, as the mount of the pool would answer them.
//!
//! A caller (the preloaded library) has the system calls of a program come here first. What is not served here, or is not certain, is
//! the kernel's: it gets real descriptors of the mount then.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the engine: attaching, and one entry for all calls |
//! | `call` | the system calls, by groups |
//! | [`calls`] | how each system call names files |
//! | [`callers`] | code that calls the kernel past the C library |
//! | [`rewritten`] | the C library's text as programs with direct access have it |
//! | [`counts`] | counts calls for `conquest run --check` |
//! | `takes` | which arguments of a system call are descriptors |
//! | `real` | descriptors of the mount in the place of those that are served here |
//! | `descriptors` | the table of descriptors |
//! | `open_file` | an open file: inode, flags, position |
//! | `state` | what an engine has: pool, mount, descriptors, credentials |
//! | `mapped` | what the process maps of pools |
//! | `identity` | the credentials of the process |
//! | `stat` | attributes in the forms of the system calls |
//! | `raw` | the program's memory and descriptors: the only `unsafe` |
//!
//! Descriptors: a number is reserved by a *placeholder*, a descriptor of the kernel that is of no use to those who do not know of it
//! (of a symbolic link, opened with O_PATH). All that share an open file become real together, when a call
//! needs them that is the kernel's, or before `fork` and `exec`.
//!
//! System calls of the engine itself go past libc (`rustix`), since libc's lead here. No thread is started.

#![deny(unsafe_code)]

mod call;
pub mod callers;
pub mod calls;
pub mod counts;
mod descriptors;
mod identity;
mod mapped;
mod open_file;
mod raw;
mod real;
pub mod rewritten;
mod stat;
mod state;
mod takes;
#[cfg(test)]
mod tests;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::Ordering;

use conquest::Ino;
use pram::mem::descriptor::Kept;
use rustix::io::Errno;

pub use identity::read_file;
pub use raw::{after_fault, byte, bytes, path, system_call};
pub use real::named_descriptor;
pub use state::NOSYMFOLLOW;
pub use takes::cloned;

use call::Stop;
use state::State;

/// A mount of the pool, as this process sees it.
pub struct Mounted {
    /// Its directory: absolute, without `.`, `..`, double or trailing slashes.
    pub dir: Vec<u8>,
    /// `st_dev` of everything in it, as `stat` encodes it.
    pub dev: u64,
    /// A descriptor of its root directory, O_PATH.
    pub root: Kept,
    /// Its flags, as `statfs` tells them.
    pub flags: u64,
}

/// The answer to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The result, as the raw system call returns it: an errno is negative.
    Done(isize),
    /// The same call is to be made in the kernel.
    Kernel,
}

/// A pool, as this process works on it.
pub struct Engine {
    state: State,
}

impl Engine {
    /// Attaches to the pool in the directory `pool`, mounted there, with the credentials of the calling thread: see
    /// [`refresh_caller`](Engine::refresh_caller).
    ///
    /// # Errors
    /// [`Error::Pool`](conquest::Error::Pool) if the kernel has to be asked for all calls: its permissions cannot be told by users and groups, or
    /// the mount is read-only.
    pub fn attach(pool: &Path, mounted: Mounted) -> conquest::Result<Engine> {
        Ok(Engine { state: State::new(pool, mounted)? })
    }

    /// Answers system call `nr` (the numbers of x86-64), or says that the kernel is to be asked, for which the descriptors that
    /// it takes are real then.
    pub fn call(&self, nr: u32, args: &[usize; 6]) -> Answer {
        // A panic is a defect; it fails one call and not the program.
        catch_unwind(AssertUnwindSafe(|| self.answer(nr, args))).unwrap_or(Answer::Done(failed(Errno::IO)))
    }

    #[inline(always)]
    fn answer(&self, nr: u32, args: &[usize; 6]) -> Answer {
        match self.state.serve(nr, args) {
            Ok(result) => Answer::Done(result as isize),
            Err(Stop::Errno(errno)) => Answer::Done(failed(errno)),
            Err(Stop::Kernel) => self.pass_on(nr, args),
        }
    }

    #[cfg(test)]
    pub(crate) fn fs(&self) -> &conquest::Fs {
        self.state.fs()
    }

    /// Prepares a call for the kernel.
    #[cold]
    fn pass_on(&self, nr: u32, args: &[usize; 6]) -> Answer {
        match self.state.make_taken_real(nr, args) {
            // The kernel meets the same address.
            Ok(()) | Err(Errno::FAULT) => Answer::Kernel,
            // The placeholder is nothing to work on.
            Err(_) => Answer::Done(failed(Errno::BADF)),
        }
    }

    /// Is this descriptor served here? Takes no lock.
    #[inline(always)]
    pub fn is_direct(&self, fd: i32) -> bool {
        self.state.descriptors.has(fd)
    }

    /// Is this a descriptor of a file of the pool, served here or the kernel's?
    pub fn is_of_pool(&self, fd: i32) -> bool {
        self.is_direct(fd) || self.state.inode_of(fd).is_some()
    }

    /// Does a call of the class [`Class::Somehow`](calls::Class::Somehow) take descriptors that are served here?
    pub fn takes_any(&self, nr: u32, args: &[usize; 6]) -> bool {
        self.state.takes_any(nr, args)
    }

    /// From now on files are opened by the kernel: something in the process would meet placeholders.
    pub fn open_only_real(&self) {
        self.state.opens_only_real.store(true, Ordering::Relaxed);
        // One that fails is EBADF to it.
        let _ = self.make_all_real();
    }

    /// Does the engine have its own descriptors still? A program may have closed or replaced them by calls that the library does not see.
    pub fn is_intact(&self) -> bool {
        let is_intact = self.state.useless.lend().is_ok() && self.state.mounted.root.lend().is_ok();
        if !is_intact {
            self.state.drop_lost();
        }
        is_intact
    }

    /// The working directory is this directory of the pool now, or one elsewhere. From one above the mount, the part of the mount's path that
    /// begins at `from_here` leads there; else that is 0.
    pub fn enter(&self, dir: Option<Ino>, from_here: usize) {
        self.state.working_directory.store(dir.unwrap_or(0), Ordering::Relaxed);
        self.state.from_here.store(from_here, Ordering::Relaxed);
    }

    /// Makes all descriptors that are served here real.
    pub fn make_all_real(&self) -> rustix::io::Result<()> {
        catch_unwind(AssertUnwindSafe(|| self.state.make_all_real(false))).unwrap_or(Err(Errno::IO))
    }

    /// Makes this descriptor real if it is served here. Where that fails it is of no use to the kernel.
    pub fn make_real(&self, fd: i32) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.state.make_real(fd)));
    }

    /// A limit of this process may have changed.
    pub fn refresh_limits(&self) {
        self.state.refresh_limits();
    }

    /// The credentials of this thread have changed, or the umask. Where they cannot be learned, or other threads have others, the
    /// kernel is asked for all calls from now on.
    pub fn refresh_caller(&self) {
        if self.state.identities.refresh_of_all_threads().is_err() {
            self.state.identities.forget();
        }
    }

    /// The same where the thread that calls is all that counts: tests run beside each other.
    #[cfg(test)]
    pub(crate) fn refresh_thread(&self) {
        self.state.identities.refresh().expect("/proc is there");
    }
}

fn failed(errno: Errno) -> isize {
    -(errno.raw_os_error() as isize)
}
