//! Two counting files, for [`super::power`]: the guest's half of the test, and its traces on the disk.
//!
//! The counter goes up in one file, fsync, then in the other, fsync, and so on. Each count that an fsync has
//! acknowledged is noted on the disk itself, behind its file system. So the log of the disk's writes shows which writes
//! came before the acknowledgement and which after. Meanwhile other threads make, rename and remove enough files that
//! the pool's redo logs alternate and are applied to its checkpoint.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rng::Rng;

use super::guest::{conquest, tell, DISK, MNT};
use crate::lab::wait_until;

/// The two files, in the pool's root.
pub const FILES: [&str; 2] = ["A", "B"];
/// The pool directory, in the root of the disk's file system.
pub const POOL: &str = "pool";

/// The smallest logs are 8 MiB; a small pool has no larger ones.
const SIZE: &str = "64M";
/// Seconds between commits that no call waits for.
const INTERVAL: &str = "2";
/// The number of checkpoints before the test may cut.
const CHECKPOINTS: u64 = 4;
const NOISE: u64 = 2;
/// The number of names of each noise thread, and its most bytes in a write.
const NAMES: u64 = 300;
const LARGEST: u64 = 16 << 10;

/// The acknowledged counts of the two files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counts(pub [u64; 2]);

const MAGIC: &[u8; 8] = b"counters";
/// The sector size of the disk.
const SECTOR: usize = 512;

/// Memory from which a disk reads without a copy through the kernel's cache.
#[repr(align(4096))]
struct Aligned([u8; SECTOR]);

impl Counts {
    fn note(self, disk: &File, at: u64) {
        let mut sector = Aligned([0; SECTOR]);
        sector.0[..8].copy_from_slice(MAGIC);
        for (bytes, count) in sector.0[8..24].chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&count.to_le_bytes());
        }
        disk.write_all_at(&sector.0, at).expect("write to the disk");
    }

    /// Reads the note in data written to the disk.
    pub fn of(note: &[u8]) -> Option<Counts> {
        let count = |at: usize| Some(u64::from_le_bytes(note.get(at..at + 8)?.try_into().ok()?));
        note.starts_with(MAGIC).then_some(Counts([count(8)?, count(16)?]))
    }
}

/// The whole load, until the machine is killed, in a new pool or in the pool that a cut has left; notes go to `at` on
/// the disk.
pub fn run(seed: u64, at: u64) {
    let pool = Path::new(DISK).join(POOL);
    let dir = pool.to_str().expect("a path");
    if !pool.exists() {
        conquest(&["format", dir, "--nvram", SIZE, "--commit", INTERVAL]);
    }
    conquest(&["mount", dir, MNT]);
    let start = checkpoints(&pool);
    let mut workers = vec![std::thread::spawn(move || count(at))];
    workers.extend((0..NOISE).map(|n| std::thread::spawn(move || noise(n, seed))));
    let none_ended = || assert!(!workers.iter().any(|w| w.is_finished()), "a part of the load has ended");
    wait_until(Duration::from_secs(110), "the logs have taken turns", || {
        none_ended();
        checkpoints(&pool) >= start + CHECKPOINTS
    });
    tell("at work");
    wait_until(Duration::from_secs(600), "the machine is killed", || {
        none_ended();
        false
    });
}

fn count(at: u64) {
    let disk = OpenOptions::new().write(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open("/dev/vda");
    let disk = disk.expect("the disk");
    let files = FILES.map(|name| {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(Path::new(MNT).join(name));
        file.expect("a file")
    });
    let mut last = [0; 8];
    // A new file is empty.
    let _ = files[0].read_exact_at(&mut last, 0);
    let start = u64::from_le_bytes(last);
    let mut counts = Counts([start, start]);
    for n in start.. {
        for (which, file) in files.iter().enumerate() {
            file.write_all_at(&u64::to_le_bytes(n), 0).and_then(|()| file.sync_all()).expect("write and fsync");
            counts.0[which] = n;
            if n > start || which == 1 {
                counts.note(&disk, at);
            }
        }
    }
}

/// The number of checkpoints of the pool: the generation of the newer header of `image`.
fn checkpoints(pool: &Path) -> u64 {
    let image = File::open(pool.join("image")).expect("the image");
    let generation = |header: u64| {
        let mut bytes = [0; 8];
        image.read_exact_at(&mut bytes, header + 48).expect("a header");
        u64::from_le_bytes(bytes)
    };
    generation(0).max(generation(4096))
}

fn noise(number: u64, seed: u64) {
    let dir = Path::new(MNT).join(format!("noise{number}"));
    fs::create_dir_all(&dir).expect("mkdir");
    let mut rng = Rng::new(seed + number);
    let name = |rng: &mut Rng| -> PathBuf { dir.join(rng.below(NAMES).to_string()) };
    loop {
        let path = name(&mut rng);
        match rng.below(8) {
            0 => _ = fs::remove_file(path),
            1 | 2 => _ = fs::rename(path, name(&mut rng)),
            _ => {
                let len = rng.below(LARGEST) as usize;
                fs::write(&path, rng.bytes(len)).expect("write");
                if rng.below(64) == 0 {
                    File::open(&path).and_then(|f| f.sync_all()).expect("fsync");
                }
            }
        }
    }
}
