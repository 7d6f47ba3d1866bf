//! `conquest bench mine`: single operations in a directory of the user, beside another file system, on one screen.
//!
//! It mounts nothing and needs no root. Each operation has the same time, in rounds that alternate between the two
//! directories. The work is done by a second process, which removes its files also when the first one is ended.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use report::cells::align;
use report::stats::{interval, median};

use crate::mounts;
use crate::prelude::*;
use crate::supervise::status_holding_stdin;

/// The second process has this in its environment.
const APART: &str = "CONQUEST_BENCH_MINE";
const ROUNDS: usize = 5;
/// Bytes of a small file, of the large one, and of a call at random.
const SMALL: usize = 1024;
const LARGE: u64 = 64 * MIB;
const BLOCK: u64 = 4096;
/// The most small files at a time.
const MOST: usize = 20_000;

#[derive(Clone, Debug, clap::Args)]
pub struct Mine {
    /// A directory of the mount to measure; files are made in it, and removed
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// A directory to compare with [default: the one that DIR's file system is mounted in]
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// How long it may take, about
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

pub fn run(mine: &Mine) -> Result<(), Error> {
    if std::env::var_os(APART).is_none() {
        let program = std::env::current_exe().map_err(Error::io("the path of this program"))?;
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).env(APART, "1").stdin(Stdio::piped()).process_group(0);
        return match status_holding_stdin(&mut command)? {
            0 => Ok(()),
            status => Err(Error::Ended(status)),
        };
    }
    let beside = match &mine.beside {
        Some(beside) => beside.clone(),
        None => around(&mine.dir)?,
    };
    let (own, other) = (Side::at(&mine.dir)?, Side::at(&beside)?);
    let made = [own.files.path().to_owned(), other.files.path().to_owned()];
    std::thread::spawn(move || {
        // The first process writes nothing: this returns when it has ended.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        made.iter().for_each(|dir| _ = std::fs::remove_dir_all(dir));
        std::process::exit(130);
    });
    println!("{}", compared(&own, &other, Duration::from_secs(mine.seconds))?);
    Ok(())
}

/// The directory in which the file system of `dir` is mounted.
fn around(dir: &Path) -> Result<PathBuf, Error> {
    let dir = dir.canonicalize().map_err(Error::file(dir))?;
    let (name, mounts) = (dir.display(), mounts::all());
    let point = mounts::above(&mounts, &dir).map(|mounted| mounted.point.clone());
    point.and_then(|point| point.parent().map(Path::to_owned)).ok_or_else(|| {
        Error::Usage(format!("{name} is on the root file system: name a directory of another one with --beside"))
    })
}

/// One of the two file systems.
struct Side {
    name: String,
    files: tempfile::TempDir,
    place: Mounted,
}

impl Side {
    fn at(dir: &Path) -> Result<Side, Error> {
        let dir = dir.canonicalize().map_err(Error::file(dir))?;
        let mounts = mounts::all();
        let kind = mounts::above(&mounts, &dir).map_or("unknown", |mounted| &mounted.fs_type);
        let name = format!("{} ({kind})", dir.display());
        let stat = rustix::fs::statvfs(&dir)?;
        if stat.f_bavail * stat.f_frsize < 2 * LARGE {
            return Err(Error::Usage(format!("{name} has less than {} MiB free", 2 * LARGE / MIB)));
        }
        let files = tempfile::Builder::new().prefix(".conquest-bench-").tempdir_in(&dir).map_err(|e| {
            let advice = "files are made there: name another directory, or one to compare with by --beside";
            Error::io(format!("{name}: {advice}"))(e)
        })?;
        let place = Mounted::new(files.path())?;
        Ok(Side { name, files, place })
    }
}

const SECTION: &str = "mine";

/// Measures both, and shows them.
fn compared(own: &Side, other: &Side, time: Duration) -> Result<String, Error> {
    let mut sections = [Section::times(SECTION, "", "us"), Section::rates(SECTION, "", "MiB/s")];
    let sides = [("own", own), ("other", other)];
    let each = time / (ROUNDS * sides.len() * OPERATIONS) as u32;
    for round in 0..ROUNDS {
        for (subject, side) in sides {
            let work = Round { place: &side.place, each, seed: round as u64 };
            let [times, rates] = work.run().map_err(|e| e.at(&side.name))?;
            times.into_iter().for_each(|(what, figure)| sections[0].add(subject, what, figure));
            rates.into_iter().for_each(|(what, figure)| sections[1].add(subject, what, figure));
        }
    }
    let mut rows = vec![["", "here", "there", "times as fast", "90 % interval"].map(String::from).to_vec()];
    for section in &sections {
        for measure in section.measures() {
            let figure = |subject| match section.median(subject, measure) {
                Ok(figure) => format!("{figure:.1} {}", section.unit),
                Err(_) => "-".into(),
            };
            let factors = section.factors(measure, "own", "other").unwrap_or_default();
            let [low, high] = interval(&factors);
            let hidden = if low < 1.0 && 1.0 < high { "  either may be faster" } else { "" };
            let factor = format!("{:.2} x", median(&factors));
            let spread = format!("{low:.2} to {high:.2}{hidden}");
            rows.push(vec![measure.to_owned(), figure("own"), figure("other"), factor, spread]);
        }
    }
    let heads = format!("here:  {}\nthere: {}\n\n", own.name, other.name);
    let notes = format!(
        "  Files of {SMALL} B; one of {} MiB, in calls of 1 MiB in order and of {BLOCK} B at random, synced at the end.\n  \
         What is not \"first\" was read just before, so that caches have it. Medians of {ROUNDS} rounds.",
        LARGE / MIB
    );
    Ok(heads + &align(&rows) + "\n" + &notes)
}

/// The number of timed operations of a round.
const OPERATIONS: usize = 11;

