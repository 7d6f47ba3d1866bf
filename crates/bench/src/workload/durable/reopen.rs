//! Opens a pool on `logged` whose memory is lost, as after a power cut, and one whose processes were all killed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conquest::{OpenOptions, Pool};
use report::stats::median;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};

use super::{Setup, LOGGED};
use crate::disk::{self, Disk};
use crate::hosts;
use crate::prelude::*;
use crate::program::{self, Mount};
use crate::workload::tree::Tree;

const ROUNDS: usize = 3;
const KILLS: usize = 5;
const CUT: &str = "after a power cut";
const READ: &str = "reading as much once";
const KILLED: &str = "after kill -9";
/// Bytes of a file of the pool.
const SIZE: usize = 16 << 10;
/// The number of threads that work when the server is killed, and their time before that.
const WORKERS: usize = 2;
const UNDER_LOAD: Duration = Duration::from_millis(300);
/// The longest time until a killed process is gone.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

pub fn run(setup: &Setup<'_>) -> Outcome {
    let bytes = setup.context.mib(setup.args.content, 32).min(800 << 20);
    let (of, on) = (setup.bytes() >> 20, setup.name());
    let title = format!("Opening a pool on logged of {of} MiB with {} MiB of files, on {on}", bytes >> 20);
    let note = "open ends when the root directory has been looked at; nothing is in the page cache";
    let mut sections = [Section::times("durable-open", title, "s").noting(note)];
    setup.attempt(&mut sections, |disk, sections| measure(setup, disk, &mut sections[0], bytes));
    Outcome { findings: findings(&sections[0]), sections: sections.into() }
}

fn findings(section: &Section) -> Vec<Finding> {
    let value = |measure| section.median(LOGGED, measure);
    // The goal is not better than any program can reach, nor worse than required.
    let once = value(READ).unwrap_or(2.0).min(2.0);
    let measured = format!("{} s; reading as much once {} s", section.text(LOGGED, CUT), section.text(LOGGED, READ));
    let (what, goal) = ("opening after a power cut", Goal::quantity(2.0, once, "s"));
    let cut = Finding::judge(MediumKind::Logged, what, goal, measured, value(CUT));
    let millis = value(KILLED).map(|s| s * 1e3);
    let measured = millis.as_ref().map_or("-".into(), |ms| format!("{ms:.1} ms"));
    let (what, goal) = ("opening after kill -9 of everything", Goal::quantity(50.0, 10.0, "ms"));
    vec![cut, Finding::judge(MediumKind::Logged, what, goal, measured, millis)]
}

fn measure(setup: &Setup<'_>, disk: &Disk, section: &mut Section, bytes: u64) -> Result<(), Error> {
    let pool = setup.logged(disk, "open", setup.bytes(), None)?;
    setup.context.progress.say(format!("filling a pool with {} MiB", bytes >> 20));
    let files = Files::fill(&pool.dir, bytes)?;
    let mut read = Vec::new();
    for round in 0..setup.context.count(ROUNDS) {
        setup.context.say_round("opening after a power cut", round, ROUNDS, "");
        program::forget(&pool.dir);
        disk::drop_cached(&pool.dir)?;
        let before = disk.counted();
        section.add(LOGGED, CUT, opened(&pool.dir, &files)?);
        let much = before.zip(disk.counted()).map(|(before, after)| after.read - before.read);
        read.extend(much.map(|bytes| bytes as f64));
        disk::drop_cached(&pool.dir)?;
        let (start, mut left) = (now(), much.unwrap_or(u64::MAX));
        for name in ["image", "redo-0", "redo-1"] {
            left = left.saturating_sub(disk::read_in_order(&pool.dir.join(name), left)?);
        }
        section.add(LOGGED, READ, seconds_since(start));
    }
    if !read.is_empty() {
        section.notes.push(format!("after a power cut {:.0} MiB are read from the device", median(&read) / 1048576.0));
    }
    for round in 0..setup.context.count(KILLS) {
        setup.context.say_round("opening after kill -9", round, KILLS, "");
        match setup.mount(&pool, "open") {
            Ok(mount) => kill_under_load(mount, round)?,
            Err(e) => {
                section.skip(LOGGED, format!("{KILLED}: {e}"));
                break;
            }
        }
        section.add(LOGGED, KILLED, opened(&pool.dir, &files)?);
    }
    Ok(())
}

