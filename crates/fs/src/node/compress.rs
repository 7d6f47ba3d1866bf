//! Compressing quiet files, reading them, and making them plain again.
//!
//! Compression and decoding do not run inside an operation or a section: the bytes are copied out there, and compared again under the lock
//! before the result is used.
//!
//! Ordered steps of [`compress`](Fs::compress):
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | the content is copied out, under the sequence counter | a compressor runs on memory that changes |
//! | 2 | it is compressed, decoded, and compared with the copy | a library's error costs content |
//! | 3 | under the lock: the inode is as in step 1, and the content byte for byte | writes in between are lost |
//! | 4 | a transaction stores the compressed content to fresh objects, swings the root word, and frees the plain content | a crash leaves a half of each |
//!
//! A change of a compressed file fails with [`Error::Elsewhere`] inside of its operation. The file is made plain, in a
//! transaction of its own under the lock that the change then goes on with, and the change sets out again: see [`prepare`](super::prepare).

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use pram::Op;
use rustix::io::Errno;

use super::content::Writers;
use super::{content_of, now, At, Fs, Node};
use crate::attr::{Ino, Kind};
use crate::codec::{self, worth, Codec, Method};
use crate::error::{Error, Result};
use crate::file::{self, Content, Copied, Edit, Trial};
use crate::inode::packing::Purpose;
use crate::layout::RawInode;

/// Shorter files are not tried: a head, and the next smaller class, are more than they could save.
pub(crate) const LEAST: u64 = 80;
/// Compressed content may take at most so many eighths of the room of the plain content.
const PAYS: u64 = 7;

/// Reads of a compressed file after which it is hot, within so many seconds.
const HOT_READS: u64 = 4;
const HOT_WITHIN: i64 = 60;
/// Files of which reads are counted at a time.
const COUNTED: usize = 1024;
/// Files that are remembered to be made plain.
const NOTED: usize = 4096;

thread_local! {
    /// The copy of a reader: its memory is reused.
    static COPIED: RefCell<Copied> = RefCell::new(Copied::default());
}

/// The result for a file that was to be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compressed {
    /// It is: bytes of content, that the plain content occupied, and that the compressed does.
    Done { plain: u64, before: u64, after: u64 },
    /// It is not worth it.
    NotWorth,
    /// Another call changed it meanwhile, or is about to.
    Busy,
    /// It is of no kind that is compressed, or is so already.
    AsItIs,
}

/// Reads of compressed files, by this process.
#[derive(Default)]
pub(super) struct Heat {
    /// Inode number, when counting began (seconds, of which 16 bits), and reads since.
    counts: OnceLock<Box<[AtomicU64; COUNTED]>>,
    hot: Mutex<Vec<Ino>>,
}

