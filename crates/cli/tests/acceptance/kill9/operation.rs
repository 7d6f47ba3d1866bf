//! The operations of a writer: each is one system call that changes something.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{renameat_with, setxattr, RenameFlags, XattrFlags, CWD};

use crate::rng::Rng;

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

impl Op {
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
                whole(file.write_at(&data.bytes(), *offset)?, data)
            }
            Op::Append { path, data } => {
                let mut file = File::options().append(true).open(at(path))?;
                whole(io::Write::write(&mut file, &data.bytes())?, data)
            }
            Op::Truncate { path, size } => File::options().write(true).open(at(path))?.set_len(*size),
            Op::Setxattr { path, value } => Ok(setxattr(at(path), XATTR, &value.bytes(), XattrFlags::empty())?),
        }
    }
}

/// One call must have written everything, or the operation would not be one.
fn whole(written: usize, data: &Data) -> io::Result<()> {
    if written == data.len {
        Ok(())
    } else {
        Err(io::Error::other(format!("only {written} of {} bytes written", data.len)))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
