//! Power cuts of a machine with ordinary RAM: every state in which its disk may be left must be a pool that holds
//! everything that fsync promised.
//!
//! QEMU logs the guest's writes to its disk while two files in a pool on `logged` count ([`super::counters`]). The
//! machine is killed. Then the disk is made again from the log ([`super::writes`]), in the state of a cut at a flush or
//! after it. After a flush only some of the blocks written since are there. ext4 repairs itself, the memory of the pool
//! is lost, and the pool is opened, checked and read. Other tests of the backing invent their bytes; here the guest's
//! kernel has chosen what to write when.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use conquest::{Caller, Pool};
use conquest_fs::path::{Open, View};
use rng::Rng;

use super::counters::{Counts, FILES, POOL};
use super::machine::{copy_sparse, Parts};
use super::writes::Writes;
use crate::lab::{self, program, Ran};
use crate::settings::{number, seed};
use crate::{Outcome, Skip};

const DISK_MIB: u64 = 256;
/// The most milliseconds of load before a cut, after the redo logs have alternated.
const LONGEST_LOAD: u64 = 8000;

/// Boots, cuts, and examines many states of the disk; goes on from one of them. Then examines some impossible states,
/// to see that they are detected.
pub fn cuts(boots: u64) -> Outcome {
    let parts = Parts::new()?.with_logged_disk(DISK_MIB);
    let bench = Bench::new(&parts)?;
    let mut rng = Rng::new(seed());
    for boot in 1..=boots {
        let notes_at = parts.logged_disk().notes_at().to_string();
        let mut machine = parts.boot(&["counters", &rng.next().to_string(), &notes_at]);
        machine.hear("at work");
        std::thread::sleep(Duration::from_millis(rng.below(LONGEST_LOAD)));
        machine.kill();
        let cut = Cut::read(&parts);
        bench.states(&cut, &mut rng, number("CONQUEST_STATES", 60));
        if boot < boots {
            bench.any_state(&cut, &mut rng);
            parts.logged_disk().replace(&bench.state());
        } else {
            bench.canary(&cut, &mut rng);
        }
    }
    Ok(())
}

/// The writes of a machine to its disk until it was killed.
struct Cut {
    writes: Writes,
    /// The entries that are notes of acknowledged counts, in order.
    notes: Vec<(usize, Counts)>,
    /// Flushes after which there is a pool with counts.
    flushes: Vec<usize>,
}

impl Cut {
    fn read(parts: &Parts) -> Cut {
        let disk = parts.logged_disk();
        let writes = Writes::open(&disk.log);
        let is_note = |n: &usize| writes.entries[*n].at == disk.notes_at();
        let note = |n| Some((n, Counts::of(&writes.data(n, 64))?));
        let notes: Vec<_> = (0..writes.entries.len()).filter(is_note).filter_map(note).collect();
        assert!(notes.is_sorted_by_key(|(_, counts)| *counts), "the counters do not count");
        let first = notes.first().expect("the log has no notes").0;
        let flushes: Vec<usize> = writes.flushes().into_iter().filter(|n| *n > first).collect();
        assert!(flushes.len() > 2, "the log has no flushes");
        Cut { writes, notes, flushes }
    }

    /// The counts acknowledged when the first `entries` entries had been written.
    fn acknowledged(&self, entries: usize) -> Counts {
        self.notes[self.notes.partition_point(|(n, _)| *n < entries) - 1].1
    }

    /// The flushes, by number, that make a header of the checkpoint or of a redo log durable, and so switch to it.
    fn turns(&self) -> Vec<usize> {
        let is_header = |n| matches!(self.writes.data(n, 8).as_slice(), b"CQ-RLOG\n" | b"CQ-PAGES");
        (1..self.flushes.len()).filter(|f| (self.flushes[f - 1]..self.flushes[*f]).any(is_header)).collect()
    }

