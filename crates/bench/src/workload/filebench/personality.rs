//! The workloads of Filebench 1.4.9 and 1.5: parameters, and the loop of a thread.
//!
//! One pass of a thread, each word a counted operation:
//!
//! - varmail: delete; create, append, fsync, close; open, read, append, fsync, close; open, read, close.
//! - fileserver: create, write, close; open, append, close; open, read, close; delete; stat.
//! - webserver: ten times open, read, close; append to the one log.
//! - webproxy: delete; create, append, close; five times open, read, close.
//!
//! An append seeks the end of the file and has any number of bytes up to its size; files are read whole.

use super::fileset::{write, Fileset, Picks, State, PIECE};
use crate::prelude::*;

/// Bytes of the longest append.
const APPEND: u64 = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Personality {
    Varmail,
    Fileserver,
    Webserver,
    Webproxy,
}

/// The parameters of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Stock {
    pub name: &'static str,
    which: Personality,
    files: usize,
    /// Bytes of a file on average.
    mean: usize,
    /// Entries of a directory.
    width: usize,
    threads: usize,
    /// Percent of the files that exist at the beginning.
    percent: usize,
}

pub const VARMAIL: Stock = stock(Personality::Varmail, "varmail", [1_000, 16 << 10, 1_000_000, 16, 80]);
pub const FILESERVER: Stock = stock(Personality::Fileserver, "fileserver", [10_000, 128 << 10, 20, 50, 80]);
pub const WEBSERVER: Stock = stock(Personality::Webserver, "webserver", [1_000, 16 << 10, 20, 100, 100]);
pub const WEBPROXY: Stock = stock(Personality::Webproxy, "webproxy", [10_000, 16 << 10, 1_000_000, 100, 80]);
pub const STOCKS: [Part<Stock>; 4] = [
    ("varmail", "", VARMAIL),
    ("fileserver", "", FILESERVER),
    ("webserver", "", WEBSERVER),
    ("webproxy", "", WEBPROXY),
];

const fn stock(which: Personality, name: &'static str, [files, mean, width, threads, percent]: [usize; 5]) -> Stock {
    Stock { name, which, files, mean, width, threads, percent }
}

impl Stock {
    /// As in the paper on UBJ: with fewer files of a file server, and 16 KB in each of the others.
    pub fn of_ubj() -> [Stock; 4] {
        [VARMAIL, Stock { files: 1_000, ..FILESERVER }, WEBSERVER, WEBPROXY]
    }

    /// With as many files as have `bytes` together, on average.
    pub fn sized(self, bytes: u64) -> Stock {
        let files = bytes * 100 / (self.mean as u64 * self.percent as u64);
        Stock { files: (files as usize).max(2 * self.threads), ..self }
    }

    /// With `scale` times the files, or with few when quick.
    pub fn times(self, scale: usize, quick: bool) -> Stock {
        match quick {
            true => Stock { files: self.files.min(1_000), ..self },
            false => Stock { files: self.files * scale, ..self },
        }
    }
}

/// A workload, fully prepared.
pub struct Flow {
    stock: Stock,
    set: Fileset,
    log: Name,
    data: Vec<u8>,
}

impl Flow {
    pub fn new(stock: &Stock) -> Flow {
        Flow {
            stock: *stock,
            set: Fileset::new(stock.files, stock.mean, stock.width, stock.percent),
            log: name("log".into()),
            data: Rng::new(11).bytes(PIECE),
        }
    }

    pub fn threads(&self) -> usize {
        self.stock.threads
    }

    /// Makes the files that exist at the beginning.
    pub fn prepare(&self, place: &impl Place) -> Result<(), Error> {
        self.set.make(place, &self.data)?;
        self.between(place)
    }

    /// Done between rounds: the log begins again.
    pub fn between(&self, place: &impl Place) -> Result<(), Error> {
        match self.stock.which {
            Personality::Webserver => place.create(&self.log).map(drop),
            _ => Ok(()),
        }
    }

    pub fn remove(&self, place: &impl Place) -> Result<(), Error> {
        if self.stock.which == Personality::Webserver {
            place.unlink(&self.log)?;
        }
        self.set.remove(place)
    }

    /// The files that exist at the beginning of a round.
    pub fn files(&self, place: &impl Place) -> Picks {
        self.set.find(place)
    }

