//! Throughput of the log of segments: blocks appended and read in order, compared with fio on the same disk.
//!
//! ```sh
//! cargo run --release -p conquest-ilfs --example log_throughput -- /var/tmp/disk 2048
//! ```
//!
//! The second argument is the number of MiB to write and read; the disk is a quarter larger, and is made for this and
//! removed at the end. The two take turns; results are medians of five rounds. Writes count when a flush has made them
//! durable; reads are verified. Without fio its part is left out.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use exraid::region::make;
use exraid::{Aligned, Buffers, Device, Disk, Layout, Making, Uuid};
use ilfs::clean::Cleaned;
use ilfs::files::{Fate, Files, Move};
use ilfs::place::BLOCK;
use ilfs::write::Block;
use ilfs::{Head, Log, Options, Owner, Place, Run, KEY, SEGMENT};
use pram::medium::BATTERY;
use pram::{Mapping, Session};

const MIB: u64 = 1 << 20;
const ROUNDS: usize = 5;
/// Bytes that are written before the writer waits; bytes of a read.
const BATCH: u64 = 64 * MIB;
const READ: u64 = MIB;
/// Reads under way.
const DEPTH: usize = 8;

/// Files without any content, in an epoch.
struct Nothing(u64);

impl Files for Nothing {
    fn fate(&self, _: Owner, _: Place) -> ilfs::Result<Fate> {
        Ok(Fate::Dead)
    }

    fn relocate(&self, moves: &[Move]) -> ilfs::Result<Vec<bool>> {
        Ok(vec![false; moves.len()])
    }

    fn redirty(&self, blocks: &[(Owner, Place)]) -> ilfs::Result<Vec<bool>> {
        Ok(vec![false; blocks.len()])
    }

    fn kind(&self, _: Owner, _: Place) -> ilfs::Result<ilfs::sorted::Kind> {
        Ok((ilfs::Class::None, 1))
    }

    fn epoch(&self) -> u64 {
        self.0
    }
}

