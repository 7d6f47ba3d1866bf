//! Going through a directory.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::File;
use crate::attr::{Ino, Kind};
use crate::error::Result;
use crate::node::Fs;

/// Entries that are asked for at a time.
const BATCH: usize = 256;
/// Behind `.` and `..`.
const FIRST: u64 = 2;

/// The entries of a directory: see [`View::read_dir`](super::View::read_dir).
pub struct ReadDir<'a> {
    fs: &'a Fs,
    dir: File<'a>,
    batch: VecDeque<DirEntry>,
    /// Behind which entry the next batch begins; `None`: there is none.
    cookie: Option<u64>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub kind: Kind,
    pub ino: Ino,
}

impl DirEntry {
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.name.clone())
    }
}

impl<'a> ReadDir<'a> {
    pub(super) fn new(fs: &'a Fs, dir: File<'a>) -> ReadDir<'a> {
        ReadDir { fs, dir, batch: VecDeque::new(), cookie: Some(FIRST) }
    }

    fn read_batch(&mut self, cookie: u64) -> Result<()> {
        self.cookie = None;
        self.fs.readdir(self.dir.ino(), cookie, &mut |e| {
            self.batch.push_back(DirEntry { name: e.name.to_vec(), kind: e.kind, ino: e.ino });
            if self.batch.len() < BATCH {
                return true;
            }
            self.cookie = Some(e.cookie);
            false
        })
    }
}

impl Iterator for ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        while self.batch.is_empty() {
            let cookie = self.cookie?;
            if let Err(e) = self.read_batch(cookie) {
                self.cookie = None;
                return Some(Err(e));
            }
        }
        self.batch.pop_front().map(Ok)
    }
}
