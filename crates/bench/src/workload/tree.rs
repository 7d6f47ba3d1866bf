//! Trees of equal files: the names that several workloads use.

use crate::prelude::*;

/// Directories of files, all names prepared.
pub struct Tree {
    /// Directories before their entries.
    pub dirs: Vec<Name>,
    /// Directory by directory.
    pub files: Vec<Name>,
}

impl Tree {
    /// `files` files spread evenly over `dirs` directories called `prefix`0, `prefix`1 …
    pub fn new(prefix: &str, dirs: usize, files: usize) -> Tree {
        let dirs = dirs.min(files);
        let file = |i: usize| name(format!("{prefix}{:03}/f{i:07}", i * dirs / files));
        Tree {
            dirs: (0..dirs).map(|d| name(format!("{prefix}{d:03}"))).collect(),
            files: (0..files).map(file).collect(),
        }
    }

    pub fn make_dirs(&self, place: &impl Place) -> Result<(), Error> {
        self.dirs.iter().try_for_each(|dir| place.mkdir(dir).map_err(|e| e.at(format!("mkdir {dir:?}"))))
    }

    pub fn remove_dirs(&self, place: &impl Place) -> Result<(), Error> {
        self.dirs.iter().rev().try_for_each(|dir| place.rmdir(dir).map_err(|e| e.at(format!("rmdir {dir:?}"))))
    }

    /// Creates every file, empty.
    pub fn make_files(&self, place: &impl Place) -> Result<(), Error> {
        let make = |file: &Name| place.create(file).map(drop).map_err(|e| e.at(format!("create {file:?}")));
        self.files.iter().try_for_each(make)
    }
}

/// The content of such files, and the operations on one.
pub struct Content(pub Vec<u8>);

impl Content {
    /// `bytes` bytes, drawn from a seed.
    pub fn drawn(seed: u64, bytes: usize) -> Content {
        Content(Rng::new(seed).bytes(bytes))
    }

    /// A buffer for reading: one byte longer, so that a longer file is noticed.
    pub fn buffer(&self) -> Vec<u8> {
        vec![0; self.0.len() + 1]
    }

    #[inline]
    pub fn create(&self, place: &impl Place, file: &Name) -> Result<(), Error> {
        let handle = place.create(file)?;
        place.write(&handle, 0, &self.0)
    }

    #[inline]
    pub fn create_synced(&self, place: &impl Place, file: &Name) -> Result<(), Error> {
        let handle = place.create(file)?;
        place.write(&handle, 0, &self.0)?;
        place.fsync(&handle)
    }

    #[inline]
    pub fn stat(&self, place: &impl Place, file: &Name) -> Result<(), Error> {
        self.check(place.stat(file)?)
    }

    #[inline]
    pub fn read(&self, place: &impl Place, file: &Name, buf: &mut [u8]) -> Result<(), Error> {
        let handle = place.open_read(file)?;
        let n = place.read(&handle, 0, buf)?;
        self.check(n as u64)
    }

    #[inline]
    fn check(&self, size: u64) -> Result<(), Error> {
        match size == self.0.len() as u64 {
            true => Ok(()),
            false => Err(Error::Wrong(format!("a file of {} bytes has {size}", self.0.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_spread_evenly_and_every_directory_exists() {
        let tree = Tree::new("d", 3, 10);
        let of = |d: &str| tree.files.iter().filter(|f| f.to_bytes().starts_with(d.as_bytes())).count();
        assert_eq!([of("d000/"), of("d001/"), of("d002/")], [4, 3, 3]);
        assert_eq!(tree.dirs.len(), 3);
        assert_eq!(Tree::new("d", 100, 10).dirs.len(), 10);
    }

    #[test]
    fn a_wrong_size_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("f"), [0; 99]).expect("write");
        let (place, content) = (Mounted::new(dir.path()).expect("open"), Content(vec![7; 100]));
        let file = name("f".into());
        assert!(matches!(content.stat(&place, &file), Err(Error::Wrong(_))));
        assert!(matches!(content.read(&place, &file, &mut content.buffer()), Err(Error::Wrong(_))));
        content.create(&place, &file).expect("written");
        content.read(&place, &file, &mut content.buffer()).expect("whole");
    }
}
