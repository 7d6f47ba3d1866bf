//! Trees of equal files: the names that several workloads use.

use crate::prelude::*;

/// Directories of files, all names prepared.
pub struct Tree {
    /// Each before what is in it.
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
}
