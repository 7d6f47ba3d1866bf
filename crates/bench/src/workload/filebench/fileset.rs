//! The files of a workload: names and sizes are drawn before the clock runs, and one thread at a time uses a file, as
//! in Filebench.

use std::sync::{Mutex, PoisonError};

use crate::prelude::*;

/// Bytes of a call.
pub const PIECE: usize = 1 << 20;

/// Names and sizes.
pub struct Fileset {
    /// Directories before their entries.
    dirs: Vec<Name>,
    pub files: Vec<Name>,
    /// The size with which each is written.
    pub sizes: Vec<usize>,
    /// The number of files that exist at the beginning; the files are drawn.
    present: usize,
}

impl Fileset {
    /// `count` files with `mean` bytes on average in directories of `width`, of which `percent` exist at the beginning.
    pub fn new(count: usize, mean: usize, width: usize, percent: usize) -> Fileset {
        let mut random = Rng::new(10);
        let mut dirs = vec![name("set".into())];
        let leaves = count.div_ceil(width);
        let top = |leaf: usize| format!("set/t{:05}", leaf / width);
        // A single directory needs no level in between.
        let leaf_of = |leaf: usize| if leaves == 1 { "set".into() } else { format!("{}/d{leaf:05}", top(leaf)) };
        if leaves > 1 {
            for leaf in 0..leaves {
                if leaf % width == 0 {
                    dirs.push(name(top(leaf)));
                }
                dirs.push(name(leaf_of(leaf)));
            }
        }
        Fileset {
            dirs,
            files: (0..count).map(|file| name(format!("{}/f{file:07}", leaf_of(file / width)))).collect(),
            sizes: (0..count).map(|_| size(&mut random, mean)).collect(),
            present: count * percent / 100,
        }
    }

    /// Makes the directories and files.
    pub fn make(&self, place: &impl Place, data: &[u8]) -> Result<(), Error> {
        self.dirs.iter().try_for_each(|dir| place.mkdir(dir))?;
        let there = self.files.iter().zip(&self.sizes).take(self.present);
        there.into_iter().try_for_each(|(file, &size)| write(place, &place.create(file)?, size, data))
    }

    /// The files that exist, and those that do not.
    pub fn find(&self, place: &impl Place) -> Picks {
        let (present, absent) = (0..self.files.len()).partition(|&file| place.stat(&self.files[file]).is_ok());
        Picks(Mutex::new([present, absent]))
    }

    /// Removes all existing files.
    pub fn remove(&self, place: &impl Place) -> Result<(), Error> {
        let there = self.files.iter().filter(|file| place.stat(file).is_ok());
        there.into_iter().try_for_each(|file| place.unlink(file))?;
        self.dirs.iter().rev().try_for_each(|dir| place.rmdir(dir))
    }
}

/// A size from the gamma distribution with the shape 1.5, as in Filebench.
fn size(random: &mut Rng, mean: usize) -> usize {
    // Within (0, 1].
    let mut unit = || (random.next() >> 11).wrapping_add(1) as f64 / (1u64 << 53) as f64;
    let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    // The sum of a distribution of the shape 1 and of one of the shape 1/2.
    let gamma = -unit().ln() + normal * normal / 2.0;
    ((gamma / 1.5 * mean as f64) as usize).max(1)
}

/// Writes `size` bytes from the beginning of a file on.
pub fn write<P: Place>(place: &P, file: &P::Handle<'_>, size: usize, data: &[u8]) -> Result<(), Error> {
    let mut at = 0;
    while at < size {
        let piece = (size - at).min(data.len()).min(PIECE);
        place.write(file, at as u64, &data[..piece])?;
        at += piece;
    }
    Ok(())
}

/// The state of a file to pick.
#[derive(Clone, Copy)]
pub enum State {
    Present = 0,
    Absent = 1,
}

/// The files that no thread uses, by whether they exist.
pub struct Picks(Mutex<[Vec<usize>; 2]>);

impl Picks {
    /// Takes any file of that state. Fails if the threads together use all of them.
    pub fn take(&self, state: State, random: &mut Rng) -> Result<usize, Error> {
        let free = &mut self.0.lock().unwrap_or_else(PoisonError::into_inner)[state as usize];
        let none = || Error::Wrong("no file is left that could be picked: name a larger --scale".into());
        let any = (!free.is_empty()).then(|| random.below(free.len() as u64) as usize).ok_or_else(none)?;
        Ok(free.swap_remove(any))
    }

    /// Puts it back, in its present state.
    pub fn put(&self, state: State, file: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[state as usize].push(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_every_directory_is_there() {
        let set = Fileset::new(20_000, 16_384, 20, 80);
        let mean = set.sizes.iter().sum::<usize>() as f64 / 20_000.0;
        assert!((mean / 16_384.0 - 1.0).abs() < 0.03, "{mean}");
        let parent = |file: &Name| {
            let text = file.to_str().expect("plain");
            name(text.rsplit_once('/').expect("in a directory").0.into())
        };
        assert!(set.files.iter().all(|file| set.dirs.contains(&parent(file))));
        assert_eq!(set.dirs.len(), 1 + 1_000 + 50);
    }

    #[test]
    fn what_is_made_is_found_picked_and_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        for width in [3, 1_000_000] {
            let set = Fileset::new(10, 100, width, 80);
            set.make(&place, &[7; 64]).expect("made");
            assert_eq!(place.stat(&set.files[7]).expect("it is there"), set.sizes[7] as u64);
            let (picks, mut random) = (set.find(&place), Rng::new(1));
            let absent = [(); 2].map(|()| picks.take(State::Absent, &mut random).expect("two are not there"));
            assert!(absent.iter().all(|&file| file >= 8));
            assert!(picks.take(State::Absent, &mut random).is_err());
            picks.put(State::Absent, 9);
            assert_eq!(picks.take(State::Absent, &mut random).expect("the same"), 9);
            set.remove(&place).expect("removed");
            assert_eq!(place.list(&name(".".into())).expect("list"), 0);
        }
    }
}
