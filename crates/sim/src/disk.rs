//! Disks: the writes to them, their durable content, and the states that a power cut can leave.
//!
//! A sector (512 bytes) may have been written and not flushed before a power cut. It then holds any of its values since
//! the last flush, or the one from before, independently of all others. So writes are kept, dropped, torn and reordered.
//! A flush covers one file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use backing::log::SECTOR;
use backing::{Disks, SharedDisk};
use rng::Rng;

use crate::choice::Choice;

/// The files of a backing: the image, then the two redo logs; and the file of a participant.
pub const FILES: usize = 4;
pub const NAMES: [&str; FILES] = ["image", "redo-0", "redo-1", "ledger"];
/// The number of files of the backing alone.
pub const PARTS: usize = 3;
pub const LEDGER: usize = 3;

const CHUNK: usize = 64 << 10;
type Sector = [u8; SECTOR as usize];

/// Bytes that are cheap to copy: unchanged chunks are shared.
#[derive(Clone, Default)]
struct Sheet(Vec<Option<Arc<Vec<u8>>>>);

impl Sheet {
    fn get(&self, buf: &mut [u8], at: u64) {
        buf.fill(0);
        for (chunk, within, part) in pieces(at, buf.len()) {
            if let Some(Some(bytes)) = self.0.get(chunk) {
                let len = part.len();
                buf[part].copy_from_slice(&bytes[within..within + len]);
            }
        }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        for (chunk, within, part) in pieces(at, bytes.len()) {
            if self.0.len() <= chunk {
                self.0.resize(chunk + 1, None);
            }
            let there = self.0[chunk].get_or_insert_with(|| Arc::new(vec![0; CHUNK]));
            Arc::make_mut(there)[within..within + part.len()].copy_from_slice(&bytes[part]);
        }
    }
}

/// The chunks that `len` bytes at `at` lie in: number, offset within the chunk, and range of the bytes.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let at = at as usize;
    let mut done = 0;
    std::iter::from_fn(move || {
        let (chunk, within) = ((at + done) / CHUNK, (at + done) % CHUNK);
        let part = done..(done + CHUNK - within).min(len);
        done = part.end;
        (!part.is_empty()).then_some((chunk, within, part))
    })
}

/// A file on a disk.
#[derive(Clone, Default)]
pub struct Platter {
    durable: Sheet,
    durable_len: u64,
    /// By sector, the values since the last flush.
    pending: BTreeMap<u64, Vec<Sector>>,
    /// Sectors that a failed flush left in the host's memory: they can be read, and no flush will write them.
    lost: BTreeMap<u64, Sector>,
    len: u64,
}

impl Platter {
    /// A file of `len` zeros.
    pub fn zeros(len: u64) -> Platter {
        Platter { durable_len: len, len, ..Platter::default() }
    }

    pub fn read(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let end = at + buf.len() as u64;
        if end > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.durable.get(buf, at);
        let sectors = at / SECTOR..end.div_ceil(SECTOR);
        for (n, sector) in self.lost.range(sectors.clone()) {
            patch(buf, at, n * SECTOR, sector);
        }
        for (n, values) in self.pending.range(sectors) {
            values.last().iter().for_each(|sector| patch(buf, at, n * SECTOR, *sector));
        }
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8], at: u64) {
        let end = at + bytes.len() as u64;
        for n in at / SECTOR..end.div_ceil(SECTOR) {
            let mut sector = self.visible(n);
            patch(&mut sector, n * SECTOR, at, bytes);
            self.lost.remove(&n);
            self.pending.entry(n).or_default().push(sector);
        }
        self.len = self.len.max(end);
    }

    /// Writes the readable content to a file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.len)?;
        let mut piece = vec![0; CHUNK];
        for at in (0..self.len).step_by(CHUNK) {
            let piece = &mut piece[..(self.len - at).min(CHUNK as u64) as usize];
            self.read(piece, at)?;
            if piece.iter().any(|b| *b != 0) {
                file.write_all_at(piece, at)?;
            }
        }
        Ok(())
    }

    fn visible(&self, n: u64) -> Sector {
        let mut sector = [0; SECTOR as usize];
        match (self.pending.get(&n).and_then(|values| values.last()), self.lost.get(&n)) {
            (Some(there), _) | (None, Some(there)) => sector = *there,
            (None, None) => self.durable.get(&mut sector, n * SECTOR),
        }
        sector
    }

    pub fn flush(&mut self) {
        for (n, values) in std::mem::take(&mut self.pending) {
            values.last().iter().for_each(|sector| self.durable.put(n * SECTOR, *sector));
        }
        self.durable_len = self.len;
    }

    /// A flush that fails, as on Linux: sectors that could not be written count as written.
    pub fn fail_flush(&mut self) {
        for (n, values) in std::mem::take(&mut self.pending) {
            values.last().iter().for_each(|sector| _ = self.lost.insert(n, **sector));
        }
    }

    pub fn in_doubt(&self) -> usize {
        self.pending.len()
    }

    /// The file as a power cut leaves it.
    fn cut(&self, choice: Choice, rng: &mut Rng) -> Platter {
        let mut left = Platter { durable: self.durable.clone(), ..Platter::zeros(self.durable_len) };
        // Most kept, most dropped, all but one, just one, any.
        let (bias, one) = (rng.below(5), rng.below(self.pending.len().max(1) as u64));
        for (i, (n, values)) in (0..).zip(&self.pending) {
            let (last, drawn) = (values.len() as u64, rng.below(8));
            let pick = match (choice, bias) {
                (Choice::None, _) => 0,
                (Choice::All, _) => last,
                (_, 0) if drawn > 0 => last,
                (_, 1) if drawn > 0 => 0,
                (_, 2) => last * u64::from(i != one),
                (_, 3) => last * u64::from(i == one),
                _ => rng.below(last + 1),
            };
            if let Some(sector) = pick.checked_sub(1).and_then(|pick| values.get(pick as usize)) {
                left.durable.put(n * SECTOR, sector);
                left.durable_len = left.durable_len.max((n + 1) * SECTOR).min(self.len.max(left.durable_len));
            }
        }
        left.len = left.durable_len;
        left
    }
}

