//! Which files are compressed, when and how: by the time that they have been quiet, by their setting, and by how full memory is.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the decision about one file, and walks over many |
//! | [`shortage`] | room for a caller that finds none |
//! | [`survey`] | the amounts of content, compressed and plain |
//! | [`train_dictionary`] | dictionaries: when one is made, and from which files |
//!
//! How a file is compressed and made plain is the business of [`node`](crate::node).

pub(crate) mod shortage;
pub mod survey;
mod train_dictionary;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;

use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file::{self, Content, Trial};
use crate::layout::RawInode;
use crate::node::compress::{Compressed, LEAST};
use crate::node::{content_of, Fs};
use crate::setting::Compression;

use crate::codec::{self, Codec, Dictionary, Method};

pub use survey::{Sum, Survey};

/// How long a file must be quiet that is compressed at any age: its maker probably still writes it.
const QUIET: Duration = Duration::from_secs(10);

/// The files to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Files that were left alone for so long are compressed quickly, and those for so long well.
    pub warm: Duration,
    pub cold: Duration,
    /// Those also that were tried before, or were read often.
    pub again: bool,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { warm: Duration::from_secs(600), cold: Duration::from_secs(86_400), again: false }
    }
}

impl Plan {
    /// All files, by this codec, however young.
    pub fn now(codec: Codec) -> Plan {
        let never = Duration::MAX;
        let cold = if codec == Codec::Zstd { Duration::ZERO } else { never };
        Plan { warm: Duration::ZERO, cold, again: true }
    }

    /// The files to compress where memory is short.
    pub fn under_pressure(self) -> Plan {
        Plan { warm: self.warm.min(QUIET), cold: self.cold.min(self.warm), again: false }
    }
}

/// Bytes of memory that a file of `size` bytes takes whose chunks were compressed to `stored` bytes together.
pub fn memory_of(size: u64, stored: u64) -> u64 {
    file::occupied(codec::chunks_of(size), stored as usize)
}

/// The decision on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// It is too young.
    Later,
    Compress(Codec),
    /// It was hot: if it is not by the next round, it is compressed.
    Cool,
}

/// The decision on a file that looks like this.
fn due(raw: &RawInode, c: &Content, at: i64, plan: &Plan) -> Due {
    let is_small = (LEAST..=codec::MOST).contains(&c.size) && c.root != 0;
    if raw.kind != Kind::Regular as u8 || raw.nlink == 0 || !is_small || c.is_large() || c.is_cut() {
        return Due::Nothing;
    }
    // `ctime` tells when content was written, since no user can set it. A time to come says nothing.
    let used = [raw.ctime, raw.atime, raw.btime].into_iter().filter(|time| *time <= at).max().unwrap_or(at);
    let quiet = Duration::from_nanos(at.saturating_sub(used).max(0) as u64);
    let (after, codec) = match raw.compression() {
        Compression::Never => return Due::Nothing,
        Compression::Always => (QUIET.min(plan.warm), Codec::Zstd),
        Compression::Warm => (plan.warm, Codec::Lz4),
        Compression::Cold => (plan.warm, Codec::Zstd),
        Compression::Auto if quiet >= plan.cold => (plan.cold, Codec::Zstd),
        Compression::Auto => (plan.warm, Codec::Lz4),
    };
    if file::codec_of(c) >= Some(codec) {
        return Due::Nothing;
    }
    let trial = c.trial();
    let has_failed = trial == Trial::NotAtAll || trial == Trial::NotQuickly && codec == Codec::Lz4;
    match plan.again {
        false if has_failed => Due::Nothing,
        _ if quiet < after => Due::Later,
        false if trial == Trial::Hot && !raw.compression().stays() => Due::Cool,
        _ => Due::Compress(codec),
    }
}

/// The results of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Walked {
    /// Files that were looked at.
    pub files: u64,
    /// Of those: compressed; tried, and not worth it; in use just then.
    pub compressed: u64,
    pub not_worth: u64,
    pub busy: u64,
    /// Made plain.
    pub expanded: u64,
    /// That could not be read, or not be compressed.
    pub failed: u64,
    /// Bytes of the content of those that were compressed; and of memory that it took before, and after.
    pub content: u64,
    pub before: u64,
    pub after: u64,
}

impl Walked {
    fn add(&mut self, is: Compressed) {
        match is {
            Compressed::Done { plain, before, after } => {
                self.compressed += 1;
                self.content += plain;
                self.before += before;
                self.after += after;
            }
            Compressed::NotWorth => self.not_worth += 1,
            Compressed::Busy => self.busy += 1,
            Compressed::AsItIs => {}
        }
    }

    /// Bytes of memory that were saved.
    pub fn saved(&self) -> u64 {
        self.before.saturating_sub(self.after)
    }
}

