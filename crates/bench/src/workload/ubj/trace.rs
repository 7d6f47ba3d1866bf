//! Traces of block references: recorded from the loops of [Filebench](crate::workload::filebench) on simulated files,
//! stored as text, replayed by [`replay`](super::replay).
//!
//! The text has a line `conquest trace 1`, then one with the number of blocks that exist at the beginning, then one for
//! each reference: a letter and, if it has blocks, the first of them and their number.
//!
//! | letter | reference |
//! | --- | --- |
//! | `r` | these blocks are read |
//! | `w` | these blocks are written as a whole |
//! | `p` | a part of this block is written |
//! | `f` | no file has these blocks any more |
//! | `s` | all earlier writes are to be durable |

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt::Write;

use crate::place::How;
use crate::prelude::{Error, Name, Place};
use crate::workload::filebench::personality::{Flow, Stock};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
const HEAD: &str = "conquest trace 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Part,
    Forget,
    Sync,
}

/// An access to neighbouring blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: Kind,
    pub first: u64,
    pub count: u64,
}

/// The block accesses of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Blocks that exist at the beginning.
    pub before: u64,
    pub references: Vec<Reference>,
}

impl Trace {
    /// Records the threads of a workload of Filebench, in turn, until they have read and written `blocks` blocks.
    pub fn record(stock: &Stock, blocks: u64) -> Result<Trace, Error> {
        let (flow, place) = (Flow::new(stock), Recorder::default());
        flow.prepare(&place)?;
        let before = place.0.borrow_mut().begin();
        let files = flow.files(&place);
        let threads = (0..flow.threads() as u64).map(|thread| flow.worker(&place, &files, thread));
        let mut workers = threads.collect::<Result<Vec<_>, Error>>()?;
        while place.0.borrow().blocks < blocks {
            workers.iter_mut().try_for_each(|worker| worker.pass().map(drop))?;
        }
        drop(workers);
        Ok(Trace { before, references: place.0.into_inner().references })
    }

    /// One more than the highest block.
    pub fn end(&self) -> u64 {
        self.references.iter().map(|r| r.first + r.count).max().unwrap_or(0).max(self.before)
    }

    /// Blocks that are read or written.
    pub fn footprint(&self) -> u64 {
        let mut seen = vec![false; self.end() as usize];
        let used = self.references.iter().filter(|r| !matches!(r.kind, Kind::Forget | Kind::Sync));
        used.for_each(|r| seen[r.first as usize..(r.first + r.count) as usize].fill(true));
        seen.into_iter().filter(|seen| *seen).count() as u64
    }

    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n{}\n", self.before);
        for Reference { kind, first, count } in &self.references {
            let letter = letter(*kind);
            let _ = match kind {
                Kind::Sync => writeln!(text, "{letter}"),
                _ => writeln!(text, "{letter} {first} {count}"),
            };
        }
        text
    }

    /// Reads the text of a trace.
    pub fn parse(text: &str) -> Result<Trace, Error> {
        let wrong = |n: usize| Error::Usage(format!("line {}: no trace, or not one that this program knows", n + 1));
        let mut lines = text.lines().enumerate();
        lines.next().filter(|(_, line)| *line == HEAD).ok_or_else(|| wrong(0))?;
        let before = lines.next().and_then(|(_, line)| line.parse().ok()).ok_or_else(|| wrong(1))?;
        let references = lines.map(|(n, line)| parse(line).ok_or_else(|| wrong(n)));
        Ok(Trace { before, references: references.collect::<Result<_, Error>>()? })
    }
}

fn letter(kind: Kind) -> char {
    match kind {
        Kind::Read => 'r',
        Kind::Write => 'w',
        Kind::Part => 'p',
        Kind::Forget => 'f',
        Kind::Sync => 's',
    }
}

