//! Sprite LFS large files (Figure 5.2 of the Conquest paper): each file is written in order and read in order, then a
//! new one is written at random, read at random and read in order. Written files are synced within their phase, and a
//! phase covers all files before the next begins.
//!
//! Three sizes: files that a pool keeps in RAM, files just above that size, and files far above.

use crate::prelude::*;

const ROUNDS: usize = 5;
/// The phases, in their order.
const PHASES: [&str; 5] = ["write", "read", "random write", "random read", "read again"];
const WHOS: [Who; 9] = [TMPFS, EXT2, ORDERED, XFS, BTRFS, BATTERY, LOGGED, BATTERY_MOUNTED, LOGGED_MOUNTED];
/// Bytes of a file of 1.01 MB, and of one of 100 MB.
const ABOVE: u64 = MIB + MIB / 100;
const FAR_ABOVE: u64 = 100 * MIB;

options! { Options {
    grounds;
    files: count "N" = 8, "Files of 100 MB; the paper has 40";
    small: count "N" = 10, "Files of 1 MB and of 1.01 MB, as many as the paper has";
    block: count "BYTES" = 8192, "Bytes per read or write call";
    cache: count "MIB" = 1024, "MiB of persistent RAM of pools that have a disk";
} }

impl InSettings for Options {
    const ID: &str = "largefile";

    fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    fn measure(&self, setting: &Setting<'_>) -> Outcome {
        let context = setting.context;
        let far = if context.quick { 4 * MIB } else { FAR_ABOVE };
        let (small, large) = (context.size(self.small, 4), context.size(self.files, 2));
        let figures = [
            ("largefile-5.2a", "1 MB", MIB, small),
            ("largefile-5.2b", "1.01 MB", ABOVE, small),
            ("largefile-5.2c", "100 MB", far, large),
        ];
        let mut sections = figures.map(|(id, size, bytes, count)| {
            let title = format!(
                "Figure 5.2, Sprite LFS large files: {count} files of {size} ({bytes} B), calls of {} B",
                self.block
            );
            setting.rates(id, title, "MiB/s").against(ORDERED.name).drawn(Plot::bars())
        });
        let most = figures.iter().map(|(.., bytes, count)| bytes * *count as u64).max().unwrap_or(0);
        let sizes = Sizes { disk: 2 * most + 384 * MIB, ram: context.mib(self.cache, 128) };
        let mut peers = setting.peers(&WHOS, sizes, &mut sections);
        let mut findings = Vec::new();
        for ((id, size, bytes, count), section) in figures.into_iter().zip(&mut sections) {
            let load = Load::new(bytes, count, self.block);
            context.rounds(id, ROUNDS, &mut peers, std::slice::from_mut(section), |peer, round, sections| {
                let speeds = on_place!(&peer.place, place => load.round(place, round as u64))?;
                let phases = PHASES.iter().zip(speeds);
                phases.for_each(|(phase, speed)| sections[0].add(peer.who.name, phase, speed / MIB as f64));
                Ok(())
            });
            findings.extend(rows(size, section));
        }
        Outcome { findings, sections: sections.into() }
    }
}

/// The results of the paper: files in RAM as fast as in a file system in RAM, and faster than on a cached ext2, which
/// ext4 replaces here; files on disk as fast as on that.
fn rows(size: &str, section: &Section) -> Vec<Finding> {
    // The paper's factors for the phases.
    let bases: &[(Who, [f64; 5])] = match size {
        "1 MB" => &[(TMPFS, [1.08, 1.15, 1.08, 1.17, 1.15]), (ORDERED, [20.0, 1.15, 68.0, 1.18, 1.15])],
        _ => &[(ORDERED, [1.08, 1.0, 1.04, 1.0, 1.0])],
    };
    let mut rows = Vec::new();
    for own in [BATTERY, LOGGED] {
        for (base, aims) in bases {
            rows.extend(PHASES.iter().zip(aims).map(|(phase, aim)| {
                let what = format!("{}: Figure 5.2, {size}, {phase}, against {}", own.how(), base.name);
                section.row(own.medium(), what, Goal::factor(1.0, *aim)).factor(phase, own.name, base.name)
            }));
        }
    }
    rows
}

/// The files of one size, and the work on them.
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
        // New files.
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

    /// The offset and length of block `n`: the last one may be shorter.
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