/// Bytes per second.
fn rate(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn append(
    log: &Log,
    session: &Session,
    memory: &Arc<Aligned>,
    bytes: u64,
) -> Result<(f64, Vec<Place>), Box<dyn Error>> {
    let (start, mut places) = (Instant::now(), Vec::new());
    for from in (0..bytes / BLOCK).step_by((BATCH / BLOCK) as usize) {
        let mut writer = log.writer(session, Head::Hot, None);
        for page in from..(from + BATCH / BLOCK).min(bytes / BLOCK) {
            let at = (page * BLOCK) as usize % memory.len();
            let content = Buffers::part(memory, at..at + BLOCK as usize);
            writer.push(Block { owner: Owner { ino: 1, generation: 1, page }, content, moved: None })?;
        }
        places.extend(writer.finish()?);
    }
    Ok((rate(bytes, start), places))
}

fn read(log: &Log, session: &Session, places: &[Place]) -> Result<f64, Box<dyn Error>> {
    let runs = Run::of(places.iter().copied(), (READ / BLOCK) as u32);
    let memory: Vec<Buffers> = (0..DEPTH).map(|_| Buffers::whole(&Aligned::zeroed(READ as usize))).collect();
    let (start, mut under_way) = (Instant::now(), std::collections::VecDeque::new());
    for (n, run) in runs.iter().enumerate() {
        if under_way.len() == DEPTH {
            under_way.pop_front().map(|reading: ilfs::read::Reading| reading.wait(log, session)).transpose()?;
        }
        let into = memory[n % DEPTH].slice(0..u64::from(run.blocks) * BLOCK);
        under_way.push_back(log.read(session, *run, into)?);
    }
    under_way.into_iter().try_for_each(|reading| reading.wait(log, session).map(drop))?;
    Ok(rate(places.len() as u64 * BLOCK, start))
}

/// The same by fio, in MiB at a time; `None` if fio is not installed.
fn fio(path: &Path, rw: &str, bytes: u64) -> Option<f64> {
    let mut fio = Command::new("fio");
    fio.arg("--name=x").arg(format!("--filename={}", path.display())).arg(format!("--rw={rw}"));
    fio.arg(format!("--size={bytes}")).arg(format!("--offset={MIB}"));
    fio.args(["--bs=1M", "--iodepth=8", "--ioengine=io_uring", "--direct=1", "--end_fsync=1", "--overwrite=1"]);
    let text = String::from_utf8(fio.arg("--output-format=terse").output().ok()?.stdout).ok()?;
    // Terse output, version 3: milliseconds and KiB of reads are fields 9 and 6, of writes 50 and 47.
    let fields: Vec<&str> = text.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let first = if rw == "write" { 46 } else { 5 };
    let (kib, millis): (f64, f64) = (fields.get(first)?.parse().ok()?, fields.get(first + 3)?.parse().ok()?);
    (millis > 0.0).then(|| kib * 1024.0 / (millis / 1000.0))
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), mib) = (args.next(), args.next()) else { return Err("usage: log_throughput FILE [MIB]".into()) };
    let bytes = mib.map_or(Ok(1024), |mib| mib.parse::<u64>())? * MIB;
    let path = Path::new(&path);
    let size = bytes + bytes / 4 + 16 * SEGMENT;
    let disk = Arc::new(Disk::make(path, &Making { size: Some(size), force: true, ..Making::default() })?);
    println!("{}: io_uring {}, past the page cache {}", disk.name(), disk.has_ring(), disk.properties().direct);
    let region = make(Uuid([7; 16]), 0, Layout::Single, vec![disk.clone()])?;
    let map = Mapping::anonymous(64 * MIB)?;
    let session = Session::private(pram::Memory::format(map, Box::new(BATTERY), [7; 16], 1, 0)?, KEY + 64)?;
    Log::format(&session, std::slice::from_ref(&region), SEGMENT)?;
    let log = Log::open(&session, std::slice::from_ref(&region), Options::default())?.ok_or("no log")?;
    let mut memory = Aligned::zeroed(BATCH as usize);
    if let Some(memory) = Arc::get_mut(&mut memory) {
        memory.bytes_mut().iter_mut().enumerate().for_each(|(n, byte)| *byte = ((n * 31) >> 5) as u8);
    }
    let (mut ours, mut theirs) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for round in 0..=ROUNDS {
        let (written, places) = append(&log, &session, &memory, bytes)?;
        let verified = read(&log, &session, &places)?;
        let mut op = session.begin()?;
        for some in places.chunks(512) {
            op.lock(&[KEY])?;
            let mut tx = op.tx()?;
            log.unlink(&mut tx, some)?;
            tx.commit()?;
            op.unlock();
        }
        drop(op);
        while let Cleaned::Freed { .. } = log.clean(&session, &Nothing(round as u64), 0, &mut || true)? {}
        let (write, read) = (fio(path, "write", bytes), fio(path, "read", bytes));
        // fio has overwritten segments: those of this round are free now. The first round only makes the host allocate
        // blocks.
        log.reclaim(&session, round as u64 + 1, u64::MAX)?;
        if round > 0 {
            ours[0].push(written);
            ours[1].push(verified);
            theirs[0].extend(write);
            theirs[1].extend(read);
        }
    }
    for (what, (ours, theirs)) in ["append", "read"].iter().zip(ours.into_iter().zip(theirs)) {
        let ours = median(ours).unwrap_or(0.0) / 1e6;
        match median(theirs).map(|theirs| theirs / 1e6) {
            None => println!("{what:>8}: {ours:7.0} MB/s"),
            Some(theirs) => println!("{what:>8}: {ours:7.0} MB/s, fio {theirs:7.0} MB/s: {:.2} of it", ours / theirs),
        }
    }
    drop((log, region, disk));
    std::fs::remove_file(path)?;
    Ok(())
}
