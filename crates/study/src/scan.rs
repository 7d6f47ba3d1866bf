//! A walk over a tree: its inodes as in a pool, the lengths of its names, and the paths of its small files.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use conquest_fs::layout::{form, RawInode, Root, PAGE};
use conquest_fs::Kind;
use pram::memory::{capacity_of, class_of, CLASSES, MAX_SMALL};

use crate::quietly;

const DIR: u8 = Kind::Directory as u8;
const FILE: u8 = Kind::Regular as u8;
const LINK: u8 = Kind::Symlink as u8;
/// The approximate size of an entry in a pool's directory, without its name.
const PER_ENTRY: u64 = 24;

/// The results of a walk.
#[derive(Default)]
pub struct Tree {
    /// In the order of the walk: a directory, then its entries.
    pub inodes: Vec<RawInode>,
    pub uids: Vec<u32>,
    /// Triples of uid, gid and mode, by their number in an inode.
    pub perms: Vec<(u32, u32, u32)>,
    /// Entries of all directories, and bytes of their names.
    pub entries: u64,
    pub name_bytes: u64,
    /// The entries of each directory that is not empty.
    pub directories: Vec<Vec<Name>>,
    /// Regular files that are not empty, with their sizes; one name each.
    pub files: Vec<(PathBuf, u64)>,
    /// Further names of counted files.
    pub further_names: u64,
    /// Files on other file systems, which were left out.
    pub other_mounts: u64,
    /// The first failures, and their reasons.
    pub failures: Vec<String>,
    pub failed: u64,
}

/// An entry of a directory.
pub struct Name {
    pub name: Vec<u8>,
    pub ino: u64,
    /// `d_type`.
    pub kind: u8,
}

/// The most failures in the list.
const LISTED: usize = 20;

/// The bounds of a walk.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Stay on the file system of the first directory.
    pub one_file_system: bool,
}

/// Walks over the tree in `dir`; `seen` gets the number of inodes now and then.
pub fn scan(dir: &Path, options: Options, seen: &mut dyn FnMut(u64)) -> io::Result<Tree> {
    let top = std::fs::metadata(dir)?;
    if !top.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory));
    }
    quietly::names(dir)?;
    let device = options.one_file_system.then_some(top.dev());
    let mut walk =
        Walk { tree: Tree::default(), device, known: HashMap::new(), perms: HashMap::new(), heap: Heap::new() };
    walk.add(dir, &top, 0);
    let mut waiting = vec![(dir.to_owned(), 1)];
    let mut reported = 0;
    while let Some((dir, number)) = waiting.pop() {
        let below = walk.directory(&dir, number);
        waiting.extend(below.into_iter().rev());
        if walk.tree.inodes.len() >= reported + 1000 {
            reported = walk.tree.inodes.len();
            seen(reported as u64);
        }
    }
    Ok(walk.tree)
}

struct Walk {
    tree: Tree,
    device: Option<u64>,
    /// The inode numbers of files with several names.
    known: HashMap<(u64, u64), u64>,
    perms: HashMap<(u32, u32, u32), u32>,
    heap: Heap,
}

impl Walk {
    fn directory(&mut self, dir: &Path, number: u64) -> Vec<(PathBuf, u64)> {
        let found = match quietly::names(dir) {
            Ok(found) => found,
            Err(e) => {
                self.fail(dir, &e);
                return Vec::new();
            }
        };
        let mut names = Vec::new();
        let mut below = Vec::new();
        for name in found {
            let path = dir.join(&name);
            let about = match std::fs::symlink_metadata(&path) {
                Ok(about) => about,
                Err(e) => {
                    self.fail(&path, &e);
                    continue;
                }
            };
            if self.device.is_some_and(|device| device != about.dev()) {
                self.tree.other_mounts += 1;
                continue;
            }
            let next = self.tree.inodes.len() as u64 + 1;
            let ino = match !about.is_dir() && about.nlink() > 1 {
                true => *self.known.entry((about.dev(), about.ino())).or_insert(next),
                false => next,
            };
            names.push(Name { name: name.into_encoded_bytes(), ino, kind: (about.mode() >> 12) as u8 });
            if ino != next {
                self.tree.further_names += 1;
                continue;
            }
            if about.is_dir() {
                below.push((path.clone(), ino));
            }
            self.add(&path, &about, number);
        }
        self.tree.entries += names.len() as u64;
        self.tree.name_bytes += names.iter().map(|entry| entry.name.len() as u64).sum::<u64>();
        // Known only now for a directory.
        let place = &mut self.tree.inodes[number as usize - 1];
        place.size = names.len() as u64;
        if !names.is_empty() {
            let bytes = names.iter().map(|entry| entry.name.len() as u64 + PER_ENTRY).sum();
            place.content = Root { off: self.heap.take(bytes), form: form::DIRECT, depth: 0 }.pack();
            self.tree.directories.push(names);
        }
        below
    }

