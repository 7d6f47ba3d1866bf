//! A load with an independent model on pools whose disks hang, fail, tear, flip, drop writes and are rolled back
//! (`./test long`).
//!
//! In each kind of pool one disk at a time is faulty, which its redundancy covers; without redundancy the disk only
//! delays. Meanwhile files are written, cut, punched, renamed, removed, synced and read. Each operation must succeed,
//! with the right bytes, within [`LIMIT`]. From time to time the server is killed. After each fault the disk is well,
//! the commands repair the pool, and every byte is read after mounting the pool again.
//!
//! `CONQUEST_LONG` (minutes, default 60) is the time for all kinds together; `CONQUEST_SEED` repeats a run, as far as
//! timing permits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags};
use serde_json::Value;

use crate::fault_disk::FaultDisk;
use crate::lab::{self, wait_until_or_report, Lab};
use crate::settings;
use crate::{Outcome, Skip, Test};

/// These run only if they are named.
pub const TESTS: &[Test] = &[
    ("long::copies_in_single_disks", || storm(Kind::Copies)),
    ("long::a_mirror", || storm(Kind::Mirror)),
    ("long::a_raid5", || storm(Kind::Raid5)),
    ("long::one_disk_that_waits", || storm(Kind::Single)),
    ("long::a_stripe_that_waits", || storm(Kind::Stripe)),
];

const MIB: u64 = 1 << 20;
const DISK: u64 = 192 * MIB;
const FILES: u64 = 10;
const LONGEST: u64 = 3 * MIB;
/// The longest time that a call may wait for a disk that it does not need.
const LIMIT: Duration = Duration::from_secs(5);
const HEALED: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Copies,
    Mirror,
    Raid5,
    Single,
    Stripe,
}

impl Kind {
    fn disks(self) -> usize {
        match self {
            Kind::Copies | Kind::Raid5 => 3,
            Kind::Mirror | Kind::Stripe => 2,
            Kind::Single => 1,
        }
    }

    fn is_redundant(self) -> bool {
        matches!(self, Kind::Copies | Kind::Mirror | Kind::Raid5)
    }

    fn format(self, paths: &[String]) -> Vec<String> {
        let of = |kind: &str| vec!["--disk".to_string(), format!("{kind}:{}", paths.join(","))];
        match self {
            Kind::Copies | Kind::Single => paths.iter().flat_map(|path| ["--disk".into(), path.clone()]).collect(),
            Kind::Mirror => of("mirror"),
            Kind::Raid5 => of("raid5"),
            Kind::Stripe => of("stripe"),
        }
    }
}

/// The fault of a disk during a round.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// A text for [`FaultDisk::set`].
    Set(&'static str),
    Rot,
    RolledBack,
    Killed,
}

const WITH_REDUNDANCY: &[Trouble] = &[
    Trouble::Set("hang=1"),
    Trouble::Set("hang=1 only=write"),
    Trouble::Set("delay=200"),
    Trouble::Set("error=4"),
    Trouble::Set("error=1"),
    Trouble::Set("torn=4"),
    Trouble::Set("flipped=2"),
    Trouble::Set("lost=3"),
    Trouble::Set("gone"),
    Trouble::Rot,
    Trouble::RolledBack,
    Trouble::Killed,
];

const WITHOUT: &[Trouble] =
    &[Trouble::Set("hang=1"), Trouble::Set("hang=1 only=flush"), Trouble::Set("delay=200"), Trouble::Killed];

struct Storm {
    kind: Kind,
    lab: Lab,
    disks: Vec<FaultDisk>,
    model: Mutex<Model>,
    is_over: AtomicBool,
}

fn storm(kind: Kind) -> Outcome {
    let minutes = settings::number("CONQUEST_LONG", 60);
    let end = Instant::now() + Duration::from_secs(minutes * 60 / TESTS.len() as u64);
    let mut rng = rng::Rng::new(settings::seed() ^ kind as u64);
    let storm = Storm::begin(kind, rng.next())?;
    let troubles = if kind.is_redundant() { WITH_REDUNDANCY } else { WITHOUT };
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    while Instant::now() < end || rounds == 0 {
        let trouble = troubles[rng.below(troubles.len() as u64) as usize];
        let disk = rng.below(storm.disks.len() as u64) as usize;
        print!("{kind:?}, round {rounds}: {trouble:?} at disk {disk}, ");
        let took = storm.round(rng.next(), disk, trouble, Duration::from_millis(rng.within(500, 4000)));
        println!("longest call {took:?}");
        longest = longest.max(took);
        if kind.is_redundant() {
            assert!(longest < LIMIT, "a call took {longest:?}");
        }
        rounds += 1;
    }
    println!("{kind:?}: {rounds} rounds, longest call {longest:?}");
    storm.lab.umount();
    storm.lab.check();
    Ok(())
}

