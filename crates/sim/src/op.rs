//! Operations by path, run on the file system.

use std::collections::BTreeMap;

use conquest_fs::codec::Codec;
use conquest_fs::compress::{Compressor, Plan};
use conquest_fs::node::{Fallocate, Rename, SetXattr, WriteFlags};
use conquest_fs::{Caller, Error, Fs, Ino, Kind, SetAttr, SetTime, Time, ROOT};
use rustix::io::Errno;

use rng::Rng;

/// One call of the API. Paths are absolute; `@name` stands for an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create(String, u32),
    Mknod(String, Kind, u64),
    Mkdir(String, u32),
    Symlink {
        target: String,
        path: String,
    },
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, Rename),
    /// Path, offset, length, seed of the content.
    Write(String, u64, usize, u64),
    Append(String, usize, u64),
    /// Until nothing more fits: pieces of a length, then single bytes.
    Fill(String, usize),
    Truncate(String, u64),
    Fallocate(String, Fallocate, u64, u64),
    Copy {
        from: (String, u64),
        to: (String, u64),
        len: u64,
    },
    SetXattr(String, String, Vec<u8>),
    RemoveXattr(String, String),
    Chmod(String, u32),
    Chown(String, u32, u32),
    SetTimes(String, i64),
    Read(String),
    /// Directory and handle.
    Tmpfile(String, String),
    /// Path and handle.
    Open(String, String),
    Close(String),
    /// Frees permission triples that no inode has.
    FreeTriples,
    /// Packs all names and inodes that can be packed.
    PackInodes,
    /// Writes so many bytes of text, which can be compressed: path, length, seed.
    Text(String, usize, u64),
    /// Compresses a file, or makes it plain again, which is not visible.
    Compress(String, Codec),
    Expand(String),
    /// Makes a dictionary; frees unused dictionaries and returns how many.
    AddDictionary(u64),
    DropDictionaries,
}

/// Text that a seed draws.
pub fn text(seed: u64, len: usize) -> Vec<u8> {
    let words = ["let ", "mut ", "region", ".read(", "off", ")?;\n", "    ", "fn ", "Result<", "()> {\n", "}\n"];
    let mut rng = Rng::new(seed);
    let words = std::iter::repeat_with(|| words[rng.below(words.len() as u64) as usize].bytes());
    words.flatten().take(len).collect()
}

/// The result of a call.
pub type Done = Result<u64, Errno>;

/// A file system with open files.
pub struct Runner<'a> {
    pub fs: &'a Fs,
    pub open: BTreeMap<String, Ino>,
}

