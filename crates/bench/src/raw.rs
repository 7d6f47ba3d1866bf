//! A disk by itself: a file past the page cache, with as many requests under way as make it fast. What is possible on a
//! disk at all is measured with it, by the same device layer that pools use.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exraid::disk::Making;
use exraid::{Aligned, Buffers, Device, Disk, Op, Request, Ticket};
use rng::Rng;

use crate::clock::now;
use crate::error::Error;

/// Bytes of a request where the order is that of the disk, and how many are under way.
const PIECE: u64 = 1 << 20;
const PIECES: usize = 16;
/// Bytes of a random read.
pub const BLOCK: u64 = 4096;

/// A file on a disk, all of it written; dropping it removes it.
pub struct Raw {
    disk: Disk,
    path: PathBuf,
    bytes: u64,
}

impl Raw {
    /// Makes one of `bytes`, a multiple of a MiB, at a path where there is nothing.
    pub fn make(path: &Path, bytes: u64) -> Result<Raw, Error> {
        let making = Making { size: Some(bytes), ..Making::default() };
        let disk = Disk::make(path, &making).map_err(failed)?;
        let raw = Raw { disk, path: path.to_owned(), bytes };
        raw.disk.run(Op::Reserve(0..bytes).into()).result.map_err(failed)?;
        raw.write()?;
        Ok(raw)
    }

    /// Do transfers pass the page cache?
    pub fn is_direct(&self) -> bool {
        self.disk.properties().direct
    }

    /// Writes all of it in order, and flushes; bytes per second.
    pub fn write(&self) -> Result<f64, Error> {
        let data = Aligned::of(&Rng::new(7).bytes(PIECE as usize));
        let (start, mut flight) = (now(), Flight::new(&self.disk, PIECES));
        for at in (0..self.bytes).step_by(PIECE as usize) {
            flight.start(Request::write(at, Buffers::whole(&data)))?;
        }
        flight.end()?;
        self.disk.flush().map_err(failed)?;
        Ok(per_second(self.bytes, start))
    }

    /// Reads all of it in order; bytes per second.
    pub fn read(&self) -> Result<f64, Error> {
        let memory = memory(PIECES, PIECE);
        let (start, mut flight) = (now(), Flight::new(&self.disk, PIECES));
        for (n, at) in (0..self.bytes).step_by(PIECE as usize).enumerate() {
            flight.start(Request::read(at, Buffers::whole(&memory[n % PIECES])))?;
        }
        flight.end()?;
        Ok(per_second(self.bytes, start))
    }

    /// Reads `count` blocks at random, `depth` at a time; reads per second.
    pub fn read_at_random(&self, count: usize, depth: usize) -> Result<f64, Error> {
        let memory = memory(depth, BLOCK);
        let mut random = Rng::new(8);
        let (start, mut flight) = (now(), Flight::new(&self.disk, depth));
        for n in 0..count {
            let at = random.below(self.bytes / BLOCK) * BLOCK;
            flight.start(Request::read(at, Buffers::whole(&memory[n % depth])))?;
        }
        flight.end()?;
        Ok(per_second(count as u64, start))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The run removes what is above it at the latest.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Requests under way, the oldest of which is waited for first.
struct Flight<'a> {
    disk: &'a Disk,
    most: usize,
    tickets: VecDeque<Ticket>,
}

impl Flight<'_> {
    fn new(disk: &Disk, most: usize) -> Flight<'_> {
        Flight { disk, most, tickets: VecDeque::with_capacity(most) }
    }

    /// Takes a request, once there is room for one more: then the memory of the one `most` before it is free.
    fn start(&mut self, request: Request) -> Result<(), Error> {
        if self.tickets.len() == self.most {
            self.wait()?;
        }
        self.tickets.push_back(self.disk.start(request));
        Ok(())
    }

    fn end(mut self) -> Result<(), Error> {
        while !self.tickets.is_empty() {
            self.wait()?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.tickets.pop_front().map_or(Ok(()), |ticket| ticket.wait().result.map_err(failed))
    }
}

fn memory(count: usize, bytes: u64) -> Vec<Arc<Aligned>> {
    (0..count).map(|_| Aligned::zeroed(bytes as usize)).collect()
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::Wrong(format!("the raw disk: {e}"))
}

/// How many of `count` there were in a second since `start`.
pub fn per_second(count: u64, start: u64) -> f64 {
    count as f64 * 1e9 / (now() - start).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_written_and_read_and_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let raw = Raw::make(&dir.path().join("raw"), 32 << 20).expect("a disk");
        assert!(raw.write().expect("written") > 0.0);
        assert!(raw.read().expect("read") > 0.0);
        assert!(raw.read_at_random(100, 32).expect("read") > 0.0);
        drop(raw);
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }
}