impl Heat {
    /// A compressed file was read. Two counts at the same time may count once: it is a hint.
    fn note(&self, ino: Ino) {
        let counts = self.counts.get_or_init(|| Box::new([const { AtomicU64::new(0) }; COUNTED]));
        let (count, second) = (&counts[ino as usize % COUNTED], now().0 / 1_000_000_000);
        let is = count.load(Ordering::Relaxed);
        let (of, since, reads) = (is >> 24, (is >> 8) as u16, is & 0xff);
        let is_recent = i64::from((second as u16).wrapping_sub(since)) <= HOT_WITHIN;
        let (since, reads) = if of == ino && is_recent { (since, reads + 1) } else { (second as u16, 1) };
        count.store(ino << 24 | u64::from(since) << 8 | reads.min(0xff), Ordering::Relaxed);
        if reads == HOT_READS {
            let mut hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner);
            if hot.len() < NOTED {
                hot.push(ino);
            }
        }
    }

    fn take(&self) -> Vec<Ino> {
        std::mem::take(&mut *self.hot.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Fs {
    /// Reads a file that is compressed; `None` if it is not any more.
    #[cold]
    #[inline(never)]
    pub(super) fn read_compressed(
        &self,
        ino: Ino,
        offset: u64,
        buf: &mut [u8],
        node: &mut Node,
    ) -> Result<Option<usize>> {
        COPIED.with_borrow_mut(|copied| {
            let is_compressed = self.session().read(ino, || {
                self.read_regular(ino, node)?;
                let c = node.content();
                match file::is_compressed(&c) {
                    true => {
                        let end = offset.saturating_add(buf.len() as u64);
                        file::copy_out(self.memory(), &c, offset, end, copied).map(|()| true)
                    }
                    false => Ok(false),
                }
            })?;
            if !is_compressed {
                return Ok(None);
            }
            self.heat.note(ino);
            if offset >= copied.size() {
                return Ok(Some(0));
            }
            let dictionary = self.dictionary(copied.dictionary())?;
            copied.decode(dictionary.as_deref(), offset, buf).map_err(|e| of_inode(ino, e)).map(Some)
        })
    }

    /// Whether it is compressed, and begins as executables and shared libraries do. This notes no reading.
    pub(crate) fn is_compressed_program(&self, ino: Ino) -> bool {
        let (mut copied, mut first) = (Copied::default(), [0; file::EXECUTABLE.len()]);
        let found = self.session().read(ino, || {
            let c = content_of(ino, &self.raw(ino)?);
            match file::is_compressed(&c) {
                true => file::copy_out(self.memory(), &c, 0, first.len() as u64, &mut copied).map(|()| true),
                false => Ok(false),
            }
        });
        if !matches!(found, Ok(true)) {
            return false;
        }
        let dictionary = self.dictionary(copied.dictionary());
        let decoded = dictionary.and_then(|dictionary| copied.decode(dictionary.as_deref(), 0, &mut first));
        decoded.is_ok() && first == file::EXECUTABLE
    }

    /// All that was copied of a file, decoded.
    pub(crate) fn decode_all(&self, copied: &Copied) -> Result<Vec<u8>> {
        let mut plain = vec![0; copied.size().min(codec::MOST) as usize];
        let dictionary = self.dictionary(copied.dictionary())?;
        copied.decode(dictionary.as_deref(), 0, &mut plain)?;
        Ok(plain)
    }

    /// Can a compressed file be decoded, if it still is one?
    pub(crate) fn check_compressed(&self, ino: Ino) -> Result<()> {
        let mut copied = Copied::default();
        let is_compressed = self.session().read(ino, || {
            let Some(raw) = self.table().get(ino)? else { return Ok::<_, Error>(false) };
            let c = content_of(ino, &raw);
            match raw.kind == Kind::Regular as u8 && file::is_compressed(&c) {
                true => file::copy_out(self.memory(), &c, 0, c.size, &mut copied).map(|()| true),
                false => Ok(false),
            }
        })?;
        match is_compressed {
            true => self.decode_all(&copied).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Makes a compressed file, of which `op` has the lock, plain for a change; and holds its lock anew, with `node` read.
    #[cold]
    #[inline(never)]
    pub(super) fn prepare_compressed(&self, op: &mut Op, node: &mut Node, others: Writers) -> Result<()> {
        let (ino, generation, c) = (node.ino, node.raw.generation, node.content());
        let mut copied = Copied::default();
        file::copy_out(self.memory(), &c, 0, c.size, &mut copied).map_err(|e| of_inode(ino, e))?;
        let plain = op.outside(|| self.decode_all(&copied))?.map_err(|e| of_inode(ino, e))?;
        self.lock_content(op, ino, node, others)?;
        if node.raw.generation != generation {
            return Err(Errno::STALE.into());
        }
        // If it is other content by now, the change finds that out.
        if file::is_compressed(&node.content()) && copied.is_still(self.memory(), &node.content())? {
            op.unseen(|op| self.expand_locked(op, node, &plain, Trial::None))?;
        }
        node.touch(self.stamp([&*node]));
        Ok(())
    }

    fn expand_locked(&self, op: &mut Op, node: &mut Node, plain: &[u8], trial: Trial) -> Result<()> {
        let (mut tx, mut c) = (op.tx()?, node.content());
        file::expand(&mut Edit::in_memory(&mut tx), &mut c, plain)?;
        c.note_trial(trial);
        node.set_content(&c);
        node.save_hot(&mut tx)?;
        Ok(tx.commit()?)
    }

    /// Makes a file plain; false if it was not compressed, or another call changed it meanwhile.
    pub(crate) fn expand(&self, ino: Ino, trial: Trial) -> Result<bool> {
        self.writable()?;
        let (mut node, mut copied) = (Node::blank(), Copied::default());
        let is_compressed = self.session().read(ino, || {
            self.read_node(ino, &mut node)?;
            let c = node.content();
            match node.raw.kind == Kind::Regular as u8 && file::is_compressed(&c) {
                true => file::copy_out(self.memory(), &c, 0, c.size, &mut copied).map(|()| true),
                false => Ok(false),
            }
        })?;
        if !is_compressed {
            return Ok(false);
        }
        let at = At::seen(ino, &node.raw);
        let plain = self.decode_all(&copied).map_err(|e| of_inode(ino, e))?;
        self.beside(Purpose::Change, |op| {
            op.lock(&[ino])?;
            self.read_node(at, &mut node)?;
            if !file::is_compressed(&node.content()) || !copied.is_still(self.memory(), &node.content())? {
                return Ok(false);
            }
            self.expand_locked(op, &mut node, &plain, trial).map(|()| true)
        })
    }

    /// Makes the compressed files plain that this process has read again and again; how many.
    pub fn expand_hot(&self) -> Result<u64> {
        let (mut hot, mut done) = (self.heat.take(), 0);
        hot.sort_unstable();
        hot.dedup();
        for ino in hot {
            match self.snapshot(ino) {
                Ok(raw) if !raw.compression().stays() => {}
                _ => continue,
            }
            match self.expand(ino, Trial::Hot) {
                Ok(expanded) => done += u64::from(expanded),
                // It can be read as it is; or it is gone.
                Err(e) if matches!(e.errno(), Errno::NOSPC | Errno::STALE | Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Compresses a file, also one that is compressed by another method, if that is worth it. Steps 1 to 4.
    pub(crate) fn compress(&self, ino: Ino, method: &Method) -> Result<Compressed> {
        self.writable()?;
        // 1.
        let Some((seen, plain, copied)) = self.copy_plain(ino, method.codec())? else { return Ok(Compressed::AsItIs) };
        let before = file::allocated(self.memory(), &content_of(ino, &seen));
        // 2.
        let encoded = match worth::is_worth(&plain) {
            true => codec::encode(&plain, method),
            false => None,
        };
        let pays = |after: u64| after < before && after * 8 <= before * PAYS;
        // Of a file that another method has compressed, any saving.
        let encoded = encoded.filter(|encoded| match copied {
            Some(_) => file::would_occupy(encoded) < before,
            None => pays(file::would_occupy(encoded)),
        });
        let Some(encoded) = encoded else {
            self.note_trial(
                ino,
                &seen,
                if method.codec() == Codec::Lz4 { Trial::NotQuickly } else { Trial::NotAtAll },
            )?;
            return Ok(Compressed::NotWorth);
        };
        let dictionary = self.dictionary(encoded.dictionary)?;
        if !encoded.is(&plain, dictionary.as_deref()) {
            tracing::error!(
                "inode {ino}: {} did not give back what it was given; it stays as it is",
                encoded.codec.name()
            );
            return Ok(Compressed::NotWorth);
        }
        let after = file::would_occupy(&encoded);
        self.beside(Purpose::Change, |op| {
            // 3.
            op.lock(&[ino])?;
            let mut node = Node::blank();
            if self.read_node(At::seen(ino, &seen), &mut node).is_err() || op.is_long_locked(ino) {
                return Ok(Compressed::Busy);
            }
            let mut c = node.content();
            let is_same = is_as_seen(&node.raw, &seen)
                && match &copied {
                    Some(copied) => copied.is_still(self.memory(), &c)?,
                    None => file::is_plain(self.memory(), &c, Some(&plain))?,
                };
            if !is_same || !self.is_newest_dictionary(encoded.dictionary) {
                return Ok(Compressed::Busy);
            }
            // 4.
            let mut tx = op.tx()?;
            file::compress(&mut Edit::in_memory(&mut tx), &mut c, &encoded)?;
            node.set_content(&c);
            node.save_hot(&mut tx)?;
            tx.commit()?;
            Ok(Compressed::Done { plain: seen.size, before, after })
        })
    }

    /// The content of a file that may be compressed, and how it was compressed before. `None`: it may not, or has been by this codec.
    #[allow(clippy::type_complexity)]
    fn copy_plain(&self, ino: Ino, codec: Codec) -> Result<Option<(RawInode, Vec<u8>, Option<Copied>)>> {
        let (mut plain, mut copied) = (Vec::new(), Copied::default());
        let seen = self.session().read(ino, || {
            // The finding of a torn look.
            (plain, copied) = (Vec::new(), Copied::default());
            let Some(raw) = self.table().get(ino)? else { return Ok(None) };
            let c = content_of(ino, &raw);
            let may = raw.kind == Kind::Regular as u8 && raw.nlink > 0 && (LEAST..=codec::MOST).contains(&c.size);
            if !may || c.is_large() || c.is_cut() || file::codec_of(&c) >= Some(codec) {
                return Ok(None);
            }
            if file::is_compressed(&c) {
                file::copy_out(self.memory(), &c, 0, c.size, &mut copied)?;
            } else if file::is_plain(self.memory(), &c, None)? {
                plain.resize(c.size as usize, 0);
                file::read(self.memory(), &c, 0, &mut plain, |_, _| {})?;
            } else {
                return Ok(None);
            }
            Ok::<_, Error>(Some(raw))
        });
        let seen = match seen {
            // A file that is large by now is no candidate.
            Err(Error::Elsewhere) => None,
            seen => seen?,
        };
        let Some(seen) = seen else { return Ok(None) };
        if copied.size() == 0 {
            return Ok(Some((seen, plain, None)));
        }
        let plain = self.decode_all(&copied).map_err(|e| of_inode(ino, e))?;
        Ok(Some((seen, plain, Some(copied))))
    }

    /// Notes the result of trying to compress plain content, if it still is as it was.
    pub(crate) fn note_trial(&self, ino: Ino, seen: &RawInode, trial: Trial) -> Result<()> {
        let mut c = content_of(ino, seen);
        c.note_trial(trial);
        if c.root == seen.content {
            return Ok(());
        }
        self.beside(Purpose::Change, |op| {
            op.lock(&[ino])?;
            let mut node = Node::blank();
            if self.read_node(At::seen(ino, seen), &mut node).is_err() || !is_as_seen(&node.raw, seen) {
                return Ok(());
            }
            node.raw.content = c.root;
            let mut tx = op.tx()?;
            node.save_hot(&mut tx)?;
            Ok(tx.commit()?)
        })
    }

    /// The decodable part of a damaged compressed file, the rest zeros; and how many bytes those are. For repair.
    pub(crate) fn salvage_compressed(&self, c: &Content) -> Option<(Vec<u8>, u64)> {
        if !file::is_compressed(c) {
            return None;
        }
        let (mut plain, mut lost, mut some) = (vec![0; c.size.min(codec::MOST) as usize], 0, false);
        let mut at = 0;
        for chunk in plain.chunks_mut(codec::CHUNK) {
            let mut copied = Copied::default();
            let end = at + chunk.len() as u64;
            let done = file::copy_out(self.memory(), c, at, end, &mut copied).and_then(|()| {
                let dictionary = self.dictionary(copied.dictionary())?;
                copied.decode(dictionary.as_deref(), at, chunk)
            });
            match done {
                Ok(n) if n == chunk.len() => some = true,
                _ => {
                    chunk.fill(0);
                    lost += chunk.len() as u64;
                }
            }
            at = end;
        }
        some.then_some((plain, lost))
    }
}

/// Whether content, and the time of its last change, are as they were seen.
fn is_as_seen(is: &RawInode, seen: &RawInode) -> bool {
    let what = |raw: &RawInode| (raw.kind, raw.content, raw.size, raw.extra, raw.mtime, raw.nlink > 0);
    what(is) == what(seen)
}

fn of_inode(ino: Ino, e: Error) -> Error {
    match e {
        Error::Corrupt(why) => {
            let why = format!("inode {ino}: {why}");
            tracing::error!("{why}");
            Error::Corrupt(why)
        }
        e => e,
    }
}
