//! Slow disks: loop devices over files in RAM, each limited to a speed by the kernel's block throttle.
//!
//! The throttle is that of cgroup v1's `blkio`, in the root group: its rules hold for all requests of its processes, be
//! it a pool, btrfs or a plain write. The file beneath is far faster than the rule, and loop devices bypass the page
//! cache, so that a disk delivers the speed of its rule; [`Rig::verify`] measures whether it does.
//!
//! ```text
//! user --requests of any size--> loop device --split--> loop device with the rule --> file in RAM
//! ```
//!
//! There are two loop devices because the throttle counts a request before it is split, and its parts again: requests
//! of a MiB would get half the speed. Below the first device no request is too large; and it has a queue, as disks
//! have.
//!
//! A rule outlives its maker, and so does a loop device. So dropping each undoes it, and [`clean`] finds the remnants
//! of a killed run by the names of the files, which begin with the name of the run's directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::{Aligned, Buffers, Device, Disk, Making, Request, Ticket};

use crate::command;
use crate::disk;
use crate::error::{joined, Error};
use crate::hosts::{self, Loop};
use crate::mounts::{self, Mounted};

/// Files of the group with a rule for each device.
const READ: &str = "blkio.throttle.read_bps_device";
const WRITE: &str = "blkio.throttle.write_bps_device";
/// The bytes left of a broken disk.
const REMAINDER: u64 = 4096;
/// The greatest relative difference between a disk's speed and its rule.
const TOLERANCE: f64 = 0.1;
/// The length of a trial, after the throttle's warm-up.
const TRIAL: Duration = Duration::from_millis(1000);
const WARM_UP: Duration = Duration::from_millis(400);
/// Trials until a disk that is too slow counts as such.
const TRIALS: u32 = 10;

/// The root group of the block throttle.
struct Group {
    dir: PathBuf,
    /// It was mounted for this run.
    is_own: bool,
}

