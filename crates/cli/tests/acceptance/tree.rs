//! Comparing and describing directory trees.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kind and state of a file, with everything that `cp -a` preserves.
#[derive(Debug, PartialEq, Eq)]
pub struct Item {
    mode: u32,
    uid: u32,
    gid: u32,
    /// The time of a directory alone proves nothing: reading does not change it, and cp sets it.
    mtime: (i64, i64),
    /// Content of files and symbolic links.
    content: u64,
    size: u64,
}

impl Item {
    pub fn without_time(self) -> Item {
        Item { mtime: (0, 0), ..self }
    }
}

/// Every file below `dir` by its path relative to it.
pub fn describe(dir: &Path) -> BTreeMap<PathBuf, Item> {
    let mut items = BTreeMap::new();
    walk(dir, &mut |path, meta| {
        let name = path.strip_prefix(dir).expect("below").to_path_buf();
        items.insert(name, item(path, meta));
    });
    items
}

/// Calls `f` for everything below `dir`.
pub fn walk(dir: &Path, f: &mut dyn FnMut(&Path, &Metadata)) {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|e| panic!("{}: {e}", dir.display())).path();
        let meta = path.symlink_metadata().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        f(&path, &meta);
        if meta.is_dir() {
            walk(&path, f);
        }
    }
}

/// How many files are below `dir`, and their bytes.
pub fn count(dir: &Path) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    walk(dir, &mut |_, meta| {
        files += 1;
        bytes += if meta.is_file() { meta.len() } else { 0 };
    });
    (files, bytes)
}

/// Panics with the first differences.
pub fn assert_same(expected: &BTreeMap<PathBuf, Item>, found: &BTreeMap<PathBuf, Item>, what: &str) {
    let mut differences = Vec::new();
    for (path, item) in expected {
        match found.get(path) {
            None => differences.push(format!("{} is missing", path.display())),
            Some(other) if other != item => {
                differences.push(format!("{} is {other:?}, should be {item:?}", path.display()))
            }
            Some(_) => {}
        }
    }
    let extra = found.keys().filter(|path| !expected.contains_key(*path));
    differences.extend(extra.map(|path| format!("{} is too much", path.display())));
    let first: Vec<_> = differences.iter().take(10).collect();
    assert!(differences.is_empty(), "{what}: {} differences: {first:#?}", differences.len());
}

fn item(path: &Path, meta: &Metadata) -> Item {
    let failed = |e| panic!("{}: {e}", path.display());
    let content = if meta.is_symlink() {
        checksum(std::fs::read_link(path).unwrap_or_else(failed).as_os_str().as_bytes())
    } else if meta.is_file() {
        checksum(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    } else {
        0
    };
    Item {
        mode: meta.mode(),
        uid: meta.uid(),
        gid: meta.gid(),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        content,
        size: if meta.is_dir() { 0 } else { meta.len() },
    }
}

/// FNV-1a over words, enough to detect accidental differences.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    hash
}
