//! Attaches to a directory; threads, and the end.
//!
//! At the first signal (SIGINT, SIGTERM, SIGHUP) while a loop device has the file open, the server detaches from the
//! directory and serves on until the file is closed: the file system above would lose its unwritten data. At the second
//! signal the server ends at once.

use std::io;
use std::os::fd::AsFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use export::BlockDevice;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::file::{OneFile, FILE};
use super::message::Message;
use crate::abi::init as can;
use crate::detached_mount;
use crate::error::{Context, Error, Result};
use crate::init::{self, Terms};
use crate::mount::{cannot_mount, give_up, open_device, words, Target};
use crate::mounts::{self, TABLE, VOLUME_SUBTYPE};
use crate::options::Transport;
use crate::sys::{Device, Signals};
use crate::threads::Threads;
use crate::unmount::{real_path, release};

/// Requests served at a time.
const READERS: usize = 16;

const TERMS: Terms = Terms {
    wanted: can::ASYNC_READ
        | can::ASYNC_DIO
        | can::EXPORT_SUPPORT
        | can::BIG_WRITES
        | can::PARALLEL_DIROPS
        | can::MAX_PAGES
        | can::INIT_EXT,
    needed: can::INIT_EXT,
};

/// A device that is shown as a file. It serves already; [`run`](Shown::run) waits for the end.
#[must_use = "without `run` it ends with the process and not before"]
pub struct Shown {
    number: String,
    dir: std::path::PathBuf,
    signals: Signals,
    threads: Threads,
}

/// Does `dir`, a real path, show a volume?
pub fn is_volume_at(dir: &Path) -> Result<bool> {
    Ok(mounts::at(dir).context(TABLE)?.is_some_and(|mounted| mounted.is_volume()))
}

/// Shows `device` as the one file of `dir`; the mount table shows `source`. Threads of this process serve it from now
/// on, so fork before. Takes over SIGINT, SIGTERM and SIGHUP.
pub fn mount_volume(device: Arc<dyn BlockDevice>, source: &Path, dir: &Path) -> Result<Shown> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Unavailable("only root can show a volume, as only root can make loop devices of it".into()));
    }
    let source = source.canonicalize().unwrap_or_else(|_| source.into());
    let target = Target::find(&source, dir)?;
    let dir = &target.dir;
    if is_volume_at(dir)? && !mounts::is_disconnected(dir) {
        let shown = dir.display();
        return Err(Error::Target(format!(
            "{shown}: a volume is shown there already; to end that: conquest umount {shown}"
        )));
    }
    let kernel = open_device()?;
    let words = words(&kernel, VOLUME_SUBTYPE, None);
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let cannot = |e| cannot_mount(dir, e);
    let made = detached_mount::fresh("fuse", &source, &words, flags).map_err(cannot)?;
    let number = detached_mount::number_of(&made).context("number a mount")?;
    let shown = Shown::start(device, kernel, dir, number)
        .inspect_err(|_| give_up(detached_mount::put_over(&made, dir).map_err(cannot), dir))?;
    detached_mount::put(&made, &source, dir).map_err(cannot)?;
    Ok(shown)
}

/// Detaches the volume shown at `dir`. The server ends when no process has the file open.
pub fn umount_volume(dir: &Path) -> Result<()> {
    let real = real_path(dir);
    let dir = dir.display();
    match mounts::at(&real).context(TABLE)? {
        Some(mounted) if mounted.is_volume() => {}
        _ => return Err(Error::Target(format!("{dir}: no volume is shown there"))),
    }
    let dead = if mounts::is_disconnected(&real) { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    release(&real, dead).map_err(|e| match e {
        Error::Target(_) => Error::Target(format!(
            "{dir}: in use; unmount the file system that is in it and give its loop device back (`losetup -j {dir}/{FILE}` names it, \
             `losetup -d` ends it)"
        )),
        e => e,
    })
}

impl Shown {
    fn start(device: Arc<dyn BlockDevice>, kernel: Device, dir: &Path, number: String) -> Result<Shown> {
        let signals = Signals::catch().context("receive signals")?;
        let mut threads = Threads::new()?;
        init::negotiate(&kernel, &TERMS, Transport::Dev)?;
        let file = Arc::new(OneFile::new(device));
        let kernel = Arc::new(kernel);
        for reader in 0..READERS {
            let queue = match reader {
                0 => kernel.clone(),
                _ => Arc::new(kernel.clone_queue().context("clone /dev/fuse")?),
            };
            let file = file.clone();
            threads.spawn(&format!("volume-{reader}"), move || serve(&queue, &file))?;
        }
        Ok(Shown { number, dir: dir.into(), signals, threads })
    }

    /// Serves until it is unmounted and no process has the file open.
    pub fn run(mut self) -> Result<()> {
        let ended = self.wait(true)? || {
            tracing::info!(dir = %self.dir.display(), "asked to end");
            // The file cannot be opened any more; processes that have it open keep it.
            for place in mounts::of(&self.number).context(TABLE)?.into_iter().rev() {
                release(&place.dir, UnmountFlags::DETACH)?;
            }
            tracing::info!("serving on until nobody has the file; another signal ends that at once");
            self.wait(true)?
        };
        let failed = self.threads.ended.failed.load(Ordering::SeqCst);
        if ended {
            self.threads.join();
        }
        match failed {
            true => Err(Error::Unavailable("a thread that it needs has failed; the log says why".into())),
            false => Ok(()),
        }
    }

    /// True: the kernel has ended it. False: a signal asks for the end.
    fn wait(&self, may_be_asked: bool) -> Result<bool> {
        loop {
            let wakeup = PollFd::from_borrowed_fd(self.threads.ended.wakeup.as_fd(), PollFlags::IN);
            let mut fds = [wakeup, PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut fds[..1 + usize::from(may_be_asked)], None) {
                Err(Errno::INTR) => continue,
                polled => polled.context("wait for the end")?,
            };
            if !fds[0].revents().is_empty() {
                return Ok(true);
            }
            if !fds[1].revents().is_empty() {
                // Clears the signal, so that the next one is seen.
                let _ = rustix::io::read(&self.signals, &mut [0; 8]);
                return Ok(false);
            }
        }
    }
}

fn serve(kernel: &Device, file: &OneFile) -> io::Result<()> {
    let mut message = Message::new();
    loop {
        match message.read(kernel) {
            Ok(()) => {}
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        // A panic below is a defect; it fails one request and not the volume.
        let served = catch_unwind(AssertUnwindSafe(|| file.serve(&mut message)));
        if let Some(answer) = served.unwrap_or(Some(Err(Errno::IO))) {
            message.answer(kernel, answer);
        }
    }
}
