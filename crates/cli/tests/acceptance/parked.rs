//! Calls that wait for a disk, or work long, do not delay others on the mount.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::thread::{sched_setaffinity, CpuSet};

use crate::frozen::Frozen;
use crate::lab::{self, wait_until, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("parked::a_disk_that_hangs_keeps_nobody_from_others", a_disk_that_hangs),
    ("parked::long_work_keeps_nobody_from_others", long_work),
];

/// More than the former number of entries in a queue of FUSE over io_uring, and more than the readers of /dev/fuse.
const WAIT: usize = 200;
/// The longest time of a call beside them; `LATE` of a hundred may take longer when the processors are busy.
const SOON: Duration = Duration::from_millis(10);
const LATE: usize = 2;

/// Makes all calls use one processor's queue, that of the first.
pub fn stay_on_one_processor() {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).expect("affinity");
}

fn a_disk_that_hangs() -> Outcome {
    lab::require("fsfreeze")?;
    for transport in ["uring", "dev"] {
        let lab = Lab::new();
        let disk = lab.loop_ext4()?;
        std::fs::create_dir(disk.join("pool")).expect("mkdir");
        std::os::unix::fs::symlink(disk.join("pool"), lab.path("pool")).expect("symlink");
        lab.ok(&["format", &lab.pool(), "--nvram", "16M", "--commit", "86400"]);
        lab.mount_with(&format!("transport={transport}"));
        let files: Vec<File> =
            (0..WAIT).map(|n| File::create(lab.mnt().join(format!("waits-{n}"))).expect("create")).collect();
        File::create(lab.mnt().join("other")).expect("create");
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let frozen = Frozen::new(&disk);
        std::thread::scope(|scope| {
            for file in &files {
                let (begun, ended) = (&begun, &ended);
                scope.spawn(move || {
                    stay_on_one_processor();
                    file.write_all_at(b"1", 0).expect("write");
                    begun.fetch_add(1, SeqCst);
                    file.sync_all().expect("fsync");
                    ended.fetch_add(1, SeqCst);
                });
            }
            wait_until(Duration::from_secs(60), "all wait for the disk", || begun.load(SeqCst) == WAIT);
            std::thread::sleep(Duration::from_millis(200));
            scope.spawn(|| {
                stay_on_one_processor();
                work_beside(&lab, transport);
            });
            wait_until(Duration::from_secs(60), "others go on", || !lab.mnt().join("other").exists());
            assert_eq!(ended.load(SeqCst), 0, "{transport}: the disk does not hang");
            drop(frozen);
        });
        assert_eq!(ended.load(SeqCst), WAIT);
        drop(files);
        lab.umount();
        lab.check();
        lab::forget_memory(&disk, 1);
    }
    Ok(())
}

/// Looks up names and makes files for a while, and reports how long each took; removes `other` at the end.
fn work_beside(lab: &Lab, how: &str) {
    let _end = Removed(lab.mnt().join("other"));
    let (mut times, start) = (Vec::new(), Instant::now());
    for n in 0.. {
        let at = Instant::now();
        std::fs::metadata(lab.mnt().join(format!("absent-{n}"))).expect_err("stat");
        File::create(lab.mnt().join("other-2")).expect("create");
        std::fs::remove_file(lab.mnt().join("other-2")).expect("unlink");
        times.push(at.elapsed());
        if start.elapsed() > Duration::from_secs(2) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    times.sort_unstable();
    let (all, worst) = (times.len(), times[times.len() - 1]);
    let late = times.iter().filter(|time| **time > SOON).count();
    println!("note: {how}: {all} times, median {:?}, longest {worst:?}", times[all / 2]);
    assert!(all > 20 && late * 100 <= all * LATE, "{how}: {late} of {all} took long, the longest {worst:?}");
}

/// The other threads end when this file is removed, also after a failure.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("unlink");
    }
}

/// Reserves, frees and copies much, in more threads than there are workers.
fn long_work() -> Outcome {
    const MUCH: u64 = 96 << 20;
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("1G");
        lab.mount_with(&format!("transport={transport}"));
        File::create(lab.mnt().join("other")).expect("create");
        std::thread::scope(|scope| {
            for n in 0..6 {
                let path = lab.mnt().join(format!("long-{n}"));
                let other = lab.mnt().join("other");
                scope.spawn(move || {
                    stay_on_one_processor();
                    let file = File::create(&path).expect("create");
                    while other.exists() {
                        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, MUCH).expect("fallocate");
                        file.set_len(0).expect("truncate");
                    }
                });
            }
            scope.spawn(|| work_beside(&lab, transport));
        });
        lab.umount();
        lab.check();
    }
    Ok(())
}
