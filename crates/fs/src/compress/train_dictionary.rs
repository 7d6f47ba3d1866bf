//! When a dictionary is made, and from which files. The first is made as soon as there are enough files, from a sample of the pool's own
//! small ones, taken evenly from the inode table; another once there are several times as many as for the newest.

use crate::attr::{Ino, Kind};
use crate::codec::dictionary::LONGEST;
use crate::codec::{worth, Dictionary};
use crate::error::{Error, Result};
use crate::node::compress::LEAST;
use crate::node::{content_of, Fs, ReadFlags};

/// Of larger files zstd finds enough in themselves.
const LONG: u64 = 128 << 10;
/// Bytes of each that go to the sample, and of all of them: the begin of many files tells more than more of few.
const OF_EACH: usize = 4 << 10;
const OF_ALL: usize = 100 * LONGEST;
/// So many bytes there have to be.
const ENOUGH: u64 = 1 << 20;
/// The newest is made of so few of them that another is due.
const MORE: u64 = 4;

/// The files to take samples of.
#[derive(Clone, Copy, Default)]
struct Candidates {
    bytes: u64,
    /// The part of that for samples of all of them.
    sampled: u64,
}

impl Fs {
    /// Makes a dictionary if the pool has none and has enough to make it of, or much more than when it was made, and frees unused
    /// ones. True: there is a new one. `go_on` is asked now and then.
    ///
    /// # Errors
    /// There is no memory for it, or nothing may be changed.
    pub fn train_if_due(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        let found = self.candidates()?;
        let newest = self.newest_was_of()?;
        let is_due = match newest {
            None => found.bytes >= ENOUGH,
            Some(was) => found.bytes >> 20 >= u64::from(was.max(1)) * MORE,
        };
        if !is_due || !go_on() {
            return Ok(false);
        }
        let samples = self.samples(found, go_on)?;
        if !go_on() {
            return Ok(false);
        }
        let of = u32::try_from(found.bytes >> 20).unwrap_or(u32::MAX);
        let Some(dictionary) = Dictionary::train(1, &samples) else { return Ok(false) };
        let added = self.add_dictionary(&dictionary.bytes, of)?;
        self.drop_unused_dictionaries()?;
        Ok(added.is_some())
    }

    fn candidates(&self) -> Result<Candidates> {
        let (mut found, mut from) = (Candidates::default(), 0);
        while let Some(ino) = self.table().next_used(from)? {
            from = ino + 1;
            if let Some(size) = self.candidate(ino) {
                found.bytes += size;
                found.sampled += size.min(OF_EACH as u64);
            }
        }
        Ok(found)
    }

    /// The size of a file that samples are taken of.
    fn candidate(&self, ino: Ino) -> Option<u64> {
        let raw = self.snapshot(ino).ok()?;
        let is = raw.kind == Kind::Regular as u8 && (LEAST..=LONG).contains(&raw.size);
        (is && !content_of(ino, &raw).is_large()).then_some(raw.size)
    }

    fn samples(&self, of: Candidates, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<Vec<u8>>> {
        // Of every so many files one.
        let step = (of.sampled / OF_ALL as u64).max(1);
        let (mut samples, mut from, mut n, mut bytes) = (Vec::new(), 0, 0, 0);
        while let Some(ino) = self.table().next_used(from)? {
            from = ino + 1;
            if self.candidate(ino).is_none() {
                continue;
            }
            n += 1;
            if n % step != 0 {
                continue;
            }
            if bytes >= OF_ALL || !go_on() {
                break;
            }
            let mut sample = vec![0; OF_EACH];
            let len = match self.read_as(ino, 0, &mut sample, ReadFlags { unnoted: true, caller_caches: true }) {
                Ok(len) => len,
                Err(Error::Corrupt(_)) => 0,
                Err(e) if e.errno() == rustix::io::Errno::STALE => 0,
                Err(e) => return Err(e),
            };
            sample.truncate(len);
            if !sample.is_empty() && worth::is_worth(&sample) {
                bytes += sample.len();
                samples.push(sample);
            }
        }
        Ok(samples)
    }
}