/// Copies the bytes at `from` that overlap `buf`, which lies at `at`, into it.
fn patch(buf: &mut [u8], at: u64, from: u64, bytes: &[u8]) {
    let start = at.max(from);
    let end = (at + buf.len() as u64).min(from + bytes.len() as u64);
    if start < end {
        let part = &bytes[(start - from) as usize..(end - from) as usize];
        buf[(start - at) as usize..(end - at) as usize].copy_from_slice(part);
    }
}

/// The disks in the form that a backing wants.
pub fn disks_of([image, first, second, _]: [SharedDisk; FILES]) -> Disks {
    Disks { image, logs: [first, second] }
}

/// The files of a backing.
#[derive(Clone, Default)]
pub struct Files(pub [Platter; FILES]);

impl Files {
    pub fn in_doubt(&self) -> usize {
        self.0.iter().map(Platter::in_doubt).sum()
    }

    /// The choices for sectors in doubt: none kept, all kept, or drawn by each of so many seeds.
    pub fn choices(&self, seeds: u64) -> Vec<Choice> {
        match self.in_doubt() {
            0 => vec![Choice::None],
            1 => vec![Choice::None, Choice::All],
            _ => [Choice::None, Choice::All].into_iter().chain((1..=seeds).map(Choice::Seed)).collect(),
        }
    }

    /// The files as a power cut leaves them.
    pub fn cut(&self, choice: Choice) -> Files {
        let mut rng = Rng::new(if let Choice::Seed(seed) = choice { seed } else { 0 });
        Files(std::array::from_fn(|n| self.0[n].cut(choice, &mut rng)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &Platter) -> Vec<u8> {
        let mut bytes = vec![0; file.len as usize];
        file.read(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn what_is_flushed_stays_and_the_rest_is_torn_at_sectors() {
        let mut file = Platter::zeros(100_000);
        file.write(&[1; 70_000], 300);
        file.flush();
        file.write(&[2; 1500], 1000);
        file.write(&[3; 10], 1030);
        let mut rng = Rng::new(1);
        let (old, new) = (read(&file.cut(Choice::None, &mut rng)), read(&file));
        assert!(old[300..70_300].iter().all(|b| *b == 1) && old[..300].iter().all(|b| *b == 0));
        assert_eq!(read(&file.cut(Choice::All, &mut rng)), new);
        let mut seen = [0; 4];
        for seed in 0..400 {
            let left = read(&file.cut(Choice::Seed(seed), &mut Rng::new(seed)));
            for (n, sector) in left.chunks(512).enumerate() {
                let at = n * 512..n * 512 + sector.len();
                let middle = n == 2 && sector != &old[at.clone()] && sector != &new[at.clone()];
                assert!(middle || sector == &old[at.clone()] || sector == &new[at], "sector {n}");
            }
            seen[usize::from(left[1000] == 2) + 2 * usize::from(left[2499] == 2)] += 1;
        }
        assert!(seen.iter().all(|n| *n > 10), "{seen:?}");
    }

    #[test]
    fn a_failed_flush_can_be_read_and_never_becomes_durable() {
        let mut file = Platter::zeros(2048);
        file.write(&[7; 600], 100);
        file.fail_flush();
        file.write(&[8; 10], 600);
        file.flush();
        assert_eq!(read(&file)[100..600], [7; 500]);
        let left = read(&file.cut(Choice::All, &mut Rng::new(0)));
        assert_eq!((left[100], left[605]), (0, 8));
    }
}
