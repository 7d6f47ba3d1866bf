//! The life of a mount: its threads, signals, the end.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;
use std::time::Duration;

use fs::poll::poll_until;
use fs::Pool;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::connection::Connection;
use crate::error::{Context, Error, Result};
use crate::guard::Duty;
use crate::notify::Notifier;
use crate::options::Transport;
use crate::promises::Promises;
use crate::rhythm::Rhythm;
use crate::server::Server;
use crate::sys::{Device, Signals};
use crate::{dev, init, lesson, mount, mounts, rhythm, uring};

/// Fewest and most threads that read /dev/fuse.
const READERS: (usize, usize) = (2, 16);
/// How long the end waits for threads; the end of the process ends them too.
const PATIENCE: Duration = Duration::from_secs(2);

/// A mounted pool. Serves already; [`run`](Mount::run) does the rest and waits for the end.
#[must_use = "without `run` the mount ends with the process and not before"]
pub struct Mount {
    dir: PathBuf,
    /// What the mount table calls the file system; empty if it does not say.
    number: String,
    /// Found while it is in the mount table.
    connection: Option<Connection>,
    transport: Transport,
    read_only: bool,
    pool: Arc<Pool>,
    signals: Signals,
    ended: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    watcher: Option<JoinHandle<()>>,
    device: Arc<Device>,
    notifier: Notifier,
    promises: Arc<Promises>,
    keeper_of_promises: Option<JoinHandle<()>>,
}