    /// Chooses `count` flushes: a third around such switches, the others anywhere, and the last one.
    fn choose(&self, rng: &mut Rng, count: usize) -> Vec<usize> {
        let mut turns: Vec<usize> = self.turns().into_iter().flat_map(|f| [f - 1, f]).collect();
        turns.dedup();
        rng.shuffle(&mut turns);
        turns.truncate(count / 3);
        let mut rest: Vec<usize> = (0..self.flushes.len() - 1).filter(|f| !turns.contains(f)).collect();
        rng.shuffle(&mut rest);
        rest.truncate(count.saturating_sub(turns.len() + 1));
        let mut chosen = [turns, rest, vec![self.flushes.len() - 1]].concat();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }
}

/// The content of a state of the disk.
struct Found {
    counts: Counts,
    /// The number of checkpoints.
    checkpoints: u64,
    /// The highest number of a commit in the logs.
    commits: u64,
}

/// The directory where the disk is made again and examined.
struct Bench {
    dir: tempfile::TempDir,
    base: PathBuf,
}

impl Bench {
    fn new(parts: &Parts) -> Result<Bench, Skip> {
        let bench = Bench { dir: lab::directory(), base: parts.logged_disk().base.clone() };
        fs::create_dir(bench.mnt()).expect("mkdir");
        copy_sparse(&bench.base, &bench.state());
        bench.mount().map_err(|why| Skip(format!("needs loop devices: {why}")))?;
        bench.umount();
        Ok(bench)
    }

    fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// The disk as a cut left it.
    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Examines `count` states, half of them at a flush, half after one.
    fn states(&self, cut: &Cut, rng: &mut Rng, count: u64) {
        let durable = self.dir.path().join("durable");
        copy_sparse(&self.base, &durable);
        let (mut done, mut before) = (0, Counts::default());
        let mut seen = Vec::new();
        for flush in cut.choose(rng, count.div_ceil(2) as usize) {
            let end = cut.flushes[flush] + 1;
            cut.writes.apply(&open(&durable), done..end);
            done = end;
            copy_sparse(&durable, &self.state());
            let found = self.look(cut, end).unwrap_or_else(|e| panic!("the disk as flush {flush} left it: {e}"));
            assert!(found.counts >= before, "{:?} at flush {flush}, {before:?} before", found.counts);
            before = found.counts;
            seen.push(found);
            let next = cut.flushes.get(flush + 1).copied().unwrap_or(cut.writes.entries.len());
            if next > end {
                let (upto, dropped) = (rng.within(end as u64 + 1, next as u64) as usize, rng.within(1, 4));
                copy_sparse(&durable, &self.state());
                cut.writes.apply_some(&open(&self.state()), end..upto, rng, dropped);
                let what = format!("flush {flush} and a part of the {} writes after it", upto - end);
                seen.push(self.look(cut, upto).unwrap_or_else(|e| panic!("the disk with {what}: {e}")));
            }
        }
        let checkpoints: BTreeSet<u64> = seen.iter().map(|found| found.checkpoints).collect();
        println!(
            "{} states of a disk with {} writes, {} flushes ({} of a header) and {} commits; the counters came to {:?}; \
             {} versions of the image; nothing lost",
            seen.len(),
            cut.writes.entries.len() - cut.flushes.len(),
            cut.flushes.len(),
            cut.turns().len(),
            seen.iter().map(|found| found.commits).max().unwrap_or(0),
            before.0,
            checkpoints.len()
        );
        assert!(checkpoints.len() > 1 || count < 20, "no state shows an image that was brought up to date");
    }

    /// Makes a state that a cut after the last flush may have left.
    fn any_state(&self, cut: &Cut, rng: &mut Rng) {
        let end = cut.flushes.last().expect("a flush") + 1;
        copy_sparse(&self.base, &self.state());
        cut.writes.apply(&open(&self.state()), 0..end);
        cut.writes.apply_some(&open(&self.state()), end..cut.writes.entries.len(), rng, 2);
    }