impl Storm {
    fn begin(kind: Kind, seed: u64) -> Result<Storm, Skip> {
        let lab = Lab::new();
        let disks = (0..kind.disks() as u64).map(|n| FaultDisk::new(DISK, seed + n)).collect::<Result<Vec<_>, _>>()?;
        let paths: Vec<String> = disks.iter().map(FaultDisk::path).collect();
        let mut words: Vec<String> =
            ["format", &lab.pool(), "--nvram", "96M", "--threshold", "64K", "--cache", "ceiling=10", "--force"]
                .map(String::from)
                .into();
        words.extend(kind.format(&paths));
        lab.ok(&words.iter().map(String::as_str).collect::<Vec<_>>());
        lab.mount();
        if kind == Kind::Copies {
            lab.ok(&["redundancy", "set", "mirror", &lab.text("mnt")]);
        }
        let model = Mutex::new(Model::new(lab.mnt(), seed));
        Ok(Storm { kind, lab, disks, model, is_over: AtomicBool::new(false) })
    }

    /// Runs one fault under load, and ends it; returns the longest call.
    fn round(&self, seed: u64, disk: usize, trouble: Trouble, time: Duration) -> Duration {
        self.is_over.store(false, Ordering::Relaxed);
        let longest = std::thread::scope(|scope| {
            let load = scope.spawn(|| self.load(seed));
            // In every case the fault ends, so that no call waits for ever.
            let well = Well(self, disk);
            self.begin_trouble(disk, trouble);
            std::thread::sleep(time);
            if matches!(trouble, Trouble::Killed) {
                self.kill();
            }
            drop(well);
            load.join().expect("the load goes on")
        });
        self.end_trouble(disk, trouble);
        longest
    }

    fn begin_trouble(&self, disk: usize, trouble: Trouble) {
        match trouble {
            Trouble::Set(faults) => self.disks[disk].set(faults),
            Trouble::Rot => _ = self.disks[disk].rot(MIB..DISK, 64 << 10),
            Trouble::RolledBack => self.disks[disk].mark(),
            Trouble::Killed => {}
        }
    }

    /// Kills the server under load, and mounts the pool again.
    fn kill(&self) {
        self.lab.kill9();
        self.lab.mount();
    }

    /// Repairs the pool with the advised commands, and checks its content.
    fn end_trouble(&self, disk: usize, trouble: Trouble) {
        self.model().settle();
        self.lab.umount();
        if let Trouble::RolledBack = trouble {
            self.disks[disk].roll_back();
        }
        self.lab.mount();
        self.heal();
        self.model().check_all();
    }

    /// Follows the advice of `region list` until nothing is left to do.
    fn heal(&self) {
        let seen = Mutex::new(String::new());
        wait_until_or_report(
            HEALED,
            || format!("all disks are well: {}", seen.lock().expect("an answer")),
            || {
                let list = self.lab.ok(&["region", "list", &self.lab.pool(), "--json"]);
                let list: Value = serde_json::from_str(&list).expect("JSON");
                let status = self.lab.status();
                let mut lacking = self.heal_regions(&list, &status);
                if self.kind == Kind::Copies {
                    lacking.extend(self.without_copies());
                }
                lacking.extend(without_backing(&status));
                *seen.lock().expect("an answer") = format!("{lacking:?}\n{}\n{status}", list["regions"]);
                lacking.is_empty()
            },
        );
        self.lab.run(&["scrub", &self.lab.pool()]);
    }

    /// Runs the repairs for failed regions and incomplete disks; returns their output.
    fn heal_regions(&self, list: &Value, status: &Value) -> Vec<String> {
        let mut done = Vec::new();
        let mut run = |args: &[&str]| {
            let ran = self.lab.run(args);
            done.push(format!("{args:?}: {}{}", ran.out, ran.err));
        };
        for out in status["work"]["out_of_use"].as_array().into_iter().flatten() {
            if out["why"] == "failed" {
                run(&["region", "readmit", &self.lab.pool(), &out["region"].to_string()]);
            }
        }
        for region in list["regions"].as_array().expect("regions") {
            for member in region["members"].as_array().into_iter().flatten() {
                if member["state"] != "whole" {
                    run(&["region", "replace", &self.lab.pool(), member["path"].as_str().unwrap_or_default()]);
                }
            }
        }
        done
    }

