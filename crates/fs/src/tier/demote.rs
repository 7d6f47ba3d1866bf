//! Demotion: where memory is short for objects, and clean blocks have gone, the content of the coldest small files goes to disk.
//!
//! The hand of a clock goes over the inode table. Of some thousand files that it passes, the colder half may go, the coldest
//! first: cold is a file whose last access, change, or change of attributes is long ago, whether it is compressed or not. Some files
//! stay: those of less than a page, or compressed to little more than their index takes, which give nothing back; programs that have to stay
//! in memory; and files whose threshold is `none`.
//!
//! A file that lay in one block needs an index, which takes memory. So writers of small files leave some, and wait rather than take it,
//! unless there is nothing that could go.

use std::sync::PoisonError;

use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file::{self, PAGE};
use crate::layout::RawInode;
use crate::node::{content_of, Fs};
use crate::ubj::Union;

/// Files among which the coldest are looked for.
const AMONG: usize = 8192;
/// A small file that may go to disk.
struct Cold {
    /// When it was used last.
    used: i64,
    ino: Ino,
    size: u64,
    /// Pages that are sent.
    pages: u64,
}

impl Union {
    /// Has about so many pages of cold files on disk rather than in memory, as far as there are some; how many went.
    pub fn demote(&self, fs: &Fs, wanted: u64) -> Result<u64> {
        let mut found = self.pass(fs)?;
        found.sort_unstable_by_key(|cold| cold.used);
        found.truncate(found.len().div_ceil(2));
        let (mut chosen, mut pages) = (Vec::new(), 0);
        for cold in found {
            if pages >= wanted {
                break;
            }
            if cold.size <= self.options.executables && fs.is_compressed_program(cold.ino) {
                continue;
            }
            pages += cold.pages;
            chosen.push(cold.ino);
        }
        match chosen.is_empty() {
            true => Ok(0),
            false => self.send(fs, &chosen, pages as usize),
        }
    }

    /// The hand goes on, round once at most.
    fn pass(&self, fs: &Fs) -> Result<Vec<Cold>> {
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, mut found, mut ends) = (*hand, Vec::new(), 0);
        while found.len() < AMONG {
            let next = fs.table().next_used(*hand)?;
            match next {
                Some(ino) if ends == 0 || ino < begun => {
                    *hand = ino + 1;
                    found.extend(self.cold(fs, ino));
                }
                None if ends == 0 => (*hand, ends) = (0, 1),
                _ => break,
            }
        }
        Ok(found)
    }

    fn cold(&self, fs: &Fs, ino: Ino) -> Option<Cold> {
        let look = || {
            let raw = fs.raw(ino)?;
            let used = raw.atime.max(raw.mtime).max(raw.ctime);
            Ok::<_, Error>(self.demotable(fs, ino, &raw).map(|pages| Cold { used, ino, size: raw.size, pages }))
        };
        // An unreadable file is not moved.
        fs.session().read(ino, look).ok().flatten()
    }

    /// Pages of a file that may go to disk though it is small.
    fn demotable(&self, fs: &Fs, ino: Ino, raw: &RawInode) -> Option<u64> {
        let (c, region) = (content_of(ino, raw), fs.memory());
        if raw.kind != Kind::Regular as u8 || raw.size < PAGE || c.is_large() || c.is_cut() {
            return None;
        }
        let (bytes, plain) = (file::allocated(region, &c), raw.size.div_ceil(PAGE));
        let (pages, least) = match file::is_compressed(&c) {
            // It goes plain, and a page takes a word of the index.
            true => (plain, PAGE / 2 + plain.next_power_of_two() * 8),
            false => (bytes.div_ceil(PAGE), PAGE),
        };
        let stays_in_memory = || raw.size <= self.options.executables && file::is_program(region, &c);
        match bytes < least || raw.threshold_or(self.threshold()) == u64::MAX || stays_in_memory() {
            true => None,
            false => Some(pages),
        }
    }
}
