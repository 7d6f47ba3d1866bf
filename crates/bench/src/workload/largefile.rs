//! Sprite LFS large files (Figure 5.2 of the Conquest paper): each file is written in order and read in order, then a new one
//! is written at random, read at random and read in order. Written files are synced within their phase, and a phase goes
//! over all files before the next begins.
//!
//! Three sizes: files that a pool keeps in RAM, files just above that, and files far above.

use conquest::MediumKind;

use crate::args::Largefile;
use crate::clock::now;
use crate::context::Context;
use crate::error::Error;
use crate::place::{name, on_place, Name, Place};
use crate::raw::per_second;
use crate::setting::{self, Setting};
use crate::side::{self, rounds, Side, Sizes, Who, BATTERY, BATTERY_MOUNTED, LOGGED, LOGGED_MOUNTED, ORDERED};
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};
use rng::Rng;

const ROUNDS: usize = 3;
const MIB: u64 = 1 << 20;
/// The phases, in their order.
const PHASES: [&str; 5] = ["write", "read", "random write", "random read", "read again"];
const WHOS: [Who; 6] = [Who::Tmpfs, ORDERED, BATTERY, LOGGED, BATTERY_MOUNTED, LOGGED_MOUNTED];
/// Bytes of a file of 1.01 MB, and of one of 100 MB.
const ABOVE: u64 = MIB + MIB / 100;
const FAR_ABOVE: u64 = 100 * MIB;

/// One of the three figures.
struct Figure {
    id: &'static str,
    size: &'static str,
    bytes: u64,
    count: usize,
}

pub fn run(context: &Context, args: &Largefile) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    let far = if context.quick { 4 * MIB } else { FAR_ABOVE };
    let (small, large) = (context.size(args.small, 4), context.size(args.files, 2));
    let figures = [
        Figure { id: "largefile-5.2a", size: "1 MB", bytes: MIB, count: small },
        Figure { id: "largefile-5.2b", size: "1.01 MB", bytes: ABOVE, count: small },
        Figure { id: "largefile-5.2c", size: "100 MB", bytes: far, count: large },
    ];
    for setting in Setting::all(context, &args.grounds) {
        match setting {
            Ok(setting) => outcome.extend(in_setting(&setting, args, &figures)),
            Err((which, reason)) => {
                let mut section = Section::rates("largefile", "Sprite LFS large files", "MiB/s");
                section.id = setting::id("largefile", which).into();
                section.skip(ORDERED.name(), reason);
                outcome.sections.push(section);
            }
        }
    }
    Ok(outcome)
}

fn in_setting(setting: &Setting<'_>, args: &Largefile, figures: &[Figure]) -> Outcome {
    let context = setting.context;
    let most = figures.iter().map(|figure| figure.bytes * figure.count as u64).max().unwrap_or(0);
    let sizes = Sizes { disk: 2 * most + 256 * MIB, ram: context.size(args.cache, 128) as u64 * MIB };
    let (mut sides, skipped) = side::make(setting, &WHOS, |who| Side::make(setting, who, sizes));
    let mut outcome = Outcome::default();
    for figure in figures {
        let Figure { id, size, bytes, count } = figure;
        let title = format!(
            "Figure 5.2, Sprite LFS large files: {count} files of {size} ({bytes} B), calls of {} B; {}",
            args.block, setting.name
        );
        let mut section = Section::rates(id, title, "MiB/s");
        section.id = setting.id(id).into();
        section.baseline = Some(ORDERED.name().into());
        section.plot = Plot::bars();
        section.skipped.clone_from(&skipped);
        let mut sections = [section];
        let load = Load::new(*bytes, *count, args.block);
        rounds(setting, id, ROUNDS, &mut sides, &mut sections, |side, round, sections| {
            let speeds = on_place!(&side.place, place => load.round(place, round as u64))?;
            for (phase, speed) in PHASES.iter().zip(speeds) {
                sections[0].add(side.name(), phase, speed / MIB as f64);
            }
            Ok(())
        });
        let mut findings = findings(size, &sections[0]);
        setting.tell(&mut findings);
        outcome.extend(Outcome { findings, sections: sections.into() });
    }
    outcome
}

