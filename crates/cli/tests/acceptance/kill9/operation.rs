//! The operations of a writer: each is one system call that changes something.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rng::Rng;
use rustix::fs::{renameat_with, setxattr, RenameFlags, XattrFlags, CWD};

/// The extended attribute that writers set.
pub const XATTR: &str = "user.conquest-test";

/// Paths are relative to the round's directory.
#[derive(Clone, Debug)]
pub enum Op {
    Create(String),
    Mkdir(String),
    Symlink { target: String, path: String },
    Link { old: String, new: String },
    Unlink(String),
    Rmdir(String),
    Rename { from: String, to: String },
    Exchange { a: String, b: String },
    Write { path: String, offset: u64, data: Data },
    Append { path: String, data: Data },
    Truncate { path: String, size: u64 },
    Setxattr { path: String, value: Data },
}

/// The kernel splits a write into pieces at the borders of pages.
const PAGE: u64 = 4096;

/// Bytes that follow from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    pub seed: u64,
    pub len: usize,
}

impl Data {
    pub fn bytes(&self) -> Vec<u8> {
        Rng::new(self.seed).bytes(self.len)
    }
}

impl Data {
    /// The prefixes of these bytes, written at `offset`, that may be present when the server dies.
    fn pieces(&self, offset: u64) -> impl Iterator<Item = Data> + '_ {
        let first = (PAGE - offset % PAGE) as usize;
        (first..self.len).step_by(PAGE as usize).map(|len| Data { len, ..*self })
    }
}

impl Op {
    /// The partial results that an operation in flight may leave, besides nothing and all of it. The kernel sends a
    /// write page by page where it does not have the page. `size` is that of the file.
    pub fn parts(&self, size: impl Fn(&str) -> u64) -> Vec<Op> {
        match self {
            Op::Write { path, offset, data } => {
                let part = |data| Op::Write { path: path.clone(), offset: *offset, data };
                data.pieces(*offset).map(part).collect()
            }
            Op::Append { path, data } => {
                let part = |data| Op::Append { path: path.clone(), data };
                data.pieces(size(path)).map(part).collect()
            }
            _ => Vec::new(),
        }
    }

    pub fn perform(&self, dir: &Path) -> io::Result<()> {
        let at = |path: &String| dir.join(path);
        match self {
            Op::Create(path) => File::options().write(true).create_new(true).open(at(path)).map(drop),
            Op::Mkdir(path) => std::fs::create_dir(at(path)),
            Op::Symlink { target, path } => std::os::unix::fs::symlink(target, at(path)),
            Op::Link { old, new } => std::fs::hard_link(at(old), at(new)),
            Op::Unlink(path) => std::fs::remove_file(at(path)),
            Op::Rmdir(path) => std::fs::remove_dir(at(path)),
            Op::Rename { from, to } => std::fs::rename(at(from), at(to)),
            Op::Exchange { a, b } => Ok(renameat_with(CWD, at(a), CWD, at(b), RenameFlags::EXCHANGE)?),
            Op::Write { path, offset, data } => {
                let file = File::options().write(true).open(at(path))?;
                whole(file.write_at(&data.bytes(), *offset)?, data, &file)
            }
            Op::Append { path, data } => {
                let mut file = File::options().append(true).open(at(path))?;
                whole(io::Write::write(&mut file, &data.bytes())?, data, &file)
            }
            Op::Truncate { path, size } => File::options().write(true).open(at(path))?.set_len(*size),
            Op::Setxattr { path, value } => Ok(setxattr(at(path), XATTR, &value.bytes(), XattrFlags::empty())?),
        }
    }
}

/// One call must have written everything, unless the server died on the way.
fn whole(written: usize, data: &Data, file: &File) -> io::Result<()> {
    if written == data.len {
        return Ok(());
    }
    file.metadata()?;
    Err(io::Error::other(format!("only {written} of {} bytes written", data.len)))
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
