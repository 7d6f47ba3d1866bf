//! The life of a mount: its threads, signals, the end.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc};

use conquest::Pool;
use pram::priority;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::error::{Context, Error, Result};
use crate::guard::Duty;
use crate::notify::Notifier;
use crate::options::{MountOptions, Transport};
use crate::server::Server;
use crate::sys::{Device, Signals};
use crate::threads::Threads;
use crate::wait_policy::WaitPolicy;
use crate::{dev, fuseblk, init, no_open, unmount, uring, workers};

/// Fewest and most threads that read /dev/fuse.
const READERS: (usize, usize) = (2, 16);

/// A mounted pool. It serves already; [`run`](Mount::run) does the rest and waits for the end.
#[must_use = "without `run` the mount ends with the process and not before"]
pub struct Mount {
    dir: PathBuf,
    /// The number of the file system in the mount table; empty if unknown.
    number: String,
    /// Opened while the number still belongs to this mount.
    connection: Option<Connection>,
    transport: Transport,
    read_only: bool,
    pool: Arc<Pool>,
    signals: Signals,
    threads: Threads,
    device: Arc<Device>,
    notifier: Notifier,
    server: Arc<Server>,
}

/// Why a mount ends.
enum End {
    /// A signal asks for it.
    Asked,
    /// The kernel has ended it.
    Unmounted,
    /// A thread that it needs has failed.
    Failed,
}

impl Mount {
    /// Serves a fresh connection whose kernel side is, or will be, mounted on `dir`. `number`: of the file system in
    /// the mount table, empty if unknown.
    pub(crate) fn start(
        pool: Arc<Pool>,
        device: Device,
        dir: &Path,
        number: String,
        transport: Transport,
        options: &MountOptions,
    ) -> Result<Mount> {
        let signals = Signals::catch().context("receive signals")?;
        let threads = Threads::new()?;
        let minor = init::negotiate(&device, &init::terms(options), transport)?;
        let device = Arc::new(device);
        let notifier = Notifier::new(device.clone(), minor);
        let server = Arc::new(Server::new(pool.clone(), notifier.clone(), number.clone(), options)?);
        let mut mount = Mount {
            dir: dir.into(),
            connection: connection_of(&number),
            number,
            transport,
            read_only: options.read_only,
            pool,
            signals,
            threads,
            device,
            notifier,
            server,
        };
        match mount.start_threads() {
            Ok(()) => Ok(mount),
            // The other threads end with the connection, which the caller ends now.
            Err(e) => {
                mount.server.stop();
                Err(e)
            }
        }
    }

    fn start_threads(&mut self) -> Result<()> {
        for worker in 0..workers::WORKERS {
            let server = self.server.clone();
            self.threads.spawn(&format!("fuse-worker-{worker}"), move || {
                server.work();
                Ok(())
            })?;
        }
        let server = self.server.clone();
        self.threads.spawn("fuse-seeks", move || {
            server.seek_all();
            Ok(())
        })?;
        if !self.pool.durable_at_return() {
            let server = self.server.clone();
            self.threads.spawn("fuse-deferred", move || {
                server.deferred.send_all(server.fs());
                Ok(())
            })?;
        }
        // Before the first request: the kernel caches a name from a reply until a notification.
        self.pool.begin_watching()?;
        match self.transport {
            Transport::Uring => self.start_queues(),
            Transport::Dev => self.start_readers(),
        }
    }

    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The number of the file system in the mount table, the same at all its mount points; empty if unknown.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// From now on a [guard](crate::guard) sends notifications. Start it with the returned [`Duty`].
    pub fn guarded(&self) -> Result<Duty> {
        let (ours, theirs) = UnixStream::pair().context("make a socket")?;
        let device = self.device.as_fd().try_clone_to_owned().context("hand /dev/fuse to the guard")?;
        self.notifier.send_through(ours);
        Ok(Duty { device, server: theirs.into() })
    }