fn parse(line: &str) -> Option<Reference> {
    let mut words = line.split(' ');
    let kinds = [Kind::Read, Kind::Write, Kind::Part, Kind::Forget, Kind::Sync];
    let first = words.next()?;
    let kind = kinds.into_iter().find(|kind| first.chars().eq([letter(*kind)]))?;
    if kind == Kind::Sync {
        return words.next().is_none().then_some(Reference { kind, first: 0, count: 0 });
    }
    let (first, count): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (count > 0 && first.checked_add(count)? < 1 << 40 && words.next().is_none()).then_some(Reference {
        kind,
        first,
        count,
    })
}

/// Files without content that record the accesses to them.
#[derive(Default)]
struct Recorder(RefCell<Recorded>);

#[derive(Default)]
struct Recorded {
    files: HashMap<Name, usize>,
    /// The blocks and the length of each file that ever existed.
    content: Vec<(Vec<u64>, u64)>,
    free: Vec<u64>,
    end: u64,
    references: Vec<Reference>,
    /// The number of blocks read and written.
    blocks: u64,
}

impl Recorded {
    /// Begins the trace: the present blocks exist at the beginning; returns their number.
    fn begin(&mut self) -> u64 {
        (self.references, self.blocks) = (Vec::new(), 0);
        self.end
    }

    fn note(&mut self, kind: Kind, block: u64) {
        self.blocks += u64::from(kind != Kind::Forget);
        match self.references.last_mut() {
            Some(last) if last.kind == kind && kind != Kind::Part && last.first + last.count == block => {
                last.count += 1
            }
            _ => self.references.push(Reference { kind, first: block, count: 1 }),
        }
    }

    fn write(&mut self, file: usize, from: u64, len: u64) {
        let size = self.content[file].1;
        for page in from / BLOCK..(from + len).div_ceil(BLOCK) {
            while self.content[file].0.len() as u64 <= page {
                let block = self.free.pop().unwrap_or(self.end);
                self.end = self.end.max(block + 1);
                self.content[file].0.push(block);
            }
            // Bytes behind the end of the file need not have existed before.
            let (begin, end) = (page * BLOCK, ((page + 1) * BLOCK).min(size));
            let whole = from <= begin && from + len >= end;
            self.note(if whole { Kind::Write } else { Kind::Part }, self.content[file].0[page as usize]);
        }
        self.content[file].1 = size.max(from + len);
    }

    fn read(&mut self, file: usize, from: u64, len: u64) -> u64 {
        let end = (from + len).min(self.content[file].1);
        for page in from / BLOCK..end.div_ceil(BLOCK).max(from / BLOCK) {
            self.note(Kind::Read, self.content[file].0[page as usize]);
        }
        end.saturating_sub(from)
    }

    fn forget(&mut self, file: usize) {
        let (blocks, _) = std::mem::take(&mut self.content[file]);
        blocks.iter().for_each(|block| self.note(Kind::Forget, *block));
        self.free.extend(blocks.iter().rev());
    }

    fn find(&self, path: &CStr) -> Result<usize, Error> {
        self.files.get(path).copied().ok_or(Error::System(rustix::io::Errno::NOENT))
    }
}

impl Place for Recorder {
    type Handle<'a> = usize;

    fn create(&self, path: &CStr) -> Result<usize, Error> {
        let mut recorded = self.0.borrow_mut();
        if let Ok(there) = recorded.find(path) {
            recorded.forget(there);
            return Ok(there);
        }
        recorded.content.push((Vec::new(), 0));
        let file = recorded.content.len() - 1;
        recorded.files.insert(path.to_owned(), file);
        Ok(file)
    }

    fn open(&self, path: &CStr, _: How) -> Result<usize, Error> {
        self.0.borrow().find(path)
    }

    fn write(&self, file: &usize, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.0.borrow_mut().write(*file, offset, data.len() as u64);
        Ok(())
    }

    fn append(&self, file: &usize, data: &[u8]) -> Result<(), Error> {
        let size = self.0.borrow().content[*file].1;
        self.write(file, size, data)
    }

    fn write_behind(&self, file: &usize, data: &[u8]) -> Result<(), Error> {
        self.append(file, data)
    }

    fn read(&self, file: &usize, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        Ok(self.0.borrow_mut().read(*file, offset, buf.len() as u64) as usize)
    }

