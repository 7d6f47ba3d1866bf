//! Bytes written to the redo log per operation, against the bytes of the memory that the operation changed.
//!
//! The change is counted by comparing the memory with its earlier content, byte by byte. Bytes written with the same
//! value do not count, and neither do the undo logs, which mean nothing after the operation.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::{Setup, LOGGED};
use crate::prelude::*;
use crate::program::Own;
use crate::workload::tree::Tree;

/// Operations of a round, and the bytes that each writes.
const FILES: usize = 500;
const SIZE: usize = 1024;
/// Bytes of the memory, which is compared after each operation.
const REGION: u64 = 8 << 20;
const ROUNDS: usize = 3;
const CHANGED: &str = "changed";
const LOG: &str = "logged";

pub fn run(setup: &Setup<'_>) -> Outcome {
    let title = "Create + write 1 KB + fsync, in process: bytes changed, and bytes that the log took";
    let mut sections = [Section::times("durable-volume", title, "B/op")];
    setup.attempt(&mut sections, |disk, sections| {
        let files = setup.context.size(FILES, 50);
        for round in 0..setup.context.count(ROUNDS) {
            setup.context.say_round("log", round, ROUNDS, "");
            let [changed, logged] = once(&setup.logged(disk, "volume", REGION, None)?, files)?;
            sections[0].add(LOGGED, CHANGED, changed);
            sections[0].add(LOGGED, LOG, logged);
        }
        Ok(())
    });
    let what = "bytes of the log per operation, times the bytes changed";
    let row = sections[0].row(MediumKind::Logged, what, Goal::at_most(2.0, 1.3));
    Outcome { findings: vec![row.between((LOGGED, LOG), (LOGGED, CHANGED))], sections: sections.into() }
}

/// The bytes changed and logged, per file.
fn once(pool: &Own, files: usize) -> Result<[f64; 2], Error> {
    let place = InProcess::open(&pool.dir)?;
    let tree = Tree::new("d", 10, files);
    tree.make_dirs(&place)?;
    place.settle()?;
    let mut region = Watched::new(&place)?;
    let mut random = Rng::new(6);
    let before = logged(&place)?;
    let mut changed = 0;
    for file in &tree.files {
        let handle = place.create(file)?;
        place.write(&handle, 0, &random.bytes(SIZE))?;
        place.fsync(&handle)?;
        drop(handle);
        changed += region.changed()?;
    }
    let logged = logged(&place)? - before;
    Ok([changed, logged].map(|bytes| bytes as f64 / files as f64))
}

fn logged(place: &InProcess) -> Result<u64, Error> {
    let backing = place.pool.status()?.backing.ok_or_else(|| Error::Wrong("a pool on logged has no backing".into()))?;
    Ok(backing.logged)
}

/// The memory of a pool, and its earlier content.
struct Watched {
    file: File,
    was: Vec<u8>,
    is: Vec<u8>,
    /// The range of the undo logs.
    undo: Range<usize>,
}

impl Watched {
    fn new(place: &InProcess) -> Result<Watched, Error> {
        let status = place.pool.status()?;
        let undo = place.pool.session().memory().geo.undo_logs();
        let undo = undo.start as usize..undo.end as usize;
        let file = File::open(&status.nvram).map_err(Error::file(&status.nvram))?;
        let empty = vec![0; status.size as usize];
        let mut watched = Watched { file, was: empty.clone(), is: empty, undo };
        watched.changed()?;
        Ok(watched)
    }

    /// The number of bytes that have changed since the last call.
    fn changed(&mut self) -> Result<u64, Error> {
        std::mem::swap(&mut self.was, &mut self.is);
        self.file.read_exact_at(&mut self.is, 0).map_err(Error::io("the region"))?;
        let parts = [0..self.undo.start, self.undo.end..self.is.len()];
        Ok(parts.into_iter().map(|part| differing(&self.was[part.clone()], &self.is[part])).sum())
    }
}

fn differing(a: &[u8], b: &[u8]) -> u64 {
    // Page by page first, since most pages have not changed.
    let pages = a.chunks(4096).zip(b.chunks(4096)).filter(|(a, b)| a != b);
    pages.map(|(a, b)| a.iter().zip(b).filter(|(a, b)| a != b).count() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_differ_are_counted() {
        let (a, mut b) = (vec![7; 10_000], vec![7; 10_000]);
        assert_eq!(differing(&a, &b), 0);
        for at in [0, 4095, 4096, 9_999] {
            b[at] = 8;
        }
        assert_eq!(differing(&a, &b), 4);
    }
}