    fn start_queues(&mut self) -> Result<()> {
        let (ready, registered) = mpsc::channel();
        let queues = uring::queues().context("count the CPUs")?;
        let policy = Arc::new(WaitPolicy::default());
        for queue in 0..queues {
            let (device, server, ready) = (self.device.clone(), self.server.clone(), ready.clone());
            let policy = policy.clone();
            let serve = move || uring::serve(&device, queue, &server, &policy, ready);
            self.threads.spawn(&format!("fuse-uring-{queue}"), serve)?;
        }
        drop(ready);
        for _ in 0..queues {
            let lost = |_| Err(io::Error::other("a queue thread has ended"));
            registered
                .recv()
                .unwrap_or_else(lost)
                .map_err(|e| Error::Unavailable(format!("the kernel refused a queue of FUSE over io_uring: {e}")))?;
        }
        let (device, server) = (self.device.clone(), self.server.clone());
        self.threads.spawn("fuse-dev", move || dev::serve_beside(&device, &server))
    }

    fn start_readers(&mut self) -> Result<()> {
        let cpus = std::thread::available_parallelism().map_or(READERS.0, usize::from);
        for reader in 0..cpus.clamp(READERS.0, READERS.1) {
            let device = match reader {
                0 => self.device.clone(),
                _ => Arc::new(self.device.clone_queue().context("clone /dev/fuse")?),
            };
            let server = self.server.clone();
            self.threads.spawn(&format!("fuse-dev-{reader}"), move || dev::serve(&device, &server))?;
        }
        Ok(())
    }

    /// Not before there is a guard: a notification may wait in the kernel for a request to us.
    fn start_watcher(&mut self) -> Result<()> {
        let (pool, notifier) = (self.pool.clone(), self.notifier.clone());
        let watch = move || {
            priority::come_first();
            // Without the watcher the kernel would believe its cache for ever.
            let watched = pool.watch(&mut |change| notifier.tell(&pool, change));
            watched.map_err(|e| io::Error::other(format!("changes by other processes are no longer seen: {e}")))
        };
        self.threads.spawn("fuse-watch", watch)
    }

    /// Calls `ready` once the kernel has learned all it needs about the mount. Serves until it is unmounted, or until
    /// SIGINT, SIGTERM or SIGHUP asks for the end; then it unmounts itself, and the stores of programs through mappings
    /// are in the pool.
    pub fn run(mut self, ready: impl FnOnce()) -> Result<()> {
        let watching = self.start_watcher();
        if watching.is_ok() {
            if !self.read_only {
                no_open::prime(&self.dir);
            }
            ready();
        }
        let end = match watching {
            Ok(()) => self.wait_for_end()?,
            Err(_) => End::Asked,
        };
        match end {
            End::Asked => {
                tracing::info!(dir = %self.dir.display(), "asked to end, unmounting");
                // The mount may be out of the mount table, and live on for open files or in another mount namespace.
                if let Err(e) = unmount::detach(&self.number) {
                    tracing::warn!("{e}; ending its connection");
                    self.disconnect();
                }
            }
            // Not every request is answered any more, so nothing may be waited for.
            End::Failed => {
                self.disconnect();
                if let Err(e) = unmount::abandon(&self.number) {
                    tracing::error!("{e}");
                }
            }
            End::Unmounted => {}
        }
        let (number, name) = (self.number.clone(), self.pool.uuid());
        self.finish();
        if let Ok(name) = name {
            fuseblk::forget(&number, u128::from_be_bytes(name));
        }
        match end {
            End::Failed => Err(Error::Unavailable("a thread that it needs has failed; the log says why".into())),
            _ => watching,
        }
    }

    fn disconnect(&self) {
        let connection = self.connection.as_ref().map(Connection::abort);
        if let Some(Err(e)) = connection {
            tracing::error!("{e}");
        }
    }

    fn wait_for_end(&self) -> Result<End> {
        let ended = &self.threads.ended;
        let mut fds =
            [PollFd::new(&self.signals, PollFlags::IN), PollFd::from_borrowed_fd(ended.wakeup.as_fd(), PollFlags::IN)];
        loop {
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                polled => polled.context("wait for the end")?,
            };
            if !fds[1].revents().is_empty() {
                return Ok(if ended.failed.load(Ordering::SeqCst) { End::Failed } else { End::Unmounted });
            }
            if !fds[0].revents().is_empty() {
                return Ok(End::Asked);
            }
        }
    }

    /// Lets the threads end, so that the pool is closed in order.
    pub(crate) fn finish(mut self) {
        self.pool.stop_watching();
        self.pool.end_mount();
        self.server.stop();
        self.threads.join();
    }
}

fn connection_of(number: &str) -> Option<Connection> {
    let found = Connection::numbered(number);
    found.inspect_err(|e| tracing::debug!("where it is mounted no more, it cannot be ended: {e}")).ok()
}