impl Group {
    /// Finds its mount; else mounts it below `base`.
    fn find(base: &Path) -> Result<Group, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Usage("needs root, for loop devices and the block throttle".into()));
        }
        if let Some(dir) = blkio(mounts::all()) {
            return Group { dir, is_own: false }.checked();
        }
        let dir = base.join("blkio");
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let missing = |e: Error| Error::Usage(format!("the block throttle of cgroup v1 (blkio) cannot be had: {e}"));
        hosts::mount(&["-t", "cgroup", "-o", "blkio", "none"], &dir).map_err(missing)?;
        Group { dir, is_own: true }.checked()
    }

    fn checked(self) -> Result<Group, Error> {
        let writable = [READ, WRITE].map(|name| File::options().write(true).open(self.dir.join(name)));
        match writable.into_iter().find_map(Result::err) {
            Some(e) => Err(Error::Usage(format!("the block throttle at {} cannot be used: {e}", self.dir.display()))),
            None => Ok(self),
        }
    }

    /// Limits reads and writes of a device to `rate` bytes in a second each; 0 removes the limit.
    fn set(&self, device: &str, rate: u64) -> Result<(), Error> {
        [READ, WRITE].into_iter().try_for_each(|name| {
            let path = self.dir.join(name);
            std::fs::write(&path, format!("{device} {rate}\n")).map_err(Error::file(path))
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_own {
            hosts::unmount(&self.dir);
        }
    }
}

/// The first mount of cgroup v1's `blkio`.
fn blkio(mounts: Vec<Mounted>) -> Option<PathBuf> {
    let is_it = |mounted: &Mounted| mounted.fs_type == "cgroup" && mounted.options.split(',').any(|o| o == "blkio");
    mounts.into_iter().find(is_it).map(|mounted| mounted.point)
}

/// A slow disk. Dropping it removes its rule, the loop devices and the file: the rule first, so that pending requests
/// end soon.
pub struct SlowDisk {
    group: Arc<Group>,
    /// The device over the other.
    device: Loop,
    /// The device with the rule.
    lower: Loop,
    image: PathBuf,
    /// Major and minor number, for rules.
    number: String,
    parts: Vec<PathBuf>,
}

impl SlowDisk {
    fn make(group: &Arc<Group>, image: PathBuf, bytes: u64) -> Result<SlowDisk, Error> {
        let file = File::create(&image).map_err(Error::file(&image))?;
        let lower = file.set_len(bytes).map_err(Error::file(&image)).and_then(|()| Loop::over(&image));
        let both = lower.and_then(|lower| Ok((Loop::over(&lower.path)?, lower)));
        let (device, lower) = both.inspect_err(|_| _ = std::fs::remove_file(&image))?;
        let mut disk =
            SlowDisk { group: group.clone(), device, lower, image, number: String::new(), parts: Vec::new() };
        disk.number = sys(&disk.lower, "dev")?.trim().to_owned();
        Ok(disk)
    }

    /// Its block device.
    pub fn path(&self) -> &Path {
        &self.device.path
    }

    /// Limits it to `rate` bytes in a second, from now on.
    pub fn set_rate(&self, rate: u64) -> Result<(), Error> {
        self.group.set(&self.number, rate)
    }

    /// From now on each read or write fails, except within its first `REMAINDER` bytes.
    pub fn break_it(&self) -> Result<(), Error> {
        let file = File::options().write(true).open(&self.image).map_err(Error::file(&self.image))?;
        file.set_len(REMAINDER).map_err(Error::file(&self.image))?;
        [&self.lower, &self.device]
            .into_iter()
            .try_for_each(|device| command::run(Command::new("losetup").arg("--set-capacity").arg(&device.path)))?;
        let device = File::open(self.path()).map_err(Error::file(self.path()))?;
        match std::os::unix::fs::FileExt::read_at(&device, &mut [0; 512], REMAINDER * 4) {
            Ok(1..) => Err(Error::Wrong(format!("{} can still be read", self.path().display()))),
            _ => Ok(()),
        }
    }

    /// Its halves, as devices of their own.
    pub fn halves(&mut self) -> Result<[PathBuf; 2], Error> {
        let sectors: u64 =
            sys(&self.device, "size")?.trim().parse().map_err(|_| Error::Wrong("a size that is no number".into()))?;
        let begin = 2048;
        let each = (sectors - begin) / 2 / begin * begin;
        for (n, at) in [(1, begin), (2, begin + each)] {
            // A killed run may have left this partition on the device.
            let _ = self.remove_part(n);
            let numbers = [n.to_string(), at.to_string(), each.to_string()];
            command::run(Command::new("addpart").arg(self.path()).args(numbers))?;
        }
        let halves = [1, 2].map(|n| PathBuf::from(format!("{}p{n}", self.path().display())));
        self.parts = halves.to_vec();
        let made = Instant::now();
        while !self.parts.iter().all(|part| part.exists()) {
            if made.elapsed() > Duration::from_secs(5) {
                return Err(Error::Usage(format!("{} did not get partitions", self.path().display())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(halves)
    }

    fn remove_part(&self, n: usize) -> Result<(), Error> {
        command::run(Command::new("delpart").arg(self.path()).arg(n.to_string()))
    }

    /// The bytes written to it.
    fn written(&self) -> Result<u64, Error> {
        let missing = || Error::Wrong(format!("{}: no statistics", self.path().display()));
        Ok(disk::parse(&sys(&self.lower, "stat")?).ok_or_else(missing)?.written)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // Reports no failure: the first process cleans up again.
        let _ = self.group.set(&self.number, 0);
        for n in 1..=self.parts.len() {
            // The last user's close may still be under way.
            let closed = Instant::now();
            while self.remove_part(n).is_err() && closed.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let _ = std::fs::remove_file(&self.image);
    }
}

/// An attribute of a loop device in sysfs.
fn sys(device: &Loop, name: &str) -> Result<String, Error> {
    let path = Path::new("/sys/block").join(device.path.file_name().unwrap_or_default()).join(name);
    std::fs::read_to_string(&path).map_err(Error::file(path))
}

/// Several slow disks.
pub struct Rig {
    pub disks: Vec<SlowDisk>,
}

impl Rig {
    /// Disks of `bytes` each, limited to the `rates`, with their files in `base`.
    pub fn make(base: &Path, bytes: u64, rates: &[u64]) -> Result<Rig, Error> {
        let group = Arc::new(Group::find(base)?);
        let tag = base.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let image = |n: usize| base.join(format!("{tag}.disk{n}"));
        let make = |(n, _)| SlowDisk::make(&group, image(n), bytes);
        let rig = Rig { disks: rates.iter().enumerate().map(make).collect::<Result<_, Error>>()? };
        rig.set_rates(rates)?;
        Ok(rig)
    }

    pub fn set_rates(&self, rates: &[u64]) -> Result<(), Error> {
        self.disks.iter().zip(rates).try_for_each(|(disk, rate)| disk.set_rate(*rate))
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.disks.iter().map(|disk| disk.path().to_owned()).collect()
    }

    pub fn written_each(&self) -> Result<Vec<u64>, Error> {
        self.disks.iter().map(SlowDisk::written).collect()
    }

    /// Bytes written to all of them.
    pub fn written(&self) -> Result<u64, Error> {
        Ok(self.written_each()?.iter().sum())
    }

    /// Measures the speed of all disks together, in bytes per second, writing directly to them; fails if one of them
    /// does not keep to its rule. Their content is lost.
    pub fn verify(&self, rates: &[u64]) -> Result<f64, Error> {
        let mut trials = TRIALS;
        loop {
            let speeds = self.measure()?;
            let of = |(speed, rate): &(&f64, &u64)| **speed / **rate as f64;
            let wrong = speeds.iter().zip(rates).filter(|disk| (of(disk) - 1.0).abs() > TOLERANCE);
            let Some((speed, rate)) = wrong.max_by(|a, b| of(a).total_cmp(&of(b))) else {
                return Ok(speeds.iter().sum());
            };
            trials -= 1;
            // Other programs slow a disk down for a while, but make none faster.
            if trials == 0 || *speed > *rate as f64 {
                let (speed, rate) = (speed / 1e6, *rate as f64 / 1e6);
                return Err(Error::Usage(format!(
                    "a disk that is held to {rate:.0} MB/s delivers {speed:.1}: the throttle does not hold here and now"
                )));
            }
        }
    }

    /// The speed of each disk in one trial, in bytes per second.
    fn measure(&self) -> Result<Vec<f64>, Error> {
        let paths = self.paths();
        let (begun, ended, seconds) = std::thread::scope(|scope| {
            let threads: Vec<_> = paths.iter().map(|path| scope.spawn(|| keep_busy(path))).collect();
            std::thread::sleep(WARM_UP);
            let (begun, start) = (self.written_each()?, Instant::now());
            std::thread::sleep(TRIAL);
            let (ended, seconds) = (self.written_each()?, start.elapsed().as_secs_f64());
            threads.into_iter().try_for_each(joined)?;
            Ok::<_, Error>((begun, ended, seconds))
        })?;
        Ok(begun.iter().zip(&ended).map(|(begun, ended)| (ended - begun) as f64 / seconds).collect())
    }
}

/// Writes to a disk as fast as possible, for the time that [`Rig::verify`] measures.
fn keep_busy(path: &Path) -> Result<(), Error> {
    let disk = Disk::make(path, &Making { force: true, ..Making::default() }).map_err(exraid_error)?;
    let (piece, size, start) = (1 << 20, disk.properties().size, Instant::now());
    // To its end and from its beginning again, until the measurement ends.
    while start.elapsed() < WARM_UP + TRIAL {
        stream(&disk, piece, 4, |at| start.elapsed() < WARM_UP + TRIAL && at + piece <= size)?;
    }
    Ok(())
}

/// Writes to a device in order, in requests of `piece` bytes with `depth` under way, as long as `go_on` accepts the
/// next offset, and flushes it; returns the bytes.
pub fn stream(device: &dyn Device, piece: u64, depth: usize, go_on: impl Fn(u64) -> bool) -> Result<u64, Error> {
    let memory = Aligned::zeroed(piece as usize);
    let mut under_way: std::collections::VecDeque<Ticket> = Default::default();
    let mut at = 0;
    while go_on(at) {
        if under_way.len() == depth {
            under_way.pop_front().map_or(Ok(()), |ticket| ticket.wait().result).map_err(exraid_error)?;
        }
        under_way.push_back(device.start(Request::write(at, Buffers::whole(&memory))));
        at += piece;
    }
    under_way.into_iter().try_for_each(|ticket| ticket.wait().result).map_err(exraid_error)?;
    device.flush().map_err(exraid_error)?;
    Ok(at)
}

pub fn exraid_error(e: impl std::fmt::Display) -> Error {
    Error::Wrong(e.to_string())
}

/// Removes the remnants of a killed run with this directory: rules, loop devices, files.
pub fn clean(base: &Path) {
    let Some(tag) = base.file_name().and_then(|name| name.to_str()).filter(|tag| !tag.is_empty()) else { return };
    let group = blkio(mounts::all());
    let mut ours = loops(|beneath| {
        beneath.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{tag}.disk")))
    });
    for lower in &ours {
        if let (Some(dir), Ok(number)) = (&group, sys(lower, "dev")) {
            let _ = Group { dir: dir.clone(), is_own: false }.set(number.trim(), 0);
        }
    }
    // The upper devices first.
    let mut all = loops(|beneath| ours.iter().any(|lower| lower.path == beneath));
    all.append(&mut ours);
}

/// The loop devices whose file `is_it` accepts; dropping them detaches them.
fn loops(is_it: impl Fn(&Path) -> bool) -> Vec<Loop> {
    let blocks = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let is_loop = |entry: &std::fs::DirEntry| {
        let beneath = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        is_it(Path::new(beneath.trim()))
    };
    blocks.filter(is_loop).map(|entry| Loop { path: Path::new("/dev").join(entry.file_name()) }).collect()
}

#[cfg(test)]
mod tests {
    use conquest_fs::poll::poll_until;

    use super::*;

    /// The kernel detaches a loop device only when its last user closes it.
    const DETACHED: Duration = Duration::from_secs(5);

    #[test]
    fn the_group_is_found_by_its_controller() {
        let table = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     31 25 0:27 / /sys/fs/cgroup/blkio rw,relatime shared:9 - cgroup none rw,blkio\n\
                     32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(blkio(mounts::parse(table)), Some("/sys/fs/cgroup/blkio".into()));
        assert_eq!(blkio(mounts::parse(table.split('\n').next().expect("a line"))), None);
    }

    /// The number of rules for loop devices, and of their files.
    fn left(tag: &str) -> usize {
        let blocks = std::fs::read_dir("/sys/block").expect("sysfs").flatten();
        let files = blocks.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        files.filter(|file| file.contains(tag)).count()
    }

    #[test]
    fn a_disk_keeps_to_its_rule_and_nothing_is_left_of_it() {
        let dir = tempfile::Builder::new().prefix("conquest-rig-").tempdir_in("/dev/shm").expect("a directory");
        let tag = dir.path().file_name().expect("a name").to_string_lossy().into_owned();
        let rig = match Rig::make(dir.path(), 64 << 20, &[20_000_000]) {
            Ok(rig) => rig,
            Err(e) => return eprintln!("skipped: {e}"),
        };
        assert_eq!(left(&tag), 1);
        assert!(rig.verify(&[20_000_000]).expect("it holds") > 0.0);
        assert!(rig.verify(&[5_000_000]).expect_err("four times as fast").to_string().contains("does not hold"));
        assert!(rig.written().expect("counted") > 10_000_000);
        let number = rig.disks[0].number.clone();
        drop(rig);
        assert!(poll_until(DETACHED, || left(&tag) == 0), "no loop device");
        let dir_of = blkio(mounts::all());
        let rules = dir_of.map(|dir| std::fs::read_to_string(dir.join(WRITE)).expect("rules")).unwrap_or_default();
        assert!(!rules.lines().any(|rule| rule.starts_with(&format!("{number} "))), "no rule: {rules}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0, "no file");
    }

    #[test]
    fn what_a_killed_run_left_is_found_by_its_name() {
        let dir = tempfile::Builder::new().prefix("conquest-rig-").tempdir_in("/dev/shm").expect("a directory");
        let tag = dir.path().file_name().expect("a name").to_string_lossy().into_owned();
        match Rig::make(dir.path(), 16 << 20, &[20_000_000, 10_000_000]) {
            Ok(rig) => std::mem::forget(rig),
            Err(e) => return eprintln!("skipped: {e}"),
        }
        assert_eq!(left(&tag), 2);
        clean(dir.path());
        assert!(poll_until(DETACHED, || left(&tag) == 0));
    }
}