/// A walk over files.
pub struct Compressor<'f> {
    fs: &'f Fs,
    plan: Plan,
    dictionary: Option<Arc<Dictionary>>,
    /// Files that are due for zstd are only counted: first it is decided whether to make a dictionary.
    pub puts_off: bool,
    pub put_off: u64,
    /// Bytes of content that was too young.
    pub(crate) young: u64,
    pub done: Walked,
}

impl<'f> Compressor<'f> {
    pub fn new(fs: &'f Fs, plan: Plan) -> Result<Compressor<'f>> {
        fs.writable()?;
        let dictionary = fs.newest_dictionary().unwrap_or_else(|e| {
            tracing::error!("{e}; content is compressed without a dictionary");
            None
        });
        Ok(Compressor { fs, plan, dictionary, puts_off: false, put_off: 0, young: 0, done: Walked::default() })
    }

    /// Looks at one file, and compresses it if that is due. Bytes of it that were compressed, or tried.
    ///
    /// # Errors
    /// There is no memory left, or nothing may be changed. Errors of single files are counted.
    pub fn see(&mut self, ino: Ino) -> Result<u64> {
        let Ok(raw) = self.fs.snapshot(ino) else { return Ok(0) };
        if raw.kind != Kind::Regular as u8 {
            return Ok(0);
        }
        self.done.files += 1;
        let c = content_of(ino, &raw);
        let done = match due(&raw, &c, self.fs.session().clock().now(), &self.plan) {
            Due::Nothing => return Ok(0),
            Due::Later => {
                self.young += raw.size;
                return Ok(0);
            }
            Due::Cool => {
                self.fs.note_trial(ino, &raw, Trial::None)?;
                return Ok(0);
            }
            Due::Compress(Codec::Zstd) if self.puts_off => {
                self.put_off += 1;
                return Ok(0);
            }
            Due::Compress(Codec::Lz4) => self.fs.compress(ino, &Method::Lz4),
            Due::Compress(Codec::Zstd) => self.fs.compress(ino, &Method::Zstd(self.dictionary.clone())),
        };
        self.count(ino, done)?;
        Ok(raw.size)
    }

    /// Makes one file plain.
    ///
    /// # Errors
    /// As of [`see`](Self::see).
    pub fn expand(&mut self, ino: Ino) -> Result<()> {
        let is_file = self.fs.snapshot(ino).is_ok_and(|raw| raw.kind == Kind::Regular as u8);
        if !is_file {
            return Ok(());
        }
        self.done.files += 1;
        match self.fs.expand(ino, Trial::Hot) {
            Ok(expanded) => self.done.expanded += u64::from(expanded),
            Err(e) => self.fail(ino, e)?,
        }
        Ok(())
    }

    fn count(&mut self, ino: Ino, done: Result<Compressed>) -> Result<()> {
        match done {
            Ok(is) => self.done.add(is),
            Err(e) => self.fail(ino, e)?,
        }
        Ok(())
    }

    fn fail(&mut self, ino: Ino, e: Error) -> Result<()> {
        match e.errno() {
            // It is gone.
            Errno::STALE | Errno::NOENT => Ok(()),
            Errno::NOSPC | Errno::ROFS => Err(e),
            _ => {
                tracing::warn!("compressing inode {ino}: {e}");
                self.done.failed += 1;
                Ok(())
            }
        }
    }
}

impl Fs {
    /// Compresses all due files of the pool. `go_on` gets the number of inodes that were looked at, the total, about, and the results;
    /// it ends the walk by returning false.
    pub fn compress_due(&self, plan: Plan, go_on: &mut dyn FnMut(u64, u64, &Walked) -> bool) -> Result<Walked> {
        if plan.cold < Duration::MAX {
            self.train_if_due(&mut || go_on(0, 0, &Walked::default()))?;
        }
        self.walk_files(plan, &mut |compressor, ino| compressor.see(ino).map(|_| ()), go_on)
    }

    /// Makes everything plain.
    pub fn expand_all(&self, go_on: &mut dyn FnMut(u64, u64, &Walked) -> bool) -> Result<Walked> {
        self.walk_files(Plan::default(), &mut |compressor, ino| compressor.expand(ino), go_on)
    }

    fn walk_files(
        &self,
        plan: Plan,
        see: &mut dyn FnMut(&mut Compressor, Ino) -> Result<()>,
        go_on: &mut dyn FnMut(u64, u64, &Walked) -> bool,
    ) -> Result<Walked> {
        let mut compressor = Compressor::new(self, plan)?;
        let (mut from, mut seen, of) = (0, 0, self.count_inodes()?);
        while let Some(ino) = self.table().next_used(from)? {
            see(&mut compressor, ino)?;
            (from, seen) = (ino + 1, seen + 1);
            if seen % 16 == 0 && !go_on(seen, of.max(seen), &compressor.done) {
                break;
            }
        }
        go_on(seen, of.max(seen), &compressor.done);
        Ok(compressor.done)
    }
}

#[cfg(test)]
mod tests;