    fn fail(&mut self, path: &Path, e: &io::Error) {
        self.tree.failed += 1;
        if self.tree.failures.len() < LISTED {
            self.tree.failures.push(format!("{}: {e}", path.display()));
        }
    }

    fn add(&mut self, path: &Path, about: &Metadata, parent: u64) {
        let kind = (about.mode() >> 12) as u8;
        let triple = (about.uid(), about.gid(), about.mode());
        let perms = &mut self.tree.perms;
        let perm = *self.perms.entry(triple).or_insert_with(|| {
            perms.push(triple);
            perms.len() as u32 - 1
        });
        let size = if kind == DIR { 0 } else { about.len() };
        let (content, pages) = match kind {
            FILE | LINK => self.heap.content(size),
            _ => (0, 0),
        };
        let time = |second: i64, nanos: i64| second.saturating_mul(1_000_000_000).saturating_add(nanos);
        let mtime = time(about.mtime(), about.mtime_nsec());
        let born = about.created().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        if kind == FILE && size > 0 {
            self.tree.files.push((path.to_owned(), size));
        }
        self.tree.uids.push(about.uid());
        self.tree.inodes.push(RawInode {
            content,
            size,
            extra: match kind {
                DIR => parent,
                FILE | LINK => pages,
                _ => about.rdev(),
            },
            mtime,
            ctime: time(about.ctime(), about.ctime_nsec()),
            atime: time(about.atime(), about.atime_nsec()),
            btime: born.map_or(mtime, |t| t.as_nanos() as i64),
            xattr: 0,
            perm,
            nlink: about.nlink() as u32,
            generation: 1,
            kind,
            delay: 0,
            settings: 0,
        });
    }
}

/// The offsets of content in a pool: objects of a size class one behind the other, in chunks of one class each.
pub struct Heap {
    /// By class: the offset of the next object, and the number of objects that still fit.
    current: Vec<(u64, u32)>,
    next: u64,
}

impl Default for Heap {
    fn default() -> Self {
        Heap::new()
    }
}

impl Heap {
    pub fn new() -> Heap {
        Heap { current: vec![(0, 0); CLASSES.len()], next: 16 * pram::CHUNK }
    }

    /// The offset of an object of `bytes`.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let largest = u64::from(CLASSES[CLASSES.len() - 1].size);
        if bytes > largest {
            let off = self.next;
            self.next += bytes.next_multiple_of(pram::CHUNK);
            return off;
        }
        let n = class_of(bytes.max(1));
        let class = &CLASSES[n];
        if self.current[n].1 == 0 {
            self.current[n] = (self.next + u64::from(class.base), class.count);
            self.next += pram::CHUNK;
        }
        let (off, left) = self.current[n];
        self.current[n] = (off + u64::from(class.size), left - 1);
        off
    }

    /// The root word of content of `size` bytes, and the pages of its tree.
    pub fn content(&mut self, size: u64) -> (u64, u64) {
        match size {
            0 => (0, 0),
            size if size <= MAX_SMALL => (Root { off: self.take(size), form: form::DIRECT, depth: 0 }.pack(), 0),
            size => {
                let pages = size.div_ceil(PAGE);
                let depth = (1..6).find(|height| pages <= 512u64.pow(*height)).unwrap_or(6) as u8;
                (Root { off: self.take(8 * pages.min(512)), form: form::TREE, depth }.pack(), pages)
            }
        }
    }
}

/// The size of an object of `bytes` in a pool.
pub fn object(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        bytes if bytes <= MAX_SMALL => capacity_of(bytes),
        bytes => bytes.next_multiple_of(PAGE),
    }
}