/// A round in one directory.
struct Round<'a, P> {
    place: &'a P,
    /// The time of each operation.
    each: Duration,
    seed: u64,
}

type Figures = Vec<(&'static str, f64)>;

impl<P: Place> Round<'_, P> {
    /// Microseconds of small and random operations, and MiB in a second in order.
    fn run(&self) -> Result<[Figures; 2], Error> {
        let mut times = self.small()?;
        let path = name("large".into());
        let rates = self.in_order(&path)?;
        times.extend(self.at_random(&path)?);
        self.place.unlink(&path)?;
        self.place.settle()?;
        Ok([times, rates])
    }

    /// Does `work` with 0, 1, 2 and so on up to `most` until the time is over; returns how often, and seconds.
    fn until(&self, most: usize, mut work: impl FnMut(usize) -> Result<(), Error>) -> Result<(usize, f64), Error> {
        let (start, begun) = (now(), Instant::now());
        let mut count = 0;
        while count < most && (count == 0 || begun.elapsed() < self.each) {
            work(count)?;
            count += 1;
        }
        Ok((count, seconds_since(start)))
    }

    fn small(&self) -> Result<Figures, Error> {
        let content = Rng::new(self.seed).bytes(SMALL);
        let files: Vec<Name> = (0..MOST).map(|n| name(format!("f{n}"))).collect();
        let synced: Vec<Name> = (0..MOST).map(|n| name(format!("s{n}"))).collect();
        let place = self.place;
        let create = |file: &Name, is_synced: bool| {
            let handle = place.create(file)?;
            place.write(&handle, 0, &content)?;
            if is_synced {
                place.fsync(&handle)
            } else {
                Ok(())
            }
        };
        let mut buf = vec![0; SMALL];
        let made = self.until(MOST, |n| create(&files[n], false))?;
        let all = &files[..made.0];
        let stat = self.until(usize::MAX, |n| place.stat(&all[n % all.len()]).map(drop))?;
        let read = self.until(usize::MAX, |n| {
            let handle = place.open_read(&all[n % all.len()])?;
            place.read(&handle, 0, &mut buf).map(drop)
        })?;
        let sync = self.until(MOST, |n| create(&synced[n], true))?;
        let gone = self.until(all.len(), |n| place.unlink(&all[n]))?;
        all[gone.0..].iter().chain(&synced[..sync.0]).try_for_each(|file| place.unlink(file))?;
        let of = |what, (count, seconds): (usize, f64)| (what, seconds * 1e6 / count as f64);
        Ok(vec![
            of("create + write + close", made),
            of("create + write + fsync + close", sync),
            of("stat", stat),
            of("open + read + close", read),
            of("unlink", gone),
        ])
    }

    fn in_order(&self, path: &Name) -> Result<Figures, Error> {
        let data = Rng::new(self.seed).bytes(MIB as usize);
        let (place, pieces) = (self.place, LARGE / MIB);
        let at = |n: usize| (n as u64 % pieces) * MIB;
        let file = place.create(path)?;
        // The whole file, also if that takes longer.
        let start = now();
        let written = (0..pieces as usize).try_for_each(|n| place.write(&file, at(n), &data));
        written.and_then(|()| place.fsync(&file))?;
        let write = (pieces as usize, seconds_since(start));
        drop(file);
        let file = place.open_read(path)?;
        place.forget(&file)?;
        let mut buf = vec![0; MIB as usize];
        let mut read = |n: usize| place.read(&file, at(n), &mut buf).map(drop);
        let first = self.until(pieces as usize, &mut read)?;
        (first.0..pieces as usize).try_for_each(&mut read)?;
        let again = self.until(usize::MAX, &mut read)?;
        let of = |what, (count, seconds): (usize, f64)| (what, count as f64 / seconds);
        Ok(vec![of("write in order", write), of("read in order, first", first), of("read in order", again)])
    }

    fn at_random(&self, path: &Name) -> Result<Figures, Error> {
        let (place, data) = (self.place, Rng::new(self.seed).bytes(BLOCK as usize));
        let (file, mut random) = (place.open_update(path)?, Rng::new(self.seed));
        let mut at = move || random.below(LARGE / BLOCK) * BLOCK;
        let mut buf = data.clone();
        let read = self.until(usize::MAX, |_| place.read(&file, at(), &mut buf).map(drop))?;
        let start = now();
        let (count, _) = self.until(usize::MAX, |_| place.write(&file, at(), &data))?;
        place.fsync(&file)?;
        let write = (count, seconds_since(start));
        let sync = self.until(usize::MAX, |_| place.write(&file, at(), &data).and_then(|()| place.fsync(&file)))?;
        let of = |what, (count, seconds): (usize, f64)| (what, seconds * 1e6 / count as f64);
        Ok(vec![of("read at random", read), of("write at random", write), of("write at random + fsync", sync)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_compared_on_one_screen_and_nothing_is_left() {
        let (one, two) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let (own, other) = (Side::at(one.path()).expect("space"), Side::at(two.path()).expect("space"));
        let text = compared(&own, &other, Duration::ZERO).expect("measured");
        for what in ["create + write + close", "read in order, first", "write at random + fsync"] {
            assert!(text.contains(what), "{text}");
        }
        assert!(text.lines().count() < 24 && text.contains(&one.path().display().to_string()), "{text}");
        assert_eq!(std::fs::read_dir(own.files.path()).expect("list").count(), 0);
        drop(own);
        assert_eq!(std::fs::read_dir(one.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_file_system_without_another_around_it_needs_one_named() {
        let refused = around(Path::new("/")).expect_err("the root");
        assert!(refused.to_string().contains("--beside"), "{refused}");
        assert!(around(Path::new("/no such directory")).is_err());
    }
}