    /// Examines states that lack writes of a flush, acknowledged since: most must be detected.
    fn canary(&self, cut: &Cut, rng: &mut Rng) {
        let (mut found, tries) = (Vec::new(), 8);
        for _ in 0..tries {
            let (note, _) = cut.notes[rng.within(cut.notes.len() as u64 / 2, cut.notes.len() as u64 - 1) as usize];
            let flush = cut.flushes.partition_point(|f| *f < note) - 1;
            copy_sparse(&self.base, &self.state());
            let start = cut.flushes[flush.saturating_sub(1)] + 1;
            cut.writes.apply(&open(&self.state()), 0..start);
            cut.writes.apply_some(&open(&self.state()), start..note + 1, rng, 4);
            found.extend(self.look(cut, note + 1).err());
        }
        println!("{} of {tries} disks that ignore a flush were found; one of them: {:?}", found.len(), found.first());
        assert!(!found.is_empty(), "the test does not see what a disk loses that ignores its flushes");
    }

    /// Opens the pool in `state`, the disk cut off after `entries` entries, and compares it with the acknowledged
    /// counts.
    fn look(&self, cut: &Cut, entries: usize) -> Result<Found, String> {
        self.mount()?;
        let found = self.open_pool();
        self.forget();
        self.umount();
        let found = found?;
        let Counts([a, b]) = found.counts;
        let Counts(counts) = cut.acknowledged(entries);
        let within = |n, counts: u64| RangeInclusive::new(counts, counts + 1).contains(&n);
        match within(a, counts[0]) && within(b, counts[1]) && within(a, b) {
            true => Ok(found),
            false => Err(format!("the files hold {a} and {b}; {counts:?} was acknowledged")),
        }
    }

    fn pool(&self) -> PathBuf {
        self.mnt().join(POOL)
    }

    fn open_pool(&self) -> Result<Found, String> {
        let read = |name: &str| fs::read(self.pool().join(name)).map_err(|e| format!("{name}: {e}"));
        let (image, logs) = (read("image")?, [read("redo-0")?, read("redo-1")?]);
        let records = logs.iter().flat_map(|log| log.chunks(512)).filter(|sector| sector.starts_with(b"CQRL"));
        let commits = records.filter_map(|record| word(record, 16)).max().unwrap_or(0);
        let checked = program(env!("CARGO_BIN_EXE_conquest"), &["fsck", "--json"]).arg(self.pool()).output();
        let checked = Ran::from(checked.expect("conquest"));
        if checked.code != 0 {
            return Err(format!("fsck: {}{}", checked.out, checked.err));
        }
        let pool = Pool::open(self.pool(), &Default::default()).map_err(|e| e.to_string())?;
        let view = View::new(&pool, Caller::root());
        let count = |name: &str| {
            let mut bytes = [0; 8];
            let file = view.open(name.as_bytes(), Open::new().read(true))?;
            file.read_at(&mut bytes, 0).map(|_| u64::from_le_bytes(bytes))
        };
        let count = |name| count(name).map_err(|e| format!("{name}: {e}"));
        let counts = Counts([count(FILES[0])?, count(FILES[1])?]);
        Ok(Found { counts, checkpoints: word(&image, 48).max(word(&image, 4096 + 48)).unwrap_or(0), commits })
    }

    fn mount(&self) -> Result<(), String> {
        let mounted = program("mount", &["-t", "ext4", "-o", "loop"]).arg(self.state()).arg(self.mnt()).output();
        let ran = Ran::from(mounted.map_err(|e| e.to_string())?);
        if ran.code == 0 {
            Ok(())
        } else {
            Err(ran.err)
        }
    }

    /// Its loop device is detached with it.
    fn umount(&self) {
        lab::ok(program("umount", &[]).arg(self.mnt()));
    }

    /// Removes the shared memory of the pool: the next state belongs to another machine.
    fn forget(&self) {
        for path in Pool::memory(self.pool()).unwrap_or_default() {
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.forget();
        let _ = program("umount", &["-l"]).arg(self.mnt()).stderr(Stdio::null()).status();
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn open(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