impl Mount {
    /// Serves a fresh connection whose kernel side is mounted on `dir`.
    pub(crate) fn start(
        pool: Arc<Pool>,
        device: Device,
        dir: &Path,
        transport: Transport,
        read_only: bool,
    ) -> Result<Mount> {
        let signals = Signals::catch().context("receive signals")?;
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("make an eventfd")?);
        let minor = init::negotiate(&device, transport)?;
        let device = Arc::new(device);
        let notifier = Notifier::new(device.clone(), minor);
        let number = number_of(dir);
        let server = Arc::new(Server::new(pool.clone(), notifier.clone(), number.clone()));
        let mut mount = Mount {
            dir: dir.into(),
            number,
            connection: connection_of(dir),
            transport,
            read_only,
            pool,
            signals,
            ended,
            threads: Vec::new(),
            watcher: None,
            device: device.clone(),
            notifier,
            promises: Arc::default(),
            keeper_of_promises: None,
        };
        mount.start_promises()?;
        // Before the first request: what the kernel is told of a name it keeps until it is told otherwise.
        mount.pool.begin_watching()?;
        match transport {
            Transport::Uring => mount.start_queues(&device, &server)?,
            Transport::Dev => mount.start_readers(&device, &server)?,
        }
        Ok(mount)
    }

    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The number by which the mount table calls the file system, wherever it is mounted; empty if that is not known.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// From now on a [guard](crate::guard) sends notifications, which is to be started with what this returns.
    pub fn guarded(&self) -> Result<Duty> {
        let (ours, theirs) = UnixStream::pair().context("make a socket")?;
        let device = self.device.as_fd().try_clone_to_owned().context("hand /dev/fuse to the guard")?;
        self.notifier.delegate(ours);
        Ok(Duty { device, server: theirs.into() })
    }

    fn start_queues(&mut self, device: &Arc<Device>, server: &Arc<Server>) -> Result<()> {
        let (ready, registered) = mpsc::channel();
        let queues = uring::queues().context("count the CPUs")?;
        let rhythm = Arc::new(Rhythm::default());
        for queue in 0..queues {
            let (device, server, ready) = (device.clone(), server.clone(), ready.clone());
            let (promises, rhythm) = (self.promises.clone(), rhythm.clone());
            let serve = move || uring::serve(&device, queue, &server, &promises, &rhythm, ready);
            self.spawn(format!("fuse-uring-{queue}"), serve)?;
        }
        drop(ready);
        for _ in 0..queues {
            let lost = |_| Err(std::io::Error::other("a queue thread has ended"));
            registered
                .recv()
                .unwrap_or_else(lost)
                .map_err(|e| Error::Unavailable(format!("the kernel refused a queue of FUSE over io_uring: {e}")))?;
        }
        let (device, server, promises) = (device.clone(), server.clone(), self.promises.clone());
        self.spawn("fuse-dev".into(), move || dev::serve_beside(&device, &server, &promises))
    }

    fn start_readers(&mut self, device: &Arc<Device>, server: &Arc<Server>) -> Result<()> {
        let cpus = std::thread::available_parallelism().map_or(READERS.0, usize::from);
        for reader in 0..cpus.clamp(READERS.0, READERS.1) {
            let device = match reader {
                0 => device.clone(),
                _ => Arc::new(device.clone_queue().context("clone /dev/fuse")?),
            };
            let (server, promises) = (server.clone(), self.promises.clone());
            self.spawn(format!("fuse-dev-{reader}"), move || dev::serve(&device, &server, &promises))?;
        }
        Ok(())
    }

    fn start_promises(&mut self) -> Result<()> {
        if self.pool.durable_at_return() {
            return Ok(());
        }
        let (pool, promises) = (self.pool.clone(), self.promises.clone());
        let builder = std::thread::Builder::new().name("fuse-promises".into());
        self.keeper_of_promises = Some(builder.spawn(move || promises.keep(&pool)).context("start a thread")?);
        Ok(())
    }

    /// Not before there is a guard: what it tells the kernel may wait there for a request to us.
    fn start_watcher(&mut self) -> Result<()> {
        let (pool, notifier) = (self.pool.clone(), self.notifier.clone());
        let watch = move || {
            rhythm::come_first();
            if let Err(e) = pool.watch(&mut |change| notifier.tell(&pool, change)) {
                tracing::error!("changes by other processes are no longer seen: {e}");
            }
        };
        let builder = std::thread::Builder::new().name("fuse-watch".into());
        self.watcher = Some(builder.spawn(watch).context("start a thread")?);
        Ok(())
    }

    /// Starts a thread whose end is the mount's.
    fn spawn(&mut self, name: String, serve: impl FnOnce() + Send + 'static) -> Result<()> {
        let ended = self.ended.clone();
        let body = move || {
            serve();
            // Fails only if the counter is full: then it is readable anyhow.
            let _ = rustix::io::write(&*ended, &1u64.to_ne_bytes());
        };
        let builder = std::thread::Builder::new().name(name);
        self.threads.push(builder.spawn(body).context("start a thread")?);
        Ok(())
    }

    /// Calls `ready` once the kernel knows all of us that it is to know. Serves until somebody unmounts it, or SIGINT,
    /// SIGTERM or SIGHUP asks for the end; then it is unmounted, and what programs had mapped and changed is in the pool.
    pub fn run(mut self, ready: impl FnOnce()) -> Result<()> {
        let watching = self.start_watcher();
        if watching.is_ok() {
            if !self.read_only {
                lesson::teach(&self.dir);
            }
            ready();
        }
        if watching.is_err() || self.wait_for_end()? {
            tracing::info!(dir = %self.dir.display(), "asked to end, unmounting");
            // It may be out of the mount table, and live on for open files or in another mount namespace.
            if let Err(e) = mount::detach(&self.number) {
                tracing::warn!("{e}; ending its connection");
                self.disconnect();
            }
        }
        self.finish();
        watching
    }

    fn disconnect(&self) {
        let connection = self.connection.as_ref().map(Connection::abort);
        if let Some(Err(e)) = connection {
            tracing::error!("{e}");
        }
    }

    /// True: a signal asks for the end. False: the kernel has ended it.
    fn wait_for_end(&self) -> Result<bool> {
        let mut fds = [
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(rustix::fd::AsFd::as_fd(&*self.ended), PollFlags::IN),
        ];
        loop {
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                polled => polled.context("wait for the end")?,
            };
            if !fds[1].revents().is_empty() {
                return Ok(false);
            }
            if !fds[0].revents().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Lets the threads end, so that the pool is closed in order.
    fn finish(mut self) {
        self.pool.stop_watching();
        self.pool.end_mount();
        self.promises.stop();
        self.threads.extend(self.watcher.take());
        self.threads.extend(self.keeper_of_promises.take());
        let _ = poll_until(PATIENCE, || self.threads.iter().all(JoinHandle::is_finished));
        for thread in self.threads.drain(..).filter(JoinHandle::is_finished) {
            if thread.join().is_err() {
                tracing::error!("a thread of the mount has panicked");
            }
        }
    }
}

/// What the mount table calls the file system at `dir`; empty if it does not say.
fn number_of(dir: &Path) -> String {
    mounts::at(dir).ok().flatten().map(|mount| mount.number).unwrap_or_default()
}

fn connection_of(dir: &Path) -> Option<Connection> {
    let found = Connection::at(dir);
    found.inspect_err(|e| tracing::debug!("where it is mounted no more, it cannot be ended: {e}")).ok()
}