    /// A thread with its own seed.
    pub fn worker<'a, P: Place>(&'a self, place: &'a P, picks: &'a Picks, seed: u64) -> Result<Worker<'a, P>, Error> {
        let log = match self.stock.which {
            Personality::Webserver => Some(place.open_update(&self.log)?),
            _ => None,
        };
        Ok(Worker { flow: self, place, picks, log, random: Rng::new(seed), buf: vec![0; PIECE] })
    }
}

/// A thread of a workload.
pub struct Worker<'a, P: Place + 'a> {
    flow: &'a Flow,
    place: &'a P,
    picks: &'a Picks,
    /// The log of a web server, open all the time.
    log: Option<P::Handle<'a>>,
    random: Rng,
    buf: Vec<u8>,
}

impl<P: Place> Worker<'_, P> {
    /// Runs the loop once; returns the operations.
    pub fn pass(&mut self) -> Result<u64, Error> {
        match self.flow.stock.which {
            Personality::Varmail => {
                self.delete()?;
                self.create(|worker, file, _| {
                    worker.append(file)?;
                    worker.place.fsync(file)
                })?;
                self.open(true, |worker, file| {
                    worker.read(file)?;
                    worker.append(file)?;
                    worker.place.fsync(file)
                })?;
                self.open(false, Worker::read)?;
                Ok(13)
            }
            Personality::Fileserver => {
                self.create(|worker, file, size| write(worker.place, file, size, &worker.flow.data))?;
                self.open(true, Worker::append)?;
                self.open(false, Worker::read)?;
                self.delete()?;
                self.stat()?;
                Ok(11)
            }
            Personality::Webserver => {
                for _ in 0..10 {
                    self.open(false, Worker::read)?;
                }
                let bytes = self.bytes();
                if let Some(log) = &self.log {
                    self.place.write_behind(log, &self.flow.data[..bytes])?;
                }
                Ok(31)
            }
            Personality::Webproxy => {
                self.delete()?;
                self.create(|worker, file, _| worker.append(file))?;
                for _ in 0..5 {
                    self.open(false, Worker::read)?;
                }
                Ok(19)
            }
        }
    }

    /// Bytes of an append.
    fn bytes(&mut self) -> usize {
        self.random.within(1, APPEND) as usize
    }

    fn delete(&mut self) -> Result<(), Error> {
        let file = self.picks.take(State::Present, &mut self.random)?;
        self.place.unlink(&self.flow.set.files[file]).map_err(|e| e.at("delete"))?;
        self.picks.put(State::Absent, file);
        Ok(())
    }

    fn create(
        &mut self,
        work: impl FnOnce(&mut Self, &P::Handle<'_>, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let file = self.picks.take(State::Absent, &mut self.random)?;
        let handle = self.place.create(&self.flow.set.files[file]).map_err(|e| e.at("create"))?;
        work(self, &handle, self.flow.set.sizes[file])?;
        drop(handle);
        self.picks.put(State::Present, file);
        Ok(())
    }

    fn open(
        &mut self,
        update: bool,
        work: impl FnOnce(&mut Self, &P::Handle<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let file = self.picks.take(State::Present, &mut self.random)?;
        let path = &self.flow.set.files[file];
        let handle = if update { self.place.open_update(path) } else { self.place.open_read(path) };
        let handle = handle.map_err(|e| e.at("open"))?;
        work(self, &handle)?;
        drop(handle);
        self.picks.put(State::Present, file);
        Ok(())
    }

    fn stat(&mut self) -> Result<(), Error> {
        let file = self.picks.take(State::Present, &mut self.random)?;
        self.place.stat(&self.flow.set.files[file]).map_err(|e| e.at("stat"))?;
        self.picks.put(State::Present, file);
        Ok(())
    }

    /// Reads a file to its end.
    fn read(&mut self, file: &P::Handle<'_>) -> Result<(), Error> {
        let mut at = 0;
        loop {
            match self.place.read(file, at, &mut self.buf)? {
                0 => return Ok(()),
                n => at += n as u64,
            }
        }
    }

    fn append(&mut self, file: &P::Handle<'_>) -> Result<(), Error> {
        let bytes = self.bytes();
        self.place.write_behind(file, &self.flow.data[..bytes])
    }
}