    fn fsync(&self, _: &usize) -> Result<(), Error> {
        self.0.borrow_mut().references.push(Reference { kind: Kind::Sync, first: 0, count: 0 });
        Ok(())
    }

    fn stat(&self, path: &CStr) -> Result<u64, Error> {
        let recorded = self.0.borrow();
        Ok(recorded.content[recorded.find(path)?].1)
    }

    fn unlink(&self, path: &CStr) -> Result<(), Error> {
        let mut recorded = self.0.borrow_mut();
        let file = recorded.find(path)?;
        recorded.files.remove(path);
        recorded.forget(file);
        Ok(())
    }

    fn mkdir(&self, _: &CStr) -> Result<(), Error> {
        Ok(())
    }

    fn rmdir(&self, _: &CStr) -> Result<(), Error> {
        Ok(())
    }

    fn list(&self, _: &CStr) -> Result<usize, Error> {
        Ok(0)
    }

    fn settle(&self) -> Result<(), Error> {
        Ok(())
    }

    fn forget(&self, _: &usize) -> Result<(), Error> {
        Ok(())
    }
}

/// A trace that reads and writes random blocks equally often, for tests of its users.
#[cfg(test)]
pub fn any(blocks: u64, count: usize) -> Trace {
    let mut random = rng::Rng::new(5);
    let mut one = |_| {
        let kind = [Kind::Read, Kind::Write, Kind::Part][random.below(3) as usize];
        Reference { kind, first: random.below(blocks), count: 1 }
    };
    Trace { before: blocks, references: (0..count).map(&mut one).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_leaves_a_trace_that_is_the_same_each_time_and_as_text() {
        for stock in Stock::of_ubj() {
            let stock = stock.sized(8 << 20);
            let trace = Trace::record(&stock, 10_000).expect("recorded");
            assert_eq!(trace, Trace::record(&stock, 10_000).expect("recorded"));
            assert_eq!(trace, Trace::parse(&trace.to_text()).expect("a trace"));
            let megabytes = (trace.before * BLOCK) >> 20;
            assert!((5..16).contains(&megabytes), "{}: {megabytes} MiB", stock.name);
            assert!(trace.footprint() > trace.before / 2, "{}", stock.name);
            let has = |kind| trace.references.iter().any(|r| r.kind == kind);
            assert!(has(Kind::Read) && has(Kind::Write), "{}", stock.name);
            assert_eq!(has(Kind::Part), stock.name != "webproxy");
            assert_eq!(has(Kind::Sync), stock.name == "varmail");
            assert_eq!(has(Kind::Forget), stock.name != "webserver");
        }
    }

    #[test]
    fn bytes_are_blocks_of_the_file_and_come_back() {
        let place = Recorder::default();
        let path = crate::place::name("f".into());
        let file = place.create(&path).expect("made");
        place.write(&file, 0, &[0; 5000]).expect("written");
        place.append(&file, &[0; 10]).expect("written");
        assert_eq!(place.read(&file, 0, &mut [0; 9000]).expect("read"), 5010);
        place.unlink(&path).expect("removed");
        let of = |kind, first, count| Reference { kind, first, count };
        let found = place.0.into_inner();
        let wanted = [of(Kind::Write, 0, 2), of(Kind::Part, 1, 1), of(Kind::Read, 0, 2), of(Kind::Forget, 0, 2)];
        assert_eq!(found.references, wanted);
        assert_eq!((found.free, found.blocks), (vec![1, 0], 5));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let text = format!("{HEAD}\n7\nr 1 2\n");
        assert_eq!(Trace::parse(&text).expect("a trace").references.len(), 1);
        for (bad, line) in [("x", 1), (HEAD, 2), (&format!("{HEAD}\n7\nr 1"), 3), (&format!("{HEAD}\n7\ns\nr 1 0"), 4)]
        {
            let e = Trace::parse(bad).expect_err(bad).to_string();
            assert!(e.contains(&format!("line {line}:")), "{e}");
        }
    }
}
