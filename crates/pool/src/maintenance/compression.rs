//! Compression of what nobody uses, by age and by how full memory is, within a share of one processor: of small files, and of inodes and
//! names, which are packed.
//!
//! One process of a pool does it, whichever comes first; every one makes plain again what it has read often itself. A round goes over
//! the inode table, and packs what it has passed; between rounds it rests, unless memory is short. The thread works for some milliseconds and then sleeps until its
//! share is kept, and is a nice one: where processors are taken, others come first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pram::CHUNK;

use crate::CompressionConfig;
use conquest_fs::attr::Time;
use conquest_fs::compress::pace::Pace;
use conquest_fs::compress::Compressor;
use conquest_fs::error::{Error, Result};
use conquest_fs::layout::PER_BLOCK;
use conquest_fs::node::{now, Fs, Packed};

/// How often it looks.
const TICK: Duration = Duration::from_secs(1);
/// Between two rounds it rests for the time after which a file counts as warm, divided by this, within these bounds.
const ROUNDS: u32 = 8;
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How nice the thread is.
const NICE: i32 = 10;
/// Inodes are packed some blocks at a time: for each time operations under way are waited for.
const BLOCKS: u64 = 1024;
/// A walk to see whether a dictionary is due comes so seldom.
const TRAINING: Duration = Duration::from_secs(600);

/// The thread; dropping it ends it, after the file that it is at.
pub struct Compression {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    is: AtomicBool,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Stop {
    fn is(&self) -> bool {
        self.is.load(Ordering::Relaxed)
    }

    /// Sleeps; true if it is time to stop.
    fn sleep(&self, time: Duration) -> bool {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.bell.wait_timeout_while(lock, time, |()| !self.is());
        drop(slept.unwrap_or_else(PoisonError::into_inner));
        self.is()
    }
}

impl Compression {
    pub fn start(fs: &Arc<Fs>, config: CompressionConfig) -> Result<Compression> {
        let (stop, fs) = (Arc::new(Stop::default()), fs.clone());
        if config.share() == 0 {
            fs.forbid_relief();
        }
        let told = stop.clone();
        let thread = std::thread::Builder::new().name("compression".into()).spawn(move || {
            // Not being allowed to is no reason not to work.
            let _ = rustix::process::nice(NICE);
            let mut work = Work { fs, config, stop: told, next: None, trained: None, profiled: None };
            while !work.stop.sleep(TICK) {
                work.tick();
            }
        });
        let thread = thread.map_err(|e| Error::Pool(format!("starting the thread that compresses: {e}")))?;
        Ok(Compression { stop, thread: Some(thread) })
    }
}

impl Drop for Compression {
    fn drop(&mut self) {
        self.stop.is.store(true, Ordering::Relaxed);
        drop(self.stop.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.stop.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    fs: Arc<Fs>,
    config: CompressionConfig,
    stop: Arc<Stop>,
    /// When the next round begins.
    next: Option<Instant>,
    /// When it was last seen whether a dictionary is due. Before there is anything to compress with it, it is not.
    trained: Option<Instant>,
    /// The same of a profile for inodes with times in seconds.
    profiled: Option<Instant>,
}

impl Work {
    fn tick(&mut self) {
        if let Err(e) = self.fs.expand_hot() {
            tell("making often read content plain", &e);
        }
        if self.config.share() == 0 || !self.fs.session().try_maintenance() {
            return;
        }
        let is_tight = self.is_tight();
        if !is_tight && self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let again = self.round(is_tight).unwrap_or_else(|e| {
            tell("compressing what nobody uses", &e);
            false
        });
        let rest = (self.config.plan().warm / ROUNDS).clamp(REST.0, REST.1);
        self.next = (!again).then(|| Instant::now() + rest);
    }

    /// Is so much of the memory in use that young files are compressed too?
    fn is_tight(&self) -> bool {
        let session = self.fs.session();
        let rt = session.runtime();
        let all = session.memory().geo.heap_chunks(session.memory().size()) * CHUNK;
        let free = (rt.free_chunks() + self.fs.obtainable()) * CHUNK;
        (all - free.min(all)) as u128 * 100 >= all as u128 * u128::from(self.config.pressure())
    }

    /// Goes over all inodes once; true if another round is due at once.
    fn round(&mut self, is_tight: bool) -> Result<bool> {
        let plan = self.config.plan();
        let (plan, age) = match is_tight {
            true => (plan.under_pressure(), self.config.packed().min(plan.under_pressure().warm)),
            false => (plan, self.config.packed()),
        };
        let quiet = Time(now().0.saturating_sub(age.as_nanos() as i64));
        if let Err(e) = self.fs.train_first_profile(quiet) {
            tell("a profile of the pool's inodes", &e);
        }
        if self.profiled.is_none_or(|at| at.elapsed() >= TRAINING) {
            self.profiled = Some(Instant::now());
            if let Err(e) = self.fs.train_profile_of_seconds(quiet) {
                tell("a profile of inodes with times in seconds", &e);
            }
        }
        let mut pace = Pace::new(self.config.share());
        let mut compressor = Compressor::new(&self.fs, plan)?;
        compressor.puts_off = self.trained.is_none_or(|at| at.elapsed() >= TRAINING);
        let (mut from, mut blocks, mut packed) = (0, 0, Packed::default());
        while let Some(ino) = self.fs.next_used(from)? {
            let passed = ino / PER_BLOCK;
            if passed >= blocks + BLOCKS {
                packed += self.fs.pack_metadata(blocks..passed, quiet, &|| !self.stop.is())?.1;
                blocks = passed;
            }
            match compressor.see(ino) {
                // There is not even room for what is smaller: names and inodes behind it can make some.
                Err(e) if e.is_full() => {}
                seen => _ = seen?,
            }
            from = ino + 1;
            if !self.go_on(&mut pace) {
                break;
            }
        }
        if !self.stop.is() {
            packed += self.fs.pack_metadata(blocks..from.div_ceil(PER_BLOCK), quiet, &|| !self.stop.is())?.1;
        }
        let (done, put_off) = (compressor.done, compressor.put_off);
        if done.compressed > 0 || packed.blocks > 0 {
            let (files, saved) = (done.compressed, done.saved());
            tracing::debug!("{files} files compressed, {saved} bytes of memory saved; {} inodes packed", packed.inodes);
        }
        if put_off > 0 && !self.stop.is() {
            self.fs.train_if_due(&mut || self.go_on(&mut pace))?;
            self.trained = Some(Instant::now());
        }
        Ok(put_off > 0)
    }

    /// Sleeps as long as the share asks for; false if it is time to stop.
    fn go_on(&self, pace: &mut Pace) -> bool {
        match pace.rest() {
            Some(rest) => !self.stop.sleep(rest),
            None => !self.stop.is(),
        }
    }
}

/// A full or read-only pool is nothing to tell each second.
fn tell(what: &str, e: &Error) {
    use rustix::io::Errno;
    match e.errno() {
        Errno::NOSPC | Errno::ROFS => tracing::debug!("{what}: {e}"),
        _ => tracing::error!("{what}: {e}"),
    }
}