    /// Files that lack replicas. Recently synced content may wait in memory.
    fn without_copies(&self) -> Vec<String> {
        let replicas = self.model().paths().into_iter().map(|path| {
            let mut value = [0; 256];
            let n = rustix::fs::getxattr(&path, "user.conquest.effective.redundancy", &mut value[..]).unwrap_or(0);
            format!("{}: {}", path.display(), String::from_utf8_lossy(&value[..n]))
        });
        replicas.filter(|is| is.contains(": none") || is.contains("mirror:1")).collect()
    }

    fn load(&self, seed: u64) -> Duration {
        let (mut rng, mut longest) = (rng::Rng::new(seed), Duration::ZERO);
        while !self.is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let done = self.model().step(&mut rng);
            match done {
                Ok(()) => longest = longest.max(begun.elapsed()),
                // The server returns, and the interrupted operation is checked then.
                Err(e) if lab::is_gone(&e) => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => panic!("an operation failed: {e}\n{}", self.server_log()),
            }
        }
        longest
    }

    /// The end of the server's messages.
    fn server_log(&self) -> String {
        let text = fs::read_to_string(self.lab.path("pool/server.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Ends the load and the fault on drop.
struct Well<'s>(&'s Storm, usize);

impl Drop for Well<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        self.0.disks[self.1].well();
    }
}

/// Regions in which the backing is not whole: the next fault may hit the other one.
fn without_backing(status: &Value) -> Vec<String> {
    let regions = status["backing"]["regions"].as_array().into_iter().flatten();
    regions.filter(|region| region["state"] != "whole").map(|region| format!("the backing in {region}")).collect()
}

/// The expected content of the files, and the possible results of one call that a killed server did not answer.
struct Model {
    dir: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    unanswered: Option<Unanswered>,
    count: u64,
    seed: u64,
}

struct Unanswered {
    name: String,
    /// The content of the file if the call was done; none: the file was removed, or has the name `renamed`.
    after: Option<Vec<u8>>,
    renamed: Option<String>,
}

impl Model {
    fn new(dir: PathBuf, seed: u64) -> Model {
        Model { dir, files: BTreeMap::new(), unanswered: None, count: 0, seed }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().filter(|(_, content)| content.len() > 64 << 10).map(|(name, _)| self.path(name)).collect()
    }

    fn step(&mut self, rng: &mut rng::Rng) -> io::Result<()> {
        self.answer()?;
        let names: Vec<String> = self.files.keys().cloned().collect();
        if (names.len() as u64) < FILES {
            return self.create();
        }
        let name = names[rng.below(FILES) as usize].clone();
        match rng.below(100) {
            0..45 => self.write(&name, rng),
            45..55 => self.cut(&name, rng),
            55..65 => self.punch(&name, rng),
            65..75 => self.open(&name)?.sync_all(),
            75..95 => self.read(&name, rng),
            95..98 => self.rename(&name),
            _ => self.remove(&name),
        }
    }