/// Directory and last name of a path.
pub fn split(path: &str) -> (&str, &str) {
    match path.rfind('/') {
        Some(0) => ("/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => ("/", path),
    }
}

impl<'a> Runner<'a> {
    pub fn new(fs: &'a Fs) -> Self {
        Runner { fs, open: BTreeMap::new() }
    }

    /// The inode that a path leads to.
    pub fn find(&self, path: &str) -> conquest_fs::Result<Ino> {
        self.ino(path)
    }

    fn ino(&self, path: &str) -> conquest_fs::Result<Ino> {
        if path.starts_with('@') {
            return self.open.get(path).copied().ok_or(Errno::BADF.into());
        }
        let mut ino = ROOT;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            ino = self.fs.lookup(ino, name.as_bytes(), &Caller::root())?.ino;
        }
        Ok(ino)
    }

    fn place<'p>(&self, path: &'p str) -> conquest_fs::Result<(Ino, &'p [u8])> {
        let (dir, name) = split(path);
        Ok((self.ino(dir)?, name.as_bytes()))
    }

    /// Runs `op`. Damage is never an acceptable result.
    pub fn run(&mut self, op: &Op) -> Result<Done, String> {
        match self.call(op) {
            Ok(n) => Ok(Ok(n)),
            Err(Error::Posix(e)) => Ok(Err(e)),
            Err(e) => Err(format!("{op:?}: {e}")),
        }
    }

    fn set(&self, path: &str, set: SetAttr) -> conquest_fs::Result<u64> {
        self.fs.setattr(self.ino(path)?, &set, &Caller::root()).map(|_| 0)
    }

    fn call(&mut self, op: &Op) -> conquest_fs::Result<u64> {
        let (fs, root) = (self.fs, &Caller::root());
        match op {
            Op::Create(path, mode) => {
                let (dir, name) = self.place(path)?;
                fs.create(dir, name, Kind::Regular, *mode, 0, root)?;
            }
            Op::Mknod(path, kind, rdev) => {
                let (dir, name) = self.place(path)?;
                fs.create(dir, name, *kind, 0o644, *rdev, root)?;
            }
            Op::Mkdir(path, mode) => {
                let (dir, name) = self.place(path)?;
                fs.create(dir, name, Kind::Directory, *mode, 0, root)?;
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.place(path)?;
                fs.symlink(dir, name, target.as_bytes(), root)?;
            }
            Op::Link(old, new) => {
                let (dir, name) = self.place(new)?;
                fs.link(self.ino(old)?, dir, name, root)?;
            }
            Op::Unlink(path) => {
                let (dir, name) = self.place(path)?;
                fs.unlink(dir, name, root)?;
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.place(path)?;
                fs.rmdir(dir, name, root)?;
            }
            Op::Rename(from, to, how) => fs.rename(self.place(from)?, self.place(to)?, *how, root)?,
            Op::Write(path, off, len, seed) => {
                fs.write(self.ino(path)?, *off, &Rng::new(*seed).bytes(*len), WriteFlags::default())?;
            }
            Op::Append(path, len, seed) => {
                let flags = WriteFlags { append: true, ..WriteFlags::default() };
                fs.write(self.ino(path)?, 0, &Rng::new(*seed).bytes(*len), flags)?;
            }
            Op::Fill(path, len) => return self.fill(path, *len),
            Op::Truncate(path, size) => return self.set(path, SetAttr { size: Some(*size), ..SetAttr::default() }),
            Op::Fallocate(path, how, off, len) => fs.fallocate(self.ino(path)?, *how, *off, *len)?,
            Op::Copy { from, to, len } => {
                return fs.copy_range((self.ino(&from.0)?, from.1), (self.ino(&to.0)?, to.1), *len)
            }
            Op::SetXattr(path, name, value) => {
                fs.setxattr(self.ino(path)?, name.as_bytes(), value, SetXattr::Any, root)?;
            }
            Op::RemoveXattr(path, name) => fs.removexattr(self.ino(path)?, name.as_bytes(), root)?,
            Op::Chmod(path, mode) => return self.set(path, SetAttr { mode: Some(*mode), ..SetAttr::default() }),
            Op::Chown(path, uid, gid) => {
                return self.set(path, SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })
            }
            Op::SetTimes(path, t) => {
                let t = Some(SetTime::At(Time(*t)));
                return self.set(path, SetAttr { atime: t, mtime: t, ..SetAttr::default() });
            }
            Op::Read(path) => return Ok(fs.read(self.ino(path)?, 0, &mut [0; 4096])? as u64),
            Op::Tmpfile(dir, handle) => {
                let attr = fs.tmpfile(self.ino(dir)?, 0o600, root)?;
                self.open.insert(handle.clone(), attr.ino);
            }
            Op::Open(path, handle) => {
                let ino = self.ino(path)?;
                fs.retain(ino, 1)?;
                self.open.insert(handle.clone(), ino);
            }
            Op::Close(handle) => {
                let ino = self.ino(handle)?;
                fs.release(ino, 1);
                self.open.remove(handle);
            }
            Op::Text(path, len, seed) => {
                fs.write(self.ino(path)?, 0, &text(*seed, *len), WriteFlags::default())?;
            }
            Op::Compress(path, codec) => {
                let ino = self.ino(path)?;
                let mut compressor = Compressor::new(fs, Plan::now(*codec))?;
                compressor.see(ino)?;
                assert_eq!(compressor.done.compressed, 1, "{path} can be compressed: {:?}", compressor.done);
            }
            Op::Expand(path) => {
                let ino = self.ino(path)?;
                let mut compressor = Compressor::new(fs, Plan::default())?;
                compressor.expand(ino)?;
                assert_eq!(compressor.done.expanded, 1, "{path} is compressed");
            }
            Op::AddDictionary(seed) => {
                assert!(fs.add_dictionary(&text(*seed, 8000), 1)?.is_some(), "there is room for one");
            }
            Op::DropDictionaries => return Ok(fs.drop_unused_dictionaries()? as u64),
            Op::FreeTriples => assert!(fs.free_unused_triples()? > 0, "there was something to free"),
            Op::PackInodes => _ = fs.pack_metadata(0..fs.inode_blocks(), Time(i64::MAX), &|| true)?,
        }
        Ok(0)
    }

    /// Returns the bytes that fitted.
    fn fill(&self, path: &str, len: usize) -> conquest_fs::Result<u64> {
        let ino = self.ino(path)?;
        let start = self.fs.getattr(ino)?.size;
        let flags = WriteFlags { append: true, ..WriteFlags::default() };
        for len in [len, 1] {
            loop {
                match self.fs.write(ino, 0, &vec![0xf1; len], flags) {
                    Ok(_) => {}
                    Err(Error::Posix(Errno::NOSPC)) => break,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(self.fs.getattr(ino)?.size - start)
    }
}

// Short forms.

pub fn create(path: &str) -> Op {
    Op::Create(path.into(), 0o644)
}
pub fn mkdir(path: &str) -> Op {
    Op::Mkdir(path.into(), 0o755)
}
pub fn symlink(len: usize, path: &str) -> Op {
    Op::Symlink { target: "t".repeat(len), path: path.into() }
}
pub fn link(old: &str, new: &str) -> Op {
    Op::Link(old.into(), new.into())
}
pub fn unlink(path: &str) -> Op {
    Op::Unlink(path.into())
}
pub fn rmdir(path: &str) -> Op {
    Op::Rmdir(path.into())
}
pub fn rename(from: &str, to: &str, how: Rename) -> Op {
    Op::Rename(from.into(), to.into(), how)
}
pub fn write(path: &str, off: u64, len: usize, seed: u64) -> Op {
    Op::Write(path.into(), off, len, seed)
}
pub fn append(path: &str, len: usize, seed: u64) -> Op {
    Op::Append(path.into(), len, seed)
}
pub fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate(path.into(), size)
}
pub fn fallocate(path: &str, how: Fallocate, off: u64, len: u64) -> Op {
    Op::Fallocate(path.into(), how, off, len)
}
pub fn setxattr(path: &str, name: &str, len: usize) -> Op {
    Op::SetXattr(path.into(), name.into(), vec![0xa7; len])
}
pub fn open(path: &str) -> Op {
    Op::Open(path.into(), "@h".into())
}
pub fn close() -> Op {
    Op::Close("@h".into())
}
pub fn copy(from: (&str, u64), to: (&str, u64), len: u64) -> Op {
    Op::Copy { from: (from.0.into(), from.1), to: (to.0.into(), to.1), len }
}