/// The seconds of opening. All files must exist: an empty pool would be the fastest.
fn opened(dir: &Path, files: &Files) -> Result<f64, Error> {
    let start = now();
    let pool = Pool::open(dir, &OpenOptions::default())?;
    pool.getattr(conquest_fs::ROOT)?;
    let seconds = seconds_since(start);
    files.check(&InProcess { pool })?;
    Ok(seconds)
}

/// The content of the pool.
struct Files {
    tree: Tree,
    /// The last file's content.
    last: Vec<u8>,
}

impl Files {
    fn fill(dir: &Path, bytes: u64) -> Result<Files, Error> {
        let place = InProcess::open(dir)?;
        let count = bytes as usize / SIZE;
        let tree = Tree::new("d", count.div_ceil(1_000), count);
        tree.make_dirs(&place)?;
        let (mut random, mut last) = (Rng::new(7), Vec::new());
        for file in &tree.files {
            last = random.bytes(SIZE);
            place.write(&place.create(file)?, 0, &last)?;
        }
        place.settle()?;
        Ok(Files { tree, last })
    }

    fn check(&self, place: &InProcess) -> Result<(), Error> {
        let Some(last) = self.tree.files.last() else { return Ok(()) };
        let mut found = vec![0; SIZE + 1];
        let n = place.read(&place.open_read(last)?, 0, &mut found)?;
        if found[..n] != self.last {
            return Err(Error::Wrong(format!("{last:?} is not what it was before")));
        }
        self.tree.files.iter().step_by(100).try_for_each(|file| match place.stat(file)? {
            size if size == SIZE as u64 => Ok(()),
            size => Err(Error::Wrong(format!("{file:?} has {size} bytes instead of {SIZE}"))),
        })
    }
}

/// Kills the server of a mount while threads work through it; returns when the server and the mount are gone.
fn kill_under_load(mount: Mount, round: usize) -> Result<(), Error> {
    let pid = Pid::from_raw(mount.pid()? as i32).ok_or_else(|| Error::Wrong("the server has no pid".into()))?;
    let server = pidfd_open(pid, PidfdFlags::empty())?;
    let (place, killed) = (Mounted::new(&mount.dir)?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let work = |worker| work(&place, &format!("load{worker}"), &killed);
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        std::thread::sleep(UNDER_LOAD);
        killed.store(true, Ordering::SeqCst);
        pidfd_send_signal(&server, Signal::KILL)?;
        let gone = poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&PATIENCE))?;
        workers.into_iter().try_for_each(joined)?;
        match gone {
            0 => Err(Error::Wrong(format!("round {round}: the server outlives SIGKILL"))),
            _ => Ok(()),
        }
    })?;
    drop(place);
    hosts::unmount(&mount.dir);
    drop(mount);
    Ok(())
}

/// Makes and rewrites files until the server is gone. Each eighth is synced, so that a commit is under way too.
fn work(place: &Mounted, prefix: &str, killed: &AtomicBool) -> Result<(), Error> {
    let data = [9; 1024];
    let file = |n: usize| -> Name { name(format!("{prefix}-{}", n % 1_000)) };
    for n in 0.. {
        let done = place.create(&file(n)).and_then(|handle| {
            place.write(&handle, 0, &data)?;
            if n % 8 == 0 {
                place.fsync(&handle)?;
            }
            Ok(())
        });
        match done {
            Ok(()) => {}
            Err(_) if killed.load(Ordering::SeqCst) => break,
            Err(e) => return Err(e.at(prefix)),
        }
    }
    Ok(())
}