    fn open(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).open(self.path(name))
    }

    /// Makes a change and records it as done; or records that it was not answered.
    fn change(
        &mut self,
        name: &str,
        after: Option<Vec<u8>>,
        renamed: Option<String>,
        act: impl FnOnce(&Model) -> io::Result<()>,
    ) -> io::Result<()> {
        let done = act(self);
        let change = Unanswered { name: name.into(), after, renamed };
        match done {
            Ok(()) => self.apply(change),
            Err(_) => self.unanswered = Some(change),
        }
        done
    }

    fn apply(&mut self, change: Unanswered) {
        let before = self.files.remove(&change.name);
        match (change.after, change.renamed) {
            (Some(after), _) => _ = self.files.insert(change.name, after),
            (None, Some(name)) => _ = self.files.insert(name, before.unwrap_or_default()),
            (None, None) => {}
        }
    }

    /// Finds the result of the unanswered call: done, not done, or some pages of a write.
    fn answer(&mut self) -> io::Result<()> {
        let Some(change) = self.unanswered.as_ref() else { return Ok(()) };
        let there = |name: &str| match fs::read(self.path(name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        };
        let (name, found) = (change.name.clone(), there(&change.name)?);
        let renamed = change.renamed.as_deref().map(there).transpose()?.flatten();
        let before = self.files.get(&name).cloned();
        let Some(change) = self.unanswered.take() else { return Ok(()) };
        match (found, renamed) {
            (found, None) if found == before => {}
            (found, None) if found == change.after => self.apply(change),
            (None, Some(content)) if Some(&content) == before.as_ref() => self.apply(change),
            (Some(found), None) => {
                let (before, after) = (before.unwrap_or_default(), change.after.unwrap_or_default());
                assert!(
                    is_between(&found, &before, &after),
                    "{name} is neither as before a call ({}) nor as after it ({})",
                    difference(&found, &before),
                    difference(&found, &after)
                );
                self.files.insert(name, found);
            }
            (found, renamed) => {
                let [found, renamed] = [found, renamed].map(|content| content.map(|content| content.len()));
                panic!(
                    "{name}, renamed {:?}, is neither as before a call nor as after it: {found:?}, {renamed:?}",
                    change.renamed
                )
            }
        }
        Ok(())
    }

    fn create(&mut self) -> io::Result<()> {
        self.count += 1;
        let name = format!("f{}", self.count);
        self.change(&name, Some(Vec::new()), None, |model| File::create(model.path(&name)).map(drop))
    }

    fn write(&mut self, name: &str, rng: &mut rng::Rng) -> io::Result<()> {
        self.count += 1;
        let (at, len) = (rng.below(LONGEST), rng.within(1, 256 << 10) as usize);
        let bytes = rng::Rng::new(self.seed ^ self.count).bytes(len);
        let mut after = self.files[name].clone();
        after.resize(after.len().max(at as usize + len), 0);
        after[at as usize..][..len].copy_from_slice(&bytes);
        self.change(name, Some(after), None, |model| model.open(name)?.write_all_at(&bytes, at))
    }

    fn cut(&mut self, name: &str, rng: &mut rng::Rng) -> io::Result<()> {
        let len = rng.below(LONGEST);
        let mut after = self.files[name].clone();
        after.resize(len as usize, 0);
        self.change(name, Some(after), None, |model| model.open(name)?.set_len(len))
    }

    fn punch(&mut self, name: &str, rng: &mut rng::Rng) -> io::Result<()> {
        let (at, len) = (rng.below(LONGEST), rng.within(1, 512 << 10));
        let mut after = self.files[name].clone();
        let end = after.len().min((at + len) as usize);
        if let Some(range) = after.get_mut(at as usize..end) {
            range.fill(0);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.change(name, Some(after), None, |model| Ok(rustix::fs::fallocate(model.open(name)?, flags, at, len)?))
    }

    fn read(&self, name: &str, rng: &mut rng::Rng) -> io::Result<()> {
        let file = self.open(name)?;
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let content = &self.files[name];
        let mut found = vec![0; rng.within(1, 256 << 10) as usize];
        let at = rng.below(LONGEST);
        let mut n = 0;
        while n < found.len() {
            match file.read_at(&mut found[n..], at + n as u64)? {
                0 => break,
                more => n += more,
            }
        }
        let wanted = content.get(at as usize..content.len().min(at as usize + found.len())).unwrap_or_default();
        assert!(found[..n] == *wanted, "{name} has other bytes at {at}: {}", difference(&found[..n], wanted));
        Ok(())
    }

    fn rename(&mut self, name: &str) -> io::Result<()> {
        self.count += 1;
        let to = format!("f{}", self.count);
        self.change(name, None, Some(to.clone()), |model| fs::rename(model.path(name), model.path(&to)))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.change(name, None, None, |model| fs::remove_file(model.path(name)))
    }

    fn settle(&mut self) {
        self.answer().expect("the pool is mounted");
    }

    /// Checks every byte of every file.
    fn check_all(&self) {
        let mut names: Vec<String> = fs::read_dir(&self.dir)
            .expect("a directory")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into())
            .collect();
        names.retain(|name| name.starts_with('f'));
        names.sort();
        let mut wanted: Vec<&String> = self.files.keys().collect();
        wanted.sort();
        assert!(names.iter().eq(wanted), "other names: {names:?}");
        for (name, content) in &self.files {
            let found = fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(found == *content, "{name} has other content: {}", difference(&found, content));
        }
    }
}

/// Is each page, and the length, as in one of the two?
fn is_between(found: &[u8], before: &[u8], after: &[u8]) -> bool {
    let page = |bytes: &[u8], n: usize| {
        let mut page = [0; 4096];
        let part = bytes.get(n * 4096..bytes.len().min((n + 1) * 4096)).unwrap_or_default();
        page[..part.len()].copy_from_slice(part);
        page
    };
    let is_one = |n| page(found, n) == page(before, n) || page(found, n) == page(after, n);
    (found.len() >= before.len().min(after.len())) && (0..found.len().div_ceil(4096)).all(is_one)
}

fn difference(found: &[u8], wanted: &[u8]) -> String {
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    let count = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
    format!("{} bytes for {}, first difference {first:?}, {count} in all", found.len(), wanted.len())
}