/// What the paper found: files in RAM as fast as in a file system in RAM, and faster than on a cached ext2, whose place ext4
/// takes here; files on disk as fast as on that.
fn findings(size: &str, section: &Section) -> Vec<Finding> {
    // Of the phases, how many times as fast as another the paper's was.
    let (in_ram, against_tmpfs) = ([20.0, 1.15, 68.0, 1.18, 1.15], [1.08, 1.15, 1.08, 1.17, 1.15]);
    let on_disk = [1.08, 1.0, 1.04, 1.0, 1.0];
    let row = |own: Who, base: Who, phase: &'static str, aim: f64| {
        let measured = [own, base].map(|who| section.text(who.name(), phase)).join(" / ") + " MiB/s";
        let what = format!("{}: Figure 5.2, {size}, {phase}, against {}", own.how(), base.name());
        let value = section.factor(phase, own.name(), base.name());
        Finding::judge(own.medium(), what, Goal::factor(1.0, aim), measured, value)
    };
    let bases: &[(Who, [f64; 5])] =
        if size == "1 MB" { &[(Who::Tmpfs, against_tmpfs), (ORDERED, in_ram)] } else { &[(ORDERED, on_disk)] };
    let each = |medium| {
        let own = Who::InProcess(medium);
        bases
            .iter()
            .flat_map(move |(base, aims)| PHASES.iter().zip(aims).map(move |(phase, aim)| (own, *base, *phase, *aim)))
    };
    let rows = [MediumKind::Battery, MediumKind::Logged].into_iter().flat_map(each);
    rows.map(|(own, base, phase, aim)| row(own, base, phase, aim)).collect()
}

/// What is done with the files of one size.
struct Load {
    files: Vec<Name>,
    bytes: u64,
    data: Vec<u8>,
}

impl Load {
    fn new(bytes: u64, count: usize, block: usize) -> Load {
        let files = (0..count).map(|file| name(format!("f{file:03}"))).collect();
        Load { files, bytes, data: Rng::new(52).bytes(block) }
    }

    /// Bytes per second of each phase.
    fn round(&self, place: &(impl Place + Sync), round: u64) -> Result<[f64; 5], Error> {
        let mut order: Vec<u64> = (0..self.bytes.div_ceil(self.data.len() as u64)).collect();
        let in_order = order.clone();
        Rng::new(round).shuffle(&mut order);
        let write = self.phase(|file| self.write(place, file, &in_order))?;
        let read = self.phase(|file| self.read(place, file, &in_order))?;
        // New ones.
        self.files.iter().try_for_each(|file| place.unlink(file))?;
        place.settle()?;
        let random_write = self.phase(|file| self.write(place, file, &order))?;
        let random_read = self.phase(|file| self.read(place, file, &order))?;
        let again = self.phase(|file| self.read(place, file, &in_order))?;
        self.files.iter().try_for_each(|file| place.unlink(file))?;
        place.settle()?;
        Ok([write, read, random_write, random_read, again])
    }

    fn phase(&self, work: impl Fn(&Name) -> Result<(), Error>) -> Result<f64, Error> {
        let start = now();
        self.files.iter().try_for_each(|file| work(file).map_err(|e| e.at(format!("{file:?}"))))?;
        Ok(per_second(self.bytes * self.files.len() as u64, start))
    }

    /// Where block `n` begins, and how long it is: the last one may be shorter.
    fn block(&self, n: u64) -> (u64, usize) {
        let at = n * self.data.len() as u64;
        (at, (self.bytes - at).min(self.data.len() as u64) as usize)
    }

    fn write(&self, place: &impl Place, file: &Name, order: &[u64]) -> Result<(), Error> {
        let handle = place.create(file)?;
        for &n in order {
            let (at, len) = self.block(n);
            place.write(&handle, at, &self.data[..len])?;
        }
        place.fsync(&handle)
    }

    fn read(&self, place: &impl Place, file: &Name, order: &[u64]) -> Result<(), Error> {
        let handle = place.open_read(file)?;
        let mut buf = vec![0; self.data.len()];
        for &n in order {
            let (at, len) = self.block(n);
            let found = place.read(&handle, at, &mut buf)?;
            if found != len {
                return Err(Error::Wrong(format!("{found} bytes of {len} at {at}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;

    #[test]
    fn a_round_has_five_phases_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let load = Load::new(ABOVE, 2, 8192);
        assert!(load.round(&place, 0).expect("a round").iter().all(|&speed| speed > 0.0));
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
        assert_eq!(load.block(129).1 as u64, ABOVE - 129 * 8192);
    }
}
